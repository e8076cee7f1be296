-- What ends endless trying: max_attempts and deadline; C57.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- As if that much time had passed for a leased record.
CREATE FUNCTION pg_temp.later(operation text, key text, by interval) RETURNS void LANGUAGE sql AS $$
SELECT pg_temp.age($1, $2, by);
UPDATE idempotency_internal.open_work SET since = since - by, due_at = due_at - by WHERE id = idem_id($1, $2)
$$;
CREATE FUNCTION pg_temp.said(a idem_answer) RETURNS text LANGUAGE sql AS $$ SELECT concat_ws(' ', a.verdict, a.state, a.advice, a.attempt) $$;

-- max_attempts: retryable failures
SELECT idem_define('thrice', '{"max_attempts": 3, "retention": "2 h"}');
SELECT idem_fail(idem_claim('thrice', 'k'), '"one"', true);
SELECT is(pg_temp.stored('thrice', 'k'), 't 1 "one"', 'attempt 1 of 3 fails: may be retried'), is((idem_status('thrice', 'k')).advice, 'retry_same_key', 'says status');
SELECT idem_fail(idem_claim('thrice', 'k', lease => '1 h'), '"two"', true);
SELECT is(pg_temp.stored('thrice', 'k'), 't 2 "two"', 'attempt 2 of 3, leased: may be retried');
SELECT idem_fail(idem_claim('thrice', 'k'), '"three"', true);
SELECT is(pg_temp.stored('thrice', 'k'), 'f 3 "three"', 'attempt 3 of 3: failed for good');
SELECT is(pg_temp.said(a), 'replay failed new_key 3', 'and replayed'), is(a.error, '"three"', 'with the last error'),
	is(a.expires_at - a.finished_at, '2 h', 'for the retention')
  FROM idem_claim('thrice', 'k') a;
SELECT is((idem_accept('thrice', 'k')).verdict, 'replay', 'to accept too'), is((idem_start('thrice', 'k')).verdict, 'replay', 'and start'),
	is(idem_once('thrice', 'k'), false, 'and once'), is((idem_status('thrice', 'k')).advice, 'new_key', 'status: a new key');
-- accepted work counts its attempts the same way
SELECT idem_define('twice', '{"max_attempts": 2}');
SELECT is((idem_accept('twice', 'work')).attempt, 0, 'accepted: no attempt');
SELECT idem_fail(idem_start('twice', 'work', '1 h'), '"one"', true);
SELECT is((idem_accept('twice', 'work')).state, 'accepted', 'failed and retryable: accepted again');
SELECT idem_fail(idem_start('twice', 'work', '1 h'), '"two"', true);
SELECT is(pg_temp.stored('twice', 'work'), 'f 2 "two"', 'two attempts: failed for good');
-- attempts that were released count, so do those that were not executed
SELECT idem_release(idem_claim('twice', 'released', lease => '1 h'));
SELECT is((idem_claim('twice', 'released', lease => '1 h')).attempt, 2, 'after a release: attempt 2');
-- the limit as it is now decides
SELECT idem_fail(idem_claim('twice', 'lowered'), '"one"', true);
SELECT idem_define('twice', '{"max_attempts": 1}');
SELECT is(pg_temp.said(idem_claim('twice', 'lowered')), 'replay failed new_key 1', 'limit lowered: failed for good'),
	is(pg_temp.said(idem_status('twice', 'lowered')), 'failed new_key 1', 'says status'),
	is(idem_once('twice', 'lowered'), false, 'and once');
SELECT isnt((idem_claim('twice', 'lowered')).forget_at, NULL, 'and for its retention only');
SELECT idem_define('twice', '{"max_attempts": null}');
BEGIN;
SELECT is(pg_temp.said(idem_claim('twice', 'lowered')), 'execute processing run 2', 'limit lifted: executes again');
ROLLBACK;

-- max_attempts: policy retry
SELECT idem_define('overrun', '{"max_attempts": 2, "on_lease_expiry": "retry"}');
SELECT count(idem_claim('overrun', 'k', lease => '1 h')) AS n \gset
SELECT pg_temp.later('overrun', 'k', '2 h');
SELECT is((SELECT count(*) FROM idem_reconcile('overrun'))::int, 0, 'policy retry, attempt 1 of 2 over: not to be reconciled');
SELECT is(pg_temp.said(idem_claim('overrun', 'k', lease => '1 h')), 'execute processing run 2', 'but executed again');
SELECT pg_temp.later('overrun', 'k', '2 h');
SELECT is(pg_temp.said(idem_claim('overrun', 'k', lease => '1 h')), 'unknown unknown reconcile 2', 'attempt 2 of 2 over: unknown'),
	is(pg_temp.said(idem_start('overrun', 'k', lease => '1 h')), 'unknown unknown reconcile 2', 'to start'),
	is(pg_temp.said(idem_accept('overrun', 'k')), 'unknown unknown reconcile 2', 'to accept'),
	is(pg_temp.said(idem_status('overrun', 'k')), 'unknown reconcile 2', 'to status'),
	throws_ok('SELECT idem_once(''overrun'', ''k'')', '55P03', NULL, 'to once');
SELECT is((idem_reconcile('overrun')).key, 'k', 'and to be reconciled');
SELECT is((idem_resolve('overrun', 'k', 'failed', '"gave up"')).error, '"gave up"', 'resolved');

