-- Outcomes that are not known: idem_unsure, idem_reconcile, idem_resolve and
-- the view idem_unresolved; C01, C53.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- As if a lease, or the pause after a reconciler, had ended that long ago.
CREATE FUNCTION pg_temp.overrun(operation text, key text, by interval DEFAULT '1 s') RETURNS void LANGUAGE sql AS $$
UPDATE idempotency_internal.record SET lease_until = clock_timestamp() - by WHERE id = idem_id($1, $2);
UPDATE idempotency_internal.open_work SET due_at = clock_timestamp() - by WHERE id = idem_id($1, $2)
$$;
-- The work list's entry of a record.
CREATE FUNCTION pg_temp.entry(operation text, key text) RETURNS idempotency_internal.open_work LANGUAGE sql AS
$$ SELECT * FROM idempotency_internal.open_work w WHERE id = idem_id($1, $2) $$;
CREATE FUNCTION pg_temp.queue(operation text, max_records integer DEFAULT 100) RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(key, ' ' ORDER BY n) FROM idem_reconcile(operation, max_records) WITH ORDINALITY r (verdict, state, advice, id, principal, operation, key,
	fence, attempt, result, error, retry_after, holder, claimed_at, finished_at, lease_until, expires_at, forget_at, n) $$;

-- C01: the owner dies, the lease runs out, nobody knows
SELECT idem_claim('pay', 'c01', '1', lease => '1 h')::text AS c \gset
SELECT is(pg_temp.queue('pay'), NULL, 'C01: lease running: nothing to reconcile');
SELECT throws_ok('SELECT idem_resolve(''pay'', ''c01'', ''succeeded'')', 'ID002', NULL, 'C01: nor to resolve');
SELECT pg_temp.overrun('pay', 'c01') \g /dev/null
SELECT is(pg_temp.shape(idem_claim('pay', 'c01', '1')), 'unknown unknown reconcile: who attempt retry_after claimed_at lease_until', 'C01: lease over: unknown'),
	is(pg_temp.shape(idem_claim('pay', 'c01', '1', lease => '1 h', owner => 'w')), 'unknown unknown reconcile: who attempt retry_after claimed_at lease_until', 'C01: to claims with a lease too'),
	is(pg_temp.shape(idem_status('pay', 'c01')), '- unknown reconcile: who attempt retry_after claimed_at lease_until', 'C01: to status'),
	is((idem_claim('pay', 'c01', '2')).verdict, 'mismatch', 'C04: other params: mismatch'),
	is(idem_http_status(idem_claim('pay', 'c01', '1')), 409, 'HTTP 409'),
	throws_ok('SELECT idem_value(idem_claim(''pay'', ''c01'', ''1''))', 'ID012', NULL, 'its value: ID012'),
	throws_ok('SELECT idem_once(''pay'', ''c01'')', '55P03', NULL, 'once: 55P03');
SELECT idem_reconcile('pay')::text AS r \gset
SELECT is(pg_temp.shape(:'r'), 'unknown unknown reconcile: who fence attempt retry_after claimed_at lease_until', 'C01: it is in the queue'),
	is((:'r'::idem_answer).key, 'c01', 'named'), is((:'r'::idem_answer).attempt, 1, 'its attempt'),
	cmp_ok((:'r'::idem_answer).fence, '>', (:'c'::idem_answer).fence, 'with a fence larger than the owner''s');
SELECT is((idem_claim('pay', 'c01', '1')).fence, NULL, 'which is told to nobody else');

-- One reconciler at a time
SELECT is(pg_temp.queue('pay'), NULL, 'handed out: to nobody else');
SELECT is(tries, 1, 'one try counted'), is(fence, (:'r'::idem_answer).fence, 'under its fence'),
	ok(due_at BETWEEN clock_timestamp() + '50 s' AND clock_timestamp() + '71 s', 'next try after its lease and a pause of up to 10 s')
  FROM pg_temp.entry('pay', 'c01');
SELECT is(pg_temp.stored('pay', 'c01'), 'p 1', 'the record is as it was');
BEGIN;
SELECT pg_temp.overrun('pay', 'c01');
SELECT is((idem_reconcile('pay', 1, '2 h')).key, 'c01', 'the time of the first is over: handed out again'),
	ok((pg_temp.entry('pay', 'c01')).due_at > clock_timestamp() + '119 min', 'for as long as asked'),
	is((pg_temp.entry('pay', 'c01')).tries, 2, 'two tries');
