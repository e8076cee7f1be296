-- idem_postgrest: status, headers and body of every answer; and requests as
-- PostgREST runs them, one transaction each: by a function, and on a table with
-- a pre-request function (docs/chain.md).
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- What goes over the wire, but for the id.
CREATE FUNCTION pg_temp.response(a idem_answer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	body jsonb;
BEGIN
	PERFORM set_config('response.headers', '', true);
	body := idem_postgrest(a);
	RETURN concat_ws(' ', current_setting('response.status'), (SELECT string_agg(concat(h.key, ': ', h.value), ', ')
		FROM jsonb_array_elements(current_setting('response.headers')::jsonb) o, jsonb_each_text(o) h),
		CASE jsonb_typeof(body) WHEN 'object' THEN (body - 'id')::text ELSE coalesce(body::text, 'nothing') END);
END
$$;
CREATE FUNCTION pg_temp.answer(verdict text, state text, result jsonb DEFAULT NULL, error jsonb DEFAULT NULL, advice text DEFAULT NULL, retry_after interval DEFAULT NULL)
RETURNS idem_answer LANGUAGE sql AS $$
SELECT (verdict, state, advice, gen_random_uuid(), 'acme', 'o', 'k', NULL, 1, result, error, retry_after, NULL, NULL, NULL, NULL, NULL, NULL)::idem_answer
$$;
SELECT is(pg_temp.response(pg_temp.answer(verdict, state, result::jsonb, error::jsonb, advice, retry_after::interval)), expected, concat_ws(' ', coalesce(verdict, 'status'), state, result, error, retry_after))
  FROM (VALUES
	('replay', 'succeeded', '{"order": 1}', NULL, 'use_result', NULL, '200 Idempotent-Replayed: true {"order": 1}'),
	('execute', 'succeeded', '{"order": 1}', NULL, 'run', NULL, '200 {"order": 1}'),
	(NULL, 'succeeded', '{"order": 1}', NULL, 'use_result', NULL, '200 {"order": 1}'),
	('replay', 'succeeded', NULL, NULL, 'use_result', NULL, '200 Idempotent-Replayed: true nothing'),
	('replay', 'succeeded', '7', NULL, 'use_result', NULL, '200 Idempotent-Replayed: true 7'),
	('replay', 'failed', NULL, '{"code": "bad"}', 'new_key', NULL, '422 Idempotent-Replayed: true {"code": "bad"}'),
	('replay', 'failed', NULL, NULL, 'new_key', NULL, '422 Content-Type: application/problem+json, Idempotent-Replayed: true {"state": "failed", "title": "Failed", "advice": "new_key", "detail": "It was not done.", "status": 422}'),
	('execute', 'failed', NULL, '{"sqlstate": "23514"}', 'new_key', NULL, '422 {"sqlstate": "23514"}'),
	('in_progress', 'failed', NULL, '"busy"', 'retry_same_key', '90.1 s', '503 Retry-After: 91 "busy"'),
	('in_progress', 'processing', NULL, NULL, 'retry_same_key', '0.2 s', '409 Content-Type: application/problem+json, Retry-After: 1 {"state": "processing", "title": "In progress", "advice": "retry_same_key", "detail": "It is being worked on. Ask again, with the same key.", "status": 409}'),
	(NULL, 'processing', NULL, NULL, 'retry_same_key', '1 s', '202 Retry-After: 1 {"state": "processing", "advice": "retry_same_key"}'),
	('execute', 'accepted', NULL, NULL, 'run', NULL, '202 {"state": "accepted", "advice": "run"}'),
	('in_progress', 'accepted', NULL, NULL, 'retry_same_key', '1.001 s', '202 Retry-After: 2 {"state": "accepted", "advice": "retry_same_key"}'),
	('mismatch', 'succeeded', '{"secret": 1}', NULL, 'new_key', NULL, '422 Content-Type: application/problem+json {"state": "succeeded", "title": "Other parameters under this key", "advice": "new_key", "detail": "The key was used with other parameters. Another intent needs another key.", "status": 422}'),
	('mismatch', 'failed', NULL, '{"secret": 1}', 'new_key', NULL, '422 Content-Type: application/problem+json {"state": "failed", "title": "Other parameters under this key", "advice": "new_key", "detail": "The key was used with other parameters. Another intent needs another key.", "status": 422}'),
	('unknown', 'unknown', NULL, '{"http": 504}', 'reconcile', '1 s', '409 Content-Type: application/problem+json, Retry-After: 1 {"state": "unknown", "title": "The outcome is not known", "advice": "reconcile", "detail": "It may have been done. It is being looked into; do not use another key.", "status": 409}'),
	('expired', 'expired', NULL, NULL, 'reconcile', NULL, '410 Content-Type: application/problem+json {"state": "expired", "title": "Too late to tell", "advice": "reconcile", "detail": "The key is older than what is remembered. Look up what the operation did.", "status": 410}'),
	(NULL, 'absent', NULL, NULL, 'retry_same_key', '1 s', '404 Content-Type: application/problem+json, Retry-After: 1 {"state": "absent", "title": "Not on record", "advice": "retry_same_key", "detail": "Nothing is known of this key yet. Send the request again, with the same key.", "status": 404}'),
	-- {status, headers, body}
	('replay', 'succeeded', '{"status": 201, "headers": {"Location": "/orders/1"}, "body": {"order": 1}}', NULL, 'use_result', NULL, '201 Location: /orders/1, Idempotent-Replayed: true {"order": 1}'),
	('execute', 'succeeded', '{"status": 201, "headers": [{"Location": "/orders/1"}, {"X-N": 2}], "body": [1]}', NULL, 'run', NULL, '201 Location: /orders/1, X-N: 2 [1]'),
	('replay', 'succeeded', '{"status": 201, "headers": [1, ["a"], {"X-N": 2}, null], "body": 1}', NULL, 'use_result', NULL, '201 X-N: 2, Idempotent-Replayed: true 1'),
	('execute', 'succeeded', '{"status": 201, "headers": {"X-A": "b\r\nSet-Cookie: c", "X-N": 2}, "body": 1}', NULL, 'run', NULL, '201 X-N: 2 1'),
	('replay', 'failed', NULL, '{"status": 402, "body": {"code": "no_money"}}', 'new_key', NULL, '402 Idempotent-Replayed: true {"code": "no_money"}'),
	('execute', 'succeeded', '{"status": 204, "body": null}', NULL, 'run', NULL, '204 nothing'),
	-- and what only looks like it
	('execute', 'succeeded', '{"status": 201}', NULL, 'run', NULL, '200 {"status": 201}'),
	('execute', 'succeeded', '{"status": 99, "body": 1}', NULL, 'run', NULL, '200 {"body": 1, "status": 99}'),
	('execute', 'succeeded', '{"status": "201", "body": 1}', NULL, 'run', NULL, '200 {"body": 1, "status": "201"}'),
	('execute', 'succeeded', '{"status": 201, "body": 1, "more": 2}', NULL, 'run', NULL, '200 {"body": 1, "more": 2, "status": 201}'),
	('execute', 'succeeded', '["status", "body"]', NULL, 'run', NULL, '200 ["status", "body"]')
	) v (verdict, state, result, error, advice, retry_after, expected);

-- the id stands in the problem; what is not an answer, or still to be executed, is refused
SELECT is(idem_postgrest(a) -> 'id', to_jsonb(a.id), 'the number for support') FROM pg_temp.answer('unknown', 'unknown', advice => 'reconcile') a;
SELECT throws_ok('SELECT idem_postgrest(NULL)', '22023', NULL, 'NULL');
SELECT throws_ok('SELECT idem_postgrest(pg_temp.answer(NULL, NULL))', '22023', NULL, 'nothing');
SELECT throws_like('SELECT idem_postgrest(pg_temp.answer(''execute'', ''processing''))', 'operation "o" (id %) has no response: it is yours to execute', 'to be executed');

-- headers that were set earlier stay, but for those of the same name
BEGIN;
SELECT set_config('response.headers', '[{"Cache-Control": "no-store"}, {"retry-after": "9"}]', true) \g /dev/null
SELECT is(idem_postgrest(pg_temp.answer('in_progress', 'accepted', advice => 'retry_same_key', retry_after => '3 s')) ->> 'state', 'accepted', 'headers set earlier');
SELECT is(current_setting('response.headers')::jsonb, '[{"Cache-Control": "no-store"}, {"Retry-After": "3"}]', 'stay, but for those of the same name');
COMMIT;
SELECT is(coalesce(current_setting('response.headers', true), ''), '', 'nothing is left after the transaction');

-- Requests as PostgREST runs them: settings of the transaction, the pre-request
-- function, the main query with status and headers read in it; one transaction.
CREATE ROLE regress_web;
SELECT idem_grant('regress_web');
SELECT idem_define('*', '{"principal_setting": "request.jwt.claims ->> sub"}');
CREATE SCHEMA api;
CREATE TABLE api.orders (id int GENERATED ALWAYS AS IDENTITY, item text, quantity int CHECK (quantity > 0));
GRANT USAGE ON SCHEMA api TO regress_web;
GRANT SELECT, INSERT, UPDATE ON api.orders TO regress_web;
CREATE FUNCTION api.place(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	placed int;
BEGIN
	INSERT INTO api.orders (item, quantity) VALUES (params->>'item', (params->>'quantity')::int) RETURNING id INTO placed;
	RETURN jsonb_build_object('status', 201, 'headers', jsonb_build_object('Location', '/orders?id=eq.' || placed), 'body', jsonb_build_object('order', placed));
END $$;
CREATE FUNCTION api.create_order(params jsonb) RETURNS jsonb LANGUAGE sql AS $$
SELECT idem_postgrest(idem_run('create_order', current_setting('request.headers')::jsonb ->> 'idempotency-key', params, 'api.place(jsonb)',
	principal => current_setting('request.jwt.claims')::jsonb ->> 'sub'))
$$;
CREATE FUNCTION api.once() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	request text := concat_ws(' ', current_setting('request.method', true), current_setting('request.path', true));
	key text := current_setting('request.headers', true)::jsonb ->> 'idempotency-key';
	a idem_answer;
BEGIN
	IF key IS NULL OR request !~ '^(POST|PATCH) ' OR request ~ ' /rpc/' THEN
		RETURN;
	END IF;
	a := idem_claim(request, key, principal => current_setting('request.jwt.claims', true)::jsonb ->> 'sub');
	IF a.verdict = 'execute' THEN
		PERFORM idem_complete(a);
	ELSE
		RAISE SQLSTATE 'PGRST' USING
			MESSAGE = jsonb_build_object('code', a.verdict, 'message', coalesce(idem_postgrest(a) ->> 'detail', 'It was done before.')),
			DETAIL = jsonb_build_object('status', idem_http_status(a), 'headers', (
				SELECT jsonb_object_agg(h.key, h.value) FROM jsonb_array_elements(current_setting('response.headers')::jsonb) o, jsonb_each(o) h));
	END IF;
END $$;
CREATE FUNCTION pg_temp.request(path text, key text, body jsonb, method text DEFAULT 'POST', subject text DEFAULT 'ann') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	main text := CASE WHEN path LIKE '/rpc/%' THEN 'SELECT ' || replace(path, '/rpc/', 'api.') || '($1) AS pgrst_scalar'
		WHEN method = 'POST' THEN 'INSERT INTO api.orders (item, quantity) SELECT item, quantity FROM jsonb_to_record($1) r (item text, quantity int) RETURNING item, quantity'
		ELSE 'UPDATE api.orders SET quantity = quantity + ($1->>''quantity'')::int WHERE item = $1->>''item'' RETURNING item, quantity' END;
	said text;
	told text;
BEGIN
	PERFORM set_config('role', 'regress_web', true), set_config('request.jwt.claims', jsonb_build_object('sub', subject, 'role', 'regress_web')::text, true),
		set_config('request.method', method, true), set_config('request.path', path, true),
		set_config('request.headers', jsonb_strip_nulls(jsonb_build_object('accept', '*/*', 'idempotency-key', key))::text, true);
	PERFORM api.once();
	EXECUTE format('WITH pgrst_source AS (%s) SELECT concat_ws('' '', nullif(current_setting(''response.status'', true), ''''), nullif(current_setting(''response.headers'', true), ''''),
		coalesce(%s, ''[]'')) FROM (SELECT * FROM pgrst_source) _postgrest_t', main, CASE WHEN path LIKE '/rpc/%' THEN '(json_agg(_postgrest_t.pgrst_scalar)->0)::text' ELSE 'json_agg(_postgrest_t)::text' END)
		INTO said USING body;
	PERFORM set_config('role', 'none', true);
	RETURN said;
EXCEPTION WHEN SQLSTATE 'PGRST' THEN
	GET STACKED DIAGNOSTICS told = MESSAGE_TEXT, said = PG_EXCEPTION_DETAIL;
	RETURN said || ' ' || told;
WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;

-- by a function
SELECT is(pg_temp.request('/rpc/create_order', 'k-1', '{"item": "lamp", "quantity": 2}'), '201 [{"Location": "/orders?id=eq.1"}] {"order": 1}', 'a function: done');
SELECT is(pg_temp.request('/rpc/create_order', 'k-1', '{"item": "lamp", "quantity": 2}'), '201 [{"Location": "/orders?id=eq.1"}, {"Idempotent-Replayed": "true"}] {"order": 1}', 'and replayed, with status and headers');
SELECT matches(pg_temp.request('/rpc/create_order', 'k-1', '{"item": "lamp", "quantity": 3}'), '^422 .*problem.json.*"advice": ?"new_key"', 'other params: 422');
SELECT is(pg_temp.request('/rpc/create_order', 'k-1', '{"item": "lamp", "quantity": 2}', subject => 'bob'), '201 [{"Location": "/orders?id=eq.2"}] {"order": 2}', 'another subject: another key');
SELECT matches(pg_temp.request('/rpc/create_order', 'k-2', '{"item": "lamp", "quantity": 0}'), '^422 .*"sqlstate": ?"23514"', 'refused');
SELECT matches(pg_temp.request('/rpc/create_order', 'k-2', '{"item": "lamp", "quantity": 0}'), '^422 \[{"Idempotent-Replayed": "true"}\] .*"sqlstate": ?"23514"', 'and replayed');

-- any table
SELECT is(pg_temp.request('/orders', 't-1', '{"item": "desk", "quantity": 1}'), '[{"item":"desk","quantity":1}]', 'a table: POST is done');
SELECT is(pg_temp.request('/orders', 't-1', '{"item": "desk", "quantity": 1}'), '{"status": 200, "headers": {"Idempotent-Replayed": "true"}} {"code": "replay", "message": "It was done before."}', 'once');
SELECT is(pg_temp.request('/orders', 't-2', '{"item": "desk", "quantity": 0}'), '23514', 'one that fails');
SELECT is(pg_temp.request('/orders', 't-2', '{"item": "desk", "quantity": 4}'), '[{"item":"desk","quantity":4}]', 'leaves the key free');
SELECT is(pg_temp.request('/orders', 'p-1', '{"item": "desk", "quantity": 1}', 'PATCH'), '[{"item":"desk","quantity":2}, '||chr(10)||' {"item":"desk","quantity":5}]', 'PATCH is done');
SELECT matches(pg_temp.request('/orders', 'p-1', '{"item": "desk", "quantity": 1}', 'PATCH'), '"Idempotent-Replayed": "true"', 'once');
SELECT is(pg_temp.request('/orders', 't-1', '{"item": "desk", "quantity": 1}', 'PATCH'), '[{"item":"desk","quantity":3}, '||chr(10)||' {"item":"desk","quantity":6}]', 'a key of POST is another one of PATCH');
SELECT is(pg_temp.request('/orders', NULL, '{"item": "chair", "quantity": 1}'), '[{"item":"chair","quantity":1}]', 'without a key');
SELECT is(pg_temp.request('/orders', NULL, '{"item": "chair", "quantity": 1}'), '[{"item":"chair","quantity":1}]', 'it is done each time');
SELECT is(array_agg(item || ' ' || quantity ORDER BY id), '{lamp 2,lamp 2,desk 3,desk 6,chair 1,chair 1}', 'what is there in the end') FROM api.orders;

SELECT idem_undefine('*', '{principal_setting}');
DROP SCHEMA api CASCADE;
DROP OWNED BY regress_web;
DROP ROLE regress_web;
SELECT * FROM finish();
