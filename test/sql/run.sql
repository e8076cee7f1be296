-- idem_run: claim, call, record; whose errors are an outcome and whose are not.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

CREATE TABLE public.orders (id serial, params jsonb);
CREATE FUNCTION public.create_order(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	made orders;
BEGIN
	INSERT INTO orders (params) VALUES ($1) RETURNING * INTO made;
	RETURN jsonb_build_object('order', made.id);
END $$;

-- Executed once, replayed after
SELECT is(pg_temp.shape(a), 'execute succeeded use_result: who attempt result claimed_at', 'first: executes and succeeds'),
	is(a.result, '{"order": 1}', 'with what the function returned'), is(a.fence, NULL, 'no permit is handed out'), is(idem_http_status(a), 200, 'HTTP 200'),
	is(idem_value(a), '{"order": 1}', 'its value')
  FROM idem_run('run', 'k', '{"n": 1}', 'create_order(jsonb)') a;
SELECT is(pg_temp.shape(a), 'replay succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'again: replay'),
	is(a.result, '{"order": 1}', 'the same result')
  FROM idem_run('run', 'k', '{"n": 1}', 'create_order(jsonb)') a;
SELECT is((SELECT count(*) FROM orders)::int, 1, 'one order was made');
SELECT is((idem_run('run', 'k', '{"n": 2}', 'create_order(jsonb)')).verdict, 'mismatch', 'other params: mismatch'),
	is((idem_claim('run', 'k', '{"n": 1}')).result, '{"order": 1}', 'a claim replays it too'),
	is((idem_run('run', 'k', '{"n": 1}', 'create_order(jsonb)', 'other')).result, '{"order": 2}', 'C20: another principal executes');
BEGIN;
SELECT is((idem_run('run', 'undone', '1', 'create_order(jsonb)')).state, 'succeeded', 'run, and the transaction rolled back');
ROLLBACK;
SELECT is((idem_status('run', 'undone')).state, 'absent', 'nothing on record'), is((SELECT count(*) FROM orders)::int, 2, 'and no order');

-- It answers what a claim would
SELECT count(idem_accept('run', 'accepted', '1')), count(idem_claim('run', 'leased', '1', lease => '1 h')), count(idem_cancel('run', 'cancelled')) AS n \gset
SELECT idem_unsure(idem_claim('run', 'unknown', '1', lease => '1 h'));
SELECT idem_fail(idem_claim('run', 'retryable', '1'), '1', true);
SELECT is(concat_ws(' ', a.verdict, a.state, a.attempt), expected, k || ': ' || expected)
  FROM (VALUES ('accepted', 'in_progress accepted 0'), ('leased', 'in_progress processing 1'), ('cancelled', 'replay failed 0'), ('unknown', 'unknown unknown 1'), ('retryable', 'execute succeeded 2'))
	v (k, expected), idem_run('run', k, '1', 'create_order(jsonb)') a;
BEGIN;
SELECT is((idem_claim('run', 'open')).verdict, 'execute', 'a claim open in this transaction'), is((idem_run('run', 'open', NULL, 'create_order(jsonb)')).verdict, 'in_progress', 'run: in_progress');
ROLLBACK;
-- atomic whatever the policy
SELECT idem_define('run_leased', '{"lease": "1 h"}');
SELECT is(pg_temp.shape(idem_run('run_leased', 'k', '1', 'create_order(jsonb)')), 'execute succeeded use_result: who attempt result claimed_at', 'policy with a lease: atomic all the same');

-- Errors that are an outcome
CREATE FUNCTION public.refuse(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO orders (params) VALUES ($1);
	RAISE EXCEPTION USING ERRCODE = $1->>'sqlstate', MESSAGE = 'refused', DETAIL = coalesce($1->>'detail', ''), HINT = 'ask again';
END $$;
SELECT is(pg_temp.shape(a), 'execute failed new_key: who attempt error claimed_at', 'P0001: recorded as failed for good'),
	is(a.error, '{"sqlstate": "P0001", "message": "refused", "detail": "no stock", "hint": "ask again"}', 'with sqlstate, message, detail, hint'),
	is(idem_http_status(a), 422, 'HTTP 422'), is(a.fence, NULL, 'no permit is handed out')
  FROM idem_run('run', 'P0001', '{"sqlstate": "P0001", "detail": "no stock"}', 'refuse(jsonb)') a;
SELECT is(pg_temp.shape(a), 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at', 'again: replay'), is(a.error->>'detail', 'no stock', 'the same error')
  FROM idem_run('run', 'P0001', '{"sqlstate": "P0001", "detail": "no stock"}', 'refuse(jsonb)') a;
SELECT is((SELECT count(*) FROM orders WHERE params ? 'sqlstate')::int, 0, 'what it had written is gone');
SELECT throws_ok('SELECT idem_value(idem_run(''run'', ''P0001'', ''{"sqlstate": "P0001", "detail": "no stock"}'', ''refuse(jsonb)''))', 'ID014', NULL, 'its value: ID014');
SELECT is(concat_ws(' ', a.verdict, a.state, a.error->>'sqlstate'), 'execute failed ' || s, s || ': recorded')
  FROM unnest('{22012,22023,22P02,22000,23505,23503,23514,23502,23P01,44000,AB001,ZZZZZ,99999,T1234,U0001,P1001,HW000,IE001}'::text[]) s,
	idem_run('run', s, jsonb_build_object('sqlstate', s), 'refuse(jsonb)') a;
SELECT is((SELECT count(*) FROM idempotency_internal.record WHERE operation = 'run' AND state = 'f' AND key = error->>'sqlstate')::int, 19, 'each is on record');
CREATE TABLE public.once_only (k text UNIQUE);
CREATE FUNCTION public.insert_twice(params jsonb) RETURNS jsonb LANGUAGE sql AS $$ INSERT INTO once_only VALUES ('x'), ('x'); SELECT '1'::jsonb $$;
SELECT is((idem_run('run', 'constraint', NULL, 'insert_twice(jsonb)')).error->>'sqlstate', '23505', 'a violated constraint');
CREATE FUNCTION public.divide(params jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(1 / ($1)::int) $$;
SELECT is((idem_run('run', 'division', '0', 'divide(jsonb)')).error, '{"sqlstate": "22012", "message": "division by zero", "detail": null, "hint": null}', 'a division by zero, which has neither detail nor hint');

-- Errors that are not: raised again, and nothing is recorded
SELECT throws_ok(format('SELECT idem_run(''run'', ''not %1$s'', ''{"sqlstate": "%1$s"}'', ''refuse(jsonb)'')', s), s, 'refused', s || ': raised again'),
	is((idem_status('run', 'not ' || s)).state, 'absent', s || ': nothing on record')
  FROM unnest('{40001,40P01,40003,57P01,57P03,55P03,53100,53200,53300,08006,08003,42883,42501,42P01,42703,25006,25001,25P02,28000,0A000,54001,58030,58P01,XX000,XX001,XX002,P0000,P0002,P0003,P0004,F0000,HV000,21000,24000,26000,2BP01,2D000,38000,39000,3B001,3D000,3F000,34000,01000,02000,03000,09000,0B000,0F000,0L000,0P000,0Z000,20000,27000,2F005,72000,ID001,ID002,ID010,ID014,ID099}'::text[]) s;
SELECT is((SELECT count(*) FROM orders WHERE params ? 'sqlstate')::int, 0, 'what they had written is gone');
CREATE FUNCTION public.wait_long(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN '1'; END $$;
SET statement_timeout = '100 ms';
\echo a statement that is cancelled
SELECT idem_run('run', 'slow', NULL, 'wait_long(jsonb)');
RESET statement_timeout;
SELECT is((idem_status('run', 'slow')).state, 'absent', '57014: nothing on record');
CREATE FUNCTION public.swallow(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM refuse($1);
EXCEPTION WHEN OTHERS THEN
	RETURN jsonb_build_object('caught', SQLSTATE);
END $$;
SELECT is((idem_run('run', 'swallowed', '{"sqlstate": "40001"}', 'swallow(jsonb)')).result, '{"caught": "40001"}', 'what the function itself catches is its business');
CREATE FUNCTION public.leave_open(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN PERFORM idem_claim('run', 'inner'); RETURN '1'; END $$;
\echo a function that leaves a claim open
SELECT idem_run('run', 'outer', NULL, 'leave_open(jsonb)');
SELECT is((idem_status('run', 'outer')).state, 'absent', 'nothing on record of the outer'), is((idem_status('run', 'inner')).state, 'absent', 'nor of the inner');

-- An error in a transaction that goes on
BEGIN;
SELECT is((idem_run('run', 'in a transaction', '{"sqlstate": "AB001"}', 'refuse(jsonb)')).state, 'failed', 'failed inside a transaction');
INSERT INTO orders (params) VALUES ('"after"');
COMMIT;
SELECT is((SELECT count(*) FROM orders WHERE params = '"after"')::int, 1, 'which goes on and commits'), is((idem_status('run', 'in a transaction')).state, 'failed', 'with the failure');
BEGIN;
SAVEPOINT s;
SELECT idem_run('run', 'saved', '{"sqlstate": "40001"}', 'refuse(jsonb)');
ROLLBACK TO s;
SELECT is((idem_status('run', 'saved')).state, 'absent', 'a transient error, rolled back to a savepoint: absent');
SELECT is((idem_run('run', 'saved', '1', 'create_order(jsonb)')).attempt, 1, 'tried again in the same transaction: attempt 1');
COMMIT;
-- nested
CREATE FUNCTION public.outer_order(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	RETURN jsonb_build_object('inner', (idem_run('run', 'nested inner', $1, 'refuse(jsonb)')).error->'sqlstate', 'order', create_order($1)->'order' IS NOT NULL);
END $$;
SELECT is((idem_run('run', 'nested', '{"sqlstate": "AB001"}', 'outer_order(jsonb)')).result, '{"inner": "AB001", "order": true}', 'run inside run: each has its outcome'),
	is((idem_status('run', 'nested inner')).state, 'failed', 'the inner one''s is on record');

-- Kinds of functions
CREATE SCHEMA elsewhere;
CREATE FUNCTION elsewhere.doubled(params jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$ SELECT to_jsonb(2 * ($1)::int) $$;
SELECT is((idem_run('run', 'sql', '21', 'elsewhere.doubled(jsonb)')).result, '42', 'an SQL function in a schema that is not in the search path');
CREATE FUNCTION public.strict_one(params jsonb) RETURNS jsonb LANGUAGE plpgsql STRICT AS $$ BEGIN RETURN '"called"'; END $$;
CREATE FUNCTION public.lax_one(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RETURN jsonb_build_object('null', $1 IS NULL); END $$;
CREATE FUNCTION public.null_one(params jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT NULL::jsonb $$;
SELECT is(pg_temp.shape(idem_run('run', 'strict', NULL, 'strict_one(jsonb)')), 'execute succeeded use_result: who attempt claimed_at', 'a strict function with NULL params: succeeded with NULL'),
	is((idem_run('run', 'strict given', '1', 'strict_one(jsonb)')).result, '"called"', 'with params: called'),
	is((idem_run('run', 'lax', NULL, 'lax_one(jsonb)')).result, '{"null": true}', 'another with NULL params: called with NULL'),
	is((idem_run('run', 'json null', 'null', 'lax_one(jsonb)')).result, '{"null": false}', 'JSON null is not SQL NULL'),
	is(pg_temp.shape(idem_run('run', 'null', '1', 'null_one(jsonb)')), 'execute succeeded use_result: who attempt claimed_at', 'a function that returns NULL: succeeded with NULL'),
	is(pg_temp.shape(idem_run('run', 'null', '1', 'null_one(jsonb)')), 'replay succeeded use_result: who attempt claimed_at finished_at expires_at forget_at', 'and replayed so');

-- Functions that cannot be run
CREATE FUNCTION public.of_text(params text) RETURNS jsonb LANGUAGE sql AS $$ SELECT '1'::jsonb $$;
CREATE FUNCTION public.to_text(params jsonb) RETURNS text LANGUAGE sql AS $$ SELECT '1' $$;
CREATE FUNCTION public.of_two(params jsonb, n integer DEFAULT 1) RETURNS jsonb LANGUAGE sql AS $$ SELECT '1'::jsonb $$;
CREATE FUNCTION public.of_none() RETURNS jsonb LANGUAGE sql AS $$ SELECT '1'::jsonb $$;
CREATE FUNCTION public.to_set(params jsonb) RETURNS SETOF jsonb LANGUAGE sql AS $$ SELECT '1'::jsonb $$;
CREATE FUNCTION public.to_void(params jsonb) RETURNS void LANGUAGE sql AS $$ SELECT $$;
CREATE FUNCTION public.of_json(params json) RETURNS jsonb LANGUAGE sql AS $$ SELECT '1'::jsonb $$;
CREATE FUNCTION public.of_many(VARIADIC params jsonb[]) RETURNS jsonb LANGUAGE sql AS $$ SELECT '1'::jsonb $$;
CREATE PROCEDURE public.a_procedure(INOUT params jsonb) LANGUAGE sql AS $$ SELECT $1 $$;
CREATE AGGREGATE public.an_aggregate(jsonb) (SFUNC = jsonb_concat, STYPE = jsonb);
SELECT throws_ok(format('SELECT idem_run(''run'', ''bad'', NULL, %L)', f), '22023', NULL, f || ': 22023')
  FROM unnest('{of_text(text),to_text(jsonb),"of_two(jsonb,integer)",of_none(),to_set(jsonb),to_void(jsonb),of_json(json),of_many(jsonb[]),a_procedure(jsonb),an_aggregate(jsonb)}'::text[]) f;
SELECT throws_ok('SELECT idem_run(''run'', ''bad'', NULL, ' || f || ')', '42883', NULL, f || ': 42883')
  FROM unnest(ARRAY['''no_such_function(jsonb)''', '''create_order(text)''', '1::oid::regprocedure']) f;
SELECT throws_ok('SELECT idem_run(''run'', ''bad'', NULL, NULL)', '22023', NULL, 'no function: 22023'),
	throws_ok('SELECT idem_run(''run'', NULL, NULL, ''create_order(jsonb)'')', '22023', NULL, 'no key: 22023'),
	throws_ok('SELECT idem_run(NULL, ''bad'', NULL, ''create_order(jsonb)'')', '22023', NULL, 'no operation: 22023');
SELECT is((idem_status('run', 'bad')).state, 'absent', 'nothing on record');
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_run(''run'', ''read only'', NULL, ''lax_one(jsonb)'')', '25006', NULL, 'run in a read-only transaction: 25006');
ROLLBACK;

-- ID004: the result is too large, so nothing happened
SELECT idem_define('run_small', '{"max_result_bytes": 40}');
CREATE FUNCTION public.large_order(params jsonb) RETURNS jsonb LANGUAGE sql AS $$ INSERT INTO orders (params) VALUES ('"large"'); SELECT to_jsonb(repeat('x', 50)) $$;
SELECT throws_ok('SELECT idem_run(''run_small'', ''k'', NULL, ''large_order(jsonb)'')', 'ID004', NULL, 'a result too large: ID004');
SELECT is((idem_status('run_small', 'k')).state, 'absent', 'nothing on record'), is((SELECT count(*) FROM orders WHERE params = '"large"')::int, 0, 'and nothing done');
\echo the same as a statement of its own
SELECT idem_run('run_small', 'k', NULL, 'large_order(jsonb)');
SELECT is((idem_run('run_small', 'k', NULL, 'lax_one(jsonb)')).result, '{"null": true}', 'a smaller one then works');

-- An error too long is cut, and recorded all the same
CREATE FUNCTION public.shout(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION USING MESSAGE = 'short: é', DETAIL = repeat('"é', ($1->>'n')::int), HINT = repeat('h', ($1->>'n')::int), ERRCODE = 'P0001';
END $$;
SELECT idem_define('run_cut', '{"max_result_bytes": 300}');
SELECT is(concat_ws(' ', a.verdict, a.state, a.advice), 'execute failed new_key', 'W05: an error of megabytes is an outcome'),
	is(a.error->>'message', 'short: é', 'W05: what fits is whole'), is(a.error->>'sqlstate', 'P0001', 'W05: with its SQLSTATE'),
	is(a.error->'cut', 'true', 'W05: marked as cut'), ok(octet_length(a.error::text) BETWEEN 290 AND 300, 'W05: as long as it may be'),
	ok(a.error->>'detail' ~ '^("é)+"?$', 'W05: cut between characters')
  FROM idem_run('run_cut', 'k', '{"n": 3000000}', 'shout(jsonb)') a;
SELECT is((idem_run('run_cut', 'k', '{"n": 3000000}', 'shout(jsonb)')).verdict, 'replay', 'W05: it is recorded, and replayed');
SELECT is((idem_run('run_cut', 'short', '{"n": 1}', 'shout(jsonb)')).error->'cut', NULL, 'W05: a short one is not marked');
CREATE FUNCTION pg_temp.go_on(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE '%', repeat('x', 1000); END $$;
CREATE FUNCTION pg_temp.cut_to(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_define('run_cut', jsonb_build_object('max_result_bytes', n));
	RETURN octet_length((idem_run('run_cut', 'cut to ' || n, '1', 'pg_temp.go_on(jsonb)')).error::text);
END $$;
SELECT is(array_agg(pg_temp.cut_to(n)), array_agg(n), 'W05: to the byte') FROM generate_series(300, 307) n;
SELECT idem_define('run_cut', '{"max_result_bytes": 1}');
SELECT is((idem_run('run_cut', 'least', '{"n": 10}', 'shout(jsonb)')).error, '{"cut": true, "hint": "", "detail": "", "message": "", "sqlstate": "P0001"}', 'W05: recorded under every limit');

-- The caller's rights
CREATE ROLE regress_run_app;
CREATE ROLE regress_run_owner;
SELECT idem_grant('regress_run_app'), idem_grant('regress_run_owner');
GRANT USAGE ON SCHEMA public TO regress_run_app, regress_run_owner;
GRANT INSERT, SELECT ON orders TO regress_run_owner;
GRANT USAGE ON SEQUENCE orders_id_seq TO regress_run_owner;
CREATE FUNCTION public.who(params jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('current', current_user) $$;
CREATE FUNCTION public.who_defined(params jsonb) RETURNS jsonb LANGUAGE sql SECURITY DEFINER AS $$ INSERT INTO public.orders (params) VALUES ($1); SELECT jsonb_build_object('current', current_user) $$;
ALTER FUNCTION who_defined(jsonb) OWNER TO regress_run_owner;
CREATE FUNCTION public.forbidden(params jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '"reached"'::jsonb $$;
REVOKE ALL ON FUNCTION forbidden(jsonb) FROM PUBLIC;
CREATE SCHEMA run_hidden;
CREATE FUNCTION run_hidden.who(params jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '"reached"'::jsonb $$;
SELECT 'run_hidden.who(jsonb)'::regprocedure::oid AS hidden \gset
CREATE TEMP TABLE seen (what text, said text);
GRANT INSERT ON seen TO regress_run_app;
SELECT set_config('test.path', current_setting('search_path'), false) \g /dev/null
SET ROLE regress_run_app;
INSERT INTO seen SELECT 'who', (idem_run('run', 'who', NULL, 'who(jsonb)')).result;
INSERT INTO seen SELECT 'definer', (idem_run('run', 'definer', '"by definer"', 'who_defined(jsonb)')).result;
\echo no EXECUTE on the function
SELECT idem_run('run', 'forbidden', NULL, 'forbidden(jsonb)');
\echo F04: no USAGE of the schema, whether the function is named or numbered
SELECT idem_run('run', 'no usage', NULL, 'run_hidden.who(jsonb)');
SELECT idem_run('run', 'no usage', NULL, :hidden::oid::regprocedure);
\echo no right to what the function writes
SELECT idem_run('run', 'no insert', '1', 'create_order(jsonb)');
\echo no EXECUTE, and the key has an outcome
SELECT idem_run('run', 'who', NULL, 'forbidden(jsonb)');
RESET ROLE;
SELECT is((SELECT said FROM seen WHERE what = 'who'), '{"current": "regress_run_app"}', 'runs as the caller'),
	is((SELECT said FROM seen WHERE what = 'definer'), '{"current": "regress_run_owner"}', 'a SECURITY DEFINER function as its owner'),
	is((SELECT count(*) FROM orders WHERE params = '"by definer"')::int, 1, 'which may write'),
	is((idem_status('run', 'forbidden')).state, 'absent', 'no EXECUTE: nothing on record'),
	is((idem_status('run', 'no usage')).state, 'absent', 'F04: no USAGE: nothing on record'),
	is((idem_status('run', 'no insert')).state, 'absent', '42501 inside: nothing on record');
SELECT is(current_user::text, session_user::text, 'the caller is who it was');
SELECT idem_revoke('regress_run_app'), idem_revoke('regress_run_owner');
SET client_min_messages = error;
DROP OWNED BY regress_run_app, regress_run_owner CASCADE;
DROP ROLE regress_run_app, regress_run_owner;
DROP SCHEMA elsewhere, run_hidden CASCADE;
DROP TABLE orders, once_only CASCADE;
DROP FUNCTION create_order, refuse, insert_twice, divide, wait_long, swallow, leave_open, outer_order, strict_one, lax_one, null_one, of_text, to_text, of_two, of_none, to_set, to_void, of_json, of_many, large_order, shout, who, forbidden;
DROP PROCEDURE a_procedure;
DROP AGGREGATE an_aggregate(jsonb);

-- What the function does to settings and to many other operations must not
-- touch the policy it is run under
SELECT idem_define('run kept', '{"retention": "5 h", "guard": "1 h"}') \gset d_
CREATE FUNCTION run_much(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_status('other ' || i, 'k') FROM generate_series(1, 600) i;
	PERFORM idem_define('run kept too', '{"retention": "1 s"}');
	RETURN to_jsonb(idem_once('run nested', $1->>'k'));
END $$;
SELECT count(idem_status('warm ' || i, 'k')) FROM generate_series(1, 40) i \gset c_
SELECT is((idem_run('run kept', 'k' || i, jsonb_build_object('k', i), 'run_much(jsonb)')).result, 'true', 'nested calls, round ' || i) FROM generate_series(1, 3) i;
SELECT is(string_agg(DISTINCT concat_ws(' ', extract(epoch FROM expires_at - finished_at)::int, extract(epoch FROM forget_at - finished_at)::int), ','), '18000 21600', 'recorded under its own settings')
FROM idempotency_internal.record WHERE operation = 'run kept';
DROP FUNCTION run_much;

SELECT finish();
