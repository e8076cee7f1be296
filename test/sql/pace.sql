-- When a key executes again: hand-out of accepted work (W02), limits that hold
-- over releases (S02, W08), retry_after and delay (S03), and what a failure that
-- may be retried looks like (S01).
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

CREATE FUNCTION pg_temp.later(operation text, key text, by interval) RETURNS void LANGUAGE sql AS $$
SELECT pg_temp.age(operation, key, by);
UPDATE idempotency_internal.open_work SET since = since - by, due_at = due_at - by WHERE id = idem_id($1, $2)
$$;
CREATE FUNCTION pg_temp.said(a idem_answer) RETURNS text LANGUAGE sql AS $$ SELECT concat_ws(' ', a.verdict, a.state, a.advice, a.attempt) $$;
CREATE FUNCTION pg_temp.next(operation text, lease interval DEFAULT '1 h') RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(concat_ws(' ', key, attempt), ', ') FROM idem_start_next($1, 10, $2) $$;
CREATE FUNCTION pg_temp.listed(operation text) RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(concat_ws(' ', key, state), ', ') FROM idem_list(operation => $1) $$;
CREATE FUNCTION pg_temp.open(operation text) RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(concat_ws(' ', key, state), ', ' ORDER BY since, key) FROM idem_open o WHERE o.operation = $1 $$;
CREATE FUNCTION pg_temp.fence(operation text, key text) RETURNS bigint LANGUAGE sql AS
$$ SELECT fence FROM idempotency_internal.every_record WHERE id = idem_id($1, $2) $$;
CREATE FUNCTION pg_temp.waits(a idem_answer, low interval, high interval) RETURNS boolean LANGUAGE sql AS
$$ SELECT a.retry_after BETWEEN $2 AND $3 $$;

-- W02: what was accepted and is executable is handed out, and listed
SELECT idem_define('work', '{"on_lease_expiry": "retry", "retry_after": "10 min"}');
SELECT count(idem_accept('work', key, '1')) AS n FROM unnest('{overrun,failed,released,unsure}'::text[]) key \gset
SELECT is(pg_temp.next('work'), 'overrun 1, failed 1, released 1, unsure 1', 'W02: accepted work is handed out');
SELECT is(pg_temp.next('work'), NULL, 'W02: once');
SELECT idem_fail_key('work', 'failed', pg_temp.fence('work', 'failed'), '"busy"', true),
	idem_release_key('work', 'released', pg_temp.fence('work', 'released')),
	idem_unsure_key('work', 'unsure', pg_temp.fence('work', 'unsure'));
SELECT is(pg_temp.listed('work'), 'overrun processing, failed failed, released accepted, unsure unknown', 'W02: all of it is listed'),
	is(pg_temp.open('work'), 'overrun processing, failed failed, released accepted, unsure unknown', 'W02: and in idem_open');
SELECT is(pg_temp.next('work'), 'unsure 2', 'W02: unsure under policy retry: handed out at once, the rest not before its time');
SELECT pg_temp.later('work', key, '2 h') FROM unnest('{overrun,failed,released}'::text[]) key;
SELECT is(pg_temp.listed('work'), 'overrun unknown, failed failed, released accepted, unsure processing', 'W02: a lease is over');
SELECT is((SELECT string_agg(key, ' ' ORDER BY key) FROM idem_start_next('work', 10, '1 h')), 'failed overrun released', 'W02: handed out again: after a failure, a release, a lease');
SELECT is(pg_temp.next('work'), NULL, 'W02: once more only');
SELECT is((SELECT count(*) FROM idem_reconcile('work', 9))::int, 0, 'W02: nothing of it is for reconcilers');
SELECT idem_define('work2', '{}');
SELECT count(idem_accept('work2', key, '1')) AS n FROM unnest('{overrun}'::text[]) key \gset
SELECT is(pg_temp.next('work2'), 'overrun 1', 'W02: policy reconcile: started');
SELECT pg_temp.later('work2', 'overrun', '2 h');
SELECT is(pg_temp.next('work2'), NULL, 'W02: a lease that is over is not handed out to workers'),
	is((SELECT string_agg(key, ' ') FROM idem_reconcile('work2', 9)), 'overrun', 'W02: but to reconcilers');
