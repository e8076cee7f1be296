-- F01: settings in force stay what they are while they are used, however the
-- session's cache of them changes meanwhile.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
\o /dev/null
SELECT idem_define('o' || n, jsonb_build_object('max_attempts', n)), idem_destination_define('o' || n, jsonb_build_object('max_attempts', n))
  FROM unnest('{1,2,3,255,256,257,400}'::int[]) n;

\o

-- More operations in one row than are cached
SELECT format('WITH r AS MATERIALIZED (SELECT %s) SELECT %s FROM r', string_agg(format('idem_policy(%L) AS p%s, idem_destination_policy(%L) AS d%s', 'o' || n, n, 'o' || n, n), ', '),
	(SELECT string_agg(format($$is(p%s->>'max_attempts', '%s', 'F01: idem_policy in column %s of 400'), is(d%s->>'max_attempts', '%s', 'F01: idem_destination_policy in column %s')$$, m, m, m, m, m, m), ', ')
	  FROM unnest('{1,2,3,255,256,400}'::int[]) m)) FROM generate_series(1, 400) n \gexec

-- An error after the cache was emptied
CREATE FUNCTION pg_temp.f() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_policy('many ' || n), idem_destination_policy('many ' || n) FROM generate_series(1, 255) n;
	PERFORM idem_policy('forbidden');
	RETURN 'shown';
EXCEPTION WHEN insufficient_privilege THEN
	RETURN 'refused';
END $$;
CREATE ROLE regress_idem_cache;
SELECT idem_grant('regress_idem_cache');
SELECT idem_define('forbidden', '{"role": "regress_idem_no_such", "max_attempts": 77}');
SET ROLE regress_idem_cache;
SELECT is(a->>'max_attempts', '1', 'F01: its own settings, not those another call was refused'), is(d->>'max_attempts', '1', 'F01: and of a destination'), is(f, 'refused', 'F01: refused')
  FROM (SELECT idem_policy('o1') AS a, idem_destination_policy('o1') AS d, pg_temp.f() AS f OFFSET 0) r;
RESET ROLE;

-- A change between two columns
CREATE FUNCTION pg_temp.change() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_define('o1', '{"max_attempts": 11}'), idem_destination_define('o1', '{"max_attempts": 11}');
	PERFORM idem_policy('many ' || n), idem_destination_policy('many ' || n) FROM generate_series(1, 255) n;
END $$;
SELECT is(a->>'max_attempts', '1', 'F01: as it was when asked'), is(b->>'max_attempts', '2', 'F01: of another operation'), is(c->>'max_attempts', '11', 'F01: as it is now'),
	is(d->>'max_attempts', '1', 'F01: the same of a destination'), is(f->>'max_attempts', '11', 'F01: and now')
  FROM (SELECT idem_policy('o1') AS a, idem_destination_policy('o1') AS d, pg_temp.change(), idem_policy('o2') AS b, idem_policy('o1') AS c, idem_destination_policy('o1') AS f OFFSET 0) r;

-- Held across the caller's code
CREATE FUNCTION pg_temp.work(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_define('o2', '{"retention": "1 h", "resource_pointer": "/a"}');
	PERFORM idem_policy('many ' || n) FROM generate_series(1, 600) n;
	RETURN '{"order": "7"}';
END $$;
SELECT is(a.state::text, 'succeeded', 'F01: idem_run ends, though the settings changed and the cache was emptied') FROM idem_run('o2', 'k', '{}', 'pg_temp.work(jsonb)') a;
SELECT is(a.verdict::text, 'replay', 'F01: and has recorded it') FROM idem_claim('o2', 'k', '{}') a;

-- A statement that asks for names without end
SELECT is(count(DISTINCT idem_policy('many ' || n)), 1::bigint, 'F01: 5000 operations in one statement') FROM generate_series(1, 5000) n;
SELECT idem_revoke('regress_idem_cache') \g /dev/null
DROP ROLE regress_idem_cache;
SELECT * FROM finish();
