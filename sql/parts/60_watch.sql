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
'The counters of this database as they are in shared memory; read them through idem_stat. Returns nothing unless the library is in shared_preload_libraries.';

CREATE FUNCTION idem_stat_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'idem_stat_reset' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stat_reset() IS
'Starts the counters of this database, those of destinations too, and the rows of what there is no room for, again from zero. Returns nothing; does nothing without shared_preload_libraries.';

CREATE VIEW idem_stat AS
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
'What the background worker knows of each database; read it through idem_stat_worker. Returns nothing unless the library is in shared_preload_libraries.';

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

-- Only rows that nobody can see any more are removed from the disk: who still
-- could holds back what purge leaves to vacuum.
CREATE VIEW idem_stat_worker AS
	SELECT v.*, h.holder AS horizon_holder, h.xmin_age AS horizon_age
	FROM idem_stat_visits() v
	LEFT JOIN LATERAL (
		SELECT holder, xmin_age FROM idem_stat_horizons() a
		WHERE a.database IS NULL OR a.database OPERATOR(pg_catalog.=) v.database::pg_catalog.name
		ORDER BY xmin_age DESC LIMIT 1
	) h ON true;
COMMENT ON VIEW idem_stat_worker IS
'one row for each database the background worker visits: state is done, running, unfinished (it comes back at once), no extension, busy (it made way for DDL), failed or not visited yet; duration, purged and left_behind (records that cannot be understood, and tables of records that are out of order) are of the running or last visit; purged_until is how far it has come, by the time records were to be forgotten; horizon_holder is who keeps vacuum from removing what purge deleted, and horizon_age how many transactions old its snapshot is; empty without shared_preload_libraries';

-- The log of requests: for looking into what happened lately.  Not dumped; it
-- is neither needed to restore nor small.  A row is a page of lines.
CREATE TABLE idempotency_internal.request_log (
	first_at timestamptz NOT NULL,
	last_at timestamptz NOT NULL,
	lines integer NOT NULL,
	packed bytea NOT NULL
) USING heap;
ALTER TABLE idempotency_internal.request_log ALTER COLUMN packed SET STORAGE PLAIN;
COMMENT ON TABLE idempotency_internal.request_log IS
	'what was asked and answered, for operations whose setting log_requests is on: packed has as many lines as fit on a page, first_at and last_at are the times of the first and the last; written by the background worker, removed when the last is older than idempotency.request_log_retention';
CREATE INDEX request_log_last_at_idx ON idempotency_internal.request_log (last_at);

