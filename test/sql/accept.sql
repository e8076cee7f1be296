-- Work that is accepted now and done later: idem_accept, idem_start,
-- idem_start_next, idem_list; each row of the decision table for accept and
-- start (contract §4, §5), C04, C06, C07.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- The life of a record as a user interface sees it
SELECT idem_accept('accept', 'life', '{"n": 1}')::text AS a \gset
SELECT is(pg_temp.shape(a), 'execute accepted run: who attempt claimed_at', 'accepted: first, enqueue it'),
	is(a.attempt, 0, 'accepted: no attempt yet'), is(idem_http_status(a), 202, 'accepted: HTTP 202'),
	is(pg_temp.stored('accept', 'life'), 'a 0', 'accepted: the record stands')
  FROM (SELECT (:'a'::idem_answer).*) a;
SELECT throws_ok(format('SELECT idem_complete(%L)', :'a'), '22023', NULL, 'accepted: the answer is no permit');
SELECT is(pg_temp.shape(idem_status('accept', 'life')), '- accepted retry_same_key: who attempt retry_after claimed_at', 'status: accepted');
SELECT is(idem_http_status(idem_status('accept', 'life')), 202, 'status: HTTP 202');
SELECT idem_start('accept', 'life', '1 h', owner => 'w1')::text AS s \gset
SELECT is(pg_temp.shape(s), 'execute processing run: who fence attempt claimed_at lease_until', 'started with a lease: execute'),
	is(s.attempt, 1, 'started: attempt 1'), is(s.claimed_at, (:'a'::idem_answer).claimed_at, 'claimed_at is when it was accepted'),
	ok(s.lease_until BETWEEN clock_timestamp() + '59 min' AND clock_timestamp() + '1 h', 'the lease is running')
  FROM (SELECT (:'s'::idem_answer).*) s;
SELECT is(pg_temp.shape(idem_status('accept', 'life')), '- processing retry_same_key: who attempt retry_after claimed_at lease_until', 'status: processing');
SELECT is(idem_complete(:'s', '{"order": 7}'), '{"order": 7}', 'completed');
SELECT is(pg_temp.shape(idem_status('accept', 'life')), '- succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at', 'status: succeeded');
SELECT is((idem_accept('accept', 'life', '{"n": 1}')).result, '{"order": 7}', 'accepting it again replays');
SELECT is((idem_claim('accept', 'life', '{"n": 1}')).result, '{"order": 7}', 'claiming it replays');

SELECT is((idem_accept('accept', 'to fail')).verdict, 'execute', 'another');
SELECT idem_fail(idem_start('accept', 'to fail', '1 h'), '{"code": "declined"}');
SELECT is((idem_status('accept', 'to fail')).state, 'failed', 'status: failed'),
	is((idem_status('accept', 'to fail')).error, '{"code": "declined"}', 'with the error'),
	is((idem_status('accept', 'to fail')).advice, 'new_key', 'advice: new key');
SELECT is((idem_accept('accept', 'to be unsure')).verdict, 'execute', 'another');
SELECT idem_unsure(idem_start('accept', 'to be unsure', '1 h'), '{"http": 504}');
SELECT is(pg_temp.shape(idem_status('accept', 'to be unsure')), '- unknown reconcile: who attempt error retry_after claimed_at lease_until', 'status: unknown, with the detail'),
	is((idem_status('accept', 'to be unsure')).error, '{"http": 504}', 'which is what the owner said');

-- The decision table: records in every state
SELECT count(idem_accept('table', key, '1')) AS n
  FROM unnest('{accepted,running,owned,succeeded,failed,retryable,unknown,cancelled,released,over}'::text[]) key \gset
