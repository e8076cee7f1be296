# The log of requests: what it says, that a rollback does not take it back, and
# that nothing waits for it.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('log');
$node->init;
$node->append_conf('postgresql.conf', <<'END');
shared_preload_libraries = 'idempotency'
idempotency.principal = 'acme'
idempotency.naptime = 50
idempotency.request_log_size = 200
END
$node->start;

sub value { return $node->safe_psql($_[1] // 'postgres', $_[0]); }

# Wait for the worker to have written that many lines.
sub written
{
	my ($number) = @_;

	return $node->poll_query_until('postgres', "SELECT count(*) = $number FROM idem_request_log");
}

value('CREATE EXTENSION idempotency');
value(q{SELECT idem_define('pay', '{"log_requests": true, "resource_pointer": "/order/id"}')});

#
# One line for each request.
#
value(q{SELECT idem_once('quiet', 'k')});
value(q{SET idempotency.request_id = 'req-1'; SET application_name = 'shop';
	SELECT idem_complete(c, '{"order": {"id": 42, "secret": "s3cr3t"}}') FROM idem_claim('pay', 'k1', '{"card": "4711"}') c});
value(q{SET request.headers = '{"host": "h", "x-request-id": "req-2"}'; SELECT idem_claim('pay', 'k1', '{"card": "4711"}')});
value(q{BEGIN; SELECT idem_claim('pay', 'k2'); ROLLBACK});
$node->psql('postgres', q{SELECT idem_complete_key('pay', 'k1', 1)});
value(q{SELECT idem_status('pay', 'k3')});
ok(written(6), 'the worker writes them');
is(value(q{SELECT string_agg(concat_ws(' ', key, call, verdict, state, error, attempt, resource, request), E'\n' ORDER BY at) FROM idem_request_log}),
	join("\n", 'k1 claim execute processing 1 req-1', 'k1 complete succeeded 1 42 req-1', 'k1 claim replay succeeded 1 42 req-2',
		'k2 claim execute processing 1', 'k1 complete ID002', 'k3 ask absent'), 'they say what was asked and answered');
is(value(q{SELECT count(*) FROM idem_request_log WHERE application_name = 'shop' AND pid > 0 AND principal = 'acme'
	AND operation = 'pay' AND id = idem_id('pay', 'k1')}), 2, 'and who it was');
is(value(q{SELECT count(*) FILTER (WHERE position('s3cr3t' IN packed) + position('4711' IN packed) > 0), count(*) FILTER (WHERE position('shop' IN packed) > 0) > 0
	FROM idempotency_internal.request_log}), '0|t', 'neither params nor results');
is(value('SELECT size || \' \' || waiting || \' \' || dropped FROM idem_stat_request_lines()'), '200 0 0', 'nothing waits, nothing was dropped');

#
# Every function that is a request writes one line, with the SQLSTATE if it is
# refused, however early.  [call, SQL, what the line says]
#
value(q{SELECT idem_define('v7', '{"log_requests": true, "key_format": "uuidv7"}');
	SELECT idem_define('small', '{"log_requests": true, "max_params_bytes": 4, "max_result_bytes": 4, "require_params": true}');
	SELECT idem_define('bound', '{"log_requests": true, "role": "pg_monitor"}');
	SELECT idem_define('job', '{"log_requests": true, "lease": "1 h"}');
	CREATE ROLE nobody; SELECT idem_grant('nobody', 'admin')});
value(q{CREATE FUNCTION twice(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{"order": {"id": 7}}'::jsonb $$;
	CREATE FUNCTION fails(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
	CREATE FUNCTION inner_claim(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN PERFORM idem_claim('pay', ''); RETURN '1'; END $$});
my $future = q{'7fffffff-ffff-7000-8000-000000000001'};
my $long_key = q{repeat('k', 300)};
my $permit = q{(SELECT c FROM idem_claim('pay', 'permit', principal => 'p') c)};
my @requests = (
	['idem_claim', q{SELECT idem_claim('pay', '')}, 'claim 22023'],
	['idem_claim', q{SELECT idem_claim('pay', NULL)}, 'claim 22023'],
	['idem_claim', q{SELECT idem_claim('pay', 'x1', principal => '')}, 'x1 claim 22023'],
	['idem_claim', q{SET idempotency.principal = ''; SELECT idem_claim('pay', 'x2')}, 'x2 claim 22023'],
	['idem_claim', q{SELECT idem_claim('v7', 'x3')}, 'x3 claim 22023'],
	['idem_claim', qq{SELECT idem_claim('v7', $future)}, '7fffffff-ffff-7000-8000-000000000001 claim 22023'],
	['idem_claim', q{SELECT idem_claim('small', 'x4', '{"a": "long"}')}, 'x4 claim 22023'],
	['idem_claim', q{SELECT idem_claim('small', 'x5')}, 'x5 claim 22023'],
	['idem_claim', q{SELECT idem_claim('pay', 'x6', lease => '-1 s')}, 'x6 claim 22023'],
	['idem_claim', q{SELECT idem_claim('pay', 'x7', '{}', fingerprint => '\x00')}, 'x7 claim 22023'],
	['idem_claim', q{SET ROLE nobody; SELECT idem_claim('bound', 'x8')}, 'x8 claim 42501'],
	['idem_claim', q{SET default_transaction_read_only = on; SELECT idem_claim('pay', 'x9')}, 'x9 claim 25006'],
	['idem_claim', qq{SELECT length(id::text) FROM idem_claim('pay', $long_key)}, 'k' x 300 . ' claim 22023'],
	['idem_accept', q{SELECT idem_accept('v7', 'y1')}, 'y1 accept 22023'],
	['idem_accept', q{SELECT idem_accept('job', 'y2')}, 'y2 accept execute accepted 0'],
	['idem_start', q{SELECT idem_start('job', 'y3')}, 'y3 start ID001'],
	['idem_start', q{SELECT idem_start('job', 'y2', '-1 s')}, 'y2 start 22023'],
	['idem_start_next', q{SELECT idem_start_next('job', 0)}, 'start 22023'],
	['idem_start_next', q{SET ROLE nobody; SELECT idem_start_next('bound')}, 'start 42501'],
	['idem_start_next', q{SELECT idem_start_next('job')}, 'y2 start execute processing 1'],
	['idem_start_next', q{SELECT idem_start_next('job')}, ''],
	['idem_complete', qq{BEGIN; SELECT idem_complete($permit, '1'); ROLLBACK}, 'permit claim execute processing 1;permit complete succeeded 1'],
	['idem_complete', q{SELECT idem_complete(c) FROM idem_status('pay', 'none') c}, 'none ask absent;none complete 22023'],
	['idem_complete_key', q{SELECT idem_complete_key('pay', 'none', NULL)}, 'none complete 22023'],
	['idem_complete_key', q{SELECT idem_complete_key('pay', 'none', 1)}, 'none complete ID001'],
	['idem_complete_key', q{SELECT idem_complete_key('small', 'none', 1, '"long"')}, 'none complete ID004'],
	['idem_fail', q{SELECT idem_fail(c, '1') FROM idem_status('pay', 'none') c}, 'none ask absent;none fail 22023'],
	['idem_fail_key', q{SELECT idem_fail_key('pay', 'none', 1, '1')}, 'none fail ID001'],
	['idem_fail_key', q{SET ROLE nobody; SELECT idem_fail_key('bound', 'none', 1, '1')}, 'none fail 42501'],
	['idem_unsure', q{SELECT idem_unsure(c) FROM idem_status('pay', 'none') c}, 'none ask absent;none mark as unsure 22023'],
	['idem_unsure_key', q{SELECT idem_unsure_key('job', 'y2', 1)}, 'y2 mark as unsure ID002'],
	['idem_unsure_key', q{SELECT idem_unsure_key('job', 'y2', (SELECT fence FROM idempotency_internal.record WHERE key = 'y2'))}, 'y2 mark as unsure unknown 1'],
	['idem_renew', q{SELECT idem_renew(c, '1 s') FROM idem_status('pay', 'none') c}, 'none ask absent;none renew 22023'],
	['idem_renew_key', q{SELECT idem_renew_key('job', 'y2', 1, '0')}, 'y2 renew 22023'],
	['idem_release', q{SELECT idem_release(c) FROM idem_status('pay', 'none') c}, 'none ask absent;none release 22023'],
	['idem_release_key', q{SELECT idem_release_key('pay', 'none', 1)}, 'none release ID001'],
	['idem_status', q{SELECT idem_status('pay', '')}, 'ask 22023'],
	['idem_status', q{SET ROLE nobody; SELECT idem_status('bound', 'z')}, 'z ask 42501'],
	['idem_once', q{SELECT idem_once('v7', 'z1')}, 'z1 do once 22023'],
	['idem_once', q{SELECT idem_once('job', 'y2')}, 'y2 do once 55P03'],
	['idem_once', q{SELECT idem_once('pay', 'z2')}, 'z2 do once execute succeeded 1'],
	['idem_once_many', q{SELECT idem_once_many('pay', '{z3,NULL}')}, 'do once 22023'],
	['idem_once_many', q{SELECT idem_once_many('pay', NULL)}, 'do once 22023'],
	['idem_once_many', q{SELECT idem_once_many('pay', ARRAY['z2', 'z4'])}, 'z2 do once replay succeeded 1;z4 do once execute succeeded 1'],
	['idem_once_many', q{SELECT idem_once_many('pay', ARRAY['z2', ''])}, 'do once 22023'],
	['idem_once_many', q{SELECT idem_once_many('job', ARRAY['y2'])}, 'y2 do once 55P03'],
	['idem_run', q{SELECT idem_run('pay', 'r1', '1', 'twice(jsonb)')}, 'r1 run execute succeeded 1 7'],
	['idem_run', q{SELECT idem_run('pay', 'r1', '1', 'twice(jsonb)')}, 'r1 run replay succeeded 1 7'],
	['idem_run', q{SELECT idem_run('pay', 'r1', '2', 'twice(jsonb)')}, 'r1 run mismatch succeeded 1'],
	['idem_run', q{SELECT idem_run('pay', 'r2', '1', 'fails(jsonb)')}, 'r2 run execute failed 1'],
	['idem_run', q{SELECT idem_run('pay', 'r3', '1', NULL)}, 'r3 run 22023'],
	['idem_run', q{SELECT idem_run('pay', 'r4', '1', 'jsonb_typeof(jsonb)')}, 'r4 run 22023'],
	['idem_run', q{SELECT idem_run('pay', 'r5', '1', 'inner_claim(jsonb)')}, 'claim 22023;r5 run execute failed 1'],
	['idem_cancel', q{SELECT idem_cancel('pay', '')}, 'cancel 22023'],
	['idem_cancel', q{SELECT idem_cancel('pay', 'c1')}, 'c1 cancel replay failed 0'],
	['idem_reconcile', q{SELECT idem_reconcile('job', 0)}, 'reconcile 22023'],
	['idem_reconcile', q{SELECT idem_reconcile('job', 1, '0')}, 'reconcile 22023'],
	['idem_reconcile', q{SET default_transaction_read_only = on; SELECT idem_reconcile('job')}, 'reconcile 25006'],
	['idem_reconcile', q{SELECT idem_reconcile()}, 'y2 reconcile unknown unknown 1'],
	['idem_resolve', q{SELECT idem_resolve('job', 'y2', 'nonsense')}, 'y2 resolve 22023'],
	['idem_resolve', q{SELECT idem_resolve('job', 'y2', 'succeeded', fence => 1)}, 'y2 resolve ID002'],
	['idem_resolve', q{SELECT idem_resolve('job', 'y2', 'succeeded')}, 'y2 resolve succeeded 1'],
	['idem_redact', q{SELECT idem_redact('pay', 'none')}, 'none redact ID001'],
	['idem_redact', q{SELECT idem_redact('pay', 'r1')}, 'r1 redact succeeded 1'],
);
value('TRUNCATE idempotency_internal.request_log');
for my $i (0 .. $#requests)
{
	$node->psql('postgres', "SET idempotency.request_id = 'n$i'; $requests[$i][1]");
}
value(q{SELECT idem_status('pay', 'the last one')});
ok($node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM idem_request_log WHERE key = 'the last one')}), 'all is written');
for my $i (0 .. $#requests)
{
	is(value(qq{SELECT string_agg(concat_ws(' ', key, call, verdict, state, error, attempt, resource), ';' ORDER BY at) FROM idem_request_log WHERE request = 'n$i'}),
		$requests[$i][2], "one line: $requests[$i][1]");
}
is(value(q{SELECT bool_and((id IS NULL) = (key IS NULL OR length(key) > 255 OR principal IS NULL)) FROM idem_request_log}), 't',
	'there is an id as soon as it is known whose key it is');
# Whatever a client puts into its headers, the log can be read: what is too long
# ends with a whole character, and a value is not taken for the header's name.
value(q{SET request.headers = '{"x-forwarded-for": "x-request-id", "x-request-id" : "req-3"}'; SELECT idem_status('pay', 'spoofed')});
value(q{SELECT set_config('request.headers', '{"x-request-id": "' || repeat('a', 127) || 'éé"}', false), idem_status('pay', 'cut')});
value(q{SET request.headers = '{"x-request-id": ["req-4"], "b": }'; SELECT idem_status('pay', 'no string')});
ok($node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM idem_request_log WHERE key = 'no string')}), 'odd headers are no obstacle');
is(value(q{SELECT request FROM idem_request_log WHERE key = 'spoofed'}), 'req-3', 'the header is found behind a value of its name');
is(value(q{SELECT request = repeat('a', 127) FROM idem_request_log WHERE key = 'cut'}), 't', 'a header is cut between characters');
is(value(q{SELECT count(*), count(request) FROM idem_request_log WHERE key = 'no string'}), '1|0', 'one that is no string is none');

my %tested = map { $_->[0] => 1 } @requests;
my @functions = split /\n/, value(q{SELECT proname FROM pg_proc WHERE proname LIKE 'idem\_%' AND pronargs > 0 AND (proargnames[1] IN ('operation', 'claim'))
	AND proname NOT IN ('idem_define', 'idem_policy', 'idem_id') ORDER BY 1});
is_deeply([ grep { !$tested{$_} } @functions ], [], 'no request is forgotten');
value(q{TRUNCATE idempotency_internal.request_log});

#
# Long texts, other encodings of what is logged, odd pointers.
#
my $long = 'ä' x 120;
value("SELECT idem_status('pay', '$long', '$long'); SET application_name = '$long'; SET idempotency.request_id = '${long}$long'; SELECT idem_status('pay', 'k4', '$long')");
ok(written(2), 'long texts');
is(value("SELECT count(*) FROM idem_request_log WHERE principal = '$long' AND key IN ('k4', '$long')"), 2, 'are kept');
for my $case (['/a/1', '{"a": [1, "two"]}', 'two'], ['/a~1b', '{"a/b": true}', 'true'], ['/a', '{"a": {}}', ''], ['/0', '"scalar"', ''])
{
	my ($pointer, $result, $found) = @$case;

	value("SELECT idem_define('pay', '{\"resource_pointer\": \"$pointer\"}')");
	value("SELECT idem_complete(c, '$result') FROM idem_claim('pay', 'p$pointer') c");
	$node->poll_query_until('postgres', "SELECT count(*) = 2 FROM idem_request_log WHERE key = 'p$pointer'");
	is(value("SELECT coalesce(max(resource), '') FROM idem_request_log WHERE key = 'p$pointer'"), $found, "pointer $pointer in $result");
}

#
# More than there is room for, while no worker comes: dropped and counted.
#
value('ALTER SYSTEM SET idempotency.worker = off; SELECT pg_reload_conf()');
$node->poll_query_until('postgres', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker')");
value("SELECT idem_status('pay', 'many') FROM generate_series(1, 1000)");
is(value('SELECT waiting || \' \' || dropped FROM idem_stat_request_lines()'), '200 800', 'what there is no room for is dropped and counted');
value('ALTER SYSTEM RESET idempotency.worker; SELECT pg_reload_conf()');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 200 FROM idem_request_log WHERE key = 'many'}), 'the rest is written');

