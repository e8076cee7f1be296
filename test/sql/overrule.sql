-- What is changed past the owner of a claim: idem_expire_lease and the longest
-- lease (W09), idem_reopen (W10), a former owner after not_executed (W17); and
-- outcomes without their result (store_result).
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

CREATE FUNCTION pg_temp.said(a idem_answer) RETURNS text LANGUAGE sql AS $$ SELECT concat_ws(' ', a.verdict, a.state, a.advice, a.attempt) $$;
CREATE FUNCTION pg_temp.stale(was idem_answer, why text) RETURNS SETOF text LANGUAGE sql AS $$
SELECT throws_ok(format('SELECT idem_%s(%L%s)', what, was, arguments), 'ID002', NULL, why || ': ' || what)
  FROM (VALUES ('complete', ''), ('fail', ', ''1'''), ('unsure', ''), ('renew', ', ''1 h'''), ('release', '')) v (what, arguments)
$$;

-- W09: ending a lease
SELECT idem_claim('expire', 'running', '1', lease => '12 h', owner => 'w')::text AS c \gset
SELECT is(pg_temp.said(idem_expire_lease('expire', 'running')), 'unknown reconcile 1', 'W09: a running lease ended: unknown');
SELECT pg_temp.stale(:'c', 'W09: its owner is stale');
SELECT is(pg_temp.said(idem_claim('expire', 'running', '1', lease => '1 h', owner => 'w')), 'unknown unknown reconcile 1', 'W09: also if it asks again');
SELECT is((idem_reconcile('expire')).key, 'running', 'W09: reconcilers get it at once');
SELECT idem_define('lease_retry', '{"on_lease_expiry": "retry"}');
SELECT idem_claim('lease_retry', 'running', '1', lease => '12 h')::text AS c \gset
SELECT is((idem_expire_lease('lease_retry', 'running')).state, 'unknown', 'W09: under policy retry: unknown');
SELECT is(pg_temp.said(c), 'execute processing run 2', 'W09: and executed again'), cmp_ok(c.fence, '>', (:'c'::idem_answer).fence, 'W09: under a higher fence')
  FROM idem_claim('lease_retry', 'running', '1', lease => '1 h') c;
SELECT pg_temp.stale(:'c', 'W09: its owner is stale');
SELECT idem_accept('lease_retry', 'work') \g /dev/null
SELECT is((idem_start('lease_retry', 'work', '12 h')).attempt, 1, 'accepted work'), is((idem_expire_lease('lease_retry', 'work')).state, 'unknown', 'W09: ended');
SELECT is((idem_start_next('lease_retry', 1, '1 h')).attempt, 2, 'W09: it is handed out again') \g /dev/null
SELECT count(idem_accept('expire', 'accepted')), count(idem_once('expire', 'succeeded')), count(idem_cancel('expire', 'failed')) AS n \gset
SELECT throws_ok(format('SELECT idem_expire_lease(''expire'', %L)', key), state, NULL, format('W09: %s: %s', key, state))
  FROM (VALUES ('never', 'ID001'), ('running', 'ID002'), ('accepted', 'ID002'), ('succeeded', 'ID002'), ('failed', 'ID002'), ('', '22023'), (NULL, '22023')) v (key, state);
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_expire_lease(''expire'', ''running'')', '25006', NULL, 'W09: read-only: 25006');
ROLLBACK;

-- W09: the longest lease
SELECT is(idem_policy('new')->'max_lease', '"1 day"', 'W09: a lease lasts a day at most');
SELECT idem_accept('long', 'accepted') \g /dev/null
SELECT idem_claim('long', 'k', lease => '1 day') AS a \g /dev/null
SELECT throws_ok(format('SELECT idem_%s', call), '22023', NULL, 'W09: ' || call || ': 22023')
  FROM unnest('{"claim(''long'', ''l'', lease => ''1 day 1 us'')","start(''long'', ''accepted'', ''25 h'')","start_next(''long'', 1, ''25 h'')","reconcile(''long'', 1, ''25 h'')","reconcile(NULL, 1, ''25 h'')"}'::text[]) call;
