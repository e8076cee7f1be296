# shellcheck shell=bash
# Throw-away clusters of the private server.
#
#   cluster_create NAME ['setting = value' ...]    a fresh one, not started
#   cluster_start NAME; cluster_stop NAME [fast|immediate|smart]
#   cluster_psql NAME ARGUMENT...                  psql as the superuser
#   cluster_env NAME            exports PGHOST, PGPORT, PGUSER, PGDATABASE
#   cluster_pid NAME; cluster_data NAME; cluster_log NAME
#   cluster_remove NAME; clusters_remove           one; all of this script's
#
# Each has a socket folder of its own in the folder of the run (run.sh) and
# listens on no network address.  Call private_server first.  At the end of the
# script its clusters are removed.  Their logs stay, in .tmp/log.

IDEM_CLUSTERS=()

cluster_home() { echo "$IDEM_WORK/cluster/$1"; }
cluster_data() { echo "$(cluster_home "$1")/data"; }
cluster_log() { echo "$IDEM_WORK/log/cluster-$1.log"; }
cluster_socket() { cat "$(cluster_home "$1")/socket"; }
cluster_pid() { head -1 "$(cluster_data "$1")/postmaster.pid"; }

cluster_create() {
	local name=$1 home socket
	shift
	cluster_remove "$name"
	home=$(cluster_home "$name")
	mkdir -p "$home" "$IDEM_WORK/log"
	rm -f "$(cluster_log "$name")"
	own "$IDEM_WORK/cluster" "$IDEM_WORK/log"
	socket=$IDEM_RUN/$name
	mkdir -m 700 "$socket"
	own "$socket"
	echo "$socket" >"$home/socket"
	IDEM_CLUSTERS+=("$name")
	# in a session of its own, where no Ctrl-C ends what it runs (run.sh)
	as_server setsid --wait "$IDEM_BIN/initdb" -D "$home/data" -U postgres -A trust --no-sync \
		--encoding=UTF8 --locale="$(utf8_locale)" >"$home/initdb.log" 2>&1 ||
		{ cat "$home/initdb.log" >&2; return 1; }
	cluster_settings "$socket" "$@" | as_server tee -a "$home/data/postgresql.conf" >/dev/null
}

cluster_settings() {
	local socket=$1
	shift
	cat <<-END
		listen_addresses = ''
		unix_socket_directories = '$socket'
		port = 5432
		max_prepared_transactions = 10
		log_line_prefix = '%m [%p] %q%a '
	END
	[ $# -eq 0 ] || printf '%s\n' "$@"
}

cluster_start() {
	as_server "$IDEM_BIN/pg_ctl" -D "$(cluster_data "$1")" -l "$(cluster_log "$1")" -w -s start ||
		{ tail -20 "$(cluster_log "$1")" >&2; return 1; }
}

cluster_stop() {
	as_server "$IDEM_BIN/pg_ctl" -D "$(cluster_data "$1")" -m "${2:-fast}" -w -s stop
}

cluster_running() {
	[ -x "${IDEM_BIN:-}/pg_ctl" ] &&
		as_server "$IDEM_BIN/pg_ctl" -D "$(cluster_data "$1")" status >/dev/null 2>&1
}

cluster_psql() {
	local name=$1
	shift
	"$IDEM_BIN/psql" -X -h "$(cluster_socket "$name")" -p 5432 -U postgres "$@"
}

cluster_env() {
	PGHOST=$(cluster_socket "$1")
	export PGHOST PGPORT=5432 PGUSER=postgres PGDATABASE="${2:-postgres}"
}

# Also clears what a killed run of the same name left behind.
cluster_remove() {
	local home
	home=$(cluster_home "$1")
	[ -d "$home" ] || return 0
	kill_leftover "$home/data/postmaster.pid"
	if [ -s "$home/socket" ]; then
		rm -rf "$(cat "$home/socket")"
		rmdir "$(dirname "$(cat "$home/socket")")" 2>/dev/null || true
	fi
	rm -rf "$home"
}

# kill_leftover PIDFILE: ends the postmaster of that file, and nothing else: a
# recycled number belongs to a process with another working folder.
kill_leftover() {
	local pid tries
	[ -s "$1" ] || return 0
	pid=$(head -1 "$1")
	[ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$(dirname "$1")" ] || return 0
	kill -QUIT "$pid"
	for ((tries = 0; tries < 100; tries++)); do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -KILL "$pid"
}

clusters_remove() {
	local name
	for name in ${IDEM_CLUSTERS[@]+"${IDEM_CLUSTERS[@]}"}; do
		cluster_remove "$name"
	done
}
