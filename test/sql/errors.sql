-- Every error of contract §6 that a session can raise alone: its SQLSTATE, that it
-- names operation and id, says what to do in the HINT, and tells nothing it
-- should not.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- Records to run into.  What must not leak says so.
SELECT idem_define('err', '{"max_result_bytes": 60, "max_params_bytes": 60, "guard": "1 h"}');
SELECT idem_complete(c, '{"r": "SECRET result"}') FROM idem_claim('err', 'SECRET done', '{"p": "SECRET params"}') c;
SELECT idem_fail(c, '{"e": "card declined"}') FROM idem_claim('err', 'SECRET failed', '{"p": "SECRET params"}') c;
SELECT verdict FROM idem_claim('err', 'SECRET leased', '{"p": "SECRET params"}', lease => '1 h', owner => 'SECRET owner');
SELECT idem_unsure(c, '{"d": "SECRET detail"}') FROM idem_claim('err', 'SECRET unknown', '{"p": "SECRET params"}') c;
SELECT idem_complete(c, '{"r": "SECRET result"}') FROM idem_claim('err', 'SECRET expired', '{"p": "SECRET params"}') c;
SELECT pg_temp.age('err', 'SECRET expired', '24 h');
SELECT idem_complete(c, '{"r": "SECRET result"}') FROM idem_claim('err', 'SECRET collided', '{"p": "SECRET params"}') c;
UPDATE idempotency_internal.record SET key = 'SECRET other key' WHERE id = idem_id('err', 'SECRET collided');
SELECT idem_define('err_required', '{"require_params": true}'), idem_define('err_uuid', '{"key_format": "uuid"}'), idem_define('err_double', '{"numbers": "double"}'),
	idem_define('err_role', '{"role": "regress no such role"}'), idem_define('err_bound', '{"principal_setting": "app.tenant"}');
CREATE FUNCTION pg_temp.permit(key text, fence bigint) RETURNS idem_answer LANGUAGE sql AS
	$$ SELECT jsonb_populate_record(s, jsonb_build_object('verdict', 'execute', 'fence', $2)) FROM idem_status('err', $1) s $$;

