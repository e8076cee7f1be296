-- idem_cancel: a lost first try can no longer act; C15, and every state.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- C15: a key never seen, then its late first claim
SELECT is(pg_temp.shape(a), 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at', 'C15: never seen: cancelled'),
	is(a.error, '{"cancelled": "the caller gave up"}', 'with the reason'), is(a.attempt, 0, 'no attempt was made'),
	is(a.expires_at - a.finished_at, '24 h', 'kept for the retention'), is(idem_http_status(a), 422, 'HTTP 422')
  FROM idem_cancel('cancel', 'late', reason => 'the caller gave up') a;
SELECT is(pg_temp.shape(idem_claim('cancel', 'late', params)), 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at', 'C15: the late claim, params ' || coalesce(params::text, 'NULL') || ': failed')
  FROM unnest('{1,"{}",null}'::jsonb[]) params;
SELECT is((idem_claim('cancel', 'late', '1', lease => '1 h', owner => 'w')).error, '{"cancelled": "the caller gave up"}', 'with a lease too'),
	is((idem_claim('cancel', 'late', fingerprint => sha256('x'))).verdict, 'replay', 'or a fingerprint'),
	is((idem_accept('cancel', 'late', '1')).verdict, 'replay', 'accepting it: replay'), is((idem_start('cancel', 'late')).verdict, 'replay', 'starting it: replay'),
	is(idem_once('cancel', 'late'), false, 'once: false'),
	throws_ok('SELECT idem_value(idem_claim(''cancel'', ''late'', ''1''))', 'ID014', NULL, 'its value: ID014');
SELECT is((idem_status('cancel', 'late')).state, 'failed', 'status: failed'), is((idem_status('cancel', 'late')).advice, 'new_key', 'advice: a new key');
SELECT is((idem_cancel('cancel', 'late', reason => 'another')).error, '{"cancelled": "the caller gave up"}', 'cancelled again: the first reason stands'),
	is((idem_cancel('cancel', 'late')).verdict, 'replay', 'verdict replay, each time');
SELECT is((idem_cancel('cancel', 'silent')).error, '{"cancelled": null}', 'no reason: null');
SELECT is((idem_claim('cancel', 'late', '1', principal => 'other', lease => '1 h')).verdict, 'execute', 'C20: another principal''s key is another');

-- Accepted, failed and retryable, released: cancelled too
SELECT count(idem_accept('cancel', 'accepted', '1')) AS n \gset
SELECT idem_claim('cancel', 'retryable', '1', lease => '1 h')::text AS retryable \gset
SELECT idem_fail(:'retryable', '"busy"', true);
SELECT idem_claim('cancel', 'released', '1', lease => '1 h')::text AS released \gset
SELECT idem_release(:'released');
SELECT is(pg_temp.shape(a), 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at', k || ': cancelled'),
	is(a.error, '{"cancelled": "late"}', k || ': with the reason'), is(a.attempt, attempts, k || ': attempts made'),
	is((idem_claim('cancel', k, '2')).error, '{"cancelled": "late"}', k || ': claimed, whatever the params: failed')
  FROM (VALUES ('accepted', 0), ('retryable', 1), ('released', 1)) v (k, attempts), idem_cancel('cancel', k, reason => 'late') a;
SELECT throws_ok(format('SELECT idem_complete(%L)', permit), 'ID002', NULL, 'the former owner: ID002')
  FROM unnest(ARRAY[:'retryable', :'released']) permit;
SELECT is((SELECT count(*) FROM idem_start_next('cancel'))::int, 0, 'a cancelled one is not started'),
	is((SELECT count(*) FROM idem_list(operation => 'cancel'))::int, 0, 'nor listed');

-- Past retention and guard, and late
SELECT idem_define('cancel_old', '{"retention": "1 h", "guard": "1 h"}');
SELECT idem_complete(idem_claim('cancel_old', 'forgotten', '1')), idem_complete(idem_claim('cancel_old', 'guarded', '1'));
SELECT pg_temp.age('cancel_old', 'forgotten', '3 h'), pg_temp.age('cancel_old', 'guarded', '90 min');
SELECT is((idem_cancel('cancel_old', 'forgotten', reason => 'r')).error, '{"cancelled": "r"}', 'forgotten: as if never seen'),
	is(pg_temp.shape(idem_cancel('cancel_old', 'guarded')), 'expired expired reconcile: who attempt claimed_at finished_at expires_at forget_at', 'inside guard: expired');
SELECT is((idem_cancel('cancel_old', 'ends')).verdict, 'replay', 'a cancelled key');
SELECT pg_temp.age('cancel_old', 'ends', '90 min');
SELECT is((idem_claim('cancel_old', 'ends', '1')).verdict, 'expired', 'expires like any outcome');
SELECT pg_temp.age('cancel_old', 'ends', '60 min');
SELECT is((idem_claim('cancel_old', 'ends', '1', lease => '1 h')).verdict, 'execute', 'and is forgotten like any');
SELECT idem_define('cancel_late', '{"key_format": "uuidv7", "retention": "1 h"}');
SELECT is((idem_cancel('cancel_late', '019a0000-0000-7000-8000-000000000001')).verdict, 'expired', 'a key provably late: expired'),
	is((idem_cancel('cancel_late', idem_new_key())).state, 'failed', 'a young one: cancelled');
SELECT throws_ok('SELECT idem_cancel(''cancel_late'', ''k'')', '22023', NULL, 'a key of another format: 22023');

-- Anything else is answered and left as it is
SELECT count(idem_claim('keep', 'running', '1', lease => '1 h')), count(idem_claim('keep', 'owned', '1', lease => '1 h', owner => 'w1')) AS n \gset
SELECT idem_unsure(idem_claim('keep', 'unknown', '1', lease => '1 h'), '"502"'), idem_complete(idem_claim('keep', 'succeeded', '1'), '"done"'),
	idem_fail(idem_claim('keep', 'failed', '1'), '"declined"');
SELECT is((idem_accept('keep', 'started')).verdict, 'execute', 'accepted'), is((idem_start('keep', 'started', '1 h', owner => 'w1')).verdict, 'execute', 'and started');
SELECT idem_define('keep_retry', '{"on_lease_expiry": "retry"}');
SELECT idem_unsure(idem_claim('keep_retry', 'overrun', '1', lease => '1 h'));
SELECT string_agg(pg_temp.stored(operation, key) || fence, '' ORDER BY key) AS before FROM idempotency_internal.record WHERE operation LIKE 'keep%' \gset
SELECT is(pg_temp.shape(idem_cancel(operation, key, reason => 'w1')), expected, format('%s: %s', key, split_part(expected, ':', 1)))
  FROM (VALUES
	('keep', 'running', 'in_progress processing retry_same_key: who attempt retry_after claimed_at lease_until'),
	('keep', 'owned', 'in_progress processing retry_same_key: who attempt retry_after claimed_at lease_until'),
	('keep', 'started', 'in_progress processing retry_same_key: who attempt retry_after claimed_at lease_until'),
	('keep', 'unknown', 'unknown unknown reconcile: who attempt error retry_after claimed_at lease_until'),
	('keep_retry', 'overrun', 'unknown unknown reconcile: who attempt retry_after claimed_at lease_until'),
	('keep', 'succeeded', 'replay succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at'),
	('keep', 'failed', 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at'))
	v (operation, key, expected);
SELECT is((idem_cancel('keep', 'failed')).error, '"declined"', 'a failure keeps its own error: no proof of cancelling');
SELECT is(string_agg(pg_temp.stored(operation, key) || fence, '' ORDER BY key), :'before', 'nothing has changed') FROM idempotency_internal.record WHERE operation LIKE 'keep%';

-- In this very transaction
BEGIN;
SELECT is((idem_claim('cancel', 'own', '1')).verdict, 'execute', 'claimed in this transaction');
SELECT is((idem_cancel('cancel', 'own')).verdict, 'in_progress', 'cannot be cancelled: in_progress');
ROLLBACK;
BEGIN;
SELECT is((idem_accept('cancel', 'own', '1')).verdict, 'execute', 'accepted in this transaction');
SELECT is((idem_cancel('cancel', 'own')).state, 'failed', 'and cancelled');
SELECT is((idem_claim('cancel', 'own', '1')).state, 'failed', 'failed from now on');
SAVEPOINT s;
SELECT is((idem_cancel('cancel', 'saved')).state, 'failed', 'cancelled in a savepoint');
ROLLBACK TO s;
SELECT is((idem_status('cancel', 'saved')).state, 'absent', 'rolled back: absent');
ROLLBACK;
SELECT is((idem_status('cancel', 'own')).state, 'absent', 'all rolled back: absent');

-- An outcome that is kept for no time at all
SELECT idem_define('cancel_gone', '{"retention": "0"}');
SET statement_timeout = '10 s';
SELECT is(a.verdict, 'replay', 'retention 0: verdict replay all the same'), is(a.state, 'failed', 'state failed'), is(a.error, '{"cancelled": "r"}', 'with the reason')
  FROM idem_cancel('cancel_gone', 'k', reason => 'r') a;
SELECT idem_define('cancel_gone', '{"guard": "1 h"}');
SELECT is(a.verdict, 'replay', 'and a guard: verdict replay, the first time'), is(a.error, '{"cancelled": "r"}', 'with the reason')
  FROM idem_cancel('cancel_gone', 'k2', reason => 'r') a;
SELECT is((idem_claim('cancel_gone', 'k2')).verdict, 'expired', 'then expired, never execute');
RESET statement_timeout;

BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_cancel(''cancel'', ''read only'')', '25006', NULL, 'cancel in a read-only transaction: 25006');
ROLLBACK;
-- Arguments
SELECT throws_ok('SELECT idem_cancel(' || arguments || ')', '22023', NULL, 'cancel(' || arguments || '): 22023')
  FROM unnest(ARRAY['''cancel'', NULL', '''cancel'', ''''', 'NULL, ''k''', ''''', ''k''', '''cancel'', repeat(''k'', 256)', '''cancel'', ''k'', ''''']) arguments;

SELECT finish();