SELECT idem_complete(idem_start('table', 'succeeded', '1 h'), '"done"');
SELECT idem_fail(idem_start('table', 'failed', '1 h'), '"declined"');
SELECT idem_start('table', 'retryable', '1 h')::text AS retryable \gset
SELECT idem_fail(:'retryable', '"busy"', true);
SELECT idem_start('table', 'released', '1 h')::text AS released \gset
SELECT idem_release(:'released', '0');
SELECT idem_unsure(idem_start('table', 'unknown', '1 h'));
SELECT count(idem_cancel('table', 'cancelled', reason => 'timeout')), count(idem_start('table', 'running', '1 h')) AS n \gset
SELECT idem_start('table', 'owned', '1 h', owner => 'w1')::text AS owned \gset
SELECT idem_define('table_guard', '{"retention": "1 h", "guard": "1 h"}');
SELECT idem_complete(c) FROM idem_claim('table_guard', 'inside', '1', lease => '1 h') c;
SELECT pg_temp.age('table_guard', 'inside', '90 min');
SELECT idem_define('table_retry', '{"on_lease_expiry": "retry"}');
SELECT idem_claim('table_retry', 'a', '1', lease => '1 h', owner => 'w1')::text AS overrun \gset
SELECT idem_claim('table_retry', 'b', '1', lease => '1 h', owner => 'w1')::text AS overrun_b \gset
SELECT pg_temp.age('table_retry', key, '2 h') FROM unnest('{a,b}'::text[]) key;
SELECT idem_define('table_late', '{"key_format": "uuidv7", "retention": "1 h"}');
\set late 019a0000-0000-7000-8000-000000000001