SELECT throws_ok(format('SELECT idem_renew_key(''long'', ''k'', %s, ''25 h'')', fence), '22023', NULL, 'W09: renew: 22023') FROM idempotency_internal.record WHERE id = idem_id('long', 'k');
SELECT throws_ok('SELECT idem_define(''long'', ''{"lease": "25 h"}'')', '22023', NULL, 'W09: nor can it be the policy''s');
SELECT idem_define('long', '{"lease": "25 h", "max_lease": "30 h"}');
SELECT is((idem_claim('long', 'm')).verdict, 'execute', 'W09: unless it allows it'), throws_ok('SELECT idem_claim(''long'', ''n'', lease => ''31 h'')', '22023', NULL, 'W09: up to there');
SELECT matches(r.hint, 'max_lease', 'W09: the hint names the setting') FROM pg_temp.raised('SELECT idem_claim(''long'', ''n'', lease => ''31 h'')') r;

-- W10: reopening
SELECT idem_fail(idem_claim('open', 'k', '1'), '{"code": "bug"}');
SELECT fence AS f FROM idempotency_internal.record WHERE id = idem_id('open', 'k') \gset
SELECT is(pg_temp.said(idem_claim('open', 'k', '1')), 'replay failed new_key 1', 'failed for good');
SELECT idem_reopen('open', 'k', reason => 'handler mended')::text AS r \gset
SELECT is(pg_temp.said(:'r'), 'failed retry_same_key 1', 'W10: reopened: a failure that may be retried'),
	is((:'r'::idem_answer).error, '{"reopened": "handler mended", "error": {"code": "bug"}}', 'W10: the reason is kept, and the error');
SELECT is((idem_claim('open', 'k', '2')).verdict, 'mismatch', 'W10: other params: mismatch still');
SELECT is(pg_temp.said(c), 'execute processing run 2', 'W10: executes again'), cmp_ok(c.fence, '>', :f::bigint, 'W10: under a higher fence') FROM idem_claim('open', 'k', '1', lease => '1 h') c;
SELECT idem_complete_key('open', 'k', fence, '"done"') FROM idempotency_internal.record WHERE id = idem_id('open', 'k') \g /dev/null
SELECT is(pg_temp.said(idem_claim('open', 'k', '1')), 'replay succeeded use_result 2', 'W10: and has its outcome');
SELECT throws_ok('SELECT idem_reopen(''open'', ''k'')', 'ID002', NULL, 'W10: what succeeded is never reopened');
-- whatever ended it
SELECT idem_define('open', '{"max_attempts": 1, "deadline": "1 h", "retention": "1 h", "guard": "10 h"}');
SELECT idem_fail(idem_claim('open', 'attempts'), '"busy"', true), count(idem_accept('open', 'deadline')), idem_fail(idem_claim('open', 'old'), '1') AS n \g /dev/null
SELECT pg_temp.age('open', 'deadline', '90 min'), pg_temp.age('open', 'old', '2 h');
SELECT is((idem_status('open', key)).state, state::idem_state, 'W10: ' || key) FROM (VALUES ('attempts', 'failed'), ('deadline', 'failed'), ('old', 'expired')) v (key, state);
SELECT is((idem_reopen('open', key)).advice, 'retry_same_key', 'W10: reopened: ' || key) FROM unnest('{attempts,deadline,old}'::text[]) key;
SELECT is((SELECT string_agg(key, ' ') FROM idem_list(operation => 'open')), 'deadline', 'W10: accepted work is listed again'),
	is((idem_start_next('open', 1, '1 h')).key, 'deadline', 'W10: and handed out');
SELECT is((idem_claim('open', key, lease => '1 h')).verdict, 'execute', 'W10: executes: ' || key) FROM unnest('{attempts,old}'::text[]) key;
SELECT is((idem_status('open', 'attempts')).attempt, 2, 'W10: attempts go on');
SELECT idem_fail_key('open', 'attempts', fence, '"busy"', true) FROM idempotency_internal.record WHERE id = idem_id('open', 'attempts');
SELECT is(pg_temp.said(idem_status('open', 'attempts')), 'failed new_key 2', 'W10: and are counted anew');
-- cancelled: free for any params
SELECT idem_cancel('open', 'cancelled', reason => 'by mistake') \g /dev/null
SELECT is((idem_reopen('open', 'cancelled')).state, 'absent', 'W10: what was cancelled can be reopened'), is((idem_claim('open', 'cancelled', '5', lease => '1 h')).verdict, 'execute', 'W10: and executes');
SELECT idem_accept('open', 'cancelled work', '1') \g /dev/null
SELECT idem_cancel('open', 'cancelled work') \g /dev/null
SELECT is((idem_reopen('open', 'cancelled work')).state, 'accepted', 'W10: accepted work that was cancelled is accepted again');
SELECT idem_once('open', 'old success'), pg_temp.age('open', 'old success', '2 h') \g /dev/null
SELECT is((idem_status('open', 'old success')).state, 'expired', 'W10: a success that is no longer kept');
SELECT throws_ok(format('SELECT idem_reopen(''open'', %L)', key), state, NULL, format('W10: %s: %s', key, state))
  FROM (VALUES ('never', 'ID001'), ('cancelled work', 'ID002'), ('old', 'ID002'), ('old success', 'ID002'), ('', '22023')) v (key, state);
