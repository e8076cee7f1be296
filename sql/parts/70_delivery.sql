-- Destinations of calls and events, and the discipline with which they are
-- called.

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
'Changes settings of a destination, or with destination * the defaults of all. destination: 1 to 255 bytes in UTF-8. settings: an object; a setting not named keeps its value, JSON null means none. Intervals are strings without months; shares are numbers up to 1. '
'Acts on the next call of every session once committed. Returns nothing. Raises 22023 (unknown setting or bad value), 25006 (standby or read-only).';

CREATE FUNCTION idem_destination_policy(destination text)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'idem_destination_policy' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_destination_policy(text) IS
'All settings in force for a destination, defined or not. Returns an object. Raises 22023 (bad argument).';
