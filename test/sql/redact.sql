-- idem_redact: result and error are emptied, the record goes on.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

SELECT idem_claim('redact', 'succeeded', '1', lease => '1 h')::text AS c \gset
SELECT is(idem_complete(:'c', '{"iban": "secret"}'), '{"iban": "secret"}', 'a result');
SELECT to_jsonb(a) - 'result' AS before FROM idem_status('redact', 'succeeded') a \gset
SELECT idem_redact('redact', 'succeeded');
SELECT is(pg_temp.shape(idem_claim('redact', 'succeeded', '1')), 'replay succeeded use_result: who attempt claimed_at finished_at expires_at forget_at', 'redacted: replays with NULL'),
	is(idem_value(idem_claim('redact', 'succeeded', '1')), NULL, 'its value is NULL'),
	is((idem_claim('redact', 'succeeded', '2')).verdict, 'mismatch', 'other params are still a mismatch'),
	is(to_jsonb(idem_status('redact', 'succeeded')) - 'result', :'before'::jsonb, 'all else is as it was'),
	is(idem_once('redact', 'succeeded'), false, 'once: false');
SELECT lives_ok('SELECT idem_redact(''redact'', ''succeeded'')', 'redacting twice is harmless');
SELECT is((SELECT count(*) FROM idempotency_internal.record r WHERE r::text LIKE '%secret%')::int, 0, 'the secret is gone');
SELECT throws_ok(format('SELECT idem_complete(%L, ''{"iban": "secret"}'')', :'c'), 'ID002', NULL, 'its owner completes again with the secret: ID002');
SELECT is((idem_claim('redact', 'succeeded', '1')).result, NULL, 'and it is not back');

SELECT idem_fail(idem_claim('redact', 'failed', '1'), '{"iban": "secret"}');
SELECT idem_fail(idem_claim('redact', 'retryable', '1'), '{"iban": "secret"}', true);
SELECT idem_unsure(idem_claim('redact', 'unknown', '1', lease => '1 h'), '{"iban": "secret"}');
SELECT count(idem_cancel('redact', 'cancelled', reason => 'secret')), count(idem_claim('redact', 'running', '1', lease => '1 h')), count(idem_accept('redact', 'accepted', '1')) AS n \gset
SELECT idem_redact('redact', key) FROM unnest('{failed,retryable,unknown,cancelled,running,accepted}'::text[]) key \g /dev/null
SELECT is(concat_ws(' ', a.verdict, a.state, a.error), expected, 'redacted: ' || k || ', ' || expected)
  FROM (VALUES ('failed', 'replay failed'), ('unknown', 'unknown unknown'), ('cancelled', 'replay failed'), ('running', 'in_progress processing'), ('accepted', 'in_progress accepted'))
	v (k, expected), idem_claim('redact', k, '1') a;
SELECT is((idem_claim('redact', 'cancelled', '2')).state, 'failed', 'a cancelled key matches every params still');
SELECT is(pg_temp.stored('redact', 'retryable'), 't 1', 'redacted: retryable, which may be tried again');
SELECT is((SELECT count(*) FROM idempotency_internal.record r WHERE r::text LIKE '%secret%')::int, 0, 'no secret is left');

-- Past retention, inside guard: emptied too; purge and expiry are not put off
SELECT idem_define('redact_old', '{"retention": "1 h", "guard": "1 h"}');
SELECT idem_complete(idem_claim('redact_old', 'guarded', '1'), '"secret"');
SELECT pg_temp.age('redact_old', 'guarded', '90 min');
SELECT to_jsonb(a) AS before FROM idem_status('redact_old', 'guarded') a \gset
SELECT idem_redact('redact_old', 'guarded');
SELECT is(pg_temp.stored('redact_old', 'guarded'), 's 1', 'redacted inside guard'), is(to_jsonb(idem_status('redact_old', 'guarded')), :'before'::jsonb, 'expired as it was'),
	is((idem_claim('redact_old', 'guarded', '1')).verdict, 'expired', 'and never executes');

-- Rolled back, in the transaction of the outcome, and without a record
BEGIN;
SELECT idem_complete(idem_claim('redact', 'same transaction', '1'), '"secret"');
SELECT idem_redact('redact', 'same transaction');
COMMIT;
SELECT is(pg_temp.shape(idem_claim('redact', 'same transaction', '1')), 'replay succeeded use_result: who attempt claimed_at finished_at expires_at forget_at', 'redacted in the transaction of its outcome');
SELECT idem_complete(idem_claim('redact', 'kept', '1'), '"kept"');
BEGIN;
SELECT idem_redact('redact', 'kept');
ROLLBACK;
SELECT is((idem_claim('redact', 'kept', '1')).result, '"kept"', 'redacting rolled back: the result is there');
SELECT throws_ok('SELECT idem_redact(''redact'', ''never'')', 'ID001', NULL, 'nothing on record: ID001'),
	throws_ok('SELECT idem_redact(''redact'', ''kept'', ''other'')', 'ID001', NULL, 'another principal''s: ID001');
BEGIN;
SELECT is((idem_claim('redact', 'open')).verdict, 'execute', 'a claim open in this transaction');
SELECT throws_ok('SELECT idem_redact(''redact'', ''open'')', 'ID001', NULL, 'has nothing to redact: ID001');
ROLLBACK;
SELECT fence FROM idem_claim('redact', 'repeated', '1', lease => '1 h') \gset
SELECT is(idem_complete_key('redact', 'repeated', :fence, '"secret"'), '"secret"', 'another result');
BEGIN;
SELECT idem_redact('redact', 'repeated');
SELECT is(idem_complete_key('redact', 'repeated', :fence), NULL, 'redacting makes no completion of this transaction:');
COMMIT;
SELECT is((idem_claim('redact', 'repeated', '1')).result, '"secret"', 'COMMIT was refused');
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_redact(''redact'', ''kept'')', '25006', NULL, 'redact in a read-only transaction: 25006');
ROLLBACK;
SELECT throws_ok('SELECT idem_redact(' || arguments || ')', '22023', NULL, 'redact(' || arguments || '): 22023')
  FROM unnest(ARRAY['''redact'', NULL', '''redact'', ''''', 'NULL, ''k''', '''redact'', ''k'', ''''']) arguments;

SELECT finish();
