-- The ring of segments: which table an id belongs to, what covers all of them,
-- and how purge empties one; DESIGN "Purge without debt".
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
SELECT format('TRUNCATE %s, idempotency_internal.open_work', string_agg(place::text, ', ')) FROM pg_temp.tables_of_records() place \gexec

-- Keys made at that millisecond; n tells them apart.
CREATE FUNCTION pg_temp.v7(ms bigint, n int DEFAULT 0) RETURNS text LANGUAGE sql AS $$
	SELECT substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-7000-8000-' || lpad(to_hex(n), 12, '0') FROM lpad(to_hex(ms), 12, '0') hex
$$;
CREATE FUNCTION pg_temp.ulid(ms bigint, n int DEFAULT 0) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', ((ms >> (5 * i)) & 31)::int + 1, 1), '' ORDER BY i DESC) || lpad(n::text, 16, '0')
	FROM generate_series(0, 9) i
$$;
-- Where the record of a key is.
CREATE FUNCTION pg_temp.places(operation text, key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	place regclass;
	found text;
	n int;
BEGIN
	FOR place IN SELECT pg_temp.tables_of_records() LOOP
		EXECUTE format('SELECT count(*) FROM %s WHERE id = $1', place) INTO n USING idem_id(operation, key);
		found := nullif(concat_ws(' ', found, CASE WHEN n > 0 THEN replace(place::text, 'idempotency_internal.', '') || repeat(' again', n - 1) END), '');
	END LOOP;
	RETURN found;
END
$$;

-- Thirty-two tables like "record", dumped like it
CREATE TEMP VIEW shape AS
	SELECT c.oid, c.relname, (SELECT jsonb_agg(jsonb_build_array(attname, atttypid, attnotnull, attcollation, attstorage) ORDER BY attnum) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0) AS columns,
		(SELECT jsonb_agg(replace(pg_get_indexdef(indexrelid), c.relname, 'TABLE') ORDER BY indexrelid) FROM pg_index WHERE indrelid = c.oid) AS indexes,
		(SELECT jsonb_agg(pg_get_constraintdef(k.oid) ORDER BY k.oid) FROM pg_constraint k WHERE conrelid = c.oid AND contype <> 'n') AS constraints,
		c.relreplident, c.relpersistence, c.relam, c.relowner, c.relacl
	FROM pg_class c WHERE oid IN (SELECT pg_temp.tables_of_records());
SELECT is(count(*), 33::bigint, 'thirty-two segments and record') FROM shape;
SELECT is(to_jsonb(s) - 'oid' - 'relname', (SELECT to_jsonb(r) - 'oid' - 'relname' FROM shape r WHERE relname = 'record'), relname || ' is like record') FROM shape s WHERE relname <> 'record' ORDER BY relname;
SELECT is(array_agg(s.oid::regclass ORDER BY s.oid), NULL, 'all are dumped') FROM shape s WHERE s.oid <> ALL ((SELECT extconfig FROM pg_extension WHERE extname = 'idempotency')::oid[]);
SELECT is(array_agg(s.oid::regclass ORDER BY s.oid), NULL, 'all have a comment') FROM shape s WHERE obj_description(s.oid) IS NULL;

-- The table of an id: six hours each, and round again after eight days
CREATE TEMP TABLE vector (n int GENERATED ALWAYS AS IDENTITY, key text, place text, what text);
INSERT INTO vector (key, place, what) VALUES
	('k1', 'record', 'a word'), ('019a0000-0000-4000-8000-000000000001', 'record', 'a UUIDv4'), ('01arz3ndektsv4rrffq69g5fav', 'record', 'no ULID'),
	(pg_temp.v7(0), 'record_s00', 'the first millisecond'), (pg_temp.v7(21599999), 'record_s00', 'the last of the first window'), (pg_temp.v7(21600000), 'record_s01', 'the first of the second'),
	(pg_temp.v7(691199999), 'record_s31', 'the last of the last'), (pg_temp.v7(691200000), 'record_s00', 'round again'),
	('019a0000-0000-7000-8000-000000000001', 'record_s20', 'the vector of the contract'), ('019A0000-0000-7000-8000-000000000002', 'record_s20', 'upper case'),
	('01ARZ3NDEKTSV4RRFFQ69G5FAV', 'record_s19', 'a ULID'),
	(pg_temp.v7(1700006399999), 'record_s15', 'the end of a window'), (pg_temp.v7(1700006400000), 'record_s16', 'and the begin of the next'),
	(pg_temp.ulid(1700006399999), 'record_s15', 'the same of ULIDs'), (pg_temp.ulid(1700006400000), 'record_s16', 'likewise'),
	(pg_temp.v7((1::bigint << 47) - 1), 'record_s08', 'the last time an id can tell'), (pg_temp.v7(1::bigint << 47), 'record_s00', 'from then on times look like the first ones'),
	(pg_temp.v7((1::bigint << 48) - 1), 'record_s08', 'the last time of all'), (pg_temp.ulid((1::bigint << 48) - 1), 'record_s08', 'of ULIDs');
SELECT is(idem_complete(c, to_jsonb(n)), to_jsonb(n), 'claimed and completed: ' || what) FROM vector, idem_claim('ring', key) c ORDER BY n;
SELECT is(pg_temp.places('ring', key), place, place || ': ' || what || ', ' || key) FROM vector ORDER BY n;
SELECT is(s.result, to_jsonb(n), 'idem_status finds ' || what), is(c.verdict::text, 'replay', 'and a claim replays it') FROM vector v, idem_status('ring', v.key) s, idem_claim('ring', v.key) c ORDER BY n;
SELECT set_eq('SELECT key, state FROM idem_record WHERE operation = ''ring''', 'SELECT key, ''succeeded'' FROM vector', 'idem_record shows all of them');
SELECT is(idem_redact('ring', key)::text, '', 'redacted: ' || what), is((idem_status('ring', key)).result, NULL::jsonb, 'the result is gone') FROM vector ORDER BY n;

-- By a formula of its own, at random times
SELECT setseed(0.4);
CREATE TEMP TABLE random AS SELECT i, (random() * 4e12)::bigint AS ms FROM generate_series(1, 500) i;
SELECT count(idem_once('random', CASE i % 2 WHEN 0 THEN pg_temp.v7(ms, i) ELSE pg_temp.ulid(ms, i) END)) FROM random;
SELECT is(count(*), 0::bigint, 'at 500 random times') FROM random, LATERAL (SELECT CASE i % 2 WHEN 0 THEN pg_temp.v7(ms, i) ELSE pg_temp.ulid(ms, i) END AS key) k
 WHERE pg_temp.places('random', key) IS DISTINCT FROM 'record_s' || lpad((floor(ms / 1000 / 3600 / 6)::bigint % 32)::text, 2, '0');

-- What is not finished, wherever it is
SELECT count(*) FROM vector v, idem_accept('open', v.key) WHERE n % 2 = 0;
SELECT count(*) FROM vector v, idem_claim('open', v.key, lease => '1 h') WHERE n % 2 = 1;
SELECT set_eq('SELECT key, state FROM idem_list(operation => ''open'')', 'SELECT key, CASE n % 2 WHEN 0 THEN ''accepted'' ELSE ''processing'' END::idem_state FROM vector', 'idem_list has all');
SELECT set_eq('SELECT key, state FROM idem_open', 'SELECT key, CASE n % 2 WHEN 0 THEN ''accepted'' ELSE ''processing'' END FROM vector', 'idem_open has all');
SELECT set_eq('SELECT key FROM idem_start_next(''open'', 100, ''1 ms'')', 'SELECT key FROM vector WHERE n % 2 = 0', 'idem_start_next starts all');
SELECT count(pg_temp.age('open', key, '2 h')) FROM vector;
UPDATE idempotency_internal.open_work SET due_at = due_at - interval '2 h';
SELECT is(count(*)::int, (SELECT count(*)::int FROM vector), 'idem_reconcile hands out all') FROM idem_reconcile('open', 100);
SELECT is((idem_resolve('open', key, 'succeeded', '1')).state, 'succeeded', 'idem_resolve resolves ' || what) FROM vector ORDER BY n;
SELECT is(count(*), 0::bigint, 'nothing is open any more') FROM idem_open;

-- A batch over all tables
SELECT is(array_agg(k), (SELECT array_agg(key ORDER BY n) FROM vector), 'idem_once_many over all tables') FROM idem_once_many('batch', (SELECT array_agg(key ORDER BY n) FROM vector)) k;
SELECT is(count(*), 0::bigint, 'and again') FROM idem_once_many('batch', (SELECT array_agg(key ORDER BY n DESC) FROM vector)) k;

SELECT format('TRUNCATE %s, idempotency_internal.open_work', string_agg(place::text, ', ')) FROM pg_temp.tables_of_records() place \gexec

-- Emptying
SELECT idem_define('gone', '{"retention": "1 us"}'), idem_define('ever', '{"retention": null}');
CREATE FUNCTION pg_temp.fill(operation text, window_number int, how_many int) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(idem_once(operation, pg_temp.v7(window_number * 21600000::bigint + n, n))) FROM generate_series(1, how_many) n
$$;
CREATE FUNCTION pg_temp.left_in(segment regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	n int;
BEGIN
	EXECUTE format('SELECT count(*) FROM %s', segment) INTO n;
	RETURN n || CASE WHEN pg_relation_size(segment) = 0 THEN ', no page' ELSE '' END;
END
$$;
CREATE FUNCTION pg_temp.segment(n int) RETURNS regclass LANGUAGE sql AS $$ SELECT ('idempotency_internal.record_s' || lpad(n::text, 2, '0'))::regclass $$;
SELECT pg_temp.fill('gone', 320 + 5, 3000), pg_temp.fill('gone', 320 + 6, 3000);
SELECT pg_relation_filenode(pg_temp.segment(5)) AS file \gset
SELECT is(idem_purge(10), 10::bigint, 'a segment does not go as a whole if it has more than max_records');
SELECT is(pg_temp.left_in(pg_temp.segment(5)), '2990', 'ten went one by one');
SELECT is(idem_purge(2990), 2990::bigint, 'it goes as a whole if it has not');
SELECT is(pg_temp.left_in(pg_temp.segment(5)), '0, no page', 'and is empty'), isnt(pg_relation_filenode(pg_temp.segment(5)), :file::oid, 'by TRUNCATE');
SELECT is(pg_temp.left_in(pg_temp.segment(6)), '3000', 'one segment in one call');
SELECT is(idem_purge(), 3000::bigint, 'NULL: whole segments are not counted against purge_batch');
SELECT is(pg_temp.left_in(pg_temp.segment(6)), '0, no page', 'it is empty');
SELECT is(idem_purge(), 0::bigint, 'until 0');
SELECT is((idem_claim('gone', pg_temp.v7(325 * 21600000::bigint + 1, 1), lease => '1 h')).verdict, 'execute', 'a key of an emptied segment executes, as a forgotten one does');
SELECT format('TRUNCATE %s, idempotency_internal.open_work', string_agg(place::text, ', ')) FROM pg_temp.tables_of_records() place \gexec

-- Not while anything in it is to be kept
CREATE TEMP TABLE kept (n int GENERATED ALWAYS AS IDENTITY, what text, ddl text);
INSERT INTO kept (what, ddl) VALUES
	('a record kept for ever', 'SELECT idem_once(''ever'', %L)'), ('one inside its retention', 'SELECT idem_once(''ring'', %L)'),
	('an accepted one', 'SELECT idem_accept(''gone'', %L)'), ('a leased one', 'SELECT idem_claim(''gone'', %L, lease => ''1 h'')'), ('an unknown one', 'SELECT idem_claim(''gone'', %L, lease => ''1 us'')'),
	('a retryable one', 'SELECT idem_fail(c, ''1'', true) FROM idem_claim(''gone'', %L) c');
SELECT pg_temp.fill('gone', 640 + n, 2000) FROM kept;
SELECT format('DO %L', 'BEGIN PERFORM ' || substr(format(ddl, pg_temp.v7((640 + n) * 21600000::bigint)), 8) || '; END') FROM kept \gexec
SELECT is(idem_purge(12000), 12000::bigint, 'what stands beside something to be kept goes one by one');
SELECT is(pg_temp.left_in(pg_temp.segment(n)), '1', what || ' stays') FROM kept ORDER BY n;
SELECT is(idem_purge(), 0::bigint, 'nothing else goes');

-- One whose key is not provably late yet is not forgotten although it is time
SELECT idem_define('timed', '{"retention": "1 us"}');
SELECT pg_temp.fill('timed', 640 + 10, 2000);
SELECT idem_complete(c) FROM idem_claim('timed', pg_temp.v7(650 * 21600000::bigint)) c;
SELECT idem_define('timed', '{"key_format": "uuidv7", "retention": null}');
UPDATE idempotency_internal.policy SET horizons = '[]' WHERE operation = 'timed';
SELECT idem_define('timed', '{"guard": "0"}');
SELECT is(idem_purge(), 0::bigint, 'not if a policy of today does not let it be forgotten');
SELECT is(pg_temp.left_in(pg_temp.segment(10)), '2001', 'it stays');

-- A session that reads the segment itself, and one that has just written to it
SELECT pg_temp.fill('gone', 640 + 11, 2000);
SELECT is(max(purged), 1000::bigint, 'while an outer query reads it, rows go one by one') FROM (SELECT idem_purge() AS purged) p, idem_record;
SELECT is(idem_purge(), 1000::bigint, 'afterwards the rest goes');
SELECT pg_temp.fill('gone', 640 + 12, 2000);
SELECT is(purged, 1000::bigint, 'nor what this very statement has written') FROM (SELECT idem_once('ring', pg_temp.v7(652 * 21600000::bigint))) o, LATERAL (SELECT idem_purge() AS purged) p;
SELECT is((idem_status('ring', pg_temp.v7(652 * 21600000::bigint))).state, 'succeeded', 'which stays');

-- Small ones are not worth a new file
SELECT format('TRUNCATE %s, idempotency_internal.open_work', string_agg(place::text, ', ')) FROM pg_temp.tables_of_records() place \gexec
SELECT pg_temp.fill('gone', 640 + 13, 20);
SELECT pg_relation_filenode(pg_temp.segment(13)) AS file \gset
SELECT is(idem_purge(), 20::bigint, 'a small segment is deleted from'), is(pg_relation_filenode(pg_temp.segment(13)), :file::oid, 'in its file');

-- With the rights of the owner, whoever may purge
CREATE ROLE regress_idem_segments;
SELECT idem_grant('regress_idem_segments', 'admin');
SELECT pg_temp.fill('gone', 640 + 14, 2000);
SET ROLE regress_idem_segments;
SELECT is(public.idem_purge(), 2000::bigint, 'an admin empties a segment');
SELECT throws_ok('TRUNCATE idempotency_internal.record_s14', '42501', NULL, 'but may not do so by himself');
RESET ROLE;
SELECT idem_revoke('regress_idem_segments', 'admin');
DROP OWNED BY regress_idem_segments;
DROP ROLE regress_idem_segments;

-- Records with large results
SELECT idem_complete(c, (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 300) i)) FROM generate_series(1, 1500) n, idem_claim('gone', pg_temp.v7(655 * 21600000::bigint + n, n)) c \g /dev/null
SELECT is(idem_purge(), 1500::bigint, 'with what is stored beside them'), is(pg_total_relation_size(reltoastrelid), 8192::bigint, 'that is empty too') FROM pg_class WHERE oid = pg_temp.segment(15);

-- A summary says that a row has no end until it is made anew: once, when none has
SELECT format('TRUNCATE %s, idempotency_internal.open_work', string_agg(place::text, ', ')) FROM pg_temp.tables_of_records() place \gexec
CREATE FUNCTION pg_temp.ranges_without_end(segment regclass) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	SET LOCAL enable_seqscan = off;
	EXECUTE format('EXPLAIN (ANALYZE, FORMAT json) SELECT FROM %s WHERE forget_at IS NULL', segment) INTO plan;
	RETURN (plan->0->'Plan'->>'Lossy Heap Blocks')::int / 16;
END $$;
SELECT idem_define('later', '{"retention": "1 day"}');
SELECT fence FROM idem_claim('later', pg_temp.v7(656 * 21600000::bigint), lease => '1 h') \gset
SELECT pg_temp.fill('later', 640 + 16, 4000);
SELECT idem_purge();
SELECT pg_temp.ranges_without_end(pg_temp.segment(16)) AS before \gset
SELECT idem_complete_key('later', pg_temp.v7(656 * 21600000::bigint), :fence);
SELECT idem_purge();
SELECT is(pg_temp.ranges_without_end(pg_temp.segment(16)), :before - 1, 'the summary of a row that had no end is made anew');

SELECT format('TRUNCATE %s, idempotency_internal.open_work', string_agg(place::text, ', ')) FROM pg_temp.tables_of_records() place \gexec
SELECT * FROM finish();