CREATE FUNCTION idempotency_internal.request_lines(packed bytea,
	OUT at timestamptz, OUT id uuid, OUT principal text, OUT operation text, OUT key text, OUT call text,
	OUT verdict text, OUT state text, OUT error text, OUT attempt integer,
	OUT resource text, OUT request text, OUT application_name text, OUT pid integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_request_lines' LANGUAGE C STABLE STRICT PARALLEL SAFE ROWS 50;
COMMENT ON FUNCTION idempotency_internal.request_lines(bytea) IS
'The lines in a row of request_log that are not older than idempotency.request_log_retention; read them through idem_request_log. packed: column packed of a row. Raises XX001 for anything else.';

-- With the rights of the owner: nobody else reads the table.
CREATE FUNCTION idem_requests(since timestamptz, until timestamptz DEFAULT 'infinity',
	OUT at timestamptz, OUT id uuid, OUT principal text, OUT operation text, OUT key text, OUT call text,
	OUT verdict text, OUT state text, OUT error text, OUT attempt integer,
	OUT resource text, OUT request text, OUT application_name text, OUT pid integer)
RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT l.* FROM idempotency_internal.request_log b, LATERAL idempotency_internal.request_lines(b.packed) l
	 WHERE b.last_at >= since AND b.first_at < until AND l.at >= since AND l.at < until
$$;
COMMENT ON FUNCTION idem_requests(timestamptz, timestamptz) IS
'The lines of idem_request_log from since up to, but without, until (the end, if not given), found by an index on the time. Nothing if one of them is null.';

CREATE VIEW idem_request_log AS
	SELECT * FROM idem_requests('-infinity');
COMMENT ON VIEW idem_request_log IS
'what was asked and answered, rolled back or not, for operations with the setting log_requests: one line for each request (for each key, if a function works for many): call is claim, complete, ask and so on; error the SQLSTATE if it was refused; resource what resource_pointer finds in the result; request the setting idempotency.request_id or the header x-request-id; id, key and principal are null as far as the request was refused before they were known; never params or results; the background worker writes it some time after the fact and keeps it for idempotency.request_log_retention; it reads all there is: idem_requests() reads a span of time';

CREATE FUNCTION idem_stat_request_lines(OUT size integer, OUT waiting integer, OUT logged bigint, OUT dropped bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'idem_stat_request_lines' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stat_request_lines() IS
'The request log on its way, of all databases: room for lines, how much of it is taken by lines that wait for the worker (a line with long texts takes the room of several), how many lines were written into their table, and how many dropped, since the server started. Returns nulls unless the library is in shared_preload_libraries.';

CREATE FUNCTION idempotency_internal.claims_held(OUT id_tail text, OUT pid integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_claims_held' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idempotency_internal.claims_held() IS
'The locks of ids that are held in this database; read them through idem_stat_activity.';

-- With the rights of the owner, because age and name of other roles' sessions
-- are shown to members of pg_read_all_stats only.
CREATE FUNCTION idem_stat_claims(
	OUT id_tail text, OUT holder integer, OUT role name, OUT application_name text, OUT state text,
	OUT age interval, OUT idle interval)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL RESTRICTED
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT c.id_tail, c.pid, a.usename, a.application_name,
		CASE WHEN c.pid = 0 THEN 'prepared' ELSE a.state END,
		clock_timestamp() - a.xact_start,
		CASE WHEN a.state LIKE 'idle%' THEN clock_timestamp() - a.state_change END
	FROM idempotency_internal.claims_held() c LEFT JOIN pg_stat_activity a ON a.pid = c.pid
$$;
COMMENT ON FUNCTION idem_stat_claims() IS
'What idem_stat_activity shows.';

CREATE VIEW idem_stat_activity AS SELECT * FROM idem_stat_claims();
COMMENT ON VIEW idem_stat_activity IS
'claims open in transactions right now: id_tail is the end of the id (its last two groups), holder the pid, 0 for a prepared transaction; age is that of the transaction; idle is how long the session has done nothing while it holds the claim; a batch that gave up its locks is not shown';

CREATE VIEW idem_open AS
	SELECT r.id, r.principal, r.operation, r.key,
		CASE WHEN r.state OPERATOR(pg_catalog.=) 'a' THEN 'accepted'
			WHEN r.lease_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'processing'
			ELSE 'unknown' END AS state,
		r.attempt, r.owner, w.since,
		pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) w.since AS age,
		r.lease_until, w.tries AS reconcile_tries, w.due_at AS next_try
	FROM idempotency_internal.open_work w
	JOIN idempotency_internal.every_record r ON r.id OPERATOR(pg_catalog.=) w.id
	WHERE r.state OPERATOR(pg_catalog.=) ANY ('{a,p}');
COMMENT ON VIEW idem_open IS
'records that are not finished: accepted, processing under a lease, or unknown; age counts from when it was accepted or claimed; next_try is null once reconcilers have given up; unknown shows every lease that is over, also where the policy lets the next claim retry';

-- Results and errors stay out: they are the applications'.
CREATE VIEW idem_record AS
	SELECT r.id, r.principal, r.operation, r.key,
		CASE WHEN r.forget_at OPERATOR(pg_catalog.<=) n.now AND r.state OPERATOR(pg_catalog.<>) ALL ('{a,p}') THEN 'forgotten'
			WHEN r.expires_at OPERATOR(pg_catalog.<=) n.now AND r.state OPERATOR(pg_catalog.<>) ALL ('{a,p}') THEN 'expired'
			WHEN r.state OPERATOR(pg_catalog.=) 'a' THEN 'accepted'
			WHEN r.state OPERATOR(pg_catalog.=) 'p' AND r.lease_until OPERATOR(pg_catalog.<=) n.now THEN 'unknown'
			WHEN r.state OPERATOR(pg_catalog.=) 'p' THEN 'processing'
			WHEN r.state OPERATOR(pg_catalog.=) 's' THEN 'succeeded'
			WHEN r.state OPERATOR(pg_catalog.=) 't' THEN 'failed, retryable'
			WHEN r.state OPERATOR(pg_catalog.=) 'c' THEN 'cancelled'
			WHEN r.state OPERATOR(pg_catalog.=) 'r' THEN 'released'
			ELSE 'failed' END AS state,
		r.attempt, r.owner, r.claimed_at, r.finished_at,
		r.finished_at OPERATOR(pg_catalog.-) r.claimed_at AS took,
		r.lease_until, r.expires_at, r.forget_at,
		r.result IS NOT NULL AS has_result, r.error IS NOT NULL AS has_error
	FROM idempotency_internal.every_record r, LATERAL (SELECT pg_catalog.clock_timestamp()) AS n(now);
COMMENT ON VIEW idem_record IS
'all records, for people: state as idem_status would say it, but forgotten (waiting for purge), cancelled, released and retryable are told apart; results and errors are not shown, idem_status() does; for rows of one key use WHERE id = idem_id(operation, key, principal)';

REVOKE ALL ON FUNCTION idempotency_internal.claims_held(), idempotency_internal.request_lines(bytea) FROM PUBLIC;
