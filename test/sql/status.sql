-- What is known of a key: every state with every field, and that asking changes
-- nothing.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

SELECT is(pg_temp.shape(idem_status('status', 'never')), '- absent retry_same_key: who retry_after', 'never seen: absent');
SELECT idem_complete(c, '{"r": 1}') FROM idem_claim('status', 'succeeded', '{"p": 1}') c;
SELECT is(pg_temp.shape(a), '- succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'succeeded'), is(a.result, '{"r": 1}', 'with the result'), is(a.attempt, 1, 'and attempt')
  FROM idem_status('status', 'succeeded') a;
SELECT is(to_jsonb(idem_status('status', 'succeeded')) - 'verdict', to_jsonb(idem_claim('status', 'succeeded', '{"p": 1}')) - 'verdict', 'but for the verdict it is what a claim answers');
SELECT idem_fail(c, '"e"') FROM idem_claim('status', 'failed') c;
SELECT is(pg_temp.shape(a), '- failed new_key: who attempt error claimed_at finished_at expires_at forget_at', 'failed for good'), is(a.error, '"e"', 'with the error') FROM idem_status('status', 'failed') a;
SELECT idem_fail(c, '"e"', true) FROM idem_claim('status', 'retryable') c;
SELECT is(pg_temp.shape(a), '- failed retry_same_key: who attempt error retry_after claimed_at finished_at', 'failed, retryable: the key may be retried'), is(a.error, '"e"', 'with the error') FROM idem_status('status', 'retryable') a;
SELECT idem_define('status_once', '{"max_attempts": 1}');
SELECT idem_fail(c, '"e"', true) FROM idem_claim('status_once', 'used up') c;
SELECT is(pg_temp.shape(idem_status('status_once', 'used up')), '- failed new_key: who attempt error claimed_at finished_at expires_at forget_at', 'failed, attempts used up');
SELECT verdict FROM idem_claim('status', 'leased', lease => '1 h', owner => 'w');
SELECT is(pg_temp.shape(a), '- processing retry_same_key: who attempt retry_after claimed_at lease_until', 'lease running'), is(a.fence, NULL, 'the fence is the owner''s alone') FROM idem_status('status', 'leased') a;
SELECT pg_temp.age('status', 'leased', '2 h');
SELECT is(pg_temp.shape(idem_status('status', 'leased')), '- unknown reconcile: who attempt retry_after claimed_at lease_until', 'lease over');
SELECT idem_unsure(c, '"d"') FROM idem_claim('status', 'unsure') c;
SELECT is(pg_temp.shape(a), '- unknown reconcile: who attempt error retry_after claimed_at lease_until', 'unsure'), is(a.error, '"d"', 'with the detail') FROM idem_status('status', 'unsure') a;
SELECT idem_release(c) FROM idem_claim('status', 'released', lease => '1 h') c;
SELECT is(pg_temp.shape(idem_status('status', 'released')), '- absent retry_same_key: who retry_after', 'released: absent');
SELECT idem_define('status_guarded', '{"retention": "1 h", "guard": "1 h"}');
SELECT idem_complete(c, '"gone"') FROM idem_claim('status_guarded', 'expired') c;
SELECT pg_temp.age('status_guarded', 'expired', '90 min');
SELECT is(pg_temp.shape(idem_status('status_guarded', 'expired')), '- expired reconcile: who attempt claimed_at finished_at expires_at forget_at', 'inside guard: expired, and no result');
SELECT pg_temp.age('status_guarded', 'expired', '90 min');
SELECT is(pg_temp.shape(idem_status('status_guarded', 'expired')), '- absent retry_same_key: who retry_after', 'past guard: absent');

-- Whose key it is
SELECT is((idem_status('status', 'succeeded', 'other')).state, 'absent', 'another principal''s'), is((idem_status('other', 'succeeded')).state, 'absent', 'another operation''s'),
	is((idem_status('status', 'succeeded', 'acme')).state, 'succeeded', 'principal given');
SELECT throws_ok(format('SELECT idem_status(%L, %L, %L)', o, k, p), '22023', NULL, format('operation %L, key %L, principal %L', o, k, p))
  FROM (VALUES (NULL, 'k', 'p'), ('', 'k', 'p'), ('o', NULL, 'p'), ('o', '', 'p'), ('o', 'k', '')) v (o, k, p);
SET idempotency.principal = '';
SELECT throws_ok('SELECT idem_status(''status'', ''succeeded'')', '22023', NULL, 'no principal');
SET idempotency.principal = 'acme';

-- retry_after is jittered
SELECT ok(bool_and((a).retry_after BETWEEN '0.5 s' AND '1.5 s'), 'retry_after within 0.5 to 1.5 of the policy''s'), ok(count(DISTINCT (a).retry_after) > 15, 'and differs')
  FROM (SELECT idem_status('status', 'never') FROM generate_series(1, 50)) x (a);

-- In this transaction
BEGIN;
SELECT idem_claim('status', 'own')::text AS c \gset
SELECT is(pg_temp.shape(a), '- processing retry_same_key: who attempt retry_after holder claimed_at', 'claimed in this transaction'), is(a.holder, pg_backend_pid(), 'by this session') FROM idem_status('status', 'own') a;
SELECT idem_complete(:'c', '1');
SELECT is(pg_temp.shape(idem_status('status', 'own')), '- succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'completed in this transaction');
ROLLBACK;
SELECT is(pg_temp.shape(idem_status('status', 'own')), '- absent retry_same_key: who retry_after', 'rolled back');

-- Asking never claims: the key is as free as before
BEGIN;
SELECT is((idem_status('status', 'asked')).state, 'absent', 'asked') FROM generate_series(1, 3);
SELECT is((idem_claim('status', 'asked')).attempt, 1, 'then claimed');
ROLLBACK;
-- a record without a state, as an outer join gives to the view's function
SELECT is(idempotency_internal.effective_state('status', 'k', NULL, 1, 0, now(), now(), NULL, now(), now(), NULL), NULL, 'no state: none in force');

-- an operation called by many names at once keeps its own settings
SELECT is(count(*), 2000::bigint, 'two thousand operations in one session') FROM generate_series(1, 2000) n, idem_status('status op ' || n, 'k') a WHERE a.state = 'absent';
SELECT is((idem_status('status_guarded', 'expired')).state, 'absent', 'the first ones are still right');

SELECT * FROM finish();
