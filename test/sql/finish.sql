-- What the owner of a claim says: complete, fail, unsure, renew, release and
-- their _key forms; C13, C50, C51, C53, C55.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
CREATE TEMP TABLE business (what text);

-- Atomic: each way to end it
SELECT is(idem_complete(c, '{"id": 7}'), '{"id": 7}', 'complete') FROM idem_claim('fin', 'complete') c;
SELECT is(pg_temp.stored('fin', 'complete'), 's 1 {"id": 7}', 'recorded');
SELECT is(idem_complete(c), NULL, 'complete without result') FROM idem_claim('fin', 'complete null') c;
SELECT is(pg_temp.stored('fin', 'complete null'), 's 1', 'recorded');
SELECT is(idem_fail(c, '{"why": 1}')::text, '', 'fail') FROM idem_claim('fin', 'fail') c;
SELECT is(pg_temp.stored('fin', 'fail'), 'f 1 {"why": 1}', 'recorded');
SELECT is(idem_fail(c, NULL)::text, '', 'fail without error') FROM idem_claim('fin', 'fail null') c;
SELECT is(pg_temp.shape(idem_claim('fin', 'fail null')), 'replay failed new_key: who attempt claimed_at finished_at expires_at forget_at', 'replayed without error');
SELECT is(idem_fail(c, '"e"', true)::text, '', 'fail, retryable') FROM idem_claim('fin', 'retryable') c;
SELECT is(pg_temp.stored('fin', 'retryable'), 't 1 "e"', 'recorded');
SELECT is(idem_fail(c, '"e"', NULL)::text, '', 'fail, retryable NULL') FROM idem_claim('fin', 'retryable null') c;
SELECT is(pg_temp.stored('fin', 'retryable null'), 'f 1 "e"', 'is false');
SELECT is(idem_unsure(c, '"sent, no answer"')::text, '', 'unsure') FROM idem_claim('fin', 'unsure') c;
SELECT is(pg_temp.shape(a), 'unknown unknown reconcile: who attempt error retry_after claimed_at lease_until', 'unknown at once'),
	is(a.error, '"sent, no answer"', 'with the detail') FROM idem_claim('fin', 'unsure') a;
SELECT is(idem_release(c)::text, '', 'release') FROM idem_claim('fin', 'release') c;
SELECT is((SELECT count(*) FROM idempotency_internal.record WHERE id = idem_id('fin', 'release')), 0::bigint, 'a fresh atomic claim released leaves no trace');
BEGIN;
SELECT is(a.attempt, 1, 'and the next is attempt 1') FROM idem_claim('fin', 'release') a;
ROLLBACK;
BEGIN;
SELECT a.*::text AS c FROM idem_claim('fin', 'renew') a \gset
SELECT throws_ok(format('SELECT idem_renew(%L, ''1 h'')', :'c'), '22023', NULL, 'an atomic claim has no lease to renew'),
	throws_ok(format('SELECT idem_complete_key(''fin'', ''renew'', %s)', (:'c'::idem_answer).fence + 1), 'ID002', NULL, 'nor another fence than its own');
ROLLBACK;

-- Atomic, with an owner
SELECT is(idem_complete(c, '1'), '1', 'an atomic claim with an owner') FROM idem_claim('fin', 'owned', owner => 'w') c;
SELECT is(pg_temp.stored('fin', 'owned'), 's 1 w 1', 'recorded with it');