#
# Half full: the launcher is woken long before its nap is over.
#
value(q{ALTER SYSTEM SET idempotency.naptime = '1 h'; SELECT pg_reload_conf()});
value("SELECT idem_status('pay', 'soon') FROM generate_series(1, 120)");
ok($node->poll_query_until('postgres', q{SELECT count(*) >= 100 FROM idem_request_log WHERE key = 'soon'}), 'a half full ring is emptied at once');
#
# Lines that cannot be written do not keep the room of others, nor the launcher
# busy, once the ring is half full.
#
value(q{CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%', 'b' || repeat('é', 400); END $$;
	CREATE TRIGGER boom BEFORE INSERT ON idempotency_internal.request_log FOR EACH ROW EXECUTE FUNCTION boom()});
my $dropped = value('SELECT dropped FROM idem_stat_request_lines()');
value("SELECT idem_status('pay', 'stuck') FROM generate_series(1, 150)");
ok($node->poll_query_until('postgres', "SELECT dropped >= $dropped + 100 AND waiting < 100 FROM idem_stat_request_lines()"),
	'lines that cannot be written are dropped when the ring is half full');
is(value(q{SELECT last_error = 'b' || repeat('é', 127) FROM idem_stat_worker WHERE database = 'postgres'}), 't',
	'why is said, cut between characters');
