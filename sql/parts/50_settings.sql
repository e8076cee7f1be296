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
