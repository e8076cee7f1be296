# shellcheck shell=bash
# What purging costs those who claim; for test/bench/run and test/bench/background.
set -euo pipefail

PURGE_TURN=${PURGE_TURN:-5}
PURGE_TURNS=${PURGE_TURNS:-6}

# A server that preloads the library and whose worker rests.
preloaded_server() {
	cluster_stop bench
	printf '%s\n' "shared_preload_libraries = 'idempotency'" 'idempotency.worker = off' 'idempotency.naptime = 1000' |
		as_server tee -a "$(cluster_data bench)/postgresql.conf" >/dev/null
	cluster_start bench
}

# records OPERATION NUMBER AGE: outcomes that were to be forgotten so long ago.
records() {
	sql "INSERT INTO idempotency_internal.record (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state, principal, operation, key, result)
		SELECT gen_random_uuid(), t, t, t, t, 1, 1, 's', 'acme', '$1', i::text, '{\"order\": 7, \"status\": \"created\"}'
		  FROM generate_series(1, $2) i, LATERAL (SELECT now() - interval '$3' + i * interval '1 us') AS time(t)"
}

# timed_records OPERATION NUMBER: outcomes whose keys carry their time, in four
# segments whose windows ended a day ago or earlier.
timed_records() {
	local i window first
	first=$(($(date +%s) / 21600 - 8))
	for i in 0 1 2 3; do
		window=$((first + i))
		sql "INSERT INTO idempotency_internal.record_s$(printf %02d $((window % 32))) (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state, principal, operation, key, result)
			SELECT ('8' || lpad(to_hex($window * 21600000::bigint + i), 11, '0') || substr(md5(i::text), 1, 20))::uuid,
				t, t, t, t, 1, 1, 's', 'acme', '$1', i::text, '{\"order\": 7, \"status\": \"created\"}'
			  FROM generate_series(1, $2 / 4) i, LATERAL (SELECT now() - interval '1 day' + i * interval '1 us') AS time(t)"
	done
}

# p99: of 2000 claims/s for a turn, in milliseconds.
p99() {
	local log
	log=$(mktemp -d)
	(cd "$log" && form claim -c 4 -j 1 -R 2000 -T "$PURGE_TURN" -l >/dev/null 2>&1)
	cat "$log"/pgbench_log.* | awk '{print $3 / 1000}' | sort -g |
		awk '{v[NR] = $1} END {printf "%.3f", v[int(NR * 0.99)]}'
	rm -rf "$log"
}

# Turns with the worker and turns without, until all is purged.
how_purge() {
	local turn=0 values waiting="SELECT EXISTS (SELECT FROM idempotency_internal.record WHERE operation = 'gone')"
	values=$(mktemp)
	progress "$1: filling"
	sql 'TRUNCATE idempotency_internal.record, floor_record, peer'
	preloaded_server
	sql "SELECT idem_define('gone', '{\"retention\": \"1 h\"}')" >/dev/null
	records gone "$(smaller "$2")" '1 day'
	records kept "$(smaller "$2")" '-30 days'
	sql 'VACUUM ANALYZE idempotency_internal.record'
	sql CHECKPOINT
	p99 >/dev/null
	while [ "$(sql "$waiting")" = t ] && ((++turn <= PURGE_TURNS)); do
		progress "$1: turn $turn"
		echo "p99_alone $(p99)" >>"$values"
		set_server 'idempotency.worker = on'
		echo "p99_beside $(p99)" >>"$values"
		set_server 'idempotency.worker = off'
		sleep 1
	done
	record "$1" ms <"$values"
	rm -f "$values"
}

# purge_by_hand: bytes of WAL of purging all there is, alone.
purge_by_hand() {
	local before
	sql CHECKPOINT
	before=$(sql 'SELECT pg_current_wal_lsn()')
	while [ "$(PGOPTIONS='-c idempotency.purge_batch=10000' sql 'SELECT idem_purge()')" != 0 ]; do :; done
	sql "SELECT pg_current_wal_lsn() - '$before'"
}

how_purge_wal() {
	local number without
	number=$(smaller "$2")
	progress "$1"
	sql 'TRUNCATE idempotency_internal.record'
	sql "SELECT idem_define('gone', '{\"retention\": \"1 h\"}')" >/dev/null
	records gone "$number" '1 day'
	without=$(purge_by_hand)
	timed_records gone "$number"
	printf '%s\n' "keys_without_time $without" "keys_with_time $(purge_by_hand)" |
		awk -v n="$number" '{print $1, $2 / n}' | record "$1" bytes
}
