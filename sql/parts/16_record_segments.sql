-- On a sharded cluster (src/record/place.c) records and the work list are in
-- shards.  With the rights of the owner, because only views for monitors and
-- workers call these functions, and only there they can be reached.
CREATE FUNCTION idempotency_internal.shards_here(kind text)
RETURNS SETOF text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF to_regclass('idempotency_internal.placed_record') IS NULL THEN
		RETURN;
	END IF;
	IF to_regclass('pg_catalog.pg_dist_placement') IS NULL THEN
		RETURN NEXT format('idempotency_internal.%I', kind);
		RETURN;
	END IF;
	RETURN QUERY EXECUTE $q$
		SELECT format('idempotency_internal.%I', $1 || '_' || s.shardid)
		  FROM pg_dist_shard s JOIN pg_dist_placement p USING (shardid) JOIN pg_dist_local_group g USING (groupid)
		 WHERE s.logicalrelid = ('idempotency_internal.' || $1)::regclass AND p.shardstate = 1
			AND to_regclass(format('idempotency_internal.%I', $1 || '_' || s.shardid)) IS NOT NULL
	$q$ USING kind;
END
$$;
COMMENT ON FUNCTION idempotency_internal.shards_here(text) IS
'Returns the tables of shards that this node has, as they are written in SQL; of a dump that was restored without the cluster, the table itself.
kind: placed_record or placed_work';

CREATE FUNCTION idempotency_internal.record_tables()
RETURNS SETOF regclass
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT oid::regclass FROM pg_class WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind = 'r' AND relname ~ '^record(_s[0-9]+)?$'
	UNION ALL SELECT idempotency_internal.shards_here('placed_record'::text)::regclass
$$;
COMMENT ON FUNCTION idempotency_internal.record_tables() IS
'Returns the tables that records of this node are in: record, the segments, and shards.';

CREATE FUNCTION idempotency_internal.placed_rows()
RETURNS SETOF idempotency_internal.record
LANGUAGE plpgsql STABLE ROWS 10
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	shard text;
BEGIN
	FOR shard IN SELECT idempotency_internal.shards_here('placed_record'::text) LOOP
		RETURN QUERY EXECUTE format('SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, not_before, reopened_at, fence, normalisation, attempt, releases, state, accepted, principal, operation, key, fingerprint, owner, result, error FROM %s', shard);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.placed_rows() IS
'Returns the records in shards that this node has; nothing on one server.';

CREATE FUNCTION idempotency_internal.placed_entries()
RETURNS SETOF idempotency_internal.open_work
LANGUAGE plpgsql STABLE ROWS 10
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	shard text;
BEGIN
	FOR shard IN SELECT idempotency_internal.shards_here('placed_work'::text) LOOP
		RETURN QUERY EXECUTE format('SELECT id, since, due_at, fence, tries, queue, operation, principal FROM %s', shard);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.placed_entries() IS
'Returns the work list of the shards that this node has; nothing on one server.';

CREATE VIEW idempotency_internal.every_entry WITH (security_barrier) AS
	SELECT id, since, due_at, fence, tries, queue, operation, principal FROM idempotency_internal.open_work
	UNION ALL SELECT id, since, due_at, fence, tries, queue, operation, principal FROM idempotency_internal.placed_entries();
COMMENT ON VIEW idempotency_internal.every_entry IS
	'the work list, of "open_work" and of the shards of this node';

-- The ring of segments (src/record/segment.c): an id that carries time belongs
-- to the segment of its six-hour window, any other to "record".  Made like
-- "record", column by column and index by index; the store refuses a table that
-- differs.  The view has all of them, for other views, without what none shows.
DO LANGUAGE plpgsql $$
DECLARE
	tables CONSTANT pg_catalog.text[] := (SELECT pg_catalog.array_agg(pg_catalog.format('record_s%s', pg_catalog.lpad(i::pg_catalog.text, 2, '0')) ORDER BY i)
		FROM pg_catalog.generate_series(0, 31) i);
BEGIN
	FOR i IN 1 .. 32 LOOP
		EXECUTE pg_catalog.format('CREATE TABLE idempotency_internal.%I (LIKE idempotency_internal.record INCLUDING ALL) USING heap', tables[i]);
		EXECUTE pg_catalog.format('COMMENT ON TABLE idempotency_internal.%I IS ''records whose id carries a time in window %s of 32, six hours each''',
			tables[i], i OPERATOR(pg_catalog.-) 1);
		PERFORM pg_catalog.pg_extension_config_dump(pg_catalog.format('idempotency_internal.%I', tables[i])::pg_catalog.regclass, '');
	END LOOP;
	EXECUTE 'CREATE VIEW idempotency_internal.every_record WITH (security_barrier) AS ' OPERATOR(pg_catalog.||)
		(SELECT pg_catalog.string_agg(pg_catalog.format('SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, not_before, reopened_at, fence, attempt, releases, state, accepted, principal, operation, key, owner, result, error FROM idempotency_internal.%s', CASE WHEN t OPERATOR(pg_catalog.=) 'placed_rows'::pg_catalog.text THEN 'placed_rows()' ELSE t END), ' UNION ALL ' ORDER BY n)
			FROM pg_catalog.unnest('{record}'::pg_catalog.text[] OPERATOR(pg_catalog.||) tables OPERATOR(pg_catalog.||) '{placed_rows}'::pg_catalog.text[]) WITH ORDINALITY u (t, n));
END
$$;
COMMENT ON VIEW idempotency_internal.every_record IS
	'the records of "record", of the 32 segments and of the shards of this node, without fingerprints';

-- No wait lasts: it would be one of all who open the segment (src/record/purge.c).
CREATE FUNCTION idempotency_internal.truncate_segment(segment regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1ms'
AS $$ BEGIN EXECUTE format('TRUNCATE ONLY %s', segment); END $$;
COMMENT ON FUNCTION idempotency_internal.truncate_segment(regclass) IS
'Removes all records of a segment.
segment: the table, which the caller has locked
Raises 55P03 if another lock is refused.';

