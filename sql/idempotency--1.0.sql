/* sql/idempotency--1.0.sql, put together by the Makefile from sql/parts */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idempotency" to load this file. \quit
-- Records are rows of this node.  A cluster that runs sessions on several nodes
-- would execute a key once on each.

DO $$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'citus'::pg_catalog.name) THEN
		RAISE WARNING 'the records of extension "idempotency" are not distributed among the nodes of a cluster'
			USING DETAIL = 'A key claimed on two nodes executes twice, and a transaction that writes on several nodes is not one with its record.',
				HINT = 'Run idem_distribute() on the coordinator to have them beside the rows of each tenant. Without it claim on the coordinator, and treat the worker nodes as outside systems, as servers of postgres_fdw are: on them claims are refused.';
	END IF;
END
$$;
-- What a call answers.  The enums and the composite only ever grow at the end.

CREATE TYPE idem_verdict AS ENUM
	('execute', 'replay', 'in_progress', 'mismatch', 'unknown', 'expired');
COMMENT ON TYPE idem_verdict IS
	'what the caller of a claim is to do: execute the work, or take the recorded outcome, wait, correct its request, or reconcile';

CREATE TYPE idem_state AS ENUM
	('absent', 'unconfirmed', 'accepted', 'processing', 'succeeded', 'failed', 'unknown', 'expired');
COMMENT ON TYPE idem_state IS
	'what is on record for a key; unknown and expired are computed when read';

CREATE TYPE idem_advice AS ENUM
	('run', 'use_result', 'retry_same_key', 'new_key', 'reconcile');
COMMENT ON TYPE idem_advice IS
	'the one safe next step of the caller';

CREATE TYPE idem_answer AS (
	verdict idem_verdict,
	state idem_state,
	advice idem_advice,
	id uuid,
	principal text,
	operation text,
	key text,
	fence bigint,
	attempt integer,
	result jsonb,
	error jsonb,
	retry_after interval,
	holder integer,
	claimed_at timestamptz,
	finished_at timestamptz,
	lease_until timestamptz,
	expires_at timestamptz,
	forget_at timestamptz
);
COMMENT ON TYPE idem_answer IS
	'the answer of a claim, a status query and their kin; a value with verdict execute is the permit to finish';
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
-- On a sharded cluster (src/record/place.c) records and the work list are in
-- shards.  With the rights of the owner, because only views for monitors and
-- workers call these functions, and only there they can be reached.
CREATE FUNCTION idempotency_internal.shards_here(kind text)
RETURNS SETOF text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF to_regclass('idempotency_internal.placed_record') IS NULL THEN
		RETURN;
	END IF;
	IF to_regclass('pg_catalog.pg_dist_placement') IS NULL THEN
		RETURN NEXT format('idempotency_internal.%I', kind);
		RETURN;
	END IF;
	RETURN QUERY EXECUTE $q$
		SELECT format('idempotency_internal.%I', $1 || '_' || s.shardid)
		  FROM pg_dist_shard s JOIN pg_dist_placement p USING (shardid) JOIN pg_dist_local_group g USING (groupid)
		 WHERE s.logicalrelid = ('idempotency_internal.' || $1)::regclass AND p.shardstate = 1
			AND to_regclass(format('idempotency_internal.%I', $1 || '_' || s.shardid)) IS NOT NULL
	$q$ USING kind;
END
$$;
COMMENT ON FUNCTION idempotency_internal.shards_here(text) IS
'Returns the tables of shards that this node has, as they are written in SQL; of a dump that was restored without the cluster, the table itself.
kind: placed_record or placed_work';

CREATE FUNCTION idempotency_internal.record_tables()
RETURNS SETOF regclass
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT oid::regclass FROM pg_class WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind = 'r' AND relname ~ '^record(_s[0-9]+)?$'
	UNION ALL SELECT idempotency_internal.shards_here('placed_record'::text)::regclass
$$;
COMMENT ON FUNCTION idempotency_internal.record_tables() IS
'Returns the tables that records of this node are in: record, the segments, and shards.';

CREATE FUNCTION idempotency_internal.placed_rows()
RETURNS SETOF idempotency_internal.record
LANGUAGE plpgsql STABLE ROWS 10
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	shard text;
BEGIN
	FOR shard IN SELECT idempotency_internal.shards_here('placed_record'::text) LOOP
		RETURN QUERY EXECUTE format('SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, not_before, reopened_at, fence, normalisation, attempt, releases, state, accepted, principal, operation, key, fingerprint, owner, result, error FROM %s', shard);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.placed_rows() IS
'Returns the records in shards that this node has; nothing on one server.';

CREATE FUNCTION idempotency_internal.placed_entries()
RETURNS SETOF idempotency_internal.open_work
LANGUAGE plpgsql STABLE ROWS 10
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	shard text;
BEGIN
	FOR shard IN SELECT idempotency_internal.shards_here('placed_work'::text) LOOP
		RETURN QUERY EXECUTE format('SELECT id, since, due_at, fence, tries, queue, operation, principal FROM %s', shard);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.placed_entries() IS
'Returns the work list of the shards that this node has; nothing on one server.';

CREATE VIEW idempotency_internal.every_entry WITH (security_barrier) AS
	SELECT id, since, due_at, fence, tries, queue, operation, principal FROM idempotency_internal.open_work
	UNION ALL SELECT id, since, due_at, fence, tries, queue, operation, principal FROM idempotency_internal.placed_entries();
COMMENT ON VIEW idempotency_internal.every_entry IS
	'the work list, of "open_work" and of the shards of this node';

-- The ring of segments (src/record/segment.c): an id that carries time belongs
-- to the segment of its six-hour window, any other to "record".  Made like
-- "record", column by column and index by index; the store refuses a table that
-- differs.  The view has all of them, for other views, without what none shows.
DO LANGUAGE plpgsql $$
DECLARE
	tables CONSTANT pg_catalog.text[] := (SELECT pg_catalog.array_agg(pg_catalog.format('record_s%s', pg_catalog.lpad(i::pg_catalog.text, 2, '0')) ORDER BY i)
		FROM pg_catalog.generate_series(0, 31) i);
BEGIN
	FOR i IN 1 .. 32 LOOP
		EXECUTE pg_catalog.format('CREATE TABLE idempotency_internal.%I (LIKE idempotency_internal.record INCLUDING ALL) USING heap', tables[i]);
		EXECUTE pg_catalog.format('COMMENT ON TABLE idempotency_internal.%I IS ''records whose id carries a time in window %s of 32, six hours each''',
			tables[i], i OPERATOR(pg_catalog.-) 1);
		PERFORM pg_catalog.pg_extension_config_dump(pg_catalog.format('idempotency_internal.%I', tables[i])::pg_catalog.regclass, '');
	END LOOP;
	EXECUTE 'CREATE VIEW idempotency_internal.every_record WITH (security_barrier) AS ' OPERATOR(pg_catalog.||)
		(SELECT pg_catalog.string_agg(pg_catalog.format('SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, not_before, reopened_at, fence, attempt, releases, state, accepted, principal, operation, key, owner, result, error FROM idempotency_internal.%s', CASE WHEN t OPERATOR(pg_catalog.=) 'placed_rows'::pg_catalog.text THEN 'placed_rows()' ELSE t END), ' UNION ALL ' ORDER BY n)
			FROM pg_catalog.unnest('{record}'::pg_catalog.text[] OPERATOR(pg_catalog.||) tables OPERATOR(pg_catalog.||) '{placed_rows}'::pg_catalog.text[]) WITH ORDINALITY u (t, n));
END
$$;
COMMENT ON VIEW idempotency_internal.every_record IS
	'the records of "record", of the 32 segments and of the shards of this node, without fingerprints';

