# shellcheck shell=bash
# What the scripts of test/bench share.
#
#   bench_server [SETTING...]              a server with forms/setup.sql in it
#   tps FORM [ENV...]                      transactions per second of a pgbench script
#   compare TITLE TARGET OURS BASE [ENV]   the median ratio of OURS to BASE
#   median                                 of the numbers on standard input
#
# Measured is in turns, round by round, on one server and one machine: what else the
# machine does hits all alike.  A FORM is a script of test/bench/forms, or a path.
set -euo pipefail

ROUNDS=${ROUNDS:-9}
SECONDS_EACH=${SECONDS_EACH:-3}
CLIENTS=${CLIENTS:-8}
HERE=$IDEM_TOP/test/bench
PARAMS=$(cat "$HERE/forms/params.json")
RESULTS=$IDEM_WORK/bench/results.tsv
RESULT='{"order": 7, "status": "created"}'

sql() { "$IDEM_BIN/psql" -XqAt -v ON_ERROR_STOP=1 -c "$1"; }

set_server() { sql "ALTER SYSTEM SET $1" && sql 'SELECT pg_reload_conf()' >/dev/null; }

# form NAME OPTION...: pgbench with a script and what the scripts ask for; OPTIONS are further
# ones, PIN a command that chooses its CPU.
form() {
	local file=$1
	shift
	${PIN:-} "$IDEM_BIN/pgbench" -n -M prepared --max-tries=100 -D params="$PARAMS" -D result="$RESULT" \
		-D keys=10000 -D first=1 ${OPTIONS[@]+"${OPTIONS[@]}"} "$@" -f "$(form_file "$file")"
}

form_file() {
	case $1 in
		/*) echo "$1" ;;
		*) echo "$HERE/forms/$1.sql" ;;
	esac
}

tps() {
	local name=$1 assignment
	shift
	(
		for assignment; do export "${assignment?}"; done
		form "$name" -c "$CLIENTS" -j 2 -T "$SECONDS_EACH" 2>/dev/null
	) | sed -n 's/^tps = \([0-9.]*\).*/\1/p'
}

# record MEASURE UNIT [keep]: enters the lines "form value" on standard input (record.pl).
record() {
	mkdir -p "${RESULTS%/*}"
	perl "$HERE/record.pl" "$RESULTS" "$@"
}

median() { sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

# compare TITLE TARGET OURS BASE [ENV]: the median ratio of OURS to BASE.
compare() {
	local title=$1 target=$2 ours=$3 base=$4 round a b
	shift 4
	local ratios=() as=() bs=()
	for ((round = 1; round <= ROUNDS; round++)); do
		printf '\r%-52s round %d of %d ' "$title" "$round" "$ROUNDS" >&2
		"$IDEM_BIN/psql" -Xqc 'CHECKPOINT'
		# which one goes first changes, so that neither gains by it
		if ((round % 2)); then
			a=$(tps "$ours" "$@") b=$(tps "$base" "$@")
		else
			b=$(tps "$base" "$@") a=$(tps "$ours" "$@")
		fi
		as+=("$a") bs+=("$b")
		ratios+=("$(awk -v a="$a" -v b="$b" 'BEGIN {printf "%.3f", a / b}')")
	done
	printf '\r%80s\r' '' >&2
	printf '%-52s %6.2f   (target %s; %.0f against %.0f tps)\n' "$title" \
		"$(printf '%s\n' "${ratios[@]}" | median)" "$target" \
		"$(printf '%s\n' "${as[@]}" | median)" "$(printf '%s\n' "${bs[@]}" | median)"
}

# bench_server [SETTING...].  No checkpoint of the server's own falls into what is measured, and
# where a page is written first after one makes no difference.
bench_server() {
	need_packages build server
	private_server
	cluster_create bench 'shared_buffers = 2GB' 'max_wal_size = 64GB' 'checkpoint_timeout = 1h' 'full_page_writes = off' 'autovacuum = off' \
		"idempotency.principal = 'acme'" 'max_connections = 100' 'maintenance_work_mem = 1GB' "$@"
	cluster_start bench
	cluster_env bench
	"$IDEM_BIN/psql" -Xq -v ON_ERROR_STOP=1 -f "$HERE/forms/setup.sql"
	say "PostgreSQL $(sql 'SHOW server_version')"
}