-- deadline: total time from the first claim
SELECT idem_define('soon', '{"deadline": "1 h", "retention": "2 h", "on_lease_expiry": "retry"}');
SELECT idem_fail(idem_claim('soon', 'k', lease => '10 h'), '"busy"', true);
SELECT ok((SELECT expires_at - claimed_at BETWEEN '3 h' AND '3 h 1 ms' FROM idem_status('soon', 'k')), 'a retryable failure: kept for the retention from the deadline on');
SELECT pg_temp.later('soon', 'k', '50 min');
SELECT is(pg_temp.said(idem_claim('soon', 'k', lease => '10 h')), 'execute processing run 2', 'before the deadline: execute');
SELECT pg_temp.later('soon', 'k', '20 min');
SELECT is(pg_temp.said(idem_claim('soon', 'k')), 'in_progress processing retry_same_key 2', 'deadline over, lease running: in progress');
SELECT idem_fail_key('soon', 'k', fence, '"busy again"', true) FROM idempotency_internal.record WHERE id = idem_id('soon', 'k');
SELECT is(pg_temp.stored('soon', 'k'), 'f 2 "busy again"', 'failing after the deadline: for good'),
	is(pg_temp.said(idem_claim('soon', 'k')), 'replay failed new_key 2', 'replayed');
SELECT count(idem_claim('soon', 'lease', lease => '50 min')) AS n \gset
SELECT pg_temp.later('soon', 'lease', '55 min');
BEGIN;
SELECT is(pg_temp.said(idem_claim('soon', 'lease', lease => '1 h')), 'execute processing run 2', 'lease over before the deadline: execute');
ROLLBACK;
SELECT pg_temp.later('soon', 'lease', '10 min');
SELECT is(pg_temp.said(idem_claim('soon', 'lease')), 'unknown unknown reconcile 1', 'and after it: unknown'),
	is((idem_reconcile('soon')).key, 'lease', 'to be reconciled');
SELECT is(pg_temp.said(idem_resolve('soon', 'lease', 'not_executed')), 'absent retry_same_key', 'resolved as not executed');
SELECT is(pg_temp.said(idem_claim('soon', 'lease', lease => '1 h')), 'execute processing run 2', 'the key may execute again');
-- a retryable failure whose deadline has passed is replayed, then expires, then is forgotten
SELECT idem_define('soon', '{"guard": "1 h"}');
SELECT idem_fail(idem_claim('soon', 'ends', '1'), '"busy"', true);
SELECT pg_temp.later('soon', 'ends', '61 min');
SELECT is(pg_temp.said(idem_claim('soon', 'ends', '1')), 'replay failed new_key 1', 'past the deadline: failed');
SELECT is(pg_temp.said(idem_claim('soon', 'ends', '2')), 'mismatch failed new_key 1', 'other params: mismatch');
SELECT pg_temp.later('soon', 'ends', '2 h');
SELECT is(pg_temp.said(idem_claim('soon', 'ends', '1')), 'expired expired reconcile 1', 'past the retention: expired');
SELECT pg_temp.later('soon', 'ends', '1 h');
BEGIN;
SELECT is(pg_temp.said(idem_claim('soon', 'ends', '1')), 'execute processing run 1', 'past the guard: a new key');
ROLLBACK;

-- C57: what is not resolved does not expire, and is not purged
SELECT idem_define('old', '{"retention": "1 h", "guard": "1 h"}');
SELECT count(idem_claim('old', 'leased', '1', lease => '1 h')), count(idem_accept('old', 'accepted', '1')) AS n \gset
SELECT idem_unsure(idem_claim('old', 'unsure', '1', lease => '1 h')), idem_fail(idem_claim('old', 'retryable', '1'), '1', true),
	idem_complete(idem_claim('old', 'succeeded', '1'));
SELECT pg_temp.later('old', key, '1000 days') FROM unnest('{leased,accepted,unsure,retryable,succeeded}'::text[]) key;
\echo purge
SELECT idem_purge() \g /dev/null
SELECT is(pg_temp.said(idem_claim('old', 'leased', '1')), 'unknown unknown reconcile 1', 'C57: a lease 1000 days over: unknown'),
	is(pg_temp.said(idem_claim('old', 'unsure', '1')), 'unknown unknown reconcile 1', 'C57: unsure for 1000 days: unknown'),
	is(pg_temp.said(idem_claim('old', 'accepted', '1')), 'in_progress accepted retry_same_key 0', 'C57: accepted for 1000 days: accepted'),
	is(pg_temp.said(idem_status('old', 'succeeded')), 'absent retry_same_key', 'what succeeded is forgotten');
SELECT is((SELECT string_agg(key, ' ' ORDER BY key) FROM idempotency_internal.record WHERE operation = 'old'), 'accepted leased retryable unsure', 'invariant 9: purge left the rest');
SELECT is((SELECT string_agg(key, ' ' ORDER BY key) FROM idem_reconcile('old', 9)), 'leased unsure', 'the unknown ones are handed out');
SELECT is(pg_temp.said(idem_start('old', 'accepted', '1 h')), 'execute processing run 1', 'the accepted one is started'),
	is(pg_temp.said(idem_claim('old', 'retryable', '1', lease => '1 h')), 'execute processing run 2', 'the retryable one executes');
SELECT is((SELECT (a).expires_at > clock_timestamp() + '59 min' FROM idem_resolve('old', 'leased', 'succeeded') a), true, 'resolved: kept for the retention from now on');

SELECT finish();
