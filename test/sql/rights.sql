-- Who may call what, and that there is no other door: idem_grant and idem_revoke by
-- tier; our tables out of reach; nothing executable by PUBLIC that touches
-- records; C91, no hijack by search_path.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
SELECT extnamespace::regnamespace AS home FROM pg_extension WHERE extname = 'idempotency' \gset
CREATE TEMP VIEW ours AS
SELECT p.oid, p.proname, p.proacl, p.prosecdef, p.proconfig, p.proowner
  FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
  JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid WHERE e.extname = 'idempotency';

-- Every function has a comment and a name of its own
SELECT is(array_agg(proname ORDER BY proname) FILTER (WHERE obj_description(oid, 'pg_proc') IS NULL), NULL, 'every function has a comment') FROM ours;
SELECT is(array_agg(proname), NULL, 'no function is overloaded') FROM (SELECT proname FROM ours GROUP BY 1 HAVING count(*) > 1) x;
SELECT is(array_agg(typname ORDER BY typname), NULL, 'every type has a comment') FROM pg_type t JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
  JOIN pg_extension e ON d.refobjid = e.oid WHERE e.extname = 'idempotency' AND obj_description(t.oid, 'pg_type') IS NULL AND t.typname !~ '^_' AND t.typrelid = 0;
SELECT is(array_agg(relname ORDER BY relname), NULL, 'every table has a comment') FROM pg_class
 WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind IN ('r', 'v') AND obj_description(oid, 'pg_class') IS NULL;

-- PUBLIC may compute, and nothing else
SELECT is(array_agg(proname ORDER BY proname), '{idem_canonical,idem_downstream_key,idem_fingerprint,idem_http_status,idem_id,idem_left_open,idem_new_key,idem_postgrest,idem_value,idem_webhook_sign,idem_webhook_verify}',
	'what PUBLIC may execute computes from its arguments, or tells of its own transaction') FROM ours WHERE has_function_privilege('public', oid, 'EXECUTE') AND proname !~ '^idem_(backoff|fingerprint_text)$';
SELECT is(array_agg(relname ORDER BY relname), NULL, 'PUBLIC has no right on our tables') FROM pg_class c WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind IN ('r', 'v', 'S')
   AND has_table_privilege('public', oid, 'SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER');
SELECT ok(NOT has_schema_privilege('public', 'idempotency_internal', 'USAGE,CREATE'), 'nor on their schema');
SELECT is(array_agg(proname ORDER BY proname), NULL, 'what runs as its owner has a search_path of its own') FROM ours
 WHERE prosecdef AND NOT EXISTS (SELECT FROM unnest(proconfig) c WHERE c = 'search_path=pg_catalog, pg_temp');

-- Tiers
CREATE ROLE regress_idem_none;
CREATE ROLE regress_idem_app;
CREATE ROLE regress_idem_worker;
CREATE ROLE regress_idem_monitor;
CREATE ROLE regress_idem_admin;
SELECT idem_grant('regress_idem_app');
SELECT idem_grant(('regress_idem_' || tier)::name, tier) FROM unnest('{worker,monitor,admin}'::text[]) tier;
CREATE FUNCTION pg_temp.may(tier text) RETURNS name[] LANGUAGE sql AS $$
SELECT array_agg(proname ORDER BY proname) FROM ours WHERE has_function_privilege('regress_idem_' || tier, oid, 'EXECUTE') AND NOT has_function_privilege('public', oid, 'EXECUTE')
$$;
CREATE TEMP TABLE app (name) AS SELECT unnest('{idem_claim,idem_complete,idem_complete_key,idem_fail,idem_fail_key,idem_policy,idem_release,idem_release_key,idem_renew,idem_renew_key,idem_status,idem_unsure,idem_unsure_key}'::name[]);
SELECT is(pg_temp.may('none'), NULL, 'nobody: nothing');
SELECT is(array_agg(name ORDER BY name), NULL, 'app: claim, finish, ask') FROM app WHERE NOT name = ANY (pg_temp.may('app'));
SELECT is(array_agg(name ORDER BY name), NULL, 'worker: all of app') FROM app WHERE NOT name = ANY (pg_temp.may('worker'));
SELECT is(array_agg(name ORDER BY name), NULL, 'monitor: none of app') FROM app WHERE name = ANY (pg_temp.may('monitor'));
SELECT is(pg_temp.may('admin'), array_agg(proname ORDER BY proname), 'admin: everything, and what views call') FROM ours WHERE (proname ~ '^(placed_|effective_state$)' OR oid NOT IN (SELECT oid FROM pg_proc WHERE pronamespace = 'idempotency_internal'::regnamespace)) AND NOT has_function_privilege('public', oid, 'EXECUTE');
SELECT is(array_agg(name ORDER BY name), NULL, 'admin alone: ' || string_agg(name, ', ' ORDER BY name))
  FROM unnest('{idem_define,idem_grant,idem_purge,idem_revoke}'::name[]) name, unnest('{app,worker,monitor}'::text[]) tier HAVING bool_or(name = ANY (pg_temp.may(tier)));
