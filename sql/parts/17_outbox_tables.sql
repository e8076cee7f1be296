-- The outbox.  Rows of outbox are inserted and, long after their delivery,
-- purged; nothing else happens to them but an erasure by idem_redact_event, so
-- that a reader of the inserts in the log (Debezium) sees each event once.

CREATE TABLE idempotency_internal.outbox (
	event_id uuid NOT NULL,
	created_at timestamptz NOT NULL,
	operation_id uuid,
	destination text COLLATE "C" NOT NULL,
	ordering_key text COLLATE "C",
	payload jsonb NOT NULL,
	headers jsonb,
	CONSTRAINT outbox_pkey PRIMARY KEY (event_id)
) USING heap;
COMMENT ON TABLE idempotency_internal.outbox IS
	'events emitted by idem_emit, delivered or not; operation_id is that of the claim it was emitted with; rows are only inserted, emptied by idem_redact_event, and purged after the retention of the destination';
CREATE INDEX outbox_created_at_idx ON idempotency_internal.outbox (destination, created_at);
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox', '');

-- One narrow row for each event that is not delivered.  A lease changes no
-- indexed column, and the pages have room for one, so taking an event writes no
-- index; an acknowledgement deletes the row.
CREATE TABLE idempotency_internal.outbox_due (
	event_id uuid NOT NULL,
	due_at timestamptz,
	lease_until timestamptz,
	again_at timestamptz,
	first_at timestamptz,
	dead_at timestamptz,
	place bigint,
	fence bigint NOT NULL,
	attempt integer NOT NULL,
	alone boolean NOT NULL,
	state "char" NOT NULL,
	destination text COLLATE "C" NOT NULL,
	ordering_key text COLLATE "C",
	reason text COLLATE "C",
	error jsonb,
	CONSTRAINT outbox_due_pkey PRIMARY KEY (event_id)
) USING heap WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON TABLE idempotency_internal.outbox_due IS
	'events that are not delivered: state is q queued (due_at is only its position), w waiting until due_at, b behind another event of its ordering key, d dead letter (due_at is null then); leased until lease_until, and due again at again_at if that lease is not answered; place is the order within the ordering key; fence and attempt are those of the last take; alone says that it gave no other event; first_at is when it was first taken';
CREATE INDEX outbox_due_at_idx ON idempotency_internal.outbox_due (destination, state, due_at);
CREATE INDEX outbox_due_order_idx ON idempotency_internal.outbox_due (destination, ordering_key, place);
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.outbox_due', '');