-- Leased, by key and fence
SELECT fence AS f FROM idem_claim('fin', 'by key', lease => '1 h') \gset
SELECT ok(idem_renew_key('fin', 'by key', :f, '2 h') BETWEEN clock_timestamp() + '119 min' AND clock_timestamp() + '2 h', 'renew_key returns the new end');
SELECT ok(idem_renew_key('fin', 'by key', :f, '1 min') > clock_timestamp() + '119 min', 'a renewal never shortens');
SELECT is((idem_status('fin', 'by key')).lease_until, idem_renew_key('fin', 'by key', :f, '1 min'), 'as status says');
SELECT is(idem_unsure_key('fin', 'by key', :f, '"lost"')::text, '', 'unsure_key');
SELECT is((idem_status('fin', 'by key')).state, 'unknown', 'unknown at once, though the lease was running');
SELECT throws_ok(format('SELECT idem_renew_key(''fin'', ''by key'', %s, ''1 h'')', :f), 'ID002', NULL, 'no renewal after that');
SELECT is(idem_complete_key('fin', 'by key', :f, '1'), '1', 'but complete_key: a known outcome beats an unknown one');
SELECT is(pg_temp.shape(idem_status('fin', 'by key')), '- succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'the detail is gone');
SELECT fence AS f FROM idem_claim('fin', 'fail by key', lease => '1 h', principal => 'p2') \gset
SELECT throws_ok(format('SELECT idem_fail_key(''fin'', ''fail by key'', %s, ''1'')', :f), 'ID001', NULL, 'another principal''s key is a key never claimed');
SELECT is(idem_fail_key('fin', 'fail by key', :f, '"e"', true, 'p2')::text, '', 'fail_key with principal');
SELECT is((idem_status('fin', 'fail by key', 'p2')).error, '"e"', 'recorded');
SELECT fence AS f FROM idem_claim('fin', 'release by key', lease => '1 h') \gset
SELECT is(idem_release_key('fin', 'release by key', :f)::text, '', 'release_key');
SELECT is((idem_status('fin', 'release by key')).state, 'absent', 'released');
BEGIN;
SELECT fence AS f FROM idem_claim('fin', 'atomic by key') \gset
SELECT is(idem_complete_key('fin', 'atomic by key', :f, '1', 'acme'), '1', 'an atomic claim by key');
COMMIT;
SELECT is((idem_status('fin', 'atomic by key')).state, 'succeeded', 'recorded');

-- C51: lease over, nobody took over
SELECT fence AS f FROM idem_claim('fin', 'over', lease => '1 h') \gset
SELECT pg_temp.age('fin', 'over', '2 h');
SELECT throws_ok(format('SELECT idem_renew_key(''fin'', ''over'', %s, ''1 h'')', :f), 'ID002', NULL, 'C51: renew is refused');
SELECT is(idem_complete_key('fin', 'over', :f, '1'), '1', 'C51: complete is accepted');
SELECT fence AS f FROM idem_claim('fin', 'over fail', lease => '1 h') \gset
SELECT pg_temp.age('fin', 'over fail', '2 h');
SELECT is(idem_fail_key('fin', 'over fail', :f, '1')::text, '', 'C51: fail is accepted');
SELECT fence AS f FROM idem_claim('fin', 'over release', lease => '1 h') \gset
SELECT pg_temp.age('fin', 'over release', '2 h');
SELECT is(idem_release_key('fin', 'over release', :f)::text, '', 'invariant 7: the owner may release an unknown one');
BEGIN;
SELECT is(a.attempt, 2, 'which executes again') FROM idem_claim('fin', 'over release') a;
ROLLBACK;

-- Unsure under policy retry lets the next claim execute
SELECT idem_define('fin_retry', '{"on_lease_expiry": "retry"}');
SELECT is(idem_unsure(c)::text, '', 'unsure under policy retry') FROM idem_claim('fin_retry', 'k', lease => '1 h') c;
BEGIN;
SELECT is(a.attempt, 2, 'the next claim executes') FROM idem_claim('fin_retry', 'k') a;
ROLLBACK;

-- C50: stale owner, same worker name
SELECT fence AS old FROM idem_claim('fin_retry', 'stale', lease => '1 h', owner => 'w') \gset
SELECT pg_temp.age('fin_retry', 'stale', '2 h');
SELECT fence AS new FROM idem_claim('fin_retry', 'stale', lease => '1 h', owner => 'w') \gset
SELECT cmp_ok(:new::bigint, '>', :old::bigint, 'C50: a new fence');
SELECT row(r.*)::text AS before FROM idempotency_internal.record r WHERE id = idem_id('fin_retry', 'stale') \gset
SELECT throws_ok(format('SELECT idem_%s_key(''fin_retry'', ''stale'', %s%s)', what, :old, arguments), 'ID002', NULL, 'C50: the old fence cannot ' || what)
  FROM (VALUES ('complete', ''), ('fail', ', ''1'''), ('unsure', ''), ('renew', ', ''1 h'''), ('release', '')) v (what, arguments);
SELECT is(row(r.*)::text, :'before'::text, 'C50: the row is unchanged') FROM idempotency_internal.record r WHERE id = idem_id('fin_retry', 'stale');
SELECT throws_ok(format('SELECT idem_complete_key(''fin_retry'', ''stale'', %s)', fence), 'ID002', NULL, 'nor can a fence that never was')
  FROM unnest(ARRAY[0, -1, :new + 1, 9223372036854775807]) fence;
SELECT ok(idem_renew_key('fin_retry', 'stale', :new, '2 h') > now(), 'C50: the new fence can');
SELECT is(idem_complete_key('fin_retry', 'stale', :new, '"new"'), '"new"', 'C50: and completes');
SELECT throws_ok(format('SELECT idem_complete_key(''fin_retry'', ''stale'', %s, ''"new"'')', :old), 'ID002', NULL, 'the old fence cannot repeat the new one''s outcome');

-- Fences grow over retry, release and forgetting
SELECT fence AS f1 FROM idem_claim('fin', 'grows', lease => '1 h') \gset
SELECT idem_fail_key('fin', 'grows', :f1, '1', true);
SELECT fence AS f2 FROM idem_claim('fin', 'grows', lease => '1 h') \gset
SELECT idem_release_key('fin', 'grows', :f2);
SELECT fence AS f3, attempt AS a3 FROM idem_claim('fin', 'grows', lease => '1 h') \gset
SELECT ok(:f1 < :f2 AND :f2 < :f3, 'fences grow'), is(:a3, 3, 'attempts count');
SELECT throws_ok(format('SELECT idem_complete_key(''fin'', ''grows'', %s)', f), 'ID002', NULL, 'an old fence is refused') FROM unnest(ARRAY[:f1, :f2]) f;
SELECT is(idem_complete_key('fin', 'grows', :f3), NULL, 'the last completes');
UPDATE idempotency_internal.record SET fence = 9000000000000000000, state = 't', expires_at = NULL, forget_at = NULL WHERE id = idem_id('fin', 'grows');
BEGIN;
SELECT is(a.fence, 9000000000000000001, 'a fence is above the previous one, whatever the clock says') FROM idem_claim('fin', 'grows') a;
ROLLBACK;

-- C53: an answer that is no permit
SELECT idem_complete(c, '1') FROM idem_claim('fin', 'replayed') c;
SELECT is((idem_claim('fin', 'running', lease => '1 h')).verdict, 'execute', 'one in progress');
SELECT idem_unsure(c) FROM idem_claim('fin', 'lost') c;
SELECT idem_define('fin_guarded', '{"guard": "1 h"}');
SELECT idem_complete(c) FROM idem_claim('fin_guarded', 'expired') c;
SELECT pg_temp.age('fin_guarded', 'expired', '24 h');
CREATE TEMP TABLE answer AS
SELECT coalesce((a).verdict::text, 'status') || ' ' || (a).state AS what, a::text AS said
  FROM (VALUES (idem_claim('fin', 'replayed')), (idem_claim('fin', 'running')), (idem_claim('fin', 'running', '1')),
	(idem_claim('fin', 'lost')), (idem_claim('fin_guarded', 'expired')), (idem_claim('fin', 'fail')),
	(idem_status('fin', 'running')), (idem_status('fin', 'never')), (idem_status('fin', 'replayed'))) v (a);
SELECT is((said::idem_answer).fence, NULL, 'no fence with ' || what) FROM answer;
SELECT throws_ok(format(call, said), '22023', NULL, format(call, '…') || ' of ' || what)
  FROM answer, unnest('{SELECT idem_complete(%L),"SELECT idem_fail(%L, NULL)",SELECT idem_unsure(%L),"SELECT idem_renew(%L, ''1 h'')",SELECT idem_release(%L)}'::text[]) call ORDER BY what, call;
SELECT throws_ok(call, '22023', NULL, call)
  FROM unnest('{SELECT idem_complete(NULL),"SELECT idem_fail(NULL, ''1'')",SELECT idem_unsure(NULL),"SELECT idem_renew(NULL, ''1 h'')",SELECT idem_release(NULL),"SELECT idem_complete(ROW(NULL::idem_verdict, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::idem_answer)"}'::text[]) call;
-- a permit that was tampered with
SELECT idem_claim('fin', 'forged', lease => '1 h')::text AS c \gset
CREATE FUNCTION pg_temp.forge(c idem_answer, field text, value text) RETURNS text LANGUAGE sql AS
	$$ SELECT jsonb_populate_record(c, jsonb_build_object(field, value))::text $$;
SELECT throws_ok(format('SELECT idem_complete(%L)', pg_temp.forge(:'c', field, value)), state, NULL, format('%s becomes %s', field, coalesce(value, 'NULL')))
  FROM (VALUES ('verdict', 'replay', '22023'), ('verdict', NULL, '22023'), ('fence', NULL, '22023'), ('fence', '1', 'ID002'),
	('key', 'replayed', '22023'), ('key', NULL, '22023'), ('operation', 'other', '22023'), ('operation', NULL, '22023'),
	('principal', 'other', '22023'), ('principal', NULL, '22023'), ('id', NULL, '22023'), ('id', idem_id('other', 'forged')::text, '22023')) v (field, value, state)
 WHERE field <> 'principal' OR value IS NOT NULL;
SELECT is(pg_temp.stored('fin', 'forged'), 'p 1', 'the record is unchanged');
SELECT is(idem_complete(pg_temp.forge(:'c', 'claimed_at', NULL)::idem_answer), NULL, 'the other fields of a permit do not matter');
-- nor does an id stand for the texts of another claim that is open
BEGIN;
SELECT idem_claim('fin', 'open 1')::text AS c, (idem_claim('fin', 'open 2')).fence, idem_claim('fin', 'open 1', principal => 'other') \gset
SELECT throws_ok(format('SELECT idem_complete(%L)', pg_temp.forge(:'c', field, value)), '22023', NULL, format('%s of an open claim becomes %s', field, coalesce(value, 'NULL')))
  FROM (VALUES ('key', 'open 2'), ('key', NULL), ('operation', 'other'), ('principal', 'other'), ('id', idem_id('fin', 'open 2')::text)) v (field, value);
SELECT is(idem_complete(pg_temp.forge(:'c', 'principal', NULL)::idem_answer, '1'), '1', 'without a principal it is the session''s');
ROLLBACK;

-- Renewals and bad leases
SELECT fence AS f FROM idem_claim('fin', 'leases', lease => '1 h') \gset
SELECT throws_ok(format('SELECT idem_renew_key(''fin'', ''leases'', %s, %L)', :f, lease), '22023', NULL, 'renew by ' || coalesce(lease, 'NULL'))
  FROM unnest('{0,-1 s,1 mon,1 year,NULL,1000000 days}'::text[]) lease;
SELECT throws_ok('SELECT idem_renew_key(''fin'', ''leases'', NULL, ''1 h'')', '22023', NULL, 'fence NULL');
SELECT throws_ok(format('SELECT idem_complete_key(%L, %L, 1)', operation, key), '22023', NULL, format('operation %L, key %L', operation, key))
  FROM (VALUES (NULL, 'k'), ('fin', NULL), ('', 'k'), ('fin', '')) v (operation, key);

-- ID001: nothing to finish
SELECT throws_ok(format('SELECT idem_%s_key(''fin'', ''never'', 1%s)', what, arguments), 'ID001', NULL, what || ' of a key never claimed')
  FROM (VALUES ('complete', ''), ('fail', ', ''1'''), ('unsure', ''), ('renew', ', ''1 h'''), ('release', '')) v (what, arguments);
BEGIN;
SELECT idem_claim('fin', 'rolled back')::text AS c \gset
ROLLBACK;
SELECT throws_ok(format('SELECT idem_complete(%L)', :'c'), 'ID001', NULL, 'complete after ROLLBACK');
BEGIN;
SELECT idem_claim('fin', 'released', '1')::text AS c \gset
SELECT idem_release(:'c');
SELECT throws_ok(format('SELECT idem_complete(%L)', :'c'), 'ID001', NULL, 'complete after release');
SELECT throws_ok(format('SELECT idem_release(%L)', :'c'), 'ID001', NULL, 'release after release of a claim that left no trace');
COMMIT;

-- C13: ID004, and a smaller result works
SELECT idem_define('fin_small', '{"max_result_bytes": 10}');
BEGIN;
SELECT idem_claim('fin_small', 'k')::text AS c \gset
SELECT throws_ok(format('SELECT idem_complete(%L, ''"123456789"'')', :'c'), 'ID004', NULL, 'C13: a result of 11 bytes');
SELECT throws_ok(format('SELECT idem_fail(%L, ''"123456789"'')', :'c'), 'ID004', NULL, 'an error of 11 bytes');
SELECT throws_ok(format('SELECT idem_unsure(%L, ''"123456789"'')', :'c'), 'ID004', NULL, 'a detail of 11 bytes');
SELECT is((idem_status('fin_small', 'k')).holder, pg_backend_pid(), 'C13: the claim is still open');
SELECT is(idem_complete(:'c', '"12345678"'), '"12345678"', 'C13: a result of 10 bytes');
COMMIT;
SELECT is((idem_claim('fin_small', 'k')).result, '"12345678"', 'C13: replayed');
SELECT throws_ok('SELECT idem_complete(c, to_jsonb(repeat(''x'', 1048575))) FROM idem_claim(''fin'', ''large'') c', 'ID004', NULL, 'more than 1 MiB of text');
SELECT is(length(idem_complete(c, to_jsonb(repeat('x', 1048574)))::text), 1048576, '1 MiB of text') FROM idem_claim('fin', 'large') c;
SELECT is((idem_claim('fin', 'large')).result, to_jsonb(repeat('x', 1048574)), 'replayed');
SELECT idem_complete(c, r) IS NULL FROM idem_claim('fin', 'random') c, (SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 20000) n) x (r);
SELECT is(md5((idem_claim('fin', 'random')).result::text), md5(jsonb_agg(md5(n::text))::text), 'invariant 4: a result stored out of line') FROM generate_series(1, 20000) n;

