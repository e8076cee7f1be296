-- Records on a sharded cluster: beside the rows of their tenant (place.c).  What
-- Citus says is said by test/lib/cluster.sql; with it, test/citus runs.
\set ECHO none
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_idem_place;
CREATE DATABASE regress_idem_place;
\set home :DBNAME
\c regress_idem_place
SET client_min_messages = warning;
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\set cluster :abs_srcdir '/lib/cluster.sql'
\i :suite

-- Without Citus
SELECT is(state || ' ' || message, '0A000 ' || f || '() needs Citus, which is not in this database', 'C01: no Citus: ' || f)
  FROM (VALUES ('idem_distribute', '''pg_class'''), ('idem_everywhere', '''idem_grant(NULL)'''), ('idem_copy_settings', '')) v (f, argument), pg_temp.raised(format('SELECT %s(%s)', f, argument));
SELECT is((pg_temp.raised('SELECT idem_distribute(NULL)')).state, '22023', 'C01: no table');

\i :cluster
-- Four shards: a to g and 0 to 9 are here, h to m and n to z are on node 2
CREATE FUNCTION pg_temp.distribute(t regclass, c text, here text[], there text[]) RETURNS void LANGUAGE sql AS $$
	INSERT INTO pg_dist_partition VALUES (t, 'h', c, 's');
	WITH s AS (INSERT INTO pg_dist_shard SELECT t, nextval('stand_in_shard'), left(r, 1), right(r, 1) FROM unnest(here) r RETURNING shardid)
	INSERT INTO pg_dist_placement SELECT shardid, 1, 0 FROM s;
	WITH s AS (INSERT INTO pg_dist_shard SELECT t, nextval('stand_in_shard'), left(r, 1), right(r, 1) FROM unnest(there) r RETURNING shardid)
	INSERT INTO pg_dist_placement SELECT shardid, 1, 2 FROM s;
$$;
CREATE FUNCTION pg_temp.shard(t text, letter text) RETURNS bigint LANGUAGE sql AS $$ SELECT get_shard_id_for_distribution_column(('idempotency_internal.' || t)::regclass, letter) $$;
INSERT INTO pg_dist_node VALUES ('here', 5432, 0, true, 'primary'), ('there', 5432, 2, true, 'primary');

-- Records of one server, which will move
SELECT idem_complete(idem_claim('pay', 'k' || n, '1', p), '1') FROM generate_series(1, 3) n, unnest('{acme,zoe}'::text[]) p \g /dev/null
SELECT idem_complete(idem_claim('pay', idem_new_key(), '1', 'acme'), '2') FROM generate_series(1, 3) \g /dev/null
SELECT verdict FROM idem_accept('render', 'r1', '1', 'acme') \g /dev/null

-- Refusals
SELECT set_config('test.result', 'f', false) \g /dev/null
CREATE TABLE public.reference (id int);
CREATE TABLE public.orders (tenant text, id int);
CREATE TABLE public.by_varchar (tenant varchar(20));
CREATE TABLE public.by_number (tenant int);
CREATE TABLE public.copied (tenant text);
INSERT INTO pg_dist_partition VALUES ('reference', 'n', NULL, 't'), ('copied', 'h', 'tenant', 'c');
SELECT pg_temp.distribute('orders', 'tenant', '{ag,09}', '{hm,nz}'), pg_temp.distribute('by_varchar', 'tenant', '{az}', '{}'), pg_temp.distribute('by_number', 'tenant', '{09}', '{}') \g /dev/null
SELECT is(state || ' ' || message, expected, 'C02: ' || t) FROM (VALUES
	('pg_class', '42809 table pg_class is not distributed by a tenant column'), ('reference', '42809 table public.reference is not distributed by a tenant column'),
	('copied', '0A000 shards of table public.copied are kept on several nodes'), ('by_varchar', '0A000 column "tenant" of table public.by_varchar is of type varchar'),
	('by_number', '22P02 invalid input syntax for type integer: "acme"')) v (t, expected), pg_temp.raised(format('SELECT idem_distribute(%L)', t));
