-- Every function of the extension says in its comment what it does, and has a
-- line for each argument, so that \df+ can be read.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
CREATE TEMP VIEW told AS
SELECT p.proname, coalesce(obj_description(p.oid, 'pg_proc'), '') AS comment, a.name AS argument
  FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency'
  LEFT JOIN LATERAL (SELECT name FROM unnest(p.proargnames) WITH ORDINALITY u (name, n) WHERE coalesce(p.proargmodes[n], 'i') = 'i') a ON true;
SELECT is(string_agg(DISTINCT proname, ', '), NULL, 'every function has a comment') FROM told WHERE comment = '';
SELECT is(string_agg(format('%s(%s)', proname, argument), ', ' ORDER BY proname), NULL, 'with a line for each argument') FROM told
 WHERE argument IS NOT NULL AND comment !~ format('(^|\n)(\w+, )*%s(, \w+)*: ', argument);
SELECT is(string_agg(DISTINCT proname, ', '), NULL, 'that begins with what it does') FROM told WHERE comment !~ '^(idem_\w+ for|[A-Z][a-z]+s) ' AND proname !~ '^idem_stat_';
SELECT is(string_agg(DISTINCT format('%s: %s', proname, line), ', '), NULL, 'and no line for what is no argument') FROM told t, regexp_split_to_table(comment, '\n') WITH ORDINALITY l (line, n)
 WHERE n > 1 AND line ~ '^\w+(, \w+)*: ' AND NOT EXISTS (SELECT FROM told u WHERE u.proname = t.proname AND line ~ format('^(\w+, )*%s(, \w+)*: ', u.argument));
SELECT * FROM finish();