SELECT is((idem_resolve('work2', 'overrun', 'not_executed')).state, 'accepted', 'W02: not executed: accepted again'),
	is(pg_temp.listed('work2'), 'overrun accepted', 'W02: listed'), is(pg_temp.open('work2'), 'overrun accepted', 'W02: open');
SELECT is(pg_temp.next('work2'), 'overrun 2', 'W02: and handed out');
-- the policy of the moment decides who hands it out
SELECT pg_temp.later('work2', 'overrun', '2 h');
SELECT idem_define('work2', '{"on_lease_expiry": "retry"}');
SELECT is(pg_temp.next('work2'), 'overrun 3', 'W02: policy retry from now on: handed out to workers');
-- limits end it: unknown goes to the reconcilers, also if a worker has seen it first
SELECT pg_temp.later('work2', 'overrun', '2 h');
SELECT idem_define('work2', '{"max_attempts": 3}');
SELECT is(pg_temp.next('work2'), NULL, 'W02: attempts used up: not handed out'), is(pg_temp.listed('work2'), 'overrun unknown', 'W02: unknown');
SELECT is((SELECT string_agg(key, ' ') FROM idem_reconcile('work2', 9, '1 ms')), 'overrun', 'W02: reconcilers get it');
SELECT idem_define('work2', '{"max_attempts": 5}');
UPDATE idempotency_internal.open_work SET due_at = clock_timestamp() WHERE id = idem_id('work2', 'overrun');
SELECT is((SELECT count(*) FROM idem_reconcile('work2', 9))::int, 0, 'W02: a limit is raised: not theirs any more');
SELECT is(pg_temp.next('work2'), 'overrun 4', 'W02: but a worker''s');
-- leased claims are not work for workers
SELECT idem_define('claims', '{"on_lease_expiry": "retry"}');
SELECT idem_claim('claims', key, lease => '1 h') FROM unnest('{overrun,failed}'::text[]) key \g /dev/null
SELECT idem_fail_key('claims', 'failed', pg_temp.fence('claims', 'failed'), '1', true), pg_temp.later('claims', 'overrun', '2 h');
SELECT is(pg_temp.next('claims'), NULL, 'W02: what was claimed is its caller''s to claim again'), is(pg_temp.listed('claims'), 'overrun unknown', 'W02: listed while it is leased');
-- the back-off of failures doubles
SELECT idem_define('doubles', '{"retry_after": "10 s"}');
SELECT idem_accept('doubles', 'k') \g /dev/null
SELECT (SELECT fence FROM idem_start('doubles', 'k', '1 h')) AS f \gset
SELECT idem_fail_key('doubles', 'k', :f, '1', true);
SELECT ok(due_at - clock_timestamp() BETWEEN '9 s' AND '10 s', 'W02: back-off after a failure: retry_after') FROM idempotency_internal.open_work WHERE operation = 'doubles';
SELECT fence AS f FROM idem_start('doubles', 'k', '1 h') \gset
SELECT idem_fail_key('doubles', 'k', :f, '1', true);
SELECT ok(due_at - clock_timestamp() BETWEEN '19 s' AND '20 s', 'W02: after another: twice that') FROM idempotency_internal.open_work WHERE operation = 'doubles';
SELECT idem_redact('doubles', 'k');
SELECT ok(due_at - clock_timestamp() BETWEEN '15 s' AND '20 s', 'W02: which stands when the record is redacted') FROM idempotency_internal.open_work WHERE operation = 'doubles';

