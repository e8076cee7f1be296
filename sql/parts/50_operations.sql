-- Settings, housekeeping, rights.

CREATE FUNCTION idem_define(operation text, settings jsonb)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_define' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_define(text, jsonb) IS
'Changes settings of an operation, or with operation * the defaults of all. settings: an object; a setting not named keeps its value, JSON null means none. Intervals are strings without months. '
'Acts on the next call of every session once committed. Returns nothing. Raises 22023 (unknown setting or bad value), 25006 (standby or read-only).';

CREATE FUNCTION idem_policy(operation text)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_policy' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_policy(text) IS
'All settings in force for an operation. Returns an object. Raises 22023 (bad argument), 42501 (the caller may not use the operation).';

CREATE FUNCTION idem_purge(max_records bigint DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'idem_purge' LANGUAGE C VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idem_purge(bigint) IS
'Removes up to max_records records that are past retention and guard, and delivered events past their retention, in one transaction, skipping those other transactions work on; or all records of a segment at once, if all are past and there are not more. '
'max_records: NULL takes the setting idempotency.purge_batch for records, and empties a segment however large. '
'What cannot be purged is left, with a warning. Returns how many records and events were removed; repeat until 0. Never changes what any call answers. Raises 22023 (not greater than zero), 25001 (inside a transaction block), 25006 (standby or read-only).';

CREATE FUNCTION idem_grant(role name, tier text DEFAULT 'app')
RETURNS void
AS 'MODULE_PATHNAME', 'idem_grant' LANGUAGE C VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idem_grant(name, text) IS
'Lets a role call the functions of a tier, and gives it USAGE of their schema. tier: app (claim, finish, ask), worker (app and what workers need), monitor (views and lists), admin (everything). '
'Returns nothing. Raises 22023 (no such tier), 42704 (no such role).';

CREATE FUNCTION idem_revoke(role name, tier text DEFAULT 'app')
RETURNS void
AS 'MODULE_PATHNAME', 'idem_revoke' LANGUAGE C VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
COMMENT ON FUNCTION idem_revoke(name, text) IS
'Takes the functions of a tier away from a role; USAGE of the schema is left, since others may have granted it. tier: as in idem_grant. '
'Returns nothing. Raises 22023 (no such tier), 42704 (no such role).';
