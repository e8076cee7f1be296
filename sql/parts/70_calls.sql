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

-- Webhooks: computed from the arguments alone.

CREATE FUNCTION idem_webhook_verify(
	id text, "timestamp" text, body bytea, signatures text, secrets text[], tolerance interval DEFAULT '5 min')
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_webhook_verify' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION idem_webhook_verify(text, text, bytea, text, text[], interval) IS
'Verifies that a webhook was sent with one of the secrets, unchanged and just now, after Standard Webhooks, scheme v1. Then idem_once() is called with the id, in the transaction that does the work.
id, timestamp, signatures: the headers webhook-id, webhook-timestamp (Unix seconds) and webhook-signature as received
body: the bytes received
secrets: those in use, base64 with or without whsec_
tolerance: how far the timestamp may lie from now, before or after
Returns false for whatever is wrong with the request, also a header that is null or an id with a point.
Raises 22023 (a secret or the tolerance is wrong).';

CREATE FUNCTION idem_webhook_sign(id text, "timestamp" text, body bytea, secret text)
RETURNS text
AS 'MODULE_PATHNAME', 'idem_webhook_sign' LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION idem_webhook_sign(text, text, bytea, text) IS
'Returns the signature of a webhook, for its header webhook-signature: v1, and the HMAC-SHA256 of id.timestamp.body in base64, after Standard Webhooks.
id: the event''s, the same on every attempt, without a point
timestamp: of this attempt, in Unix seconds
body: the bytes that are sent
secret: base64 with or without whsec_
Raises 22023 (an argument null, an id empty or with a point, a timestamp not in whole seconds, a secret that is not base64).';
