# shellcheck shell=bash
# Measuring in pairs: each pair alternates, round by round, on one server and
# one machine, and the median of the rounds' ratios is printed: what else the
# machine does hits both sides alike.
#
#   bench_server                           a server with setup.sql in it
#   compare TITLE TARGET OURS BASE [ENV]   the median ratio of OURS to BASE
#   median                                 of the numbers on standard input
#
# A script is a pgbench script of this folder, or a path.
set -euo pipefail

ROUNDS=${ROUNDS:-9}
SECONDS_EACH=${SECONDS_EACH:-3}
CLIENTS=${CLIENTS:-8}
HERE=$IDEM_TOP/test/bench

# tps OPTIONS FILE: transactions per second of a pgbench script.
tps() {
	local file=$1
	shift
	env "$@" "$IDEM_BIN/pgbench" -n -M prepared -c "$CLIENTS" -j 2 -T "$SECONDS_EACH" \
		-f "$(script "$file")" 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p'
}

script() {
	case $1 in
		/*) echo "$1" ;;
		*) echo "$HERE/$1" ;;
	esac
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

bench_server() {
	need_packages build server
	private_server
	cluster_create bench 'shared_buffers = 256MB' 'max_wal_size = 8GB' 'autovacuum = off' \
		"idempotency.principal = 'acme'" 'checkpoint_timeout = 1h'
	cluster_start bench
	cluster_env bench
	"$IDEM_BIN/psql" -Xqf "$HERE/setup.sql"
	say "PostgreSQL $("$IDEM_BIN/psql" -XAtc 'SHOW server_version'), $CLIENTS clients, $ROUNDS rounds of $SECONDS_EACH s"
}
