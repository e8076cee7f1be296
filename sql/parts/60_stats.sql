-- Seeing what is going on.  Views are for people with tier monitor; the
-- functions below them are what they read.

CREATE FUNCTION idem_stat_counters(
	OUT operation text, OUT since timestamptz,
	OUT executed bigint, OUT executed_again bigint, OUT handed_again bigint, OUT accepted bigint,
	OUT replayed_succeeded bigint, OUT replayed_failed bigint, OUT in_progress bigint, OUT mismatch bigint,
	OUT unknown bigint, OUT expired bigint,
	OUT completed bigint, OUT failed bigint, OUT failed_retryable bigint, OUT unsure bigint, OUT renewed bigint,
	OUT released bigint, OUT cancelled bigint, OUT resolved bigint, OUT status_asked bigint,
	OUT lease_overruns bigint, OUT stale_fences bigint, OUT commits_refused bigint,
	OUT waits bigint, OUT wait_microseconds bigint, OUT purged bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_stat_counters' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stat_counters() IS
'The counters of this database as they are in shared memory; read them through idem_stat.
Returns nothing unless the library is in shared_preload_libraries.';

CREATE FUNCTION idem_stat_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'idem_stat_reset' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stat_reset() IS
'Starts the counters of this database, those of destinations too, and the rows of what there is no room for, again from zero.
Returns nothing; does nothing without shared_preload_libraries.';

CREATE VIEW idem_stat WITH (security_barrier) AS
	SELECT c.operation, c.since, r.requests,
		c.executed OPERATOR(pg_catalog.+) c.executed_again AS executions,
		pg_catalog.round(r.requests::pg_catalog.numeric OPERATOR(pg_catalog./)
			NULLIF(c.executed OPERATOR(pg_catalog.+) c.executed_again, 0), 2) AS requests_per_execution,
		c.executed, c.executed_again, c.handed_again, c.accepted, c.replayed_succeeded, c.replayed_failed,
		c.in_progress, c.mismatch, c.unknown, c.expired,
		c.completed, c.failed, c.failed_retryable, c.unsure, c.renewed, c.released, c.cancelled, c.resolved, c.status_asked,
		c.lease_overruns, c.stale_fences, c.commits_refused, c.waits,
		c.wait_microseconds OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval AS wait_time,
		c.purged
	FROM idem_stat_counters() c,
		LATERAL (SELECT c.executed OPERATOR(pg_catalog.+) c.executed_again OPERATOR(pg_catalog.+) c.handed_again
			OPERATOR(pg_catalog.+) c.accepted OPERATOR(pg_catalog.+) c.replayed_succeeded OPERATOR(pg_catalog.+) c.replayed_failed
			OPERATOR(pg_catalog.+) c.in_progress OPERATOR(pg_catalog.+) c.mismatch OPERATOR(pg_catalog.+) c.unknown
			OPERATOR(pg_catalog.+) c.expired) AS r(requests);
COMMENT ON VIEW idem_stat IS
'how often each operation of this database was asked for and what was answered, since the server started or idem_stat_reset(), rolled back transactions included; requests_per_execution is how much all layers together retry; operation null counts what there was no room for (idempotency.max_operations), of all databases; empty without shared_preload_libraries';

CREATE FUNCTION idem_stat_visits(
	OUT database text, OUT state text, OUT pid integer, OUT started_at timestamptz, OUT ended_at timestamptz,
	OUT duration interval, OUT next_visit timestamptz, OUT visits bigint, OUT purged bigint, OUT purged_total bigint, OUT left_behind bigint,
	OUT purged_until timestamptz, OUT failures_in_row integer, OUT last_error_at timestamptz, OUT last_error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_stat_visits' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stat_visits() IS
'What the background worker knows of each database; read it through idem_stat_worker.
Returns nothing unless the library is in shared_preload_libraries.';

-- With the rights of the owner, because snapshots of other roles' sessions are
-- shown to members of pg_read_all_stats only.
CREATE FUNCTION idem_stat_horizons(OUT database name, OUT holder text, OUT xmin_age integer)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL RESTRICTED
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT datname, CASE WHEN backend_type = 'walsender' THEN 'standby, session ' ELSE 'session ' END || pid, age(backend_xmin)
		FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
	UNION ALL
	SELECT database, 'prepared transaction ' || gid, age(transaction) FROM pg_prepared_xacts
	UNION ALL
	SELECT NULL, 'replication slot ' || slot_name, age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL
$$;
COMMENT ON FUNCTION idem_stat_horizons() IS
'Who keeps vacuum from removing what was deleted, in which database (null: in all), and how many transactions old the snapshot is. idem_stat_worker shows the oldest of each.';

-- Vacuum removes only rows that no snapshot can see any more: the oldest snapshot
-- holds back what purge leaves to it.
CREATE VIEW idem_stat_worker WITH (security_barrier) AS
	SELECT v.*, h.holder AS horizon_holder, h.xmin_age AS horizon_age
	FROM idem_stat_visits() v
	LEFT JOIN LATERAL (
		SELECT holder, xmin_age FROM idem_stat_horizons() a
		WHERE a.database IS NULL OR a.database OPERATOR(pg_catalog.=) v.database::pg_catalog.name
		ORDER BY xmin_age DESC LIMIT 1
	) h ON true;
COMMENT ON VIEW idem_stat_worker IS
'one row for each database the background worker visits: state is done, running, unfinished (it comes back at once), no extension, busy (it made way for DDL), failed or not visited yet; duration, purged and left_behind (records that cannot be understood, and tables of records that are damaged) are of the running or last visit; purged_until is the time at which the oldest of the records it removed last was to be forgotten; horizon_holder is who keeps vacuum from removing what purge deleted, and horizon_age how many transactions old its snapshot is; empty without shared_preload_libraries';

-- The lock of an id carries its last eight bytes (open_claims.c).
-- With the rights of the owner, because age and name of other roles' sessions
-- are shown to members of pg_read_all_stats only.
CREATE FUNCTION idem_stat_claims(
	OUT id_tail text, OUT holder integer, OUT role name, OUT application_name text, OUT state text,
	OUT age interval, OUT idle interval)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL RESTRICTED
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT left(c.half, 4) || '-' || substr(c.half, 5), coalesce(l.pid, 0), a.usename, a.application_name,
		CASE WHEN l.pid IS NULL THEN 'prepared' ELSE a.state END,
		clock_timestamp() - a.xact_start,
		CASE WHEN a.state LIKE 'idle%' THEN clock_timestamp() - a.state_change END
	FROM pg_locks l
	CROSS JOIN LATERAL (SELECT lpad(to_hex(l.classid::bigint), 8, '0') || lpad(to_hex(l.objid::bigint), 8, '0')) c (half)
	LEFT JOIN pg_stat_activity a ON a.pid = l.pid
	WHERE l.locktype = 'advisory' AND l.objsubid = 7648 AND l.granted
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;
COMMENT ON FUNCTION idem_stat_claims() IS
'What idem_stat_activity shows.';

CREATE VIEW idem_stat_activity WITH (security_barrier) AS SELECT * FROM idem_stat_claims();
COMMENT ON VIEW idem_stat_activity IS
'claims open in transactions right now: id_tail is the end of the id (its last two groups), holder the pid, 0 for a prepared transaction; age is that of the transaction; idle is how long the session has done nothing while it holds the claim; a batch that gave up its locks is not shown';

-- What a stored record means now takes the settings of its operation and the
-- clock, and is told by the code that answers claims.  Only views call it.
CREATE FUNCTION idempotency_internal.effective_state(
	operation text, key text, state "char", attempt integer, releases integer, claimed_at timestamptz, finished_at timestamptz,
	lease_until timestamptz, expires_at timestamptz, forget_at timestamptz, reopened_at timestamptz)
RETURNS text
AS 'MODULE_PATHNAME', 'idem_effective_state' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION idempotency_internal.effective_state(text, text, "char", integer, integer, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz) IS
'Returns what a record means now: forgotten, released, expired, succeeded, failed, retryable, accepted, running, overrun (a lease that is over and may be taken over) or unknown.
operation, key, state, attempt, releases, claimed_at, finished_at, lease_until, expires_at, forget_at, reopened_at: columns of the record';

CREATE VIEW idem_open WITH (security_barrier) AS
	SELECT r.id, r.principal, r.operation, r.key,
		CASE WHEN r.effective OPERATOR(pg_catalog.=) 'retryable' THEN 'failed'
			WHEN r.effective OPERATOR(pg_catalog.=) 'running' THEN 'processing'
			WHEN r.effective OPERATOR(pg_catalog.=) 'overrun' THEN 'unknown'
			ELSE r.effective END AS state,
		r.attempt, r.owner, r.since, r.age, r.lease_until, r.reconcile_tries, r.next_try
	FROM (SELECT r.id, r.principal, r.operation, r.key,
			idempotency_internal.effective_state(r.operation, r.key, r.state, r.attempt, r.releases, r.claimed_at, r.finished_at,
				r.lease_until, r.expires_at, r.forget_at, r.reopened_at) AS effective,
			r.accepted, r.attempt, r.owner, w.since,
			pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) w.since AS age,
			r.lease_until, w.tries AS reconcile_tries, w.due_at AS next_try
		FROM idempotency_internal.every_entry w
		JOIN idempotency_internal.every_record r ON r.id OPERATOR(pg_catalog.=) w.id) AS r
	WHERE r.effective OPERATOR(pg_catalog.=) ANY ('{accepted,running,overrun,unknown}')
		OR (r.effective OPERATOR(pg_catalog.=) 'retryable' AND r.accepted);
COMMENT ON VIEW idem_open IS
'Records that are not finished, with the state idem_status tells: accepted, processing under a lease, unknown (every lease that is over, also where the settings let the next claim take over), or failed (accepted work that is to be retried). Work that a limit has ended is finished. age counts from the first accept or claim; next_try is when a worker or reconciler may get the record, null after the last try of a reconciler.';

-- Results and errors stay out: they are the applications'.
CREATE VIEW idem_record WITH (security_barrier) AS
	SELECT r.id, r.principal, r.operation, r.key,
		CASE WHEN e.state OPERATOR(pg_catalog.=) 'retryable' THEN 'failed, retryable'
			WHEN e.state OPERATOR(pg_catalog.=) 'failed' AND r.state OPERATOR(pg_catalog.=) 'c' THEN 'cancelled'
			WHEN e.state OPERATOR(pg_catalog.=) 'running' THEN 'processing'
			WHEN e.state OPERATOR(pg_catalog.=) 'overrun' THEN 'unknown'
			ELSE e.state END AS state,
		r.attempt, r.owner, pg_catalog.date_trunc('milliseconds'::pg_catalog.text, r.claimed_at) AS claimed_at, r.finished_at,
		r.finished_at OPERATOR(pg_catalog.-) r.claimed_at AS took,
		r.lease_until, r.expires_at, r.forget_at,
		r.result IS NOT NULL AS has_result, r.error IS NOT NULL AS has_error
	FROM idempotency_internal.every_record r,
		LATERAL (SELECT idempotency_internal.effective_state(r.operation, r.key, r.state, r.attempt, r.releases, r.claimed_at,
			r.finished_at, r.lease_until, r.expires_at, r.forget_at, r.reopened_at)) AS e(state);
COMMENT ON VIEW idem_record IS
'All records, without results and errors. state is what idem_status tells, with finer words: forgotten (not purged yet) and released read as absent there, cancelled and "failed, retryable" as failed. The row of one key is found by WHERE id = idem_id(operation, key, principal).';
