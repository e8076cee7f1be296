-- The outbox: each function, and each of its errors.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

CREATE FUNCTION pg_temp.payloads(to_destination text, n int DEFAULT 100) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(e.payload::text, ' ' ORDER BY ord), 'nothing')
	FROM idem_take(to_destination, n) WITH ORDINALITY AS e(event_id, destination, payload, headers, ordering_key, attempt, fence, created_at, ord)
$$;

-- emit and take
SELECT idem_emit('mail', '{"to": "ann"}', headers => '{"type": "Welcome"}') AS ann \gset
BEGIN;
SELECT is(e.event_id, :'ann'::uuid, 'take returns the id that emit returned'),
	is(e.destination, 'mail', 'its destination'), is(e.payload, '{"to": "ann"}', 'its payload'),
	is(e.headers, '{"type": "Welcome"}', 'its headers'), is(e.ordering_key, NULL, 'its ordering key'),
	is(e.attempt, 1, 'the first attempt'), ok(e.fence > 0, 'a fence'),
	ok(e.created_at <= clock_timestamp(), 'its time')
FROM idem_take('mail') e;
COMMIT;
SELECT is(count(*), 0::bigint, 'a leased event is not taken again') FROM idem_take('mail');
SELECT is(count(*), 0::bigint, 'nor for another destination') FROM idem_take('paper');
SELECT fence AS ann_fence FROM idempotency_internal.outbox_due WHERE event_id = :'ann' \gset
SELECT throws_ok(format('SELECT idem_ack(%L, %s)', :'ann', :ann_fence + 1), 'ID002', NULL, 'a higher fence is refused');
SELECT throws_ok(format('SELECT idem_ack(%L, %s)', :'ann', :ann_fence - 1), 'ID002', NULL, 'a lower fence is refused');
SELECT lives_ok(format('SELECT idem_ack(%L, %s)', :'ann', :ann_fence), 'the fence of the take acknowledges');
SELECT throws_like(format('SELECT idem_ack(%L, %s)', :'ann', :ann_fence), '%' || :'ann' || '%no longer yours%', 'a second ack is refused');
SELECT is(count(*), 1::bigint, 'a delivered event stays in the outbox') FROM idempotency_internal.outbox WHERE event_id = :'ann';
SELECT is(count(*), 0::bigint, 'and is in no queue') FROM idempotency_internal.outbox_due;

-- the own transaction
BEGIN;
SELECT idem_emit('mail', '1') AS own \gset
SELECT is(pg_temp.payloads('mail'), 'nothing', 'an uncommitted event of one''s own is not taken');
ROLLBACK;
SELECT is(pg_temp.payloads('mail'), 'nothing', 'a rolled back event is none');
BEGIN;
SELECT idem_emit('mail', '1') AS one \gset
SAVEPOINT s;
SELECT idem_emit('mail', '2') AS two \gset
ROLLBACK TO s;
SELECT idem_emit('mail', '3') AS three \gset
COMMIT;
BEGIN;
SELECT is(pg_temp.payloads('mail', 1), '1', 'max_events bounds a take');
SELECT is(pg_temp.payloads('mail'), '3', 'what was rolled back to a savepoint is none');
ROLLBACK;
SELECT is(pg_temp.payloads('mail'), '1 3', 'a take that is rolled back did not happen');
SELECT is(idem_ack_many(array_agg(event_id), array_agg(fence)), 2, 'ack_many returns how many it acknowledged')
FROM idempotency_internal.outbox_due;
SELECT is(idem_ack_many(ARRAY[:'one', :'three']::uuid[], ARRAY[1, 2]::bigint[]), 0, 'not those that are not one''s own');
SELECT is(idem_ack_many('{}', '{}'), 0, 'none of none');

