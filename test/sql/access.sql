-- Whom tiers, the settings "role" and "principal_setting" and the views let
-- see what.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
SELECT extnamespace::regnamespace AS home FROM pg_extension WHERE extname = 'idempotency' \gset
\o /dev/null
CREATE ROLE regress_idem_app;
CREATE ROLE regress_idem_worker;
CREATE ROLE regress_idem_monitor;
CREATE ROLE regress_idem_admin;
CREATE ROLE regress_idem_member;
CREATE ROLE regress_idem_stranger;
SELECT idem_grant('regress_idem_app'), idem_grant('regress_idem_worker', 'worker'), idem_grant('regress_idem_monitor', 'monitor'), idem_grant('regress_idem_admin', 'admin');
\o
-- What a role is told: a value, or a SQLSTATE.
CREATE FUNCTION pg_temp.told(role text, query text) RETURNS text LANGUAGE sql AS $$ SELECT pg_temp.as_role('regress_idem_' || role, query) $$;

-- A function of the name of one of ours does not make a worker of an app
\o /dev/null
SELECT idem_define('bound', '{"principal_setting": "app.tenant"}');
SET app.tenant = 'acme';
SELECT idem_accept('bound', 'k', principal => 'acme');
SET app.tenant = '';
\o
SELECT is(pg_temp.told('app', $$SELECT idem_complete_key('bound', 'k', 1, principal => 'acme')$$), '42501', 'F05: an app is bound by principal_setting');
SELECT is(pg_temp.told('worker', $$SELECT idem_complete_key('bound', 'k', 1, principal => 'acme')$$), 'ID001', 'F05: a worker is not');
SELECT format('CREATE FUNCTION %s.idem_start_next() RETURNS int LANGUAGE sql AS ''SELECT 1''', :'home') \gexec
SELECT format('CREATE FUNCTION %s.idem_start_next(operation text, max_records integer, lease interval) RETURNS int LANGUAGE sql AS ''SELECT 1''', :'home') \gexec
SELECT is(pg_temp.told('app', format('SELECT %s.idem_start_next()', :'home')), '1', 'F05: a function of that name, for everybody');
SELECT is(pg_temp.told('app', $$SELECT idem_complete_key('bound', 'k', 1, principal => 'acme')$$), '42501', 'F05: and still bound');
SELECT format('DROP FUNCTION %s.idem_start_next(); DROP FUNCTION %1$s.idem_start_next(text, integer, interval)', :'home') \gexec

-- Conditions of the reader are not asked about rows the view hides
SELECT is(array_agg(c.oid::regclass::text ORDER BY 1), NULL, 'F06: every view is a security barrier') FROM pg_class c
  JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency'
 WHERE c.relkind = 'v' AND NOT coalesce('security_barrier=true' = ANY (c.reloptions), false);