SELECT ok(NOT name = ANY (coalesce(pg_temp.may(tier), '{}')), format('%s: not %s', tier, name))
  FROM unnest('{idem_define,idem_grant,idem_purge,idem_revoke}'::name[]) name, unnest('{none,app,worker,monitor}'::text[]) tier;
SELECT ok(has_schema_privilege('regress_idem_app', :'home', 'USAGE'), 'with USAGE of the schema');

-- In action
SELECT is(pg_temp.as_role('regress_idem_' || tier, 'SELECT idem_complete(c, ''1'') FROM idem_claim(''rights'', ''' || tier || ''') c'), result, 'claim and complete as ' || tier)
  FROM (VALUES ('none', '42501'), ('app', '1'), ('worker', '1'), ('monitor', '42501'), ('admin', '1')) v (tier, result);
SELECT is(pg_temp.as_role('regress_idem_' || tier, 'SELECT idem_define(''rights'', ''{"wait": "0"}'')'), result, 'define as ' || tier)
  FROM (VALUES ('none', '42501'), ('app', '42501'), ('worker', '42501'), ('monitor', '42501'), ('admin', '')) v (tier, result);
SELECT is(pg_temp.as_role('regress_idem_admin', 'SELECT idem_grant(''regress_idem_none'')'), '', 'an admin grants');
SELECT is(pg_temp.as_role('regress_idem_none', 'SELECT (idem_status(''rights'', ''app'')).state'), 'succeeded', 'to whom may then');
SELECT is(pg_temp.as_role('regress_idem_admin', 'SELECT idem_revoke(''regress_idem_none'')'), '', 'and revokes');
SELECT is(pg_temp.as_role('regress_idem_none', 'SELECT idem_status(''rights'', ''app'')'), '42501', 'from whom may no longer');
SELECT idem_revoke('regress_idem_none');
SELECT is(:'SQLSTATE', '00000'::text, 'revoking what is not granted is no error');
SELECT is(pg_temp.as_role('regress_idem_app', 'SELECT idem_grant(''regress_idem_app'', ''admin'')'), '42501', 'an app cannot promote itself');
SET ROLE regress_idem_admin;
SELECT idem_purge() >= 0 AS purged \gset
RESET ROLE;
SELECT ok(:'purged', 'an admin purges');
SELECT throws_ok(format('SELECT idem_%s(%L, %L)', what, role, tier), state, NULL, format('%s %L %L', what, role, tier))
  FROM unnest('{grant,revoke}'::text[]) what,
	(VALUES ('regress_idem_app', 'king', '22023'), ('regress_idem_app', 'App', '22023'), ('regress_idem_app', '', '22023'), ('regress_idem_app', NULL, '22023'),
	('regress_idem_no_such', 'app', '42704'), (NULL, 'app', '22023')) v (role, tier, state);
-- names that need quoting
CREATE ROLE "regress_idem ""quoted"", public; --";
SELECT idem_grant('regress_idem "quoted", public; --');
SELECT is(pg_temp.as_role('regress_idem "quoted", public; --', 'SELECT (idem_status(''rights'', ''app'')).state'), 'succeeded', 'a role with an odd name');
SELECT ok(NOT has_function_privilege('public', oid, 'EXECUTE'), 'and nobody else') FROM ours WHERE proname = 'idem_status';
SELECT idem_revoke('regress_idem "quoted", public; --');

-- No other door
SELECT is(pg_temp.as_role('regress_idem_' || tier, statement), '42501', format('%s as %s', statement, tier))
  FROM unnest('{app,worker,monitor,admin}'::text[]) tier, pg_class t, LATERAL unnest(ARRAY[
	format('SELECT count(*) FROM %s', t.oid::regclass), format('INSERT INTO %s DEFAULT VALUES', t.oid::regclass), format('DELETE FROM %s', t.oid::regclass),
	format('UPDATE %s SET %I = NULL', t.oid::regclass, (SELECT attname FROM pg_attribute WHERE attrelid = t.oid AND attnum = 1)), format('TRUNCATE %s', t.oid::regclass),
	format('LOCK TABLE %s', t.oid::regclass), format('CREATE TRIGGER t AFTER INSERT ON %s EXECUTE FUNCTION suppress_redundant_updates_trigger()', t.oid::regclass)]) statement
 WHERE t.relnamespace = 'idempotency_internal'::regnamespace AND t.relkind = 'r' AND t.relname IN ('record', 'policy', 'normalisation');
SELECT is(pg_temp.as_role('regress_idem_admin', 'CREATE TABLE idempotency_internal.x ()'), '42501', 'nothing can be put beside them');

-- SECURITY DEFINER wrappers: whose rights count is the function's owner's
SELECT idem_define('rights_role', '{"role": "regress_idem_worker"}');
GRANT CREATE ON SCHEMA public TO regress_idem_worker;
SET ROLE regress_idem_worker;
CREATE FUNCTION public.rights_wrapper(key text) RETURNS jsonb LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS
	$$ SELECT idem_complete(c, '"wrapped"') FROM idem_claim('rights_role', key) c $$;
RESET ROLE;
GRANT EXECUTE ON FUNCTION public.rights_wrapper TO regress_idem_none;
SELECT is(pg_temp.as_role('regress_idem_app', 'SELECT idem_claim(''rights_role'', ''k'')'), '42501', 'a role the operation does not admit');
SELECT is(pg_temp.as_role('regress_idem_none', 'SELECT public.rights_wrapper(''k'')'), '"wrapped"', 'through a function of one that it does');
DROP FUNCTION public.rights_wrapper;

-- C91: no hijack by search_path, temporary objects or operators
CREATE SCHEMA regress_trap;
GRANT USAGE, CREATE ON SCHEMA regress_trap TO regress_idem_app, regress_idem_admin;
SET ROLE regress_idem_app;
CREATE TABLE regress_trap.sprung (by text);
GRANT ALL ON regress_trap.sprung TO PUBLIC;
CREATE FUNCTION regress_trap.spring(what text) RETURNS void LANGUAGE sql AS $$ INSERT INTO regress_trap.sprung VALUES (what || ' as ' || current_user) $$;
CREATE FUNCTION regress_trap.text_eq(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_trap.spring('text ='); RETURN true; END $$;
CREATE OPERATOR regress_trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = regress_trap.text_eq);
CREATE OPERATOR regress_trap.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = regress_trap.text_eq);
CREATE FUNCTION regress_trap.cat(jsonb, jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_trap.spring('jsonb ||'); RETURN '{"role": null}'; END $$;
CREATE OPERATOR regress_trap.|| (LEFTARG = jsonb, RIGHTARG = jsonb, FUNCTION = regress_trap.cat);
CREATE FUNCTION regress_trap.uuid_eq(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_trap.spring('uuid ='); RETURN true; END $$;
CREATE OPERATOR regress_trap.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = regress_trap.uuid_eq);
CREATE FUNCTION regress_trap.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_trap.spring('clock_timestamp'); RETURN now(); END $$;
CREATE FUNCTION regress_trap.jsonb_build_object(text, bigint, text, bigint) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_trap.spring('jsonb_build_object'); RETURN '{}'; END $$;
CREATE FUNCTION regress_trap.idem_id(text, text, text DEFAULT NULL) RETURNS uuid LANGUAGE plpgsql AS $$ BEGIN PERFORM regress_trap.spring('idem_id'); RETURN NULL; END $$;
CREATE TABLE regress_trap.record (id uuid);
CREATE TABLE regress_trap.policy (operation text, settings jsonb, horizons jsonb);
CREATE TEMP TABLE record (id uuid);
CREATE TEMP TABLE policy (operation text, settings jsonb);
CREATE TYPE pg_temp.jsonb AS (a int);
CREATE TYPE pg_temp.idem_answer AS (a int);
RESET ROLE;
SELECT set_config('search_path', format('regress_trap, pg_temp, %s, pg_catalog', :'home'), false) \g /dev/null
SELECT idem_define('rights_trap', '{"retention": "1 h", "guard": "1 h"}');
SELECT idem_define('rights_trap', '{"retention": "2 h"}');
SELECT idem_complete(c, '1') FROM idem_claim('rights_trap', 'k') c;
SELECT verdict FROM idem_claim('rights_trap', 'k');
SELECT state FROM idem_status('rights_trap', 'k');
SELECT idem_grant('regress_idem_none');
SELECT idem_revoke('regress_idem_none');
SELECT idem_purge() >= 0;
SET search_path = pg_catalog;
SELECT format('SET search_path = %s', string_agg(extnamespace::regnamespace::text, ', ' ORDER BY extname))
  FROM pg_extension WHERE extname IN ('idempotency', 'pgtap') \gexec
SELECT is(array_agg(by ORDER BY by), NULL, 'C91: no trap was sprung') FROM regress_trap.sprung;
SELECT is(idem_policy('rights_trap')->>'guard', '1 h', 'C91: settings are what was defined');
SELECT is((idem_status('rights_trap', 'k')).state, 'succeeded', 'C91: and the record is there');

DROP SCHEMA regress_trap CASCADE;
DROP TYPE pg_temp.jsonb, pg_temp.idem_answer;
SELECT idem_revoke(('regress_idem_' || tier)::name, tier) FROM unnest('{app,worker,monitor,admin}'::text[]) tier;
DROP OWNED BY regress_idem_none, regress_idem_app, regress_idem_worker, regress_idem_monitor, regress_idem_admin, "regress_idem ""quoted"", public; --";
DROP ROLE regress_idem_none, regress_idem_app, regress_idem_worker, regress_idem_monitor, regress_idem_admin, "regress_idem ""quoted"", public; --";
SELECT * FROM finish();
