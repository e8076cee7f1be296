-- Is everything as it should be?  One function for each check, run one after the
-- other with the owner's rights; each returns a row, or one for each fault.

CREATE FUNCTION idempotency_internal.library_version()
RETURNS text
AS 'MODULE_PATHNAME', 'idempotency_library_version' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idempotency_internal.library_version() IS
'Returns the version of the library that this session has loaded.';

CREATE FUNCTION idempotency_internal.check_table(name text)
RETURNS void
AS 'MODULE_PATHNAME', 'idempotency_check_table' LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idempotency_internal.check_table(text) IS
'Checks that a table is what the script made, as every call does before it uses it.
name: of the table, without its schema
Raises 42809 (altered), 55000 (missing).';

CREATE FUNCTION idempotency_internal.refuse_table(altered regclass, types oid[], is_shard boolean)
RETURNS void
LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	last CONSTANT int := cardinality(types) + is_shard::int;
	key CONSTANT text := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = altered AND (attnum = 1 OR is_shard AND attnum = last));
	anew CONSTANT text := 'Restore the table from a backup, or drop and create the extension, which forgets all records.';
	fault record;
BEGIN
	SELECT f.what, coalesce(v.cure, f.cure) AS cure INTO fault FROM pg_class c
	 CROSS JOIN LATERAL (
		SELECT 1, 0::bigint, 'it is not a plain table', anew WHERE c.relkind <> 'r'
		UNION ALL SELECT 2, 0, 'it does not use the heap access method', format('ALTER TABLE %s SET ACCESS METHOD heap.', altered) WHERE c.relam <> (SELECT oid FROM pg_am WHERE amname = 'heap')
		UNION ALL SELECT 3, 0, 'a crash would empty it', format('ALTER TABLE %s SET LOGGED.', altered) WHERE c.relpersistence <> 'p'
		UNION ALL SELECT 4, 0, format('it has a trigger "%s"', tgname), format('DROP TRIGGER %I ON %s.', tgname, altered) FROM pg_trigger WHERE tgrelid = altered AND NOT tgisinternal
		UNION ALL SELECT 5, 0, format('constraint "%s" needs triggers on it', conname), format('ALTER TABLE %s DROP CONSTRAINT %I.', conrelid::regclass, conname)
			FROM pg_trigger t JOIN pg_constraint k ON k.oid = tgconstraint WHERE tgrelid = altered
		UNION ALL SELECT 6, 0, 'it is a partition', format('ALTER TABLE %s DETACH PARTITION %s.', inhparent::regclass, altered) FROM pg_inherits WHERE inhrelid = altered AND c.relispartition
		UNION ALL SELECT 7, inhrelid::bigint, 'other tables inherit from it', format('ALTER TABLE %s NO INHERIT %s.', inhrelid::regclass, altered) FROM pg_inherits WHERE inhparent = altered
		UNION ALL SELECT 8, 0, 'its columns differ', anew FROM generate_series(1, last) n
			WHERE NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = altered AND attnum = n AND NOT attisdropped AND atttypid = coalesce(types[n], atttypid))
		UNION ALL SELECT 9, attnum, format('it has a column "%s"', attname), format('ALTER TABLE %s DROP COLUMN %I.', altered, attname) FROM pg_attribute WHERE attrelid = altered AND attnum > last AND NOT attisdropped
		UNION ALL SELECT 10, 0, 'its primary key is not a valid, immediate one on the first column' || CASE WHEN is_shard THEN ' and the last' ELSE '' END,
				format('ALTER TABLE %s DROP CONSTRAINT %I, ADD PRIMARY KEY (%s).', altered, relname, key) FROM pg_index JOIN pg_class i ON i.oid = indexrelid WHERE indrelid = altered AND indisprimary
		UNION ALL SELECT 11, 0, 'it has no usable primary key', format('ALTER TABLE %s ADD PRIMARY KEY (%s).', altered, key)
	 ) f (n, m, what, cure)
	  LEFT JOIN LATERAL (
		-- what another version has made must not be undone
		SELECT format('The extension is version %s, the library of this session %s. If the extension is older, run ALTER EXTENSION idempotency UPDATE. If the library is, reconnect; a server that preloads it has to be restarted.', extversion, library)
		  FROM pg_extension, idempotency_internal.library_version() AS library WHERE extname = 'idempotency' AND extversion <> library
	 ) v (cure) ON true
	 WHERE c.oid = altered ORDER BY n, m, f.what LIMIT 1;
	RAISE 'table "%" is not the table the extension made: %', altered, fault.what USING ERRCODE = 'wrong_object_type',
		DETAIL = 'Records would be lost silently in such a table.', HINT = fault.cure;
