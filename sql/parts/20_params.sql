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
