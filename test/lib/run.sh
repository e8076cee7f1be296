# shellcheck shell=bash
# What belongs to one run of a script, from its start to its end, however it ends.
#
#   enter_run "$@"       starts the script again in an environment of its own
#   end_killed_run       ends what a run that was killed with SIGKILL left
#   IDEM_KEEP=1          lets the servers go on when the script ends
#   IDEM_SCRATCH         another folder to be removed then
#
# The environment: a UTF-8 locale in LANG alone (the TAP modules of PostgreSQL
# take LC_ALL away), files that the unprivileged user can read, a HOME, and
# IDEM_RUN, a folder below /tmp for temporary files (TMPDIR) and sockets: the
# path of a socket is limited to some 100 bytes, that of a checkout is not.  The
# unprivileged user stays the same (IDEM_SERVER_USER), though packages that the
# run installs may make another one.
#
# IDEM_RUN is in the environment of every process of the run, and marks it: at
# the end of the script, also by a signal, all of them are ended and the folder
# is removed.  Scripts that are run by another one belong to its run.

enter_run() {
	if [ -z "${IDEM_RUN:-}" ]; then
		# the process stays the same: $$ is the one that owns the run
		exec env -u LC_ALL -u LANGUAGE -u LC_CTYPE -u LC_COLLATE -u LC_MESSAGES -u LC_MONETARY \
			-u LC_NUMERIC -u LC_TIME LANG="$(utf8_locale)" HOME="${HOME:-/nonexistent}" \
			IDEM_RUN="/tmp/idem.$$.$RANDOM" IDEM_RUN_OWNER=$$ IDEM_SERVER_USER="$(server_user)" bash "$0" "$@"
	fi
	umask 022
	[ -d "$HOME" ] || HOME=$IDEM_WORK
	[ "$IDEM_RUN_OWNER" = $$ ] || return 0
	trap leave_run EXIT
	# the others end the script at once; this one comes to the child as well,
	# and bash would go on where a child takes it for itself
	trap 'exit 130' INT
	mkdir -m 700 "$IDEM_RUN"
	! am_root || chown "$(server_user)" "$IDEM_RUN"
	export TMPDIR=$IDEM_RUN
}

# C.UTF-8 knows all characters and sorts the same everywhere.
utf8_locale() {
	local all
	all=$(locale -a 2>/dev/null) || true
	if grep -qiE '^C\.utf-?8$' <<<"$all"; then
		echo C.UTF-8
	else
		grep -m1 -iE '\.utf-?8$' <<<"$all" || echo C
	fi
}

# A command that fails here must not end the script before the folder is gone:
# bash runs this in the midst of the command that a signal interrupted, and may
# take the end of that one for the end of another.
leave_run() {
	local status=$?
	set +e
	trap '' INT TERM HUP
	if [ -n "${IDEM_KEEP:-}" ]; then
		find "$IDEM_RUN" -mindepth 1 -maxdepth 1 -type f -delete
	else
		end_run "$IDEM_RUN"
		clusters_remove
		rm -rf "$IDEM_RUN" ${IDEM_SCRATCH:+"$IDEM_SCRATCH"}
	fi
	if [ "${IDEM_LOCKED:-}" = $$ ]; then
		rm -f "$IDEM_WORK/run"
	fi
	[ ! -d "$IDEM_WORK" ] || own "$IDEM_WORK"
	exit "$status"
}

# The run that holds the lock is on record, in case it cannot end itself.
end_killed_run() {
	local run
	run=$(cat "$IDEM_WORK/run" 2>/dev/null) || true
	if [ -n "$run" ] && [ "$run" != "$IDEM_RUN" ]; then
		end_run "$run"
		rm -rf "$run"
	fi
	echo "$IDEM_RUN" >"$IDEM_WORK/run"
}

# end_run RUN: ends its processes: the unprivileged user's too, which root may
# see, in a container, only as that user.
end_run() {
	end_marked "$1" $$
	! am_root || (
		cd /
		drop_root "$(server_user)" bash -c "$(declare -f end_marked of_initdb marked); end_marked '$1' \$\$"
	)
}

# end_marked RUN EXCEPT: a server at once, without leaving its shared memory;
# the others by TERM, so that a compiler takes its half object along; what is
# still there after some seconds, and what ignores TERM, by KILL.  An initdb comes
# to its end by itself: the servers it starts leave their shared memory on any
# signal, and when it goes before them.  A process that ends while they are read
# through may have started one that is not among them: none is left when none was
# seen twice.
end_marked() {
	local tries signal process found=1 before name
	for ((tries = 0; tries < 600; tries++)); do
		before=$found
		found=
		for process in /proc/[0-9]*; do
			marked "$process" "$1" "$2" || continue
			found=1
			signal=TERM
			read -r name <"$process/comm" || continue
			! of_initdb "$process" "$name" || continue
			[ "$name" != postgres ] || signal=QUIT
			[ "$name" != unshare ] && [ "$tries" -lt 30 ] || signal=KILL
			kill -s "$signal" "${process#/proc/}" || true
		done
		[ -n "$found$before" ] || return 0
		sleep 0.1
	done 2>/dev/null
}

# of_initdb PROCESS NAME: initdb, a server that it starts or the shell between.
of_initdb() {
	local words=()
	mapfile -d '' words <"$1/cmdline" || true
	[[ $2 == initdb || "$2 ${words[1]:-}" == "postgres --"* || "${words[*]}" == sh\ -c*/postgres\"\ --* ]]
}

# marked PROCESS RUN EXCEPT.  No process is started to look at one.
marked() {
	local words=()
	[ "${1#/proc/}" != "$3" ] && [ "${1#/proc/}" != "${IDEM_RUN_OWNER:-}" ] || return 1
	mapfile -d '' words <"$1/environ" || return 1
	[[ " ${words[*]} " == *" IDEM_RUN=$2 "* ]]
}