END
$$;
COMMENT ON FUNCTION idempotency_internal.refuse_table(regclass, oid[], boolean) IS
'Raises 42809 about a table that is not what the script made, with what undoes the change.
altered: the table
types: of the columns that the script gave it
is_shard: if true, it has the principal in a column behind these';

CREATE FUNCTION idempotency_internal.is_preloaded()
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
-- only then can it be set at server start alone
RETURN COALESCE((SELECT context OPERATOR(pg_catalog.=) 'postmaster' FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.=) 'idempotency.max_operations'), false);
COMMENT ON FUNCTION idempotency_internal.is_preloaded() IS
'Returns whether the library is in shared_preload_libraries.';

CREATE FUNCTION idempotency_internal.doctor_version()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN v.library <> v.installed THEN 'fail' WHEN v.available <> v.installed THEN 'warn' ELSE 'ok' END,
		format('the extension is version %s, the library of this session %s, the files on disk %s', v.installed, v.library, v.available),
		CASE WHEN v.library <> v.installed
			THEN 'If the extension is older, run ALTER EXTENSION idempotency UPDATE. If the library is, reconnect; a server that preloads it has to be restarted.'
			WHEN v.available <> v.installed THEN 'Run ALTER EXTENSION idempotency UPDATE.' END
	  FROM (SELECT e.extversion, idempotency_internal.library_version(), a.default_version
		  FROM pg_extension e JOIN pg_available_extensions a ON a.name = e.extname WHERE e.extname = 'idempotency') v (installed, library, available)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_version() IS
'Compares the versions of SQL, library and files.';

CREATE FUNCTION idempotency_internal.doctor_preload()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN p THEN 'ok' ELSE 'warn' END,
		CASE WHEN p THEN 'the library is preloaded' ELSE 'the library is not preloaded: nothing is purged by itself, nothing is counted, calls of destinations are not limited' END,
		CASE WHEN NOT p THEN 'Add idempotency to shared_preload_libraries and restart the server. Without it a scheduler has to call idem_purge().' END
	  FROM idempotency_internal.is_preloaded() p
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_preload() IS
'Checks that the library is preloaded.';

CREATE FUNCTION idempotency_internal.doctor_worker()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	visit record;
	patience interval := '5 min' + 3 * coalesce(current_setting('idempotency.naptime', true), '1 min')::interval;
