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
