-- Our tables are plain heap tables with our primary key, and refused otherwise
-- (C49); other indexes do what they do anywhere; the extension goes to any schema
-- and survives being dropped and made again.
\set ECHO none
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS idempotency;
CREATE ACCESS METHOD regress_other_heap TYPE TABLE HANDLER heap_tableam_handler;
SET default_table_access_method = regress_other_heap;
CREATE SCHEMA "Regress idem";
CREATE EXTENSION idempotency SCHEMA "Regress idem";
RESET default_table_access_method;
CREATE EXTENSION IF NOT EXISTS pgtap;
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
SET search_path = "Regress idem", public;
\i :suite
SELECT is(array_agg(DISTINCT amname), '{heap}', 'C49: tables are heap whatever the default') FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind = 'r';
SELECT is(array_agg(DISTINCT relpersistence::text), '{p}', 'logged') FROM pg_class c WHERE relnamespace = 'idempotency_internal'::regnamespace;
SELECT is(array_agg(relname ORDER BY relname), NULL, 'with a primary key as replica identity') FROM pg_class WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind = 'r' AND relreplident <> 'd';

-- Installed into a schema of its own: callable with any search_path
SET search_path = pg_catalog;
SELECT "Regress idem".idem_complete(c, '1') FROM "Regress idem".idem_claim('heap', 'schema') c;
SELECT verdict, state, result FROM "Regress idem".idem_claim('heap', 'schema');
SELECT "Regress idem".idem_define('heap', '{"wait": "0"}');
CREATE ROLE regress_idem_heap;
SELECT "Regress idem".idem_grant('regress_idem_heap');
SET ROLE regress_idem_heap;
SELECT state FROM "Regress idem".idem_status('heap', 'schema');
RESET ROLE;
SELECT "Regress idem".idem_revoke('regress_idem_heap');
SET search_path = "Regress idem", public, tap;
DROP OWNED BY regress_idem_heap;
DROP ROLE regress_idem_heap;

-- Not what the script made: every call is refused, and nothing is written
CREATE TEMP TABLE change (n int GENERATED ALWAYS AS IDENTITY, what text, ddl text);
INSERT INTO change (what, ddl) VALUES
	('a trigger', 'CREATE TRIGGER t BEFORE INSERT ON idempotency_internal.record FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()'),
	('a foreign key to it', 'CREATE TABLE orders (id uuid REFERENCES idempotency_internal.record)'),
	('a child', 'CREATE TABLE child () INHERITS (idempotency_internal.record)'),
	('another column', 'ALTER TABLE idempotency_internal.record ADD COLUMN x int'),
	('a column of another type', 'ALTER TABLE idempotency_internal.record ALTER COLUMN fingerprint TYPE text USING NULL'),
	('not logged', 'ALTER TABLE idempotency_internal.record SET UNLOGGED'),
	('no primary key', 'ALTER TABLE idempotency_internal.record DROP CONSTRAINT record_pkey CASCADE'),
	('a deferrable primary key', 'ALTER TABLE idempotency_internal.record DROP CONSTRAINT record_pkey CASCADE; ALTER TABLE idempotency_internal.record ADD PRIMARY KEY (id) DEFERRABLE'),
	('another primary key', 'ALTER TABLE idempotency_internal.record DROP CONSTRAINT record_pkey CASCADE; ALTER TABLE idempotency_internal.record ADD PRIMARY KEY (fence)'),
	('a primary key on more columns', 'ALTER TABLE idempotency_internal.record DROP CONSTRAINT record_pkey CASCADE; ALTER TABLE idempotency_internal.record ADD PRIMARY KEY (id, fence)'),
	('a view', 'ALTER TABLE idempotency_internal.record RENAME TO record_gone; CREATE VIEW idempotency_internal.record AS SELECT * FROM idempotency_internal.record_gone'),
	('another access method', 'ALTER TABLE idempotency_internal.record RENAME TO record_gone; CREATE TABLE idempotency_internal.record (LIKE idempotency_internal.record_gone INCLUDING ALL) USING regress_other_heap'),
	('partitions', 'ALTER TABLE idempotency_internal.record RENAME TO record_gone; CREATE TABLE idempotency_internal.record (LIKE idempotency_internal.record_gone INCLUDING ALL) PARTITION BY HASH (id)');