-- W08, S02: max_attempts counts what failed, overran or ended unsure
SELECT idem_define('counts', '{"max_attempts": 2}');
SELECT idem_release(idem_claim('counts', 'k', lease => '1 h')) FROM generate_series(1, 5);
SELECT idem_fail(idem_claim('counts', 'k', lease => '1 h'), '"one"', true);
SELECT is(pg_temp.said(idem_status('counts', 'k')), 'failed retry_same_key 6', 'W08: releases do not count');
SELECT idem_release(idem_claim('counts', 'k', lease => '1 h'));
SELECT is(pg_temp.said(idem_claim('counts', 'k', lease => '1 h')), 'execute processing run 8', 'W08: nor between failures');
SELECT idem_fail_key('counts', 'k', pg_temp.fence('counts', 'k'), '"two"', true);
SELECT is(pg_temp.said(idem_claim('counts', 'k')), 'replay failed new_key 8', 'W08: the second failure is for good');
SELECT is(pg_temp.said(idem_accept('counts', 'unsure', '1')), 'execute accepted run 0', 'S02: accepted');
SELECT idem_unsure(idem_start('counts', 'unsure', '1 h'));
SELECT is((idem_resolve('counts', 'unsure', 'not_executed')).state, 'accepted', 'S02: an attempt that ended unsure counts: one is left');
SELECT idem_unsure(idem_start('counts', 'unsure', '1 h'));
SELECT is(pg_temp.said(idem_resolve('counts', 'unsure', 'not_executed')), 'failed new_key 2', 'S02: then accepted work has failed for good'),
	is((idem_status('counts', 'unsure')).error, '{"limit": "max_attempts"}', 'S02: by its limit'), is(pg_temp.listed('counts'), NULL, 'S02: and is no longer listed');

SELECT idem_define('lowered', '{"max_attempts": 2, "retention": "1 h"}');
SELECT count(idem_accept('lowered', 'k', '1')), idem_unsure(idem_start('lowered', 'k', '1 h')) \g /dev/null
SELECT is((idem_resolve('lowered', 'k', 'not_executed')).state, 'accepted', 'S02: one attempt is left');
SELECT idem_define('lowered', '{"max_attempts": 1}');
SELECT is((idem_status('lowered', 'k')).state, 'failed', 'S02: a limit that is lowered ends it'), is((idem_status('lowered', 'k')).error, '{"limit": "max_attempts"}', 'S02: by that limit'),
	is(date_trunc('ms', (idem_status('lowered', 'k')).expires_at), (idem_status('lowered', 'k')).claimed_at + '1 h', 'S02: kept as if it had ended when it was accepted');

-- S02: the deadline runs over releases and failures, and ends work never started
SELECT idem_define('ends', '{"deadline": "1 h", "retention": "2 h", "guard": "1 h", "retry_after": "1 s"}');
SELECT count(idem_accept('ends', key, '1')) AS n FROM unnest('{never,next,released,failed,accepted again}'::text[]) key \gset
SELECT idem_release(idem_start('ends', 'released', '1 h'));
SELECT idem_fail(idem_start('ends', 'failed', '1 h'), '"busy"', true), idem_fail(idem_start('ends', 'accepted again', '1 h'), '"busy"', true);
SELECT is((idem_accept('ends', 'accepted again', '1')).state, 'accepted', 'S02: accepted again');
SELECT idem_release(idem_claim('ends', 'claimed', '1', lease => '1 h'));
SELECT pg_temp.later('ends', key, '61 min') FROM unnest('{never,next,released,failed,accepted again,claimed}'::text[]) key;
SELECT is(pg_temp.said(idem_status('ends', key)), 'failed new_key ' || attempt, 'S02: past the deadline: ' || key),
	is(pg_temp.said(idem_accept('ends', key, '1')), 'replay failed new_key ' || attempt, 'S02: accept'),
	is(pg_temp.said(idem_start('ends', key)), 'replay failed new_key ' || attempt, 'S02: start'),
	is(pg_temp.said(idem_claim('ends', key, '2')), 'mismatch failed new_key ' || attempt, 'S02: other params'),
	is((idem_status('ends', key)).error, error, 'S02: why'),
	ok((idem_status('ends', key)).expires_at - (idem_status('ends', key)).claimed_at BETWEEN '3 h' AND '3 h 1 ms', 'S02: recorded when the deadline was over')
  FROM (VALUES ('never', 0, '{"limit": "deadline"}'::jsonb), ('released', 1, '{"limit": "deadline"}'), ('failed', 1, '"busy"'),
	('accepted again', 1, '{"limit": "deadline"}'), ('claimed', 1, '{"limit": "deadline"}')) v (key, attempt, error);
