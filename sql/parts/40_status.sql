-- Asking, and what an answer means.

CREATE FUNCTION idem_status(operation text, key text, principal text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_status' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_status(text, text, text) IS
'Says what is known of a key and changes nothing; works on a standby and in a read-only transaction. principal: NULL takes the setting idempotency.principal. '
'Returns an answer with verdict NULL: state, advice, and what is on record, including other sessions'' uncommitted claims (state processing, holder). absent never means that a new key is safe; on a standby a missing key is unconfirmed. '
'It is not part of the transaction''s snapshot. Raises 22023 (bad argument), 42501, ID099.';

CREATE FUNCTION idem_value(answer idem_answer)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_value' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem_value(idem_answer) IS
'The result in an answer whose state is succeeded. '
'Returns it, or raises what stands in the way: 22023 (it is yours to execute, or not an answer), ID001 (nothing on record), ID010 (in progress), ID011 (mismatch), ID012 (unknown), ID013 (expired), ID014 (failed; the stored error is in the DETAIL).';

CREATE FUNCTION idem_http_status(answer idem_answer)
RETURNS integer
AS 'MODULE_PATHNAME', 'idem_http_status' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem_http_status(idem_answer) IS
'The HTTP status code for an answer. Returns 200, 202, 404, 409, 410 or 422. Raises 22023 (not an answer).';
