-- Leases by the real clock: C01, C02, C06, C52, C54, and what an interval may be.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- The longest lease is up to max_lease (W09)
SELECT idem_define('lease', '{"max_lease": null}');

-- C01: a lease runs out by itself
SELECT fence AS f, lease_until AS until FROM idem_claim('lease', 'c01', lease => '150 ms') \gset
SELECT is((idem_status('lease', 'c01')).state, 'processing', 'C01: lease running') WHERE clock_timestamp() < :'until'
 UNION ALL SELECT ok(true, 'C01: lease running') WHERE clock_timestamp() >= :'until';
SELECT pg_sleep(0.16);
SELECT is(pg_temp.shape(idem_claim('lease', 'c01')), 'unknown unknown reconcile: who attempt retry_after claimed_at lease_until', 'C01: lease over: unknown');
SELECT is(pg_temp.shape(idem_status('lease', 'c01')), '- unknown reconcile: who attempt retry_after claimed_at lease_until', 'C01: status says the same');
SELECT is((idem_claim('lease', 'c01')).lease_until, :'until', 'C01: its lease ended then');
SELECT is((SELECT state FROM idempotency_internal.record WHERE id = idem_id('lease', 'c01')), 'p', 'nobody had to write that down');
SELECT idem_define('lease', '{"on_lease_expiry": "retry"}');
SELECT is(pg_temp.shape(idem_status('lease', 'c01')), '- unknown retry_same_key: who attempt retry_after claimed_at lease_until', 'policy retry: status says unknown, and that the key may be retried');
BEGIN;
SELECT is(a.attempt, 2, 'C01: policy retry: attempt 2'), cmp_ok(a.fence, '>', :f, 'C01: a higher fence') FROM idem_claim('lease', 'c01') a;
ROLLBACK;
SELECT idem_define('lease', '{"on_lease_expiry": "reconcile"}');
SELECT is(pg_temp.shape(idem_claim('lease', 'c01')), 'unknown unknown reconcile: who attempt retry_after claimed_at lease_until', 'policy reconcile again: unknown again');

-- a claim waits for a lease to end
SELECT fence AS f FROM idem_claim('lease', 'waited for', lease => '100 ms') \gset
SELECT a.verdict AS verdict, clock_timestamp() >= a.lease_until AS waited, clock_timestamp() - statement_timestamp() < '5 s' AS not_long
  FROM idem_claim('lease', 'waited for', wait => '10 s') a \gset
SELECT is(:'verdict'::text, 'unknown', 'a wait longer than the lease: unknown'), ok(:'waited', 'when it is over'), ok(:'not_long', 'and not later');
SELECT fence AS f FROM idem_claim('lease', 'waited for briefly', lease => '1 h') \gset
SELECT a.verdict AS verdict, clock_timestamp() - statement_timestamp() >= '50 ms' AS waited, clock_timestamp() - statement_timestamp() < '5 s' AS not_long
  FROM idem_claim('lease', 'waited for briefly', wait => '50 ms') a \gset
SELECT is(:'verdict'::text, 'in_progress', 'a wait shorter than the lease: in progress'), ok(:'waited', 'after the wait'), ok(:'not_long', 'and not later');
SELECT a.verdict AS verdict, clock_timestamp() - statement_timestamp() < '1 s' AS at_once FROM idem_claim('lease', 'waited for briefly', '"other params"', wait => '10 s') a \gset
SELECT is(:'verdict'::text, 'mismatch', 'a mismatch'), ok(:'at_once', 'does not wait');
SELECT idem_define('lease_wait', '{"wait": "200 ms"}');
SELECT fence AS f FROM idem_claim('lease_wait', 'k', lease => '1 h') \gset
SELECT clock_timestamp() - statement_timestamp() >= '200 ms' AS waited FROM idem_claim('lease_wait', 'k') a \gset
SELECT clock_timestamp() - statement_timestamp() < '200 ms' AS at_once FROM idem_claim('lease_wait', 'k', wait => '0') a \gset
SELECT ok(:'waited', 'wait NULL takes the policy''s'), ok(:'at_once', 'wait 0 does not wait whatever the policy');

