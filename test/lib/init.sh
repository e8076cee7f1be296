# shellcheck shell=bash
# What every script of test/ starts with.
#
# Several checkouts share a machine, the caller may be root or not, and nothing
# of the system may change: so all that a script builds, installs or runs lives
# in one work folder per checkout, and servers run as an unprivileged user.
# This file finds both, gives the few words the scripts talk with, and makes a
# run independent of the environment it is started from (run.sh); the other
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

# For root it is the owner of the checkout, who can then go on where root left
# off; in root's own checkout, the user that Debian's server runs as.
server_user() {
	local owner
	if [ -n "${IDEM_SERVER_USER:-}" ]; then
		echo "$IDEM_SERVER_USER"
		return
	fi
	if ! am_root; then
		id -un
		return
	fi
	owner=$(stat -c %U "$IDEM_TOP")
	case $owner in
		root | UNKNOWN) if id postgres >/dev/null 2>&1; then echo postgres; else echo nobody; fi ;;
		*) echo "$owner" ;;
	esac
}

# as_server COMMAND...: runs it as the unprivileged user, in the current folder
# if that user may enter it, in the work folder otherwise.  A server that it
# starts must not go on holding our locks (7 releases, 9 run).
as_server() {
	if ! am_root; then
		"$@" 7>&- 9>&-
		return
	fi
	local user
	user=$(server_user)
	(
		reachable "$PWD" || cd "$IDEM_WORK" || exit
		HOME=$IDEM_WORK USER=$user LOGNAME=$user drop_root "$user" "$@" 7>&- 9>&-
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

# .tmp in the checkout; under /var/tmp where that cannot be: the unprivileged
# user cannot get there (a clone below /root) or cannot write there, or the path
# holds a character that make cannot handle, such as a blank.
work_folder() {
	if [[ $IDEM_TOP != *[!A-Za-z0-9/._+@,-]* ]] && reachable "$IDEM_TOP" && [ -w "$IDEM_TOP" ]; then
		echo "$IDEM_TOP/.tmp"
	else
		echo "/var/tmp/idempotency-$(id -u)-$(printf '%s' "$IDEM_TOP" | cksum | cut -d' ' -f1)"
	fi
}

prepare_work_folder() {
	local owner
	mkdir -p "$IDEM_WORK" 2>/dev/null || true
	owner=$(stat -c %U "$IDEM_WORK" 2>/dev/null)
	[ -w "$IDEM_WORK" ] && { am_root || [ -O "$IDEM_WORK" ]; } ||
		die "cannot use $IDEM_WORK${owner:+, which belongs to $owner: remove it first}"
	if am_root; then
		[ "$owner" = "$(server_user)" ] || own "$IDEM_WORK"
	fi
}

# one_at_a_time: waits until no other script of this checkout that said the same
# is running, and ends what a killed one left running.
one_at_a_time() {
	[ -z "${IDEM_LOCKED:-}" ] || return 0
	prepare_work_folder
	exec 9>>"$IDEM_WORK/run.lock"
	if ! flock -n 9; then
		say "waiting for another run in this checkout"
		flock 9
	fi
	if ! [ "$IDEM_WORK/run.lock" -ef /dev/fd/9 ]; then
		one_at_a_time      # it was removed meanwhile, with all of the folder
		return
	fi
	IDEM_LOCKED=$$
	export IDEM_LOCKED
	end_killed_run
}

IDEM_WORK=$(work_folder)

source "$IDEM_LIB/packages.sh"
source "$IDEM_LIB/server.sh"
source "$IDEM_LIB/cluster.sh"
source "$IDEM_LIB/run.sh"
enter_run "$@"
