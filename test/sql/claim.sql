-- Who executes: the decision table of contract §4 row by row, with every field of
-- each answer; C02, C04, C05, C07, C11, C20, C21.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- Nothing on record: execute, attempt 1
BEGIN;
SELECT idem_claim('claim', 'fresh', '{"n": 1}')::text AS c \gset
SELECT is(pg_temp.shape(:'c'), 'execute processing run: who fence attempt claimed_at', 'nothing on record: execute');
SELECT is((c).attempt, 1, 'the first attempt'),
	is(((c).principal, (c).operation, (c).key)::text, '(acme,claim,fresh)', 'names the key'),
	is((c).id, idem_id('claim', 'fresh', 'acme'), 'and its id'),
	ok((c).fence BETWEEN extract(epoch FROM clock_timestamp()) * 1e6 - 6e7 AND extract(epoch FROM clock_timestamp()) * 1e6,
		'the fence is the time in microseconds'),
	ok((c).claimed_at BETWEEN now() AND clock_timestamp(), 'claimed_at is the real time')
  FROM (SELECT :'c'::idem_answer) x (c);

-- Open in this transaction: in progress, never waits for itself
SELECT pg_temp.shape(a) AS again, a.holder = pg_backend_pid() AS own, a.attempt AS attempt,
	clock_timestamp() - statement_timestamp() < '1 s' AS at_once
  FROM idem_claim('claim', 'fresh', '{"n": 1}', wait => '10 s') a \gset
SELECT is(:'again'::text, 'in_progress processing retry_same_key: who attempt retry_after holder claimed_at', 'open in this transaction: in progress'),
	ok(:'own', 'held by this session'), is(:attempt, 1, 'attempt as claimed'), ok(:'at_once', 'no wait for oneself');