CREATE TABLE public.access_seen (error jsonb);
GRANT INSERT ON public.access_seen TO PUBLIC;
CREATE FUNCTION public.access_peek(error jsonb) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN INSERT INTO public.access_seen VALUES (error); RETURN true; END $$;
SELECT idem_fail(idem_claim('peek', 'k'), '{"secret": 1}') \g /dev/null
SELECT idem_unsure(idem_claim('peek', 'unsure', lease => '1 h'), '{"secret": 2}') \g /dev/null
CREATE FUNCTION pg_temp.plan(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line text;
	plan text := '';
BEGIN
	FOR line IN EXECUTE 'EXPLAIN ' || query LOOP
		plan := plan || line;
	END LOOP;
	RETURN plan;
END $$;
SELECT is(pg_temp.told('worker', 'SELECT count(*) FROM idem_unresolved WHERE public.access_peek(detail)'), '0', 'F06: nothing is left to a person');
SELECT is(pg_temp.told('monitor', 'SELECT count(*) FROM idem_record WHERE public.access_peek(to_jsonb(key))') > '0', true, 'F06: a condition on what is shown');
SELECT is(count(*), 0::bigint, 'F06: saw no error') FROM public.access_seen WHERE error ? 'secret';
SET enable_seqscan = off;	-- the table is so small that once it is analyzed that is cheaper
SELECT matches(plan, 'record_pkey', 'F06: a record is found by its index') FROM pg_temp.plan($$SELECT * FROM idem_record WHERE id = idem_id('peek', 'k', 'acme')$$) plan;
RESET enable_seqscan;
DROP FUNCTION public.access_peek;
DROP TABLE public.access_seen;

-- The normalisation of an operation is shown to those its settings are shown to
\o /dev/null
SELECT idem_define('members', '{"role": "regress_idem_member", "defaults": {"limit": 4711}}'), idem_define('open', '{"defaults": {"limit": 4711}}');
GRANT regress_idem_member TO regress_idem_worker;
SELECT format('GRANT USAGE ON SCHEMA %s TO regress_idem_stranger', :'home') \gexec
\o
SELECT is(pg_temp.told(role, format('SELECT left(idem_%s(''{}'', %L)::text, 0) || ''told''', function, operation)), expected, format('F11: idem_%s as %s with operation %s', function, role, operation))
  FROM unnest('{canonical,fingerprint,fingerprint_text}'::text[]) function,
	(VALUES ('stranger', 'open', '42501'), ('monitor', 'open', '42501'), ('app', 'open', 'told'), ('app', 'members', '42501'), ('worker', 'members', 'told'), ('stranger', NULL, 'told')) v (role, operation, expected);

-- Monitors list all principals of all operations
\o /dev/null
SELECT idem_define('members', '{"principal_setting": "current_user"}');
SET idempotency.principal = '';
SET ROLE regress_idem_worker;
SELECT idem_accept('members', 'k', principal => 'regress_idem_worker');
RESET ROLE;
\o
SELECT is(pg_temp.told(role, $$SELECT count(*) FROM idem_list(operation => 'members')$$), expected, format('S08: %s lists an operation with role and principal_setting', role))
  FROM (VALUES ('monitor', '1'), ('admin', '1'), ('worker', '1'), ('app', '42501')) v (role, expected);
SELECT is(pg_temp.told(role, $$SELECT count(*) FILTER (WHERE operation = 'members') FROM idem_list()$$), expected, format('S08: %s lists all operations', role))
  FROM (VALUES ('monitor', '1'), ('admin', '1'), ('worker', '1'), ('app', '22023')) v (role, expected);
SELECT is(pg_temp.told('monitor', $$SELECT count(*) FROM idem_list('regress_idem_worker', 'members')$$), '1', 'S08: and those of a principal');
SET idempotency.principal = 'acme';

-- What idem_grant gives, idem_revoke takes
\o /dev/null
REVOKE regress_idem_member FROM regress_idem_worker;
SELECT format('REVOKE USAGE ON SCHEMA %s FROM regress_idem_stranger', :'home') \gexec
\o
CREATE FUNCTION pg_temp.holds(role name) RETURNS bigint LANGUAGE sql AS $$
SELECT count(*) FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid = role::regrole $$;
SELECT idem_grant('regress_idem_stranger', tier), idem_revoke('regress_idem_stranger', tier) FROM unnest('{app,worker,monitor,admin}'::text[]) tier \g /dev/null
SELECT is(pg_temp.holds('regress_idem_stranger'), 0::bigint, 'W13: nothing is left of any tier');
SELECT idem_grant('regress_idem_stranger'), idem_grant('regress_idem_stranger', 'monitor'), idem_revoke('regress_idem_stranger', 'monitor') \g /dev/null
SELECT is(pg_temp.told('stranger', $$SELECT (idem_status('open', 'k')).state$$), 'absent', 'W13: another tier stays, with USAGE');
SELECT idem_revoke('regress_idem_stranger') \g /dev/null
SELECT is(pg_temp.holds('regress_idem_stranger'), 0::bigint, 'W13: until it goes too');
SELECT idem_grant('regress_idem_stranger') \g /dev/null
SELECT format('CREATE TABLE %s.access_table (); GRANT SELECT ON %1$s.access_table TO regress_idem_stranger', :'home') \gexec
SELECT idem_revoke('regress_idem_stranger') \g /dev/null
SELECT is(pg_temp.told('stranger', format('SELECT count(*) FROM %s.access_table', :'home')), '0', 'W13: USAGE stays as long as the role has anything else in the schema');
SELECT format('REVOKE ALL ON %s.access_table FROM regress_idem_stranger', :'home') \gexec
SELECT idem_revoke('regress_idem_stranger'), idem_revoke('regress_idem_app'), idem_revoke('regress_idem_worker', 'worker'), idem_revoke('regress_idem_monitor', 'monitor'), idem_revoke('regress_idem_admin', 'admin') \g /dev/null
SELECT format('DROP TABLE %s.access_table', :'home') \gexec
DROP ROLE regress_idem_app;
DROP ROLE regress_idem_worker;
DROP ROLE regress_idem_monitor;
DROP ROLE regress_idem_admin;
DROP ROLE regress_idem_member;
DROP ROLE regress_idem_stranger;
SELECT is(:'ERROR'::boolean, false, 'W13: DROP ROLE works');
SELECT * FROM finish();
