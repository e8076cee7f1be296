-- The inbox: idem_once as the first line of a consumer (C75), and a receiver of
-- webhooks.  docs/inbox.md has the same receiver.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- C75: what is rolled back was not consumed
BEGIN;
SELECT ok(idem_once('billing', 'evt_1'), 'C75: the first time');
SELECT ok(NOT idem_once('billing', 'evt_1'), 'not again in the same transaction');
ROLLBACK;
SELECT ok(idem_once('billing', 'evt_1'), 'C75: rolled back: true again');
SELECT ok(NOT idem_once('billing', 'evt_1'), 'then never more');
BEGIN;
SAVEPOINT handling;
SELECT ok(idem_once('billing', 'evt_2'), 'inside a savepoint');
ROLLBACK TO handling;
SELECT ok(idem_once('billing', 'evt_2'), 'C75: rolled back to it: true again');
COMMIT;
SELECT ok(NOT idem_once('billing', 'evt_2'), 'committed');
SELECT ok(idem_once('shipping', 'evt_2'), 'another consumer gets it too');
SELECT ok(idem_once('billing', 'evt_2', 'other'), 'and so does another principal''s');

-- C75: an event without an id is no event
SELECT throws_ok('SELECT ' || call, '22023', NULL, 'C75: ' || call)
  FROM unnest(ARRAY[$$idem_once('billing', NULL)$$, $$idem_once('billing', '')$$, $$idem_once(NULL, 'evt_1')$$, $$idem_once('', 'evt_1')$$, $$idem_once('billing', repeat('e', 256))$$,
	$$idem_once_many('billing', '{evt_3,NULL}')$$, $$idem_once_many('billing', '{evt_3,""}')$$]) call;
SELECT ok(idem_once('billing', 'evt_3'), 'an event beside a bad one was not consumed');

-- A receiver: verify, once, work; one transaction
CREATE TABLE pg_temp.payment (event_id text, amount numeric);
CREATE FUNCTION pg_temp.receive(id text, at text, body bytea, signatures text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
	event jsonb;
BEGIN
	IF NOT idem_webhook_verify(id, at, body, signatures, ARRAY['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw']) THEN
		RETURN 401;
	END IF;
	IF idem_once('on_payment', id, 'provider') THEN
		event := convert_from(body, 'UTF8');
		INSERT INTO pg_temp.payment VALUES (id, (event->>'amount')::numeric);
	END IF;
	RETURN 204;
END $$;
CREATE FUNCTION pg_temp.sent(id text, body bytea) RETURNS integer LANGUAGE sql AS $$
	SELECT pg_temp.receive(id, at, body, idem_webhook_sign(id, at, body, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'))
	  FROM (SELECT extract(epoch FROM clock_timestamp())::bigint::text) t (at)
$$;
SELECT is(pg_temp.sent('evt_1', '{"amount": 5}'), 204, 'a payment');
SELECT is(pg_temp.sent('evt_1', '{"amount": 5}'), 204, 'delivered twice: the sender may stop sending');
SELECT is(pg_temp.receive('evt_2', extract(epoch FROM clock_timestamp())::bigint::text, '{"amount": 7}', 'v1,forged'), 401, 'a forged one');
SELECT throws_ok($$SELECT pg_temp.sent('evt_3', '{"amount": "much"}')$$, '22P02', NULL, 'work that fails');
SELECT is(pg_temp.sent('evt_3', '{"amount": 9}'), 204, 'is received again');
SELECT is(array_agg(event_id || ' ' || amount ORDER BY event_id), '{evt_1 5,evt_3 9}', 'each once') FROM pg_temp.payment;
SELECT * FROM finish();