CREATE FUNCTION pg_temp.under(ddl text, query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text;
	hint text;
BEGIN
	EXECUTE ddl;
	BEGIN
		EXECUTE query;
		state := 'none';
	EXCEPTION WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, hint = PG_EXCEPTION_HINT;
	END;
	-- undo the change
	RAISE SQLSTATE 'UNDO0' USING MESSAGE = state || CASE WHEN hint <> '' THEN ' with a hint' ELSE '' END;
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
	RETURN SQLERRM;
END $$;
SELECT is(pg_temp.under(ddl, query), '42809 with a hint', format('%s: %s', what, query))
  FROM change, unnest(ARRAY[$$SELECT idem_complete(c) FROM idem_claim('heap', 'k') c$$, $$SELECT idem_status('heap', 'schema')$$]) query ORDER BY n, query;
-- so is a segment, by the calls whose ids belong to it
SELECT is(pg_temp.under(replace(replace(replace(ddl, 'record_', 'record_s08_'), 'internal.record ', 'internal.record_s08 '), 'internal.record)', 'internal.record_s08)'), query), told, format('segment, %s: %s', what, query))
  FROM change, (VALUES ($$SELECT idem_complete(c) FROM idem_claim('heap', '018b9d29-8800-7000-8000-000000000001') c$$, '42809 with a hint'), ($$SELECT idem_status('heap', '018b9d29-8800-7000-8000-000000000001')$$, '42809 with a hint'),
	($$SELECT idem_status('heap', 'k')$$, 'none'), ($$SELECT idem_claim('heap', '019b9d29-8800-7000-8000-000000000001', lease => '1 h')$$, 'none')) q (query, told) ORDER BY n, query;
SELECT is(pg_temp.under('DROP INDEX idempotency_internal.record_forget_at_idx', $$SELECT idem_complete(c) FROM idem_claim('heap', 'k') c$$), 'none', 'a missing index of purge does not hinder claims');
SELECT is(idem_complete(c), NULL, 'undone: as before') FROM idem_claim('heap', 'undone') c;
SELECT is(pg_temp.under(format('CREATE TRIGGER t BEFORE INSERT ON idempotency_internal.%s FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()', t), $$SELECT idem_claim('heap_new', 'k', lease => '1 h')$$), '42809 with a hint', 'a trigger on ' || t)
  FROM unnest('{policy}'::text[]) t;

-- A unique index somebody added raises 23505, as anywhere, and nothing loops
CREATE UNIQUE INDEX regress_owner ON idempotency_internal.record (owner);
SELECT is((idem_claim('heap', 'owner 1', lease => '1 h', owner => 'w')).verdict, 'execute', 'an extra unique index: the first');
SELECT throws_ok($$SELECT idem_claim('heap', 'owner 2', lease => '1 h', owner => 'w')$$, '23505', NULL, 'an extra unique index: a duplicate on insert');
SELECT idem_fail(c, '1', true) FROM idem_claim('heap', 'owner 3') c;
SELECT throws_ok($$SELECT idem_claim('heap', 'owner 3', lease => '1 h', owner => 'w')$$, '23505', NULL, 'and on update');
BEGIN;
SELECT idem_claim('heap', 'owner 4', owner => 'w')::text AS c \gset
SELECT throws_ok(format('SELECT idem_complete(%L)', :'c'), '23505', NULL, 'at the completion of an atomic claim');
SELECT is((idem_status('heap', 'owner 4')).holder, pg_backend_pid(), 'which stays open');
ROLLBACK;
SELECT is((idem_claim('heap', 'owner 5', lease => '1 h', owner => 'v')).verdict, 'execute', 'other values are fine');
DROP INDEX idempotency_internal.regress_owner;
-- other indexes are kept up to date
CREATE INDEX regress_expression ON idempotency_internal.record (lower(operation), ((result->>'n')::int)) WHERE state = 's';
CREATE INDEX regress_brin ON idempotency_internal.record USING brin (claimed_at);
CREATE INDEX regress_gin ON idempotency_internal.record USING gin (result);
SELECT count(idem_complete(c, jsonb_build_object('n', n))) FROM generate_series(1, 20) n, idem_claim('HEAP', 'k' || n) c;
SELECT idem_complete(c, '{"n": 21}') FROM idem_claim('HEAP', 'leased', lease => '1 h') c;
SET enable_seqscan = off;
SELECT is(count(*), 21::bigint, 'indexes somebody added have all rows') FROM idempotency_internal.record WHERE lower(operation) = 'heap' AND state = 's' AND (result->>'n')::int BETWEEN 1 AND 21;
SELECT is(count(*), 1::bigint, 'of every kind') FROM idempotency_internal.record WHERE result @> '{"n": 21}';
RESET enable_seqscan;
DROP INDEX idempotency_internal.regress_expression, idempotency_internal.regress_brin, idempotency_internal.regress_gin;
-- those of columns without the executor, of a new row and of a new version
CREATE INDEX regress_plain ON idempotency_internal.record (operation, state) INCLUDE (key);
SELECT idem_complete(c) FROM idem_claim('plain', 'atomic') c;
SELECT idem_complete(c) FROM idem_claim('plain', 'leased', lease => '1 h') c;
SET enable_seqscan = off;
SELECT is(string_agg(key, ' ' ORDER BY key), 'atomic leased', 'an index of columns has all versions') FROM idempotency_internal.record WHERE operation = 'plain' AND state = 's';
RESET enable_seqscan;
DROP INDEX idempotency_internal.regress_plain;

-- What a call leaves open for the next one is in no other call's way
SELECT lives_ok($t$DO $do$
DECLARE
	c idem_answer := idem_claim('heap', 'left open');
	told jsonb := idem_complete(c, '1');
BEGIN
	ALTER TABLE idempotency_internal.record SET (fillfactor = 90);
	told := (idem_claim('heap', 'left open')).result;
	ALTER TABLE idempotency_internal.record RESET (fillfactor);
END $do$$t$, 'DDL between the calls of one statement');
SELECT lives_ok($t$DO $do$
DECLARE
	c idem_answer;
	told jsonb;
BEGIN
	FOR i IN 1 .. 3 LOOP
		BEGIN
			c := idem_claim('heap', 'rolled ' || i);
			told := idem_complete(c, to_jsonb(i));
			told := to_jsonb(1 / (i - 2));
		EXCEPTION WHEN division_by_zero THEN
			c := idem_claim('heap', 'beside ' || i);
			told := idem_complete(c, to_jsonb(i));
		END;
		c := idem_claim('heap', 'after ' || i);
		told := idem_complete(c, to_jsonb(i));
	END LOOP;
END $do$$t$, 'or subtransactions that fail');
SELECT is(string_agg(key || ' ' || (idem_status('heap', key)).state, ', ' ORDER BY key), 'after 1 succeeded, after 2 succeeded, after 3 succeeded, beside 2 succeeded', 'all are recorded')
  FROM unnest('{after 1,after 2,after 3,beside 2}'::text[]) key;
BEGIN;
DECLARE calls CURSOR FOR SELECT idem_complete(c, to_jsonb(n)) FROM generate_series(1, 4) n, idem_claim('heap', 'cursor ' || n) c;
FETCH 2 FROM calls;
SAVEPOINT a;
SELECT is((idem_claim('heap', 'cursor 1')).result, '1', 'beside an open cursor');
ROLLBACK TO a;
FETCH 1 FROM calls;
CLOSE calls;
COMMIT;
SELECT is(count(*), 3::bigint, 'which has called three times') FROM idem_record WHERE operation = 'heap' AND key LIKE 'cursor %';

-- Maintenance of the tables changes nothing
VACUUM idempotency_internal.record;
SELECT is((idem_claim('heap', 'schema')).result, '1', 'after VACUUM');
REINDEX TABLE idempotency_internal.record;
SELECT is((idem_claim('heap', 'schema')).result, '1', 'after REINDEX');
VACUUM FULL idempotency_internal.record;
SELECT is((idem_claim('heap', 'schema')).result, '1', 'after VACUUM FULL');
CLUSTER idempotency_internal.record USING record_pkey;
SELECT is((idem_claim('heap', 'schema')).result, '1', 'after CLUSTER');
SELECT is(idem_complete(c), NULL, 'and claims go on') FROM idem_claim('heap', 'after') c;
ANALYZE idempotency_internal.record;

-- Open claims keep the table from being dropped under them
BEGIN;
SELECT verdict FROM idem_claim('heap', 'open');
SELECT is(array_agg(mode ORDER BY mode), '{RowExclusiveLock}', 'a claim keeps its table lock') FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'idempotency_internal.record'::regclass AND mode <> 'AccessShareLock';
ROLLBACK;
BEGIN;
SELECT (idem_status('heap', 'read first')).state, idem_once('heap', 'written then');
SELECT is(array_agg(mode ORDER BY mode), '{AccessShareLock,RowExclusiveLock}', 'so does one that finds the table open for reading') FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'idempotency_internal.record'::regclass;
ROLLBACK;

-- Dropped and made again in one session
DROP FUNCTION pg_temp.shape;
DROP EXTENSION idempotency;
SELECT count(*) FROM pg_namespace WHERE nspname = 'idempotency_internal';
DROP SCHEMA "Regress idem";
DROP ACCESS METHOD regress_other_heap;
CREATE EXTENSION idempotency SCHEMA public;
SELECT is((idem_status('heap', 'schema')).state, 'absent', 'made again: empty');
SELECT is(idem_complete(c, '2'), '2', 'and works') FROM idem_claim('heap', 'schema') c;
SELECT is((idem_claim('heap', 'schema')).result, '2', 'with the new types');
SELECT is(idem_policy('heap')->>'wait', '0', 'and settings');

SELECT * FROM finish();
