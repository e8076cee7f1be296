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
	'SELECT idem_take(''d'', 1, ''1 s'', ''-1 s'')', 'SELECT idem_ack(NULL, 1)', 'SELECT idem_ack(gen_random_uuid(), NULL)',
	'SELECT idem_ack_many(ARRAY[gen_random_uuid()], ''{}'')', 'SELECT idem_ack_many(NULL, NULL)', 'SELECT idem_ack_many(ARRAY[NULL::uuid], ARRAY[1::bigint])',
	'SELECT idem_nack(NULL, 1, NULL)', 'SELECT idem_nack(gen_random_uuid(), 1, NULL, retry_after => ''-1 s'')',
	'SELECT idem_redeliver(NULL)', 'SELECT idem_discard(NULL)']) s;
SELECT throws_ok(format('SELECT idem_redeliver(%L)', gen_random_uuid()), 'ID001', NULL, 'an event there is not cannot be redelivered');
SELECT throws_ok(format('SELECT idem_ack(%L, 1)', gen_random_uuid()), 'ID002', NULL, 'nor acknowledged');
SELECT throws_ok(format('SELECT idem_nack(%L, 1, to_jsonb(repeat(''x'', 1100000)))', gen_random_uuid()), 'ID004', NULL, 'an error that is too large');
BEGIN READ ONLY;
SELECT throws_ok(s, '25006', NULL, s) FROM unnest(ARRAY['SELECT idem_emit(''d'', ''1'')', 'SELECT idem_take(''d'')', 'SELECT idem_ack(gen_random_uuid(), 1)',
	'SELECT idem_ack_many(''{}'', ''{}'')', 'SELECT idem_nack(gen_random_uuid(), 1, NULL)', 'SELECT idem_redeliver(gen_random_uuid())',
	'SELECT idem_discard(gen_random_uuid())']) s;
COMMIT;
SELECT is(count(*), 0::bigint, 'nothing is left in the queue') FROM idempotency_internal.outbox_due;

SELECT finish();