SELECT set_config('test.result', 't', false) \g /dev/null
SELECT is(state || ' ' || message, '55000 node there:5432 has records of its own', 'C02: a worker node has records') FROM pg_temp.raised('SELECT idem_distribute(''orders'')');
UPDATE pg_dist_node SET isactive = groupid = 0;
SELECT is(state || ' ' || message, '55000 node there:5432 could not be asked for its records: t', 'C02: a worker node cannot be asked') FROM pg_temp.raised('SELECT idem_distribute(''orders'')');
UPDATE pg_dist_node SET isactive = true;
SELECT set_config('test.result', 'f', false) \g /dev/null
UPDATE pg_dist_local_group SET groupid = 2;
SELECT is(state || ' ' || message, '55000 ' || f || '() must be called on the coordinator', 'C02: on a worker node: ' || f)
  FROM (VALUES ('idem_distribute', '''pg_class'''), ('idem_everywhere', '''idem_grant(NULL)'''), ('idem_copy_settings', '')) v (f, argument), pg_temp.raised(format('SELECT %s(%s)', f, argument));
UPDATE pg_dist_local_group SET groupid = 0;
SELECT is((idem_status('pay', 'k1')).state, 'succeeded', 'C02: what was refused changed nothing');

-- A dump that was restored
CREATE TABLE idempotency_internal.placed_record (LIKE idempotency_internal.record, place text COLLATE "C" NOT NULL, PRIMARY KEY (id, place));
CREATE TABLE idempotency_internal.placed_work (LIKE idempotency_internal.open_work, place text COLLATE "C" NOT NULL, PRIMARY KEY (id, place));
INSERT INTO idempotency_internal.placed_record SELECT r.*, principal FROM idempotency_internal.record r;
DO $$ DECLARE t text; BEGIN FOR t IN SELECT idempotency_internal.tables_of_records() LOOP
	IF t <> 'idempotency_internal.record' THEN EXECUTE format('INSERT INTO idempotency_internal.placed_record SELECT r.*, principal FROM %s r', t); END IF;
	EXECUTE 'DELETE FROM ' || t;
END LOOP; END $$;
INSERT INTO idempotency_internal.placed_work SELECT w.*, principal FROM idempotency_internal.open_work w;
DELETE FROM idempotency_internal.open_work;
SELECT is(r.state || ' ' || r.message, '55000 table "idempotency_internal.placed_record" is not distributed', 'C03: with Citus: ' || q) FROM (VALUES ('SELECT idem_status(''pay'', ''k1'')'), ('SELECT idem_claim(''pay'', ''new'')'), ('SELECT idem_once(''pay'', ''new'')')) v (q), pg_temp.raised(q) r;
ALTER TABLE pg_dist_local_group RENAME TO pg_dist_local_gone;
SELECT is(r.state || ' ' || r.message, '55000 table "idempotency_internal.placed_record" is not distributed', 'C03: without: ' || q) FROM (VALUES ('SELECT idem_status(''pay'', ''k1'')'), ('SELECT idem_start_next(''render'', 1, ''1 h'')')) v (q), pg_temp.raised(q) r;
SELECT is(status || ' ' || advice, 'fail SELECT idempotency_internal.gather_placed().', 'C03: the doctor says so') FROM idem_doctor() WHERE item = 'nodes';
ALTER TABLE pg_dist_partition RENAME TO pg_dist_partition_gone;
CREATE TEMP TABLE pg_dist_local_group AS SELECT 0 AS groupid;
CREATE TEMP TABLE pg_dist_partition AS SELECT 'idempotency_internal.placed_record'::regclass AS logicalrelid;
SELECT is(r.state || ' ' || r.message, '55000 table "idempotency_internal.placed_record" is not distributed', 'C03: nor is the caller asked, in pg_temp') FROM pg_temp.raised('SELECT idem_status(''pay'', ''k1'')') r;
DROP TABLE pg_temp.pg_dist_local_group, pg_temp.pg_dist_partition;
ALTER TABLE pg_dist_partition_gone RENAME TO pg_dist_partition;
ALTER TABLE pg_dist_local_gone RENAME TO pg_dist_local_group;
SELECT is((pg_temp.raised('SELECT idem_distribute(''orders'')')).state, '55000', 'C03: nor can it be distributed as it is');
SELECT is((regexp_match(hint, 'run (.*)\.'))[1], 'SELECT idempotency_internal.gather_placed()', 'C03: what to do') FROM pg_temp.raised('SELECT idem_status(''pay'', ''k1'')');
SELECT is(idempotency_internal.gather_placed(), 10::bigint, 'C03: all records are gathered');
SELECT is((SELECT string_agg(key, ' ' ORDER BY key) FROM idem_list(operation => 'render')), 'r1', 'C03: and the work list');
SELECT is((SELECT count(*) FROM idempotency_internal.every_record r, idem_status(r.operation, r.key, r.principal) s WHERE s.state = 'succeeded')::int, 9, 'C03: each in the table of its id');