BEGIN
	IF NOT idempotency_internal.is_preloaded() OR pg_is_in_recovery() THEN
		RETURN QUERY VALUES ('ok', CASE WHEN pg_is_in_recovery() THEN 'the worker of the primary purges' ELSE 'there is no worker without preloading' END, NULL);
	ELSIF NOT current_setting('idempotency.worker')::boolean THEN
		RETURN QUERY VALUES ('warn', 'the worker is switched off', 'ALTER SYSTEM RESET idempotency.worker, then SELECT pg_reload_conf(). While it is off a scheduler has to call idem_purge().');
	ELSIF current_setting('idempotency.databases') <> '' AND current_database() <> ALL (SELECT btrim(d, ' "') FROM regexp_split_to_table(current_setting('idempotency.databases'), ',') d) THEN
		RETURN QUERY VALUES ('warn', 'the worker does not come here: idempotency.databases names other databases',
			format('Add %I to idempotency.databases, or reset it, then SELECT pg_reload_conf().', current_database()));
	ELSE
		SELECT * INTO visit FROM @extschema@.idem_stat_visits() v WHERE v.database = current_database();
		RETURN QUERY SELECT w.status, w.finding, w.advice FROM (VALUES
			(visit.state = 'failed', 'fail', format('the worker has failed %s times in a row: %s', visit.failures_in_row, visit.last_error), 'Mend what the error tells; the worker tries again by itself.'),
			-- there is room for so many (src/worker/worker.h)
			(visit.database IS NULL AND (SELECT count(*) FROM @extschema@.idem_stat_visits()) >= 256, 'ok', 'the worker comes here, but it shows so of 256 other databases only', NULL),
			(coalesce(visit.next_visit, pg_postmaster_start_time()) < clock_timestamp() - patience AND visit.state IS DISTINCT FROM 'running', 'fail',
				format('the worker was due at %s and has not come', coalesce(visit.next_visit, pg_postmaster_start_time())),
				'Look for "idempotency" in the server''s log. A free place in max_worker_processes is needed; the launcher comes back at a restart.'),
			(true, 'ok', coalesce('the worker was here last at ' || coalesce(visit.ended_at, visit.started_at), 'the worker has not been here yet'), NULL)) w (fits, status, finding, advice)
		 WHERE w.fits LIMIT 1;
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_worker() IS
'Checks that the worker comes to this database.';

CREATE FUNCTION idempotency_internal.doctor_purge()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	place regclass;
	here bigint;
	behind bigint := 0;
BEGIN
	-- a segment waits until all of it is over, at most until it comes round again
	FOR place IN SELECT idempotency_internal.record_tables() LOOP
		EXECUTE format('SELECT count(*) FROM (SELECT FROM %s WHERE forget_at < $1 LIMIT 100001) r', place) INTO here
			USING clock_timestamp() - CASE WHEN place::text ~ '\.record_s' THEN interval '8 days' ELSE interval '1 hour' END;
		behind := behind + here;
	END LOOP;
	RETURN QUERY SELECT CASE behind WHEN 0 THEN 'ok' ELSE 'warn' END,
		CASE behind WHEN 0 THEN 'no record waits long for its purge' ELSE format('purge does not keep up: %s records or more could have been removed long ago', behind) END,
		CASE WHEN behind > 0 THEN 'Call SELECT idem_purge() as a statement of its own until it returns 0, then more often, or preload the library. It warns of what it has to leave.' END;
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_purge() IS
'Checks that records past retention and guard are removed.';

CREATE FUNCTION idempotency_internal.doctor_operations()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	place regclass;
	asked text[];
	here text[];
BEGIN
	-- what was counted, what is open, and what stands at the end of each table
	asked := ARRAY(SELECT c.operation FROM @extschema@.idem_stat_counters() c WHERE c.operation IS NOT NULL
		UNION SELECT w.operation FROM (SELECT * FROM idempotency_internal.every_entry ORDER BY since DESC LIMIT 1000) w);
	FOR place IN SELECT idempotency_internal.record_tables() LOOP
		EXECUTE format('SELECT array_agg(DISTINCT operation) FROM (SELECT operation FROM %s WHERE ctid >= $1 LIMIT 1000) r', place) INTO here
			USING format('(%s,1)', greatest(pg_relation_size(place) / current_setting('block_size')::int - 40, 0))::tid;
		asked := asked || here;
	END LOOP;
	RETURN QUERY SELECT CASE count(o) WHEN 0 THEN 'ok' ELSE 'warn' END,
		CASE count(o) WHEN 0 THEN 'every operation asked for is defined' ELSE format('%s operations were asked for and never defined: %s', count(o),
			array_to_string((array_agg(quote_literal(o) ORDER BY o))[1:5], ', ') || CASE WHEN count(o) > 5 THEN ', ...' ELSE '' END) END,
		CASE WHEN count(o) > 0 THEN format('Correct the name where it is misspelt; else SELECT idem_define(%L, ''{}''), with the settings it is to have.', min(o)) END
	  FROM (SELECT DISTINCT o FROM unnest(asked) o WHERE NOT EXISTS (SELECT FROM idempotency_internal.policy p WHERE p.operation = o)) u (o);
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_operations() IS
'Looks for operations that are claimed and have no settings of their own.';

