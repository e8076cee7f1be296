-- What a regress test starts with: quiet output, pgTAP beside the extension,
-- a principal, and a few words to test with.  Errors print as their SQLSTATE.
--
--	\getenv abs_srcdir PG_ABS_SRCDIR
--	\set suite :abs_srcdir '/lib/suite.sql'
--	\i :suite
\set start :abs_srcdir '/lib/start.sql'
\i :start
\pset fieldsep '\n'
\set VERBOSITY sqlstate
SET lc_messages = 'C';
SET idempotency.principal = 'acme';

-- An answer in words: verdict, state, advice, then the fields that are there.
-- "who" stands for id, principal, operation and key.
CREATE FUNCTION pg_temp.shape(a idem_answer) RETURNS text
LANGUAGE sql STABLE AS $$
SELECT concat_ws(' ', coalesce(a.verdict::text, '-'), a.state, a.advice) || ':'
	|| CASE WHEN a.id = idem_id(a.operation, a.key, a.principal) THEN ' who' ELSE '' END
	|| coalesce((SELECT string_agg(' ' || field, '' ORDER BY n)
	  FROM unnest('{fence,attempt,result,error,retry_after,holder,claimed_at,finished_at,lease_until,expires_at,forget_at}'::text[])
		WITH ORDINALITY f (field, n)
	 WHERE to_jsonb(a)->field <> 'null'), '')
$$;

CREATE FUNCTION pg_temp.tables_of_records() RETURNS SETOF regclass LANGUAGE sql AS $$
SELECT oid::regclass FROM pg_class
 WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind = 'r' AND relname ~ '^record(_s[0-9]{2})?$' ORDER BY relname
$$;

-- As if that much time had passed for a record, in whichever table it is.
CREATE FUNCTION pg_temp.age(operation text, key text, by interval) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	place regclass;
BEGIN
	FOR place IN SELECT pg_temp.tables_of_records() LOOP
		EXECUTE format('UPDATE %s SET claimed_at = claimed_at - $1, finished_at = finished_at - $1, lease_until = lease_until - $1,
			expires_at = expires_at - $1, forget_at = forget_at - $1, not_before = not_before - $1 WHERE id = $2', place) USING by, idem_id(operation, key);
	END LOOP;
END
$$;

-- What a statement raises, in full.
CREATE FUNCTION pg_temp.raised(query text, OUT state text, OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE query;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END
$$;

-- One record as it is stored, without what differs from run to run.
CREATE FUNCTION pg_temp.stored(operation text, key text) RETURNS text
LANGUAGE sql STABLE AS $$
SELECT concat_ws(' ', r.state, r.attempt, r.owner, r.result, r.error)
  FROM idempotency_internal.every_record r WHERE r.id = idem_id($1, $2)
$$;
-- What a statement says when a role runs it: its value, or its SQLSTATE.
CREATE FUNCTION pg_temp.as_role(who text, query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	said text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', who);
	BEGIN
		EXECUTE query INTO said;
	EXCEPTION WHEN OTHERS THEN
		said := SQLSTATE;
	END;
	RESET ROLE;
	RETURN said;
END $$;
SELECT * FROM no_plan();
