-- Many events behind the first one of their ordering key: they are parked, and
-- none is forgotten, whatever makes the first one go away.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

SELECT idem_destination_define('tail', '{"base": "0", "cap": "0", "retry_budget": null, "breaker_failures": null}');
CREATE FUNCTION pg_temp.take() RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(e.payload #>> '{}', ' '), 'nothing') FROM idem_take('tail', 10, '1 h') e
$$;
CREATE FUNCTION pg_temp.parked() RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM idempotency_internal.outbox_due WHERE destination = 'tail' AND state = 'b' $$;
CREATE VIEW pg_temp.held AS SELECT * FROM idempotency_internal.outbox_due WHERE destination = 'tail' AND lease_until > clock_timestamp();
SELECT count(idem_emit('tail', to_jsonb('a' || n), 'a')) AS emitted FROM generate_series(1, 100) n \gset
SELECT idem_emit('tail', '"b1"', 'b') AS b1 \gset

SELECT is(pg_temp.take(), 'a1 b1', 'the first of each key, past a long tail');
SELECT is(pg_temp.parked(), 67::bigint, 'the rest of which is out of the way');
SELECT is(pg_temp.take(), 'nothing', 'one at a time');
SELECT is(pg_temp.parked(), 67::bigint, 'what is passed by stays as it is');

-- each way in which a first one goes away
SELECT idem_ack(event_id, fence) FROM pg_temp.held;
SELECT is(pg_temp.take(), 'a2', 'acknowledged');
SELECT idem_nack(event_id, fence, NULL) FROM pg_temp.held;
SELECT is(pg_temp.take(), 'a2', 'given back: it is still the first');
SELECT idem_nack(event_id, fence, NULL, false) FROM pg_temp.held;
SELECT is(pg_temp.take(), 'a3', 'made a dead letter');
SELECT idem_discard(event_id) FROM idem_dead_letter WHERE destination = 'tail';
BEGIN;
SELECT idem_ack(event_id, fence) FROM pg_temp.held;
ROLLBACK;
SELECT is(pg_temp.take(), 'nothing', 'not if that is rolled back');
SELECT idem_destination_define('tail', '{"skip_dead_head": false}');
SELECT idem_nack(event_id, fence, NULL, false) FROM pg_temp.held;
SELECT is(pg_temp.take(), 'nothing', 'not if a dead letter blocks');
SELECT idem_discard(event_id) FROM idem_dead_letter WHERE destination = 'tail';
SELECT is(pg_temp.take(), 'a4', 'but when it is discarded');
-- a dead one that blocked, when the setting changes: nobody brings the next one
-- back, but parking ends, and an operator can end it
SELECT idem_nack(event_id, fence, NULL, false) FROM pg_temp.held;
SELECT idem_destination_define('tail', '{"skip_dead_head": true}');
UPDATE idempotency_internal.outbox_due SET due_at = due_at - interval '5 min' WHERE destination = 'tail' AND state = 'b';
SELECT is(pg_temp.take(), 'a5', 'or blocks no longer, within five minutes');

-- the whole tail, in order
CREATE TEMP TABLE order_of (payload text, n serial);
INSERT INTO order_of (payload) VALUES ('a5');
DO $$
BEGIN
	FOR i IN 1 .. 300 LOOP
		PERFORM idem_ack(event_id, fence) FROM pg_temp.held;
		COMMIT;
		INSERT INTO order_of (payload) SELECT e.payload #>> '{}' FROM idem_take('tail', 10, '1 h') e;
		EXIT WHEN NOT FOUND;
		COMMIT;
	END LOOP;
END $$;
SELECT is((SELECT string_agg(payload, ' ' ORDER BY n) FROM order_of), (SELECT string_agg('a' || n, ' ' ORDER BY n) FROM generate_series(5, 100) n), 'all of the tail, in order');
SELECT is((SELECT count(*) FROM idempotency_internal.outbox_due WHERE destination = 'tail'), 1::bigint, 'nothing is left but the dead letter');
SELECT idem_discard(event_id) FROM idem_dead_letter WHERE destination = 'tail';
DELETE FROM idempotency_internal.destination WHERE destination = 'tail';

-- a dead letter among those that are taken together
SELECT idem_destination_define('lot', '{"base": "0", "cap": "0", "retry_budget": null, "breaker_failures": null}');
CREATE FUNCTION pg_temp.lot() RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(e.payload #>> '{}', ' '), 'nothing') FROM idem_take('lot', 10, '1 h', per_key => 10) e
$$;
DO $$
BEGIN
	PERFORM idem_emit('lot', to_jsonb('a' || n), 'a') FROM generate_series(1, 4) n;
	COMMIT;
	PERFORM idem_nack(event_id, fence, NULL, e.payload = '"a1"') FROM idem_take('lot', 2, per_key => 2) e;
	COMMIT;
END $$;
BEGIN;
SELECT is(pg_temp.lot(), 'a1 a3 a4', 'a dead letter is passed by behind the first one, too');
ROLLBACK;
SELECT idem_destination_define('lot', '{"skip_dead_head": false}');
SELECT is(pg_temp.lot(), 'a1', 'but where it blocks');
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE destination = 'lot' AND lease_until > now();
SELECT idem_discard(event_id) FROM idem_dead_letter WHERE destination = 'lot';
SELECT is(pg_temp.lot(), 'a3 a4', 'as long as it is there');
DELETE FROM idempotency_internal.outbox_due WHERE destination = 'lot';
-- one of them is lost
SET client_min_messages = error;
SELECT count(idem_emit('lot', to_jsonb('b' || n), 'b')) AS emitted FROM generate_series(1, 3) n \gset
DELETE FROM idempotency_internal.outbox WHERE payload = '"b2"';
SELECT is(pg_temp.lot(), 'b1 b3', 'one that is lost does not keep those behind it');
RESET client_min_messages;
-- one whose lease is over, not answered: it comes alone, so not behind another
SELECT count(idem_emit('lot', to_jsonb('c' || n), CASE WHEN n < 3 THEN 'c' END)) AS emitted FROM generate_series(1, 3) n \gset
SELECT event_id AS c1, fence AS c1_fence FROM idem_take('lot') \gset
SELECT is(e.payload, '"c3"', 'the second of a key waits') FROM idem_take('lot', 1, '1 us') e;
SELECT idem_ack(:'c1', :c1_fence);
SELECT is(pg_temp.lot(), 'c2', 'then it comes first'), is(pg_temp.lot(), 'c3', 'and what may have gone wrong alone');
-- one that is used up when those behind it have been passed by
SELECT count(idem_emit('lot', to_jsonb('d' || n), 'd')) AS emitted FROM generate_series(1, 2) n \gset
SELECT idem_nack(event_id, fence, NULL) FROM idem_take('lot');
SELECT idem_destination_define('lot', '{"max_attempts": 1, "skip_dead_head": true}');
SELECT is(pg_temp.lot(), 'nothing', 'the first is given up'), is(pg_temp.lot(), 'd2', 'and the second can go');
DELETE FROM idempotency_internal.outbox_due WHERE destination = 'lot';
DELETE FROM idempotency_internal.destination WHERE destination = 'lot';
SELECT finish();