-- C06: the first answer was lost
SELECT idem_claim('lease', 'lost', '1', lease => '1 h', owner => 'w')::text AS c \gset
SELECT is(idem_claim('lease', 'lost', '1', lease => '1 h', owner => 'w')::text, :'c'::text, 'C06: the same owner gets the same answer');
SELECT is((idem_claim('lease', 'lost', '1', lease => '1 h', owner => 'v')).verdict, 'in_progress', 'C06: another owner does not');
SELECT is(idem_complete(:'c', '"once"'), '"once"', 'C06: and completes');
SELECT is((idem_claim('lease', 'lost', '1', owner => 'w')).verdict, 'replay', 'after that even the owner replays');
SELECT is((idem_claim('lease', 'owner', lease => '1 h', owner => owner)).verdict, verdict::idem_verdict, format('owner %L', owner))
  FROM (VALUES ('ww', 'execute'), ('w', 'in_progress'), ('www', 'in_progress'), ('ww', 'execute')) v (owner, verdict);
SELECT is((idem_claim('lease', 'long owner', lease => '1 h', owner => repeat('w', 255))).verdict, 'execute', 'an owner of 255 bytes'),
	throws_ok('SELECT idem_claim(''lease'', ''longer owner'', lease => ''1 h'', owner => repeat(''w'', 256))', '22023', NULL, 'of 256: 22023');
SELECT idem_define('lease_max', '{"max_lease": "1 h", "retry_after": "10 h"}');
SELECT is((idem_claim('lease_max', 'k', lease => '1 h')).verdict, 'execute', 'as long as max_lease'),
	throws_ok('SELECT idem_claim(''lease_max'', ''k2'', lease => ''1 h 1 us'')', '22023', NULL, 'longer: 22023'),
	ok((idem_status('lease_max', 'k')).retry_after <= '1 h', 'to be asked again before it ends');
SELECT is((idem_claim('lease', 'owner é', lease => '1 h', owner => owner)).verdict, verdict::idem_verdict, format('owner %L', owner))
  FROM (VALUES ('é', 'execute'), ('é', 'execute'), ('e', 'in_progress')) v (owner, verdict);

-- C02: what a lease may be
SELECT throws_ok(format('SELECT idem_claim(''lease'', ''bad'', lease => %L)', lease), '22023', NULL, 'C02: lease ' || lease)
  FROM unnest('{-1 s,-1 us,1 mon,1 year,1 mon -30 days,-1 days,1 day -25 hours,1000000 days}'::text[]) lease;
SELECT throws_ok(format('SELECT idem_claim(''lease'', ''bad'', wait => %L)', wait), '22023', NULL, 'wait ' || wait)
  FROM unnest('{-1 s,1 mon,1000000 days}'::text[]) wait;
SELECT is((idem_status('lease', 'bad')).state, 'absent', 'nothing was claimed');
BEGIN;
SELECT is(pg_temp.shape(idem_claim('lease', 'zero', lease => '0')), 'execute processing run: who fence attempt claimed_at', 'C02: lease 0 is atomic');
SELECT pg_sleep(0.05);
SELECT is((idem_claim('lease', 'zero')).verdict, 'in_progress', 'C02: not reclaimable while its transaction lives');
ROLLBACK;
SELECT is(lease_until - claimed_at < '1 s', true, 'the shortest lease is a microsecond') FROM idem_claim('lease', 'shortest', lease => '1 us');
SELECT is((idem_status('lease', 'shortest')).state, 'unknown', 'and is over soon');
SELECT ok(lease_until > clock_timestamp() + '365999 days', 'the longest a thousand years') FROM idem_claim('lease', 'longest', lease => '366000 days');
SELECT is(date_trunc('minutes', lease_until - claimed_at), '23 h', 'days and hours add up') FROM idem_claim('lease', 'sum', lease => '1 day -1 hours');

