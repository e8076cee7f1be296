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
is(value(q{SELECT count(*) FROM idempotency_internal.request_log l WHERE l::text LIKE '%s3cr3t%' OR l::text LIKE '%4711%'}), 0,
	'neither params nor results');
is(value('SELECT size || \' \' || waiting || \' \' || dropped FROM idem_stat_request_lines()'), '200 0 0', 'nothing waits, nothing was dropped');

#
# Long texts, other encodings of what is logged, odd pointers.
#
my $long = 'ä' x 120;
value("SELECT idem_status('pay', '$long', '$long'); SET application_name = '$long'; SET idempotency.request_id = '${long}$long'; SELECT idem_status('pay', 'k4', '$long')");
ok(written(8), 'long texts');
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
# Retention of its own.
#
value(q{ALTER SYSTEM SET idempotency.request_log_retention = '1 h'; SELECT pg_reload_conf()});
value(q{UPDATE idempotency_internal.request_log SET at = at - interval '2 hours' WHERE key <> 'k1'});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idem_request_log WHERE key <> 'k1'}), 'old lines go');
is(value('SELECT count(*) FROM idem_request_log'), 4, 'others stay');

#
# Without preload.
#
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
value(q{SELECT idem_status('pay', 'k1')});
is(value('SELECT size IS NULL FROM idem_stat_request_lines()'), 't', 'without preload: nothing, and no error');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal/, 'no crash');
done_testing();
