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
	headers jsonb DEFAULT NULL, delay interval DEFAULT '0')
RETURNS uuid
AS 'MODULE_PATHNAME', 'idem_emit' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_emit(text, jsonb, text, idem_answer, jsonb, interval) IS
'Puts an event into the outbox, in the caller''s transaction: it will be delivered if that commits. destination: 1 to 255 bytes in UTF-8; need not be defined. payload: any JSON. ordering_key: 1 to 255 bytes; events of one destination with the same key are delivered one after the other. headers: an object. delay: how long to hold it back, no months. '
'claim: an answer of idem_claim. With verdict execute the event is the next one of that operation, and a later attempt that emits it again adds nothing; with verdict replay nothing is written and the id is returned that the event had. '
'Returns the id of the event, a UUID that stays on every delivery. Raises 22023 (bad argument, or an answer that is neither), ID001 (no open claim), ID002 (the claim is no longer yours), 42501, 25006 (standby or read-only).';

CREATE FUNCTION idem_take(
	destination text, max_events integer DEFAULT 1, lease interval DEFAULT '30 s', wait interval DEFAULT '0')
RETURNS SETOF idem_event
AS 'MODULE_PATHNAME', 'idem_take' LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION idem_take(text, integer, interval, interval) IS
'Takes events of a destination to deliver them: commit, send, then acknowledge each with idem_ack or give it back with idem_nack. max_events: at most that many. lease: how long they are the caller''s, longer than zero; an event neither acknowledged nor given back by then is due again at once. wait: how long to wait for an event if there is none; the snapshot of the statement is held meanwhile. '
'Never waits for another transaction: what others have in hand is passed by. Of events with an ordering key only the first of its key is taken. '
'Returns the events, as a rule those due longest first; none if there are none. Raises 22023 (bad argument, or the destination *, which stands for all), 25006 (standby or read-only).';

CREATE FUNCTION idem_ack(event_id uuid, fence bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_ack(uuid, bigint) IS
'Says that an event was delivered. event_id, fence: as idem_take gave them. '
'Returns nothing. Raises 22023 (null), ID002 (the lease is over, another taker has it, or it was acknowledged already: there is nothing left to do), 25006.';

CREATE FUNCTION idem_ack_many(event_ids uuid[], fences bigint[])
RETURNS integer
AS 'MODULE_PATHNAME', 'idem_ack_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_ack_many(uuid[], bigint[]) IS
'Says that events were delivered. event_ids, fences: as idem_take gave them, of the same length. '
'Returns how many of them were still the caller''s; the others, which idem_ack would refuse, are left alone. Raises 22023 (nulls or lengths that differ), 25006.';

CREATE FUNCTION idem_nack(
	event_id uuid, fence bigint, error jsonb, retryable boolean DEFAULT true, retry_after interval DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_nack(uuid, bigint, jsonb, boolean, interval) IS
'Says that an event could not be delivered. event_id, fence: as idem_take gave them. error: why, for people, at most 1 MiB of text. retryable: true lets it be due again after a random pause of up to base * 2^(attempt - 1), at most cap, while max_attempts and deadline of the destination allow; false makes it a dead letter. retry_after: how long the far side asked to be left alone; never sooner. '
'Returns nothing. Raises 22023 (bad argument), ID002 (no longer the caller''s), ID004 (error too large), 25006.';

CREATE FUNCTION idem_redeliver(event_id uuid)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_redeliver' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_redeliver(uuid) IS
'Lets an event be delivered once more, under the same id: a dead letter or one that was delivered, with attempts counted anew; one that waits is due now; one that is being delivered is left alone. event_id: of any event not purged yet. '
'Returns nothing. Raises 22023 (null), ID001 (there is no such event), 25006.';

CREATE FUNCTION idem_discard(event_id uuid)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_discard' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_discard(uuid) IS
'Gives a dead letter up: it leaves idem_dead_letter, frees its ordering key, and is purged like a delivered event. event_id: of a dead letter. '
'Returns nothing. Raises 22023 (null), ID001 (there is no such dead letter), 25006.';

CREATE VIEW idem_dead_letter AS
	SELECT d.event_id, d.destination, d.ordering_key, d.reason, d.error, d.attempt AS attempts,
		o.created_at, d.first_at, d.dead_at, o.payload, o.headers, o.operation_id
	FROM idempotency_internal.outbox_due d
	JOIN idempotency_internal.outbox o ON o.event_id OPERATOR(pg_catalog.=) d.event_id
	WHERE d.state OPERATOR(pg_catalog.=) 'd';
COMMENT ON VIEW idem_dead_letter IS
'events that are not tried again: reason is not retryable, max_attempts or deadline; error is the last one idem_nack was given; first_at is when it was first taken; see idem_redeliver and idem_discard';

CREATE VIEW idem_outbox_event AS
	SELECT o.event_id AS id, o.destination AS aggregatetype,
		COALESCE(o.ordering_key, o.event_id::pg_catalog.text) AS aggregateid,
		o.headers OPERATOR(pg_catalog.->>) 'type' AS type, o.payload, o.created_at, o.headers, o.operation_id
	FROM idempotency_internal.outbox o;
COMMENT ON VIEW idem_outbox_event IS
'all events not purged yet, delivered or not, under the names that Debezium''s outbox event router expects: aggregatetype is the destination, aggregateid the ordering key or else the id, type the header of that name';