-- names: what the message must name: o operation, i id, h has a hint, d a detail
CREATE TEMP TABLE expected (n int GENERATED ALWAYS AS IDENTITY, state text, names text, operation text, key text, query text);
INSERT INTO expected (state, names, operation, key, query) VALUES
	-- 22023: what was passed
	('22023', 'h', NULL, NULL, $$SELECT idem_claim(NULL, 'SECRET k')$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_claim('', 'SECRET k')$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_claim(repeat('o', 256), 'SECRET k')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_claim('err', NULL)$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_claim('err', '')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_claim('err', repeat('SECRET', 100))$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_claim('err', 'SECRET k', principal => '')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_claim('err', 'SECRET k', principal => repeat('p', 256))$$),
	('22023', 'oih', 'err', 'SECRET k', $$SELECT idem_claim('err', 'SECRET k', lease => '-1 s')$$),
	('22023', 'oih', 'err', 'SECRET k', $$SELECT idem_claim('err', 'SECRET k', lease => '1 mon')$$),
	('22023', 'oih', 'err', 'SECRET k', $$SELECT idem_claim('err', 'SECRET k', lease => '1000000 days')$$),
	('22023', 'oih', 'err', 'SECRET k', $$SELECT idem_claim('err', 'SECRET k', wait => '-1 s')$$),
	('22023', 'oih', 'err', 'SECRET k', $$SELECT idem_claim('err', 'SECRET k', wait => '1 year')$$),
	('22023', 'oih', 'err', 'SECRET k', $$SELECT idem_claim('err', 'SECRET k', '{"p": "SECRET"}', fingerprint => sha256('SECRET'))$$),
	('22023', 'oih', 'err', 'SECRET k', $$SELECT idem_claim('err', 'SECRET k', fingerprint => 'SECRET')$$),
	('22023', 'oih', 'err', 'SECRET k', $$SELECT idem_claim('err', 'SECRET k', to_jsonb(repeat('SECRET', 100)))$$),
	('22023', 'oih', 'err_required', 'SECRET k', $$SELECT idem_claim('err_required', 'SECRET k')$$),
	('22023', 'oih', 'err_uuid', 'SECRET k', $$SELECT idem_claim('err_uuid', 'SECRET k')$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_complete(NULL, '"SECRET"')$$),
	('22023', 'oih', 'err', 'SECRET done', $$SELECT idem_complete(idem_claim('err', 'SECRET done', '{"p": "SECRET params"}'), '"SECRET"')$$),
	('22023', 'oih', 'err', 'SECRET done', $$SELECT idem_fail(idem_claim('err', 'SECRET done', '{"p": "SECRET params"}'), '"SECRET"')$$),
	('22023', 'oih', 'err', 'SECRET leased', $$SELECT idem_unsure(idem_claim('err', 'SECRET leased', '{"p": "SECRET params"}'), '"SECRET"')$$),
	('22023', 'oih', 'err', 'SECRET leased', $$SELECT idem_renew(idem_claim('err', 'SECRET leased', '{"p": "SECRET params"}'), '1 h')$$),
	('22023', 'oih', 'err', 'SECRET leased', $$SELECT idem_release(idem_status('err', 'SECRET leased'))$$),
	('22023', 'oih', 'err', 'SECRET leased', $$SELECT idem_complete_key('err', 'SECRET leased', NULL, '"SECRET"')$$),
	('22023', 'oih', 'err', 'SECRET leased', $$SELECT idem_renew_key('err', 'SECRET leased', 1, '0')$$),
	('22023', 'oih', 'err', 'SECRET leased', $$SELECT idem_renew_key('err', 'SECRET leased', 1, NULL)$$),
	('22023', 'oih', 'err', 'SECRET leased', $$SELECT idem_renew_key('err', 'SECRET leased', 1, '-1 s')$$),
	('22023', 'oih', 'err', 'SECRET leased', $$SELECT idem_renew_key('err', 'SECRET leased', 1, '1 mon')$$),
	('22023', 'oih', 'err', 'SECRET atomic', $$SELECT idem_renew(c, '1 h') FROM idem_claim('err', 'SECRET atomic') c$$),
	('22023', 'oih', 'err', 'SECRET k', $$SELECT idem_value(c) FROM idem_claim('err', 'SECRET k', '{"p": "SECRET params"}') c$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_value(NULL)$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_http_status(NULL)$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_define(NULL, '{}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', NULL)$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '[1]')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"no such": 1}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"retention": "1 mon"}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"retention": "-1 s"}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"retention": "soon"}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"retention": 1}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"wait": null}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"deadline": "0"}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"max_attempts": 0}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"max_attempts": "1"}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"key_format": "guid"}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"on_lease_expiry": 1}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"require_params": 1}')$$),
	('22023', 'oh', 'err', NULL, $$SELECT idem_define('err', '{"role": ""}')$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_policy(NULL)$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_purge(0)$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_purge(-1)$$),
	('22023', 'h', NULL, NULL, $$SELECT idem_grant(current_user, 'king')$$),
	-- 22032: no canonical form
	('22032', 'oh', 'err_double', 'SECRET k', $$SELECT idem_claim('err_double', 'SECRET k', '{"SECRET": 1e999}')$$),
	-- ID001 to ID004
	('ID001', 'oih', 'err', 'SECRET k', $$SELECT idem_complete_key('err', 'SECRET k', 1, '"SECRET"')$$),
	('ID001', 'oih', 'err', 'SECRET k', $$SELECT idem_fail_key('err', 'SECRET k', 1, '"SECRET"')$$),
	('ID001', 'oih', 'err', 'SECRET k', $$SELECT idem_unsure_key('err', 'SECRET k', 1, '"SECRET"')$$),
	('ID001', 'oih', 'err', 'SECRET k', $$SELECT idem_renew_key('err', 'SECRET k', 1, '1 h')$$),
	('ID001', 'oih', 'err', 'SECRET k', $$SELECT idem_release_key('err', 'SECRET k', 1)$$),
	('ID001', 'oih', 'err', 'SECRET k', $$SELECT idem_value(idem_status('err', 'SECRET k'))$$),
	('ID002', 'oih', 'err', 'SECRET leased', $$SELECT idem_complete_key('err', 'SECRET leased', 1, '"SECRET"')$$),
	('ID002', 'oih', 'err', 'SECRET leased', $$SELECT idem_fail_key('err', 'SECRET leased', 1, '"SECRET"')$$),
	('ID002', 'oih', 'err', 'SECRET leased', $$SELECT idem_unsure_key('err', 'SECRET leased', 1, '"SECRET"')$$),
	('ID002', 'oih', 'err', 'SECRET leased', $$SELECT idem_renew_key('err', 'SECRET leased', 1, '1 h')$$),
	('ID002', 'oih', 'err', 'SECRET leased', $$SELECT idem_release_key('err', 'SECRET leased', 1)$$),
	('ID002', 'oih', 'err', 'SECRET done', $$SELECT idem_complete(pg_temp.permit('SECRET done', (SELECT fence FROM idempotency_internal.record WHERE id = idem_id('err', 'SECRET done'))), '"SECRET other"')$$),
	('ID002', 'oih', 'err', 'SECRET unknown', $$SELECT idem_renew(pg_temp.permit('SECRET unknown', (SELECT fence FROM idempotency_internal.record WHERE id = idem_id('err', 'SECRET unknown'))), '1 h')$$),
	('ID004', 'oih', 'err', 'SECRET k', $$SELECT idem_complete(c, to_jsonb(repeat('SECRET', 100))) FROM idem_claim('err', 'SECRET k') c$$),
	('ID004', 'oih', 'err', 'SECRET k', $$SELECT idem_fail(c, to_jsonb(repeat('SECRET', 100))) FROM idem_claim('err', 'SECRET k') c$$),
	('ID004', 'oih', 'err', 'SECRET k', $$SELECT idem_unsure(c, to_jsonb(repeat('SECRET', 100))) FROM idem_claim('err', 'SECRET k') c$$),
	-- ID010 to ID014: from idem_value
	('ID010', 'oih', 'err', 'SECRET leased', $$SELECT idem_value(idem_claim('err', 'SECRET leased', '{"p": "SECRET params"}'))$$),
	('ID010', 'oih', 'err', 'SECRET leased', $$SELECT idem_value(idem_status('err', 'SECRET leased'))$$),
	('ID011', 'oih', 'err', 'SECRET done', $$SELECT idem_value(idem_claim('err', 'SECRET done', '{"p": "SECRET other"}'))$$),
	('ID012', 'oih', 'err', 'SECRET unknown', $$SELECT idem_value(idem_claim('err', 'SECRET unknown', '{"p": "SECRET params"}'))$$),
	('ID012', 'oih', 'err', 'SECRET unknown', $$SELECT idem_value(idem_status('err', 'SECRET unknown'))$$),
	('ID013', 'oih', 'err', 'SECRET expired', $$SELECT idem_value(idem_claim('err', 'SECRET expired'))$$),
	('ID013', 'oih', 'err', 'SECRET expired', $$SELECT idem_value(idem_status('err', 'SECRET expired'))$$),
	('ID014', 'oihd', 'err', 'SECRET failed', $$SELECT idem_value(idem_claim('err', 'SECRET failed', '{"p": "SECRET params"}'))$$),
	('ID014', 'oihd', 'err', 'SECRET failed', $$SELECT idem_value(idem_status('err', 'SECRET failed'))$$),
	-- ID099: another key has the id
	('ID099', 'oih', 'err', 'SECRET collided', $$SELECT idem_claim('err', 'SECRET collided', '{"p": "SECRET params"}')$$),
	('ID099', 'oih', 'err', 'SECRET collided', $$SELECT idem_status('err', 'SECRET collided')$$),
	('ID099', 'oih', 'err', 'SECRET collided', $$SELECT idem_complete_key('err', 'SECRET collided', 1, '1')$$),
	-- 42501, 25001
	('42501', 'oh', 'err_role', NULL, $$SELECT idem_claim('err_role', 'SECRET k', '{"p": "SECRET params"}')$$),
	('42501', 'oh', 'err_role', NULL, $$SELECT idem_status('err_role', 'SECRET k')$$),
	('42501', 'oh', 'err_role', NULL, $$SELECT idem_policy('err_role')$$),
	('42501', 'oh', 'err_bound', NULL, $$SELECT idem_claim('err_bound', 'SECRET k', '{"p": "SECRET params"}')$$),
	('42501', 'oh', 'err_bound', NULL, $$SELECT idem_complete_key('err_bound', 'SECRET k', 1, '"SECRET"')$$),
	('25001', '', NULL, NULL, $$SELECT idem_purge()$$);

