-- Very many claims in one transaction: no subtransaction ids, bounded use of the
-- lock table, and each key is still judged on its own (C46).
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
CREATE FUNCTION pg_temp.locks() RETURNS int LANGUAGE sql AS $$
SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;
CREATE FUNCTION pg_temp.rows(keys text) RETURNS int LANGUAGE sql AS $$
SELECT count(*)::int FROM idempotency_internal.record WHERE operation = 'batch' AND key LIKE keys
$$;
CREATE TEMP TABLE held (key text, c text);
CREATE FUNCTION pg_temp.open(name text, n int) RETURNS bigint LANGUAGE sql AS $$
WITH i AS (INSERT INTO held SELECT c.key, c::text FROM generate_series(1, n) g, idem_claim('batch', name || g) c WHERE c.verdict = 'execute' RETURNING 1) SELECT count(*) FROM i
$$;

-- C46: 200 claims open use no subtransaction ids
BEGIN;
SELECT pg_current_xact_id() AS top \gset
SELECT is(count(idem_claim('batch', 'xid ' || n)), 200::bigint, 'C46: 200 claims open') FROM generate_series(1, 200) n;
SELECT is(pg_current_xact_id()::text, :'top'::text, 'the same transaction id');
SELECT cmp_ok(pg_snapshot_xmax(pg_current_snapshot())::text::bigint - :'top'::text::bigint, '<', 50::bigint, 'C46: and no subtransaction ids');
ROLLBACK;
SELECT is(pg_temp.locks(), 0, 'no lock outlives them'), is(pg_temp.rows('xid %'), 0, 'no row does');
BEGIN;
SELECT idem_claim('batch', 'no xid')::text AS c, pg_current_xact_id_if_assigned() IS NULL AS no_xid \gset
ROLLBACK;
SELECT ok(:'no_xid', 'a claim alone takes no transaction id at all');

-- A few are locks, many are rows
BEGIN;
SELECT is(pg_temp.open('few ', 20), 20::bigint, '20 claims'), is(pg_temp.locks(), 20, 'are 20 locks'), is(pg_temp.rows('few %'), 0, 'and no rows');
SELECT is(pg_temp.open('many ', 1000), 1000::bigint, '1000 more');
SELECT is(pg_temp.locks(), 32, 'are not as many locks'), cmp_ok(pg_temp.rows('many %') + pg_temp.locks(), '=', 1020, 'but each is a lock or a row');
SELECT is((SELECT count(*) FROM held h, idem_claim('batch', h.key) a WHERE a.verdict = 'in_progress' AND a.holder = pg_backend_pid()), 1020::bigint, 'all are in progress');
SELECT is((SELECT count(*) FROM held h, idem_status('batch', h.key) a WHERE a.state = 'processing' AND a.holder = pg_backend_pid()), 1020::bigint, 'status says so too');
SELECT is(count(idem_complete(c::idem_answer, to_jsonb(key))), 1020::bigint, 'all are completed') FROM held;
SELECT is(pg_temp.locks(), 0, 'locks are given back as rows stand'), is(pg_temp.rows('%'), 1020, 'and all rows are there');
SELECT is(pg_temp.open('after ', 10), 10::bigint, 'more claims after that'), is(pg_temp.locks(), 10, 'are locks again');
SELECT count(idem_release(c::idem_answer)) FROM held WHERE key LIKE 'after %' \g /dev/null
COMMIT;
SELECT is(:'SQLSTATE', '00000'::text, 'committed');
SELECT is((SELECT count(*) FROM generate_series(1, 1000) n, idem_claim('batch', 'many ' || n) a WHERE a.result = to_jsonb('many ' || n) AND a.attempt = 1), 1000::bigint, 'all replay');

-- Nobody can take the locks away
BEGIN;
SELECT is(pg_temp.open('unlock ', 10), 10::bigint, '10 claims');
SELECT pg_advisory_unlock_all() \g /dev/null
SELECT is(pg_temp.locks(), 10, 'pg_advisory_unlock_all leaves them');
ROLLBACK;

-- Released: no trace, whether lock or row
BEGIN;
TRUNCATE held;
SELECT is(pg_temp.open('given up ', 100), 100::bigint, '100 claims');
SELECT is(count(idem_release(c::idem_answer)), 100::bigint, 'all given up') FROM held;
SELECT is(pg_temp.locks(), 0, 'no locks'), is(pg_temp.rows('given up %'), 0, 'no rows');
SELECT is((SELECT count(*) FROM generate_series(1, 100) n, idem_claim('batch', 'given up ' || n) a WHERE a.verdict = 'execute' AND a.attempt = 1), 100::bigint, 'claimed again: attempt 1');
ROLLBACK;

-- Rolled back: no trace
BEGIN;
SELECT is(pg_temp.open('back ', 100), 100::bigint, '100 claims');
ROLLBACK;
SELECT is(pg_temp.rows('back %'), 0, 'no rows');
SELECT is((SELECT count(*) FROM generate_series(1, 100) n, idem_status('batch', 'back ' || n) a WHERE a.state = 'absent'), 100::bigint, 'all absent');