CREATE FUNCTION idempotency_internal.doctor_principal()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE s.source WHEN 'session' THEN 'warn' ELSE 'ok' END,
		CASE WHEN s.source = 'session' THEN 'idempotency.principal is set for this session: behind a pooler its next client inherits it'
			WHEN coalesce(s.setting, '') = '' THEN 'no principal is set for the session' ELSE format('idempotency.principal comes from: %s', s.source) END,
		CASE s.source WHEN 'session' THEN 'RESET idempotency.principal; use SET LOCAL in each transaction, or pass principal with each call.' END
	  FROM (VALUES (1)) one LEFT JOIN pg_settings s ON s.name = 'idempotency.principal'
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_principal() IS
'Checks that the session has no principal of its own that another client could inherit.';

CREATE FUNCTION idempotency_internal.doctor_timeout()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN t.ends THEN 'ok' ELSE 'warn' END,
		CASE WHEN t.ends THEN 'a client that stops in the middle of a transaction loses its claims in time' ELSE 'a client that stops in the middle of a transaction keeps its claims for ever' END,
		CASE WHEN NOT t.ends THEN format('ALTER DATABASE %I SET idle_in_transaction_session_timeout = ''1 min'', then reconnect.', current_database()) END
	  FROM (SELECT current_setting('idle_in_transaction_session_timeout') <> '0' OR coalesce(current_setting('transaction_timeout', true), '0') <> '0') t (ends)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_timeout() IS
'Checks that idle transactions end.';

CREATE FUNCTION idempotency_internal.doctor_unresolved()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE n WHEN 0 THEN 'ok' ELSE 'warn' END, CASE n WHEN 0 THEN 'no unknown outcome is left to a person' ELSE format('%s unknown outcomes are left to a person', n) END,
		CASE WHEN n > 0 THEN 'For each row of idem_unresolved find out what happened, then call idem_resolve().' END
	  FROM (SELECT count(*) FROM @extschema@.idem_unresolved) u (n)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_unresolved() IS
'Counts what reconcilers have given up.';

CREATE FUNCTION idempotency_internal.doctor_destinations()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH RECURSIVE named (destination) AS (
		SELECT min(d.destination COLLATE "C") FROM idempotency_internal.outbox_due d
		UNION ALL
		SELECT (SELECT min(d.destination COLLATE "C") FROM idempotency_internal.outbox_due d WHERE d.destination > n.destination) FROM named n WHERE n.destination IS NOT NULL),
	waiting (destination, since) AS (
		SELECT n.destination, q.created_at
		  FROM named n, LATERAL (SELECT o.created_at FROM (SELECT d.event_id, d.lease_until FROM idempotency_internal.outbox_due d
				 WHERE d.destination = n.destination AND d.state = 'q' ORDER BY d.due_at LIMIT 1000) d
				JOIN idempotency_internal.outbox o ON o.event_id = d.event_id WHERE d.lease_until IS NULL ORDER BY o.created_at LIMIT 1) q
		 WHERE q.created_at < clock_timestamp() - interval '10 min'
			AND NOT EXISTS (SELECT FROM idempotency_internal.outbox_due d WHERE d.destination = n.destination AND d.lease_until > clock_timestamp()))
	SELECT 'warn', format('nothing takes the events of destination %L: the oldest waits since %s', w.destination, date_trunc('second', w.since)),
		format('Start a relay that calls idem_take(%L, ...); if the events are read from the log, idem_destination_define(%L, ''{"relay": "log"}'').', w.destination, w.destination)
	  FROM waiting w
	UNION ALL
	SELECT 'ok', 'no destination has waited for ten minutes', NULL WHERE NOT EXISTS (SELECT FROM waiting)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_destinations() IS
