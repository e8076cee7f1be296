-- The private schema.  Plain CREATE SCHEMA: if the schema is there, the
-- extension is not created in it.  No role is granted a table of it; functions
-- and views of the extension are the only way to them.

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
	not_before timestamptz,
	reopened_at timestamptz,
	fence bigint NOT NULL,
	normalisation bigint,
	attempt integer NOT NULL,
	releases integer NOT NULL DEFAULT 0,
	state "char" NOT NULL,
	accepted boolean NOT NULL DEFAULT false,
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
	'One record for each (principal, operation, key). state is a accepted, p processing, s succeeded, f failed for good, t failed and may be retried, c cancelled, r released. accepted says that idem_start_next hands the record out. It is not executable before not_before; attempt less releases counts towards max_attempts; the deadline counts from claimed_at or, if later, reopened_at.';

-- What purge reads: which blocks may hold something to forget.  The operator
-- class notes the latest time a second later than it is, so that not every insert
-- changes the summary of its blocks.
CREATE FUNCTION idempotency_internal.forget_range_add(internal, internal, internal, internal)
RETURNS boolean LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_forget_range_add';
COMMENT ON FUNCTION idempotency_internal.forget_range_add(internal, internal, internal, internal) IS
'Widens a summary of the index on forget_at; called by PostgreSQL only.';
CREATE OPERATOR CLASS idempotency_internal.forget_at_ops FOR TYPE timestamptz USING brin AS
	OPERATOR 1 pg_catalog.<,
	OPERATOR 2 pg_catalog.<=,
	OPERATOR 3 pg_catalog.=,
	OPERATOR 4 pg_catalog.>=,
	OPERATOR 5 pg_catalog.>,
	FUNCTION 1 pg_catalog.brin_minmax_opcinfo(internal),
	FUNCTION 2 idempotency_internal.forget_range_add(internal, internal, internal, internal),
	FUNCTION 3 pg_catalog.brin_minmax_consistent(internal, internal, internal),
	FUNCTION 4 pg_catalog.brin_minmax_union(internal, internal, internal);
CREATE INDEX record_forget_at_idx ON idempotency_internal.record
	USING brin (forget_at idempotency_internal.forget_at_ops) WITH (pages_per_range = 16);
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
	CONSTRAINT normalisation_pkey PRIMARY KEY (version)
) USING heap;
COMMENT ON TABLE idempotency_internal.normalisation IS
	'every set of normalisation settings records may have been hashed under; version is derived from the settings; kept for ever';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.normalisation', '');

-- The work list: records that are accepted, leased or unknown, which is what
-- idem_list, idem_start_next and idem_reconcile scan.  It follows the records
-- in the same transaction; an atomic claim never touches it.
CREATE TABLE idempotency_internal.open_work (
	id uuid NOT NULL,
	since timestamptz NOT NULL,
	due_at timestamptz,
	fence bigint,
	tries integer NOT NULL,
	queue "char" NOT NULL,
	operation text COLLATE "C" NOT NULL,
	principal text COLLATE "C" NOT NULL,
	CONSTRAINT open_work_pkey PRIMARY KEY (id)
) USING heap;
COMMENT ON TABLE idempotency_internal.open_work IS
	'The work list: records that are accepted, leased or unknown. queue is w waiting for a worker, s started by a worker, l leased by a claim. due_at is when a worker may start the record, or when its lease or the pause between two reconcilers ends; null after the last try of a reconciler.';
CREATE INDEX open_work_due_at_idx ON idempotency_internal.open_work (queue, operation, due_at);
CREATE INDEX open_work_principal_idx ON idempotency_internal.open_work (principal, since);
CREATE INDEX open_work_since_idx ON idempotency_internal.open_work (since);
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.open_work', '');