SELECT is(pg_temp.listed('ends'), NULL, 'S02: not listed'), is(pg_temp.open('ends'), NULL, 'S02: not in idem_open'),
	is((SELECT string_agg(DISTINCT state, ' ') FROM idem_record WHERE operation = 'ends'), 'failed', 'S02: and failed in idem_record');
SELECT is(pg_temp.next('ends'), NULL, 'S02: not handed out');
SELECT is((SELECT count(*) FROM idempotency_internal.open_work WHERE operation = 'ends')::int, 0, 'S02: no longer in the work list');
SELECT is(pg_temp.stored('ends', 'next'), 'f 0 {"limit": "deadline"}', 'S02: but recorded as failed for good');
SELECT idem_define('ends', '{"deadline": null}');
SELECT is((idem_status('ends', 'next')).state, 'failed', 'S02: which a later change of the limit leaves');
SELECT idem_define('ends', '{"deadline": "1 h"}');
SELECT is((idem_accept('ends', 'old')).state, 'accepted', 'S02: accepted');
SELECT pg_temp.later('ends', 'old', '190 min');
SELECT is((idem_status('ends', 'old')).state, 'expired', 'S02: never started, past the deadline and the retention: expired'),
	is((SELECT state FROM idem_record WHERE key = 'old' AND operation = 'ends'), 'expired', 'S02: in idem_record too');
SELECT pg_temp.later('ends', 'old', '1 h');
SELECT is((idem_status('ends', 'old')).state, 'absent', 'S02: past the guard: forgotten'),
	is((SELECT state FROM idem_record WHERE key = 'old' AND operation = 'ends'), 'forgotten', 'S02: in idem_record too');
SELECT idem_purge() AS n \g /dev/null
SELECT is(pg_temp.stored('ends', 'old'), NULL, 'S02: purged'), is((SELECT count(*) FROM idempotency_internal.open_work WHERE operation = 'ends')::int, 0, 'S02: with its entry of the work list');
-- the loop of the documentation ends
SELECT idem_define('loop', '{"max_attempts": 2, "deadline": "300 ms", "retry_after": "1 ms"}');
CREATE FUNCTION pg_temp.loop(OUT started integer, OUT took interval) LANGUAGE plpgsql AS $$
DECLARE
	s idem_answer;
	begun timestamptz := clock_timestamp();
BEGIN
	started := 0;
	PERFORM idem_accept('loop', 'k');
	WHILE (idem_status('loop', 'k')).advice <> 'new_key' AND clock_timestamp() < begun + '30 s' LOOP
		FOR s IN SELECT * FROM idem_start_next('loop', 1, '1 h') LOOP
			started := started + 1;
			PERFORM idem_release(s, '50 ms');
			PERFORM idem_accept('loop', 'k');
		END LOOP;
		PERFORM pg_sleep(0.005);
	END LOOP;
	took := clock_timestamp() - begun;
END
$$;
SELECT cmp_ok(l.started, '<=', 7, 'S02: release and accept: the pace is kept'), cmp_ok(l.started, '>', 0, 'S02: it is started'), cmp_ok(l.took, '<', '20 s', 'S02: and the deadline ends it')
  FROM pg_temp.loop() l;
SELECT is((idem_start('loop', 'k')).verdict, 'replay', 'S02: failed for good');

-- S03: retry_after and delay
SELECT idem_accept('pace', 'delayed', '1', delay => '1 h')::text AS a \gset
SELECT is(pg_temp.said(:'a'), 'execute accepted run 0', 'S03: accepted with a delay'), is((:'a'::idem_answer).retry_after, '1 h', 'S03: which it says');
SELECT is(pg_temp.next('pace'), NULL, 'S03: not handed out');
SELECT is(pg_temp.said(a), 'in_progress accepted retry_same_key 0', 'S03: not executable: ' || what), ok(pg_temp.waits(a, '59 min', '1 h'), 'S03: with what is left')
  FROM (SELECT 'start', idem_start('pace', 'delayed', '1 h') UNION ALL SELECT 'claim', idem_claim('pace', 'delayed', '1') UNION ALL SELECT 'accept', idem_accept('pace', 'delayed', '1')) v (what, a);
