-- Identity, canonical params, fingerprint: pure computations, no table.

CREATE FUNCTION idem_id(operation text, key text, principal text DEFAULT NULL)
RETURNS uuid
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_id';
COMMENT ON FUNCTION idem_id(text, text, text) IS
	'the id of the record of (principal, operation, key), whether or not it exists; each of the three is 1 to 255 bytes in UTF-8, principal NULL means the setting idempotency.principal; returns a UUID of version 8, which no setting changes; raises 22023 if one is null, empty, too long or not valid text';

CREATE FUNCTION idem_downstream_key(id uuid, step text)
RETURNS uuid
LANGUAGE C IMMUTABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_downstream_key';
COMMENT ON FUNCTION idem_downstream_key(uuid, text) IS
	'the idempotency key to send to another system for one step of the work of a record: the same on every attempt, another one for every step; id is the record''s, step any text; returns a UUID of version 8; raises 22023 if an argument is null or step is not valid text';

CREATE FUNCTION idem_new_key()
RETURNS text
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_new_key';
COMMENT ON FUNCTION idem_new_key() IS
	'a fresh idempotency key: a UUID of version 7 with 62 random bits, ascending within a session; make it once per intent, store it, and send it again on every retry';

CREATE FUNCTION idem_canonical(params jsonb, operation text DEFAULT NULL)
RETURNS text
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_canonical';
COMMENT ON FUNCTION idem_canonical(jsonb, text) IS
	'the canonical JSON text of params (RFC 8785 with exact numbers), after the normalisation of operation if one is given; what idem_fingerprint hashes, for looking at; returns NULL for NULL params; raises 22032 if params have no canonical form (a number beyond double under numbers double, bytes invalid in the encoding of the database), 54001 if they are nested too deep';

CREATE FUNCTION idem_fingerprint(params jsonb, operation text DEFAULT NULL)
RETURNS bytea
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_fingerprint';
COMMENT ON FUNCTION idem_fingerprint(jsonb, text) IS
	'the fingerprint of params: the SHA-256, 32 bytes, of the UTF-8 form of idem_canonical(params, operation), the same in every server encoding; returns NULL for NULL params; raises 22032 if params have no canonical form, 54001 if they are nested too deep';

CREATE FUNCTION idem_fingerprint_text(params text, operation text DEFAULT NULL)
RETURNS bytea
LANGUAGE C STABLE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idem_fingerprint_text';
COMMENT ON FUNCTION idem_fingerprint_text(text, text) IS
	'the fingerprint of params given as raw JSON text, for a caller that has not parsed them: that of idem_fingerprint(params::jsonb, operation) wherever jsonb loses nothing, and exact where it does (\u0000, members given twice); returns NULL for NULL params; raises 22032 with the position in bytes of UTF-8, from 1, if params are not strict JSON (RFC 8259: a name twice, half a surrogate pair, a control character, a byte order mark, other white space, text behind the value) or hold a number no numeric can, 54001 if they are nested too deep';