SELECT is((idem_claim('claim', 'fresh', '{"n": 2}')).verdict, 'in_progress', 'open in this transaction, other params: the first row fits');
SELECT is(pg_temp.shape(idem_status('claim', 'fresh')), '- processing retry_same_key: who attempt retry_after holder claimed_at', 'status: held by this session');
SELECT is(idem_complete(:'c', '{"order": 1}'), '{"order": 1}', 'complete returns the result');
SELECT is(pg_temp.shape(idem_claim('claim', 'fresh', '{"n": 1}')),
	'replay succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'completed in this transaction: replay');
COMMIT;

-- Succeeded: replay
SELECT idem_claim('claim', 'fresh', '{"n": 1}')::text AS r \gset
SELECT is(pg_temp.shape(:'r'), 'replay succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'succeeded: replay');
SELECT is((r).result, '{"order": 1}', 'with the result'), is((r).attempt, 1, 'of attempt 1'),
	is((r).claimed_at, date_trunc('milliseconds', (:'c'::idem_answer).claimed_at), 'F12: claimed then, to the millisecond'),
	is((r).expires_at - (r).finished_at, '24 h', 'kept a day from completion'),
	is((r).forget_at - (r).expires_at, '0', 'without guard')
  FROM (SELECT :'r'::idem_answer) x (r);
SELECT is(idem_claim('claim', 'fresh', '{"n": 1}')::text, :'r'::text, 'each replay is the same answer');
SELECT is(idem_claim('claim', 'fresh', '{"n": 1.0}')::text, :'r'::text, 'equal params, written otherwise');
SELECT is(idem_claim('claim', 'fresh', '{"n": 1}', lease => '1 h', wait => '1 s', owner => 'w')::text, :'r'::text, 'a replay grants no lease');
SELECT idem_complete(c) FROM idem_claim('claim', 'no result') c;
SELECT is(pg_temp.shape(idem_claim('claim', 'no result')),
	'replay succeeded use_result: who attempt claimed_at finished_at expires_at forget_at', 'a result of SQL NULL replays as that');
SELECT is(idem_complete(c, 'null'), 'null', 'a result of JSON null') FROM idem_claim('claim', 'null result') c;
SELECT is((idem_claim('claim', 'null result')).result, 'null', 'replays as that');

-- C20, C21: other principal, other operation
BEGIN;
SELECT is((idem_claim('claim', 'fresh', '{"n": 1}', 'other')).verdict, 'execute', 'C20: another principal executes');
SELECT is((idem_claim('claim2', 'fresh', '{"n": 1}')).verdict, 'execute', 'C21: another operation executes');
ROLLBACK;
SELECT is(pg_temp.shape(idem_status('claim', 'fresh', 'other')), pg_temp.shape(idem_status('claim', 'never', 'other')),
	'C20: status of another''s key is that of a key never seen');
SELECT is(pg_temp.shape(idem_status('claim', 'fresh', 'other')), '- absent retry_same_key: who retry_after', 'invariant 2: a claim rolled back leaves no trace');

-- C05: keys are taken as they are
BEGIN;
SELECT is((idem_claim('claim', 'K')).verdict, 'execute', 'C05: key K');
SELECT is((idem_claim('claim', key)).verdict, 'execute', 'C05: key ' || to_json(key) || ' is another')
  FROM unnest(ARRAY['k', 'K ', ' K', E'K\n', E'K\t', ' ', '   ']) key;
ROLLBACK;
SELECT throws_ok('SELECT idem_claim(''claim'', NULL)', '22023', NULL, 'C05: key NULL');
SELECT throws_ok('SELECT idem_claim(''claim'', '''')', '22023', NULL, 'C05: key empty');

-- Another fingerprint: mismatch, never an outcome
SELECT is(pg_temp.shape(idem_claim('claim', 'fresh', params)),
	'mismatch succeeded new_key: who attempt claimed_at finished_at expires_at forget_at', 'succeeded, params ' || coalesce(params::text, 'NULL'))
  FROM unnest('{"{\"n\": 2}","{\"n\": \"1\"}","{}","null",NULL}'::jsonb[]) params;
SELECT idem_complete(c) FROM idem_claim('claim', 'without params') c;
SELECT is((idem_claim('claim', 'without params')).verdict, 'replay', 'none given, none given again');
SELECT is((idem_claim('claim', 'without params', params)).verdict, 'mismatch', 'none given, then ' || params::text)
  FROM unnest('{"{}","null"}'::jsonb[]) params;

-- Failed for good: replays the failure
SELECT idem_fail(c, '{"code": "card_declined"}') FROM idem_claim('claim', 'failed', '1') c;
SELECT is(pg_temp.shape(a), 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at', 'C07: failed for good: replay'),
	is(a.error, '{"code": "card_declined"}', 'with the error'), is(a.expires_at - a.finished_at, '24 h', 'kept a day')
  FROM idem_claim('claim', 'failed', '1') a;
SELECT is(pg_temp.shape(idem_claim('claim', 'failed', '2')),
	'mismatch failed new_key: who attempt claimed_at finished_at expires_at forget_at', 'C04: failed, other params');

-- Failed and retryable: execute, next attempt, higher fence
SELECT fence, attempt, claimed_at AS first FROM idem_claim('claim', 'retryable', '1', lease => '1 h') \gset
SELECT idem_fail_key('claim', 'retryable', :fence, '"timeout"', true);
SELECT is(pg_temp.shape(idem_claim('claim', 'retryable', '2')), 'mismatch failed new_key: who attempt claimed_at finished_at', 'C04: retryable, other params');
BEGIN;
SELECT is(pg_temp.shape(a), 'execute processing run: who fence attempt claimed_at', 'C07: retryable: execute'),
	is(a.attempt, 2, 'C07: attempt 2'), cmp_ok(a.fence, '>', :fence, 'C07: a higher fence'),
	is(a.claimed_at, :'first', 'claimed_at is that of the first claim')
  FROM idem_claim('claim', 'retryable', '1') a;
ROLLBACK;
SELECT is(pg_temp.stored('claim', 'retryable'), 't 1 "timeout"', 'a second attempt rolled back: the first stands');
SELECT idem_complete(c, '2') FROM idem_claim('claim', 'retryable', '1') c;
SELECT is(pg_temp.shape(a), 'replay succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'the second attempt succeeded: no error is left'),
	is(a.attempt, 2, 'attempt 2')
  FROM idem_claim('claim', 'retryable', '1') a;

-- … while attempts are left
SELECT idem_define('claim_twice', '{"max_attempts": 2}');
SELECT idem_fail(c, '"one"', true) FROM idem_claim('claim_twice', 'k') c;
SELECT is((idem_status('claim_twice', 'k')).expires_at, NULL, 'a failure that may be retried does not expire');
SELECT idem_fail(c, '"two"', true) FROM idem_claim('claim_twice', 'k') c;
SELECT is(pg_temp.shape(a), 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at', 'attempts used up: failed for good'),
	is(a.attempt, 2, 'attempt 2'), is(a.error, '"two"', 'the last error')
  FROM idem_claim('claim_twice', 'k') a;

-- … and before the deadline
SELECT idem_define('claim_soon', '{"deadline": "1 h"}');
SELECT idem_fail(c, '"busy"', true) FROM idem_claim('claim_soon', 'k') c;
BEGIN;
SELECT is((idem_claim('claim_soon', 'k')).attempt, 2, 'before the deadline: execute');
ROLLBACK;
SELECT pg_temp.age('claim_soon', 'k', '61 min');
SELECT is(pg_temp.shape(a), 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at', 'deadline over: failed for good'),
	ok(a.expires_at - a.claimed_at BETWEEN '25 h' AND '25 h 1 ms', 'replayed for the retention, from the deadline on')
  FROM idem_claim('claim_soon', 'k') a;

-- Lease running
SELECT idem_claim('claim', 'leased', '1', lease => '1 h', owner => 'w1')::text AS c \gset
SELECT is(pg_temp.shape(:'c'), 'execute processing run: who fence attempt claimed_at lease_until', 'leased: execute');
SELECT is(pg_temp.shape(idem_claim('claim', 'leased', '1', owner => owner)),
	'in_progress processing retry_same_key: who attempt retry_after claimed_at lease_until', 'lease running, owner ' || coalesce(owner, 'NULL'))
  FROM unnest('{w2,NULL,W1,"w1 "}'::text[]) owner;
SELECT is(idem_claim('claim', 'leased', '1', owner => 'w1')::text, :'c'::text, 'C06: the same owner gets the same answer');
SELECT is(idem_claim('claim', 'leased', '1', lease => '2 h', owner => 'w1')::text, :'c'::text, 'C06: and the same lease');
SELECT is(pg_temp.shape(idem_claim('claim', 'leased', params, owner => 'w1')),
	'mismatch processing new_key: who attempt claimed_at lease_until', 'C04: leased, other params, even of the owner')
  FROM unnest('{2,NULL}'::jsonb[]) params;
SELECT is((idem_claim('claim', 'leased no owner', lease => '1 h')).verdict, 'execute', 'leased, owner NULL');
SELECT is((idem_claim('claim', 'leased no owner', lease => '1 h')).verdict, 'in_progress', 'no owner is not the same owner');

-- C11: retry_after
SELECT ok(bool_and((a).retry_after BETWEEN '0.5 s' AND '1.5 s'), 'C11: retry_after within 0.5 to 1.5 of the policy''s'),
	ok(count(DISTINCT (a).retry_after) > 15, 'C11: and differs'),
	ok(max((a).retry_after) - min((a).retry_after) > '0.2 s', 'C11: by much')
  FROM (SELECT idem_claim('claim', 'leased', '1') FROM generate_series(1, 50)) x (a);
SELECT idem_define('claim_rarely', '{"retry_after": "1 min"}');
SELECT is((idem_claim('claim_rarely', 'k', lease => '1 h')).verdict, 'execute', 'retry_after of the policy');
SELECT ok(bool_and((a).retry_after BETWEEN '30 s' AND '90 s'), 'within 0.5 to 1.5 of 1 min')
  FROM (SELECT idem_claim('claim_rarely', 'k') FROM generate_series(1, 20)) x (a);
SELECT is((idem_claim('claim_rarely', 'leased', lease => '10 s')).verdict, 'execute', 'a lease shorter than retry_after');
SELECT ok(bool_and((a).retry_after > '0' AND (a).retry_after <= '10 s'), 'C11: not longer than the lease left')
  FROM (SELECT idem_claim('claim_rarely', 'leased') FROM generate_series(1, 10)) x (a) WHERE (a).verdict = 'in_progress';

-- Lease over: unknown, unless the policy says retry
SELECT pg_temp.age('claim', 'leased', '61 min');
SELECT is(pg_temp.shape(idem_claim('claim', 'leased', '1', owner => owner)),
	'unknown unknown reconcile: who attempt retry_after claimed_at lease_until', 'C01: lease over, owner ' || coalesce(owner, 'NULL'))
  FROM unnest('{w1,w2,NULL}'::text[]) owner;
SELECT is(pg_temp.shape(idem_claim('claim', 'leased', '2', owner => 'w1')),
	'mismatch unknown new_key: who attempt claimed_at lease_until', 'C04: unknown, other params');
SELECT pg_temp.age('claim', 'leased', '1000 days');
SELECT is((idem_claim('claim', 'leased', '1')).verdict, 'unknown', 'C57: unknown for ever');
SELECT idem_define('claim', '{"on_lease_expiry": "retry"}');
SELECT is((idem_claim('claim', 'leased', '2')).verdict, 'mismatch', 'policy retry: other params do not take over');
BEGIN;
SELECT is(pg_temp.shape(a), 'execute processing run: who fence attempt claimed_at', 'policy retry: taken over atomically'),
	is(a.attempt, 2, 'attempt 2'), cmp_ok(a.fence, '>', (:'c'::idem_answer).fence, 'a higher fence')
  FROM idem_claim('claim', 'leased', '1', lease => '0') a;
SELECT is((idem_claim('claim', 'leased', '1')).holder, pg_backend_pid(), 'taken over in this transaction: in progress');
ROLLBACK;
SELECT idem_claim('claim', 'leased', '1', lease => '1 h', owner => 'w2')::text AS d \gset
SELECT is(pg_temp.shape(:'d'), 'execute processing run: who fence attempt claimed_at lease_until', 'policy retry: taken over with a lease');
SELECT is((d).attempt, 2, 'attempt 2'), cmp_ok((d).fence, '>', (:'c'::idem_answer).fence, 'a higher fence'),
	ok((d).lease_until > now() + interval '59 min', 'a lease of its own') FROM (SELECT :'d'::idem_answer) x (d);
SELECT idem_define('claim', '{"on_lease_expiry": "reconcile"}');
SELECT idem_define('claim_twice', '{"on_lease_expiry": "retry"}');
SELECT is((idem_claim('claim_twice', 'over', lease => '1 h')).attempt, 1, 'policy retry, two attempts');
SELECT pg_temp.age('claim_twice', 'over', '61 min');
SELECT is((idem_claim('claim_twice', 'over', lease => '1 h')).attempt, 2, 'the second');
SELECT pg_temp.age('claim_twice', 'over', '61 min');
SELECT is(pg_temp.shape(idem_claim('claim_twice', 'over')), 'unknown unknown reconcile: who attempt retry_after claimed_at lease_until', 'policy retry, attempts used up: unknown');
SELECT idem_define('claim_soon', '{"on_lease_expiry": "retry"}');
SELECT is((idem_claim('claim_soon', 'over', lease => '1 h')).attempt, 1, 'policy retry, deadline in an hour');
SELECT pg_temp.age('claim_soon', 'over', '61 min');
SELECT is((idem_claim('claim_soon', 'over')).verdict, 'unknown', 'policy retry, deadline over: unknown');

-- Past retention, inside guard: expired, whatever the params
SELECT idem_define('claim_guarded', '{"retention": "1 h", "guard": "1 h"}');
SELECT idem_complete(c, '1') FROM idem_claim('claim_guarded', 'succeeded', '1') c;
SELECT idem_fail(c, '1') FROM idem_claim('claim_guarded', 'failed', '1') c;
SELECT is((idem_claim('claim_guarded', key, '1')).verdict, 'replay', key || ', kept') FROM unnest('{succeeded,failed}'::text[]) key;
SELECT pg_temp.age('claim_guarded', key, '61 min') FROM unnest('{succeeded,failed}'::text[]) key;
SELECT is(pg_temp.shape(idem_claim('claim_guarded', key, params)),
	'expired expired reconcile: who attempt claimed_at finished_at expires_at forget_at', key || ', inside guard, params ' || coalesce(params::text, 'NULL'))
  FROM unnest('{succeeded,failed}'::text[]) key, unnest('{1,2,NULL}'::jsonb[]) params;

-- Past retention and guard: as if never seen, but the fence grows
SELECT fence AS old FROM idempotency_internal.record WHERE id = idem_id('claim_guarded', 'succeeded') \gset
SELECT pg_temp.age('claim_guarded', key, '1 h') FROM unnest('{succeeded,failed}'::text[]) key;
SELECT is(pg_temp.shape(idem_status('claim_guarded', 'succeeded')), '- absent retry_same_key: who retry_after', 'past guard: absent');
BEGIN;
SELECT is(pg_temp.shape(a), 'execute processing run: who fence attempt claimed_at', 'past guard: execute'),
	is(a.attempt, 1, 'attempt 1 again'), cmp_ok(a.fence, '>', :old, 'a higher fence'), ok(a.claimed_at >= now(), 'claimed now')
  FROM idem_claim('claim_guarded', 'succeeded', '"other params"') a;
ROLLBACK;
SELECT is((idem_status('claim_guarded', 'succeeded')).state, 'absent', 'and rolled back: absent as before');
SELECT is(idem_complete(c, '"again"'), '"again"', 'executed anew') FROM idem_claim('claim_guarded', 'succeeded', '2') c;
SELECT is((idem_claim('claim_guarded', 'succeeded', '2')).result, '"again"', 'and replayed');
SELECT is((idem_claim('claim_guarded', 'failed', '2', lease => '1 h')).attempt, 1, 'past guard, leased: attempt 1');
SELECT is(pg_temp.shape(idem_status('claim_guarded', 'failed')),
	'- processing retry_same_key: who attempt retry_after claimed_at lease_until', 'nothing of the forgotten record is left');

-- Released: absent, the next attempt executes
SELECT fence FROM idem_claim('claim', 'released', '1', lease => '1 h') \gset
SELECT idem_release_key('claim', 'released', :fence);
SELECT is(pg_temp.shape(idem_status('claim', 'released')), '- absent retry_same_key: who retry_after', 'released: absent');
BEGIN;
SELECT is(pg_temp.shape(a), 'execute processing run: who fence attempt claimed_at', 'released: execute'),
	is(a.attempt, 2, 'the next attempt'), cmp_ok(a.fence, '>', :fence, 'a higher fence')
  FROM idem_claim('claim', 'released', '"other params"') a;
ROLLBACK;
SELECT pg_temp.age('claim', 'released', '25 h');
BEGIN;
SELECT is(a.attempt, 1, 'released long ago: attempt 1'), cmp_ok(a.fence, '>', :fence, 'a higher fence all the same') FROM idem_claim('claim', 'released') a;
ROLLBACK;

-- Leased within this transaction
BEGIN;
SELECT idem_claim('claim', 'own', '1', lease => '1 h', owner => 'w')::text AS c \gset
SELECT pg_temp.shape(a) AS again, a.holder = pg_backend_pid() AS own, clock_timestamp() - statement_timestamp() < '1 s' AS at_once
  FROM idem_claim('claim', 'own', '1', wait => '10 s') a \gset
SELECT is(:'again'::text, 'in_progress processing retry_same_key: who attempt retry_after holder claimed_at lease_until', 'leased in this transaction: in progress'),
	ok(:'own', 'held by this session'), ok(:'at_once', 'no wait for oneself');
SELECT is(idem_claim('claim', 'own', '1', owner => 'w')::text, :'c'::text, 'leased in this transaction, same owner: the same answer');
ROLLBACK;
SELECT is((idem_status('claim', 'own')).state, 'absent', 'rolled back: no trace');

-- lease: the policy's, or the argument's
SELECT idem_define('claim_leased', '{"lease": "1 h", "wait": "1 ms"}');
SELECT ok(lease_until - claimed_at BETWEEN '1 h' AND '1 h 1 min', 'lease of the policy') FROM idem_claim('claim_leased', 'a');
SELECT ok(lease_until - claimed_at BETWEEN '10 min' AND '11 min', 'lease of the argument') FROM idem_claim('claim_leased', 'b', lease => '10 min');
BEGIN;
SELECT is(lease_until, NULL, 'C02: lease 0 is atomic whatever the policy') FROM idem_claim('claim_leased', 'c', lease => '0');
ROLLBACK;

-- Claim and outcome in one statement
SELECT is(idem_complete(c, '{"in": "one"}'), '{"in": "one"}', 'claim and complete in one statement') FROM idem_claim('claim', 'one statement') c;
SELECT is((idem_claim('claim', 'one statement')).result, '{"in": "one"}', 'replayed');
SELECT is((SELECT count(idem_complete(c, to_jsonb(n))) FROM generate_series(1, 100) n, idem_claim('claim', 'many ' || n) c), 100::bigint, 'a hundred in one statement');
SELECT is(count(*), 100::bigint, 'replayed') FROM generate_series(1, 100) n, idem_claim('claim', 'many ' || n) a WHERE a.result = to_jsonb(n);
WITH c AS MATERIALIZED (SELECT c FROM idem_claim('claim', 'cte') c)
SELECT is(idem_complete(c), NULL, 'claim in a CTE') FROM c;
SELECT is((idem_status('claim', 'cte')).state, 'succeeded', 'recorded');

SELECT * FROM finish();