-- No wait lasts: it would be one of all who open the segment (src/record/purge.c).
CREATE FUNCTION idempotency_internal.truncate_segment(segment regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1ms'
AS $$ BEGIN EXECUTE format('TRUNCATE ONLY %s', segment); END $$;
COMMENT ON FUNCTION idempotency_internal.truncate_segment(regclass) IS
'Removes all records of a segment.
segment: the table, which the caller has locked
Raises 55P03 if another lock is refused.';

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
-- Identity, canonical params, fingerprint: pure computations, no table.

CREATE FUNCTION idem_id(operation text, key text, principal text DEFAULT NULL)
RETURNS uuid
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_id';
COMMENT ON FUNCTION idem_id(text, text, text) IS
'Returns the id of the record of (principal, operation, key), a UUID of version 8, whether or not the record exists; no setting changes it.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is, 1 to 255 bytes in UTF-8; NULL takes the setting idempotency.principal
Raises 22023 (null, empty, too long or not valid text).';

CREATE FUNCTION idem_downstream_key(id uuid, step text)
RETURNS uuid
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_downstream_key';
COMMENT ON FUNCTION idem_downstream_key(uuid, text) IS
'Returns the idempotency key to send to another system for one step of the work of a record, a UUID of version 8: the same on every attempt, another one for every step.
id: the id of the record
step: any text, the same on every attempt
Raises 22023 (null, or step not valid text).';

CREATE FUNCTION idem_new_key()
RETURNS text
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_new_key';
COMMENT ON FUNCTION idem_new_key() IS
'Returns a fresh idempotency key: a UUID of version 7 with 62 random bits, ascending within a session. It is made once per intent, stored, and sent again on every retry.';

CREATE FUNCTION idem_canonical(params jsonb, operation text DEFAULT NULL)
RETURNS text
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_canonical';
COMMENT ON FUNCTION idem_canonical(jsonb, text) IS
'Returns the canonical JSON text of params (RFC 8785 with exact numbers), which idem_fingerprint hashes, for looking at; NULL for NULL params.
params: any JSON
operation: whose normalisation comes first; NULL for none
Raises 22032 (params have no canonical form: a number beyond double under numbers double, bytes invalid in the encoding of the database), 54001 (nested too deep), 42501 (an operation is given and the caller may not call idem_policy for it).';

CREATE FUNCTION idem_fingerprint(params jsonb, operation text DEFAULT NULL)
RETURNS bytea
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_fingerprint';
COMMENT ON FUNCTION idem_fingerprint(jsonb, text) IS
'Returns the fingerprint of params, the SHA-256 (32 bytes) of the UTF-8 form of idem_canonical(params, operation), the same in every server encoding; NULL for NULL params.
params: any JSON
operation: whose normalisation comes first; NULL for none
Raises 22032 (params have no canonical form), 54001 (nested too deep), 42501 (an operation is given and the caller may not call idem_policy for it).';

CREATE FUNCTION idem_fingerprint_text(params text, operation text DEFAULT NULL)
RETURNS bytea
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_fingerprint_text';
COMMENT ON FUNCTION idem_fingerprint_text(text, text) IS
'Returns the fingerprint of params given as raw JSON text, 32 bytes: that of idem_fingerprint(params::jsonb, operation), less members given twice; NULL for NULL params.
params: JSON text, parsed by the server
operation: whose normalisation comes first; NULL for none
Raises 22032, with the position in bytes from 1 in the detail and nothing of the text, for what jsonb does not take (RFC 8259, half a surrogate pair, \u0000, a character that is not in the encoding of the database, a number no numeric can hold) and for a name twice in one object; else what idem_canonical raises.';
-- Claims and how they end.

CREATE FUNCTION idem_claim(
	operation text, key text, params jsonb DEFAULT NULL, principal text DEFAULT NULL,
	lease interval DEFAULT NULL, wait interval DEFAULT NULL,
	owner text DEFAULT NULL, fingerprint bytea DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_claim' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_claim(text, text, jsonb, text, interval, interval, text, bytea) IS
'Decides who executes one business intent, named by (principal, operation, key).
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
params: what makes two requests the same, hashed in canonical form; NULL if fingerprint is given
principal: NULL takes the setting idempotency.principal
lease: NULL takes the policy''s, ''0'' claims atomically (complete in this transaction), longer (at most the policy''s max_lease) commits the claim and lets the work run outside
wait: how long to wait for a duplicate in flight or a running lease; NULL takes the policy''s; with 0 it never waits for another transaction
owner: names the worker with 1 to 255 bytes, so that it can ask again when the answer was lost; two that work at the same time need two names
fingerprint: 32 bytes, a hash of the raw request by the caller, instead of params
Returns an answer whose verdict is execute (do the work, hand the answer to idem_complete), replay, in_progress, mismatch, unknown or expired. Use SELECT * FROM idem_claim(...).
Raises 22023 (bad argument), 42501 (role or principal not permitted), 25006 (standby or read-only), 40001 (takes over a record newer than the snapshot), 54001 (params nested too deeply), ID099 (two keys, one id).';

CREATE FUNCTION idem_complete(claim idem_answer, result jsonb DEFAULT NULL)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_complete' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_complete(idem_answer, jsonb) IS
'Records that the claimed work succeeded.
claim: the answer of idem_claim with verdict execute
result: what repeats will get, at most max_result_bytes of text
Returns result, so that a procedure can RETURN it. Waits for a transaction that is changing the same record.
Raises 22023 (not a permit), ID001 (no open claim), ID002 (no longer yours, or another outcome is recorded; also at COMMIT of a transaction that repeated a completion of an earlier one and has written), ID004 (result too large), 42501, 25006.';

CREATE FUNCTION idem_complete_key(operation text, key text, fence bigint, result jsonb DEFAULT NULL, principal text DEFAULT NULL)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_complete_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_complete_key(text, text, bigint, jsonb, text) IS
'idem_complete for a caller that kept key and fence instead of the whole answer.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
fence: from the answer with verdict execute
result: what repeats will get, at most max_result_bytes of text; NULL for none
principal: whose key it is; NULL takes the setting idempotency.principal
Returns result.
Raises 22023 (bad argument), ID001, ID002, ID004, 42501, 25006.';

CREATE FUNCTION idem_fail(claim idem_answer, error jsonb, retryable boolean DEFAULT false, retry_after interval DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_fail' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_fail(idem_answer, jsonb, boolean, interval) IS
'Records that the claimed work failed.
claim: an answer with verdict execute
error: what repeats will get
retryable: false fails for good, and repeats replay the error; true lets the next claim execute as the next attempt, while max_attempts and deadline allow
retry_after: how long, from now, it is not executed again, such as a provider''s Retry-After; NULL means not at all, but idem_start_next pauses accepted work for the policy''s retry_after, doubled with each attempt that failed
Raises 22023 (not a permit, bad interval), ID001, ID002, ID004 (error too large), 42501, 25006.';

CREATE FUNCTION idem_fail_key(operation text, key text, fence bigint, error jsonb, retryable boolean DEFAULT false, principal text DEFAULT NULL, retry_after interval DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_fail_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_fail_key(text, text, bigint, jsonb, boolean, text, interval) IS
'idem_fail for a caller that kept key and fence instead of the whole answer.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
fence: from the answer with verdict execute
error: what repeats will get, at most max_result_bytes of text
retryable: true lets the next claim execute again, false fails for good
principal: whose key it is; NULL takes the setting idempotency.principal
retry_after: how long, from now, it is not executed again, such as a provider''s Retry-After
Raises 22023 (bad argument), ID001, ID002, ID004, 42501, 25006.';

CREATE FUNCTION idem_unsure(claim idem_answer, detail jsonb DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_unsure' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_unsure(idem_answer, jsonb) IS
'Says that the outcome of the claimed work is not known, from now on instead of when the lease runs out. It is not executed again unless the policy says on_lease_expiry retry. The owner may still complete or fail it.
claim: an answer with verdict execute
detail: kept with the record for the reconciler, at most max_result_bytes of text
Raises 22023 (not a permit), ID001, ID002, ID004 (detail too large), 42501, 25006.';

CREATE FUNCTION idem_unsure_key(operation text, key text, fence bigint, detail jsonb DEFAULT NULL, principal text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_unsure_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_unsure_key(text, text, bigint, jsonb, text) IS
'idem_unsure for a caller that kept key and fence instead of the whole answer.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
fence: from the answer with verdict execute
detail: kept with the record for the reconciler, at most max_result_bytes of text
principal: whose key it is; NULL takes the setting idempotency.principal
Raises 22023 (bad argument), ID001, ID002, ID004, 42501, 25006.';

CREATE FUNCTION idem_renew(claim idem_answer, lease interval)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'idem_renew' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_renew(idem_answer, interval) IS
'Extends a running lease to at least that long from now by the real clock; it is never shortened.
claim: an answer with verdict execute
lease: longer than zero, at most the policy''s max_lease, no months
Returns the new end of the lease.
Raises 22023 (not a permit, bad lease, or claimed without one), ID001, ID002 (the lease is over or another owner has it), 42501, 25006.';

CREATE FUNCTION idem_renew_key(operation text, key text, fence bigint, lease interval, principal text DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'idem_renew_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_renew_key(text, text, bigint, interval, text) IS
'idem_renew for a caller that kept key and fence instead of the whole answer.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
fence: from the answer with verdict execute
lease: how long from now, no months
principal: whose key it is; NULL takes the setting idempotency.principal
Returns the new end of the lease.
Raises 22023 (bad argument), ID001, ID002, 42501, 25006.';

CREATE FUNCTION idem_release(claim idem_answer, retry_after interval DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_release(idem_answer, interval) IS
'Says that nothing happened: the key may execute again, and the attempt does not count towards max_attempts; the deadline runs on. Accepted work is accepted again. A fresh atomic claim released without retry_after leaves no trace; otherwise fence and attempt are kept, so that the next owner''s are higher.
claim: an answer with verdict execute
retry_after: how long, from now, it is not executed again, such as a provider''s Retry-After; NULL means not at all, for accepted work the policy''s retry_after
Raises 22023 (not a permit, bad interval), ID001, ID002, 42501, 25006.';

CREATE FUNCTION idem_release_key(operation text, key text, fence bigint, principal text DEFAULT NULL, retry_after interval DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_release_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_release_key(text, text, bigint, text, interval) IS
'idem_release for a caller that kept key and fence instead of the whole answer.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
fence: from the answer with verdict execute
principal: whose key it is; NULL takes the setting idempotency.principal
retry_after: how long, from now, it is not executed again, such as a provider''s Retry-After; NULL as in idem_release
Raises 22023 (bad argument), ID001, ID002, 42501, 25006.';
-- Work that is accepted, done at once, run, not known, or not to be done.

CREATE FUNCTION idem_accept(operation text, key text, params jsonb DEFAULT NULL, principal text DEFAULT NULL, fingerprint bytea DEFAULT NULL, delay interval DEFAULT '0')
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_accept' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_accept(text, text, jsonb, text, bytea, interval) IS
'Registers work that a worker starts later with idem_start or idem_start_next.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
params: the request''s parameters; NULL for none. They are hashed, not kept: keep them in a task table, written in the same transaction
principal: whose key it is; NULL takes the setting idempotency.principal
fingerprint: as in idem_claim
delay: how long, from now, it is not to be started; shorter than the policy''s deadline
Returns, to the first call, verdict execute with state accepted and no fence: enqueue the work in this transaction. Repeats get what idem_claim would answer, in_progress with state accepted until it is started.
Raises 22023 (bad argument), 42501, 25006, 40001, 54001, ID099.';

CREATE FUNCTION idem_start(operation text, key text, lease interval DEFAULT NULL, principal text DEFAULT NULL, owner text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_start' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_start(text, text, interval, text, text) IS
'Starts accepted work.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
lease: as in idem_claim; without one it starts atomically, and a rollback makes it accepted again
principal: whose key it is; NULL takes the setting idempotency.principal
owner: names the worker with 1 to 255 bytes
Returns verdict execute with attempt and fence, or what idem_claim would answer without looking at params.
Raises ID001 (nothing on record), 22023, 42501, 25006, 40001, ID099.';

CREATE FUNCTION idem_start_next(operation text, max_records integer DEFAULT 1, lease interval DEFAULT NULL, owner text DEFAULT NULL)
RETURNS SETOF idem_answer
AS 'MODULE_PATHNAME', 'idem_start_next' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_start_next(text, integer, interval, text) IS
'Starts up to max_records records of accepted work of an operation, longest due first, skipping those other sessions work on: accepted, released, found not executed, failed and to be retried (after retry_after or a back-off), and, under policy on_lease_expiry retry, those whose lease is over; until max_attempts or deadline end it. principal_setting binds a worker only where its session has been told a principal.
operation: name of the operation, 1 to 255 bytes in UTF-8
max_records: how many at most
lease: as in idem_start
owner: names the worker with 1 to 255 bytes; many sessions may share one, what is started is handed out once
Returns an answer with verdict execute for each; none when there is nothing to do.
Raises 22023, 42501, 25006, 40001.';

CREATE FUNCTION idem_once(operation text, key text, principal text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_once' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_once(text, text, text) IS
'Claims and completes in one write: the first line of a consumer, in the transaction of what it does.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
Returns true exactly once; false if it was committed earlier or done earlier in this transaction. Waits for a key that is held or undecided up to the policy''s wait.
Raises 55P03 (still held or undecided), ID013 (too late to tell), 22023, 42501, 25006, 40001, ID099.';

CREATE FUNCTION idem_once_many(operation text, keys text[], principal text DEFAULT NULL)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'idem_once_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_once_many(text, text[], text) IS
'idem_once for a batch: one batch per transaction cannot deadlock with another.
operation: name of the operation, 1 to 255 bytes in UTF-8
keys: no nulls; a repeated one counts once
principal: whose key it is; NULL takes the setting idempotency.principal
Returns the keys seen for the first time, in the order given.
Raises what idem_once raises.';

CREATE FUNCTION idem_run(operation text, key text, params jsonb, func regprocedure, principal text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_run' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_run(text, text, jsonb, regprocedure, text) IS
'Claims atomically, calls func(params) with the caller''s rights, and completes with what it returns.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
params: the request''s parameters; NULL for none
func: a plain function that takes one jsonb and returns jsonb; the caller needs EXECUTE on it and USAGE of its schema
principal: whose key it is; NULL takes the setting idempotency.principal
Returns verdict execute with state succeeded and the result, or with state failed and {sqlstate, message, detail, hint} if it raised P0001, class 22, 23, 44 or a class of your own (an error beyond max_result_bytes is cut and has the member cut); else what idem_claim would answer. Every other error is raised again and nothing is recorded.
Raises 22023, 42501, 42883, 25006, 40001, ID004, ID099, and what func raises.';

CREATE FUNCTION idem_cancel(operation text, key text, principal text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_cancel' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_cancel(text, text, text, text) IS
'Makes sure that a lost first try can no longer act: a key never seen, accepted or retryably failed is recorded as failed for good with {cancelled: reason}, whatever its params.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
reason: kept as the error, and as large as one may be
Returns verdict replay, state failed and that error, also the first time; anything else on record is answered and left as it is. Only the answer failed with cancelled proves it.
Raises ID004 (reason too large), 22023, 42501, 25006, 40001, ID099.';

CREATE FUNCTION idem_list(principal text DEFAULT NULL, operation text DEFAULT NULL, max_records integer DEFAULT 100)
RETURNS SETOF idem_answer
AS 'MODULE_PATHNAME', 'idem_list' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_list(text, text, integer) IS
'Lists what is not finished: accepted, processing (with a lease) and unknown records, and accepted work that failed and is to be retried, oldest first.
principal: NULL takes the setting idempotency.principal; if that is empty too, workers, monitors and admins see all principals
operation: NULL means all
max_records: how many at most
Returns answers as idem_status gives them.
Raises 22023 (no principal, max_records below 1), 42501.';

CREATE FUNCTION idem_reconcile(operation text DEFAULT NULL, max_records integer DEFAULT 1, lease interval DEFAULT '1 min')
RETURNS SETOF idem_answer
AS 'MODULE_PATHNAME', 'idem_reconcile' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_reconcile(text, integer, interval) IS
'Hands out unknown records to one reconciler at a time, oldest first, 256 at most in one call. After reconcile_attempts tries a record is left to a person, in idem_unresolved.
operation: NULL means all
max_records: how many at most
lease: how long no other reconciler gets them; at most max_lease; a growing pause follows
Returns answers with verdict unknown whose fence is the reconciler''s own, for idem_resolve only.
Raises 22023, 42501, 25006.';

CREATE FUNCTION idem_resolve(operation text, key text, outcome text, detail jsonb DEFAULT NULL, principal text DEFAULT NULL, fence bigint DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_resolve' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_resolve(text, text, text, jsonb, text, bigint) IS
'Records what was found out about an unknown outcome.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
outcome: succeeded (detail is the result), failed (detail is the error) or not_executed (the key may execute again; accepted work is accepted again until max_attempts or deadline end it; the former owner is refused)
detail: the result or error that is recorded, at most max_result_bytes of text; with not_executed it is not kept
principal: whose key it is; NULL takes the setting idempotency.principal
fence: the reconciler''s, from idem_reconcile; NULL means a person decides
Returns what idem_status says from now on.
Raises ID002 (not unknown now, or another reconciler has it), ID004 (detail too large), 22023, 42501, 25006.';

CREATE FUNCTION idem_expire_lease(operation text, key text, principal text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_expire_lease' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_expire_lease(text, text, text) IS
'Ends a running lease now, for an owner that is known to be dead; its fence is stale from then on.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
Returns what idem_status says from now on: what a lease that is over gives under the policy.
Raises ID001 (nothing on record), ID002 (no running lease), 22023, 42501, 25006.';

CREATE FUNCTION idem_reopen(operation text, key text, principal text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_reopen' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_reopen(text, text, text, text) IS
'Lets a key that has failed for good, or was cancelled, execute again, such as after a fault of the handler was mended; never one that succeeded. Attempt and fence go on, max_attempts and deadline begin anew.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
reason: kept as {reopened, error} beside the error until the next attempt, at most max_result_bytes of text
Returns what idem_status says from now on.
Raises ID001 (nothing on record), ID002 (not failed for good), ID004 (reason too large), 22023, 42501, 25006.';

CREATE FUNCTION idem_redact(operation text, key text, principal text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_redact' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_redact(text, text, text) IS
'Empties result and error of a record and keeps the rest: later claims replay with NULL, and never execute.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
Raises ID001 (nothing on record), 22023, 42501, 25006.';

CREATE FUNCTION idem_backoff(attempt integer, base interval DEFAULT '100 ms', cap interval DEFAULT '30 s')
RETURNS interval
LANGUAGE plpgsql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF attempt IS NULL OR base IS NULL OR cap IS NULL OR attempt < 0 OR base < '0' OR cap < '0'
		OR extract(month FROM base) <> 0 OR extract(year FROM base) <> 0 OR extract(month FROM cap) <> 0 OR extract(year FROM cap) <> 0
	THEN
		RAISE 'idem_backoff needs an attempt, a base and a cap that are not negative and have no months' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'The first retry is attempt 0 or 1, as you count.';
	END IF;
	RETURN make_interval(secs => random() * least(extract(epoch FROM cap)::float8, extract(epoch FROM base)::float8 * 2 ^ least(attempt, 100)));
END
$$;
COMMENT ON FUNCTION idem_backoff(integer, interval, interval) IS
'Returns how long to wait before a retry, with full jitter: uniform between 0 and the smaller of cap and base times 2 to the power of attempt.
attempt: from 0
base: longest pause of attempt 0, without months
cap: longest pause at all, without months
Raises 22023 (null, negative, or months).';

-- What reconcilers have given up, for a person.  Read by monitors, workers and
-- admins; that they may is also what lets them list all principals.
CREATE VIEW idem_unresolved WITH (security_barrier) AS
	SELECT r.id, r.principal, r.operation, r.key, r.attempt, r.owner, w.tries,
		pg_catalog.date_trunc('milliseconds'::pg_catalog.text, r.claimed_at) AS claimed_at,
		r.lease_until AS unknown_since, r.error AS detail
	FROM idempotency_internal.every_entry w
	JOIN idempotency_internal.every_record r ON r.id OPERATOR(pg_catalog.=) w.id
	WHERE w.due_at IS NULL
		AND r.state OPERATOR(pg_catalog.=) 'p'
		AND r.lease_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp();
COMMENT ON VIEW idem_unresolved IS
	'records whose outcome is unknown and that reconcilers have given up after reconcile_attempts tries: a person has to find out, and call idem_resolve';
-- Asking, and what an answer means.

CREATE FUNCTION idem_status(operation text, key text, principal text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_status' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_status(text, text, text) IS
'Says what is known of a key and changes nothing; works on a standby and in a read-only transaction. It is not part of the transaction''s snapshot. It compares no params: a claim that did not execute uses its own answer.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: NULL takes the setting idempotency.principal
Returns an answer with verdict NULL: state, advice, and what is on record, including other sessions'' uncommitted claims (state processing, holder). absent never means that a new key is safe; on a standby a missing key is unconfirmed.
Raises 22023 (bad argument), 42501, ID099.';

CREATE FUNCTION idem_left_open()
RETURNS SETOF idem_answer
AS 'MODULE_PATHNAME', 'idem_left_open' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_left_open() IS
'Lists the claims of the current transaction that are open, for which COMMIT would be refused; for tests that roll back, as SET CONSTRAINTS ALL IMMEDIATE, which raises ID003 if there is one.
Returns answers as idem_status gives them, in the order of the claims; none if all are finished. Any role may ask.
Raises nothing of its own.';

CREATE FUNCTION idem_value(answer idem_answer)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_value' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem_value(idem_answer) IS
'Returns the result of an answer whose state is succeeded.
answer: an answer of idem_claim, idem_status or their kin
Returns the result, or raises what stands in the way: 22023 (it is yours to execute, or not an answer), ID001 (nothing on record), ID010 (in progress), ID011 (mismatch), ID012 (unknown), ID013 (expired), ID014 (failed; the stored error is in the DETAIL).';

CREATE FUNCTION idem_http_status(answer idem_answer)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF answer.verdict IS NULL AND answer.state IS NULL THEN
		RAISE 'an answer without verdict and state has no HTTP status' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'Pass an answer as it came.';
	END IF;
	RETURN CASE
		WHEN answer.verdict = 'mismatch' THEN 422
		WHEN answer.state = 'failed' THEN CASE answer.advice WHEN 'retry_same_key' THEN 503 ELSE 422 END
		WHEN answer.state = 'accepted' THEN 202
		WHEN answer.state = 'unknown' OR answer.verdict = 'in_progress' THEN 409
		WHEN answer.state = 'processing' AND answer.verdict IS NULL THEN 202
		WHEN answer.state IN ('absent', 'unconfirmed') THEN 404
		WHEN answer.state = 'expired' THEN 410
		ELSE 200
	END;
END
$$;
COMMENT ON FUNCTION idem_http_status(idem_answer) IS
'Returns the HTTP status code for an answer: 200, 202, 404, 409, 410, 422 or 503 (a failure that may be retried).
answer: of idem_claim, idem_status or their kin
Raises 22023 (not an answer).';
-- Why a key answers as it does, in words.

CREATE FUNCTION idem_explain_key(
	operation text, key text, principal text,
	OUT id uuid, OUT life text, OUT early boolean, OUT late boolean, OUT holder integer,
	OUT settings jsonb, OUT own_settings jsonb, OUT everyones_settings jsonb, OUT tries integer, OUT due_at timestamptz,
	OUT stored "char", OUT owner text, OUT has_fingerprint boolean, OUT attempt integer, OUT releases integer,
	OUT claimed_at timestamptz, OUT finished_at timestamptz, OUT lease_until timestamptz, OUT expires_at timestamptz,
	OUT forget_at timestamptz, OUT not_before timestamptz, OUT deadline timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'idem_explain_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_explain_key(text, text, text) IS
'Shows what idem_explain puts into words; the owner''s name only to readers of idem_unresolved.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
Raises 22023 (bad argument), 42501, ID099.';

-- With the caller's rights: of other sessions it shows what pg_stat_activity
-- shows the caller, and monitors what idem_stat_activity does.
CREATE FUNCTION idem_explain(operation text, key text, principal text DEFAULT NULL)
RETURNS TABLE (fact text, value text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
	k record;
	session record;
	claim record;
	told_now timestamptz;
	reads_activity boolean := has_table_privilege('@extschema@.idem_stat_activity', 'SELECT');
	as_told text := 'not shown to this role: members of pg_read_all_stats see it';
BEGIN
	SELECT * INTO k FROM @extschema@.idem_explain_key(operation, key, principal);
	told_now := clock_timestamp();

	-- the first line that fits, as in docs/answers.md
	RETURN QUERY SELECT f.fact, f.value
	  FROM (SELECT r.* FROM (VALUES
		(1, k.holder = pg_backend_pid(), 'in_progress', 'this transaction has claimed the key itself and not finished it'),
		(2, k.holder IS NOT NULL AND k.life IN ('forgotten', 'released', 'retryable', 'overrun', 'accepted'), 'in_progress',
			CASE k.holder WHEN 0 THEN 'a prepared transaction holds the key' ELSE 'the open transaction of another session holds the key' END),
		(3, k.late AND k.life IN ('forgotten', 'released'), 'expired', 'nothing is on record, and the key carries a time that is longer ago than retention and guard'),
		(4, k.life = 'forgotten' AND pg_is_in_recovery(), 'not known', 'nothing has arrived under this key on this standby, which proves nothing: ask the primary'),
		(5, k.life = 'forgotten' AND k.stored IS NOT NULL, 'execute', 'what was on record is past retention and guard'),
		(6, k.life = 'forgotten', 'execute', 'nothing is on record'),
		(7, k.life = 'released' AND k.early, 'in_progress', 'it was released, or found not executed, and its time has not come'),
		(8, k.life = 'released', 'execute', 'it was released, or found not executed'),
		(9, k.life = 'expired', 'expired', 'its outcome is past retention and inside the guard'),
		(10, k.life = 'succeeded', 'replay', 'it succeeded'),
		(11, k.life = 'failed', 'replay', CASE k.stored WHEN 'c' THEN 'it was cancelled' WHEN 'f' THEN 'it failed for good' ELSE 'max_attempts or deadline have ended it' END),
		(12, k.life = 'retryable' AND k.early, 'in_progress', 'it failed, may be tried again, and its time has not come'),
		(13, k.life = 'retryable', 'execute', 'it failed and may be tried again'),
		(14, k.life = 'accepted', 'in_progress', 'it was accepted and waits to be started'),
		(15, k.life = 'running', 'in_progress', 'a lease is running; under the owner that took it, execute'),
		(16, k.life = 'overrun', 'execute', 'its lease is over, and on_lease_expiry is retry'),
		(17, k.life = 'unknown', 'unknown', CASE k.settings ->> 'on_lease_expiry' WHEN 'retry' THEN 'its lease is over or its owner was unsure, and max_attempts or deadline are used up'
			ELSE 'its lease is over or its owner was unsure, and on_lease_expiry is reconcile' END))
		AS r (line, fits, verdict, rule) WHERE r.fits ORDER BY r.line LIMIT 1) d,
		LATERAL (VALUES
		(1, 'verdict', d.verdict),
		(2, 'because', d.rule),
		(3, 'params', CASE WHEN k.stored IS NULL OR k.stored = 'c' OR k.life IN ('forgotten', 'released', 'expired') THEN 'any'
			WHEN k.has_fingerprint THEN 'those it was first claimed with; with others, mismatch' ELSE 'none; with any, mismatch' END),
		(4, 'on a standby', CASE WHEN pg_is_in_recovery() THEN 'claims are refused here (25006): the verdict is the primary''s, by what has arrived' END),
		(5, 'id', k.id::text),
		(6, 'attempt', k.attempt || CASE k.releases WHEN 0 THEN '' ELSE format(', %s of them released', k.releases) END
			|| CASE WHEN k.settings ->> 'max_attempts' IS NULL THEN '' ELSE format(', %s counted of max_attempts %s', k.attempt - k.releases, k.settings ->> 'max_attempts') END),
		(7, 'owner', k.owner)) f (n, fact, value)
	 WHERE f.value IS NOT NULL ORDER BY f.n;

	RETURN QUERY SELECT t.fact, format('%s, %s', date_trunc('milliseconds', t.at), CASE WHEN t.at > told_now THEN 'in ' || date_trunc('seconds', t.at - told_now)
			ELSE date_trunc('seconds', told_now - t.at) || ' ago' END)
	  FROM (VALUES
		(1, 'first claimed', k.claimed_at), (2, 'finished', CASE WHEN k.life NOT IN ('running', 'overrun', 'unknown', 'accepted') THEN k.finished_at END),
		(3, 'lease until', CASE WHEN k.life IN ('running', 'overrun', 'unknown') THEN k.lease_until END), (4, 'not before', CASE WHEN k.early THEN k.not_before END),
		(5, 'deadline', CASE WHEN k.life IN ('released', 'retryable', 'accepted', 'running', 'overrun', 'unknown') THEN k.deadline END),
		(6, 'replayed until', CASE WHEN k.life IN ('succeeded', 'failed', 'expired') THEN k.expires_at END),
		(7, 'remembered until', CASE WHEN k.life IN ('succeeded', 'failed', 'expired') THEN k.forget_at END)) t (n, fact, at)
	 WHERE t.at IS NOT NULL ORDER BY t.n;

	IF k.tries IS NOT NULL THEN
		fact := CASE k.life WHEN 'unknown' THEN 'reconcilers' ELSE 'work list' END;
		value := CASE
			WHEN k.life = 'unknown' AND k.due_at IS NULL THEN format('have given up after %s tries: find out what happened and call idem_resolve()', k.tries)
			WHEN k.life = 'unknown' THEN format('%s of %s tries; handed out by idem_reconcile() %s', k.tries, k.settings ->> 'reconcile_attempts',
				CASE WHEN k.due_at > told_now THEN 'from ' || date_trunc('milliseconds', k.due_at) ELSE 'when it is called next' END)
			WHEN k.life IN ('accepted', 'retryable', 'released', 'overrun') THEN 'handed out by idem_start_next() ' || CASE WHEN k.due_at > told_now
				THEN 'from ' || date_trunc('milliseconds', k.due_at) ELSE 'when it is called next' END END;
		IF value IS NOT NULL THEN
			RETURN NEXT;
		END IF;
	END IF;

	IF k.holder = 0 THEN
		-- those that have written records
		RETURN QUERY SELECT 'holder'::text, coalesce(string_agg(format('prepared transaction %L of %s, prepared %s ago', p.gid, p.owner,
				date_trunc('seconds', told_now - p.prepared)), ', or ' ORDER BY p.prepared), 'a prepared transaction')
		  FROM pg_prepared_xacts p
		 WHERE p.database = current_database() AND EXISTS (SELECT FROM pg_locks x JOIN pg_locks l USING (virtualtransaction) JOIN pg_class c ON c.oid = l.relation
			 WHERE x.transactionid = p.transaction AND x.pid IS NULL AND l.pid IS NULL
				AND c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'idempotency_internal') AND c.relname ~ '^record(_s[0-9]+)?$');
	ELSIF k.holder IS NOT NULL THEN
		SELECT * INTO session FROM pg_stat_activity a WHERE a.pid = k.holder;
		IF reads_activity THEN
			SELECT * INTO claim FROM @extschema@.idem_stat_activity a WHERE a.holder = k.holder LIMIT 1;
		ELSE
			SELECT NULL::text AS application_name, NULL::interval AS age, NULL::text AS state INTO claim;
		END IF;
		RETURN QUERY SELECT h.fact, h.value FROM (VALUES
			(1, 'holder', format('pid %s, role %s', k.holder, session.usename)),
			(2, 'holder''s application', coalesce(session.application_name, claim.application_name, as_told)),
			(3, 'holder''s transaction', CASE WHEN coalesce(session.state, claim.state) IS NULL THEN as_told
				ELSE format('%s, open for %s', coalesce(session.state, claim.state), date_trunc('seconds', coalesce(told_now - session.xact_start, claim.age))) END),
			(4, 'holder''s query', CASE WHEN session.state IS NULL THEN as_told ELSE session.query END),
			(5, 'holder waits for', CASE WHEN session.state IS NULL THEN as_told WHEN session.wait_event IS NULL THEN 'nothing'
				ELSE session.wait_event_type || ' ' || session.wait_event || CASE WHEN pg_blocking_pids(k.holder) = '{}' THEN '' ELSE format(', held by pid %s', array_to_string(pg_blocking_pids(k.holder), ', ')) END END)
			) h (n, fact, value) WHERE session.pid IS NOT NULL ORDER BY h.n;
	END IF;

	RETURN QUERY SELECT 'setting ' || s.key, format('%s, %s', s.value, CASE WHEN k.own_settings ? s.key THEN 'defined for this operation'
			WHEN k.everyones_settings ? s.key THEN 'defined for operation *' ELSE 'built in' END)
	  FROM jsonb_each(k.settings) s ORDER BY s.key;
END
$$;
COMMENT ON FUNCTION idem_explain(text, text, text) IS
'Tells in words why a key answers as it does: the verdict a claim would get and the rule that decides, attempts, times, reconcilers, the session in the way, and where each setting comes from. Changes nothing; works on a standby. Never params, results or errors; of other sessions what pg_stat_activity shows the caller.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal; readers of idem_unresolved (workers, monitors, admins) may name any
Returns one row a fact.
Raises 22023 (bad argument), 42501, ID099.';
-- Answers for PostgREST, which takes status and headers from settings of the
-- transaction.

CREATE FUNCTION idem_postgrest(answer idem_answer)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	status integer := @extschema@.idem_http_status(answer);
	headers jsonb := '[]';
	earlier jsonb := coalesce(nullif(current_setting('response.headers', true), ''), '[]');
	kind text := CASE answer.verdict WHEN 'mismatch' THEN 'mismatch' ELSE answer.state::text END;
	body jsonb := CASE kind WHEN 'succeeded' THEN answer.result WHEN 'failed' THEN answer.error END;
BEGIN
	IF answer.verdict = 'execute' AND answer.state = 'processing' THEN
		RAISE 'operation "%" (id %) has no response: it is yours to execute', answer.operation, answer.id
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Do the work, call idem_complete(), and fill its result into the answer with state succeeded; or use idem_run().';
	ELSIF kind = 'succeeded' OR body IS NOT NULL THEN
		IF jsonb_typeof(body) = 'object' AND body ?& '{status,body}' AND body - '{status,headers,body}'::text[] = '{}'
			AND jsonb_typeof(body -> 'status') = 'number' AND body ->> 'status' ~ '^[2-5][0-9][0-9]$'
		THEN
			SELECT coalesce(jsonb_agg(jsonb_build_object(h.name, h.content)), '[]') INTO headers
			  FROM jsonb_array_elements(CASE jsonb_typeof(body -> 'headers') WHEN 'array' THEN body -> 'headers'
					WHEN 'object' THEN jsonb_build_array(body -> 'headers') ELSE '[]' END) o (object),
				jsonb_each_text(CASE jsonb_typeof(o.object) WHEN 'object' THEN o.object ELSE '{}' END) h (name, content)
			 WHERE h.content IS NOT NULL AND h.name || h.content !~ '[[:cntrl:]]';
			status := body ->> 'status';
			body := nullif(body -> 'body', 'null');
		END IF;
	ELSE
		-- no params, no result
		SELECT CASE WHEN status < 400 THEN '{}' ELSE jsonb_build_object('title', p.title, 'status', status, 'detail', p.detail) END
			|| jsonb_build_object('state', answer.state, 'advice', answer.advice, 'id', answer.id) INTO body
		  FROM (VALUES
			('mismatch', 'Other parameters under this key', 'The key was used with other parameters. Another intent needs another key.'),
			('absent', 'Not on record', 'Nothing is known of this key yet. Send the request again, with the same key.'),
			('unconfirmed', 'Not on record here', 'This server may lag behind. Send the request again, with the same key.'),
			('accepted', 'Accepted', 'It will be worked on. Ask again.'),
			('processing', 'In progress', 'It is being worked on. Ask again, with the same key.'),
			('failed', 'Failed', 'It was not done.'),
			('unknown', 'The outcome is not known', 'It may have been done. It is being looked into; do not use another key.'),
			('expired', 'Too late to tell', 'The key is older than what is remembered. Look up what the operation did.'))
			AS p (about, title, detail)
		 WHERE p.about IS NOT DISTINCT FROM kind;
		IF status >= 400 THEN
			headers := '[{"Content-Type": "application/problem+json"}]';
		END IF;
	END IF;
	IF answer.retry_after IS NOT NULL THEN
		headers := headers || jsonb_build_object('Retry-After', greatest(1, ceil(extract(epoch FROM answer.retry_after)))::text);
	END IF;
	IF answer.verdict = 'replay' THEN
		headers := headers || '{"Idempotent-Replayed": "true"}';
	END IF;
	-- what was set earlier in the transaction stays, but for headers of the same name
	SELECT coalesce(jsonb_agg(e ORDER BY n), '[]') || headers INTO headers
	  FROM jsonb_array_elements(earlier) WITH ORDINALITY u (e, n)
	 WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(headers) o, jsonb_object_keys(o) a, jsonb_object_keys(e) b WHERE lower(a) = lower(b));
	PERFORM set_config('response.status', status::text, true), set_config('response.headers', headers::text, true);
	RETURN body;
END
$$;
COMMENT ON FUNCTION idem_postgrest(idem_answer) IS
'Returns the body of the HTTP response for an answer, and sets response.status and response.headers, from which PostgREST takes the rest: the status of idem_http_status(), Retry-After in whole seconds, and Idempotent-Replayed: true on a replay.
answer: of idem_claim, idem_run, idem_accept, idem_status or their kin; one that was the caller''s to execute with its result filled in and state succeeded
A result or error with members status (200 to 599), body and perhaps headers, and no others, gives all three, without headers that are no text of one line; any other is the body. Without an outcome the body is a problem object with state, advice and id.
Raises 22023 (not an answer, or one that is still to be executed).';
-- Settings, housekeeping, rights.

CREATE FUNCTION idem_define(operation text, settings jsonb)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_define' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_define(text, jsonb) IS
'Changes settings of an operation, or with operation * the defaults of all. Acts on the next call of every session once committed.
operation: name of the operation, 1 to 255 bytes in UTF-8
settings: an object; a setting not named keeps its value, JSON null means none. Intervals are strings with a unit, without months
Raises 22023 (unknown setting or bad value), 25006 (standby or read-only).';

CREATE FUNCTION idem_undefine(operation text, settings text[] DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_undefine' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_undefine(text, text[]) IS
'Takes settings from an operation: from then on it follows those of operation *, and operation * the built-in ones. Acts on the next call of every session once committed; a setting that is not defined is left.
operation: 1 to 255 bytes in UTF-8; need not be defined
settings: names of settings; NULL for all
Raises 22023 (unknown setting, null name or nested array), 25006 (standby or read-only).';

CREATE FUNCTION idem_policy(operation text)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_policy' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_policy(text) IS
'Shows all settings in force for an operation.
operation: name of the operation, 1 to 255 bytes in UTF-8
Returns an object.
Raises 22023 (bad argument), 42501 (the caller may not use the operation).';

CREATE FUNCTION idem_purge(max_records bigint DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_purge' LANGUAGE C VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idem_purge(bigint) IS
'Removes up to max_records records that are past retention and guard, and delivered events past their retention, in one transaction, skipping those other transactions work on; or all records of a segment at once, if all are past and there are not more. What cannot be purged is left, with a warning.
max_records: NULL takes the setting idempotency.purge_batch for records, and empties a segment however large
Returns how many records and events were removed; repeat until 0. Never changes what any call answers.
Raises 22023 (not greater than zero), 25001 (inside a transaction block), 25006 (standby or read-only).';
-- Seeing what is going on.  Views are for people with tier monitor; the
-- functions below them are what they read.

CREATE FUNCTION idem_stat_counters(
	OUT operation text, OUT since timestamptz,
	OUT executed bigint, OUT executed_again bigint, OUT handed_again bigint, OUT accepted bigint,
	OUT replayed_succeeded bigint, OUT replayed_failed bigint, OUT in_progress bigint, OUT mismatch bigint,
	OUT unknown bigint, OUT expired bigint,
	OUT completed bigint, OUT failed bigint, OUT failed_retryable bigint, OUT unsure bigint, OUT renewed bigint,
	OUT released bigint, OUT cancelled bigint, OUT resolved bigint, OUT status_asked bigint,
	OUT lease_overruns bigint, OUT stale_fences bigint, OUT commits_refused bigint,
	OUT waits bigint, OUT wait_microseconds bigint, OUT purged bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_stat_counters' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stat_counters() IS
'The counters of this database as they are in shared memory; read them through idem_stat.
Returns nothing unless the library is in shared_preload_libraries.';

CREATE FUNCTION idem_stat_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'idem_stat_reset' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stat_reset() IS
'Starts the counters of this database, those of destinations too, and the rows of what there is no room for, again from zero.
Returns nothing; does nothing without shared_preload_libraries.';

CREATE VIEW idem_stat WITH (security_barrier) AS
	SELECT c.operation, c.since, r.requests,
		c.executed OPERATOR(pg_catalog.+) c.executed_again AS executions,
		pg_catalog.round(r.requests::pg_catalog.numeric OPERATOR(pg_catalog./)
			NULLIF(c.executed OPERATOR(pg_catalog.+) c.executed_again, 0), 2) AS requests_per_execution,
		c.executed, c.executed_again, c.handed_again, c.accepted, c.replayed_succeeded, c.replayed_failed,
		c.in_progress, c.mismatch, c.unknown, c.expired,
		c.completed, c.failed, c.failed_retryable, c.unsure, c.renewed, c.released, c.cancelled, c.resolved, c.status_asked,
		c.lease_overruns, c.stale_fences, c.commits_refused, c.waits,
		c.wait_microseconds OPERATOR(pg_catalog.*) '1 microsecond'::pg_catalog.interval AS wait_time,
		c.purged
	FROM idem_stat_counters() c,
		LATERAL (SELECT c.executed OPERATOR(pg_catalog.+) c.executed_again OPERATOR(pg_catalog.+) c.handed_again
			OPERATOR(pg_catalog.+) c.accepted OPERATOR(pg_catalog.+) c.replayed_succeeded OPERATOR(pg_catalog.+) c.replayed_failed
			OPERATOR(pg_catalog.+) c.in_progress OPERATOR(pg_catalog.+) c.mismatch OPERATOR(pg_catalog.+) c.unknown
			OPERATOR(pg_catalog.+) c.expired) AS r(requests);
COMMENT ON VIEW idem_stat IS
'how often each operation of this database was asked for and what was answered, since the server started or idem_stat_reset(), rolled back transactions included; requests_per_execution is how much all layers together retry; operation null counts what there was no room for (idempotency.max_operations), of all databases; empty without shared_preload_libraries';

CREATE FUNCTION idem_stat_visits(
	OUT database text, OUT state text, OUT pid integer, OUT started_at timestamptz, OUT ended_at timestamptz,
	OUT duration interval, OUT next_visit timestamptz, OUT visits bigint, OUT purged bigint, OUT purged_total bigint, OUT left_behind bigint,
	OUT purged_until timestamptz, OUT failures_in_row integer, OUT last_error_at timestamptz, OUT last_error text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_stat_visits' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_stat_visits() IS
'What the background worker knows of each database; read it through idem_stat_worker.
Returns nothing unless the library is in shared_preload_libraries.';

-- With the rights of the owner, because snapshots of other roles' sessions are
-- shown to members of pg_read_all_stats only.
CREATE FUNCTION idem_stat_horizons(OUT database name, OUT holder text, OUT xmin_age integer)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL RESTRICTED
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT datname, CASE WHEN backend_type = 'walsender' THEN 'standby, session ' ELSE 'session ' END || pid, age(backend_xmin)
		FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
	UNION ALL
	SELECT database, 'prepared transaction ' || gid, age(transaction) FROM pg_prepared_xacts
	UNION ALL
	SELECT NULL, 'replication slot ' || slot_name, age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL
$$;
COMMENT ON FUNCTION idem_stat_horizons() IS
'Who keeps vacuum from removing what was deleted, in which database (null: in all), and how many transactions old the snapshot is. idem_stat_worker shows the oldest of each.';

-- Vacuum removes only rows that no snapshot can see any more: the oldest snapshot
-- holds back what purge leaves to it.
CREATE VIEW idem_stat_worker WITH (security_barrier) AS
	SELECT v.*, h.holder AS horizon_holder, h.xmin_age AS horizon_age
	FROM idem_stat_visits() v
	LEFT JOIN LATERAL (
		SELECT holder, xmin_age FROM idem_stat_horizons() a
		WHERE a.database IS NULL OR a.database OPERATOR(pg_catalog.=) v.database::pg_catalog.name
		ORDER BY xmin_age DESC LIMIT 1
	) h ON true;
COMMENT ON VIEW idem_stat_worker IS
'one row for each database the background worker visits: state is done, running, unfinished (it comes back at once), no extension, busy (it made way for DDL), failed or not visited yet; duration, purged and left_behind (records that cannot be understood, and tables of records that are damaged) are of the running or last visit; purged_until is the time at which the oldest of the records it removed last was to be forgotten; horizon_holder is who keeps vacuum from removing what purge deleted, and horizon_age how many transactions old its snapshot is; empty without shared_preload_libraries';

-- The lock of an id carries its last eight bytes (open_claims.c).
-- With the rights of the owner, because age and name of other roles' sessions
-- are shown to members of pg_read_all_stats only.
CREATE FUNCTION idem_stat_claims(
	OUT id_tail text, OUT holder integer, OUT role name, OUT application_name text, OUT state text,
	OUT age interval, OUT idle interval)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL RESTRICTED
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	SELECT left(c.half, 4) || '-' || substr(c.half, 5), coalesce(l.pid, 0), a.usename, a.application_name,
		CASE WHEN l.pid IS NULL THEN 'prepared' ELSE a.state END,
		clock_timestamp() - a.xact_start,
		CASE WHEN a.state LIKE 'idle%' THEN clock_timestamp() - a.state_change END
	FROM pg_locks l
	CROSS JOIN LATERAL (SELECT lpad(to_hex(l.classid::bigint), 8, '0') || lpad(to_hex(l.objid::bigint), 8, '0')) c (half)
	LEFT JOIN pg_stat_activity a ON a.pid = l.pid
	WHERE l.locktype = 'advisory' AND l.objsubid = 7648 AND l.granted
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;
COMMENT ON FUNCTION idem_stat_claims() IS
'What idem_stat_activity shows.';

CREATE VIEW idem_stat_activity WITH (security_barrier) AS SELECT * FROM idem_stat_claims();
COMMENT ON VIEW idem_stat_activity IS
'claims open in transactions right now: id_tail is the end of the id (its last two groups), holder the pid, 0 for a prepared transaction; age is that of the transaction; idle is how long the session has done nothing while it holds the claim; a batch that gave up its locks is not shown';

-- What a stored record means now takes the settings of its operation and the
-- clock, and is told by the code that answers claims.  Only views call it.
CREATE FUNCTION idempotency_internal.effective_state(
	operation text, key text, state "char", attempt integer, releases integer, claimed_at timestamptz, finished_at timestamptz,
	lease_until timestamptz, expires_at timestamptz, forget_at timestamptz, reopened_at timestamptz)
RETURNS text
AS 'MODULE_PATHNAME', 'idem_effective_state' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION idempotency_internal.effective_state(text, text, "char", integer, integer, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz) IS
'Returns what a record means now: forgotten, released, expired, succeeded, failed, retryable, accepted, running, overrun (a lease that is over and may be taken over) or unknown.
operation, key, state, attempt, releases, claimed_at, finished_at, lease_until, expires_at, forget_at, reopened_at: columns of the record';

CREATE VIEW idem_open WITH (security_barrier) AS
	SELECT r.id, r.principal, r.operation, r.key,
		CASE WHEN r.effective OPERATOR(pg_catalog.=) 'retryable' THEN 'failed'
			WHEN r.effective OPERATOR(pg_catalog.=) 'running' THEN 'processing'
			WHEN r.effective OPERATOR(pg_catalog.=) 'overrun' THEN 'unknown'
			ELSE r.effective END AS state,
		r.attempt, r.owner, r.since, r.age, r.lease_until, r.reconcile_tries, r.next_try
	FROM (SELECT r.id, r.principal, r.operation, r.key,
			idempotency_internal.effective_state(r.operation, r.key, r.state, r.attempt, r.releases, r.claimed_at, r.finished_at,
				r.lease_until, r.expires_at, r.forget_at, r.reopened_at) AS effective,
			r.accepted, r.attempt, r.owner, w.since,
			pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) w.since AS age,
			r.lease_until, w.tries AS reconcile_tries, w.due_at AS next_try
		FROM idempotency_internal.every_entry w
		JOIN idempotency_internal.every_record r ON r.id OPERATOR(pg_catalog.=) w.id) AS r
	WHERE r.effective OPERATOR(pg_catalog.=) ANY ('{accepted,running,overrun,unknown}')
		OR (r.effective OPERATOR(pg_catalog.=) 'retryable' AND r.accepted);
COMMENT ON VIEW idem_open IS
'Records that are not finished, with the state idem_status tells: accepted, processing under a lease, unknown (every lease that is over, also where the settings let the next claim take over), or failed (accepted work that is to be retried). Work that a limit has ended is finished. age counts from the first accept or claim; next_try is when a worker or reconciler may get the record, null after the last try of a reconciler.';

-- Results and errors stay out: they are the applications'.
CREATE VIEW idem_record WITH (security_barrier) AS
	SELECT r.id, r.principal, r.operation, r.key,
		CASE WHEN e.state OPERATOR(pg_catalog.=) 'retryable' THEN 'failed, retryable'
			WHEN e.state OPERATOR(pg_catalog.=) 'failed' AND r.state OPERATOR(pg_catalog.=) 'c' THEN 'cancelled'
			WHEN e.state OPERATOR(pg_catalog.=) 'running' THEN 'processing'
			WHEN e.state OPERATOR(pg_catalog.=) 'overrun' THEN 'unknown'
			ELSE e.state END AS state,
		r.attempt, r.owner, pg_catalog.date_trunc('milliseconds'::pg_catalog.text, r.claimed_at) AS claimed_at, r.finished_at,
		r.finished_at OPERATOR(pg_catalog.-) r.claimed_at AS took,
		r.lease_until, r.expires_at, r.forget_at,
		r.result IS NOT NULL AS has_result, r.error IS NOT NULL AS has_error
	FROM idempotency_internal.every_record r,
		LATERAL (SELECT idempotency_internal.effective_state(r.operation, r.key, r.state, r.attempt, r.releases, r.claimed_at,
			r.finished_at, r.lease_until, r.expires_at, r.forget_at, r.reopened_at)) AS e(state);
COMMENT ON VIEW idem_record IS
'All records, without results and errors. state is what idem_status tells, with finer words: forgotten (not purged yet) and released read as absent there, cancelled and "failed, retryable" as failed. The row of one key is found by WHERE id = idem_id(operation, key, principal).';
-- Destinations of calls and events, and the limits of calls.

CREATE TABLE idempotency_internal.destination (
	destination text COLLATE "C" NOT NULL,
	settings jsonb NOT NULL,
	CONSTRAINT destination_pkey PRIMARY KEY (destination)
) USING heap;
COMMENT ON TABLE idempotency_internal.destination IS
	'settings given by idem_destination_define; destination * changes the defaults of all';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.destination', '');

CREATE FUNCTION idem_destination_define(destination text, settings jsonb)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_destination_define' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_destination_define(text, jsonb) IS
'Changes settings of a destination, or with destination * the defaults of all. Acts on the next call of every session once committed.
destination: 1 to 255 bytes in UTF-8
settings: an object; a setting not named keeps its value, JSON null means none. Intervals are strings with a unit, without months; shares are numbers up to 1
Raises 22023 (unknown setting or bad value), 25006 (standby or read-only).';

CREATE FUNCTION idem_destination_undefine(destination text, settings text[] DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_destination_undefine' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_destination_undefine(text, text[]) IS
'Takes settings from a destination: from then on it follows those of destination *, and destination * the built-in ones. Acts on the next call of every session once committed; a setting that is not defined is left.
destination: 1 to 255 bytes in UTF-8; need not be defined
settings: names of settings; NULL for all
Raises 22023 (unknown setting, null name or nested array), 25006 (standby or read-only).';

CREATE FUNCTION idem_destination_policy(destination text)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_destination_policy' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_destination_policy(text) IS
'Shows all settings in force for a destination, defined or not.
destination: name of the destination, 1 to 255 bytes in UTF-8
Returns an object.
Raises 22023 (bad argument).';

-- The call limiter, for programs that make calls themselves.  It is kept in shared
-- memory, outside transactions.
CREATE TYPE idem_permit_answer AS (
	decision text,
	retry_after interval
);
COMMENT ON TYPE idem_permit_answer IS
	'whether a call may be made: decision is go, wait (ask again after retry_after) or give_up (it is not to be retried now)';

CREATE FUNCTION idem_permit(destination text, is_retry boolean DEFAULT false)
RETURNS idem_permit_answer
AS 'MODULE_PATHNAME', 'idem_permit' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_permit(text, boolean) IS
'Asks whether a destination may be called now, by the rules of idem_destination_policy for all sessions together. A ROLLBACK gives nothing back; the slot in flight is free again once reported, when the session ends, or after 5 minutes.
destination: its name, 1 to 255 bytes in UTF-8
is_retry: true if the same message was sent before; it takes a token of the retry budget, into which each first try lays retry_budget of one
Returns decision go: call it, and idem_report() what came of it; wait: the circuit breaker is open or max_in_flight calls are under way, ask again after retry_after; give_up (retries only): the retry budget is used up. Use SELECT * FROM idem_permit(...).
Raises 22023 (bad argument), 42501 (setting role of the destination), 55000 (the library is not in shared_preload_libraries).';

CREATE FUNCTION idem_report(destination text, succeeded boolean, is_retry boolean DEFAULT false)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_report' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_report(text, boolean, boolean) IS
'Says what came of a call that idem_permit() let go.
destination: name of the destination, 1 to 255 bytes in UTF-8
succeeded: the destination has answered as it should; an answer that says the request is wrong is a success here, no answer is a failure; NULL: the call was not made after all, and its permit is given back
is_retry: as idem_permit() was told
Returns nothing. A ROLLBACK does not take it back.
Raises 22023 (bad argument), 42501 (setting role of the destination), 55000 (the library is not in shared_preload_libraries).';

CREATE FUNCTION idem_stat_calls(
	OUT destination text, OUT breaker text, OUT recently_succeeded bigint, OUT recently_failed bigint,
	OUT in_flight bigint, OUT retries_left numeric, OUT let_go bigint, OUT told_to_wait bigint, OUT told_to_give_up bigint,
	OUT succeeded bigint, OUT failed bigint, OUT retries bigint, OUT breaker_opened bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'idem_stat_calls' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_stat_calls() IS
'What idem_stat_destination shows.
Returns nothing unless the library is in shared_preload_libraries.';

CREATE VIEW idem_stat_destination WITH (security_barrier) AS SELECT * FROM idem_stat_calls();
COMMENT ON VIEW idem_stat_destination IS
'destinations of this database that were called lately, and what the call limiter knows of them: breaker is closed, open or half-open, and recently_succeeded and recently_failed are the calls of the last breaker_window it judges by; in_flight calls are let go and not reported; retries_left is what the retry budget holds, null without one; the other numbers count since the server started, the destination was first called or idem_stat_reset(), rolled back transactions included; destination null counts calls there was no room for, of all databases, which went without limits; empty without shared_preload_libraries';

-- Webhooks: computed from the arguments alone.  Standard Webhooks 1.0.0, symmetric;
-- Ed25519 (v1a) is not there.
--
-- What comes from the far side can be anything, and anything wrong with it is
-- answered with false, without saying what.  What is configured here, secrets and
-- tolerance, raises an error when it is wrong, whatever the request is like, so
-- that it is found before the first forged one.
--
-- Messages never contain secrets, signatures or bodies.

CREATE FUNCTION idem_webhook_sign(id text, "timestamp" text, body bytea, secret text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	encoding name := CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END;
	key bytea;
	block bit(512);
BEGIN
	IF id IS NULL OR "timestamp" IS NULL OR body IS NULL OR secret IS NULL THEN
		RAISE 'idem_webhook_sign needs an id, a timestamp, a body and a secret' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'A body may be empty.';
	ELSIF id COLLATE "C" = '' OR strpos(id COLLATE "C", '.') > 0 THEN
		RAISE 'id of a webhook must be neither empty nor contain a point' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'The point separates it from the timestamp in what is signed.';
	ELSIF left("timestamp", 13) COLLATE "C" !~ '^(0|[1-9][0-9]{0,11})$' THEN
		RAISE 'timestamp of a webhook must be in whole seconds since 1970' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'Such as extract(epoch FROM now())::bigint::text.';
	ELSIF secret COLLATE "C" !~ '^(whsec_)?(?=.)([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$' THEN
		RAISE 'the secret for webhooks is not one' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'A secret is base64, usually behind whsec_.';
	END IF;
	-- HMAC (RFC 2104): a block of 64 bytes, with 36 and with 5C in each
	key := decode(regexp_replace(secret COLLATE "C", '^whsec_', ''), 'base64');
	key := CASE WHEN length(key) > 64 THEN sha256(key) ELSE key END;
	block := 'x' || rpad(encode(key, 'hex'), 128, '0');
	RETURN 'v1,' || encode(sha256(substr(bit_send(block # ('x' || repeat('5C', 64))::bit(512)), 5)
		|| sha256(substr(bit_send(block # ('x' || repeat('36', 64))::bit(512)), 5)
			|| convert_to(id || '.' || "timestamp" || '.', encoding) || body)), 'base64');
END
$$;
COMMENT ON FUNCTION idem_webhook_sign(text, text, bytea, text) IS
'Returns the signature of a webhook, for its header webhook-signature: v1, and the HMAC-SHA256 of id.timestamp.body in base64, after Standard Webhooks.
id: the event''s, the same on every attempt, without a point
timestamp: of this attempt, in Unix seconds
body: the bytes that are sent
secret: base64 with or without whsec_
Raises 22023 (an argument null, an id empty or with a point, a timestamp not in whole seconds, a secret that is not base64).';

-- All signatures are compared with those by all secrets, digest by digest: nothing is
-- learned from how long that takes but how many there are.  What is received meets no
-- regular expression: those raise an error for texts that are longer than 256 MB.
CREATE FUNCTION idem_webhook_verify(
	id text, "timestamp" text, body bytea, signatures text, secrets text[], tolerance interval DEFAULT '5 min')
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	wrong text := CASE WHEN tolerance IS NULL THEN 'must not be null'
		WHEN extract(month FROM tolerance) <> 0 OR extract(year FROM tolerance) <> 0 THEN 'must not contain months or years'
		WHEN tolerance > '366000 days' THEN 'is too long'
		WHEN tolerance < '0' THEN 'must not be negative' END;
BEGIN
	IF wrong IS NOT NULL THEN
		RAISE 'tolerance of function "idem_webhook_verify" %', wrong USING ERRCODE = 'invalid_parameter_value',
			HINT = 'It says how far the clocks may be apart, and how old a request may be: up to 366000 days.';
	ELSIF coalesce(cardinality(secrets), 0) = 0 THEN
		RAISE 'no secret to verify webhooks with' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'Pass those in use: the old and the new one while they are exchanged.';
	END IF;
	SELECT min(s.n) INTO wrong FROM unnest(secrets) WITH ORDINALITY s (secret, n)
	 WHERE (s.secret COLLATE "C" ~ '^(whsec_)?(?=.)([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$') IS NOT TRUE;
	IF wrong IS NOT NULL THEN
		RAISE 'secret % for webhooks is not one', wrong USING ERRCODE = 'invalid_parameter_value',
			HINT = 'A secret is base64, usually behind whsec_.';
	END IF;
	-- the point: else one signature would fit several requests
	IF id IS NULL OR "timestamp" IS NULL OR body IS NULL OR signatures IS NULL
		OR id COLLATE "C" = '' OR strpos(id COLLATE "C", '.') > 0
		OR left("timestamp", 13) COLLATE "C" !~ '^(0|[1-9][0-9]{0,11})$'
	THEN
		RETURN false;
	ELSIF abs(extract(epoch FROM clock_timestamp()) - "timestamp"::numeric) > extract(epoch FROM tolerance) THEN
		RETURN false;
	END IF;
	RETURN (
		WITH expected AS MATERIALIZED (
			SELECT sha256(@extschema@.idem_webhook_sign(id, "timestamp", body, s.secret)::bytea) AS digest
			  FROM unnest(secrets) s (secret)
		)
		SELECT coalesce(bool_or(sha256(convert_to(g.given, getdatabaseencoding())) = e.digest), false)
		  FROM expected e, string_to_table(signatures COLLATE "C", ' ') g (given) WHERE octet_length(g.given) = 47
	);
END
$$;
COMMENT ON FUNCTION idem_webhook_verify(text, text, bytea, text, text[], interval) IS
'Verifies that a webhook was sent with one of the secrets, unchanged and just now, after Standard Webhooks, scheme v1. Then idem_once() is called with the id, in the transaction that does the work.
id, timestamp, signatures: the headers webhook-id, webhook-timestamp (Unix seconds) and webhook-signature as received
body: the bytes received
secrets: those in use, base64 with or without whsec_
tolerance: how far the timestamp may lie from now, before or after
Returns false for whatever is wrong with the request, also a header that is null or an id with a point.
Raises 22023 (a secret or the tolerance is wrong).';
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
-- Is everything as it should be?  One function for each check, run one after the
-- other with the owner's rights; each returns a row, or one for each fault.

CREATE FUNCTION idempotency_internal.library_version()
RETURNS text
AS 'MODULE_PATHNAME', 'idempotency_library_version' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idempotency_internal.library_version() IS
'Returns the version of the library that this session has loaded.';

CREATE FUNCTION idempotency_internal.check_table(name text)
RETURNS void
AS 'MODULE_PATHNAME', 'idempotency_check_table' LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idempotency_internal.check_table(text) IS
'Checks that a table is what the script made, as every call does before it uses it.
name: of the table, without its schema
Raises 42809 (altered), 55000 (missing).';

CREATE FUNCTION idempotency_internal.refuse_table(altered regclass, types oid[], is_shard boolean)
RETURNS void
LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	last CONSTANT int := cardinality(types) + is_shard::int;
	key CONSTANT text := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = altered AND (attnum = 1 OR is_shard AND attnum = last));
	anew CONSTANT text := 'Restore the table from a backup, or drop and create the extension, which forgets all records.';
	fault record;
BEGIN
	SELECT f.what, coalesce(v.cure, f.cure) AS cure INTO fault FROM pg_class c
	 CROSS JOIN LATERAL (
		SELECT 1, 0::bigint, 'it is not a plain table', anew WHERE c.relkind <> 'r'
		UNION ALL SELECT 2, 0, 'it does not use the heap access method', format('ALTER TABLE %s SET ACCESS METHOD heap.', altered) WHERE c.relam <> (SELECT oid FROM pg_am WHERE amname = 'heap')
		UNION ALL SELECT 3, 0, 'a crash would empty it', format('ALTER TABLE %s SET LOGGED.', altered) WHERE c.relpersistence <> 'p'
		UNION ALL SELECT 4, 0, format('it has a trigger "%s"', tgname), format('DROP TRIGGER %I ON %s.', tgname, altered) FROM pg_trigger WHERE tgrelid = altered AND NOT tgisinternal
		UNION ALL SELECT 5, 0, format('constraint "%s" needs triggers on it', conname), format('ALTER TABLE %s DROP CONSTRAINT %I.', conrelid::regclass, conname)
			FROM pg_trigger t JOIN pg_constraint k ON k.oid = tgconstraint WHERE tgrelid = altered
		UNION ALL SELECT 6, 0, 'it is a partition', format('ALTER TABLE %s DETACH PARTITION %s.', inhparent::regclass, altered) FROM pg_inherits WHERE inhrelid = altered AND c.relispartition
		UNION ALL SELECT 7, inhrelid::bigint, 'other tables inherit from it', format('ALTER TABLE %s NO INHERIT %s.', inhrelid::regclass, altered) FROM pg_inherits WHERE inhparent = altered
		UNION ALL SELECT 8, 0, 'its columns differ', anew FROM generate_series(1, last) n
			WHERE NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = altered AND attnum = n AND NOT attisdropped AND atttypid = coalesce(types[n], atttypid))
		UNION ALL SELECT 9, attnum, format('it has a column "%s"', attname), format('ALTER TABLE %s DROP COLUMN %I.', altered, attname) FROM pg_attribute WHERE attrelid = altered AND attnum > last AND NOT attisdropped
		UNION ALL SELECT 10, 0, 'its primary key is not a valid, immediate one on the first column' || CASE WHEN is_shard THEN ' and the last' ELSE '' END,
				format('ALTER TABLE %s DROP CONSTRAINT %I, ADD PRIMARY KEY (%s).', altered, relname, key) FROM pg_index JOIN pg_class i ON i.oid = indexrelid WHERE indrelid = altered AND indisprimary
		UNION ALL SELECT 11, 0, 'it has no usable primary key', format('ALTER TABLE %s ADD PRIMARY KEY (%s).', altered, key)
	 ) f (n, m, what, cure)
	  LEFT JOIN LATERAL (
		-- what another version has made must not be undone
		SELECT format('The extension is version %s, the library of this session %s. If the extension is older, run ALTER EXTENSION idempotency UPDATE. If the library is, reconnect; a server that preloads it has to be restarted.', extversion, library)
		  FROM pg_extension, idempotency_internal.library_version() AS library WHERE extname = 'idempotency' AND extversion <> library
	 ) v (cure) ON true
	 WHERE c.oid = altered ORDER BY n, m, f.what LIMIT 1;
	RAISE 'table "%" is not the table the extension made: %', altered, fault.what USING ERRCODE = 'wrong_object_type',
		DETAIL = 'Records would be lost silently in such a table.', HINT = fault.cure;
END
$$;
COMMENT ON FUNCTION idempotency_internal.refuse_table(regclass, oid[], boolean) IS
'Raises 42809 about a table that is not what the script made, with what undoes the change.
altered: the table
types: of the columns that the script gave it
is_shard: if true, it has the principal in a column behind these';

CREATE FUNCTION idempotency_internal.is_preloaded()
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
-- only then can it be set at server start alone
RETURN COALESCE((SELECT context OPERATOR(pg_catalog.=) 'postmaster' FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.=) 'idempotency.max_operations'), false);
COMMENT ON FUNCTION idempotency_internal.is_preloaded() IS
'Returns whether the library is in shared_preload_libraries.';

CREATE FUNCTION idempotency_internal.doctor_version()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN v.library <> v.installed THEN 'fail' WHEN v.available <> v.installed THEN 'warn' ELSE 'ok' END,
		format('the extension is version %s, the library of this session %s, the files on disk %s', v.installed, v.library, v.available),
		CASE WHEN v.library <> v.installed
			THEN 'If the extension is older, run ALTER EXTENSION idempotency UPDATE. If the library is, reconnect; a server that preloads it has to be restarted.'
			WHEN v.available <> v.installed THEN 'Run ALTER EXTENSION idempotency UPDATE.' END
	  FROM (SELECT e.extversion, idempotency_internal.library_version(), a.default_version
		  FROM pg_extension e JOIN pg_available_extensions a ON a.name = e.extname WHERE e.extname = 'idempotency') v (installed, library, available)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_version() IS
'Compares the versions of SQL, library and files.';

CREATE FUNCTION idempotency_internal.doctor_preload()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN p THEN 'ok' ELSE 'warn' END,
		CASE WHEN p THEN 'the library is preloaded' ELSE 'the library is not preloaded: nothing is purged by itself, nothing is counted, calls of destinations are not limited' END,
		CASE WHEN NOT p THEN 'Add idempotency to shared_preload_libraries and restart the server. Without it a scheduler has to call idem_purge().' END
	  FROM idempotency_internal.is_preloaded() p
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_preload() IS
'Checks that the library is preloaded.';

CREATE FUNCTION idempotency_internal.doctor_worker()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	visit record;
	patience interval := '5 min' + 3 * coalesce(current_setting('idempotency.naptime', true), '1 min')::interval;
BEGIN
	IF NOT idempotency_internal.is_preloaded() OR pg_is_in_recovery() THEN
		RETURN QUERY VALUES ('ok', CASE WHEN pg_is_in_recovery() THEN 'the worker of the primary purges' ELSE 'there is no worker without preloading' END, NULL);
	ELSIF NOT current_setting('idempotency.worker')::boolean THEN
		RETURN QUERY VALUES ('warn', 'the worker is switched off', 'ALTER SYSTEM RESET idempotency.worker, then SELECT pg_reload_conf(). While it is off a scheduler has to call idem_purge().');
	ELSIF current_setting('idempotency.databases') <> '' AND current_database() <> ALL (SELECT btrim(d, ' "') FROM regexp_split_to_table(current_setting('idempotency.databases'), ',') d) THEN
		RETURN QUERY VALUES ('warn', 'the worker does not come here: idempotency.databases names other databases',
			format('Add %I to idempotency.databases, or reset it, then SELECT pg_reload_conf().', current_database()));
	ELSE
		SELECT * INTO visit FROM @extschema@.idem_stat_visits() v WHERE v.database = current_database();
		RETURN QUERY SELECT w.status, w.finding, w.advice FROM (VALUES
			(visit.state = 'failed', 'fail', format('the worker has failed %s times in a row: %s', visit.failures_in_row, visit.last_error), 'Mend what the error tells; the worker tries again by itself.'),
			-- there is room for so many (src/worker/worker.h)
			(visit.database IS NULL AND (SELECT count(*) FROM @extschema@.idem_stat_visits()) >= 256, 'ok', 'the worker comes here, but it shows so of 256 other databases only', NULL),
			(coalesce(visit.next_visit, pg_postmaster_start_time()) < clock_timestamp() - patience AND visit.state IS DISTINCT FROM 'running', 'fail',
				format('the worker was due at %s and has not come', coalesce(visit.next_visit, pg_postmaster_start_time())),
				'Look for "idempotency" in the server''s log. A free place in max_worker_processes is needed; the launcher comes back at a restart.'),
			(true, 'ok', coalesce('the worker was here last at ' || coalesce(visit.ended_at, visit.started_at), 'the worker has not been here yet'), NULL)) w (fits, status, finding, advice)
		 WHERE w.fits LIMIT 1;
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_worker() IS
'Checks that the worker comes to this database.';

CREATE FUNCTION idempotency_internal.doctor_purge()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	place regclass;
	here bigint;
	behind bigint := 0;
BEGIN
	-- a segment waits until all of it is over, at most until it comes round again
	FOR place IN SELECT idempotency_internal.record_tables() LOOP
		EXECUTE format('SELECT count(*) FROM (SELECT FROM %s WHERE forget_at < $1 LIMIT 100001) r', place) INTO here
			USING clock_timestamp() - CASE WHEN place::text ~ '\.record_s' THEN interval '8 days' ELSE interval '1 hour' END;
		behind := behind + here;
	END LOOP;
	RETURN QUERY SELECT CASE behind WHEN 0 THEN 'ok' ELSE 'warn' END,
		CASE behind WHEN 0 THEN 'no record waits long for its purge' ELSE format('purge does not keep up: %s records or more could have been removed long ago', behind) END,
		CASE WHEN behind > 0 THEN 'Call SELECT idem_purge() as a statement of its own until it returns 0, then more often, or preload the library. It warns of what it has to leave.' END;
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_purge() IS
'Checks that records past retention and guard are removed.';

CREATE FUNCTION idempotency_internal.doctor_operations()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	place regclass;
	asked text[];
	here text[];
BEGIN
	-- what was counted, what is open, and what stands at the end of each table
	asked := ARRAY(SELECT c.operation FROM @extschema@.idem_stat_counters() c WHERE c.operation IS NOT NULL
		UNION SELECT w.operation FROM (SELECT * FROM idempotency_internal.every_entry ORDER BY since DESC LIMIT 1000) w);
	FOR place IN SELECT idempotency_internal.record_tables() LOOP
		EXECUTE format('SELECT array_agg(DISTINCT operation) FROM (SELECT operation FROM %s WHERE ctid >= $1 LIMIT 1000) r', place) INTO here
			USING format('(%s,1)', greatest(pg_relation_size(place) / current_setting('block_size')::int - 40, 0))::tid;
		asked := asked || here;
	END LOOP;
	RETURN QUERY SELECT CASE count(o) WHEN 0 THEN 'ok' ELSE 'warn' END,
		CASE count(o) WHEN 0 THEN 'every operation asked for is defined' ELSE format('%s operations were asked for and never defined: %s', count(o),
			array_to_string((array_agg(quote_literal(o) ORDER BY o))[1:5], ', ') || CASE WHEN count(o) > 5 THEN ', ...' ELSE '' END) END,
		CASE WHEN count(o) > 0 THEN format('Correct the name where it is misspelt; else SELECT idem_define(%L, ''{}''), with the settings it is to have.', min(o)) END
	  FROM (SELECT DISTINCT o FROM unnest(asked) o WHERE NOT EXISTS (SELECT FROM idempotency_internal.policy p WHERE p.operation = o)) u (o);
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_operations() IS
'Looks for operations that are claimed and have no settings of their own.';

CREATE FUNCTION idempotency_internal.doctor_principal()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE s.source WHEN 'session' THEN 'warn' ELSE 'ok' END,
		CASE WHEN s.source = 'session' THEN 'idempotency.principal is set for this session: behind a pooler its next client inherits it'
			WHEN coalesce(s.setting, '') = '' THEN 'no principal is set for the session' ELSE format('idempotency.principal comes from: %s', s.source) END,
		CASE s.source WHEN 'session' THEN 'RESET idempotency.principal; use SET LOCAL in each transaction, or pass principal with each call.' END
	  FROM (VALUES (1)) one LEFT JOIN pg_settings s ON s.name = 'idempotency.principal'
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_principal() IS
'Checks that the session has no principal of its own that another client could inherit.';

CREATE FUNCTION idempotency_internal.doctor_timeout()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN t.ends THEN 'ok' ELSE 'warn' END,
		CASE WHEN t.ends THEN 'a client that stops in the middle of a transaction loses its claims in time' ELSE 'a client that stops in the middle of a transaction keeps its claims for ever' END,
		CASE WHEN NOT t.ends THEN format('ALTER DATABASE %I SET idle_in_transaction_session_timeout = ''1 min'', then reconnect.', current_database()) END
	  FROM (SELECT current_setting('idle_in_transaction_session_timeout') <> '0' OR coalesce(current_setting('transaction_timeout', true), '0') <> '0') t (ends)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_timeout() IS
'Checks that idle transactions end.';

CREATE FUNCTION idempotency_internal.doctor_unresolved()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE n WHEN 0 THEN 'ok' ELSE 'warn' END, CASE n WHEN 0 THEN 'no unknown outcome is left to a person' ELSE format('%s unknown outcomes are left to a person', n) END,
		CASE WHEN n > 0 THEN 'For each row of idem_unresolved find out what happened, then call idem_resolve().' END
	  FROM (SELECT count(*) FROM @extschema@.idem_unresolved) u (n)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_unresolved() IS
'Counts what reconcilers have given up.';

CREATE FUNCTION idempotency_internal.doctor_destinations()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH RECURSIVE named (destination) AS (
		SELECT min(d.destination COLLATE "C") FROM idempotency_internal.outbox_due d
		UNION ALL
		SELECT (SELECT min(d.destination COLLATE "C") FROM idempotency_internal.outbox_due d WHERE d.destination > n.destination) FROM named n WHERE n.destination IS NOT NULL),
	waiting (destination, since) AS (
		SELECT n.destination, q.created_at
		  FROM named n, LATERAL (SELECT o.created_at FROM (SELECT d.event_id, d.lease_until FROM idempotency_internal.outbox_due d
				 WHERE d.destination = n.destination AND d.state = 'q' ORDER BY d.due_at LIMIT 1000) d
				JOIN idempotency_internal.outbox o ON o.event_id = d.event_id WHERE d.lease_until IS NULL ORDER BY o.created_at LIMIT 1) q
		 WHERE q.created_at < clock_timestamp() - interval '10 min'
			AND NOT EXISTS (SELECT FROM idempotency_internal.outbox_due d WHERE d.destination = n.destination AND d.lease_until > clock_timestamp()))
	SELECT 'warn', format('nothing takes the events of destination %L: the oldest waits since %s', w.destination, date_trunc('second', w.since)),
		format('Start a relay that calls idem_take(%L, ...); if the events are read from the log, idem_destination_define(%L, ''{"relay": "log"}'').', w.destination, w.destination)
	  FROM waiting w
	UNION ALL
	SELECT 'ok', 'no destination has waited for ten minutes', NULL WHERE NOT EXISTS (SELECT FROM waiting)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_destinations() IS
'Looks for destinations whose events wait and of which none is being delivered.';

CREATE FUNCTION idempotency_internal.doctor_dead_letters()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE count(*) WHEN 0 THEN 'ok' ELSE 'warn' END,
		CASE count(*) WHEN 0 THEN 'there are no dead letters' ELSE format('%s dead letters, of %s', count(*), array_to_string((array_agg(DISTINCT quote_literal(d.destination)))[1:5], ', ')) END,
		CASE WHEN count(*) > 0 THEN 'For each row of idem_dead_letter mend the cause and call idem_redeliver(), or idem_discard().' END
	  FROM idempotency_internal.outbox_due d WHERE d.state = 'd'
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_dead_letters() IS
'Counts dead letters.';

CREATE FUNCTION idempotency_internal.doctor_roles()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	WITH gone AS (
		SELECT s.*, s.settings ->> 'role' AS role
		  FROM (SELECT 'operation', operation, settings, 'idem_define' FROM idempotency_internal.policy
			UNION ALL SELECT 'destination', destination, settings, 'idem_destination_define' FROM idempotency_internal.destination) s (kind, name, settings, mends)
		 WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = s.settings ->> 'role') AND s.settings ->> 'role' IS NOT NULL)
	SELECT 'fail', format('%s %L is for role %L, which does not exist: no role may use it', g.kind, g.name, g.role),
		format('CREATE ROLE %I, or SELECT %s(%L, ''{"role": null}'').', g.role, g.mends, g.name) FROM gone g
	UNION ALL
	SELECT 'ok', 'every role named in settings exists', NULL WHERE NOT EXISTS (SELECT FROM gone)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_roles() IS
'Looks for roles in settings that do not exist.';

CREATE FUNCTION idempotency_internal.doctor_tables()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	tables text[] := ARRAY(SELECT 'record_s' || lpad(i::text, 2, '0') FROM generate_series(0, 31) i);
	place text;
	good boolean := true;
BEGIN
	FOREACH place IN ARRAY '{record,policy,normalisation,open_work,destination,outbox,outbox_due}'::text[] || tables LOOP
		BEGIN
			PERFORM idempotency_internal.check_table(place);
		EXCEPTION WHEN wrong_object_type OR object_not_in_prerequisite_state THEN
			status := 'fail';
			GET STACKED DIAGNOSTICS finding = MESSAGE_TEXT, advice = PG_EXCEPTION_HINT;
			good := false;
			RETURN NEXT;
		END;
	END LOOP;
	FOR place, advice IN
		SELECT i.place, i.columns
		  FROM (SELECT t, 'forget_at' FROM unnest('{record}' || tables) t
			UNION ALL VALUES ('open_work', 'queue, operation, due_at'), ('open_work', 'principal, since'), ('open_work', 'since'),
				('outbox', 'destination, created_at'), ('outbox_due', 'destination, state, due_at'), ('outbox_due', 'destination, ordering_key, place')) i (place, columns)
		  JOIN pg_class c ON c.relnamespace = 'idempotency_internal'::regnamespace AND c.relname = i.place
		 WHERE NOT EXISTS (SELECT FROM pg_index x WHERE x.indrelid = c.oid AND x.indisvalid AND x.indpred IS NULL
			AND (i.columns <> 'forget_at' OR EXISTS (SELECT FROM pg_class b JOIN pg_am a ON a.oid = b.relam WHERE b.oid = x.indexrelid AND a.amname = 'brin'))
			AND (SELECT string_agg(a.attname, ', ' ORDER BY k.n) FROM unnest(x.indkey) WITH ORDINALITY k (attnum, n)
				JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum) = i.columns)
	LOOP
		status := 'fail';
		finding := format('an index of table "idempotency_internal.%s" is missing', place);
		advice := format('CREATE INDEX ON idempotency_internal.%I %s.', place, CASE advice WHEN 'forget_at' THEN
			'USING brin (forget_at idempotency_internal.forget_at_ops) WITH (pages_per_range = 16)' ELSE format('(%s)', advice) END);
		good := false;
		RETURN NEXT;
	END LOOP;
	IF good THEN
		RETURN QUERY VALUES ('ok', 'tables and indexes are what the extension made', NULL);
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_tables() IS
'Checks that no table was altered, made unlogged or dropped, and that no index is missing.';

CREATE FUNCTION idempotency_internal.doctor_dump()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT CASE WHEN o.may THEN 'ok' ELSE 'warn' END,
		format(CASE WHEN o.may THEN 'the owner of the database, role %I, can dump it with its records' ELSE 'the owner of the database, role %I, cannot dump it: it may not read the records' END, o.name),
		CASE WHEN NOT o.may THEN format('GRANT pg_read_all_data TO %I; or dump as another role that has it; or without the records, which forgets all keys: pg_dump --exclude-table-data=''idempotency_internal.*''.', o.name) END
	  FROM (SELECT r.rolname, r.rolsuper OR pg_has_role(r.oid, 'pg_read_all_data', 'USAGE')
		  FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE d.datname = current_database()) o (name, may)
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_dump() IS
'Checks that the owner of the database can dump it.';

CREATE FUNCTION idempotency_internal.doctor_nodes()
RETURNS TABLE (status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node integer;
	allowed boolean := coalesce(current_setting('idempotency.allow_on_worker_nodes', true), 'off')::boolean;
BEGIN
	IF to_regclass('pg_catalog.pg_dist_local_group') IS NOT NULL THEN
		EXECUTE 'SELECT groupid FROM pg_catalog.pg_dist_local_group' INTO node;
	END IF;
	RETURN QUERY SELECT n.status, n.finding, n.advice FROM (VALUES
		(node IS NULL AND to_regclass('idempotency_internal.placed_record') IS NOT NULL, 'fail', 'the records are those of a cluster, and this is none',
			'SELECT idempotency_internal.gather_placed().'),
		(node IS NULL, 'ok', 'the server is no node of a sharded cluster', NULL),
		(to_regclass('idempotency_internal.placed_record') IS NOT NULL, 'ok', 'the records are distributed beside the rows of their tenants', NULL),
		(allowed, 'fail', 'keys may be claimed on every node of the cluster: one that is claimed on two executes twice',
			'ALTER SYSTEM RESET idempotency.allow_on_worker_nodes, then SELECT pg_reload_conf(), and claim on the coordinator, unless each key always comes to the same node.'),
		(node <> 0, 'warn', 'this is a worker node of a sharded cluster: claims are refused here', 'Claim on the coordinator, or run idem_distribute() there.'),
		(true, 'ok', 'this is the coordinator of a sharded cluster; on its worker nodes claims are refused', NULL)) n (fits, status, finding, advice)
	 WHERE n.fits LIMIT 1;
END
$$;
COMMENT ON FUNCTION idempotency_internal.doctor_nodes() IS
'Checks that keys are claimed on one node of a cluster only.';

CREATE FUNCTION idem_doctor()
RETURNS TABLE (item text, status text, finding text, advice text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	FOREACH item IN ARRAY '{version,preload,worker,purge,tables,operations,roles,principal,timeout,unresolved,destinations,dead_letters,dump,nodes}'::text[] LOOP
		BEGIN
			RETURN QUERY EXECUTE format('SELECT %L::text, d.* FROM idempotency_internal.%I() d', item, 'doctor_' || item);
		EXCEPTION WHEN OTHERS THEN
			status := 'fail';
			finding := format('the check itself failed: %s: %s', SQLSTATE, SQLERRM);
			GET STACKED DIAGNOSTICS advice = PG_EXCEPTION_HINT;
			advice := coalesce(nullif(advice, ''), 'Mend what the error tells, then check again.');
			RETURN NEXT;
		END;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idem_doctor() IS
'Checks the installation and what is going on in this database, and changes nothing.
Returns a row for each item, or one for each fault of it: status is ok, warn or fail; finding says what was found, advice what to do about it, NULL with ok. A check that fails is a row too.
Raises nothing of its own.';
-- A cluster of several servers (Citus): records beside the rows of each tenant,
-- and settings that are the same on all nodes.  src/record/place.c has the rest.

CREATE FUNCTION idempotency_internal.tables_of_records()
RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT format('idempotency_internal.%I', relname) FROM pg_class
	 WHERE relnamespace = 'idempotency_internal'::regnamespace AND relname ~ '^record(_s[0-9]{2})?$' AND relkind = 'r' ORDER BY relname
$$;
COMMENT ON FUNCTION idempotency_internal.tables_of_records() IS
'Returns the tables that records of one server are in, as they are written in SQL.';

CREATE FUNCTION idempotency_internal.refuse_without_citus(what text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	node int;
BEGIN
	IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
		RAISE '% needs Citus, which is not in this database', what USING ERRCODE = 'feature_not_supported',
			HINT = 'One server needs none of it. For a cluster, create extension citus before extension idempotency.';
	END IF;
	EXECUTE 'SELECT groupid FROM pg_dist_local_group' INTO node;
	IF node <> 0 THEN
		RAISE '% must be called on the coordinator', what USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'This is a worker node; the coordinator tells all of them.';
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.refuse_without_citus(text) IS
'Raises 0A000 without Citus, 55000 on a worker node.
what: the function that is called';

-- The column in two words: its type, and its collation.
CREATE FUNCTION idempotency_internal.tenant_column(colocate_with regclass, OUT type text, OUT collation_clause text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	shared record;
	tenant record;
BEGIN
	EXECUTE 'SELECT partmethod::text, repmodel::text, CASE partmethod WHEN ''h'' THEN column_to_column_name(logicalrelid, partkey::text) END AS name FROM pg_dist_partition WHERE logicalrelid = $1'
		INTO shared USING colocate_with;
	IF shared.partmethod IS DISTINCT FROM 'h' THEN
		RAISE 'table % is not distributed by a tenant column', colocate_with USING ERRCODE = 'wrong_object_type',
			HINT = 'Name a table that create_distributed_table() has distributed by the tenant. Reference tables, local tables and tables of distributed schemas have no such column.';
	END IF;
	IF shared.repmodel <> 's' THEN
		RAISE 'shards of table % are kept on several nodes', colocate_with USING ERRCODE = 'feature_not_supported',
			HINT = 'Distribute it with citus.shard_replication_factor = 1, and give each node a standby.';
	END IF;
	SELECT a.attname, a.atttypid, format_type(a.atttypid, a.atttypmod) AS type,
		CASE WHEN a.attcollation <> 0 THEN format('COLLATE %I.%I', n.nspname, c.collname) ELSE '' END AS collation_clause
	  INTO tenant
	  FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
	 WHERE a.attrelid = colocate_with AND a.attname = shared.name;
	IF tenant.atttypid = 'varchar'::regtype THEN
		RAISE 'column "%" of table % is of type varchar', tenant.attname, colocate_with USING ERRCODE = 'feature_not_supported',
			DETAIL = 'Citus does not run a function on the node of a tenant of that type (force_delegation).',
			HINT = 'Make the column text.';
	END IF;
	type := tenant.type;
	collation_clause := tenant.collation_clause;
END
$$;
COMMENT ON FUNCTION idempotency_internal.tenant_column(regclass) IS
'Returns type and collation of the column a table is distributed by, as they are written in SQL.
colocate_with: the table
Raises 42809 (not distributed by a column), 0A000 (varchar, or several placements of a shard).';

CREATE FUNCTION idempotency_internal.refuse_records_of_workers()
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	worker record;
BEGIN
	FOR worker IN EXECUTE 'SELECT nodename, nodeport, success, result FROM run_command_on_workers(''SELECT EXISTS (SELECT FROM idempotency_internal.every_record)'')' LOOP
		IF NOT worker.success THEN
			RAISE 'node %:% could not be asked for its records: %', worker.nodename, worker.nodeport, worker.result
				USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'The extension must be installed, in the same version, on all nodes.';
		ELSIF worker.result = 't' THEN
			RAISE 'node %:% has records of its own', worker.nodename, worker.nodeport USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Keys were claimed there under idempotency.allow_on_worker_nodes. They would be forgotten: drop them with DROP EXTENSION and CREATE EXTENSION there once no retry of them can come any more.';
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.refuse_records_of_workers() IS
'Raises 55000 if a worker node has records, or cannot say so.';

-- Indexes as on the table of one server, but its primary key.
CREATE FUNCTION idempotency_internal.create_placed(source text, target text, place text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	definition text;
BEGIN
	EXECUTE format('CREATE TABLE idempotency_internal.%I (LIKE idempotency_internal.%I INCLUDING DEFAULTS INCLUDING STORAGE, place %s NOT NULL, PRIMARY KEY (id, place)) USING heap',
		target, source, place);
	FOR definition IN
		SELECT regexp_replace(pg_get_indexdef(indexrelid), ' INDEX \S+ ON \S+ ', format(' INDEX %I ON idempotency_internal.%I ',
				replace(indexrelid::regclass::text, format('idempotency_internal.%s', source), target), target))
		  FROM pg_index WHERE indrelid = format('idempotency_internal.%I', source)::regclass AND NOT indisprimary
	LOOP
		EXECUTE definition;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.create_placed(text, text, text) IS
'Makes a table like one of ours, with a last column place.
source: the table it is like
target: its name
place: type and collation of that column';

-- What src/record/place.c asks.  Citus takes a principal for a value of the tenant
-- column by its text; its functions want the owner of the tables.  Its tables are
-- qualified: where there is none, the caller may have made some in pg_temp.
CREATE FUNCTION idempotency_internal.lock_shards(principal text, all_here boolean)
RETURNS bigint[]
LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	wanted bigint;
	shards bigint[];
	places bigint[];
BEGIN
	IF to_regclass('pg_catalog.pg_dist_local_group') IS NOT NULL THEN
		SELECT CASE WHEN NOT all_here THEN coalesce(get_shard_id_for_distribution_column(logicalrelid, principal), 0) ELSE 0 END INTO wanted
		  FROM pg_catalog.pg_dist_partition WHERE logicalrelid = 'idempotency_internal.placed_record'::regclass;
	END IF;
	IF wanted IS NULL THEN
		RAISE 'table "idempotency_internal.placed_record" is not distributed' USING ERRCODE = 'object_not_in_prerequisite_state',
			DETAIL = 'Records are in it, and only Citus knows on which node each of them is. A dump of a coordinator that was restored has it as an ordinary table.',
			HINT = 'To use them on one server, or before idem_distribute() on a new cluster, run SELECT idempotency_internal.gather_placed().';
	END IF;
	SELECT array_agg(r.shardid ORDER BY r.shardid), array_agg(ARRAY[r.shardid, w.shardid, is_here::int] ORDER BY r.shardid) INTO shards, places
	  FROM pg_catalog.pg_dist_shard r JOIN pg_catalog.pg_dist_shard w USING (shardminvalue),
		LATERAL (SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_placement p JOIN pg_catalog.pg_dist_local_group USING (groupid) WHERE p.shardid = r.shardid AND shardstate = 1)) h (is_here)
	 WHERE r.logicalrelid = 'idempotency_internal.placed_record'::regclass AND w.logicalrelid = 'idempotency_internal.placed_work'::regclass
	   AND CASE WHEN all_here THEN is_here ELSE r.shardid = wanted END;
	-- Citus refuses to lock none
	IF shards IS NOT NULL THEN
		PERFORM lock_shard_metadata(5, shards);
	END IF;
	RETURN coalesce(places, '{}');
END
$$;
COMMENT ON FUNCTION idempotency_internal.lock_shards(text, boolean) IS
'Takes the locks of shards of records, to the end of the transaction. Shows them as they were before that.
principal: its shard is locked
all_here: if true, all shards that are on this node instead
Returns for each its number, that of the shard of the work list beside it, and 1 if they are on this node.
Raises 55000 if the records are not distributed.';

CREATE FUNCTION idem_distribute(colocate_with regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	tables text[] := array(SELECT idempotency_internal.tables_of_records());
	tenant record;
	source text;
BEGIN
	IF colocate_with IS NULL THEN
		RAISE 'the table to distribute records with must not be null' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	PERFORM idempotency_internal.refuse_without_citus('idem_distribute()'::text);
	tenant := idempotency_internal.tenant_column(colocate_with);
	-- what is open in a transaction is waited for, and what comes next finds the new tables
	EXECUTE format('LOCK TABLE %s, idempotency_internal.open_work IN ACCESS EXCLUSIVE MODE', array_to_string(tables, ', '));
	IF to_regclass('idempotency_internal.placed_record') IS NOT NULL THEN
		RAISE 'records are distributed already' USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'If idempotency_internal.placed_record was restored from a dump, run SELECT idempotency_internal.gather_placed() first.';
	END IF;
	PERFORM idempotency_internal.refuse_records_of_workers();
	PERFORM idempotency_internal.create_placed(s, t, tenant.type || ' ' || tenant.collation_clause)
	  FROM (VALUES ('record'::text, 'placed_record'::text), ('open_work'::text, 'placed_work'::text)) v (s, t);
	COMMENT ON TABLE idempotency_internal.placed_record IS 'the records, by tenant, on all nodes of the cluster: the columns of "record", and the principal as it is in the tenant column';
	COMMENT ON TABLE idempotency_internal.placed_work IS 'the work list, by tenant, on all nodes of the cluster: the columns of "open_work", and the principal as it is in the tenant column';
	EXECUTE 'SELECT create_distributed_table(t, ''place'', colocate_with => $1) FROM unnest(''{idempotency_internal.placed_record,idempotency_internal.placed_work}''::regclass[]) t'
		USING colocate_with::text;
	FOREACH source IN ARRAY tables LOOP
		EXECUTE format('INSERT INTO idempotency_internal.placed_record SELECT r.*, r.principal::%s FROM %s r', tenant.type, source);
		EXECUTE format('DELETE FROM %s', source);
	END LOOP;
	EXECUTE format('INSERT INTO idempotency_internal.placed_work SELECT w.*, w.principal::%s FROM idempotency_internal.open_work w', tenant.type);
	DELETE FROM idempotency_internal.open_work;
END
$$;
COMMENT ON FUNCTION idem_distribute(regclass) IS
'Distributes the records among the nodes of a Citus cluster, each beside the rows of its principal, the tenant. Called once, on the coordinator.
colocate_with: a table that is distributed by the tenant, whose column the principals are values of
Raises 0A000 (no Citus; varchar; several placements of a shard), 42809 (a table without tenant column), 55000 (on a worker node; distributed already; a worker node has records), 22P02 (a principal that is no value of the column), 22023 (null).';

-- The other way round.  Reads through the table itself, so it works on the
-- coordinator of a cluster as on a dump that was restored without one.
CREATE FUNCTION idempotency_internal.gather_placed()
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	tables text[] := array(SELECT idempotency_internal.tables_of_records());
	columns text := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = 'idempotency_internal.record'::regclass AND attnum > 0 AND NOT attisdropped);
	target text;
	window_of_id text := '(''x'' || substr(id::text, 1, 8) || substr(id::text, 10, 4))::bit(48)::bigint & x''7FFFFFFFFFFF''::bigint';
	n bigint;
	total bigint := 0;
BEGIN
	EXECUTE format('LOCK TABLE %s, idempotency_internal.open_work IN ACCESS EXCLUSIVE MODE', array_to_string(tables, ', '));
	-- as segment_of() in src/record/segment.c
	FOREACH target IN ARRAY tables LOOP
		EXECUTE format('INSERT INTO %s SELECT %s FROM idempotency_internal.placed_record WHERE CASE WHEN substr(id::text, 1, 1) < ''8'' THEN $1 = ''record'' ELSE $1 = ''record_s'' || lpad(((%s) / 21600000 %% 32)::text, 2, ''0'') END',
			target, columns, window_of_id) USING split_part(target, '.', 2);
		GET DIAGNOSTICS n = ROW_COUNT;
		total := total + n;
	END LOOP;
	INSERT INTO idempotency_internal.open_work SELECT id, since, due_at, fence, tries, queue, operation, principal FROM idempotency_internal.placed_work;
	DROP TABLE idempotency_internal.placed_record, idempotency_internal.placed_work;
	RETURN total;
END
$$;
COMMENT ON FUNCTION idempotency_internal.gather_placed() IS
'Moves all records of a cluster back to the tables of one server, and drops the distributed ones. For a dump that was restored without the cluster, and for leaving one.
Returns how many records.';

-- A call that is to be made on all nodes is written into a table that all of them
-- have (a reference table), and a second statement lets each node make the call of
-- its row.  Citus commits that on all or on none.
-- Each node is told, so Citus is not to pass on what it is told to grant.
CREATE FUNCTION idempotency_internal.make_call(call text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
SET citus.enable_ddl_propagation = off
AS $$
DECLARE
	home text := (SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'idempotency');
BEGIN
	IF left(call, 1) = '{' THEN
		PERFORM idempotency_internal.apply_settings(call::jsonb);
	ELSE
		EXECUTE format('SELECT %s.%s', home, call);
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.make_call(text) IS
'Makes a call on this node.
call: one that idem_everywhere() has checked, or a document of idem_copy_settings()';

-- Said to be immutable, which it is not: of a function that were not, Citus would
-- send the result to the nodes, and not the call.
CREATE FUNCTION idempotency_internal.call_here(call text)
RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM idempotency_internal.make_call(call); RETURN true; END $$;
COMMENT ON FUNCTION idempotency_internal.call_here(text) IS
'Makes a call on the node that has the row it is in.
call: as in make_call()
Returns true.';

CREATE FUNCTION idempotency_internal.call_everywhere(call text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	missing text;
	is_here boolean;
BEGIN
	IF to_regclass('idempotency_internal.placed_call') IS NULL THEN
		CREATE TABLE idempotency_internal.placed_call (n integer PRIMARY KEY, call text NOT NULL, made boolean NOT NULL);
		COMMENT ON TABLE idempotency_internal.placed_call IS 'the call that idem_everywhere() is making, on each node; empty otherwise';
		EXECUTE 'SELECT create_reference_table(''idempotency_internal.placed_call'')';
	END IF;
	LOCK TABLE idempotency_internal.placed_call IN SHARE ROW EXCLUSIVE MODE;
	EXECUTE $q$
		SELECT (SELECT format('%s:%s', n.nodename, n.nodeport) FROM pg_dist_node n WHERE n.isactive AND n.noderole = 'primary' AND n.groupid <> ALL (p.groups) LIMIT 1), 0 = ANY (p.groups)
		  FROM (SELECT array_agg(groupid) FROM pg_dist_placement JOIN pg_dist_shard USING (shardid) WHERE logicalrelid = 'idempotency_internal.placed_call'::regclass) p (groups)
	$q$ INTO missing, is_here;
	IF missing IS NOT NULL THEN
		RAISE 'node % does not have the reference tables yet', missing USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'SELECT replicate_reference_tables(), then SELECT idem_copy_settings().';
	END IF;
	INSERT INTO idempotency_internal.placed_call VALUES (1, call, false);
	UPDATE idempotency_internal.placed_call c SET made = idempotency_internal.call_here(c.call) WHERE n = 1;
	DELETE FROM idempotency_internal.placed_call;
	IF NOT is_here THEN
		PERFORM idempotency_internal.make_call(call);
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.call_everywhere(text) IS
'Makes a call on all nodes, or on none.
call: as in make_call()
Raises 55000 (a node that has no reference tables yet), and what the call raises.';

-- The call runs with the rights of the owner, so it must be nothing but one of
-- these functions with literals.
CREATE FUNCTION idem_everywhere(call text)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	literal CONSTANT text := $r$(?:'(?:[^']|'')*'|NULL|true|false)(?:\s*::\s*(?:text|name|jsonb|text\[\]))?$r$;
	argument CONSTANT text := format($r$(?:[a-z_]+\s*=>\s*)?%s$r$, literal);
	form CONSTANT text := format($r$^\s*(?:[a-z_0-9]+\.)?((?:idem_grant|idem_revoke|idem_define|idem_undefine|idem_destination_define|idem_destination_undefine|idem_stat_reset)\s*\(\s*(?:%1$s(?:\s*,\s*%1$s)*)?\s*\))\s*;?\s*\Z$r$, argument);
	bare text := (regexp_match(call, form, 'i'))[1];
BEGIN
	PERFORM idempotency_internal.refuse_without_citus('idem_everywhere()'::text);
	IF bare IS NULL THEN
		RAISE 'idem_everywhere() makes calls of the extension only' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'Pass one call of idem_grant, idem_revoke, idem_define, idem_undefine, idem_destination_define, idem_destination_undefine or idem_stat_reset, with literals as arguments, as in idem_define(''pay'', ''{"retention": "7 days"}'').';
	END IF;
	PERFORM idempotency_internal.call_everywhere(bare);
END
$$;
COMMENT ON FUNCTION idem_everywhere(text) IS
'Makes a call of this extension on all nodes of a Citus cluster, or on none. Called on the coordinator.
call: a call of idem_grant, idem_revoke, idem_define, idem_undefine, idem_destination_define, idem_destination_undefine or idem_stat_reset as it is written in SQL, with literals as arguments
Raises 0A000 (no Citus), 55000 (on a worker node; a node that has no reference tables yet), 22023 (another call), and what the call raises.';

CREATE FUNCTION idempotency_internal.granted()
RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT format('GRANT %s ON %s TO %I%s', a.privilege_type, o.object, r.rolname, CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
	  FROM pg_extension e
	  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e',
		LATERAL (
			SELECT 'FUNCTION ' || oid::regprocedure, proacl, proowner FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid
			UNION ALL
			SELECT 'TABLE ' || oid::regclass, relacl, relowner FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid AND relkind = 'v'
			UNION ALL
			SELECT 'SCHEMA ' || oid::regnamespace, nspacl, nspowner FROM pg_namespace WHERE d.classid = 'pg_proc'::regclass AND oid = e.extnamespace
		) AS o (object, acl, owner),
		aclexplode(o.acl) a JOIN pg_roles r ON r.oid = a.grantee
	 WHERE e.extname = 'idempotency' AND a.grantee <> o.owner
	 GROUP BY 1 ORDER BY 1
$$;
COMMENT ON FUNCTION idempotency_internal.granted() IS
'Returns the GRANT commands that give roles what they have of the extension.';

CREATE FUNCTION idempotency_internal.apply_settings(settings jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	home text := (SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'idempotency');
	node int;
	command text;
BEGIN
	EXECUTE 'SELECT groupid FROM pg_dist_local_group' INTO node;
	IF node = (settings->>'from')::int THEN
		RETURN;
	END IF;
	-- as a definition does: purge stays away
	LOCK TABLE idempotency_internal.policy, idempotency_internal.destination IN SHARE ROW EXCLUSIVE MODE;
	INSERT INTO idempotency_internal.normalisation SELECT * FROM jsonb_populate_recordset(NULL::idempotency_internal.normalisation, settings->'normalisation') ON CONFLICT DO NOTHING;
	DELETE FROM idempotency_internal.policy;
	INSERT INTO idempotency_internal.policy SELECT * FROM jsonb_populate_recordset(NULL::idempotency_internal.policy, settings->'policy');
	DELETE FROM idempotency_internal.destination;
	INSERT INTO idempotency_internal.destination SELECT * FROM jsonb_populate_recordset(NULL::idempotency_internal.destination, settings->'destination');
	FOR command IN SELECT jsonb_array_elements_text(settings->'granted') LOOP
		EXECUTE command;
	END LOOP;
	-- takes nothing away, and lets all sessions read again
	EXECUTE format('SELECT %1$s.idem_undefine(''*'', ''{}''), %1$s.idem_destination_undefine(''*'', ''{}'')', home);
END
$$;
COMMENT ON FUNCTION idempotency_internal.apply_settings(jsonb) IS
'Replaces the settings of this node by those of another one, and grants what is granted there.
settings: from (number of the node they come from), policy, normalisation, destination, granted';

CREATE FUNCTION idem_copy_settings()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	PERFORM idempotency_internal.refuse_without_citus('idem_copy_settings()'::text);
	LOCK TABLE idempotency_internal.policy, idempotency_internal.destination IN SHARE ROW EXCLUSIVE MODE;
	PERFORM idempotency_internal.call_everywhere(jsonb_build_object(
		'from', 0,
		'policy', (SELECT coalesce(jsonb_agg(to_jsonb(p)), '[]') FROM idempotency_internal.policy p),
		'normalisation', (SELECT coalesce(jsonb_agg(to_jsonb(n)), '[]') FROM idempotency_internal.normalisation n),
		'destination', (SELECT coalesce(jsonb_agg(to_jsonb(d)), '[]') FROM idempotency_internal.destination d),
		'granted', (SELECT coalesce(jsonb_agg(g), '[]') FROM idempotency_internal.granted() g))::text);
END
$$;
COMMENT ON FUNCTION idem_copy_settings() IS
'Gives all nodes of a Citus cluster the settings of the coordinator, and the rights that are granted there; for a node that has been added. What was defined on a worker node alone is lost there.
Raises 0A000 (no Citus), 55000 (on a worker node; a node that has no reference tables yet).';
-- Who may call and read what.  A function or view that is not named here is
-- its owner's alone.

-- Tier public is all roles: what computes from its arguments, or tells of its own
-- transaction.  A worker has what an app has, an admin everything.
CREATE VIEW idempotency_internal.tier_object (tier, object) WITH (security_barrier) AS VALUES
	('public', 'idem_backoff'),
	('public', 'idem_canonical'),
	('public', 'idem_downstream_key'),
	('public', 'idem_fingerprint'),
	('public', 'idem_fingerprint_text'),
	('public', 'idem_http_status'),
	('public', 'idem_id'),
	('public', 'idem_left_open'),
	('public', 'idem_new_key'),
	('public', 'idem_postgrest'),
	('public', 'idem_value'),
	('public', 'idem_webhook_sign'),
	('public', 'idem_webhook_verify'),
	('app', 'idem_accept'),
	('app', 'idem_cancel'),
	('app', 'idem_claim'),
	('app', 'idem_complete'),
	('app', 'idem_complete_key'),
	('app', 'idem_destination_policy'),
	('app', 'idem_emit'),
	('app', 'idem_explain'),
	('app', 'idem_explain_key'),
	('app', 'idem_fail'),
	('app', 'idem_fail_key'),
	('app', 'idem_list'),
	('app', 'idem_once'),
	('app', 'idem_once_many'),
	('app', 'idem_permit'),
	('app', 'idem_policy'),
	('app', 'idem_release'),
	('app', 'idem_release_key'),
	('app', 'idem_renew'),
	('app', 'idem_renew_key'),
	('app', 'idem_report'),
	('app', 'idem_run'),
	('app', 'idem_status'),
	('app', 'idem_unsure'),
	('app', 'idem_unsure_key'),
	('worker', 'idem_ack'),
	('worker', 'idem_ack_many'),
	('worker', 'idem_dead_letter'),
	('worker', 'idem_expire_lease'),
	('worker', 'idem_nack'),
	('worker', 'idem_outbox_head'),
	('worker', 'idem_reconcile'),
	('worker', 'idem_redeliver'),
	('worker', 'idem_resolve'),
	('worker', 'idem_start'),
	('worker', 'idem_start_next'),
	('worker', 'idem_take'),
	('worker', 'idem_unresolved'),
	('worker', 'placed_entries'),
	('worker', 'placed_rows'),
	('monitor', 'effective_state'),
	('monitor', 'idem_dead_letter'),
	('monitor', 'idem_destination_policy'),
	('monitor', 'idem_doctor'),
	('monitor', 'idem_explain'),
	('monitor', 'idem_explain_key'),
	('monitor', 'idem_list'),
	('monitor', 'idem_open'),
	('monitor', 'idem_outbox_event'),
	('monitor', 'idem_outbox_head'),
	('monitor', 'idem_record'),
	('monitor', 'idem_stat'),
	('monitor', 'idem_stat_activity'),
	('monitor', 'idem_stat_calls'),
	('monitor', 'idem_stat_claims'),
	('monitor', 'idem_stat_counters'),
	('monitor', 'idem_stat_destination'),
	('monitor', 'idem_stat_horizons'),
	('monitor', 'idem_stat_queue'),
	('monitor', 'idem_stat_visits'),
	('monitor', 'idem_stat_worker'),
	('monitor', 'idem_unresolved'),
	('monitor', 'placed_entries'),
	('monitor', 'placed_rows'),
	('admin', 'idem_copy_settings'),
	('admin', 'idem_define'),
	('admin', 'idem_destination_define'),
	('admin', 'idem_destination_undefine'),
	('admin', 'idem_discard'),
	('admin', 'idem_distribute'),
	('admin', 'idem_everywhere'),
	('admin', 'idem_grant'),
	('admin', 'idem_purge'),
	('admin', 'idem_redact'),
	('admin', 'idem_redact_event'),
	('admin', 'idem_reopen'),
	('admin', 'idem_revoke'),
	('admin', 'idem_stat_reset'),
	('admin', 'idem_undefine');
COMMENT ON VIEW idempotency_internal.tier_object IS
	'functions and views of the extension by the tier that has them';

-- Objects are found by their membership in the extension: others may have made
-- objects of the same name.
CREATE FUNCTION idempotency_internal.privileges_of(tier text, names text[] DEFAULT NULL)
RETURNS SETOF text
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT DISTINCT CASE WHEN p.oid IS NULL THEN 'SELECT ON ' || c.oid::regclass
		ELSE 'EXECUTE ON FUNCTION ' || p.oid::regprocedure END
	  FROM pg_extension e
	  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
	  LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
	  LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
	  JOIN idempotency_internal.tier_object o ON o.object = coalesce(p.proname, c.relname)
	 WHERE e.extname = 'idempotency'
		AND (o.tier = $1 OR ($1 = 'worker' AND o.tier = 'app') OR ($1 = 'admin' AND o.tier <> 'public'))
		AND ($2 IS NULL OR o.object = ANY ($2))
$$;
COMMENT ON FUNCTION idempotency_internal.privileges_of(text, text[]) IS
'Returns the privileges of a tier in the words of GRANT.
tier: app, worker, monitor, admin or public
names: of functions and views; NULL for all';

-- GRANT EXECUTE ON FUNCTIONS and the like in the default privileges of the role
-- that creates the extension has given rights to others than PUBLIC.
CREATE FUNCTION idempotency_internal.close_objects(names text[] DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT format('REVOKE ALL ON %s FROM %s', o.object,
			CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
		  FROM pg_extension e
		  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e',
			LATERAL (
				SELECT proname, 'FUNCTION ' || oid::regprocedure, proowner, coalesce(proacl, acldefault('f', proowner))
				  FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid
				UNION ALL
				SELECT relname, CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass, relowner, relacl
				  FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid
				UNION ALL
				SELECT nspname, 'SCHEMA ' || oid::regnamespace, nspowner, nspacl
				  FROM pg_namespace WHERE d.classid = 'pg_namespace'::regclass AND oid = d.objid
				UNION ALL
				SELECT typname, 'TYPE ' || oid::regtype, typowner, typacl
				  FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = d.objid AND typcategory <> 'A'
			) AS o (name, object, owner, acl),
			aclexplode(o.acl) a
		 WHERE e.extname = 'idempotency' AND a.grantee <> o.owner AND (names IS NULL OR o.name = ANY (names))
		 GROUP BY o.object, a.grantee
	LOOP
		EXECUTE command;
	END LOOP;
	FOR command IN SELECT privilege FROM idempotency_internal.privileges_of('public'::text, names) privilege LOOP
		EXECUTE 'GRANT ' || command || ' TO PUBLIC';
	END LOOP;
	FOR command IN
		-- since PostgreSQL 17 array types are members too, and have the rights of their elements
		SELECT oid::regtype FROM pg_type WHERE typcategory <> 'A' AND (names IS NULL OR typname = ANY (names)) AND oid IN (
			SELECT d.objid FROM pg_extension e JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
			 WHERE e.extname = 'idempotency' AND d.deptype = 'e' AND d.classid = 'pg_type'::regclass)
	LOOP
		EXECUTE format('GRANT USAGE ON TYPE %s TO PUBLIC', command);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.close_objects(text[]) IS
'Takes all rights on objects of the extension from all roles but their owner, and gives PUBLIC those of tier public and the use of types. For scripts of the extension.
names: of objects; NULL for all';

-- In a transaction with what it looks at: USAGE of the schema goes with the
-- last right of the role there.
CREATE FUNCTION idempotency_internal.change_privileges(verb text, role name, tier text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	home oid := (SELECT extnamespace FROM pg_extension WHERE extname = 'idempotency');
	preposition text := CASE verb WHEN 'GRANT' THEN 'TO' ELSE 'FROM' END;
	privilege text;
BEGIN
	IF role IS NULL OR tier IS NULL THEN
		RAISE 'role and tier must not be null' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	-- a role, not the word PUBLIC or CURRENT_USER
	IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = role) THEN
		RAISE 'role "%" does not exist', role USING ERRCODE = 'undefined_object';
	END IF;
	IF tier <> ALL ('{app,worker,monitor,admin}') THEN
		RAISE 'there is no tier "%"', tier USING ERRCODE = 'invalid_parameter_value',
			HINT = 'The tiers are app, worker, monitor and admin.';
	END IF;
	IF verb = 'GRANT' THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', home::regnamespace, role);
	END IF;
	FOR privilege IN SELECT p FROM idempotency_internal.privileges_of(tier) p LOOP
		EXECUTE format('%s %s %s %I', verb, privilege, preposition, role);
	END LOOP;
	IF verb = 'REVOKE' AND NOT EXISTS (
		SELECT FROM pg_shdepend s
		 WHERE s.refclassid = 'pg_authid'::regclass AND s.refobjid = quote_ident(role)::regrole
			AND s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND (EXISTS (SELECT FROM pg_proc WHERE s.classid = 'pg_proc'::regclass AND oid = s.objid AND pronamespace = home)
				OR EXISTS (SELECT FROM pg_class WHERE s.classid = 'pg_class'::regclass AND oid = s.objid AND relnamespace = home)
				OR EXISTS (SELECT FROM pg_type WHERE s.classid = 'pg_type'::regclass AND oid = s.objid AND typnamespace = home)))
	THEN
		EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %I', home::regnamespace, role);
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.change_privileges(text, name, text) IS
'Runs GRANT or REVOKE for all privileges of a tier.
verb: GRANT or REVOKE
role: the role
tier: app, worker, monitor or admin
Raises 22023 (null, or no such tier), 42704 (no such role).';

-- With the rights of the owner, so that an admin can pass on what is the
-- owner's.
CREATE FUNCTION idem_grant(role name, tier text DEFAULT 'app')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM idempotency_internal.change_privileges('GRANT'::text, role, tier); END $$;
COMMENT ON FUNCTION idem_grant(name, text) IS
'Grants a role the functions and views of a tier, and USAGE of their schema.
role: name of a role
tier: app (claim, finish, ask), worker (app and what workers need), monitor (views and lists) or admin (everything)
Raises 22023 (no such tier), 42704 (no such role).';

CREATE FUNCTION idem_revoke(role name, tier text DEFAULT 'app')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM idempotency_internal.change_privileges('REVOKE'::text, role, tier); END $$;
COMMENT ON FUNCTION idem_revoke(name, text) IS
'Takes the functions and views of a tier from a role, and USAGE of their schema if the role then has no right and owns nothing there.
role: name of a role
tier: as in idem_grant
Raises 22023 (no such tier), 42704 (no such role).';

-- An upgrade script calls this with what it has created, once tier_object has it.
CREATE FUNCTION idempotency_internal.add_objects(names text[])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	command text;
BEGIN
	PERFORM idempotency_internal.close_objects(names);
	FOR command IN
		WITH held AS (
			SELECT r.rolname, 'EXECUTE ON FUNCTION ' || p.oid::regprocedure AS privilege FROM pg_proc p, aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
			UNION SELECT r.rolname, 'SELECT ON ' || c.oid::regclass FROM pg_class c, aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE a.privilege_type = 'SELECT')
		SELECT format('GRANT %s TO %I', n.privilege, r.rolname)
		  FROM unnest('{app,worker,monitor,admin}'::text[]) tier, (SELECT DISTINCT rolname FROM held) r, idempotency_internal.privileges_of(tier, names) n (privilege)
		 WHERE NOT EXISTS (SELECT idempotency_internal.privileges_of(tier) EXCEPT SELECT idempotency_internal.privileges_of(tier, names)
			EXCEPT SELECT h.privilege FROM held h WHERE h.rolname = r.rolname)
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.add_objects(text[]) IS
'Closes new objects, and gives them to the roles that have all else of their tier. For upgrade scripts.
names: of functions, views and types';

SELECT idempotency_internal.close_objects();