-- a lease that is over
SELECT idem_destination_define('mail', '{"base": "0", "cap": "0"}');
SELECT idem_emit('mail', '"late"') AS late \gset
SELECT fence AS first_fence FROM idem_take('mail', lease => '1 ms') \gset
SELECT pg_sleep(0.01) IS NULL AS slept \gset
SELECT throws_ok(format('SELECT idem_ack(%L, %s)', :'late', :first_fence), 'ID002', NULL, 'after its lease a taker is refused (C73)');
SELECT throws_ok(format('SELECT idem_nack(%L, %s, NULL)', :'late', :first_fence), 'ID002', NULL, 'also if it gives back');
SELECT event_id = :'late' AS same, attempt, fence AS second_fence, fence > :first_fence AS higher FROM idem_take('mail') \gset
SELECT ok(:'same'::boolean, 'the event is delivered again with the same id'), is(:attempt, 2, 'as attempt 2'),
	ok(:'higher'::boolean, 'under a higher fence');
SELECT throws_ok(format('SELECT idem_ack(%L, %s)', :'late', :first_fence), 'ID002', NULL, 'the stale taker is still refused (C73)');
SELECT lives_ok(format('SELECT idem_ack(%L, %s)', :'late', :second_fence), 'the new one is not');

-- delay
SELECT idem_emit('mail', '"tomorrow"', delay => '1 day') AS tomorrow \gset
SELECT is(pg_temp.payloads('mail'), 'nothing', 'a delayed event is not due');
SELECT idem_redeliver(:'tomorrow');
SELECT is(pg_temp.payloads('mail'), '"tomorrow"', 'unless redelivery makes it');
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due;

-- giving back
SELECT idem_destination_define('slow', '{"base": "0", "cap": "0", "retry_budget": null, "breaker_failures": null}');
SELECT idem_emit('slow', '"again"') AS again \gset
SELECT fence AS fence FROM idem_take('slow') \gset
SELECT lives_ok(format('SELECT idem_nack(%L, %s, ''{"status": 503}'')', :'again', :fence), 'an event can be given back');
SELECT throws_ok(format('SELECT idem_nack(%L, %s, NULL)', :'again', :fence), 'ID002', NULL, 'once');
SELECT is(attempt, 2, 'and is due after the pause') FROM idem_take('slow');
SELECT fence AS fence FROM idempotency_internal.outbox_due \gset
SELECT lives_ok(format('SELECT idem_nack(%L, %s, NULL, retry_after => ''1 h'')', :'again', :fence), 'retry_after is taken');
SELECT ok(due_at BETWEEN clock_timestamp() + '59 min' AND clock_timestamp() + '61 min', 'and honoured') FROM idempotency_internal.outbox_due;
SELECT is(pg_temp.payloads('slow'), 'nothing', 'so the event is not due');
SELECT idem_redeliver(:'again');
SELECT fence FROM idem_take('slow') \gset
SELECT lives_ok(format('SELECT idem_nack(%L, %s, ''"no"'', false)', :'again', :fence), 'not retryable');
SELECT is((reason, error, attempts)::text, '("not retryable","""no""",3)', 'makes a dead letter') FROM idem_dead_letter WHERE event_id = :'again';
SELECT is(pg_temp.payloads('slow'), 'nothing', 'that is not taken');
SELECT throws_ok(format('SELECT idem_ack(%L, %s)', :'again', :fence), 'ID002', NULL, 'nor acknowledged');
SELECT idem_redeliver(:'again');
SELECT is(count(*), 0::bigint, 'redelivery takes it out of the dead letters') FROM idem_dead_letter;
SELECT is(attempt, 1, 'and counts anew') FROM idem_take('slow');
SELECT fence FROM idempotency_internal.outbox_due \gset
SELECT idem_redeliver(:'again');
SELECT is(fence, :fence::bigint, 'one that is being delivered is left alone') FROM idempotency_internal.outbox_due;
SELECT idem_ack(:'again', :fence);
SELECT idem_redeliver(:'again');
SELECT is(event_id, :'again'::uuid, 'a delivered one is delivered again under its id') FROM idem_take('slow');

