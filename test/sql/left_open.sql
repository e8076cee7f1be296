-- What COMMIT would refuse, asked before: SET CONSTRAINTS ALL IMMEDIATE and
-- idem_left_open; N03.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
CREATE FUNCTION pg_temp.left_open() RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(concat_ws(' ', a.operation, a.key, a.state, a.advice, a.attempt, 'fence ' || a.fence, CASE WHEN a.holder = pg_backend_pid() THEN 'mine' END), ', '), 'none')
	FROM idem_left_open() a
$$;

SELECT is(pg_temp.left_open(), 'none', 'N03: nothing claimed, nothing open');
BEGIN;
SELECT (idem_claim('left', 'one')).verdict;
SELECT (idem_claim('left', 'two')).verdict;
SELECT (idem_claim('left', 'leased', lease => '1 h')).verdict;
SELECT idem_complete(idem_claim('left', 'done'));
SELECT is(pg_temp.left_open(), 'left one processing retry_same_key 1 mine, left two processing retry_same_key 1 mine', 'N03: the open claims, without their fences');
SELECT throws_like('SET CONSTRAINTS ALL IMMEDIATE', 'SET CONSTRAINTS ALL IMMEDIATE refused: the claim of operation "left" (id %) and 1 more are left open', 'N03: ALL IMMEDIATE asks what COMMIT would ask');
SELECT throws_ok('SET CONSTRAINTS ALL IMMEDIATE', 'ID003', NULL, 'N03: with its SQLSTATE');
SELECT lives_ok('SET CONSTRAINTS ALL DEFERRED', 'N03: ALL DEFERRED asks nothing');
SAVEPOINT s;
\echo as a statement of its own
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK TO s;
ROLLBACK;
SELECT is(pg_temp.left_open(), 'none', 'N03: rolled back: none');

-- finished, or not any more
BEGIN;
SELECT idem_claim('left', 'k')::text AS c \gset
SELECT idem_complete(:'c'::idem_answer);
SELECT is(pg_temp.left_open(), 'none', 'N03: finished: none');
SELECT lives_ok('SET CONSTRAINTS ALL IMMEDIATE', 'N03: and nothing to refuse');
ROLLBACK;
BEGIN;
SELECT idem_claim('left', 'k')::text AS c \gset
SAVEPOINT s;
SELECT idem_complete(:'c'::idem_answer);
SELECT is(pg_temp.left_open(), 'none', 'N03: finished in a savepoint: none');
ROLLBACK TO s;
SELECT is(pg_temp.left_open(), 'left k processing retry_same_key 1 mine', 'N03: which is rolled back: open again');
ROLLBACK;

-- a completion repeated from an earlier transaction, and something written
SELECT idem_claim('left', 'repeated', lease => '1 h')::text AS c \gset
SELECT idem_complete(:'c'::idem_answer);
BEGIN;
SELECT idem_complete(:'c'::idem_answer);
SELECT lives_ok('SET CONSTRAINTS ALL IMMEDIATE', 'N03: repeated, nothing written');
CREATE TEMP TABLE written ();
SELECT throws_ok('SET CONSTRAINTS ALL IMMEDIATE', 'ID002', NULL, 'N03: repeated and written: as at COMMIT');
ROLLBACK;

-- idem_run finishes its claim itself
CREATE FUNCTION public.left_checks(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	SET CONSTRAINTS ALL IMMEDIATE;
	RETURN (SELECT to_jsonb(count(*)) FROM idem_left_open());
END $$;
SELECT is((idem_run('left', 'run', NULL, 'left_checks(jsonb)')).result, '1', 'N03: a function that idem_run runs may ask for its constraints');

-- everybody may ask about himself
CREATE ROLE regress_left_nobody;
CREATE ROLE regress_left_app;
SELECT idem_grant('regress_left_app');
SET ROLE regress_left_nobody;
SELECT is((SELECT count(*) FROM idem_left_open())::int, 0, 'N03: for a role without any right');
SET ROLE regress_left_app;
BEGIN;
SELECT (idem_claim('left', 'of app')).verdict;
SELECT is((idem_left_open()).key, 'of app', 'N03: for an app');
ROLLBACK;
RESET ROLE;
SELECT idem_revoke('regress_left_app');
DROP OWNED BY regress_left_app, regress_left_nobody;
DROP ROLE regress_left_app, regress_left_nobody;
DROP FUNCTION left_checks;
SELECT finish();