-- Distributed
SELECT idem_distribute('orders') \g /dev/null
SELECT is(string_agg(attname || ' ' || format_type(atttypid, atttypmod), ' ' ORDER BY attnum), 'id uuid place text', 'C04: the key of the table') FROM pg_attribute WHERE attrelid = 'idempotency_internal.placed_record_pkey'::regclass;
SELECT is((SELECT count(*) FROM idempotency_internal.record)::int, 0, 'C04: no record is left');
SELECT is((pg_temp.raised('SELECT idem_distribute(''orders'')')).message, 'records are distributed already', 'C04: once only');
SELECT is(array_agg(item || ' ' || status), NULL, 'C04: the doctor finds nothing wrong') FROM idem_doctor() WHERE status = 'fail';
SELECT is((SELECT array_agg(i) FROM (SELECT regexp_replace(indexdef, '.* USING', '') FROM pg_indexes WHERE tablename = 'open_work' AND indexname !~ 'pkey' ORDER BY 1) v (i)),
	(SELECT array_agg(i) FROM (SELECT regexp_replace(indexdef, '.* USING', '') FROM pg_indexes WHERE tablename = 'placed_work' AND indexname !~ 'pkey' ORDER BY 1) v (i)), 'C04: indexes as they were');
SELECT is(verdict::text || ' ' || result, 'replay ' || r, 'C04: replayed: ' || k) FROM (VALUES ('k1', '1'), ('k3', '1')) v (k, r), idem_claim('pay', k, '1');

-- A worker node, whose tables are there; so are those of this one, as if just moved away
UPDATE pg_dist_local_group SET groupid = 2;
SELECT is((SELECT verdict::text || result FROM idem_claim('pay', 'k1', '1', 'zoe')), 'replay1', 'C05: on a worker node claims are made');
SELECT is((pg_temp.raised('SELECT idem_status(''pay'', ''k1'')')).state, '40001', 'C05: a table that is there does not make it so: it was moved away');
UPDATE pg_dist_local_group SET groupid = 0;
SELECT format('DROP TABLE %s_%s', logicalrelid, shardid) FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) WHERE groupid = 2 AND logicalrelid::text ~ 'placed' \gexec

-- Here and elsewhere
SELECT idem_complete(idem_claim('pay', 'k4', '1'), '4') \g /dev/null
SELECT is((SELECT verdict::text || result FROM idem_claim('pay', 'k4', '1')), 'replay4', 'C06: executed once');
SELECT is((SELECT verdict::text || attempt FROM idem_claim('pay', 'k5', principal => '5th', lease => '1 h')), 'execute1', 'C06: another shard that is here');
SELECT is(r.state || ' ' || r.message, '55000 the records of principal "zoe" are on another node', 'C06: elsewhere: ' || q) FROM (VALUES
	('SELECT idem_claim(''pay'', ''k1'', principal => ''zoe'')'), ('SELECT idem_status(''pay'', ''k1'', ''zoe'')'), ('SELECT idem_once(''pay'', ''k1'', ''zoe'')'), ('SELECT idem_cancel(''pay'', ''k1'', ''zoe'')'),
	('SELECT idem_resolve(''pay'', ''k1'', ''failed'', principal => ''zoe'')'), ('SELECT idem_list(''zoe'')')) v (q), pg_temp.raised(q) r;