-- attempts and time
SELECT idem_destination_define('slow', '{"max_attempts": 2}');
SELECT idem_nack(event_id, fence, NULL) FROM idempotency_internal.outbox_due;
SELECT idem_nack(event_id, fence, '"twice"') FROM idem_take('slow');
SELECT is((reason, attempts)::text, '(max_attempts,2)', 'the last attempt makes a dead letter') FROM idem_dead_letter;
SELECT idem_redeliver(:'again');
SELECT attempt FROM idem_take('slow', lease => '1 us') \g /dev/null
SELECT attempt FROM idem_take('slow', lease => '1 us') \g /dev/null
SELECT is(pg_temp.payloads('slow'), 'nothing', 'also one whose takers died');
SELECT is((reason, attempts)::text, '(max_attempts,2)', 'becomes one') FROM idem_dead_letter;
SELECT idem_destination_define('slow', '{"max_attempts": null, "deadline": "1 us"}');
SELECT idem_redeliver(:'again');
SELECT idem_nack(event_id, fence, NULL) FROM idem_take('slow');
SELECT is((reason, attempts)::text, '(deadline,1)', 'so does one that is out of time') FROM idem_dead_letter;
SELECT idem_destination_define('slow', '{"deadline": "1 h"}');
SELECT idem_redeliver(:'again');
SELECT idem_nack(event_id, fence, NULL, retry_after => '2 h') FROM idem_take('slow');
SELECT is((reason, attempts)::text, '(deadline,1)', 'and one whose far side asks for more than is left') FROM idem_dead_letter;
SELECT lives_ok(format('SELECT idem_discard(%L)', :'again'), 'a dead letter can be discarded');
SELECT is(count(*), 0::bigint, 'it is gone') FROM idem_dead_letter;
SELECT throws_ok(format('SELECT idem_discard(%L)', :'again'), 'ID001', NULL, 'once');
SELECT idem_redeliver(:'again');
SELECT throws_ok(format('SELECT idem_discard(%L)', :'again'), 'ID001', NULL, 'one that waits cannot');
SELECT idem_ack(event_id, fence) FROM idem_take('slow');

-- ordering keys
SELECT idem_emit('ledger', to_jsonb(k || n), k) AS event FROM unnest(ARRAY['a', 'b']) k, generate_series(1, 3) n ORDER BY n, k \g /dev/null
SELECT is(pg_temp.payloads('ledger'), '"a1" "b1"', 'the first of each key');
SELECT is(pg_temp.payloads('ledger'), 'nothing', 'one at a time');
SELECT idem_nack(event_id, fence, NULL, retry_after => '1 h') FROM idempotency_internal.outbox_due WHERE ordering_key = 'a' AND attempt = 1;
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE ordering_key = 'b' AND attempt = 1;
SELECT is(pg_temp.payloads('ledger'), '"b2"', 'a failed one holds back its key, not the others (C71)');
SELECT idem_redeliver(event_id) FROM idempotency_internal.outbox_due WHERE ordering_key = 'a' AND attempt = 1;
SELECT is(pg_temp.payloads('ledger'), '"a1"', 'and is the next of its key');
SELECT idem_nack(event_id, fence, NULL, false) FROM idempotency_internal.outbox_due WHERE ordering_key = 'a' AND attempt > 0;
SELECT is(pg_temp.payloads('ledger'), '"a2"', 'a dead letter frees its key');
SELECT idem_redeliver(event_id) FROM idem_dead_letter;
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE lease_until > clock_timestamp();
SELECT is(pg_temp.payloads('ledger'), '"a3" "b3"', 'redelivered, it comes after those that went past it');
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE lease_until > clock_timestamp();
SELECT is(pg_temp.payloads('ledger'), '"a1"', 'but it comes');
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE lease_until > clock_timestamp();
SELECT idem_destination_define('ledger', '{"skip_dead_head": false}');
SELECT idem_emit('ledger', to_jsonb('c' || n), 'c') AS event FROM generate_series(1, 3) n ORDER BY n \g /dev/null
SELECT idem_nack(event_id, fence, NULL, false) FROM idem_take('ledger');
SELECT is(pg_temp.payloads('ledger'), 'nothing', 'with skip_dead_head false it blocks its key');
SELECT idem_redeliver(event_id) FROM idem_dead_letter;
SELECT is(pg_temp.payloads('ledger'), '"c1"', 'until it is redelivered, at its place');
SELECT idem_nack(event_id, fence, NULL, false) FROM idempotency_internal.outbox_due WHERE lease_until > clock_timestamp();
SELECT idem_discard(event_id) FROM idem_dead_letter;
SELECT is(pg_temp.payloads('ledger'), '"c2"', 'or discarded');
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE lease_until > clock_timestamp();
SELECT idem_ack(event_id, fence) FROM idem_take('ledger');