SELECT idem_define('open', '{"max_result_bytes": 40}');
SELECT idem_cancel('open', 'again') \g /dev/null
SELECT throws_ok('SELECT idem_reopen(''open'', ''again'', reason => repeat(''x'', 41))', 'ID004', NULL, 'W10: reason too large: ID004');
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_reopen(''open'', ''again'')', '25006', NULL, 'W10: read-only: 25006');
ROLLBACK;

-- W17: a former owner after not_executed
SELECT idem_claim('stale', 'k', '1', lease => '1 h')::text AS c \gset
SELECT idem_unsure(:'c');
SELECT is((idem_resolve('stale', 'k', 'not_executed')).state, 'absent', 'resolved as not executed');
SELECT pg_temp.stale(:'c', 'W17: its owner is stale');
SELECT is(pg_temp.said(idem_claim('stale', 'k', '2', lease => '1 h')), 'execute processing run 2', 'W17: the key executes again');
SELECT pg_temp.stale(:'c', 'W17: its owner is stale still');
-- a release said again by a later transaction is called a release
SELECT idem_claim('stale', 'released', '1', lease => '1 h')::text AS c \gset
SELECT idem_release(:'c');
\set VERBOSITY terse
BEGIN;
CREATE TEMP TABLE written (n integer);
SELECT idem_release(:'c');
COMMIT;
\set VERBOSITY sqlstate

-- T01, T02: texts
SELECT matches(r.hint, 'principal', 'T01: no claim for that key: the hint names the principal') FROM pg_temp.raised('SELECT idem_complete_key(''stale'', ''never'', 1)') r;
SELECT idem_define('small', '{"max_result_bytes": 5}');
SELECT idem_unsure(idem_claim('small', 'k', lease => '1 h'));
SELECT is(r.state, 'ID004', 'T02: too large'), doesnt_match(r.hint, 'still open', 'T02: and nothing is said that is not so')
  FROM unnest('{"SELECT idem_complete(idem_claim(''small'', ''l''), ''123456'')","SELECT idem_resolve(''small'', ''k'', ''succeeded'', ''123456'')"}'::text[]) q, pg_temp.raised(q) r;

-- Outcomes without their result
SELECT idem_define('bare', '{"store_result": false, "max_result_bytes": 10}');
SELECT is(idem_complete(idem_claim('bare', 'k', '1'), '{"large": "result"}'), '{"large": "result"}', 'store_result false: complete returns the result, of any size');
SELECT is(pg_temp.shape(idem_claim('bare', 'k', '1')), 'replay succeeded use_result: who attempt claimed_at finished_at expires_at forget_at', 'store_result false: replayed without'),
	is(idem_value(idem_claim('bare', 'k', '1')), NULL, 'store_result false: its value is null'), is(pg_temp.stored('bare', 'k'), 's 1', 'store_result false: nothing is kept');
SELECT idem_claim('bare', 'leased', lease => '1 h')::text AS c \gset
SELECT is(idem_complete(:'c', '"1"'), '"1"', 'store_result false: completed'), is(idem_complete(:'c', '"2"'), '"2"', 'store_result false: said again, it is the same outcome');
SELECT idem_unsure(idem_claim('bare', 'unsure', lease => '1 h'));
SELECT is(pg_temp.shape(idem_resolve('bare', 'unsure', 'succeeded', '{"large": "result"}')), '- succeeded use_result: who attempt claimed_at finished_at expires_at forget_at', 'store_result false: resolved without');
CREATE FUNCTION pg_temp.double(params jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb((params)::int * 2) $$;
SELECT is((idem_run('bare', 'run', '4', 'pg_temp.double(jsonb)')).result, '8', 'store_result false: run returns the result'),
	is((idem_run('bare', 'run', '4', 'pg_temp.double(jsonb)')).result, NULL, 'store_result false: once');
SELECT idem_fail(idem_claim('bare', 'failed'), '"why"');
SELECT is((idem_status('bare', 'failed')).error, '"why"', 'store_result false: errors are kept');

SELECT finish();