-- Repeated in the transaction that made it: a no-op, if equal
BEGIN;
SELECT idem_claim('fin', 'twice')::text AS c \gset
SELECT idem_complete(:'c', '{"a": 1, "b": 2}');
INSERT INTO business VALUES ('with writes');
SELECT is(idem_complete(:'c', '{"b": 2.0, "a": 1}'), '{"a": 1, "b": 2.0}', 'complete again, equal');
SELECT throws_ok(format('SELECT idem_complete(%L, ''{"a": 2}'')', :'c'), 'ID002', NULL, 'another result');
SELECT throws_ok(format('SELECT idem_complete(%L)', :'c'), 'ID002', NULL, 'another result, NULL');
SELECT throws_ok(format('SELECT idem_fail(%L, ''1'')', :'c'), 'ID002', NULL, 'another outcome');
SELECT throws_ok(format('SELECT idem_unsure(%L)', :'c'), 'ID002', NULL, 'unsure after all');
SELECT throws_ok(format('SELECT idem_release(%L)', :'c'), 'ID002', NULL, 'released after all');
SAVEPOINT s;
SELECT is(idem_complete(:'c', '{"a": 1, "b": 2}'), '{"a": 1, "b": 2}', 'complete again in a savepoint');
RELEASE s;
COMMIT;
SELECT is(:'SQLSTATE', '00000'::text, 'C55: committed');
SELECT is((idem_status('fin', 'twice')).state, 'succeeded', 'recorded');