-- Left open: one ID003 counts them all
BEGIN;
SELECT pg_temp.open('left ', 100) \g /dev/null
COMMIT;
SELECT is(:'SQLSTATE', 'ID003'::text, '100 left open'), ok(:'LAST_ERROR_MESSAGE' LIKE '% and 99 more are left open', 'are counted');

-- Savepoints
BEGIN;
TRUNCATE held;
SELECT is(pg_temp.open('outer ', 50), 50::bigint, '50 claims');
SAVEPOINT s;
SELECT is(count(idem_complete(c::idem_answer, '1')), 50::bigint, 'completed in a savepoint') FROM held;
SELECT is(pg_temp.open('inner ', 50), 50::bigint, '50 more in it');
ROLLBACK TO s;
SELECT is((SELECT count(*) FROM generate_series(1, 50) n, idem_status('batch', 'outer ' || n) a WHERE a.holder = pg_backend_pid()), 50::bigint, 'rolled back: the outer ones are open');
SELECT is((SELECT count(*) FROM generate_series(1, 50) n, idem_status('batch', 'inner ' || n) a WHERE a.state = 'absent'), 50::bigint, 'the inner ones are gone');
SELECT is(pg_temp.open('inner ', 50), 50::bigint, 'and can be claimed again');
RELEASE s;
SELECT is(count(idem_complete(c::idem_answer, '1')), 100::bigint, 'all are completed') FROM held;
COMMIT;
SELECT is((SELECT count(*) FROM held h, idem_claim('batch', h.key) a WHERE a.result = '1'), 100::bigint, 'and replay');

-- Other outcomes of a claim that is a row
BEGIN;
TRUNCATE held;
SELECT pg_temp.open('lots ', 60) \g /dev/null
SELECT is(idem_fail(c::idem_answer, '"f"')::text, '', 'fail') FROM held WHERE key = 'lots 60';
SELECT is(idem_fail(c::idem_answer, '"t"', true)::text, '', 'fail, retryable') FROM held WHERE key = 'lots 59';
SELECT is(idem_unsure(c::idem_answer, '"u"')::text, '', 'unsure') FROM held WHERE key = 'lots 58';
SELECT throws_ok(format('SELECT idem_renew(%L, ''1 h'')', c), '22023', NULL, 'renew') FROM held WHERE key = 'lots 57';
SELECT throws_ok(format('SELECT idem_complete_key(''batch'', ''lots 56'', %s)', (c::idem_answer).fence - 1), 'ID002', NULL, 'another fence') FROM held WHERE key = 'lots 56';
SELECT is(a.attempt, 2, 'a retryable failure of this transaction, taken over as a row') FROM idem_claim('batch', 'lots 59') a;
SELECT is((idem_claim('batch', 'lots 59')).verdict, 'in_progress', 'is open');
SELECT is(idem_complete_key('batch', 'lots 59', fence), NULL, 'and completed') FROM idempotency_internal.record WHERE id = idem_id('batch', 'lots 59');
SELECT count(idem_release(c::idem_answer)) FROM held WHERE key NOT IN ('lots 58', 'lots 59', 'lots 60') \g /dev/null
COMMIT;
SELECT is(pg_temp.stored('batch', key), stored, key) FROM (VALUES ('lots 60', 'f 1 "f"'), ('lots 59', 's 2'), ('lots 58', 'p 1 "u"'), ('lots 57', NULL)) v (key, stored);

-- Records taken over as rows
SELECT count(idem_fail(c, '1', true)) FROM generate_series(1, 60) n, idem_claim('batch', 'retry ' || n) c;
BEGIN;
TRUNCATE held;
SELECT is(pg_temp.open('retry ', 60), 60::bigint, '60 retries');
ROLLBACK;
SELECT is((SELECT count(*) FROM generate_series(1, 60) n WHERE pg_temp.stored('batch', 'retry ' || n) = 't 1 1'), 60::bigint, 'rolled back: as before');
BEGIN;
TRUNCATE held;
SELECT is(pg_temp.open('retry ', 60), 60::bigint, '60 retries');
SELECT is(count(idem_complete(c::idem_answer, '1')), 60::bigint, 'completed') FROM held;
COMMIT;
SELECT is((SELECT count(*) FROM generate_series(1, 60) n WHERE pg_temp.stored('batch', 'retry ' || n) = 's 2 1'), 60::bigint, 'as attempt 2');

-- C46: many completed one after the other hold nothing
BEGIN;
SELECT is((SELECT count(idem_complete(c, '1')) FROM generate_series(1, 5000) n, idem_claim('batch', 'one by one ' || n) c), 5000::bigint, '5000 completed one after the other');
SELECT is(pg_temp.locks(), 0, 'hold no lock');
ROLLBACK;
BEGIN;
SELECT is(pg_temp.open('huge ', 5000), 5000::bigint, '5000 open at once');
SELECT cmp_ok(pg_temp.locks(), '<', 64, 'hold few');
ROLLBACK;
SELECT is(pg_temp.locks(), 0, 'and none afterwards');

SELECT * FROM finish();
