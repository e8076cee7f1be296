-- Events of an operation: ids by ordinal, replays, later attempts (C74), purge.
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
CREATE FUNCTION pg_temp.emit(payload jsonb, destination text DEFAULT 'd') RETURNS uuid LANGUAGE sql AS $$ SELECT idem_emit(destination, payload, claim => pg_temp.claim()) $$;
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

-- savepoints give ordinals back
BEGIN;
SELECT is(pg_temp.kept(idem_claim('order', 's')), 'execute', 'a claim');
SELECT pg_temp.emit('1') AS s1 \gset
SAVEPOINT a;
SELECT pg_temp.emit('2') AS s2 \gset
SAVEPOINT b;
SELECT pg_temp.emit('3') AS s3 \gset
RELEASE b;
SELECT pg_temp.emit('4') AS s4 \gset
ROLLBACK TO a;
SELECT is(pg_temp.emit('2'), :'s2', 'rolled back ordinals are given back'), is(pg_temp.emit('3'), :'s3', 'all of them');
SAVEPOINT c;
SELECT is(pg_temp.emit('4'), :'s4', 'and counted on');
RELEASE c;
SELECT idem_complete(pg_temp.claim()) IS NULL AS done \gset
COMMIT;
SELECT is(pg_temp.events(), 7::bigint, 'each event once');

-- an attempt that died after it had committed events
SELECT idem_define('ship', '{"on_lease_expiry": "retry"}');
SELECT is(pg_temp.kept(idem_claim('ship', 'k', lease => '1 h')), 'execute', 'attempt 1');
SELECT pg_temp.emit('"a"') AS a \gset
SELECT pg_temp.emit('"b"') AS b \gset
SELECT ok(:'a' <> :'b', 'an attempt counts on through its transactions');
SELECT set_config('test.first', current_setting('test.claim'), false) IS NULL AS kept \gset
SELECT is(idem_ack_many(array_agg(event_id), array_agg(fence)), 9, 'all of it is delivered') FROM idem_take('d', 100);
UPDATE idempotency_internal.record SET lease_until = clock_timestamp() - interval '1 s' WHERE operation = 'ship';
SELECT is(pg_temp.kept(idem_claim('ship', 'k', lease => '1 h')), 'execute', 'attempt 2');
SELECT throws_ok($$SELECT idem_emit('d', '1', claim => current_setting('test.first')::idem_answer)$$, 'ID002', NULL, 'attempt 1 can emit nothing more');
SELECT is(pg_temp.emit('"a"'), :'a', 'attempt 2 finds the first event');
SELECT is(pg_temp.emit('"b"'), :'b', 'and the second, in another transaction');
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
SELECT is(count(DISTINCT idem_emit('bulk', to_jsonb(n), claim => pg_temp.claim())), 10000::bigint, 'C74: 10 000 events have 10 000 ids') FROM generate_series(1, 10000) n;
SELECT idem_complete(pg_temp.claim()) IS NULL AS done \gset
COMMIT;
SELECT is(count(DISTINCT idem_emit('bulk', to_jsonb(n))), 10000::bigint, 'C74: also without a claim') FROM generate_series(1, 10000) n;
CREATE TEMP TABLE ids AS SELECT event_id FROM idempotency_internal.outbox WHERE destination = 'bulk';
CREATE TEMP TABLE got AS SELECT * FROM idem_take('bulk', 30000, '1 us');
SELECT set_eq('SELECT event_id FROM got', 'SELECT event_id FROM ids', 'C74: delivered under them');
CREATE TEMP TABLE again AS SELECT * FROM idem_take('bulk', 30000, '1 h');
SELECT set_eq('SELECT event_id FROM again', 'SELECT event_id FROM ids', 'C74: stable over redelivery');
SELECT is(idem_ack_many(array_agg(event_id), array_agg(fence)), 20000, 'all acknowledged at once') FROM again;

-- purge
SELECT idem_destination_define('*', '{"retention": "1 day"}');
UPDATE idempotency_internal.outbox SET created_at = created_at - interval '2 days' WHERE destination <> 'bulk';
SELECT idem_purge();
SELECT is(pg_temp.left_over(), 'bulk 20000, d 5, elsewhere 1', 'purge removes what is delivered and past retention, not what is in a queue or of an attempt that may be followed by another');
SELECT idem_complete_key('ship', 'k', :ship_fence) IS NULL AS done \gset
SELECT idem_purge();
SELECT is(pg_temp.left_over(), 'bulk 20000, d 3, elsewhere 1', 'once that has its outcome, its delivered events go');
SELECT is(count(*), 1::bigint, 'and so do notes about them') FROM idempotency_internal.outbox_adopted;
DELETE FROM idempotency_internal.destination;
SELECT finish();