CREATE TEMP TABLE seen AS SELECT e.*, r.state AS got, r.message, r.detail, r.hint FROM expected e, pg_temp.raised(e.query) r ORDER BY n;
SELECT is(got, state, query) FROM seen ORDER BY n;
SELECT ok(message LIKE '%"' || operation || '"%', 'names the operation: ' || query) FROM seen WHERE names LIKE '%o%' ORDER BY n;
SELECT ok(message LIKE '%' || idem_id(operation, key) || '%', 'names the id: ' || query) FROM seen WHERE names LIKE '%i%' ORDER BY n;
SELECT ok(hint <> '', 'says what to do: ' || query) FROM seen WHERE names LIKE '%h%' ORDER BY n;
SELECT is(detail, CASE WHEN names LIKE '%d%' THEN '{"e": "card declined"}' ELSE '' END, format('%s: detail of %s', state, query)) FROM seen WHERE state LIKE 'ID%' ORDER BY n;
SELECT is(count(*), 0::bigint, 'no error tells a key, params, a result, an owner or a fingerprint') FROM seen
 WHERE message ~ 'SECRET|534543524554' OR detail ~ 'SECRET|534543524554' OR hint ~ 'SECRET|534543524554';
SELECT is(array_agg(DISTINCT state ORDER BY state), '{22023,22032,25001,42501,ID001,ID002,ID004,ID010,ID011,ID012,ID013,ID014,ID099}', 'all of them were seen') FROM seen;

