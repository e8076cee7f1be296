-- The outbox: events that leave the database, at least once, under ids that
-- stay.

CREATE TYPE idem_event AS (
	event_id uuid,
	destination text,
	payload jsonb,
	headers jsonb,
	ordering_key text,
	attempt integer,
	fence bigint,
	created_at timestamptz
);
COMMENT ON TYPE idem_event IS
	'an event handed out by idem_take; event_id stays the same on every delivery; attempt counts takes from 1; fence is the permit to acknowledge it';

CREATE FUNCTION idem_emit(
	destination text, payload jsonb, ordering_key text DEFAULT NULL, claim idem_answer DEFAULT NULL,
	headers jsonb DEFAULT NULL, delay interval DEFAULT '0', step text DEFAULT '')
RETURNS uuid
AS 'MODULE_PATHNAME', 'idem_emit' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_emit(text, jsonb, text, idem_answer, jsonb, interval, text) IS
'Puts an event into the outbox, in the caller''s transaction: it will be delivered if that commits.
destination: 1 to 255 bytes in UTF-8; need not be defined
payload: any JSON
ordering_key: 1 to 255 bytes; events of one destination with the same key are delivered one after the other
claim: an answer of idem_claim; with it the id follows from the operation''s id, when it was first claimed, destination, ordering key and step, so that a later attempt that emits the event again finds it, and a replay returns its id and writes nothing
headers: an object
delay: how long to hold it back, no months
step: up to 255 bytes, tells events of one claim apart that go to one destination under one ordering key
Returns the id of the event, a UUID that stays on every delivery.
Raises 22023 (bad argument, an answer that is neither, or the same event a second time in one transaction: name the step), ID001 (no open claim), ID002 (the claim is no longer yours), 42501, 25006 (standby or read-only).';

CREATE FUNCTION idem_take(
	destination text, max_events integer DEFAULT 1, lease interval DEFAULT '30 s', wait interval DEFAULT '0',
	per_key integer DEFAULT 1)
RETURNS SETOF idem_event
AS 'MODULE_PATHNAME', 'idem_take' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION idem_take(text, integer, interval, interval, integer) IS
'Takes events of a destination to deliver them: commit, send, then acknowledge each with idem_ack or give it back with idem_nack. Never waits for another transaction: what others work on is skipped. Of events with an ordering key only the first ones of their key are taken. An event neither acknowledged nor given back by the end of its lease is due again after a random pause, as after idem_nack, and comes alone until it is answered for; such a lease counts as an attempt only if it was of that event alone.
destination: name of the destination, 1 to 255 bytes in UTF-8
max_events: at most that many
lease: how long they are the caller''s, longer than zero
wait: how long to wait for an event if there is none; the snapshot of the statement is held meanwhile
per_key: how many events of one ordering key at most, in order
Returns the events, as a rule those due longest first; none if there are none.
Raises 22023 (bad argument, or the destination *, which stands for all), 42501 (setting role of the destination), 55000 (the destination is read from the log), 25006 (standby or read-only).';