-- C52: leases count from the real time, not from the transaction's
BEGIN;
SELECT pg_sleep(0.3);
SELECT clock_timestamp() AS before \gset
SELECT ok(lease_until >= :'before'::timestamptz + interval '200 ms', 'C52: lease_until is from the real now on'),
	ok(claimed_at >= :'before', 'C52: so is claimed_at'), ok(claimed_at > now() + '0.29 s', 'which is not now()') FROM idem_claim('lease', 'c52', lease => '200 ms');
SELECT pg_sleep(0.21);
SELECT is((idem_claim('lease', 'c52')).verdict, 'unknown', 'judged by the real time too, in the same transaction');
COMMIT;
BEGIN;
SELECT idem_claim('lease', 'c52 complete')::text AS c \gset
SELECT pg_sleep(0.05);
SELECT clock_timestamp() AS before \gset
SELECT idem_complete(:'c');
SELECT ok(finished_at >= :'before', 'finished_at is the real time') FROM idem_status('lease', 'c52 complete');
COMMIT;

-- C54: a day is 86 400 seconds, also where it is not
SET TimeZone = 'Europe/Berlin';
SELECT ok(bool_and(a.lease_until - a.claimed_at BETWEEN n * interval '24 h' AND n * interval '24 h' + interval '10 s'), 'C54: 1 to 365 days of lease')
  FROM generate_series(1, 365, 7) n, idem_claim('lease', 'dst ' || n, lease => make_interval(days => n)) a;
SELECT ok(bool_and(extract(epoch FROM a.lease_until - a.claimed_at) BETWEEN n * 86400 AND n * 86400 + 10), 'C54: in seconds')
  FROM generate_series(1, 365, 7) n, idem_status('lease', 'dst ' || n) a;
SELECT ok(bool_and(extract(epoch FROM idem_renew_key('lease', 'dst ' || n, r.fence, make_interval(days => n + 1)) - clock_timestamp()) BETWEEN (n + 1) * 86400 - 10 AND (n + 1) * 86400),
	'C54: renewed') FROM generate_series(1, 365, 28) n, LATERAL (SELECT fence FROM idempotency_internal.record WHERE id = idem_id('lease', 'dst ' || n)) r;
SELECT idem_define('lease_days', '{"retention": "200 days", "guard": "100 days"}');
SELECT idem_complete(c) FROM idem_claim('lease_days', 'k') c;
SELECT is(extract(epoch FROM expires_at - finished_at), 200 * 86400::numeric, 'C54: retention in days'),
	is(extract(epoch FROM forget_at - expires_at), 100 * 86400::numeric, 'C54: guard in days') FROM idem_status('lease_days', 'k');
RESET TimeZone;

-- C54: for ever
SELECT idem_define('lease_ever', '{"retention": null, "guard": "1 h"}');
SELECT idem_complete(c) FROM idem_claim('lease_ever', 'k') c;
SELECT is(pg_temp.shape(idem_claim('lease_ever', 'k')), 'replay succeeded use_result: who attempt claimed_at finished_at', 'C54: retention for ever has no end');

-- C95: the server's clock was set back by an hour: what is stored is from the future
SELECT idem_fail(c, '"later"', true) FROM idem_claim('lease', 'c95 fence', lease => '1 h') c \gset f_
UPDATE idempotency_internal.record SET fence = fence + 3600000000 WHERE id = idem_id('lease', 'c95 fence') RETURNING fence \gset old_
SELECT is((idem_claim('lease', 'c95 fence', lease => '1 h')).fence, :old_fence + 1, 'C95: the next fence is larger all the same');
SELECT ok(fence < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 1000000, 'C95: but those of other keys go by the clock')
FROM idem_claim('lease', 'c95 other', lease => '1 h');
SELECT fence FROM idem_claim('lease', 'c95 lease', lease => '2 h') \gset c_
SELECT lease_until FROM idem_status('lease', 'c95 lease') \gset was_
SELECT is(idem_renew_key('lease', 'c95 lease', :c_fence, '1 h'), :'was_lease_until', 'C95: a running lease is not shortened'),
	is((idem_status('lease', 'c95 lease')).lease_until, :'was_lease_until', 'nor in the record');

SELECT * FROM finish();
