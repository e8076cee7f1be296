# shellcheck shell=bash
# What the provider's clients, pay and reconcile, have in common.
set -euo pipefail
CLIENT=$(dirname "${BASH_SOURCE[0]}")

# sql FILE [NAME=VALUE...]: runs it with psql variables.
sql() {
	local file=$1 setting options=()
	shift
	for setting in "$@"; do
		options+=(-v "$setting")
	done
	"$PSQL" -X -qAt -F ' ' -P null=- -v ON_ERROR_STOP=1 "${options[@]}" -f "$CLIENT/$file"
}

# provider COMMAND...: asks the provider that PROVIDER names.
provider() { "$CLIENT/provider" "$@"; }