SELECT ok(pg_temp.waits(idem_status('pace', 'delayed'), '59 min', '1 h'), 'S03: says status'), is(pg_temp.listed('pace'), 'delayed accepted', 'S03: listed');
SELECT pg_temp.later('pace', 'delayed', '1 h');
SELECT is(pg_temp.next('pace'), 'delayed 1', 'S03: handed out after the delay');
SELECT throws_ok('SELECT idem_accept(''pace'', ''k'', delay => ' || delay || ')', '22023', NULL, 'S03: delay ' || delay || ': 22023') FROM unnest('{''-1 s'',''1 mon'',''1000000 days''}'::text[]) delay;
SELECT throws_ok('SELECT idem_accept(''ends'', ''k'', delay => ''1 h'')', '22023', NULL, 'S03: a delay as long as the deadline: 22023');
-- released
SELECT idem_release(idem_claim('pace', 'released', lease => '1 h'), '1 h');
SELECT is(pg_temp.shape(idem_claim('pace', 'released')), 'in_progress processing retry_same_key: who retry_after', 'S03: released with retry_after: not executable'),
	ok(pg_temp.waits(idem_claim('pace', 'released'), '59 min', '1 h'), 'S03: with what is left'),
	is((idem_accept('pace', 'released')).verdict, 'in_progress', 'S03: nor to be accepted'), throws_ok('SELECT idem_once(''pace'', ''released'')', '55P03', NULL, 'S03: nor done once'),
	is(pg_temp.said(idem_status('pace', 'released')), 'absent retry_same_key', 'S03: reads as absent'), ok(pg_temp.waits(idem_status('pace', 'released'), '59 min', '1 h'), 'S03: with what is left');
SELECT pg_temp.later('pace', 'released', '1 h');
SELECT is(pg_temp.said(idem_claim('pace', 'released', lease => '1 h')), 'execute processing run 2', 'S03: then it executes');
SELECT idem_release_key('pace', 'released', pg_temp.fence('pace', 'released'), retry_after => '0');
BEGIN;
SELECT is((idem_claim('pace', 'released')).attempt, 3, 'S03: retry_after 0: at once');
ROLLBACK;
BEGIN;
SELECT idem_release(idem_claim('pace', 'atomic'), '1 h');
COMMIT;
SELECT is((idem_claim('pace', 'atomic')).verdict, 'in_progress', 'S03: an atomic claim leaves the trace that retry_after needs');
SELECT idem_accept('pace', 'put back') \g /dev/null
SELECT idem_define('pace', '{"retry_after": "10 min"}');
SELECT idem_release(idem_start('pace', 'put back', '1 h'));
SELECT is(pg_temp.said(idem_start('pace', 'put back', '1 h')), 'in_progress accepted retry_same_key 1', 'S03: accepted work released without one: the policy''s'),
	ok(pg_temp.waits(idem_start('pace', 'put back', '1 h'), '9 min', '10 min'), 'S03: with what is left'), is(pg_temp.next('pace'), NULL, 'S03: not handed out');
-- failed
SELECT idem_fail(idem_claim('pace', 'failed', '1', lease => '1 h'), '"429"', true, '1 h');
SELECT is(pg_temp.shape(idem_claim('pace', 'failed', '1')), 'in_progress failed retry_same_key: who attempt error retry_after claimed_at finished_at', 'S03: failed with retry_after: not executable'),
	ok(pg_temp.waits(idem_claim('pace', 'failed', '1'), '59 min', '1 h'), 'S03: with what is left'), is((idem_claim('pace', 'failed', '2')).verdict, 'mismatch', 'S03: other params: mismatch'),
	is((idem_start('pace', 'failed')).verdict, 'in_progress', 'S03: nor started'), throws_ok('SELECT idem_once(''pace'', ''failed'')', '55P03', NULL, 'S03: nor done once'),
	ok(pg_temp.waits(idem_status('pace', 'failed'), '59 min', '1 h'), 'S03: says status');
