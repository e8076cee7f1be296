-- A cluster of several servers (Citus): records beside the rows of each tenant,
-- and settings that are the same on all nodes.  src/record/place.c has the rest.

CREATE FUNCTION idempotency_internal.tables_of_records()
RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT format('idempotency_internal.%I', relname) FROM pg_class
	 WHERE relnamespace = 'idempotency_internal'::regnamespace AND relname ~ '^record(_s[0-9]{2})?$' AND relkind = 'r' ORDER BY relname
$$;
COMMENT ON FUNCTION idempotency_internal.tables_of_records() IS
'Returns the tables that records of one server are in, as they are written in SQL.';

CREATE FUNCTION idempotency_internal.refuse_without_citus(what text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node int;
BEGIN
	IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
		RAISE '% needs Citus, which is not in this database', what USING ERRCODE = 'feature_not_supported',
			HINT = 'One server needs none of it. For a cluster, create extension citus before extension idempotency.';
	END IF;
	EXECUTE 'SELECT groupid FROM pg_dist_local_group' INTO node;
	IF node <> 0 THEN
		RAISE '% must be called on the coordinator', what USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'This is a worker node; the coordinator tells all of them.';
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.refuse_without_citus(text) IS
'Raises 0A000 without Citus, 55000 on a worker node.
what: the function that is called';

-- The column in two words: its type, and its collation.
CREATE FUNCTION idempotency_internal.tenant_column(colocate_with regclass, OUT type text, OUT collation_clause text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	shared record;
	tenant record;
BEGIN
	EXECUTE 'SELECT partmethod::text, repmodel::text, CASE partmethod WHEN ''h'' THEN column_to_column_name(logicalrelid, partkey::text) END AS name FROM pg_dist_partition WHERE logicalrelid = $1'
		INTO shared USING colocate_with;
	IF shared.partmethod IS DISTINCT FROM 'h' THEN
		RAISE 'table % is not distributed by a tenant column', colocate_with USING ERRCODE = 'wrong_object_type',
			HINT = 'Name a table that create_distributed_table() has distributed by the tenant. Reference tables, local tables and tables of distributed schemas have no such column.';
	END IF;
	IF shared.repmodel <> 's' THEN
		RAISE 'shards of table % are kept on several nodes', colocate_with USING ERRCODE = 'feature_not_supported',
			HINT = 'Distribute it with citus.shard_replication_factor = 1, and give each node a standby.';
	END IF;
	SELECT a.attname, a.atttypid, format_type(a.atttypid, a.atttypmod) AS type,
		CASE WHEN a.attcollation <> 0 THEN format('COLLATE %I.%I', n.nspname, c.collname) ELSE '' END AS collation_clause
	  INTO tenant
	  FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
	 WHERE a.attrelid = colocate_with AND a.attname = shared.name;
	IF tenant.atttypid = 'varchar'::regtype THEN
		RAISE 'column "%" of table % is of type varchar', tenant.attname, colocate_with USING ERRCODE = 'feature_not_supported',
			DETAIL = 'Citus does not run a function on the node of a tenant of that type (force_delegation).',
			HINT = 'Make the column text.';
	END IF;
	type := tenant.type;
	collation_clause := tenant.collation_clause;
END
$$;
COMMENT ON FUNCTION idempotency_internal.tenant_column(regclass) IS
'Returns type and collation of the column a table is distributed by, as they are written in SQL.
colocate_with: the table
Raises 42809 (not distributed by a column), 0A000 (varchar, or several placements of a shard).';

CREATE FUNCTION idempotency_internal.refuse_records_of_workers()
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	worker record;
BEGIN
	FOR worker IN EXECUTE 'SELECT nodename, nodeport, success, result FROM run_command_on_workers(''SELECT EXISTS (SELECT FROM idempotency_internal.every_record)'')' LOOP
		IF NOT worker.success THEN
			RAISE 'node %:% could not be asked for its records: %', worker.nodename, worker.nodeport, worker.result
				USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'The extension must be installed, in the same version, on all nodes.';
		ELSIF worker.result = 't' THEN
			RAISE 'node %:% has records of its own', worker.nodename, worker.nodeport USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Keys were claimed there under idempotency.allow_on_worker_nodes. They would be forgotten: drop them with DROP EXTENSION and CREATE EXTENSION there once no retry of them can come any more.';
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.refuse_records_of_workers() IS
'Raises 55000 if a worker node has records, or cannot say so.';

-- Indexes as on the table of one server, but its primary key.
CREATE FUNCTION idempotency_internal.create_placed(source text, target text, place text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	definition text;
BEGIN
	EXECUTE format('CREATE TABLE idempotency_internal.%I (LIKE idempotency_internal.%I INCLUDING DEFAULTS INCLUDING STORAGE, place %s NOT NULL, PRIMARY KEY (id, place)) USING heap',
		target, source, place);
	FOR definition IN
		SELECT regexp_replace(pg_get_indexdef(indexrelid), ' INDEX \S+ ON \S+ ', format(' INDEX %I ON idempotency_internal.%I ',
				replace(indexrelid::regclass::text, format('idempotency_internal.%s', source), target), target))
		  FROM pg_index WHERE indrelid = format('idempotency_internal.%I', source)::regclass AND NOT indisprimary
	LOOP
		EXECUTE definition;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.create_placed(text, text, text) IS
'Makes a table like one of ours, with a last column place.
source: the table it is like
target: its name
place: type and collation of that column';

-- What src/record/place.c asks.  Citus takes a principal for a value of the tenant
-- column by its text; its functions want the owner of the tables.  Its tables are
-- qualified: where there is none, the caller may have made some in pg_temp.
CREATE FUNCTION idempotency_internal.lock_shards(principal text, all_here boolean)
RETURNS bigint[]
LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	wanted bigint;
	shards bigint[];
	places bigint[];
BEGIN
	IF to_regclass('pg_catalog.pg_dist_local_group') IS NOT NULL THEN
		SELECT CASE WHEN NOT all_here THEN coalesce(get_shard_id_for_distribution_column(logicalrelid, principal), 0) ELSE 0 END INTO wanted
		  FROM pg_catalog.pg_dist_partition WHERE logicalrelid = 'idempotency_internal.placed_record'::regclass;
	END IF;
	IF wanted IS NULL THEN
		RAISE 'table "idempotency_internal.placed_record" is not distributed' USING ERRCODE = 'object_not_in_prerequisite_state',
			DETAIL = 'Records are in it, and only Citus knows on which node each of them is. A dump of a coordinator that was restored has it as an ordinary table.',
			HINT = 'To use them on one server, or before idem_distribute() on a new cluster, run SELECT idempotency_internal.gather_placed().';
	END IF;
	SELECT array_agg(r.shardid ORDER BY r.shardid), array_agg(ARRAY[r.shardid, w.shardid, is_here::int] ORDER BY r.shardid) INTO shards, places
	  FROM pg_catalog.pg_dist_shard r JOIN pg_catalog.pg_dist_shard w USING (shardminvalue),
		LATERAL (SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_placement p JOIN pg_catalog.pg_dist_local_group USING (groupid) WHERE p.shardid = r.shardid AND shardstate = 1)) h (is_here)
	 WHERE r.logicalrelid = 'idempotency_internal.placed_record'::regclass AND w.logicalrelid = 'idempotency_internal.placed_work'::regclass
	   AND CASE WHEN all_here THEN is_here ELSE r.shardid = wanted END;
	-- Citus refuses to lock none
	IF shards IS NOT NULL THEN
		PERFORM lock_shard_metadata(5, shards);
	END IF;
	RETURN coalesce(places, '{}');
END
$$;
COMMENT ON FUNCTION idempotency_internal.lock_shards(text, boolean) IS
'Takes the locks of shards of records, to the end of the transaction. Shows them as they were before that.
principal: its shard is locked
all_here: if true, all shards that are on this node instead
Returns for each its number, that of the shard of the work list beside it, and 1 if they are on this node.
Raises 55000 if the records are not distributed.';

CREATE FUNCTION idem_distribute(colocate_with regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	tables text[] := array(SELECT idempotency_internal.tables_of_records());
	tenant record;
	source text;
BEGIN
	IF colocate_with IS NULL THEN
		RAISE 'the table to distribute records with must not be null' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	PERFORM idempotency_internal.refuse_without_citus('idem_distribute()'::text);
	tenant := idempotency_internal.tenant_column(colocate_with);
	-- what is open in a transaction is waited for, and what comes next finds the new tables
	EXECUTE format('LOCK TABLE %s, idempotency_internal.open_work IN ACCESS EXCLUSIVE MODE', array_to_string(tables, ', '));
	IF to_regclass('idempotency_internal.placed_record') IS NOT NULL THEN
		RAISE 'records are distributed already' USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'If idempotency_internal.placed_record was restored from a dump, run SELECT idempotency_internal.gather_placed() first.';
	END IF;
	PERFORM idempotency_internal.refuse_records_of_workers();
	PERFORM idempotency_internal.create_placed(s, t, tenant.type || ' ' || tenant.collation_clause)
	  FROM (VALUES ('record'::text, 'placed_record'::text), ('open_work'::text, 'placed_work'::text)) v (s, t);
	COMMENT ON TABLE idempotency_internal.placed_record IS 'the records, by tenant, on all nodes of the cluster: the columns of "record", and the principal as it is in the tenant column';
	COMMENT ON TABLE idempotency_internal.placed_work IS 'the work list, by tenant, on all nodes of the cluster: the columns of "open_work", and the principal as it is in the tenant column';
	EXECUTE 'SELECT create_distributed_table(t, ''place'', colocate_with => $1) FROM unnest(''{idempotency_internal.placed_record,idempotency_internal.placed_work}''::regclass[]) t'
		USING colocate_with::text;
	FOREACH source IN ARRAY tables LOOP
		EXECUTE format('INSERT INTO idempotency_internal.placed_record SELECT r.*, r.principal::%s FROM %s r', tenant.type, source);
		EXECUTE format('DELETE FROM %s', source);
	END LOOP;
	EXECUTE format('INSERT INTO idempotency_internal.placed_work SELECT w.*, w.principal::%s FROM idempotency_internal.open_work w', tenant.type);
	DELETE FROM idempotency_internal.open_work;
END
$$;
COMMENT ON FUNCTION idem_distribute(regclass) IS
'Distributes the records among the nodes of a Citus cluster, each beside the rows of its principal, the tenant. Called once, on the coordinator.
colocate_with: a table that is distributed by the tenant, whose column the principals are values of
Raises 0A000 (no Citus; varchar; several placements of a shard), 42809 (a table without tenant column), 55000 (on a worker node; distributed already; a worker node has records), 22P02 (a principal that is no value of the column), 22023 (null).';

-- The other way round.  Reads through the table itself, so it works on the
-- coordinator of a cluster as on a dump that was restored without one.
CREATE FUNCTION idempotency_internal.gather_placed()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	tables text[] := array(SELECT idempotency_internal.tables_of_records());
	columns text := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = 'idempotency_internal.record'::regclass AND attnum > 0 AND NOT attisdropped);
	target text;
	window_of_id text := '(''x'' || substr(id::text, 1, 8) || substr(id::text, 10, 4))::bit(48)::bigint & x''7FFFFFFFFFFF''::bigint';
	n bigint;
	total bigint := 0;
BEGIN
	EXECUTE format('LOCK TABLE %s, idempotency_internal.open_work IN ACCESS EXCLUSIVE MODE', array_to_string(tables, ', '));
	-- as segment_of() in src/record/segment.c
	FOREACH target IN ARRAY tables LOOP
		EXECUTE format('INSERT INTO %s SELECT %s FROM idempotency_internal.placed_record WHERE CASE WHEN substr(id::text, 1, 1) < ''8'' THEN $1 = ''record'' ELSE $1 = ''record_s'' || lpad(((%s) / 21600000 %% 32)::text, 2, ''0'') END',
			target, columns, window_of_id) USING split_part(target, '.', 2);
		GET DIAGNOSTICS n = ROW_COUNT;
		total := total + n;
	END LOOP;
	INSERT INTO idempotency_internal.open_work SELECT id, since, due_at, fence, tries, queue, operation, principal FROM idempotency_internal.placed_work;
	DROP TABLE idempotency_internal.placed_record, idempotency_internal.placed_work;
	RETURN total;
END
$$;
COMMENT ON FUNCTION idempotency_internal.gather_placed() IS
'Moves all records of a cluster back to the tables of one server, and drops the distributed ones. For a dump that was restored without the cluster, and for leaving one.
Returns how many records.';

-- A call that is to be made on all nodes is written into a table that all of them
-- have (a reference table), and a second statement lets each node make the call of
-- its row.  Citus commits that on all or on none.
-- Each node is told, so Citus is not to pass on what it is told to grant.
CREATE FUNCTION idempotency_internal.make_call(call text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
SET citus.enable_ddl_propagation = off
AS $$
DECLARE
	home text := (SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'idempotency');
BEGIN
	IF left(call, 1) = '{' THEN
		PERFORM idempotency_internal.apply_settings(call::jsonb);
	ELSE
		EXECUTE format('SELECT %s.%s', home, call);
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.make_call(text) IS
'Makes a call on this node.
call: one that idem_everywhere() has checked, or a document of idem_copy_settings()';

-- Said to be immutable, which it is not: of a function that were not, Citus would
-- send the result to the nodes, and not the call.
CREATE FUNCTION idempotency_internal.call_here(call text)
RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM idempotency_internal.make_call(call); RETURN true; END $$;
COMMENT ON FUNCTION idempotency_internal.call_here(text) IS
'Makes a call on the node that has the row it is in.
call: as in make_call()
Returns true.';

CREATE FUNCTION idempotency_internal.call_everywhere(call text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	missing text;
	is_here boolean;
BEGIN
	IF to_regclass('idempotency_internal.placed_call') IS NULL THEN
		CREATE TABLE idempotency_internal.placed_call (n integer PRIMARY KEY, call text NOT NULL, made boolean NOT NULL);
		COMMENT ON TABLE idempotency_internal.placed_call IS 'the call that idem_everywhere() is making, on each node; empty otherwise';
		EXECUTE 'SELECT create_reference_table(''idempotency_internal.placed_call'')';
	END IF;
	LOCK TABLE idempotency_internal.placed_call IN SHARE ROW EXCLUSIVE MODE;
	EXECUTE $q$
		SELECT (SELECT format('%s:%s', n.nodename, n.nodeport) FROM pg_dist_node n WHERE n.isactive AND n.noderole = 'primary' AND n.groupid <> ALL (p.groups) LIMIT 1), 0 = ANY (p.groups)
		  FROM (SELECT array_agg(groupid) FROM pg_dist_placement JOIN pg_dist_shard USING (shardid) WHERE logicalrelid = 'idempotency_internal.placed_call'::regclass) p (groups)
	$q$ INTO missing, is_here;
	IF missing IS NOT NULL THEN
		RAISE 'node % does not have the reference tables yet', missing USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'SELECT replicate_reference_tables(), then SELECT idem_copy_settings().';
	END IF;
	INSERT INTO idempotency_internal.placed_call VALUES (1, call, false);
	UPDATE idempotency_internal.placed_call c SET made = idempotency_internal.call_here(c.call) WHERE n = 1;
	DELETE FROM idempotency_internal.placed_call;
	IF NOT is_here THEN
		PERFORM idempotency_internal.make_call(call);
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.call_everywhere(text) IS
'Makes a call on all nodes, or on none.
call: as in make_call()
Raises 55000 (a node that has no reference tables yet), and what the call raises.';

-- The call runs with the rights of the owner, so it must be nothing but one of
-- these functions with literals.
CREATE FUNCTION idem_everywhere(call text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	literal CONSTANT text := $r$(?:'(?:[^']|'')*'|NULL|true|false)(?:\s*::\s*(?:text|name|jsonb|text\[\]))?$r$;
	argument CONSTANT text := format($r$(?:[a-z_]+\s*=>\s*)?%s$r$, literal);
	form CONSTANT text := format($r$^\s*(?:[a-z_0-9]+\.)?((?:idem_grant|idem_revoke|idem_define|idem_undefine|idem_destination_define|idem_destination_undefine|idem_stat_reset)\s*\(\s*(?:%1$s(?:\s*,\s*%1$s)*)?\s*\))\s*;?\s*\Z$r$, argument);
	bare text := (regexp_match(call, form, 'i'))[1];
BEGIN
	PERFORM idempotency_internal.refuse_without_citus('idem_everywhere()'::text);
	IF bare IS NULL THEN
		RAISE 'idem_everywhere() makes calls of the extension only' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'Pass one call of idem_grant, idem_revoke, idem_define, idem_undefine, idem_destination_define, idem_destination_undefine or idem_stat_reset, with literals as arguments, as in idem_define(''pay'', ''{"retention": "7 days"}'').';
	END IF;
	PERFORM idempotency_internal.call_everywhere(bare);
END
$$;
COMMENT ON FUNCTION idem_everywhere(text) IS
'Makes a call of this extension on all nodes of a Citus cluster, or on none. Called on the coordinator.
call: a call of idem_grant, idem_revoke, idem_define, idem_undefine, idem_destination_define, idem_destination_undefine or idem_stat_reset as it is written in SQL, with literals as arguments
Raises 0A000 (no Citus), 55000 (on a worker node; a node that has no reference tables yet), 22023 (another call), and what the call raises.';

CREATE FUNCTION idempotency_internal.granted()
RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT format('GRANT %s ON %s TO %I%s', a.privilege_type, o.object, r.rolname, CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
	  FROM pg_extension e
	  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e',
		LATERAL (
			SELECT 'FUNCTION ' || oid::regprocedure, proacl, proowner FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid
			UNION ALL
			SELECT 'TABLE ' || oid::regclass, relacl, relowner FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid AND relkind = 'v'
			UNION ALL
			SELECT 'SCHEMA ' || oid::regnamespace, nspacl, nspowner FROM pg_namespace WHERE d.classid = 'pg_proc'::regclass AND oid = e.extnamespace
		) AS o (object, acl, owner),
		aclexplode(o.acl) a JOIN pg_roles r ON r.oid = a.grantee
	 WHERE e.extname = 'idempotency' AND a.grantee <> o.owner
	 GROUP BY 1 ORDER BY 1
$$;
COMMENT ON FUNCTION idempotency_internal.granted() IS
'Returns the GRANT commands that give roles what they have of the extension.';

CREATE FUNCTION idempotency_internal.apply_settings(settings jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	home text := (SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'idempotency');
	node int;
	command text;
BEGIN
	EXECUTE 'SELECT groupid FROM pg_dist_local_group' INTO node;
	IF node = (settings->>'from')::int THEN
		RETURN;
	END IF;
	-- as a definition does: purge stays away
	LOCK TABLE idempotency_internal.policy, idempotency_internal.destination IN SHARE ROW EXCLUSIVE MODE;
	INSERT INTO idempotency_internal.normalisation SELECT * FROM jsonb_populate_recordset(NULL::idempotency_internal.normalisation, settings->'normalisation') ON CONFLICT DO NOTHING;
	DELETE FROM idempotency_internal.policy;
	INSERT INTO idempotency_internal.policy SELECT * FROM jsonb_populate_recordset(NULL::idempotency_internal.policy, settings->'policy');
	DELETE FROM idempotency_internal.destination;
	INSERT INTO idempotency_internal.destination SELECT * FROM jsonb_populate_recordset(NULL::idempotency_internal.destination, settings->'destination');
	FOR command IN SELECT jsonb_array_elements_text(settings->'granted') LOOP
		EXECUTE command;
	END LOOP;
	-- takes nothing away, and lets all sessions read again
	EXECUTE format('SELECT %1$s.idem_undefine(''*'', ''{}''), %1$s.idem_destination_undefine(''*'', ''{}'')', home);
END
$$;
COMMENT ON FUNCTION idempotency_internal.apply_settings(jsonb) IS
'Replaces the settings of this node by those of another one, and grants what is granted there.
settings: from (number of the node they come from), policy, normalisation, destination, granted';

CREATE FUNCTION idem_copy_settings()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.refuse_without_citus('idem_copy_settings()'::text);
	LOCK TABLE idempotency_internal.policy, idempotency_internal.destination IN SHARE ROW EXCLUSIVE MODE;
	PERFORM idempotency_internal.call_everywhere(jsonb_build_object(
		'from', 0,
		'policy', (SELECT coalesce(jsonb_agg(to_jsonb(p)), '[]') FROM idempotency_internal.policy p),
		'normalisation', (SELECT coalesce(jsonb_agg(to_jsonb(n)), '[]') FROM idempotency_internal.normalisation n),
		'destination', (SELECT coalesce(jsonb_agg(to_jsonb(d)), '[]') FROM idempotency_internal.destination d),
		'granted', (SELECT coalesce(jsonb_agg(g), '[]') FROM idempotency_internal.granted() g))::text);
END
$$;
COMMENT ON FUNCTION idem_copy_settings() IS
'Gives all nodes of a Citus cluster the settings of the coordinator, and the rights that are granted there; for a node that has been added. What was defined on a worker node alone is lost there.
Raises 0A000 (no Citus), 55000 (on a worker node; a node that has no reference tables yet).';