-- Without a principal
RESET idempotency.principal;
SELECT is(r.state, '22023', 'no principal'), ok(r.message LIKE '%"err"%', 'names the operation'), ok(r.hint LIKE '%idempotency.principal%', 'and says what to do')
  FROM pg_temp.raised('SELECT idem_claim(''err'', ''SECRET k'')') r;
SET idempotency.principal = 'acme';

-- 25006
BEGIN READ ONLY;
SELECT message AS m, hint AS h, state AS s FROM pg_temp.raised($$SELECT idem_claim('err', 'SECRET k', '{"p": "SECRET params"}')$$) \gset
SELECT message AS m2, hint AS h2, state AS s2 FROM pg_temp.raised($$SELECT idem_complete_key('err', 'SECRET leased', 1, '"SECRET"')$$) \gset
SELECT message AS m3, state AS s3 FROM pg_temp.raised($$SELECT idem_purge()$$) \gset
SELECT state AS s4 FROM pg_temp.raised($$SELECT idem_define('err', '{}')$$) \gset
ROLLBACK;
SELECT is(:'s'::text, '25006', 'claim in a read-only transaction'), ok(:'m' LIKE '%"err"%' || idem_id('err', 'SECRET k') || '%' AND :'h' <> '' AND :'m' || :'h' !~ 'SECRET', 'tells all');
SELECT is(:'s2'::text, '25006', 'complete in a read-only transaction'), ok(:'m2' LIKE '%"err"%' || idem_id('err', 'SECRET leased') || '%' AND :'h2' <> '' AND :'m2' || :'h2' !~ 'SECRET', 'tells all');
SELECT is(:'s3'::text, '25006', 'purge in a read-only transaction'), is(:'s4'::text, '25006', 'define in a read-only transaction');

-- ID003 and ID002 at COMMIT
BEGIN;
SELECT verdict FROM idem_claim('err', 'SECRET k', '{"p": "SECRET params"}');
COMMIT;
SELECT is(:'LAST_ERROR_SQLSTATE'::text, 'ID003', 'left open'), ok(:'LAST_ERROR_MESSAGE' LIKE '%"err"%' || idem_id('err', 'SECRET k') || '%', 'tells all');
BEGIN;
CREATE TABLE err_business ();
SELECT idem_complete(pg_temp.permit('SECRET done', (SELECT fence FROM idempotency_internal.record WHERE id = idem_id('err', 'SECRET done'))), '{"r": "SECRET result"}') IS NULL;
COMMIT;
SELECT is(:'LAST_ERROR_SQLSTATE'::text, 'ID002', 'repeated'), ok(:'LAST_ERROR_MESSAGE' LIKE '%"err"%' || idem_id('err', 'SECRET done') || '%', 'tells all');

-- T03: a failure without a stored error does not send anybody to the detail
SELECT idem_fail(idem_claim('err', 'no error'), NULL);
SELECT idem_redact('err', 'SECRET failed');
SELECT is(r.state, 'ID014', 'T03: failed, no error is stored: ID014'), is(r.detail, '', 'T03: no detail'), unalike(r.hint, '%in the detail%', 'T03: and none is promised')
  FROM unnest('{no error,SECRET failed}'::text[]) key, pg_temp.raised(format('SELECT idem_value(idem_status(''err'', %L))', key)) r;
-- T04: a function that says it may run in a parallel query
CREATE FUNCTION public.err_parallel(key text) RETURNS idem_answer LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN idem_claim('err', key); END $$;
SELECT set_config(name, 'on', false) AS n FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query') \gset
SELECT is(r.state, '25000', 'T04: in a parallel query: 25000'), is(r.message, format('cannot claim operation "err" (id %s) in a parallel query', idem_id('err', 'parallel')), 'T04: what cannot be done'),
	matches(r.hint, 'PARALLEL UNSAFE', 'T04: and what to do')
  FROM pg_temp.raised('SELECT public.err_parallel(''parallel'')') r;
BEGIN;
ALTER TABLE idempotency_internal.policy ADD note text;
SELECT state FROM pg_temp.raised('SELECT idem_fingerprint(''1'', ''err'')') \gset
ROLLBACK;
SELECT is(:'state'::text, '42809', 'T04: a table that was altered is refused as elsewhere');
SELECT set_config(name, 'off', false) AS n FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query') \gset
DROP FUNCTION public.err_parallel;

SELECT * FROM finish();