-- idem_accept
SELECT is(pg_temp.shape(idem_accept(operation, key, '1')), expected, format('accept, %s: %s', what, split_part(expected, ':', 1)))
  FROM (VALUES
	('table_late', :'late', 'late', 'expired expired reconcile: who'),
	('table_guard', 'inside', 'inside guard', 'expired expired reconcile: who attempt claimed_at finished_at expires_at forget_at'),
	('table', 'succeeded', 'succeeded', 'replay succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at'),
	('table', 'failed', 'failed for good', 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at'),
	('table', 'cancelled', 'cancelled', 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at'),
	('table', 'accepted', 'accepted', 'in_progress accepted retry_same_key: who attempt retry_after claimed_at'),
	('table', 'running', 'lease running', 'in_progress processing retry_same_key: who attempt retry_after claimed_at lease_until'),
	('table', 'owned', 'lease of an owner running', 'in_progress processing retry_same_key: who attempt retry_after claimed_at lease_until'),
	('table', 'unknown', 'unknown', 'unknown unknown reconcile: who attempt retry_after claimed_at lease_until'))
	v (operation, key, what, expected);
SELECT is(pg_temp.shape(idem_accept('table', key, '2')), expected, format('C04: accept, %s, other params: %s', key, split_part(expected, ':', 1)))
  FROM (VALUES
	('succeeded', 'mismatch succeeded new_key: who attempt claimed_at finished_at expires_at forget_at'),
	('failed', 'mismatch failed new_key: who attempt claimed_at finished_at expires_at forget_at'),
	('retryable', 'mismatch failed new_key: who attempt claimed_at finished_at'),
	('accepted', 'mismatch accepted new_key: who attempt claimed_at'),
	('running', 'mismatch processing new_key: who attempt claimed_at lease_until'),
	('unknown', 'mismatch unknown new_key: who attempt claimed_at lease_until'),
	('cancelled', 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at'))
	v (key, expected);
SELECT is((idem_accept('table_guard', 'inside', '2')).verdict, 'expired', 'C04: accept, inside guard, other params: expired');
BEGIN;
SELECT is((idem_accept('table', 'released', '1')).verdict, 'in_progress', 'accept, released: it is accepted still'),
	is((idem_accept('table', 'released', '2')).verdict, 'mismatch', 'with its params'),
	is((idem_accept('table', 'retryable', '1')).state, 'accepted', 'accept, failed and retryable: accepted'),
	is((idem_accept('table_retry', 'a', '1')).state, 'accepted', 'accept, lease over under policy retry: accepted');
SELECT is(pg_temp.shape(s), 'execute processing run: who fence attempt claimed_at lease_until', what || ': started'),
	is(s.attempt, 2, what || ': attempt 2'), cmp_ok(s.fence, '>', (was).fence, what || ': a higher fence')
  FROM (VALUES ('table', 'released', :'released'::idem_answer), ('table', 'retryable', :'retryable'), ('table_retry', 'a', :'overrun'))
	v (o, what, was), idem_start(o, what, '1 h') s;
ROLLBACK;
-- … whose former owners have lost them
BEGIN;
SELECT is((idem_start('table', 'released', '1 h')).verdict, 'execute', 'started after a release'),
	is((idem_accept('table', 'retryable', '1')).state, 'accepted', 'accepted after a failure'),
	is((idem_accept('table_retry', 'a', '1')).state, 'accepted', 'accepted after a lease');
SELECT throws_ok(format('SELECT idem_complete(%L, ''"late"'')', was), 'ID002', NULL, what || ' and accepted or started again: the former owner is stale')
  FROM (VALUES ('released', :'released'), ('retryable', :'retryable'), ('lease over', :'overrun')) v (what, was);
ROLLBACK;

-- idem_start, which leaves the params alone
BEGIN;
SELECT throws_ok('SELECT idem_start(''table'', ''never'')', 'ID001', NULL, 'start, nothing on record: ID001');
SELECT is(pg_temp.shape(idem_start(operation, key, '1 h', owner => 'w2')), expected, format('start, %s: %s', what, split_part(expected, ':', 1)))
  FROM (VALUES
	('table_late', :'late', 'late', 'expired expired reconcile: who'),
	('table_guard', 'inside', 'inside guard', 'expired expired reconcile: who attempt claimed_at finished_at expires_at forget_at'),
	('table', 'succeeded', 'succeeded', 'replay succeeded use_result: who attempt result claimed_at finished_at expires_at forget_at'),
	('table', 'failed', 'failed for good', 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at'),
	('table', 'cancelled', 'cancelled', 'replay failed new_key: who attempt error claimed_at finished_at expires_at forget_at'),
	('table', 'retryable', 'failed and retryable', 'execute processing run: who fence attempt claimed_at lease_until'),
	('table', 'accepted', 'accepted', 'execute processing run: who fence attempt claimed_at lease_until'),
	('table', 'released', 'released', 'execute processing run: who fence attempt claimed_at lease_until'),
	('table', 'running', 'lease running', 'in_progress processing retry_same_key: who attempt retry_after claimed_at lease_until'),
	('table', 'owned', 'lease of another owner running', 'in_progress processing retry_same_key: who attempt retry_after claimed_at lease_until'),
	('table_retry', 'b', 'lease over, policy retry', 'execute processing run: who fence attempt claimed_at lease_until'),
	('table', 'unknown', 'unknown', 'unknown unknown reconcile: who attempt retry_after claimed_at lease_until'))
	v (operation, key, what, expected);
SELECT is(pg_temp.stored('table', 'accepted'), 'p 1 w2', 'start, accepted: attempt 1, owner w2'),
	is(pg_temp.stored('table', 'retryable'), 'p 2 w2', 'start, retryable: attempt 2'),
	is(pg_temp.stored('table_retry', 'b'), 'p 2 w2', 'start, lease over: attempt 2');
SELECT throws_ok(format('SELECT idem_complete(%L)', :'overrun_b'), 'ID002', NULL, 'start, lease over: the former owner is stale');
SELECT is((idem_claim('table', 'accepted', '1')).verdict, 'in_progress', 'the params are those it was accepted with'),
	is((idem_claim('table', 'accepted', '2')).verdict, 'mismatch', 'and no others');
ROLLBACK;
SELECT is(pg_temp.shape(s), 'execute processing run: who fence attempt claimed_at lease_until', 'C06: start, the same owner again: execute'),
	is((s.attempt, s.fence, s.lease_until), (o.attempt, o.fence, o.lease_until), 'C06: attempt, fence and lease as before')
  FROM idem_start('table', 'owned', '2 h', owner => 'w1') s, (SELECT (:'owned'::idem_answer).*) o;

-- What an accepted record is to the others
SELECT is(pg_temp.shape(idem_claim('table', 'accepted', '1', lease => '1 h')), 'in_progress accepted retry_same_key: who attempt retry_after claimed_at', 'claim, accepted: in_progress'),
	is(idem_http_status(idem_claim('table', 'accepted', '1')), 202, 'HTTP 202'),
	throws_ok('SELECT idem_value(idem_claim(''table'', ''accepted'', ''1''))', 'ID010', NULL, 'its value: ID010'),
	throws_ok('SELECT idem_once(''table'', ''accepted'')', '55P03', NULL, 'once, accepted: 55P03');
SELECT throws_ok('SELECT idem_complete_key(''table'', ''accepted'', fence) FROM idempotency_internal.record WHERE key = ''accepted''',
	'ID001', NULL, 'what was never started cannot be completed');
SELECT throws_ok('SELECT idem_resolve(''table'', ''accepted'', ''succeeded'')', 'ID002', NULL, 'nor resolved');
SELECT is(pg_temp.stored('table', 'accepted'), 'a 0', 'and is as it was');

-- Twice in one transaction, and rolled back
BEGIN;
SELECT is((idem_accept('accept', 'twice')).verdict, 'execute', 'accepted');
SELECT is(a.verdict, 'in_progress', 'again in the same transaction: in_progress'), is(a.state, 'accepted', 'accepted'),
	is(a.holder, pg_backend_pid(), 'the holder is this session')
  FROM idem_accept('accept', 'twice') a;
SAVEPOINT s;
SELECT is((idem_start('accept', 'twice')).verdict, 'execute', 'started in the same transaction');
SELECT is((idem_status('accept', 'twice')).state, 'processing', 'processing');
ROLLBACK TO s;
SELECT is((idem_status('accept', 'twice')).state, 'accepted', 'rolled back to before the start: accepted');
ROLLBACK;
SELECT is((idem_status('accept', 'twice')).state, 'absent', 'rolled back: absent');
SELECT is((SELECT count(*) FROM idempotency_internal.open_work w WHERE id = idem_id('accept', 'twice'))::int, 0, 'the work list too');

-- Atomic start
SELECT is((idem_accept('accept', 'atomic')).verdict, 'execute', 'accepted');
BEGIN;
SELECT idem_start('accept', 'atomic')::text AS first \gset
SELECT is(pg_temp.shape(:'first'), 'execute processing run: who fence attempt claimed_at', 'started atomically: execute, no lease');
SELECT is(pg_temp.shape(idem_start('accept', 'atomic')), 'in_progress processing retry_same_key: who attempt retry_after holder claimed_at', 'again: in_progress'),
	is((idem_start('accept', 'atomic')).holder, pg_backend_pid(), 'held by this session'),
	is((SELECT count(*) FROM idem_start_next('accept'))::int, 0, 'start_next leaves it alone');
ROLLBACK;
SELECT is(pg_temp.shape(idem_status('accept', 'atomic')), '- accepted retry_same_key: who attempt retry_after claimed_at', 'rolled back: accepted again'),
	is((idem_status('accept', 'atomic')).attempt, 0, 'no attempt counted');
SELECT throws_ok(format('SELECT idem_complete(%L)', :'first'), 'ID001', NULL, 'its permit is void');
BEGIN;
SELECT is((idem_start('accept', 'atomic')).attempt, 1, 'started atomically');
\echo C44: open at COMMIT is refused
COMMIT;
SELECT is((idem_status('accept', 'atomic')).state, 'accepted', 'refused: accepted again');
BEGIN;
SELECT is((idem_start('accept', 'atomic')).attempt, 1, 'started atomically');
\echo PREPARE as well
PREPARE TRANSACTION 'accept';
SELECT is((idem_status('accept', 'atomic')).state, 'accepted', 'refused: accepted again');
BEGIN;
SAVEPOINT s;
SELECT is((idem_start('accept', 'atomic')).attempt, 1, 'started in a savepoint');
ROLLBACK TO s;
SELECT is((idem_status('accept', 'atomic')).state, 'accepted', 'rolled back to it: accepted again');
SELECT idem_start('accept', 'atomic')::text AS s \gset
SELECT cmp_ok((:'s'::idem_answer).fence, '>', (:'first'::idem_answer).fence, 'started again: a higher fence');
SELECT is(idem_complete(:'s', '1'), '1', 'completed');
COMMIT;
SELECT is((idem_status('accept', 'atomic')).state, 'succeeded', 'committed: succeeded');
SELECT is(idem_complete(s, '2'), '2', 'start and complete in one statement')
  FROM (SELECT idem_accept('accept', 'one go')) a, LATERAL idem_start('accept', 'one go') s;

-- Finishing what was started atomically
SELECT count(idem_accept('accept', 'finish ' || what)) AS n FROM unnest('{fail,retry,unsure,release}'::text[]) what \gset
SELECT idem_fail(idem_start('accept', 'finish fail'), '1'), idem_fail(idem_start('accept', 'finish retry'), '1', true),
	idem_unsure(idem_start('accept', 'finish unsure'), '1'), idem_release(idem_start('accept', 'finish release'));
SELECT is(pg_temp.stored('accept', 'finish ' || what), expected, 'started atomically: ' || what)
  FROM (VALUES ('fail', 'f 1 1'), ('retry', 't 1 1'), ('unsure', 'p 1 1'), ('release', 'a 1')) v (what, expected);
SELECT is((idem_start('accept', 'finish retry', '1 h')).attempt, 2, 'a retryable failure is started again by its key'),
	is((idem_status('accept', 'finish release')).state, 'accepted', 'what was released is accepted again');

-- Leases: argument, setting, neither; intervals that are none
SELECT idem_define('accept_leased', '{"lease": "1 h"}');
SELECT count(idem_accept('accept_leased', key)) AS n FROM unnest('{setting,argument,zero}'::text[]) key \gset
SELECT ok((idem_start('accept_leased', 'setting')).lease_until BETWEEN now() + '59 min' AND now() + '61 min', 'lease of the setting'),
	ok((idem_start('accept_leased', 'argument', '2 h')).lease_until BETWEEN now() + '119 min' AND now() + '121 min', 'lease of the argument');
BEGIN;
SELECT is((idem_start('accept_leased', 'zero', '0')).lease_until, NULL, 'lease 0: atomic whatever the setting');
ROLLBACK;
SELECT throws_ok(format('SELECT idem_start(''accept_leased'', ''zero'', %L)', lease), '22023', NULL, 'lease ' || lease || ': 22023')
  FROM unnest('{-1 s,1 mon}'::text[]) lease;

-- idem_accept's arguments
SELECT throws_ok('SELECT idem_accept(' || arguments || ')', '22023', NULL, what || ': 22023')
  FROM (VALUES ('''accept'', NULL', 'key NULL'), ('''accept'', ''''', 'key empty'), ('NULL, ''k''', 'operation NULL'),
	('''accept'', ''k'', ''1'', fingerprint => sha256(''x'')', 'params and fingerprint'), ('''accept'', ''k'', fingerprint => ''x''', 'a short fingerprint'),
	('''table_late'', ''k''', 'key of another format')) v (arguments, what);
SELECT is((idem_accept('accept', 'printed', fingerprint => sha256('x'))).verdict, 'execute', 'accepted with a fingerprint'),
	is((idem_accept('accept', 'printed', fingerprint => sha256('x'))).verdict, 'in_progress', 'the same again'),
	is((idem_accept('accept', 'printed', fingerprint => sha256('y'))).verdict, 'mismatch', 'another'),
	is((idem_accept('accept', 'printed', '1')).verdict, 'mismatch', 'params'),
	is((idem_accept('accept', 'printed', fingerprint => sha256('x'), principal => 'other')).verdict, 'execute', 'C20: another principal''s is another');
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_accept(''accept'', ''read only'')', '25006', NULL, 'accept in a read-only transaction: 25006');
ROLLBACK;
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_start(''accept'', ''printed'')', '25006', NULL, 'start in a read-only transaction: 25006');
ROLLBACK;
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_start_next(''accept'')', '25006', NULL, 'start_next in a read-only transaction: 25006');
ROLLBACK;

-- idem_start_next: longest accepted first, whosever they are
SELECT count(idem_accept('next', key, principal => principal)) AS n
  FROM (SELECT * FROM (VALUES ('first', 'acme'), ('second', 'other'), ('third', 'acme'), ('fourth', 'acme'), ('fifth', 'other')) v (key, principal) OFFSET 0) v \gset
SELECT is((idem_claim('next', 'leased', lease => '1 h')).verdict, 'execute', 'work that is no accepted one');
CREATE FUNCTION pg_temp.next(max_records integer, lease interval DEFAULT '1 h', owner text DEFAULT 'w') RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(concat_ws(' ', verdict, principal, key, attempt), ', ') FROM idem_start_next('next', max_records, lease, owner) $$;
SELECT is(pg_temp.next(1), 'execute acme first 1', 'start_next: the longest accepted'),
	is(pg_temp.next(2), 'execute other second 1, execute acme third 1', 'start_next: the next two');
SELECT is(pg_temp.stored('next', 'first'), 'p 1 w', 'started with lease and owner');
BEGIN;
SELECT is(pg_temp.next(5, NULL), 'execute acme fourth 1, execute other fifth 1', 'start_next: the rest, atomically'),
	is(pg_temp.next(5, NULL), NULL, 'and no more'),
	is((SELECT count(*) FROM idem_start_next('next', 5))::int, 0, 'nothing left: no rows');
\echo open at COMMIT is refused
COMMIT;
SELECT is(pg_temp.next(1), 'execute acme fourth 1', 'refused: they are accepted again');
SELECT is(pg_temp.shape(s), 'execute processing run: who fence attempt claimed_at lease_until', 'an answer like that of idem_start')
  FROM idem_start_next('next', 1, '1 h') s;
SELECT is(pg_temp.next(1), NULL, 'nothing left');
SELECT is((idem_accept('accept_leased', 'by setting')).verdict, 'execute', 'accepted under a policy with lease'),
	ok((SELECT max(lease_until) FROM idem_start_next('accept_leased', 9)) > now() + '59 min', 'start_next: lease of the setting');
SELECT throws_ok('SELECT idem_start_next(' || arguments || ')', '22023', NULL, 'start_next(' || arguments || '): 22023')
  FROM (VALUES ('NULL'), (''''''), ('''next'', 0'), ('''next'', -1'), ('''next'', NULL'), ('''next'', 1, ''-1 s'''), ('''next'', 1, ''1 mon''')) v (arguments);
-- … of more than a session may hold as locks
SELECT count(idem_accept('next_many', 'k' || i)) AS n FROM generate_series(1, 100) i \gset
BEGIN;
SELECT is(count(*)::int, 100, 'start_next: 100 atomically at once'), is(count(idem_complete(s, '1'))::int, 100, 'all completed')
  FROM idem_start_next('next_many', 1000) s;
COMMIT;
SELECT is((SELECT count(*) FROM idem_list(operation => 'next_many'))::int, 0, 'none is left');

-- Whose principal the caller is not permitted is passed over
SELECT idem_define('next_bound', '{"principal_setting": "test.tenant"}');
SET test.tenant = 'acme';
SELECT is((idem_accept('next_bound', 'mine')).verdict, 'execute', 'accepted for acme');
SET test.tenant = 'other';
SELECT is((idem_accept('next_bound', 'theirs', principal => 'other')).verdict, 'execute', 'accepted for another');
SELECT is((SELECT string_agg(key, ' ') FROM idem_start_next('next_bound', 9, '1 h')), 'theirs', 'start_next: only what the caller is permitted');
SET test.tenant = 'acme';
SELECT is((SELECT string_agg(key, ' ') FROM idem_start_next('next_bound', 9, '1 h')), 'mine', 'and the rest for who is');

-- idem_list: accepted, processing, unknown; nothing else
SELECT is((SELECT string_agg(concat_ws(' ', key, state), ', ') FROM idem_list(operation => 'table')),
	'accepted accepted, running processing, owned processing, retryable failed, unknown unknown, released accepted, over accepted', 'list: what is not finished, oldest first');
SELECT is((SELECT string_agg(key, ', ') FROM idem_list(operation => 'table', max_records => 2)), 'accepted, running', 'list: at most so many');
SELECT is((SELECT count(*) FROM idem_list(operation => 'table', principal => 'other'))::int, 0, 'list: another principal has none of these'),
	is((SELECT string_agg(key, ', ') FROM idem_list('other')), 'printed, second, fifth', 'list: all operations of a principal'),
	is((SELECT count(*) FROM idem_list() WHERE principal <> 'acme')::int, 0, 'list: by default those of the setting');
SELECT is(pg_temp.shape(l), expected, 'list: an answer like that of idem_status, ' || l.state)
  FROM idem_list(operation => 'table') l JOIN (VALUES
	('accepted', '- accepted retry_same_key: who attempt retry_after claimed_at'),
	('running', '- processing retry_same_key: who attempt retry_after claimed_at lease_until'),
	('unknown', '- unknown reconcile: who attempt retry_after claimed_at lease_until')) v (key, expected) USING (key);
SELECT is((SELECT string_agg(concat_ws(' ', key, state), ', ') FROM idem_list(operation => 'table_retry')), 'a unknown, b unknown', 'list: a lease that is over is unknown, whatever the policy');
BEGIN;
SELECT is((idem_claim('list_atomic', 'k')).verdict, 'execute', 'an atomic claim'),
	is((SELECT count(*) FROM idem_list(operation => 'list_atomic'))::int, 0, 'is not listed'),
	is((SELECT count(*) FROM idempotency_internal.open_work WHERE operation = 'list_atomic')::int, 0, 'nor in the work list');
ROLLBACK;
SET idempotency.principal = '';
SELECT is((SELECT count(DISTINCT principal) FROM idem_list())::int, 2, 'list: no principal at all, who may sees all'),
	is((SELECT count(*) FROM idem_list('acme', 'next'))::int, 4, 'list: both named');
SELECT throws_ok('SELECT idem_list(max_records => ' || n || ')', '22023', NULL, 'list, max_records ' || n || ': 22023') FROM unnest('{0,-1,NULL::int}'::text[]) n;
SELECT throws_ok('SELECT idem_list(operation => '''')', '22023', NULL, 'list, operation empty: 22023');
SET idempotency.principal = 'acme';
SELECT is((SELECT count(*) FROM idempotency_internal.open_work w JOIN idempotency_internal.record r USING (id) WHERE r.state NOT IN ('a', 'p') AND NOT (r.state = 't' AND r.accepted))::int, 0,
	'the work list has nothing that is finished'),
	is((SELECT count(*) FROM idempotency_internal.record r WHERE (r.state IN ('a', 'p') OR r.state = 't' AND r.accepted) AND NOT EXISTS (SELECT FROM idempotency_internal.open_work w WHERE w.id = r.id))::int, 0,
	'and everything that is not');

SELECT finish();