-- C55: repeated in a later transaction
SELECT idem_claim('fin', 'later', lease => '1 h')::text AS c \gset
SELECT idem_complete(:'c', '{"a": 1}');
SELECT idem_complete(:'c', '{"a": 1.0}') AS result \gset
SELECT is(:'result'::jsonb, '{"a": 1.0}', 'C55: alone, it returns the same');
BEGIN;
SELECT idem_complete(:'c', '{"a": 1}') AS result, pg_current_xact_id_if_assigned() IS NULL AS no_xid \gset
COMMIT;
SELECT is(:'SQLSTATE', '00000'::text, 'C55: without writes it commits'), ok(:'no_xid', 'C55: and takes no transaction id');
BEGIN;
INSERT INTO business VALUES ('before');
SELECT idem_complete(:'c', '{"a": 1}');
COMMIT;
SELECT is(:'SQLSTATE', 'ID002'::text, 'C55: after writes COMMIT is refused');
BEGIN;
SELECT idem_complete(:'c', '{"a": 1}');
INSERT INTO business VALUES ('after');
COMMIT;
SELECT is(:'SQLSTATE', 'ID002'::text, 'C55: before writes COMMIT is refused');
BEGIN;
INSERT INTO business VALUES ('prepared');
SELECT idem_complete(:'c', '{"a": 1}');
PREPARE TRANSACTION 'idempotency finish';
SELECT is(:'SQLSTATE', 'ID002'::text, 'C55: PREPARE is refused');
BEGIN;
SELECT count(*) FROM (SELECT FROM idempotency_internal.record LIMIT 1 FOR SHARE) x;
SELECT idem_complete(:'c', '{"a": 1}');
COMMIT;
SELECT is(:'SQLSTATE', 'ID002'::text, 'a row lock counts');
CREATE SEQUENCE business_seq;
BEGIN;
SELECT nextval('business_seq');
SELECT idem_complete(:'c', '{"a": 1}');
COMMIT;
SELECT is(:'SQLSTATE', 'ID002'::text, 'nextval counts');
DROP SEQUENCE business_seq;
BEGIN;
SAVEPOINT s;
SELECT idem_complete(:'c', '{"a": 1}');
ROLLBACK TO s;
INSERT INTO business VALUES ('repetition rolled back');
COMMIT;
SELECT is(:'SQLSTATE', '00000'::text, 'a repetition rolled back to a savepoint does not count');
BEGIN;
SAVEPOINT s;
SELECT idem_complete(:'c', '{"a": 1}');
RELEASE s;
INSERT INTO business VALUES ('repetition in a savepoint');
COMMIT;
SELECT is(:'SQLSTATE', 'ID002'::text, 'a repetition in a savepoint released does');
SELECT throws_ok(format('SELECT idem_complete(%L, ''2'')', :'c'), 'ID002', NULL, 'another result: refused at once');
SELECT throws_ok(format('SELECT idem_fail(%L, ''{"a": 1}'')', :'c'), 'ID002', NULL, 'another outcome: refused at once');
SELECT is(array_agg(what), '{with writes,repetition rolled back}', 'business rows once') FROM business;
TRUNCATE business;

