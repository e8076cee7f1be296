-- CREATE EXTENSION where others have created objects before, and where the
-- default privileges of the installer give rights away.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set start :abs_srcdir '/lib/start.sql'
\i :start
\set VERBOSITY sqlstate
SELECT no_plan() \g /dev/null

-- A trap for each function of ours, twice: an overload with text for each
-- argument, and one without the arguments that have defaults.
SELECT string_agg(DISTINCT format('CREATE FUNCTION shared.%I(%s) RETURNS SETOF text LANGUAGE sql AS $$ INSERT INTO shared.sprung VALUES (%1$L) RETURNING name $$;', p.proname, t.arguments), ' ') AS traps, count(*) > 50 AS many
  FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency',
	LATERAL (SELECT array_to_string(array_fill('text'::text, ARRAY[p.pronargs::int]), ', ') UNION
		SELECT string_agg(format_type(a.type, NULL), ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY a (type, n) WHERE n <= p.pronargs - p.pronargdefaults) t (arguments)
 WHERE p.pronamespace = e.extnamespace AND t.arguments <> pg_get_function_identity_arguments(p.oid) AND coalesce(t.arguments, '') <> coalesce((SELECT string_agg(format_type(a.type, NULL), ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY a (type, n)), '')
	AND t.arguments !~ 'idem_' \gset
CREATE DATABASE regress_idem_install TEMPLATE template0;
CREATE ROLE regress_idem_anon;
\connect regress_idem_install
\set QUIET 1
\set ECHO none
\pset format unaligned
\pset tuples_only on
SET client_min_messages = warning;
CREATE SCHEMA shared;
GRANT ALL ON SCHEMA shared TO PUBLIC;
CREATE TABLE shared.sprung (name text);
GRANT ALL ON shared.sprung TO PUBLIC;
SET ROLE regress_idem_anon;
:traps
RESET ROLE;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO regress_idem_anon WITH GRANT OPTION;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO regress_idem_anon, PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO regress_idem_anon, PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO regress_idem_anon;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO regress_idem_anon, PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TYPES FROM PUBLIC;
CREATE EXTENSION idempotency SCHEMA shared;
\i :start
\set VERBOSITY sqlstate
SELECT no_plan() \g /dev/null
SELECT ok(:'many', 'F02: there are traps');
CREATE TEMP VIEW trap AS SELECT p.oid, proname, proacl FROM pg_proc p JOIN pg_roles r ON r.oid = proowner AND rolname = 'regress_idem_anon';
SELECT is(array_agg(proname), NULL, 'F02: nothing depends on a trap') FROM trap WHERE EXISTS (SELECT FROM pg_depend WHERE refclassid = 'pg_proc'::regclass AND refobjid = trap.oid);
SELECT is(array_agg(proname), NULL, 'F02: no trap became part of the extension, or got a comment or rights') FROM trap
 WHERE EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = trap.oid AND deptype = 'e') OR obj_description(oid, 'pg_proc') IS NOT NULL OR proacl::text ~ 'postgres=X/';
SELECT format('SELECT count(*) >= 0 FROM %s', c.oid::regclass) FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency' WHERE c.relkind = 'v' ORDER BY c.oid::regclass::text \g /dev/null
SELECT format('SELECT FROM %s', c.oid::regclass) FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency' WHERE c.relkind = 'v' ORDER BY c.oid::regclass::text \gexec
SELECT is(array_agg(name), NULL, 'F02: no view runs one') FROM shared.sprung;

SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM trap \gexec

-- Default privileges give nothing, and take nothing from what is for everybody
CREATE TEMP VIEW given AS
SELECT pg_describe_object(d.classid, d.objid, 0) AS object, a.grantee
  FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency' AND d.deptype = 'e'
  LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
  LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid LEFT JOIN pg_namespace n ON d.classid = 'pg_namespace'::regclass AND n.oid = d.objid,
	LATERAL aclexplode(coalesce(p.proacl, c.relacl, t.typacl, n.nspacl)) a WHERE a.grantee <> 10;
SELECT is(array_agg(object ORDER BY object), NULL, 'F13: no right of the role in the default privileges') FROM given WHERE grantee = 'regress_idem_anon'::regrole;
SELECT is(count(*), 0::bigint, 'F13: nor of PUBLIC on tables, views and schemas') FROM given WHERE grantee = 0 AND object !~ '^(function|type) ';
SET ROLE regress_idem_anon;
SELECT throws_ok($$SELECT idem_grant('regress_idem_anon', 'admin')$$, '42501', NULL, 'F13: idem_grant');
SELECT throws_ok($$SELECT idem_claim('o', 'k')$$, '42501', NULL, 'F13: idem_claim');
SELECT is(idem_id('o', 'k', 'acme'), idem_id('o', 'k', 'acme'), 'F13: what computes is for everybody');
CREATE TEMP TABLE uses_type (answer idem_answer);
RESET ROLE;
SELECT is(:'ERROR'::boolean, false, 'F13: and so are the types');
SELECT * FROM finish();
\connect postgres
DROP DATABASE regress_idem_install;
DROP ROLE regress_idem_anon;
