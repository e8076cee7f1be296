# shellcheck shell=bash
# What every script of test/ starts with.
#
# Several checkouts share a machine, the caller may be root or not, and nothing
# of the system may change: so all that a script builds, installs or runs lives
# in one work folder per checkout, and servers run as an unprivileged user.
# This file finds both and gives the few words the scripts talk with; the other
# files of this folder, loaded at the end, add
#
#   packages.sh   need_packages build server tap lint model
#   server.sh     private_server          -> IDEM_PG_CONFIG IDEM_BIN IDEM_BUILD
#   cluster.sh    cluster_create, cluster_start, cluster_psql, ...
#
# Use:  source "$(dirname "${BASH_SOURCE[0]}")/lib/init.sh"

IDEM_LIB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
IDEM_TOP=$(cd "$IDEM_LIB/../.." && pwd)

# Everything but results goes to stderr, so that output can be captured.
say() { printf '%s\n' "$*" >&2; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# step WORDS COMMAND...: one line before and one after what may take long; the
# command's output is shown only if it fails.  (Bash ignores "set -e" in what is
# called from here: a function given as COMMAND returns its errors itself.)
step() {
	local words=$1 log started=$SECONDS
	shift
	log=$(mktemp)
	printf '%s ... ' "$words" >&2
	if "$@" >"$log" 2>&1; then
		say "done ($((SECONDS - started)) s)"
		rm -f "$log"
	else
		say "failed"
		cat "$log" >&2
		rm -f "$log"
		return 1
	fi
}

# --- who runs servers ---------------------------------------------------------

am_root() { [ "$(id -u)" -eq 0 ]; }

server_user() {
	if ! am_root; then
		id -un
	elif id postgres >/dev/null 2>&1; then
		echo postgres
	else
		echo nobody
	fi
}

# as_server COMMAND...: runs it as the unprivileged user, in the current folder
# if that user may enter it, in the work folder otherwise.  A server that it
# starts must not go on holding our locks (7 matrix, 8 build, 9 run).
as_server() {
	if ! am_root; then
		"$@" 7>&- 8>&- 9>&-
		return
	fi
	local user
	user=$(server_user)
	(
		reachable "$PWD" || cd "$IDEM_WORK" || exit
		HOME=$IDEM_WORK USER=$user LOGNAME=$user drop_root "$user" "$@" 7>&- 8>&- 9>&-
	)
}

drop_root() {
	local user=$1
	shift
	setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- "$@"
}

reachable() { ! am_root || drop_root "$(server_user)" test -x "$1"; }

# own FOLDER...: makes it the unprivileged user's.
own() {
	am_root || return 0
	chown -R "$(server_user)" "$@"
}

# --- where everything is ------------------------------------------------------

# .tmp in the checkout; under /var/tmp when the unprivileged user could not get
# there (a clone below /root).
work_folder() {
	if reachable "$IDEM_TOP"; then
		echo "$IDEM_TOP/.tmp"
	else
		echo "/var/tmp/idempotency-$(printf '%s' "$IDEM_TOP" | cksum | cut -d' ' -f1)"
	fi
}

prepare_work_folder() {
	mkdir -p "$IDEM_WORK" 2>/dev/null || true
	[ -w "$IDEM_WORK" ] ||
		die "cannot write to $IDEM_WORK; if another user made it, remove it first"
	if am_root; then
		[ "$(stat -c %U "$IDEM_WORK")" = "$(server_user)" ] || own "$IDEM_WORK"
	fi
}

# one_at_a_time: waits until no other script of this checkout that said the same
# is running.
one_at_a_time() {
	prepare_work_folder
	exec 9>"$IDEM_WORK/run.lock"
	if ! flock -n 9; then
		say "waiting for another run in this checkout"
		flock 9
	fi
}

IDEM_WORK=$(work_folder)

source "$IDEM_LIB/packages.sh"
source "$IDEM_LIB/server.sh"
source "$IDEM_LIB/cluster.sh"
