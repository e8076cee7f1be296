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