value('DROP TRIGGER boom ON idempotency_internal.request_log');
value('ALTER SYSTEM RESET idempotency.naptime; SELECT pg_reload_conf()');

#
# A database without the extension any more, or not visited: no line stays.
#
value('CREATE DATABASE other');
value('CREATE EXTENSION idempotency', 'other');
value(q{SELECT idem_define('pay', '{"log_requests": true}')}, 'other');
value(q{SELECT idem_status('pay', 'k') FROM generate_series(1, 10); DROP EXTENSION idempotency}, 'other');
ok($node->poll_query_until('postgres', 'SELECT waiting = 0 FROM idem_stat_request_lines()'), 'lines of databases without the extension go');
value(q{DROP DATABASE other});

#
# Retention of its own: a row of the table goes when the time of all its lines is
# over; a line whose time is over is not shown until then.
#
value(q{ALTER SYSTEM SET idempotency.request_log_retention = '7d'; SELECT pg_reload_conf()});
ok($node->poll_query_until('postgres', q{SELECT setting = '10080' FROM pg_settings WHERE name = 'idempotency.request_log_retention'}),
	'its unit is minutes, and any unit of time is understood');
value(q{SELECT idem_status('pay', 'old-' || i) FROM generate_series(1, 2) i});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM idem_request_log WHERE key LIKE 'old-%'}), 'two lines');
my $two = q{(SELECT ctid FROM idempotency_internal.request_log b WHERE position('old-1' IN packed) > 0 AND position('old-2' IN packed) > 0)};
value(qq{UPDATE idempotency_internal.request_log SET packed = overlay(packed placing decode(repeat('00', 8), 'hex') from 1 for 8) WHERE ctid = $two});
is(value(q{SELECT count(*) FROM idem_request_log WHERE key LIKE 'old-%'}), 1, 'the time of one of them is over: it is not shown');
value(qq{UPDATE idempotency_internal.request_log SET last_at = now() - interval '8 days', first_at = now() - interval '8 days' WHERE ctid = $two});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idempotency_internal.request_log WHERE position('old-' IN packed) > 0}), 'both are over: the row goes');
cmp_ok(value('SELECT count(*) FROM idem_request_log'), '>', 4, 'others stay');
is(value('SELECT count(*) FROM idempotency_internal.request_log WHERE lines = 0'), 0, 'no row is empty');
is(value('SELECT sum(lines) = (SELECT count(*) FROM idem_request_log) FROM idempotency_internal.request_log'), 't', 'rows say how many lines they have');