SELECT throws_ok(format('SELECT idem_resolve(''pay'', ''c01'', ''succeeded'', fence => %s)', (:'r'::idem_answer).fence), 'ID002', NULL, 'a stale reconciler: ID002');
ROLLBACK;
SELECT is((pg_temp.entry('pay', 'c01')).tries, 1, 'a reconciler rolled back: its try does not count');

-- Its fence is good for idem_resolve only
SELECT throws_ok(format('SELECT %s(%L%s)', f, :'r', more), '22023', NULL, 'C53: ' || f || ' with a reconciler''s answer: 22023')
  FROM (VALUES ('idem_complete', ''), ('idem_fail', ', ''1'''), ('idem_unsure', ''), ('idem_renew', ', ''1 h'''), ('idem_release', '')) v (f, more);
SELECT throws_ok(format('SELECT %s(''pay'', ''c01'', %s%s)', f, (:'r'::idem_answer).fence, more), 'ID002', NULL, f || ' with a reconciler''s fence: ID002')
  FROM (VALUES ('idem_complete_key', ''), ('idem_fail_key', ', ''1'''), ('idem_unsure_key', ''), ('idem_renew_key', ', ''1 h'''), ('idem_release_key', '')) v (f, more);
SELECT throws_ok(format('SELECT idem_resolve(''pay'', ''c01'', ''succeeded'', fence => %s)', fence), 'ID002', NULL, 'resolve with ' || what || ': ID002')
  FROM (VALUES ((:'c'::idem_answer).fence, 'the owner''s fence'), ((:'r'::idem_answer).fence + 1, 'a fence of nobody'), (0, 'fence 0')) v (fence, what);

-- Until it is resolved, the owner may still complete
BEGIN;
SELECT is(idem_complete(:'c', '"by its owner"'), '"by its owner"', 'the owner completes late');
SELECT throws_ok(format('SELECT idem_resolve(''pay'', ''c01'', ''not_executed'', fence => %s)', (:'r'::idem_answer).fence), 'ID002', NULL, 'then the reconciler: ID002'),
	throws_ok('SELECT idem_resolve(''pay'', ''c01'', ''not_executed'')', 'ID002', NULL, 'and a person: ID002'),
	is((idem_claim('pay', 'c01', '1')).result, '"by its owner"', 'the owner''s outcome stands'),
	is((pg_temp.entry('pay', 'c01')).id, NULL, 'nothing is left to do');
ROLLBACK;

-- Asking again leaves the reconciler its time: unsure said twice, redacted
SELECT idem_claim('pay', 'busy', '1', lease => '1 h')::text AS b \gset
SELECT idem_unsure(:'b', '{"http": 502}');
SELECT is(pg_temp.shape(idem_status('pay', 'busy')), '- unknown reconcile: who attempt error retry_after claimed_at lease_until', 'unsure: unknown at once'),
	is((idem_claim('pay', 'busy', '1')).error, '{"http": 502}', 'with the detail');
SELECT idem_reconcile('pay')::text AS rb \gset
SELECT is((:'rb'::idem_answer).error, '{"http": 502}', 'the reconciler is told it too');
BEGIN;
SELECT idem_unsure(:'b', '{"http": 504}');
SELECT is(pg_temp.queue('pay'), NULL, 'unsure again while a reconciler has it: not handed to another');
SELECT lives_ok(format('SELECT idem_resolve(''pay'', ''busy'', ''succeeded'', fence => %s)', (:'rb'::idem_answer).fence), 'whose fence is still good');
ROLLBACK;
BEGIN;
SELECT idem_redact('pay', 'busy');
SELECT is(pg_temp.queue('pay'), NULL, 'redacted while a reconciler has it: not handed to another');
SELECT lives_ok(format('SELECT idem_resolve(''pay'', ''busy'', ''succeeded'', fence => %s)', (:'rb'::idem_answer).fence), 'whose fence is still good');
ROLLBACK;