CREATE FUNCTION idem_ack(event_id uuid, fence bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_ack(uuid, bigint) IS
'Says that an event was delivered.
event_id, fence: as idem_take gave them
Raises 22023 (null), ID002 (the lease is over, another taker has it, or it was acknowledged already: there is nothing left to do), 42501 (setting role of the destination), 25006.';

CREATE FUNCTION idem_ack_many(event_ids uuid[], fences bigint[])
RETURNS integer
AS 'MODULE_PATHNAME', 'idem_ack_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_ack_many(uuid[], bigint[]) IS
'Says that events were delivered.
event_ids, fences: as idem_take gave them, of the same length
Returns how many of them were still the caller''s; the others, which idem_ack would refuse, are left alone.
Raises 22023 (nulls or lengths that differ), 42501 (setting role of a destination), 25006.';

CREATE FUNCTION idem_nack(
	event_id uuid, fence bigint, error jsonb, retryable boolean DEFAULT true, retry_after interval DEFAULT NULL,
	attempted boolean DEFAULT true)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_nack(uuid, bigint, jsonb, boolean, interval, boolean) IS
'Says that an event could not be delivered.
event_id, fence: as idem_take gave them
error: why, for people, at most 1 MiB of text
retryable: true lets it be due again after a random pause of up to base * 2^(attempt - 1), at most cap, while max_attempts and deadline of the destination allow; false makes it a dead letter
retry_after: how long the far side asked to be left alone; never sooner
attempted: false puts the event back without counting an attempt, for one that was not sent or not looked at (a 429, a shutdown)
Raises 22023 (bad argument), ID002 (no longer the caller''s), ID004 (error too large), 42501 (setting role of the destination), 25006.';

CREATE FUNCTION idem_redeliver(event_id uuid)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_redeliver' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_redeliver(uuid) IS
'Lets an event be delivered once more, under the same id: a dead letter or one that was delivered, with attempts counted anew; one that waits is due now; one that is being delivered is left alone.
event_id: of any event not purged yet
Raises 22023 (null), ID001 (there is no such event), 42501 (setting role of the destination), 55000 (the destination is read from the log), 25006.';

CREATE FUNCTION idem_discard(event_id uuid)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_discard' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_discard(uuid) IS
'Gives a dead letter up: it leaves idem_dead_letter, frees its ordering key, and is purged like a delivered event.
event_id: of a dead letter
Raises 22023 (null), ID001 (there is no such dead letter), 42501 (setting role of the destination), 25006.';

CREATE FUNCTION idem_redact_event(event_id uuid)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_redact_event' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_redact_event(uuid) IS
'Erases what an event says: its payload becomes JSON null, its headers and the error of its last delivery go. It keeps its id and its place in the order, and is still delivered if it was not. Waits for a transaction that is changing the same event.
event_id: of any event not purged yet
Raises 22023 (null), ID001 (there is no such event), 42501 (setting role of the destination), 25006.';

CREATE VIEW idem_dead_letter WITH (security_barrier) AS
	SELECT d.event_id, d.destination, d.ordering_key, d.reason, d.error, d.attempt AS attempts,
		o.created_at, d.first_at, d.dead_at, o.payload, o.headers, o.operation_id
	FROM idempotency_internal.outbox_due d
	JOIN idempotency_internal.outbox o ON o.event_id OPERATOR(pg_catalog.=) d.event_id
	WHERE d.state OPERATOR(pg_catalog.=) 'd';
COMMENT ON VIEW idem_dead_letter IS
'events that are not tried again: reason is not retryable, max_attempts, deadline or too large to receive; error is the last one idem_nack was given; first_at is when it was first taken; see idem_redeliver and idem_discard';

CREATE VIEW idem_outbox_head WITH (security_barrier) AS
	SELECT k.destination, k.ordering_key, h.event_id,
		CASE WHEN h.state OPERATOR(pg_catalog.=) 'd' THEN 'dead letter'
			WHEN h.lease_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'leased'
			WHEN COALESCE(h.again_at, CASE WHEN h.state OPERATOR(pg_catalog.=) 'w' THEN h.due_at END) OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'waits'
			ELSE 'due' END AS state,
		COALESCE(h.lease_until, CASE WHEN h.state OPERATOR(pg_catalog.=) 'w' THEN h.due_at END) AS until,
		h.attempt AS attempts, k.behind, h.error
	FROM (SELECT d.destination, d.ordering_key, pg_catalog.min(d.place) AS place, pg_catalog.count(*) OPERATOR(pg_catalog.-) 1 AS behind
		FROM idempotency_internal.outbox_due d
		WHERE d.ordering_key IS NOT NULL
		GROUP BY d.destination, d.ordering_key) k
	JOIN idempotency_internal.outbox_due h ON h.destination OPERATOR(pg_catalog.=) k.destination
		AND h.ordering_key OPERATOR(pg_catalog.=) k.ordering_key AND h.place OPERATOR(pg_catalog.=) k.place;
COMMENT ON VIEW idem_outbox_head IS
'the first event of each ordering key that has any to deliver, with what it waits for and how many stand behind it: state is due, leased or waits, both until a time, or dead letter';

CREATE VIEW idem_stat_queue WITH (security_barrier) AS
	SELECT d.destination,
		pg_catalog.count(*) FILTER (WHERE d.state OPERATOR(pg_catalog.<>) 'd') AS waiting,
		pg_catalog.count(*) FILTER (WHERE d.lease_until OPERATOR(pg_catalog.>) n.now) AS leased,
		n.now OPERATOR(pg_catalog.-) pg_catalog.min(t.since) FILTER (WHERE d.state OPERATOR(pg_catalog.<>) 'd' AND t.since OPERATOR(pg_catalog.<=) n.now) AS oldest,
		pg_catalog.count(*) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 'd') AS dead_letters
	FROM idempotency_internal.outbox_due d
	JOIN idempotency_internal.outbox o ON o.event_id OPERATOR(pg_catalog.=) d.event_id
	CROSS JOIN (SELECT pg_catalog.clock_timestamp()) AS n(now),
		LATERAL (SELECT GREATEST(o.created_at, CASE WHEN d.state OPERATOR(pg_catalog.=) 'w' THEN d.due_at END)) AS t(since)
	GROUP BY d.destination, n.now;
COMMENT ON VIEW idem_stat_queue IS
'what is not delivered, by destination: events waiting (leased ones included), how long the oldest that may be delivered has waited since it was emitted or became due, and dead letters; a destination without any is not shown; reads all events that are not delivered';

CREATE VIEW idem_outbox_event WITH (security_barrier) AS
	SELECT o.event_id AS id, o.destination AS aggregatetype,
		COALESCE(o.ordering_key, o.event_id::pg_catalog.text) AS aggregateid,
		o.headers OPERATOR(pg_catalog.->>) 'type' AS type, o.payload, o.created_at, o.headers, o.operation_id
	FROM idempotency_internal.outbox o;
COMMENT ON VIEW idem_outbox_event IS
'all events not purged yet, delivered or not, under the names that Debezium''s outbox event router expects: aggregatetype is the destination, aggregateid the ordering key or else the id, type the header of that name';