-- The same of a failure
SELECT idem_claim('fin', 'later fail', lease => '1 h')::text AS c \gset
SELECT idem_fail(:'c', '"e"', true);
SELECT idem_fail(:'c', '"e"', true);
SELECT is(:'SQLSTATE', '00000'::text, 'a failure repeated alone');
SELECT throws_ok(format('SELECT idem_fail(%L, ''"f"'', true)', :'c'), 'ID002', NULL, 'another error');
SELECT throws_ok(format('SELECT idem_fail(%L, ''"e"'')', :'c'), 'ID002', NULL, 'for good after retryable');
SELECT throws_ok(format('SELECT idem_complete(%L, ''"e"'')', :'c'), 'ID002', NULL, 'succeeded after all');
BEGIN;
INSERT INTO business VALUES ('failure repeated');
SELECT idem_fail(:'c', '"e"', true);
COMMIT;
SELECT is(:'SQLSTATE', 'ID002'::text, 'with writes COMMIT is refused');
-- after another attempt, the old outcome cannot be repeated
SELECT idem_complete(c, '"second"') FROM idem_claim('fin', 'later fail') c;
SELECT throws_ok(format('SELECT idem_fail(%L, ''"e"'', true)', :'c'), 'ID002', NULL, 'not after a second attempt');
SELECT is(count(*), 0::bigint, 'no business rows') FROM business;
-- two outcomes repeated in one transaction: the first is named
SELECT idem_claim('fin', 'repeated first', lease => '1 h')::text AS c, idem_claim('fin', 'repeated second', lease => '1 h')::text AS d \gset
SELECT idem_complete(:'c', '1'), idem_complete(:'d', '2') \g /dev/null
BEGIN;
INSERT INTO business VALUES ('both repeated');
SELECT idem_complete(:'c', '1'), idem_complete(:'d', '2') \g /dev/null
\set VERBOSITY terse
COMMIT;
\set VERBOSITY sqlstate
SELECT is(:'LAST_ERROR_MESSAGE'::text, format('COMMIT refused: operation "fin" (id %s) was already completed by an earlier transaction', (:'c'::idem_answer).id), 'the first of two is named');