#
# A span of time.
#
is(value(q{WITH t AS (SELECT min(at) AS first, max(at) AS last, count(*) AS n FROM idem_request_log)
	SELECT (SELECT count(*) FROM idem_requests(first)) = n, (SELECT count(*) FROM idem_requests(first, last)) < n,
		(SELECT count(*) FROM idem_requests(last)) >= 1, (SELECT count(*) FROM idem_requests('-infinity', first)), (SELECT count(*) FROM idem_requests(NULL)) FROM t}),
	't|t|t|0|0', 'idem_requests: since, included, until, excluded');
value(q{CREATE ROLE m LOGIN; SELECT idem_grant('m', 'monitor'); CREATE ROLE n LOGIN});
is(value(q{SET ROLE m; SELECT (SELECT count(*) FROM idem_requests('-infinity')) = (SELECT count(*) FROM idem_request_log)}), 't', 'monitors read it');
isnt($node->psql('postgres', q{SET ROLE n; SELECT idem_requests('-infinity')}, on_error_stop => 1), 0, 'others do not');

#
# Rows made by hand lead nobody out of them.
#
for my $packed (q{'\x00'}, q{decode(repeat('ff', 200), 'hex')}, q{decode(repeat('00', 40), 'hex')},
	q{(SELECT substr(packed, 1, length(packed) - 1) FROM idempotency_internal.request_log LIMIT 1)})
{
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT count(*) FROM idempotency_internal.request_lines($packed)");
	like($err, qr/XX001/, "no row of the log: $packed");
}

