-- idem_once and idem_once_many: seen for the first time? C48, C75.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- True exactly once
SELECT is(idem_once('once', 'event-1'), true, 'the first time: true'),
	is(idem_once('once', 'event-1'), false, 'again: false'),
	is(idem_once('once', 'event-1'), false, 'and again: false'),
	is(idem_once('once', 'event-2'), true, 'another key: true'),
	is(idem_once('once2', 'event-1'), true, 'C21: another operation: true'),
	is(idem_once('once', 'event-1', 'other'), true, 'C20: another principal: true');
SELECT is(pg_temp.stored('once', 'event-1'), 's 1', 'on record as succeeded');
SELECT is(pg_temp.shape(idem_status('once', 'event-1')), '- succeeded use_result: who attempt claimed_at finished_at expires_at forget_at', 'says status'),
	is(pg_temp.shape(idem_claim('once', 'event-1')), 'replay succeeded use_result: who attempt claimed_at finished_at expires_at forget_at', 'and a claim'),
	is((SELECT count(*) FROM idem_list(operation => 'once'))::int, 0, 'not listed: it is finished');
SELECT is(idem_once('once', key), true, 'C05: key ' || to_json(key) || ': true') FROM unnest(ARRAY['K', 'k', ' ', '  ', 'k ', E'k\n']) key;

-- C75: rolled back, true again
BEGIN;
SELECT is(idem_once('once', 'undone'), true, 'true'), is(idem_once('once', 'undone'), false, 'false in the same transaction');
ROLLBACK;
SELECT is((idem_status('once', 'undone')).state, 'absent', 'rolled back: absent');
BEGIN;
SELECT is(idem_once('once', 'undone'), true, 'C75: true again');
SAVEPOINT s;
SELECT is(idem_once('once', 'saved'), true, 'true in a savepoint');
SELECT is(idem_once('once', 'undone'), false, 'false for what was done before it');
ROLLBACK TO s;
SELECT is(idem_once('once', 'saved'), true, 'rolled back to it: true again');
SAVEPOINT s;
SELECT is(idem_once('once', 'released'), true, 'true in a savepoint');
RELEASE s;
SELECT is(idem_once('once', 'released'), false, 'released: false');
COMMIT;
SELECT is(idem_once('once', key), false, 'committed: false') FROM unnest('{undone,saved,released}'::text[]) key;
SELECT is((SELECT count(*) FROM idempotency_internal.record WHERE operation = 'once' AND key = 'saved')::int, 1, 'one record');

-- Done earlier in this transaction by other means
BEGIN;
SELECT idem_complete(idem_claim('once', 'completed', lease => '0'));
SELECT is(idem_once('once', 'completed'), false, 'claimed and completed in this transaction: false');
ROLLBACK;

