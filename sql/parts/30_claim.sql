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
