-- Webhooks: idem_webhook_verify, idem_webhook_sign; C76.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- The vector that the reference libraries of Standard Webhooks are tested with
\set vector '''msg_p5jXN8AQM9LWM0D4loKWxJek'', ''1614265330'', ''{"test": 2432232314}'''
\set published 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
SELECT is(idem_webhook_sign(:vector, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'), :'published', 'C76: the published vector');
SELECT is(idem_webhook_sign(:vector, 'MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'), :'published', 'C76: a secret is base64 without whsec_ too');
SELECT ok(idem_webhook_verify(:vector, :'published', '{whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}', '100000 days'), 'C76: it verifies');
SELECT ok(NOT idem_webhook_verify(:vector, :'published', '{whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}'), 'but not today: it is old');

-- Computed elsewhere (Python's hmac): an empty body, the shortest secret; every byte in the body, a secret longer than a block, an id beyond ASCII
SELECT is(idem_webhook_sign('m', '0', '', 'eA=='), 'v1,PoejAyRaSO0EiyK4Zxho5htAi5xQdi0WHHG7u8CipDk=', 'an empty body');
SELECT is(idem_webhook_sign('msg_é€', '1700000000', decode(string_agg(lpad(to_hex(n), 2, '0'), '' ORDER BY n), 'hex'),
	'whsec_' || translate(encode(decode(string_agg(lpad(to_hex(n), 2, '0'), '' ORDER BY n) FILTER (WHERE n < 200), 'hex'), 'base64'), E'\n', '')),
	'v1,gKWW3tQfjnJzK9oO8FJfjaVeKiKD4bESZ95aLCMiP1I=', 'all bytes') FROM generate_series(0, 255) n;

-- A request as it comes in, one thing of it wrong at a time
CREATE FUNCTION pg_temp.now(away interval DEFAULT '0') RETURNS text LANGUAGE sql AS $$ SELECT floor(extract(epoch FROM clock_timestamp() + away))::bigint::text $$;
CREATE FUNCTION pg_temp.secret(name text) RETURNS text LANGUAGE sql AS $$ SELECT 'whsec_' || encode(sha256(convert_to(name, 'UTF8')), 'base64') $$;
CREATE FUNCTION pg_temp.verifies(id text, at text, body bytea, signatures text, VARIADIC secrets text[]) RETURNS boolean LANGUAGE sql AS $$ SELECT idem_webhook_verify(id, at, body, signatures, secrets) $$;
CREATE TEMP TABLE request AS SELECT 'evt_1'::text AS id, pg_temp.now() AS at, '{"paid": true}'::bytea AS body;
ALTER TABLE request ADD signature text;
UPDATE request SET signature = idem_webhook_sign(id, at, body, pg_temp.secret('new'));
SELECT ok(pg_temp.verifies(id, at, body, signature, pg_temp.secret('new')), 'C76: unchanged: true') FROM request;
SELECT ok(NOT pg_temp.verifies(wrong, at, body, signature, pg_temp.secret('new')), format('C76: id wrong (%s): false', n))
  FROM request, unnest(ARRAY['evt_2', 'EVT_1', 'evt_1 ', ' evt_1', 'evt_', '', NULL, 'evt_1.' || at]) WITH ORDINALITY w (wrong, n);
SELECT ok(NOT pg_temp.verifies(id, wrong, body, signature, pg_temp.secret('new')), format('C76: timestamp wrong (%s): false', n))
  FROM request, unnest(ARRAY[(at::bigint + 1)::text, (at::bigint - 1)::text, '0' || at, '+' || at, ' ' || at, at || ' ', at || '.0', at || '000', '-1', '', 'now', '1e9', '0x10', '999999999999', repeat('9', 100000), NULL]) WITH ORDINALITY w (wrong, n);
SELECT bool_and(NOT pg_temp.verifies(id, at, set_byte(body, n, get_byte(body, n) # 1), signature, pg_temp.secret('new'))) AS none FROM request, generate_series(0, length(body) - 1) n \gset
SELECT ok(:'none', 'C76: any byte of the body changed: false');
SELECT ok(NOT pg_temp.verifies(id, at, wrong, signature, pg_temp.secret('new')), 'another body: false') FROM request, unnest(ARRAY['', body || ' ', substr(body, 2), NULL]) wrong;
SELECT bool_and(NOT pg_temp.verifies(id, at, body, overlay(signature PLACING CASE substr(signature, n, 1) WHEN 'A' THEN 'B' ELSE 'A' END FROM n FOR 1), pg_temp.secret('new'))) AS none FROM request, generate_series(1, 47) n \gset
SELECT ok(:'none', 'any character of the signature changed: false');
SELECT ok(NOT pg_temp.verifies(id, at, body, wrong, pg_temp.secret('new')), format('signatures wrong (%s): false', n))
  FROM request, unnest(ARRAY['', ' ', 'v1', 'v1,', substr(signature, 4), 'v2,' || substr(signature, 4), 'v1a,' || substr(signature, 4), 'V1,' || substr(signature, 4), signature || 'x', left(signature, 46), signature || ',v1', '=' || signature, repeat(' v1,x', 10000), NULL]) WITH ORDINALITY w (wrong, n);
SELECT ok(pg_temp.verifies(id, at, body, good, pg_temp.secret('new')), format('one of several signatures (%s): true', n))
  FROM request, unnest(ARRAY['v1,' || repeat('A', 43) || '= ' || signature, signature || ' v1a,' || repeat('A', 88), 'v2,x  ' || signature || ' ', repeat('v1,x ', 10000) || signature]) WITH ORDINALITY w (good, n);

-- Secrets being exchanged
SELECT ok(NOT pg_temp.verifies(id, at, body, signature, pg_temp.secret('old')), 'C76: another secret: false'),
	ok(pg_temp.verifies(id, at, body, signature, pg_temp.secret('old'), pg_temp.secret('new')), 'C76: old and new: true'),
	ok(pg_temp.verifies(id, at, body, signature, pg_temp.secret('new'), pg_temp.secret('old')), 'in any order'),
	ok(pg_temp.verifies(id, at, body, idem_webhook_sign(id, at, body, pg_temp.secret('old')) || ' ' || signature, pg_temp.secret('new')), 'signed with both by the sender'),
	ok(NOT pg_temp.verifies(id, at, body, signature, pg_temp.secret('a'), pg_temp.secret('b'), pg_temp.secret('c')), 'none of three')
  FROM request;

-- An id with a point would let one signature fit two requests
SELECT ok(NOT pg_temp.verifies('evt.1', at, body, idem_webhook_sign('evt', '1', convert_to(at || '.', 'UTF8') || body, pg_temp.secret('new')), pg_temp.secret('new')),
	'C76: what was signed for id evt and timestamp 1 does not pass for id evt.1') FROM request;

-- How far the clocks may be apart, both ways
SELECT is(idem_webhook_verify('evt_1', at, '', idem_webhook_sign('evt_1', at, '', pg_temp.secret('new')), ARRAY[pg_temp.secret('new')], tolerance), expected, format('%s away, tolerance %s', away, tolerance))
  FROM (VALUES ('-4 min'::interval, '5 min'::interval, true), ('4 min', '5 min', true), ('-6 min', '5 min', false), ('6 min', '5 min', false), ('-23 h', '1 day', true), ('23 h', '1 day', true), ('-1 h', '0', false)) v (away, tolerance, expected), pg_temp.now(away) at;
SELECT is(pg_temp.verifies('evt_1', at, '', idem_webhook_sign('evt_1', at, '', pg_temp.secret('new')), pg_temp.secret('new')), expected, format('%s away', away))
  FROM (VALUES ('-4 min'::interval, true), ('4 min', true), ('-6 min', false), ('6 min', false)) v (away, expected), pg_temp.now(away) at;

-- What is configured wrongly is an error, whatever the request is like; and no
-- message shows a secret
SELECT throws_ok(format('SELECT idem_webhook_verify(%L, %L, %L, %L, %s)', id, at, body, signature, wrong), '22023', NULL, 'secrets ' || wrong)
  FROM request, unnest(ARRAY['NULL', $$'{}'$$, $$'{NULL}'$$, $$ARRAY[NULL, 'whsec_eA==']$$, $$'{""}'$$, $$'{whsec_}'$$, $$'{whsec_eA}'$$, $$'{whsec_eA=}'$$, $$'{"whsec_e A=="}'$$, $$'{whsec_e-_=}'$$, $$'{"whsec_MfKQ9r8G\n"}'$$, $$'{whsec_eA==,tell nobody}'$$, $$'{whsec_eA==}', NULL$$, $$'{whsec_eA==}', '-1 s'$$, $$'{whsec_eA==}', '1 mon'$$]) wrong;
SELECT throws_ok(format('SELECT idem_webhook_verify(NULL, NULL, NULL, NULL, %s)', wrong), '22023', NULL, 'also where the request is nothing: ' || wrong) FROM unnest(ARRAY['NULL', $$'{}'$$, $$'{tell nobody}'$$]) wrong;
SELECT * FROM pg_temp.raised($$SELECT idem_webhook_verify('evt_1', '1', '', 'v1,x', '{whsec_eA==,tell nobody}')$$);
SELECT * FROM pg_temp.raised($$SELECT idem_webhook_sign('evt_1', '1', '', 'tell nobody')$$);
SELECT throws_ok('SELECT idem_webhook_sign(' || wrong || ')', '22023', NULL, 'C76: sign ' || wrong)
  FROM unnest(ARRAY[$$'evt.1', '1', '', 'eA=='$$, $$'', '1', '', 'eA=='$$, $$'e', '', '', 'eA=='$$, $$'e', '1.5', '', 'eA=='$$, $$'e', '-1', '', 'eA=='$$, $$'e', 'now', '', 'eA=='$$, $$'e', '01', '', 'eA=='$$,
	$$'e', '1', '', ''$$, $$'e', '1', '', 'whsec_'$$, $$NULL, '1', '', 'eA=='$$, $$'e', NULL, '', 'eA=='$$, $$'e', '1', NULL, 'eA=='$$, $$'e', '1', '', NULL$$]) wrong;

-- A large body
SELECT ok(pg_temp.verifies('evt_1', at, body, idem_webhook_sign('evt_1', at, body, pg_temp.secret('new')), pg_temp.secret('new')), '16 MB') FROM pg_temp.now() at, CAST(repeat('x', 16000000) AS bytea) body;

-- What is received may be of any length: that is wrong as well
SELECT ok(NOT pg_temp.verifies(repeat('x', 270000000), at, body, signature, pg_temp.secret('new')), 'an id of 270 MB: false') FROM request;
SELECT ok(NOT pg_temp.verifies(id, repeat('1', 270000000), body, signature, pg_temp.secret('new')), 'a timestamp of 270 MB: false') FROM request;
SELECT ok(NOT pg_temp.verifies(id, at, body, repeat('x', 270000000), pg_temp.secret('new')), 'signatures of 270 MB: false') FROM request;
SELECT * FROM finish();
