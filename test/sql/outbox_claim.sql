-- Events of an operation: their ids, replays, later attempts (C74), purge.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

CREATE FUNCTION pg_temp.kept(a idem_answer) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('test.claim', a::text, false);
	RETURN a.verdict;
END $$;
CREATE FUNCTION pg_temp.claim() RETURNS idem_answer LANGUAGE sql AS $$ SELECT current_setting('test.claim')::idem_answer $$;
-- the payload names the step
CREATE FUNCTION pg_temp.emit(payload jsonb, destination text DEFAULT 'd') RETURNS uuid LANGUAGE sql AS $$ SELECT idem_emit(destination, payload, claim => pg_temp.claim(), step => payload #>> '{}') $$;
CREATE FUNCTION pg_temp.left_over() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(destination || ' ' || n, ', ' ORDER BY destination) FROM (SELECT destination, count(*) n FROM idempotency_internal.outbox WHERE destination IN ('bulk', 'd', 'elsewhere') GROUP BY 1) o
$$;
CREATE FUNCTION pg_temp.events() RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM idempotency_internal.outbox WHERE destination IN ('bulk', 'd', 'elsewhere') $$;

-- atomic, and its replay
BEGIN;
SELECT is(pg_temp.kept(idem_claim('order', 'k')), 'execute', 'an operation');
SELECT pg_temp.emit('1') AS one, pg_temp.emit('2') AS two \gset
SELECT ok(:'one' <> :'two', 'two events have two ids');
SELECT idem_complete(pg_temp.claim()) IS NULL AS done \gset
SELECT pg_temp.emit('3') AS three \gset
COMMIT;
SELECT is(pg_temp.events(), 3::bigint, 'also one emitted after completing, in the same transaction');
SELECT throws_ok('SELECT pg_temp.emit(''4'')', 'ID002', NULL, 'not in a later one');
SELECT is(pg_temp.kept(idem_claim('order', 'k')), 'replay', 'a replay');
BEGIN;
SELECT is(pg_temp.emit('1'), :'one', 'returns the id of the first event');
SAVEPOINT s;
SELECT is(pg_temp.emit('2'), :'two', 'then of the second');
ROLLBACK TO s;
SELECT is(pg_temp.emit('2'), :'two', 'again after a rollback to a savepoint');
SELECT is(pg_temp.emit('3'), :'three', 'then of the third');
COMMIT;
BEGIN READ ONLY;
SELECT is(pg_temp.emit('1'), :'one', 'also where nothing can be written');
COMMIT;
SELECT is(pg_temp.events(), 3::bigint, 'C74: a replay adds nothing');
SELECT is(count(*), 3::bigint, 'not to the queue either') FROM idempotency_internal.outbox_due WHERE destination = 'd';

-- answers that are no permit
SELECT is(pg_temp.kept(idem_claim('order', 'k', '1')), 'mismatch', 'a mismatch');
SELECT throws_ok('SELECT pg_temp.emit(''1'')', '22023', NULL, 'is no permit');
SELECT throws_ok($$SELECT idem_emit('d', '1', claim => idem_status('order', 'k'))$$, '22023', NULL, 'nor is a status');
BEGIN;
SELECT idem_claim('order', 'gone')::text AS gone \gset
ROLLBACK;
SELECT throws_ok(format('SELECT idem_emit(''d'', ''1'', claim => %L)', :'gone'), 'ID001', NULL, 'a claim that was rolled back is none');
BEGIN;
SELECT is(pg_temp.kept(idem_claim('order', 'other')), 'execute', 'a claim');
SELECT throws_ok($$SELECT idem_emit('d', '1', claim => jsonb_populate_record(pg_temp.claim(), '{"fence": 1}'))$$, 'ID002', NULL, 'under another fence');
SELECT throws_ok($$SELECT idem_emit('d', '1', claim => jsonb_populate_record(pg_temp.claim(), '{"key": "k"}'))$$, '22023', NULL, 'or with another id');
ROLLBACK;
SELECT is(pg_temp.events(), 3::bigint, 'no event of those');

-- contract 2: the same event twice in one transaction
BEGIN;
SELECT is(pg_temp.kept(idem_claim('order', 's')), 'execute', 'a claim');
SELECT pg_temp.emit('1') AS s1 \gset
SELECT throws_like('SELECT pg_temp.emit(''1'')', '%' || :'s1' || '%emitted twice%', 'the same event again in one transaction is refused');
SELECT throws_ok('SELECT pg_temp.emit(''1'')', '22023', NULL, 'as 22023');
SELECT isnt(idem_emit('d', '1', 'a key', pg_temp.claim(), step => '1'), :'s1', 'another ordering key is another event');
SELECT isnt(pg_temp.emit('1', 'other'), :'s1', 'another destination too');
SAVEPOINT a;
SELECT pg_temp.emit('2') AS s2 \gset
SAVEPOINT b;
SELECT pg_temp.emit('3') AS s3 \gset
RELEASE b;
SELECT throws_ok('SELECT pg_temp.emit(''3'')', '22023', NULL, 'also when it was emitted under a savepoint');
ROLLBACK TO a;
SELECT is(pg_temp.emit('2'), :'s2', 'one that was rolled back can be emitted again'), is(pg_temp.emit('3'), :'s3', 'under its id');
SELECT idem_complete(pg_temp.claim()) IS NULL AS done \gset
COMMIT;
SELECT is(pg_temp.events(), 7::bigint, 'each event once');

-- the id, computed here to the byte as docs/outbox.md says
CREATE FUNCTION pg_temp.framed(value text) RETURNS bytea LANGUAGE sql AS $$ SELECT int4send(octet_length(convert_to(value, 'UTF8'))) || convert_to(value, 'UTF8') $$;
CREATE FUNCTION pg_temp.event_id(operation_id uuid, claimed_at timestamptz, destination text, ordering_key text, step text) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
	h bytea := substr(sha256('idempotency:event:1'::bytea || uuid_send(operation_id) || int8send((extract(epoch FROM claimed_at) * 1000000)::bigint)
		|| pg_temp.framed(destination) || pg_temp.framed(coalesce(ordering_key, '')) || pg_temp.framed(step)), 1, 16);
BEGIN
	IF get_byte(uuid_send(operation_id), 0) >= 128 THEN
		h := substr(uuid_send(operation_id), 1, 6) || substr(h, 7);
	ELSE
		h := set_byte(h, 0, get_byte(h, 0) & 127);
	END IF;
	h := set_byte(h, 6, get_byte(h, 6) & 15 | 128);
	h := set_byte(h, 8, get_byte(h, 8) & 63 | 128);
	RETURN encode(h, 'hex')::uuid;
END $$;
SELECT is(pg_temp.event_id('61362f49-1d33-8116-af4a-a257885ad4be', '2026-01-02 03:04:05.678901+00', 'shipping', 'order 1', 'packed'),
	'56627c39-80d2-862a-8c4c-7898ec103e01'::uuid, 'the vector of docs/outbox.md');
BEGIN;
SELECT idem_define('timed', '{"key_format": "uuidv7"}') IS NULL AS defined \gset
SELECT pg_temp.kept(idem_claim('timed', idem_new_key())) AS v \gset
SELECT is(idem_emit('shipping', '1', claim => c), pg_temp.event_id(c.id, c.claimed_at, 'shipping', NULL, ''), 'the id follows from the destination')
FROM pg_temp.claim() c;
SELECT is(idem_emit('почта', '1', 'ключ 1', c, step => 'шаг'), pg_temp.event_id(c.id, c.claimed_at, 'почта', 'ключ 1', 'шаг'), 'from ordering key and step')
FROM pg_temp.claim() c;
SELECT pg_temp.kept(idem_claim('untimed', 'k')) AS v \gset
SELECT is(idem_emit('shipping', '1', 'k', c, step => 's'), pg_temp.event_id(c.id, c.claimed_at, 'shipping', 'k', 's'), 'from an operation''s id without a time')
FROM pg_temp.claim() c;
ROLLBACK;

-- an attempt that died after it had committed events
SELECT idem_define('ship', '{"on_lease_expiry": "retry"}');
SELECT is(pg_temp.kept(idem_claim('ship', 'k', lease => '1 h')), 'execute', 'attempt 1');
SELECT pg_temp.emit('"a"') AS a \gset
SELECT pg_temp.emit('"b"') AS b \gset
SELECT set_config('test.first', current_setting('test.claim'), false) IS NULL AS kept \gset
SELECT is(idem_ack_many(array_agg(event_id), array_agg(fence)), 9, 'all of it is delivered') FROM idem_take('d', 100);
UPDATE idempotency_internal.record SET lease_until = clock_timestamp() - interval '1 s' WHERE operation = 'ship';
SELECT is(pg_temp.kept(idem_claim('ship', 'k', lease => '1 h')), 'execute', 'attempt 2');
SELECT throws_ok($$SELECT idem_emit('d', '1', claim => current_setting('test.first')::idem_answer)$$, 'ID002', NULL, 'attempt 1 can emit nothing more');
SELECT is(pg_temp.emit('"a"'), :'a', 'attempt 2 finds the first event');
SELECT is(pg_temp.emit('"b"'), :'b', 'and the second, in another transaction');
SELECT is(idem_emit('d', '"other"', claim => pg_temp.claim(), step => 'b'), :'b', 'with another payload too');
SELECT is(payload, '"b"', 'the first payload stands') FROM idempotency_internal.outbox WHERE event_id = :'b';
BEGIN;
SELECT is(pg_temp.emit('"a"'), :'a', 'one found');
SELECT throws_ok($$SELECT pg_temp.emit('"a"')$$, '22023', NULL, 'is refused the second time in one transaction too');
SAVEPOINT s;
SELECT is(pg_temp.emit('"b"'), :'b', 'another');
ROLLBACK TO s;
SELECT is(pg_temp.emit('"b"'), :'b', 'is not, if that is rolled back');
COMMIT;
SELECT pg_temp.emit('"c"') AS c \gset
SELECT ok(:'c' NOT IN (:'a', :'b'), 'the third is new');
SELECT is(pg_temp.events(), 10::bigint, 'only that was added');
SELECT is(string_agg(payload::text, ' '), '"c"', 'and is delivered') FROM idem_take('d', 100);
UPDATE idempotency_internal.record SET lease_until = clock_timestamp() - interval '1 s' WHERE operation = 'ship';
SELECT is(pg_temp.kept(idem_claim('ship', 'k', lease => '1 h')), 'execute', 'attempt 3');
SELECT pg_temp.emit('"else"', 'elsewhere') AS elsewhere, (pg_temp.claim()).fence AS ship_fence \gset
SELECT ok(:'elsewhere' NOT IN (:'a', :'b', :'c'), 'what goes elsewhere is another event, and not lost');
SELECT is(string_agg(payload::text, ' '), '"else"', 'it is delivered') FROM idem_take('elsewhere', 100);

-- a key that is executed anew
BEGIN;
SELECT is(pg_temp.kept(idem_claim('brief', 'k')), 'execute', 'an operation');
SELECT pg_temp.emit('"first life"') AS life1, idem_complete(pg_temp.claim()) IS NULL AS done \gset
COMMIT;
SELECT pg_temp.age('brief', 'k', '2 days');
BEGIN;
SELECT is(pg_temp.kept(idem_claim('brief', 'k')), 'execute', 'is forgotten and executed anew');
SELECT pg_temp.emit('"second life"') AS life2, idem_complete(pg_temp.claim()) IS NULL AS done \gset
COMMIT;
SELECT ok(:'life2' <> :'life1', 'its event is a new one');
SELECT is(string_agg(payload::text, ' ' ORDER BY payload), '"first life" "second life"', 'and both are delivered') FROM idem_take('d', 100);

-- many events, in one transaction and out of it
BEGIN;
SELECT is(pg_temp.kept(idem_claim('order', 'many')), 'execute', 'an operation');
SELECT is(count(DISTINCT idem_emit('bulk', to_jsonb(n), claim => pg_temp.claim(), step => n::text)), 10000::bigint, 'C74: 10 000 events have 10 000 ids') FROM generate_series(1, 10000) n;
SELECT idem_complete(pg_temp.claim()) IS NULL AS done \gset
COMMIT;
SELECT is(count(DISTINCT idem_emit('bulk', to_jsonb(n))), 10000::bigint, 'C74: also without a claim') FROM generate_series(1, 10000) n;
CREATE TEMP TABLE ids AS SELECT event_id FROM idempotency_internal.outbox WHERE destination = 'bulk';
CREATE TEMP TABLE got AS SELECT * FROM idem_take('bulk', 30000, '1 h');
SELECT set_eq('SELECT event_id FROM got', 'SELECT event_id FROM ids', 'C74: delivered under them');
SELECT idem_destination_define('bulk', '{"base": "0", "cap": "0"}');
SELECT count(idem_nack(event_id, fence, NULL, attempted => false)) AS nacked FROM got \gset
CREATE TEMP TABLE again AS SELECT * FROM idem_take('bulk', 30000, '1 h');
SELECT set_eq('SELECT event_id FROM again', 'SELECT event_id FROM ids', 'C74: stable over redelivery');
SELECT is(idem_ack_many(array_agg(event_id), array_agg(fence)), 20000, 'all acknowledged at once') FROM again;

-- purge
SELECT idem_destination_define('*', '{"retention": "1 day"}');
UPDATE idempotency_internal.outbox SET created_at = created_at - interval '2 days' WHERE destination <> 'bulk';
SELECT idem_purge() \g /dev/null
SELECT is(pg_temp.left_over(), 'bulk 20000, d 5, elsewhere 1', 'purge removes what is delivered and past retention, not what is in a queue or of an attempt that may be followed by another');
SELECT idem_complete_key('ship', 'k', :ship_fence) IS NULL AS done \gset
SELECT idem_purge() \g /dev/null
SELECT is(pg_temp.left_over(), 'bulk 20000, d 3, elsewhere 1', 'once that has its outcome, its delivered events go');
SELECT idem_destination_define('bulk', '{"retention": null}');
UPDATE idempotency_internal.outbox SET created_at = created_at - interval '2 days' WHERE destination = 'bulk';
SELECT idem_purge() \g /dev/null
SELECT is(pg_temp.left_over(), 'bulk 20000, d 3, elsewhere 1', 'where retention is null they stay');
DELETE FROM idempotency_internal.destination;
SELECT finish();
