-- idem_explain: the verdict it tells is that of a claim in every state, and
-- nothing of params, results, errors or others' keys is in it.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
SET intervalstyle = 'postgres';
CREATE FUNCTION pg_temp.told(key text, what text, operation text DEFAULT 'explain') RETURNS text LANGUAGE sql AS $$
SELECT string_agg(value, ' / ') FROM idem_explain($3, $1) WHERE fact = $2
$$;
-- What a claim answers, undone.
CREATE FUNCTION pg_temp.claimed(operation text, key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	verdict text;
BEGIN
	verdict := (idem_claim(operation, key, '{"secret": "param"}')).verdict;
	RAISE SQLSTATE 'UNDO1';
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
	RETURN verdict;
END
$$;
SELECT idem_define('*', '{"guard": "1 h"}'), idem_define('explain', '{"retention": "2 h", "max_attempts": 3, "reconcile_attempts": 2}');
SELECT idem_define('explain_retry', '{"on_lease_expiry": "retry", "max_attempts": 2}'), idem_define('explain_timed', '{"key_format": "uuidv7"}');
CREATE TEMP TABLE explained (operation text, key text, because text);
CREATE FUNCTION pg_temp.claim(operation text, key text, lease interval DEFAULT '1 h') RETURNS idem_answer LANGUAGE sql AS $$
SELECT idem_claim($1, $2, '{"secret": "param"}', lease => $3, owner => 'secret owner')
$$;

SELECT idem_complete(pg_temp.claim('explain', 'succeeded'), '"secret result"') \g /dev/null
SELECT idem_fail(pg_temp.claim('explain', 'failed'), '"secret error"') \g /dev/null
SELECT idem_fail(pg_temp.claim('explain', 'retryable'), '"secret error"', true) \g /dev/null
SELECT idem_fail(pg_temp.claim('explain', 'retryable later'), '"secret error"', true, '1 h') \g /dev/null
SELECT idem_fail(pg_temp.claim('explain', 'used up'), '"secret error"', true) FROM generate_series(1, 3) \g /dev/null
SELECT idem_cancel('explain', 'cancelled', reason => 'secret reason') \g /dev/null
SELECT idem_accept('explain', 'accepted', '{"secret": "param"}') \g /dev/null
SELECT idem_accept('explain', 'accepted later', '{"secret": "param"}', delay => '1 h') \g /dev/null
SELECT pg_temp.claim('explain', 'running') \g /dev/null
SELECT idem_unsure(pg_temp.claim('explain', 'unsure'), '"secret detail"') \g /dev/null
SELECT pg_temp.claim('explain', 'overran'), pg_temp.claim('explain_retry', 'overran'), pg_temp.claim('explain_retry', 'overran twice') \g /dev/null
SELECT pg_temp.age('explain', 'overran', '2 h'), pg_temp.age('explain_retry', 'overran', '2 h'), pg_temp.age('explain_retry', 'overran twice', '2 h') \g /dev/null
SELECT pg_temp.claim('explain_retry', 'overran twice') \g /dev/null
SELECT pg_temp.age('explain_retry', 'overran twice', '2 h') \g /dev/null
SELECT idem_release(pg_temp.claim('explain', 'released')), idem_release(pg_temp.claim('explain', 'released later'), '1 h') \g /dev/null
SELECT idem_complete(pg_temp.claim('explain', 'expired'), '"secret result"'), idem_complete(pg_temp.claim('explain', 'forgotten'), '"secret result"') \g /dev/null
SELECT pg_temp.age('explain', 'expired', '150 min'), pg_temp.age('explain', 'forgotten', '4 h') \g /dev/null
INSERT INTO explained VALUES
	('explain', 'never', 'nothing is on record'), ('explain', 'succeeded', 'it succeeded'), ('explain', 'failed', 'it failed for good'),
	('explain', 'retryable', 'it failed and may be tried again'), ('explain', 'retryable later', 'it failed, may be tried again, and its time has not come'),
	('explain', 'used up', 'it failed for good'), ('explain', 'cancelled', 'it was cancelled'),
	('explain', 'accepted', 'it was accepted and waits to be started'), ('explain', 'accepted later', 'it was accepted and waits to be started'),
	('explain', 'running', 'a lease is running; under the owner that took it, execute'),
	('explain', 'unsure', 'its lease is over or its owner was unsure, and on_lease_expiry is reconcile'), ('explain', 'overran', 'its lease is over or its owner was unsure, and on_lease_expiry is reconcile'),
	('explain_retry', 'overran', 'its lease is over, and on_lease_expiry is retry'),
	('explain_retry', 'overran twice', 'its lease is over or its owner was unsure, and max_attempts or deadline are used up'),
	('explain', 'released', 'it was released, or found not executed'), ('explain', 'released later', 'it was released, or found not executed, and its time has not come'),
	('explain', 'expired', 'its outcome is past retention and inside the guard'), ('explain', 'forgotten', 'what was on record is past retention and guard'),
	('explain_timed', '019a0000-0000-7000-8000-000000000001', 'nothing is on record, and the key carries a time that is longer ago than retention and guard');
SELECT is(pg_temp.told(key, 'verdict', operation), pg_temp.claimed(operation, key), format('%s %s: the verdict of a claim', operation, key)),
	is(pg_temp.told(key, 'because', operation), because, format('%s %s: %s', operation, key, because)) FROM explained;
SELECT is(array_agg(DISTINCT key), NULL, 'nothing secret') FROM explained e, idem_explain(e.operation, e.key) f
 WHERE f.fact <> 'owner' AND f.value ~ 'secret';

-- other facts
SELECT is(pg_temp.told('succeeded', 'id'), idem_id('explain', 'succeeded')::text, 'the id');
SELECT is(pg_temp.told('succeeded', 'params'), 'those it was first claimed with; with others, mismatch', 'which params'), is(pg_temp.told('cancelled', 'params'), 'any', 'cancelled: any');
SELECT is((idem_claim('explain', 'succeeded', '{}')).verdict, 'mismatch', 'so it is'), is((idem_claim('explain', 'cancelled', '{}')).verdict, 'replay', 'so it is');
SELECT idem_complete(idem_claim('explain', 'bare'));
SELECT is(pg_temp.told('bare', 'params'), 'none; with any, mismatch', 'claimed without'), is((idem_claim('explain', 'bare', '{}')).verdict, 'mismatch', 'so it is');
SELECT is(pg_temp.told('used up', 'attempt'), '3, 3 counted of max_attempts 3', 'attempts'), is(pg_temp.told('released', 'attempt'), '1, 1 of them released, 0 counted of max_attempts 3', 'less those released');
SELECT is(pg_temp.told('running', 'owner'), 'secret owner', 'the owner, for those who see all');
SELECT matches(pg_temp.told('running', 'lease until'), '^.*, in 00:59:\d\d$', 'the lease'), matches(pg_temp.told('overran', 'lease until'), '^.*, 01:00:\d\d ago$', 'a lease that is over'),
	matches(pg_temp.told('expired', 'replayed until'), '^.*, 00:30:\d\d ago$', 'retention'), matches(pg_temp.told('expired', 'remembered until'), '^.*, in 00:29:\d\d$', 'guard'),
	matches(pg_temp.told('retryable later', 'not before'), '^.*, in 00:59:\d\d$', 'its time'), is(pg_temp.told('retryable', 'not before'), NULL, 'which has come');
SELECT is(pg_temp.told('unsure', 'reconcilers'), '0 of 2 tries; handed out by idem_reconcile() when it is called next', 'reconcilers');
SELECT count(*) FROM idem_reconcile('explain', 9) \g /dev/null
SELECT matches(pg_temp.told('unsure', 'reconcilers'), '^1 of 2 tries; handed out by idem_reconcile\(\) from ', 'after a try');
UPDATE idempotency_internal.open_work SET due_at = NULL, tries = 2 WHERE id = idem_id('explain', 'unsure');
SELECT is(pg_temp.told('unsure', 'reconcilers'), 'have given up after 2 tries: find out what happened and call idem_resolve()', 'given up');
SELECT is(pg_temp.told('accepted', 'work list'), 'handed out by idem_start_next() when it is called next', 'accepted work'), matches(pg_temp.told('accepted later', 'work list'), '^handed out by idem_start_next\(\) from ', 'and later');
SELECT is(pg_temp.told('never', 'setting ' || name), said, 'where it comes from: ' || name) FROM (VALUES
	('retention', '"2 h", defined for this operation'), ('guard', '"1 h", defined for operation *'), ('wait', '"0", built in'), ('lease', 'null, built in')) v (name, said);
SELECT is((SELECT count(*) FROM idem_explain('explain', 'never') WHERE fact LIKE 'setting %'), (SELECT count(*) FROM jsonb_object_keys(idem_policy('explain'))), 'all settings');
SELECT is(array_agg(fact ORDER BY fact), NULL, 'each fact once') FROM (SELECT fact FROM idem_explain('explain', 'unsure') GROUP BY fact HAVING count(*) > 1) x;

-- in this transaction
BEGIN;
SELECT (idem_claim('explain', 'own')).verdict, (idem_claim('explain', 'retryable', '{"secret": "param"}')).verdict \g /dev/null
SELECT is(pg_temp.told(key, 'because'), 'this transaction has claimed the key itself and not finished it', 'its own claim: ' || key), is(pg_temp.told(key, 'verdict'), 'in_progress', 'is in the way of another') FROM unnest('{own,retryable}'::text[]) key;
SELECT is(pg_temp.told('own', 'holder'), format('pid %s, role %s', pg_backend_pid(), current_user), 'who it is');
ROLLBACK;
SELECT is(pg_temp.told('own', 'verdict'), 'execute', 'rolled back');

-- whose key it is
CREATE ROLE regress_app;
CREATE ROLE regress_worker;
CREATE ROLE regress_monitor;
CREATE ROLE regress_none;
SELECT idem_grant('regress_app'), idem_grant('regress_worker', 'worker'), idem_grant('regress_monitor', 'monitor');
SELECT is(pg_temp.as_role('regress_' || r, 'SELECT value FROM idem_explain(''explain'', ''succeeded'') WHERE fact = ''verdict'''), expected, r || ': ' || expected)
  FROM (VALUES ('app', 'replay'), ('worker', 'replay'), ('monitor', 'replay'), ('none', '42501')) v (r, expected);
SELECT is(coalesce(pg_temp.as_role('regress_' || r, 'SELECT value FROM idem_explain(''explain'', ''running'') WHERE fact = ''owner'''), 'nothing'), expected, 'the owner''s name opens its lease: ' || r || ': ' || expected)
  FROM (VALUES ('app', 'nothing'), ('worker', 'secret owner'), ('monitor', 'secret owner')) v (r, expected);
SELECT idem_define('explain', '{"role": "regress_worker", "principal_setting": "test.tenant"}');
SET test.tenant = 'other';
SELECT is(pg_temp.as_role('regress_' || r, 'SELECT value FROM idem_explain(''explain'', ''succeeded'') WHERE fact = ''verdict'''), expected, 'of another principal and role: ' || r || ': ' || expected)
  FROM (VALUES ('app', '42501'), ('worker', 'replay'), ('monitor', 'replay')) v (r, expected);
SELECT idem_define('explain', '{"role": null}');
SELECT is(pg_temp.as_role('regress_app', query), '42501', 'another principal, whether or not there is such a key: 42501') FROM unnest(ARRAY['SELECT count(*) FROM idem_explain(''explain'', ''succeeded'')', 'SELECT count(*) FROM idem_explain(''explain'', ''never'')',
	'SELECT id FROM idem_explain_key(''explain'', ''succeeded'', NULL)']) query;
SELECT throws_ok(format('SELECT * FROM idem_explain(%L, %L, %L)', o, k, p), '22023', NULL, format('operation %L, key %L, principal %L', o, k, p))
  FROM (VALUES (NULL, 'k', 'p'), ('*', 'k', 'p'), ('o', NULL, 'p'), ('o', '', 'p'), ('o', 'k', '')) v (o, k, p);
DROP OWNED BY regress_app, regress_worker, regress_monitor;
DROP ROLE regress_app, regress_worker, regress_monitor, regress_none;
SELECT idem_undefine('*'), idem_undefine('explain'), idem_undefine('explain_retry'), idem_undefine('explain_timed');
SELECT idem_resolve('explain', key, 'failed') FROM unnest('{unsure,overran}'::text[]) key \g /dev/null
SELECT * FROM finish();