-- A retryable failure of the last attempt is one for good, and may be repeated
SELECT idem_define('fin_once', '{"max_attempts": 1}');
SELECT idem_claim('fin_once', 'k', lease => '1 h')::text AS c \gset
SELECT idem_fail(:'c', '"e"', true);
SELECT idem_fail(:'c', '"e"', true);
SELECT is(:'SQLSTATE', '00000'::text, 'the last failure repeated');
SELECT is((idem_claim('fin_once', 'k')).error, '"e"', 'failed for good');

-- Statement forms
SELECT idem_complete(c, jsonb_build_object('n', n)) FROM generate_series(1, 3) n, idem_claim('fin', 'statement ' || n) c;
SELECT is((idem_claim('fin', 'statement 2')).result, '{"n": 2}', 'claim and complete in one statement');
SELECT is(CASE (c).verdict WHEN 'execute' THEN idem_complete(c, '"done"') ELSE (c).result END, result, 'CASE on the verdict: ' || n)
  FROM (VALUES (1, '"done"'::jsonb), (2, '"done"')) v (n, result), LATERAL (SELECT idem_claim('fin', 'case') WHERE n > 0) x (c);
WITH c AS MATERIALIZED (SELECT c FROM idem_claim('fin', 'cte') c), i AS (INSERT INTO business SELECT 'cte' FROM c WHERE (c).verdict = 'execute' RETURNING what)
SELECT is(idem_complete(c, to_jsonb(what)), '"cte"', 'with an INSERT between') FROM c, i;

SELECT * FROM finish();