#
# Many sessions, lines short and long, a ring that is often full, and a worker
# that empties it meanwhile: each line is in the table once, or counted.
#
$node->append_conf('postgresql.conf', "idempotency.request_log_size = 50\nidempotency.naptime = 1");
$node->restart;
value(q{TRUNCATE idempotency_internal.request_log; SELECT idem_define('pay', '{"resource_pointer": null}')});
my $script = PostgreSQL::Test::Utils::tempdir() . '/ask.sql';
append_to_file($script, <<'END');
\set n random(1, 250)
\set m random(1, 250)
SET idempotency.request_id = :client_id;
SELECT idem_status('pay', repeat('k', :n), repeat('p', :m));
END
$node->command_ok([ 'pgbench', '-n', '-c', '8', '-j', '2', '-t', '500', '-f', $script, $node->connstr('postgres') ], 'many ask');
ok($node->poll_query_until('postgres', 'SELECT waiting = 0 FROM idem_stat_request_lines()'), 'all room is given back');
is(value('SELECT logged + dropped FROM idem_stat_request_lines()'), 4000, 'every line is written or counted as dropped');
is(value('SELECT logged = (SELECT count(*) FROM idem_request_log) FROM idem_stat_request_lines()'), 't', 'those that are written are in the table');
cmp_ok(value('SELECT logged FROM idem_stat_request_lines()'), '>', 0, 'some are');
cmp_ok(value('SELECT dropped FROM idem_stat_request_lines()'), '>', 0, 'and some were dropped');
is(value(q{SELECT count(*) FROM idem_request_log WHERE key ~ '[^k]' OR principal ~ '[^p]' OR request !~ '^[0-7]$'
	OR id IS DISTINCT FROM idem_id(operation, key, principal)}), 0, 'no line is torn');

#
# Without preload.
#
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
value(q{SELECT idem_status('pay', 'k1')});
is(value('SELECT size IS NULL FROM idem_stat_request_lines()'), 't', 'without preload: nothing, and no error');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal/, 'no crash');
done_testing();