SELECT is(idem_http_status(idem_claim('pace', 'failed', '1')), 503, 'S01: HTTP 503 from claim'), is(idem_http_status(idem_status('pace', 'failed')), 503, 'S01: and from status'),
	is(idem_http_status(idem_claim('pace', 'failed', '2')), 422, 'S01: a mismatch is 422');
SELECT throws_ok('SELECT idem_value(idem_status(''pace'', ''failed''))', 'ID014', NULL, 'S01: its value: ID014'),
	throws_ok('SELECT idem_value(idem_claim(''pace'', ''failed'', ''1''))', 'ID010', NULL, 'S01: of a claim ID010');
SELECT matches(r.message, 'may be tried again', 'S01: in a text of its own'), matches(r.hint, 'same key', 'S01: that says what to do')
  FROM unnest('{"SELECT idem_value(idem_status(''pace'', ''failed''))","SELECT idem_value(idem_claim(''pace'', ''failed'', ''1''))"}'::text[]) q, pg_temp.raised(q) r;
BEGIN;
SELECT is(pg_temp.said(idem_cancel('pace', 'failed')), 'replay failed new_key 1', 'S03: cancelled all the same'), is(idem_http_status(idem_status('pace', 'failed')), 422, 'S01: a failure for good is 422');
ROLLBACK;
SELECT pg_temp.later('pace', 'failed', '1 h');
SELECT fence AS f FROM idem_claim('pace', 'failed', '1', lease => '1 h') \gset
SELECT idem_fail_key('pace', 'failed', :f, '"503"', true, retry_after => '2 h');
SELECT ok(pg_temp.waits(idem_status('pace', 'failed'), '119 min', '2 h'), 'S03: the same by key');
SELECT throws_ok(format('SELECT idem_fail(idem_claim(''pace'', ''bad'', lease => ''1 h'', owner => ''w''), ''1'', true, %L)', retry_after), '22023', NULL, 'S03: retry_after ' || retry_after || ': 22023'),
	throws_ok(format('SELECT idem_release(idem_claim(''pace'', ''bad'', lease => ''1 h'', owner => ''w''), %L)', retry_after), '22023', NULL, 'S03: to release, too') FROM unnest('{-1 s,1 mon,1000000 days}'::text[]) retry_after;
-- a failure of accepted work, with and without
SELECT idem_accept('pace', 'work', '1') \g /dev/null
SELECT idem_fail(idem_start('pace', 'work', '1 h'), '1', true, '1 h');
SELECT is(pg_temp.said(idem_start('pace', 'work', '1 h')), 'in_progress failed retry_same_key 1', 'S03: failed work with retry_after: not started'), is((idem_accept('pace', 'work', '1')).verdict, 'in_progress', 'S03: nor accepted again');
SELECT pg_temp.later('pace', 'work', '1 h');
SELECT is(pg_temp.next('pace'), 'work 2', 'S03: then handed out');
-- unknown
SELECT idem_unsure(idem_claim('pace', 'unsure', lease => '1 h'));
SELECT ok((idem_claim('pace', 'unsure')).retry_after > '0', 'S03: unknown carries retry_after'), ok((idem_status('pace', 'unsure')).retry_after > '0', 'S03: from status too'),
	ok((idem_reconcile('pace')).retry_after > '0', 'S03: and to a reconciler');

-- of a session's own principal, too, what is not due is left alone, whatever its limits say
SELECT idem_define('own', '{"principal_setting": "app.tenant"}');
SET app.tenant = 'acme';
SELECT idem_accept('own', 'k', principal => 'acme', delay => '1 h') \g /dev/null
SELECT idem_define('own', '{"deadline": "1 us"}');
SELECT is(count(*), 0::bigint, 'nothing to start') FROM idem_start_next('own', 10, '1 h');
SELECT is(count(*), 1::bigint, 'nor to end') FROM idempotency_internal.open_work WHERE operation = 'own';
RESET app.tenant;

SELECT finish();
