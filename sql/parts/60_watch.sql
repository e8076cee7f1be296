-- Seeing what is going on.  Views are for people with tier monitor; the
-- functions below them are what they read.

CREATE FUNCTION idem_stat_visits(
	OUT database text, OUT state text, OUT pid integer, OUT started_at timestamptz, OUT ended_at timestamptz,
	OUT next_visit timestamptz, OUT visits bigint, OUT purged bigint, OUT purged_total bigint, OUT left_behind bigint,
	OUT purged_until timestamptz, OUT failures_in_row integer, OUT last_error_at timestamptz, OUT last_error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_stat_visits' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stat_visits() IS
'What the background worker knows of each database; read it through idem_stat_worker. Returns nothing unless the library is in shared_preload_libraries.';

-- Only rows that nobody can see any more are removed from the disk: who still
-- could holds back what purge leaves to vacuum.
CREATE VIEW idem_stat_worker AS
	SELECT v.*, h.holder AS horizon_holder, h.xmin_age AS horizon_age
	FROM idem_stat_visits() v
	LEFT JOIN LATERAL (
		SELECT holder, xmin_age FROM (
			SELECT 'session ' OPERATOR(pg_catalog.||) a.pid::pg_catalog.text, pg_catalog.age(a.backend_xmin)
				FROM pg_catalog.pg_stat_activity a
				WHERE a.backend_xmin IS NOT NULL AND a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
					AND a.datname OPERATOR(pg_catalog.=) v.database::pg_catalog.name
			UNION ALL
			SELECT 'prepared transaction ' OPERATOR(pg_catalog.||) p.gid, pg_catalog.age(p.transaction)
				FROM pg_catalog.pg_prepared_xacts p
				WHERE p.database OPERATOR(pg_catalog.=) v.database::pg_catalog.name
			UNION ALL
			SELECT 'replication slot ' OPERATOR(pg_catalog.||) s.slot_name::pg_catalog.text, pg_catalog.age(s.xmin)
				FROM pg_catalog.pg_replication_slots s
				WHERE s.xmin IS NOT NULL
		) AS holders(holder, xmin_age)
		ORDER BY xmin_age DESC LIMIT 1
	) h ON true;
COMMENT ON VIEW idem_stat_worker IS
'one row for each database the background worker visits: state is done, running, unfinished (it comes back at once), no extension, busy (it made way for DDL), failed or not visited yet; purged and left_behind are of the running or last visit; purged_until is how far it has come, by the time records were to be forgotten; horizon_holder is who keeps vacuum from removing what purge deleted, and horizon_age how many transactions old its snapshot is; empty without shared_preload_libraries';