-- What may be found out
SELECT is(pg_temp.shape(a), '- succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'resolved as succeeded'),
	is(a.result, '{"charge": 5}', 'the detail is the result'), is(a.expires_at - a.finished_at, '24 h', 'kept from now on')
  FROM idem_resolve('pay', 'c01', 'succeeded', '{"charge": 5}', fence => (:'r'::idem_answer).fence) a;
SELECT is(pg_temp.shape(idem_claim('pay', 'c01', '1')), 'replay succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'claims replay it');
SELECT throws_ok(format('SELECT idem_complete(%L, ''"late"'')', :'c'), 'ID002', NULL, 'the owner comes too late: ID002');
SELECT throws_ok('SELECT idem_resolve(''pay'', ''c01'', ''failed'')', 'ID002', NULL, 'resolving twice: ID002');
SELECT is((pg_temp.entry('pay', 'c01')).id, NULL, 'nothing is left to do');
SELECT is((idem_resolve('pay', 'busy', 'failed', '{"code": "declined"}')).error, '{"code": "declined"}', 'resolved by a person as failed: the detail is the error');
SELECT is(pg_temp.shape(idem_claim('pay', 'busy', '1')), 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at', 'claims replay the failure: for good');

SELECT idem_claim('pay', 'never sent', '1', lease => '1 h')::text AS n \gset
SELECT idem_unsure(:'n', '"timeout"');
SELECT is(pg_temp.shape(idem_resolve('pay', 'never sent', 'not_executed')), '- absent retry_same_key: who retry_after', 'resolved as not executed: absent');
SELECT throws_ok(format('SELECT idem_complete(%L)', :'n'), 'ID002', NULL, 'the former owner: ID002');
BEGIN;
SELECT is(pg_temp.shape(a), 'execute processing run: who fence attempt claimed_at', 'the key may execute again'), is(a.attempt, 2, 'attempt 2'),
	cmp_ok(a.fence, '>', (:'n'::idem_answer).fence, 'a higher fence')
  FROM idem_claim('pay', 'never sent', '1') a;
ROLLBACK;
BEGIN;
SELECT is((idem_accept('pay', 'never sent', '2')).state, 'accepted', 'or be accepted again, whatever its params');
ROLLBACK;

-- An atomic claim may be unsure too
BEGIN;
SELECT idem_unsure(c, '"no answer"') FROM idem_claim('pay', 'atomic', '1') c;
SELECT is((idem_status('pay', 'atomic')).state, 'unknown', 'an atomic claim, unsure: unknown');
COMMIT;
SELECT is(pg_temp.queue('pay'), 'atomic', 'committed: in the queue');
SELECT is((idem_resolve('pay', 'atomic', 'succeeded')).result, NULL, 'resolved without detail: no result');

-- Policy retry: a lease that is over is executed again, and not reconciled
SELECT idem_define('pay_retry', '{"on_lease_expiry": "retry"}');
SELECT idem_claim('pay_retry', 'k', '1', lease => '1 h')::text AS t \gset
SELECT idem_unsure(:'t');
SELECT is(pg_temp.queue('pay_retry'), NULL, 'policy retry: nothing to reconcile');
BEGIN;
SELECT is(a.verdict, 'execute', 'C01: policy retry: execute'), is(a.attempt, 2, 'C01: attempt 2'), cmp_ok(a.fence, '>', (:'t'::idem_answer).fence, 'C01: a higher fence')
  FROM idem_claim('pay_retry', 'k', '1', lease => '1 h') a;
SELECT throws_ok(format('SELECT idem_complete(%L)', :'t'), 'ID002', NULL, 'C50: the former owner: ID002');
SELECT throws_ok('SELECT idem_resolve(''pay_retry'', ''k'', ''succeeded'')', 'ID002', NULL, 'taken over: not unknown');
ROLLBACK;
SELECT is((idem_resolve('pay_retry', 'k', 'succeeded', '1')).state, 'succeeded', 'a person may resolve it all the same');

-- Oldest first, and by operation
SELECT count(idem_claim('order', key, lease => '1 h')) AS n FROM unnest('{c,a,d,b}'::text[]) key \gset
SELECT count(idem_claim('order2', 'e', lease => '1 h')) AS n \gset
SELECT pg_temp.overrun('order', 'a', '4 h'), pg_temp.overrun('order', 'b', '3 h'), pg_temp.overrun('order', 'c', '2 h'), pg_temp.overrun('order', 'd', '1 h'),
	pg_temp.overrun('order2', 'e', '150 min');
BEGIN;
SELECT is(pg_temp.queue('order'), 'a b c d', 'oldest first'), is(pg_temp.queue('order2'), 'e', 'of another operation');
ROLLBACK;
BEGIN;
-- other suites of this database leave unknown records of their own
DELETE FROM idempotency_internal.open_work WHERE operation NOT IN ('order', 'order2');
SELECT is(pg_temp.queue(NULL), 'a b e c d', 'of all operations, oldest first');
ROLLBACK;
BEGIN;
SELECT is(pg_temp.queue('order', 2), 'a b', 'so many'), is(pg_temp.queue('order', 1), 'c', 'the next'), is(pg_temp.queue('order'), 'd', 'the rest'), is(pg_temp.queue('order'), NULL, 'no more');
ROLLBACK;
-- whose principal the caller is not permitted is passed over
SELECT idem_define('order', '{"principal_setting": "test.tenant"}');
SET test.tenant = 'other';
SELECT is(pg_temp.queue('order'), NULL, 'not those of principals the caller is not permitted');
RESET test.tenant;
BEGIN;
SELECT isnt(pg_temp.queue('order'), NULL, 'a worker who is told no principal works for all');
ROLLBACK;
SELECT idem_define('order', '{"principal_setting": "current_user"}');
BEGIN;
SELECT isnt(pg_temp.queue('order'), NULL, 'and is not bound to its own name');
SELECT is((idem_resolve('order', 'a', 'failed', '"r"')).state::text, 'failed', 'resolves for all');
SELECT throws_ok('SELECT idem_claim(''order'', ''a'')', '42501', NULL, 'but claims for itself only');
ROLLBACK;
SELECT idem_define('order', '{"principal_setting": "test.tenant"}');
SELECT idem_define('order', '{"principal_setting": null}');

-- Tries: after reconcile_attempts a record is left to a person
SELECT idem_define('tries', '{"reconcile_attempts": 3}');
SELECT idem_claim('tries', 'k', '1', lease => '1 h', owner => 'w1')::text AS c \gset
SELECT idem_unsure(:'c', '"502"');
SELECT is(pg_temp.queue('tries'), 'k', 'try 1'); SELECT pg_temp.overrun('tries', 'k');
SELECT is(pg_temp.queue('tries'), 'k', 'try 2'); SELECT pg_temp.overrun('tries', 'k');
SELECT is((SELECT count(*) FROM idem_unresolved WHERE operation = 'tries')::int, 0, 'two tries of three: not flagged');
SELECT fence AS last FROM idem_reconcile('tries') \gset
SELECT is(due_at, NULL, 'try 3: the last'), is(tries, 3, 'counted') FROM pg_temp.entry('tries', 'k');
SELECT is(pg_temp.queue('tries'), NULL, 'no reconciler gets it any more');
SELECT is((u.id, u.principal, u.operation, u.key, u.attempt, u.owner, u.tries, u.detail)::text,
	(idem_id('tries', 'k'), 'acme', 'tries', 'k', 1, 'w1', 3, '"502"'::jsonb)::text, 'flagged for a person'),
	ok(u.unknown_since <= clock_timestamp() AND u.claimed_at <= clock_timestamp(), 'with its times')
  FROM idem_unresolved u WHERE operation = 'tries';
SELECT is((idem_claim('tries', 'k', '1')).verdict, 'unknown', 'it stays unknown'),
	is((SELECT string_agg(key || ' ' || state, ', ') FROM idem_list(operation => 'tries')), 'k unknown', 'and listed');
BEGIN;
SELECT idem_redact('tries', 'k');
SELECT is((SELECT count(*) FROM idem_unresolved WHERE operation = 'tries')::int, 1, 'redacted: still flagged');
ROLLBACK;
BEGIN;
SELECT idem_unsure(:'c', '"504"');
SELECT is((SELECT count(*) FROM idem_unresolved WHERE operation = 'tries')::int, 1, 'unsure said again: still flagged');
ROLLBACK;
BEGIN;
SELECT is((idem_resolve('tries', 'k', 'succeeded', fence => :last)).state, 'succeeded', 'the last reconciler may still resolve it');
ROLLBACK;
BEGIN;
SELECT is(idem_complete(:'c', '1'), '1', 'so may its owner complete it');
SELECT is((SELECT count(*) FROM idem_unresolved)::int, 0, 'then it is no longer flagged');
ROLLBACK;
SELECT is((idem_resolve('tries', 'k', 'not_executed')).state, 'absent', 'a person resolves it');
SELECT is((SELECT count(*) FROM idem_unresolved)::int, 0, 'no longer flagged');
SELECT idem_claim('tries', 'k', '1', lease => '1 h')::text AS c \gset
SELECT idem_unsure(:'c');
SELECT is(pg_temp.queue('tries'), 'k', 'unknown again in its second attempt: tries start anew'), is((pg_temp.entry('tries', 'k')).tries, 1, 'at one');

-- and where a claim has taken over what reconcilers could not find out
SELECT idem_unsure(idem_claim('tries_on', 'k', '1', lease => '1 h'));
SELECT is(pg_temp.queue('tries_on'), 'k', 'handed out'), is((pg_temp.entry('tries_on', 'k')).tries, 1, 'one try');
SELECT idem_define('tries_on', '{"on_lease_expiry": "retry"}');
SELECT is(a.attempt, 2, 'taken over'), is(e.tries, 0, 'no try is counted'), is(e.due_at, a.lease_until, 'nor due before its lease ends')
  FROM (SELECT (idem_claim('tries_on', 'k', '1', lease => '1 h')).*) a, LATERAL pg_temp.entry(a.operation, a.key) e;

-- What cannot be resolved
SELECT count(idem_accept('resolve', 'accepted')), count(idem_cancel('resolve', 'failed')), count(idem_once('resolve', 'succeeded')), count(idem_claim('resolve', 'running', lease => '1 h')) AS n \gset
SELECT idem_fail(idem_claim('resolve', 'retryable', lease => '1 h'), '1', true), idem_release(idem_claim('resolve', 'released', lease => '1 h'));
SELECT throws_ok(format('SELECT idem_resolve(''resolve'', %L, %L)', key, outcome), 'ID002', NULL, format('resolve, %s, as %s: ID002', key, outcome))
  FROM unnest('{never,accepted,running,succeeded,failed,retryable,released}'::text[]) key, unnest('{succeeded,failed,not_executed}'::text[]) outcome;
BEGIN;
SELECT is((idem_claim('resolve', 'open')).verdict, 'execute', 'a claim open in this transaction');
SELECT throws_ok('SELECT idem_resolve(''resolve'', ''open'', ''succeeded'')', 'ID002', NULL, 'resolve, open: ID002');
ROLLBACK;

-- Unknown in the very transaction that made it so: nobody holds it
BEGIN;
SELECT idem_unsure(idem_claim('resolve', 'unsure here', lease => '1 h'));
SELECT is(pg_temp.shape(idem_claim('resolve', 'unsure here', lease => '1 h')), 'unknown unknown reconcile: who attempt retry_after claimed_at lease_until', 'unknown at once, and without a holder');
ROLLBACK;

-- Arguments
SELECT throws_ok(format('SELECT idem_reconcile(%s)', arguments), '22023', NULL, format('reconcile(%s): 22023', arguments))
  FROM (VALUES ('lease => ''0'''), ('lease => ''-1 s'''), ('lease => ''1 mon'''), ('lease => NULL'), ('max_records => 0'), ('max_records => -1'), ('max_records => NULL'), ('''''')) v (arguments);
SELECT throws_ok(format('SELECT idem_resolve(%s)', arguments), '22023', NULL, format('resolve(%s): 22023', arguments))
  FROM (VALUES ('''resolve'', ''running'', ''done'''), ('''resolve'', ''running'', ''SUCCEEDED'''), ('''resolve'', ''running'', '''''), ('''resolve'', ''running'', NULL'),
	('''resolve'', '''', ''failed'''), ('''resolve'', NULL, ''failed'''), ('NULL, ''k'', ''failed''')) v (arguments);
SELECT idem_define('resolve', '{"max_result_bytes": 20}');
SELECT idem_unsure_key('resolve', 'running', fence) FROM idempotency_internal.record WHERE id = idem_id('resolve', 'running');
SELECT throws_ok(format('SELECT idem_resolve(''resolve'', ''running'', %L, %L)', outcome, to_json(repeat('x', 30))), 'ID004', NULL, 'resolve as ' || outcome || ', detail too large: ID004')
  FROM unnest('{succeeded,failed}'::text[]) outcome;
SELECT is((idem_status('resolve', 'running')).state, 'unknown', 'nothing changed');
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_reconcile()', '25006', NULL, 'reconcile in a read-only transaction: 25006');
ROLLBACK;
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_resolve(''resolve'', ''running'', ''failed'')', '25006', NULL, 'resolve in a read-only transaction: 25006');
ROLLBACK;

-- 300 unknown records: bounded in one call, none forgotten
SELECT idem_unsure(c) FROM (SELECT idem_claim('many', 'k' || i, lease => '1 h') c FROM generate_series(1, 300) i) c \g /dev/null
SELECT is((SELECT count(DISTINCT key) FROM (SELECT (idem_reconcile('many', 200)).key UNION ALL SELECT (idem_reconcile('many', 200)).key) r)::int, 300, 'two calls hand out all of 300, each once');

SELECT finish();