SELECT matches((pg_temp.raised('SELECT idem_status(''pay'', ''k1'', ''zoe'')')).hint, 'force_delegation := true', 'C06: with the cure');
SELECT is((pg_temp.raised('SELECT idem_status(''pay'', ''k1'', ''_'')')).state, '55000', 'C06: no shard has it');
UPDATE pg_dist_placement SET groupid = 0 WHERE shardid = pg_temp.shard('placed_record', 'z');
SELECT is(r.state || regexp_replace(r.message, '\d+', 'N'), '55000table "idempotency_internal.placed_record_N" of a shard does not exist', 'C06: a shard that has lost its table') FROM pg_temp.raised('SELECT idem_status(''pay'', ''k1'', ''zoe'')') r;
UPDATE pg_dist_placement SET groupid = 2 WHERE shardid = pg_temp.shard('placed_record', 'z');

-- Savepoints: what was found is forgotten with its lock
CREATE FUNCTION pg_temp.locks() RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND mode = 'ShareLock' $$;
BEGIN;
SELECT state FROM idem_status('pay', 'k4') \g /dev/null
SELECT is(pg_temp.locks(), 1::bigint, 'C07: locked to the end of the transaction');
SAVEPOINT s;
SELECT state FROM idem_status('pay', 'k5', '5th') \g /dev/null
SELECT is(pg_temp.locks(), 2::bigint, 'C07: and another');
ROLLBACK TO s;
SELECT is(pg_temp.locks(), 1::bigint, 'C07: not after a rollback to a savepoint');
SELECT state FROM idem_status('pay', 'k5', '5th') \g /dev/null
SELECT is(pg_temp.locks(), 2::bigint, 'C07: asked again');
SAVEPOINT t;
SELECT state FROM idem_status('pay', 'k6', '5th') \g /dev/null
RELEASE t;
COMMIT;
SELECT is(pg_temp.locks(), 0::bigint, 'C07: until its end');

-- The work list, of one principal and of all that are here
SELECT verdict FROM idem_accept('render', 'r2', '1', '5th') \g /dev/null
SELECT is((SELECT string_agg(principal || key, ' ' ORDER BY key) FROM idem_list('acme')), 'acmer1', 'C08: list of a principal');
SET idempotency.principal = '';
SELECT is((SELECT string_agg(principal || key, ' ' ORDER BY key) FROM idem_list()), '5thk5 acmer1 5thr2', 'C08: of all');
SELECT is((SELECT string_agg(principal || key, ' ' ORDER BY key) FROM idem_open), '5thk5 acmer1 5thr2', 'C08: the view of them');
SELECT is((SELECT string_agg(principal || key, ' ' ORDER BY key) FROM idem_start_next('render', 5, '1 h', 'w')), 'acmer1 5thr2', 'C08: started, of all shards');
SELECT is((SELECT count(*) FROM idem_reconcile(NULL, 5, '1 h'))::int, 0, 'C08: nothing is unknown yet');
SELECT idem_expire_lease('render', 'r1', 'acme'), idem_expire_lease('pay', 'k5', '5th') \g /dev/null
SELECT is((SELECT string_agg(principal || key, ' ' ORDER BY key) FROM idem_reconcile(NULL, 5, '1 h')), '5thk5 acmer1', 'C08: unknown, of all shards and operations');
SELECT is((SELECT string_agg(key, ' ') FROM idem_reconcile('render', 5, '1 h')), NULL, 'C08: each to one reconciler');
SELECT is((idem_resolve('render', 'r1', 'succeeded', '"done"', 'acme')).state, 'succeeded', 'C08: resolved');
SELECT is((SELECT count(*) FROM idem_unresolved)::int, 0, 'C08: none is given up');
SELECT is((SELECT string_agg(key, ' ' ORDER BY key) FROM idem_record WHERE operation = 'render'), 'r1 r2', 'C08: the view of records');
SET idempotency.principal = 'acme';