'Looks for destinations whose events wait and of which none is being delivered.';

CREATE FUNCTION idempotency_internal.doctor_dead_letters()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE count(*) WHEN 0 THEN 'ok' ELSE 'warn' END,
		CASE count(*) WHEN 0 THEN 'there are no dead letters' ELSE format('%s dead letters, of %s', count(*), array_to_string((array_agg(DISTINCT quote_literal(d.destination)))[1:5], ', ')) END,
		CASE WHEN count(*) > 0 THEN 'For each row of idem_dead_letter mend the cause and call idem_redeliver(), or idem_discard().' END
	  FROM idempotency_internal.outbox_due d WHERE d.state = 'd'
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_dead_letters() IS
'Counts dead letters.';

CREATE FUNCTION idempotency_internal.doctor_roles()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH gone AS (
		SELECT s.*, s.settings ->> 'role' AS role
		  FROM (SELECT 'operation', operation, settings, 'idem_define' FROM idempotency_internal.policy
			UNION ALL SELECT 'destination', destination, settings, 'idem_destination_define' FROM idempotency_internal.destination) s (kind, name, settings, mends)
		 WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = s.settings ->> 'role') AND s.settings ->> 'role' IS NOT NULL)
	SELECT 'fail', format('%s %L is for role %L, which does not exist: no role may use it', g.kind, g.name, g.role),
		format('CREATE ROLE %I, or SELECT %s(%L, ''{"role": null}'').', g.role, g.mends, g.name) FROM gone g
	UNION ALL
	SELECT 'ok', 'every role named in settings exists', NULL WHERE NOT EXISTS (SELECT FROM gone)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_roles() IS
'Looks for roles in settings that do not exist.';

CREATE FUNCTION idempotency_internal.doctor_tables()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	tables text[] := ARRAY(SELECT 'record_s' || lpad(i::text, 2, '0') FROM generate_series(0, 31) i);
	place text;
	good boolean := true;
BEGIN
	FOREACH place IN ARRAY '{record,policy,normalisation,open_work,destination,outbox,outbox_due}'::text[] || tables LOOP
		BEGIN
			PERFORM idempotency_internal.check_table(place);
		EXCEPTION WHEN wrong_object_type OR object_not_in_prerequisite_state THEN
			status := 'fail';
			GET STACKED DIAGNOSTICS finding = MESSAGE_TEXT, advice = PG_EXCEPTION_HINT;
			good := false;
			RETURN NEXT;
		END;
	END LOOP;
	FOR place, advice IN
		SELECT i.place, i.columns
		  FROM (SELECT t, 'forget_at' FROM unnest('{record}' || tables) t
			UNION ALL VALUES ('open_work', 'queue, operation, due_at'), ('open_work', 'principal, since'), ('open_work', 'since'),
				('outbox', 'destination, created_at'), ('outbox_due', 'destination, state, due_at'), ('outbox_due', 'destination, ordering_key, place')) i (place, columns)
		  JOIN pg_class c ON c.relnamespace = 'idempotency_internal'::regnamespace AND c.relname = i.place
		 WHERE NOT EXISTS (SELECT FROM pg_index x WHERE x.indrelid = c.oid AND x.indisvalid AND x.indpred IS NULL
			AND (i.columns <> 'forget_at' OR EXISTS (SELECT FROM pg_class b JOIN pg_am a ON a.oid = b.relam WHERE b.oid = x.indexrelid AND a.amname = 'brin'))
			AND (SELECT string_agg(a.attname, ', ' ORDER BY k.n) FROM unnest(x.indkey) WITH ORDINALITY k (attnum, n)
				JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum) = i.columns)
	LOOP
		status := 'fail';
		finding := format('an index of table "idempotency_internal.%s" is missing', place);
		advice := format('CREATE INDEX ON idempotency_internal.%I %s.', place, CASE advice WHEN 'forget_at' THEN
			'USING brin (forget_at idempotency_internal.forget_at_ops) WITH (pages_per_range = 16)' ELSE format('(%s)', advice) END);
		good := false;
		RETURN NEXT;
	END LOOP;
	IF good THEN
		RETURN QUERY VALUES ('ok', 'tables and indexes are what the extension made', NULL);
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_tables() IS
'Checks that no table was altered, made unlogged or dropped, and that no index is missing.';