-- W01: leases that were not answered
SELECT idem_destination_define('relay', '{"base": "0", "cap": "0", "max_attempts": 3, "retry_budget": null}');
CREATE FUNCTION pg_temp.unanswered(n int, to_destination text DEFAULT 'relay') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	said text;
BEGIN
	SELECT coalesce(string_agg(e.payload::text || '/' || e.attempt, ' '), 'nothing') INTO said FROM idem_take(to_destination, n, '1 us') e;
	RETURN said;
END $$;
CREATE VIEW pg_temp.relay AS SELECT * FROM idempotency_internal.outbox_due WHERE destination = 'relay';
SELECT count(idem_emit('relay', to_jsonb(n))) AS emitted FROM generate_series(1, 4) n \gset
SELECT is(pg_temp.unanswered(10), '1/1 2/1 3/1 4/1', 'W01: a batch that is not answered');
SELECT is(pg_temp.unanswered(10), '1/1', 'W01: comes one by one, without a counted attempt');
SELECT is(pg_temp.unanswered(10), '1/2', 'W01: alone and not answered it counts');
SELECT is(pg_temp.unanswered(10), '1/3', 'W01: up to max_attempts');
SELECT is(pg_temp.payloads('relay'), '2', 'W01: then it is a dead letter, and the next comes alone');
SELECT is((payload, reason, attempts)::text, '(1,max_attempts,3)', 'W01: only that one') FROM idem_dead_letter WHERE destination = 'relay';
SELECT is(pg_temp.payloads('relay'), '3', 'W01: each of the others comes alone');
SELECT is(pg_temp.payloads('relay'), '4', 'W01: until all have been taken');
SELECT idem_nack(event_id, fence, NULL) FROM pg_temp.relay WHERE lease_until > clock_timestamp();
SELECT is(pg_temp.payloads('relay'), '2 3 4', 'W01: answered for, they come together again');
SELECT idem_destination_define('relay', '{"base": "1 h", "cap": "1 h"}');
SELECT idem_ack(event_id, fence) FROM pg_temp.relay WHERE lease_until > clock_timestamp();
SELECT idem_discard(event_id) FROM idem_dead_letter;
SELECT idem_emit('relay', '5') AS five \gset
SELECT is(pg_temp.unanswered(1), '5/1', 'W01: alone');
SELECT is(pg_temp.payloads('relay'), 'nothing', 'W01: and not answered, it is due after a pause');
SELECT is(again_at BETWEEN lease_until AND lease_until + '1 h', true, 'W01: as after a nack') FROM pg_temp.relay;
SELECT idem_redeliver(:'five');
SELECT is(pg_temp.payloads('relay'), '5', 'W01: or when it is redelivered');
SELECT idem_ack(event_id, fence) FROM pg_temp.relay;

-- W08: given back without having been tried
SELECT idem_destination_define('relay', '{"base": "0", "cap": "0", "max_attempts": 1}');
SELECT idem_emit('relay', '6') AS six \gset
CREATE FUNCTION pg_temp.put_back() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	e idem_event;
BEGIN
	SELECT * INTO e FROM idem_take('relay');
	PERFORM idem_nack(e.event_id, e.fence, '429', attempted => false);
	RETURN e.attempt;