-- One of each of what else writes
SELECT is((SELECT idem_once('once', 'o1')::text || idem_once('once', 'o1')), 'truefalse', 'C09: once');
SELECT idem_fail(idem_claim('pay', 'f1', '1'), '"no"', true) \g /dev/null
SELECT is((SELECT verdict::text || attempt FROM idem_claim('pay', 'f1', '1', lease => '1 h')), 'execute2', 'C09: an attempt after a failure');
SELECT idem_release(idem_claim('pay', 'f3', '1', lease => '1 h')) \g /dev/null
SELECT is((SELECT state::text FROM idem_status('pay', 'f3')), 'absent', 'C09: released');
SELECT is((SELECT state::text FROM idem_cancel('pay', 'f4')), 'failed', 'C09: cancelled');
BEGIN;
SELECT verdict FROM idem_claim('pay', 'p1', '1') \g /dev/null
SELECT is((pg_temp.raised('SET CONSTRAINTS ALL IMMEDIATE')).state, 'ID003', 'C09: left open');
ROLLBACK;

-- Another type of tenant is shown below; a table of a shard that is not what it was
SELECT format('ALTER TABLE idempotency_internal.placed_record_%s', pg_temp.shard('placed_record', 'a')) AS alter \gset
SELECT is(r.state || ' ' || regexp_replace(r.message, '_\d+', '_N'), expected, 'C10: ' || what) FROM (VALUES
	('a column more', ' ADD COLUMN x int', '42809 table "idempotency_internal.placed_record_N" is not the table the extension made: it has a column "x"'),
	('a column less', ' DROP COLUMN place', '42809 table "idempotency_internal.placed_record_N" is not the table the extension made: its columns differ'),
	('not logged', ' SET UNLOGGED', '42809 table "idempotency_internal.placed_record_N" is not the table the extension made: a crash would empty it')) v (what, ddl, expected),
	pg_temp.raised('DO $d$ BEGIN EXECUTE ''' || :'alter' || ddl || '''; PERFORM idem_status(''pay'', ''k1''); END $d$') r;
SELECT is(r.state || ' ' || regexp_replace(r.message, '_\d+', '_N') || regexp_replace(r.hint, '_\d+', '_N', 'g'), expected, 'C10: the key') FROM (VALUES
	(' ADD PRIMARY KEY (id)', '42809 table "idempotency_internal.placed_record_N" is not the table the extension made: its primary key is not a valid, immediate one on the first column and the lastALTER TABLE idempotency_internal.placed_record_N DROP CONSTRAINT placed_record_N_pkey, ADD PRIMARY KEY (id, place).'),
	('', '42809 table "idempotency_internal.placed_record_N" is not the table the extension made: it has no usable primary keyALTER TABLE idempotency_internal.placed_record_N ADD PRIMARY KEY (id, place).')) v (ddl, expected),
	pg_temp.raised('DO $d$ BEGIN EXECUTE ''' || :'alter' || format(' DROP CONSTRAINT placed_record_%s_pkey', pg_temp.shard('placed_record', 'a')) || '''; ' ||
		CASE WHEN ddl <> '' THEN 'EXECUTE ''' || :'alter' || ddl || '''; ' ELSE '' END || 'PERFORM idem_status(''pay'', ''k1''); END $d$') r;
:alter ADD COLUMN gone int;
:alter DROP COLUMN gone;
SELECT idem_complete(idem_claim('pay', 'k7', '1'), '7') \g /dev/null
SELECT is((SELECT verdict::text || result FROM idem_claim('pay', 'k7', '1')), 'replay7', 'C10: a column that was added and dropped');

-- Purge, shard by shard; their numbers follow one another
SELECT idem_complete(idem_claim('pay', 'k8', '1', '5th'), '8') \g /dev/null
SELECT format('UPDATE idempotency_internal.placed_record_%s SET forget_at = now() - interval ''1 s'', expires_at = now() - interval ''1 h''', s) FROM unnest(ARRAY[pg_temp.shard('placed_record', 'a'), pg_temp.shard('placed_record', '5')]) s \gexec
SELECT count(*) AS forgotten FROM idempotency_internal.every_record WHERE state IN ('s', 'f', 'c', 't', 'r') \gset
SELECT ok(:forgotten > 8, 'C11: there is something to purge');
SELECT is(idem_purge(2) + idem_purge(2) + 0, 4::bigint, 'C11: in batches');
SELECT idem_purge(100) = :forgotten - 4 AS purged \gset
SELECT ok(:'purged', 'C11: of all shards that are here');
SELECT is(idem_purge(), 0::bigint, 'C11: and no more');
SELECT is((SELECT count(*) FROM idempotency_internal.every_record WHERE state IN ('s', 'f', 'c', 't', 'r'))::int, 0, 'C11: none is left');