CREATE FUNCTION idempotency_internal.doctor_dump()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN o.may THEN 'ok' ELSE 'warn' END,
		format(CASE WHEN o.may THEN 'the owner of the database, role %I, can dump it with its records' ELSE 'the owner of the database, role %I, cannot dump it: it may not read the records' END, o.name),
		CASE WHEN NOT o.may THEN format('GRANT pg_read_all_data TO %I; or dump as another role that has it; or without the records, which forgets all keys: pg_dump --exclude-table-data=''idempotency_internal.*''.', o.name) END
	  FROM (SELECT r.rolname, r.rolsuper OR pg_has_role(r.oid, 'pg_read_all_data', 'USAGE')
		  FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE d.datname = current_database()) o (name, may)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_dump() IS
'Checks that the owner of the database can dump it.';

CREATE FUNCTION idempotency_internal.doctor_nodes()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node integer;
	allowed boolean := coalesce(current_setting('idempotency.allow_on_worker_nodes', true), 'off')::boolean;
BEGIN
	IF to_regclass('pg_catalog.pg_dist_local_group') IS NOT NULL THEN
		EXECUTE 'SELECT groupid FROM pg_catalog.pg_dist_local_group' INTO node;
	END IF;
	RETURN QUERY SELECT n.status, n.finding, n.advice FROM (VALUES
		(node IS NULL AND to_regclass('idempotency_internal.placed_record') IS NOT NULL, 'fail', 'the records are those of a cluster, and this is none',
			'SELECT idempotency_internal.gather_placed().'),
		(node IS NULL, 'ok', 'the server is no node of a sharded cluster', NULL),
		(to_regclass('idempotency_internal.placed_record') IS NOT NULL, 'ok', 'the records are distributed beside the rows of their tenants', NULL),
		(allowed, 'fail', 'keys may be claimed on every node of the cluster: one that is claimed on two executes twice',
			'ALTER SYSTEM RESET idempotency.allow_on_worker_nodes, then SELECT pg_reload_conf(), and claim on the coordinator, unless each key always comes to the same node.'),
		(node <> 0, 'warn', 'this is a worker node of a sharded cluster: claims are refused here', 'Claim on the coordinator, or run idem_distribute() there.'),
		(true, 'ok', 'this is the coordinator of a sharded cluster; on its worker nodes claims are refused', NULL)) n (fits, status, finding, advice)
	 WHERE n.fits LIMIT 1;
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_nodes() IS
'Checks that keys are claimed on one node of a cluster only.';

CREATE FUNCTION idem_doctor()
RETURNS TABLE (item text, status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	FOREACH item IN ARRAY '{version,preload,worker,purge,tables,operations,roles,principal,timeout,unresolved,destinations,dead_letters,dump,nodes}'::text[] LOOP
		BEGIN
			RETURN QUERY EXECUTE format('SELECT %L::text, d.* FROM idempotency_internal.%I() d', item, 'doctor_' || item);
		EXCEPTION WHEN OTHERS THEN
			status := 'fail';
			finding := format('the check itself failed: %s: %s', SQLSTATE, SQLERRM);
			GET STACKED DIAGNOSTICS advice = PG_EXCEPTION_HINT;
			advice := coalesce(nullif(advice, ''), 'Mend what the error tells, then check again.');
			RETURN NEXT;
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idem_doctor() IS
'Checks the installation and what is going on in this database, and changes nothing.
Returns a row for each item, or one for each fault of it: status is ok, warn or fail; finding says what was found, advice what to do about it, NULL with ok. A check that fails is a row too.
Raises nothing of its own.';