-- Every state: a retryable failure is executed again, an outcome is false, the rest is 55P03
SELECT count(idem_accept('state', 'accepted')), count(idem_claim('state', 'running', lease => '1 h')), count(idem_cancel('state', 'cancelled')) AS n \gset
SELECT idem_unsure(idem_claim('state', 'unknown', lease => '1 h')), idem_complete(idem_claim('state', 'succeeded', '{"n": 1}'), '"done"'), idem_fail(idem_claim('state', 'failed', '{"n": 1}'), '"declined"');
SELECT idem_claim('state', 'retryable', lease => '1 h')::text AS retryable \gset
SELECT idem_fail(:'retryable', '"busy"', true);
SELECT idem_claim('state', 'released', lease => '1 h')::text AS released \gset
SELECT idem_release(:'released');
SELECT throws_ok('SELECT idem_once(''state'', ''' || key || ''')', '55P03', NULL, key || ': 55P03') FROM unnest('{accepted,running,unknown}'::text[]) key;
SELECT is(idem_once('state', key), false, key || ': false') FROM unnest('{succeeded,failed,cancelled}'::text[]) key;
SELECT is(idem_once('state', key), true, key || ': true'), is(idem_once('state', key), false, key || ': then false') FROM unnest('{retryable,released}'::text[]) key;
SELECT is(pg_temp.stored('state', key), 's 2', key || ': its second attempt') FROM unnest('{retryable,released}'::text[]) key;
SELECT throws_ok(format('SELECT idem_complete(%L, ''1'')', permit), 'ID002', NULL, 'the former owner: ID002') FROM unnest(ARRAY[:'retryable', :'released']) permit;
SELECT idem_define('state_retry', '{"on_lease_expiry": "retry"}');
SELECT idem_unsure(idem_claim('state_retry', 'k', lease => '1 h'));
SELECT is(idem_once('state_retry', 'k'), true, 'a lease over under policy retry: true');
SELECT idem_define('state_old', '{"retention": "1 h", "guard": "1 h"}');
SELECT is(idem_once('state_old', 'k'), true, 'true');
SELECT pg_temp.age('state_old', 'k', '90 min');
SELECT throws_ok('SELECT idem_once(''state_old'', ''k'')', 'ID013', NULL, 'past retention, inside guard: ID013');
SELECT pg_temp.age('state_old', 'k', '60 min');
SELECT is(idem_once('state_old', 'k'), true, 'forgotten: true');
SELECT idem_define('state_late', '{"key_format": "uuidv7", "retention": "1 h"}');
SELECT throws_ok('SELECT idem_once(''state_late'', ''019a0000-0000-7000-8000-000000000001'')', 'ID013', NULL, 'a key provably late: ID013'),
	throws_ok('SELECT idem_once(''state_late'', ''k'')', '22023', NULL, 'a key of another format: 22023');
SELECT is(idem_once('state_late', idem_new_key()), true, 'a young one: true');

-- Claims after it: no params were given, so none match
SELECT is((idem_claim('once', 'event-1', '1')).verdict, 'mismatch', 'a claim with params after once: mismatch');

-- Always atomic; waits for nothing of its own
SELECT idem_define('wait', '{"lease": "1 h", "wait": "3 s"}');
SELECT is(idem_once('wait', 'k'), true, 'policy with a lease: done at once');
SELECT is(pg_temp.stored('wait', 'k'), 's 1', 'and on record as done');
BEGIN;
SELECT is((idem_claim('wait', 'open', lease => '0')).verdict, 'execute', 'claimed in this transaction');
SELECT clock_timestamp() AS before \gset
SELECT throws_ok('SELECT idem_once(''wait'', ''open'')', '55P03', NULL, 'once: 55P03'), throws_ok('SELECT idem_once_many(''wait'', ''{open}'')', '55P03', NULL, 'once_many: 55P03');
SELECT ok(clock_timestamp() - :'before' < '2 s', 'without waiting for oneself');
ROLLBACK;
BEGIN;
SELECT is((idem_claim('wait', 'leased')).verdict, 'execute', 'leased in this transaction'), is((idem_accept('wait', 'accepted')).verdict, 'execute', 'accepted in this transaction');
SELECT clock_timestamp() AS before \gset
SELECT throws_ok('SELECT idem_once(''wait'', ''leased'')', '55P03', NULL, 'leased: 55P03');
SELECT ok(clock_timestamp() - :'before' < '2 s', 'without waiting for oneself');
SELECT clock_timestamp() AS before \gset
SELECT throws_ok('SELECT idem_once(''wait'', ''accepted'')', '55P03', NULL, 'accepted: 55P03');
SELECT ok(clock_timestamp() - :'before' < '2 s', 'without waiting for oneself');
ROLLBACK;
SELECT idem_define('wait', '{"wait": "300 ms"}');
SELECT count(idem_claim('wait', 'running')) AS n \gset
SELECT clock_timestamp() AS before \gset
SELECT throws_ok('SELECT idem_once(''wait'', ''running'')', '55P03', NULL, 'a running lease: 55P03');
SELECT ok(clock_timestamp() - :'before' >= '300 ms', 'after the wait of the policy');
SELECT count(idem_claim('wait', 'short', lease => '100 ms')) AS n \gset
SELECT throws_ok('SELECT idem_once(''wait'', ''short'')', '55P03', NULL, 'a lease that ends meanwhile: unknown, 55P03');

-- Arguments
SELECT throws_ok('SELECT idem_once(' || arguments || ')', '22023', NULL, 'C75: once(' || arguments || '): 22023')
  FROM unnest(ARRAY['''once'', NULL', '''once'', ''''', 'NULL, ''k''', ''''', ''k''', '''once'', repeat(''k'', 256)', '''once'', ''k'', ''''']) arguments;
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_once(''once'', ''k'')', '25006', NULL, 'once in a read-only transaction: 25006');
ROLLBACK;
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_once_many(''once'', ''{k}'')', '25006', NULL, 'once_many in a read-only transaction: 25006');
ROLLBACK;

-- Batches
CREATE FUNCTION pg_temp.many(keys text[], operation text DEFAULT 'many') RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(m, ' ' ORDER BY n) FROM idem_once_many(operation, keys) WITH ORDINALITY x (m, n) $$;
SELECT is(pg_temp.many('{b,a,c}'), 'b a c', 'new keys, in the order given'), is(pg_temp.many('{c,a,b}'), NULL, 'C48: the same in another order: none'),
	is(pg_temp.many('{d,a,e,b,f}'), 'd e f', 'only those not seen'), is(pg_temp.many('{g,g}'), 'g', 'C48: twice in the batch: once'),
	is(pg_temp.many('{i,h,i,a,h,j,i}'), 'i h j', 'repeated: where they came first'), is(pg_temp.many('{}'), NULL, 'an empty batch: none'),
	is(pg_temp.many(ARRAY['K', 'k', 'k ']), 'K k k ', 'C05: keys as they are');
SELECT is(idem_once('many', key), false, key || ' was seen') FROM unnest('{a,g,j}'::text[]) key;
SELECT is(ARRAY(SELECT idem_once_many('many', '{l,m}')), '{l,m}'::text[], 'in a select list'),
	is((SELECT string_agg(m, ' ') FROM idem_once_many('many', '{l,m}', 'other') m), 'l m', 'C20: of another principal'),
	is(pg_temp.many('[5:6]={n,o}'), 'n o', 'an array that begins elsewhere'), is(pg_temp.many('{{p,q},{r,p}}'), 'p q r', 'or has more dimensions');
CREATE TABLE public.inbox (id text PRIMARY KEY);
WITH new AS (SELECT m FROM idem_once_many('many', '{s,t,s,a}') m) INSERT INTO inbox SELECT m FROM new;
SELECT is((SELECT string_agg(id, ' ' ORDER BY id) FROM inbox), 's t', 'inserting what is new');
DROP TABLE public.inbox;
BEGIN;
SELECT is(pg_temp.many('{u,v}'), 'u v', 'a batch'), is(pg_temp.many('{v,w,u}'), 'w', 'and another in the same transaction');
ROLLBACK;
SELECT is(pg_temp.many('{u,v,w}'), 'u v w', 'C75: rolled back: seen for the first time again');
SELECT throws_ok('SELECT idem_once_many(''many'', ' || keys || ')', '22023', NULL, 'keys ' || keys || ': 22023')
  FROM unnest(ARRAY['NULL', '''{NULL}''', '''{x,NULL}''', '''{x,""}''', 'ARRAY[''x'', repeat(''k'', 256)]']) keys;
SELECT throws_ok('SELECT idem_once_many(NULL, ''{x}'')', '22023', NULL, 'operation NULL: 22023'), throws_ok('SELECT idem_once_many(''many'', ''{x}'', '''')', '22023', NULL, 'principal empty: 22023');
SELECT is((idem_status('many', 'x')).state, 'absent', 'nothing on record of a batch that was refused');
SELECT throws_ok('SELECT idem_once_many(''state'', ''{new,running,other}'')', '55P03', NULL, 'one undecided: 55P03 for the batch');
SELECT is((idem_status('state', 'new')).state, 'absent', 'and nothing of it on record');
SELECT throws_ok('SELECT idem_once_many(''state_late'', ARRAY[idem_new_key(), ''019a0000-0000-7000-8000-000000000001''])', 'ID013', NULL, 'one late: ID013 for the batch');
SELECT is(ARRAY(SELECT idem_once_many('state', '{retryable2,succeeded,failed,cancelled}')), '{retryable2}'::text[], 'outcomes are not new');
CREATE TEMP TABLE made AS SELECT i, CASE WHEN i % 2 = 0 THEN idem_new_key() ELSE 'key ' || i END AS key FROM generate_series(1, 3000) i;
SELECT is(ARRAY(SELECT idem_once_many('many', (SELECT array_agg(key ORDER BY i) FROM made))), (SELECT array_agg(key ORDER BY i) FROM made), '3000 keys, with and without time: all new, in the order given');
SELECT is((SELECT count(*) FROM idem_once_many('many', (SELECT array_agg(key ORDER BY random()) FROM made)))::int, 0, 'shuffled: none new');
BEGIN;
SELECT count(*) AS n FROM idem_once_many('many', ARRAY(SELECT 'bounded ' || i FROM generate_series(1, 5000) i)) \gset
SELECT ok(count(*) < 50, 'a batch of 5000 holds few locks') FROM pg_locks WHERE pid = pg_backend_pid();
SELECT ok(array_agg(id ORDER BY fence) = array_agg(id ORDER BY id), 'and claims them in the order of ids, so that two cannot wait for each other') FROM idempotency_internal.record WHERE key LIKE 'bounded %';
ROLLBACK;

SELECT finish();