END $$;
SELECT is(pg_temp.put_back(), 1, 'W08: attempt 1');
SELECT is(pg_temp.put_back(), 1, 'W08: and again');
SELECT is(pg_temp.put_back(), 1, 'W08: and again');
SELECT is(count(*), 0::bigint, 'W08: is no dead letter') FROM idem_dead_letter;
SELECT throws_ok(format('SELECT idem_nack(%L, %s, NULL, false, attempted => false)', event_id, fence), '22023', NULL, 'W08: what was not attempted cannot be refused for good') FROM idem_take('relay');
SELECT idem_nack(event_id, fence, NULL, retry_after => '1 h', attempted => false) FROM pg_temp.relay;
SELECT ok(due_at > clock_timestamp() + '59 min', 'W08: retry_after is honoured') FROM pg_temp.relay;
SELECT idem_redeliver(:'six');
SELECT idem_nack(event_id, fence, NULL) FROM idem_take('relay');
SELECT is((reason, attempts)::text, '(max_attempts,1)', 'W08: one that was tried counts') FROM idem_dead_letter;
SELECT idem_discard(:'six');

-- per_key
SELECT count(idem_emit('several', to_jsonb(k || n), k)) AS emitted FROM (SELECT k, n FROM generate_series(1, 4) n, unnest(ARRAY['a', 'b']) k ORDER BY n, k) x \gset
SELECT idem_emit('several', '"b5"', 'b', delay => '1 h') AS b5, idem_emit('several', '"c1"', 'c') AS c1 \gset
CREATE FUNCTION pg_temp.several(n int, k int) RETURNS text LANGUAGE sql AS $$ SELECT coalesce(string_agg(e.payload #>> '{}', ' '), 'nothing') FROM idem_take('several', n, per_key => k) e $$;
CREATE VIEW pg_temp.held AS SELECT d.event_id, d.fence, o.payload #>> '{}' AS what FROM idempotency_internal.outbox_due d JOIN idempotency_internal.outbox o USING (event_id) WHERE d.destination = 'several' AND d.lease_until > clock_timestamp();
SELECT is(pg_temp.several(5, 3), 'a1 a2 a3 b1 b2', 'per_key of one key in one batch, in order, and never more than max_events');
SELECT is(pg_temp.several(10, 3), 'c1', 'none behind those while they are in hand');
SELECT idem_ack(event_id, fence) FROM pg_temp.held WHERE what IN ('a1', 'b1');
SELECT is(pg_temp.several(10, 3), 'nothing', 'not while one before is');
SELECT idem_ack(event_id, fence) FROM pg_temp.held;
SELECT is(pg_temp.several(10, 9), 'b3 b4 a4', 'an event that waits for its time ends a batch of its key');
SELECT idem_nack(event_id, fence, NULL, retry_after => '1 h') FROM pg_temp.held WHERE what = 'b3';
SELECT idem_ack(event_id, fence) FROM pg_temp.held;
SELECT is((ordering_key, state, behind, attempts)::text, '(b,waits,1,1)', 'F09: a head that waits can be seen') FROM idem_outbox_head WHERE destination = 'several';
SELECT idem_redeliver(event_id) FROM idem_outbox_head WHERE destination = 'several';
SELECT is(pg_temp.several(10, 9), 'b3', 'one that is tried again is not followed by others');
SELECT is((state, until > clock_timestamp())::text, '(leased,t)', 'F09: one that is leased too') FROM idem_outbox_head WHERE destination = 'several';
SELECT idem_ack(event_id, fence) FROM pg_temp.held;
SELECT idem_redeliver(:'b5');
SELECT is(pg_temp.several(10, 9), 'b5', 'what is behind comes last');
SELECT idem_ack(event_id, fence) FROM pg_temp.held;

-- W04: an event that was deleted by hand, and one that is erased
SELECT idem_emit('erased', '1', 'k') AS gone, idem_emit('erased', '2', 'k', headers => '{"of": "ann"}') AS kept, idem_emit('erased', '3') AS third \gset
DELETE FROM idempotency_internal.outbox WHERE event_id = :'gone';
SELECT idem_redact_event(:'kept');
SELECT is(pg_temp.payloads('erased'), 'null 3', 'W04: an event that is gone stops neither the queue nor its key, one that is redacted keeps its place');
SELECT is((payload, headers)::text, '(null,)', 'W04: payload and headers are erased') FROM idempotency_internal.outbox WHERE event_id = :'kept';
SELECT idem_nack(event_id, fence, '"ann"', false) FROM idempotency_internal.outbox_due WHERE event_id = :'kept';
SELECT idem_redact_event(:'kept');
SELECT is(error, NULL, 'W04: and what the destination said of it') FROM idem_dead_letter WHERE event_id = :'kept';
SELECT idem_purge() \g /dev/null
SELECT is(count(*), 0::bigint, 'W04: purge removes the row of the one that is gone') FROM idempotency_internal.outbox_due WHERE event_id = :'gone';
SELECT throws_ok(format('SELECT idem_redact_event(%L)', :'gone'), 'ID001', NULL, 'W04: which cannot be redacted');
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE event_id = :'third';
SELECT idem_discard(:'kept');

-- F03, F07: sizes of the text that is given back
SELECT throws_ok(s, '22023', NULL, 'F03: ' || left(s, 60)) FROM unnest(ARRAY[
	$$SELECT idem_emit('d', ('[' || repeat('1e131071,', 9) || '1]')::jsonb)$$,
	$$SELECT idem_emit('d', '1', headers => jsonb_build_object('h', repeat('x', 1048576)))$$,
	$$SELECT idem_emit('d', to_jsonb(repeat('x', 1048576)))$$]) s;
SELECT lives_ok($$SELECT idem_emit('sized', to_jsonb(repeat('x', 1048000)))$$, 'F07: up to 1 MiB by default');
SELECT idem_destination_define('sized', '{"max_event_bytes": 10}');
SELECT throws_ok($$SELECT idem_emit('sized', '"nine more"')$$, '22023', NULL, 'F07: max_event_bytes is the limit');
SELECT is(length(payload::text), 1048002, 'F07: and no reason to keep back what was emitted') FROM idem_take('sized');
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE destination = 'sized';
SELECT idem_emit('sized', '1') AS poison, idem_emit('sized', '2') AS sound \gset
UPDATE idempotency_internal.outbox SET payload = ('[' || repeat('1e131071,', 2100) || '1]')::jsonb WHERE event_id = :'poison';
SELECT is(pg_temp.payloads('sized'), '2', 'F03: an event no taker can receive does not stop the queue');
SELECT is(reason, 'too large to receive', 'F03: it is a dead letter') FROM idem_dead_letter WHERE event_id = :'poison';
SELECT idem_redact_event(:'poison');
SELECT idem_redeliver(:'poison');
SELECT is(pg_temp.payloads('sized'), 'null', 'F03: that can be erased and delivered');
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE destination = 'sized';

-- F09: delay and role
SELECT idem_destination_define('owned', '{"role": "idempotency_test_nobody", "deadline": "1 h"}');
SELECT throws_ok(s, '42501', NULL, 'F09: ' || s) FROM unnest(ARRAY['SELECT idem_emit(''owned'', ''1'')', 'SELECT idem_take(''owned'')']) s;
SELECT idem_destination_define('owned', '{"role": null}');
SELECT throws_ok('SELECT idem_emit(''owned'', ''1'', delay => ''61 min'')', '22023', NULL, 'F09: a delay longer than the deadline');
SELECT lives_ok('SELECT idem_emit(''owned'', ''1'', delay => ''1 h'')', 'F09: one as long is taken');
SELECT idem_redeliver(event_id) FROM idempotency_internal.outbox_due WHERE destination = 'owned';
SELECT event_id AS owned, fence AS owned_fence FROM idem_take('owned') \gset
SELECT idem_destination_define('owned', '{"role": "idempotency_test_nobody"}');
SELECT throws_ok(format(s, :'owned', :owned_fence), '42501', NULL, 'F09: ' || s) FROM unnest(ARRAY['SELECT idem_ack(%L, %s)', 'SELECT idem_ack_many(ARRAY[%L]::uuid[], ARRAY[%s]::bigint[])',
	'SELECT idem_nack(%L, %s, NULL)', 'SELECT idem_redeliver(%L)', 'SELECT idem_redact_event(%L)']) s;
SELECT idem_destination_define('owned', '{"role": null}');
SELECT idem_nack(:'owned', :owned_fence, NULL, false);
SELECT idem_destination_define('owned', '{"role": "idempotency_test_nobody"}');
SELECT throws_ok(format('SELECT idem_discard(%L)', :'owned'), '42501', NULL, 'F09: nor discard');
SELECT idem_destination_define('owned', '{"role": null}');
SELECT idem_discard(:'owned');

-- W14: emitted while the clock ran ahead
SELECT idem_emit('ahead', '1') AS ahead \gset
UPDATE idempotency_internal.outbox_due SET due_at = due_at + interval '1 h' WHERE event_id = :'ahead';
SELECT is(pg_temp.payloads('ahead'), '1', 'W14: an undelayed event is due by being there');
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE event_id = :'ahead';
-- N02: the place in the order is after what is there, whatever the clock says
SELECT idem_emit('ahead', '1', 'k') AS first \gset
UPDATE idempotency_internal.outbox_due SET place = place + 3600000000 WHERE event_id = :'first';
SELECT idem_emit('ahead', '2', 'k') AS second, idem_emit('ahead', '3', 'k') AS third \gset
SELECT is(string_agg(payload::text, ' ' ORDER BY place), '1 2 3', 'N02: events of a key keep their order when the clock was set back')
FROM idempotency_internal.outbox_due JOIN idempotency_internal.outbox USING (event_id) WHERE outbox.destination = 'ahead' AND place IS NOT NULL;
SELECT is(pg_temp.payloads('ahead'), '1', 'N02: the first comes first');
DELETE FROM idempotency_internal.outbox_due WHERE destination = 'ahead';

-- trace context
SET idempotency.trace_context = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
SELECT idem_emit('traced', '1', headers => '{"type": "T"}') AS first, idem_emit('traced', '2') AS second, idem_emit('traced', '3', headers => '{"traceparent": "own"}') AS third \gset
SET idempotency.trace_context = 'made up';
SELECT idem_emit('traced', '4') AS fourth \gset
RESET idempotency.trace_context;
SELECT set_config('request.headers', '{"host": "x", "traceparent": "00-00000000000000000000000000000001-0000000000000002-00"}', false) AS set \gset
SELECT idem_emit('traced', '5') AS fifth \gset
SELECT set_config('request.headers', '', false) AS set \gset
SELECT is(string_agg(coalesce(headers::text, 'none'), ' ' ORDER BY payload),
	'{"type": "T", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} {"traceparent": "own"} none {"traceparent": "00-00000000000000000000000000000001-0000000000000002-00"}',
	'the trace context goes into the headers, if it is one and they have none') FROM idem_take('traced', 9);
SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE destination = 'traced';

-- read from the log
SELECT idem_destination_define('logged', '{"relay": "log"}');
SELECT idem_emit('logged', '1', 'k') AS logged \gset
SELECT is(count(*), 1::bigint, 'an event for the log is in the outbox') FROM idempotency_internal.outbox WHERE event_id = :'logged';
SELECT is(count(*), 0::bigint, 'and in no queue') FROM idempotency_internal.outbox_due WHERE event_id = :'logged';
SELECT throws_ok('SELECT idem_take(''logged'')', '55000', NULL, 'it is not taken');
SELECT throws_ok(format('SELECT idem_redeliver(%L)', :'logged'), '55000', NULL, 'nor redelivered');
SELECT idem_destination_define('logged', '{"retention": "0"}');
SELECT idem_purge() \g /dev/null
SELECT is(count(*), 0::bigint, 'it is purged after its retention') FROM idempotency_internal.outbox WHERE event_id = :'logged';

-- views
SELECT is((aggregatetype, aggregateid, type, payload)::text, format('(mail,%s,Welcome,"{""to"": ""ann""}")', :'ann'), 'the view for Debezium')
FROM idem_outbox_event WHERE id = :'ann';

-- bad arguments
SELECT throws_ok(s, '22023', NULL, s) FROM unnest(ARRAY[
	'SELECT idem_emit(NULL, ''1'')', 'SELECT idem_emit('''', ''1'')', 'SELECT idem_emit(repeat(''x'', 256), ''1'')',
	'SELECT idem_emit(''*'', ''1'')', 'SELECT idem_emit(''d'', NULL)', 'SELECT idem_emit(''d'', ''1'', '''')',
	'SELECT idem_emit(''d'', ''1'', repeat(''x'', 256))', 'SELECT idem_emit(''d'', ''1'', headers => ''[]'')',
	'SELECT idem_emit(''d'', ''1'', delay => ''-1 s'')', 'SELECT idem_emit(''d'', ''1'', delay => ''1 month'')',
	'SELECT idem_take(NULL)', 'SELECT idem_take(''*'')', 'SELECT idem_permit(''*'')', 'SELECT idem_report(''*'', true)', 'SELECT idem_take(''d'', 0)', 'SELECT idem_take(''d'', 1, ''0'')', 'SELECT idem_take(''d'', 1, NULL)',
	'SELECT idem_take(''d'', 1, ''1 s'', ''-1 s'')', 'SELECT idem_take(''d'', per_key => 0)', 'SELECT idem_emit(''d'', ''1'', step => ''s'')', 'SELECT idem_redact_event(NULL)', 'SELECT idem_ack(NULL, 1)', 'SELECT idem_ack(gen_random_uuid(), NULL)',
	'SELECT idem_ack_many(ARRAY[gen_random_uuid()], ''{}'')', 'SELECT idem_ack_many(NULL, NULL)', 'SELECT idem_ack_many(ARRAY[NULL::uuid], ARRAY[1::bigint])',
	'SELECT idem_nack(NULL, 1, NULL)', 'SELECT idem_nack(gen_random_uuid(), 1, NULL, retry_after => ''-1 s'')',
	'SELECT idem_redeliver(NULL)', 'SELECT idem_discard(NULL)']) s;
SELECT throws_ok(format('SELECT idem_redeliver(%L)', gen_random_uuid()), 'ID001', NULL, 'an event there is not cannot be redelivered');
SELECT throws_ok(format('SELECT idem_ack(%L, 1)', gen_random_uuid()), 'ID002', NULL, 'nor acknowledged');
SELECT throws_ok(format('SELECT idem_nack(%L, 1, to_jsonb(repeat(''x'', 1100000)))', gen_random_uuid()), 'ID004', NULL, 'an error that is too large');
BEGIN READ ONLY;
SELECT throws_ok(s, '25006', NULL, s) FROM unnest(ARRAY['SELECT idem_emit(''d'', ''1'')', 'SELECT idem_take(''d'')', 'SELECT idem_ack(gen_random_uuid(), 1)',
	'SELECT idem_ack_many(''{}'', ''{}'')', 'SELECT idem_nack(gen_random_uuid(), 1, NULL)', 'SELECT idem_redeliver(gen_random_uuid())',
	'SELECT idem_discard(gen_random_uuid())', 'SELECT idem_redact_event(gen_random_uuid())']) s;
COMMIT;
SELECT is(count(*), 0::bigint, 'nothing is left in the queue') FROM idempotency_internal.outbox_due;

SELECT finish();
