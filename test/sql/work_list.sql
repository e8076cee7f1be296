-- The work list is a hint: an entry that is out of date, as one is that could not
-- follow its record or that was put back by hand, is corrected by the call that meets it.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

CREATE TEMP TABLE entry (LIKE idempotency_internal.open_work);
CREATE FUNCTION pg_temp.keep(key text) RETURNS bigint LANGUAGE sql AS $$
WITH kept AS (INSERT INTO pg_temp.entry SELECT * FROM idempotency_internal.open_work WHERE id = idem_id('outdated', $1) RETURNING 1) SELECT count(*) FROM kept
$$;
CREATE FUNCTION pg_temp.put_back(queue "char") RETURNS void LANGUAGE sql AS $$
DELETE FROM idempotency_internal.open_work WHERE operation = 'outdated';
INSERT INTO idempotency_internal.open_work (id, since, due_at, fence, tries, queue, operation, principal)
	SELECT id, since, now() - interval '1 s', fence, tries, $1, operation, principal FROM pg_temp.entry
$$;
CREATE FUNCTION pg_temp.listed() RETURNS text LANGUAGE sql AS $$
SELECT string_agg(queue::text, ' ' ORDER BY queue) FROM idempotency_internal.open_work WHERE operation = 'outdated'
$$;
CREATE FUNCTION pg_temp.what_is_open() RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM idem_list('acme', 'outdated') $$;
CREATE FUNCTION pg_temp.started() RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM idem_start_next('outdated', 10, '1 h') $$;
CREATE FUNCTION pg_temp.reconciled() RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM idem_reconcile('outdated') $$;

-- Entries of keys that have ended: succeeded, cancelled, and without a record
SELECT is((idem_accept('outdated', k)).verdict, 'execute', k || ': accepted'), is(pg_temp.keep(k), 1::bigint, 'with an entry') FROM unnest('{succeeded,cancelled,gone}'::text[]) k;
SELECT idem_complete(idem_start('outdated', 'succeeded', '1 h')), count(idem_cancel('outdated', 'cancelled')) \g /dev/null
DELETE FROM idempotency_internal.record WHERE id = idem_id('outdated', 'gone');

SELECT pg_temp.put_back('w');
SELECT is(pg_temp.listed(), 'w w w', 'entries of what waits for a worker');
SELECT is(pg_temp.what_is_open(), 0::bigint, 'none of them is listed'), is(pg_temp.listed(), 'w w w', 'who only reads leaves them');
SELECT is(pg_temp.started(), 0::bigint, 'none of them is started'), is(pg_temp.listed(), NULL, 'and they are gone');

SELECT pg_temp.put_back('l');
SELECT is(pg_temp.listed(), 'l l l', 'entries of what has a lease');
SELECT is(pg_temp.reconciled(), 0::bigint, 'none of them is handed out'), is(pg_temp.listed(), NULL, 'and they are gone');
SELECT is((idem_status('outdated', k)).state, s, k || ': as it was') FROM (VALUES ('succeeded', 'succeeded'::idem_state), ('cancelled', 'failed'), ('gone', 'absent')) v (k, s);

-- An entry that says due, of a lease that is running
DELETE FROM entry;
SELECT idem_claim('outdated', 'running', lease => '1 h')::text AS c \gset
SELECT is(pg_temp.keep('running'), 1::bigint, 'a lease has an entry');
SELECT pg_temp.put_back('l');
SELECT is(pg_temp.reconciled(), 0::bigint, 'a running lease is not handed out');
SELECT is(due_at, (:'c'::idem_answer).lease_until, 'its entry says when it ends') FROM idempotency_internal.open_work WHERE operation = 'outdated';
SELECT pg_temp.put_back('w');
SELECT is(pg_temp.started(), 0::bigint, 'nor is it started');
SELECT is(due_at, (:'c'::idem_answer).lease_until, 'nor looked at before it ends') FROM idempotency_internal.open_work WHERE operation = 'outdated';

-- Work whose lease is over may be executed again: it is for idem_start_next
DELETE FROM entry;
DELETE FROM idempotency_internal.open_work WHERE operation = 'outdated';
SELECT idem_define('outdated', '{"on_lease_expiry": "retry"}');
SELECT count(idem_accept('outdated', 'over')), count(idem_start('outdated', 'over', '1 us')) \g /dev/null
SELECT is(pg_temp.keep('over'), 1::bigint, 'started work has an entry');
SELECT pg_temp.put_back('l');
SELECT is(pg_temp.reconciled(), 0::bigint, 'not handed out to a reconciler'), is(pg_temp.listed(), 's', 'but left for a worker');
SELECT is(pg_temp.started(), 1::bigint, 'who starts it'), is((idem_status('outdated', 'over')).attempt, 2, 'again');

-- What a deadline has ended is purged from both
SELECT idem_define('outdated', '{"deadline": "1 us", "retention": "1 us"}');
SELECT count(idem_accept('outdated', 'ended')) \g /dev/null
SELECT is(pg_temp.listed(), 's w', 'accepted work has an entry');
SELECT idem_purge() \g /dev/null
SELECT is((SELECT count(*) FROM idempotency_internal.record WHERE id = idem_id('outdated', 'ended')), 0::bigint, 'its record is purged'), is(pg_temp.listed(), 's', 'and its entry is');

SELECT finish();
