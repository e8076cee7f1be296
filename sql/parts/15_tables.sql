-- The private schema.  Plain CREATE SCHEMA: if somebody made it first, the
-- extension does not move in.  No role is granted anything here; the C
-- functions are the only door.

CREATE SCHEMA idempotency_internal;
COMMENT ON SCHEMA idempotency_internal IS
	'tables of the extension idempotency; reachable through its functions and views only';

-- One row for each (principal, operation, key).  Columns are ordered by width
-- so that no padding is stored, and are meant to be final.
CREATE TABLE idempotency_internal.record (
	id uuid NOT NULL,
	claimed_at timestamptz NOT NULL,
	finished_at timestamptz,
	lease_until timestamptz,
	expires_at timestamptz,
	forget_at timestamptz,
	fence bigint NOT NULL,
	normalisation bigint,
	attempt integer NOT NULL,
	state "char" NOT NULL,
	principal text COLLATE "C" NOT NULL,
	operation text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	fingerprint bytea,
	owner text COLLATE "C",
	result jsonb,
	error jsonb,
	CONSTRAINT record_pkey PRIMARY KEY (id)
) USING heap;
COMMENT ON TABLE idempotency_internal.record IS
	'what is kept for (principal, operation, key); state is a accepted, p processing, s succeeded, f failed for good, t failed and may be retried, c cancelled, r released';
-- NULLS FIRST: records without an end stay out of the way of the right edge,
-- where new ends are appended.  Not partial: a predicate would have to be
-- prepared again for every insert.
CREATE INDEX record_forget_at_idx ON idempotency_internal.record (forget_at NULLS FIRST);
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record', '');

CREATE TABLE idempotency_internal.policy (
	operation text COLLATE "C" NOT NULL,
	settings jsonb NOT NULL,
	horizons jsonb NOT NULL,
	CONSTRAINT policy_pkey PRIMARY KEY (operation)
) USING heap;
COMMENT ON TABLE idempotency_internal.policy IS
	'settings given by idem_define; operation * changes the defaults of all; horizons are the sums of retention and guard there were before, each with the time it ended';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.policy', '');

CREATE TABLE idempotency_internal.normalisation (
	version bigint NOT NULL,
	settings jsonb NOT NULL,
	check_after timestamptz,
	CONSTRAINT normalisation_pkey PRIMARY KEY (version)
) USING heap;
COMMENT ON TABLE idempotency_internal.normalisation IS
	'every set of normalisation settings records may have been hashed under; version is derived from the settings; check_after is null for those in force, else when to look whether a record still needs them';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.normalisation', '');

-- The short list of records that are accepted, leased or unknown: what
-- idem_list, idem_start_next and idem_reconcile look through.  It follows the
-- records in the same transaction; an atomic claim never touches it.
CREATE TABLE idempotency_internal.open_work (
	id uuid NOT NULL,
	since timestamptz NOT NULL,
	due_at timestamptz,
	fence bigint,
	tries integer NOT NULL,
	state "char" NOT NULL,
	operation text COLLATE "C" NOT NULL,
	CONSTRAINT open_work_pkey PRIMARY KEY (id)
) USING heap;
COMMENT ON TABLE idempotency_internal.open_work IS
	'records that are accepted (state a) or leased (p); due_at is when it was accepted, or when its lease or the pause between two reconcilers ends; null once reconcilers have given up';
CREATE INDEX open_work_due_at_idx ON idempotency_internal.open_work (state, operation, due_at);
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.open_work', '');