-- Events ask for the record of their operation
SELECT idem_destination_define('hook', '{"retention": "0"}') \g /dev/null
SELECT idem_emit('hook', '{}', claim => c) FROM idem_claim('emit', 'e2', '1', lease => '1 h', owner => 'o') c \g /dev/null
SELECT idem_ack(event_id, fence) FROM idem_take('hook', 1, '1 h') \g /dev/null
SELECT idem_purge() \g /dev/null
SELECT is((SELECT count(*) FROM idempotency_internal.outbox)::int, 1, 'C12: kept while an attempt may emit it again');
SELECT idem_complete_key('emit', 'e2', c.fence) FROM idem_claim('emit', 'e2', '1', lease => '1 h', owner => 'o') c \g /dev/null
SELECT idem_purge() \g /dev/null
SELECT is((SELECT count(*) FROM idempotency_internal.outbox)::int, 0, 'C12: and no longer');

-- Settings on all nodes
SELECT is(r.state, '22023', 'C13: not ' || q) FROM unnest(ARRAY['idem_purge()', 'idem_define(''a'', ''{}''), pg_sleep(1)', 'idem_define(''a'', (SELECT ''{}''::jsonb))', 'idem_define(''a'', ''{}''::evil.json)', 'pg_sleep(1)', 'idem_run(''a'', ''b'', ''1'', ''c(jsonb)'')',
	'idem_define(E''a\'', ''{}'')', 'idem_undefine(''a''''); SELECT 1', '{"policy": []}', '', 'idem_define("a")']) q, pg_temp.raised(format('SELECT idem_everywhere(%L)', q)) r;
SELECT idem_everywhere($$idem_define('pay', '{"retention": "7 days"}')$$) \g /dev/null
SELECT is((idem_policy('pay')->>'retention')::interval, '7 days', 'C13: defined');
CREATE ROLE regress_place_app;
SELECT idem_everywhere($$ public.idem_grant( role => 'regress_place_app', tier => 'worker' ); $$) \g /dev/null
SELECT ok(has_function_privilege('regress_place_app', 'idem_start_next(text, integer, interval, text)', 'EXECUTE'), 'C13: granted, with named arguments');
SELECT is((pg_temp.raised($$SELECT idem_everywhere('idem_define(''pay'', ''{"no": 1}'')')$$)).state, '22023', 'C13: what the call raises is raised');
SELECT is((SELECT count(*) FROM idempotency_internal.placed_call)::int, 0, 'C13: nothing stays');
INSERT INTO pg_dist_node VALUES ('new', 5432, 3, true, 'primary');
SELECT is(r.message || ': ' || r.hint, 'node new:5432 does not have the reference tables yet: SELECT replicate_reference_tables(), then SELECT idem_copy_settings().', 'C13: a new node') FROM pg_temp.raised($$SELECT idem_everywhere('idem_undefine(''pay'')')$$) r;
DELETE FROM pg_dist_node WHERE groupid = 3;
DELETE FROM pg_dist_node WHERE groupid = 0;
DELETE FROM pg_dist_placement WHERE groupid = 0 AND shardid IN (SELECT shardid FROM pg_dist_shard WHERE logicalrelid = 'idempotency_internal.placed_call'::regclass);
SELECT idem_everywhere($$idem_undefine('pay')$$) \g /dev/null
SELECT is(idem_policy('pay')->>'retention', idem_policy('other')->>'retention', 'C13: and on a coordinator that has no reference tables');
-- copied: as if this were another node
SELECT idem_define('copied', '{"retention": "3 days", "ignore": ["/trace"]}'), idem_destination_define('hook', '{"max_attempts": 3}') \g /dev/null
SELECT idem_copy_settings() \g /dev/null
SELECT jsonb_build_object('from', 2, 'policy', (SELECT jsonb_agg(p) FROM idempotency_internal.policy p), 'normalisation', (SELECT jsonb_agg(n) FROM idempotency_internal.normalisation n),
	'destination', (SELECT jsonb_agg(d) FROM idempotency_internal.destination d), 'granted', (SELECT jsonb_agg(g) FROM idempotency_internal.granted() g)) AS document \gset
SELECT idem_undefine('copied'), idem_define('own', '{"retention": "1 day"}'), idem_destination_undefine('hook'), idem_revoke('regress_place_app', 'worker') \g /dev/null
SELECT is(idem_policy('copied')->'ignore', '[]', 'C14: gone');
SELECT idempotency_internal.apply_settings(:'document') \g /dev/null
SELECT is(idem_policy('copied')->'ignore', '["/trace"]', 'C14: copied, and seen at once');
SELECT is((SELECT string_agg(operation, ' ' ORDER BY operation) FROM idempotency_internal.policy), 'copied pay', 'C14: what the node had of its own is gone');
SELECT is(idem_destination_policy('hook')->>'max_attempts', '3', 'C14: destinations');
SELECT ok(has_function_privilege('regress_place_app', 'idem_start_next(text, integer, interval, text)', 'EXECUTE') AND has_table_privilege('regress_place_app', 'idem_unresolved', 'SELECT'), 'C14: rights');

-- As those that have been granted it
SELECT idem_grant('regress_place_app', 'admin') \g /dev/null
SELECT idem_accept('render', 'r9', '1', 'acme') \g /dev/null
GRANT USAGE ON SCHEMA tap TO regress_place_app;
SET ROLE regress_place_app;
SELECT is((SELECT verdict::text FROM idem_claim('pay', 'as app', '1', lease => '1 h')), 'execute', 'C15: an application finds the shard');
SELECT is((SELECT string_agg(key, ' ') FROM idem_open WHERE operation = 'render' AND state = 'accepted'), 'r9', 'C15: a monitor sees what is in it');
SELECT is((pg_temp.raised('SELECT * FROM idempotency_internal.placed_rows()')).state, '42501', 'C15: and nothing by itself');
RESET ROLE;
DROP OWNED BY regress_place_app;
DROP ROLE regress_place_app;

-- A tenant that is a number
DROP TABLE idempotency_internal.placed_record, idempotency_internal.placed_work CASCADE;
SELECT format('DROP TABLE %s', string_agg(oid::regclass::text, ', ')) FROM pg_class WHERE relname ~ '^placed_(record|work)_\d+$' \gexec
DELETE FROM pg_dist_shard WHERE NOT logicalrelid IN (SELECT oid FROM pg_class);
DELETE FROM pg_dist_partition WHERE NOT logicalrelid IN (SELECT oid FROM pg_class);
SELECT is((SELECT verdict::text FROM idem_claim('pay', 'plain', '1', lease => '1 h')), 'execute', 'C16: the tables are gone: one server again');
DELETE FROM idempotency_internal.record;
DELETE FROM idempotency_internal.open_work;
SELECT idem_distribute('by_number') \g /dev/null
SELECT idem_complete(idem_claim('pay', 'k1', '1', '42'), '1') \g /dev/null
SELECT is((SELECT verdict::text || result FROM idem_claim('pay', 'k1', '1', '42')), 'replay1', 'C16: by number');
SELECT is((pg_temp.raised('SELECT idem_status(''pay'', ''k1'')')).message, 'invalid input syntax for type integer: "acme"', 'C16: a principal that is none');
SELECT format('SELECT is(array_agg(place), ''{42}''::int[], ''C16: as it is in the tenant column'') FROM idempotency_internal.placed_record_%s', get_shard_id_for_distribution_column('idempotency_internal.placed_record'::regclass, 42)) \gexec
SELECT is((pg_temp.raised('DROP EXTENSION idempotency')).state, '2BP01', 'C16: not dropped with records in a cluster');

SELECT * FROM finish();
\c :home
SET client_min_messages = warning;
DROP DATABASE regress_idem_place;
