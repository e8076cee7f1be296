# Counters and views: what they show, who may see it, and that neither a
# rollback nor a lack of room or of preload disturbs them.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = PostgreSQL::Test::Cluster->new('watch');
$node->init;
$node->append_conf('postgresql.conf', <<'END');
shared_preload_libraries = 'idempotency'
idempotency.principal = 'acme'
idempotency.naptime = 50
idempotency.max_operations = 4
max_prepared_transactions = 5
END
$node->start;

sub value { return $node->safe_psql($_[1] // 'postgres', $_[0]); }

# The counters of an operation that are not zero, as "name=1 name=2".
sub counts
{
	my ($operation) = @_;

	return value(<<"END");
		SELECT string_agg(key || '=' || value, ' ' ORDER BY key)
		  FROM idem_stat_counters() c, jsonb_each_text(to_jsonb(c) - 'since' - 'operation') e
		 WHERE c.operation = '$operation' AND value <> '0' AND key <> 'wait_microseconds'
END
}

# What follows the end of a session, or waits for the horizon, is not there at once.
sub becomes
{
	my ($sql, $expected, $name) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my $got = value($sql);

	while ($got ne $expected && time < $until)
	{
		usleep(100_000);
		$got = value($sql);
	}
	is($got, $expected, $name);
	return;
}

sub refused { my ($sql, $state) = @_; my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql"); return $err =~ /$state/; }

value('CREATE EXTENSION idempotency');

#
# Each counter.
#
value(q{SELECT idem_complete(c) FROM idem_claim('a', 'k1', '{}') c});
value(q{SELECT idem_claim('a', 'k1', '{}')});
value(q{SELECT idem_claim('a', 'k1', '{"x": 1}')});
value(q{SELECT idem_fail(c, '{}', true) FROM idem_claim('a', 'k2') c});
value(q{SELECT idem_fail(c, '{}') FROM idem_claim('a', 'k2') c});
value(q{SELECT idem_claim('a', 'k2')});
value(q{BEGIN; SELECT idem_complete(c) FROM idem_claim('a', 'k3') c; ROLLBACK});
value(q{BEGIN; SELECT idem_release(c) FROM idem_claim('a', 'k4') c; COMMIT});
value(q{SELECT idem_status('a', 'k1'); SELECT idem_cancel('a', 'k5')});
ok(refused(q{SELECT idem_claim('a', 'k6')}, 'ID003'), 'a claim left open is refused');
is(counts('a'), 'cancelled=1 commits_refused=1 completed=2 executed=5 executed_again=1 failed=1 failed_retryable=1 mismatch=1 '
	. 'released=1 replayed_failed=1 replayed_succeeded=1 status_asked=1', 'answers are counted, also those rolled back');
is(value(q{SELECT requests || ' ' || executions || ' ' || requests_per_execution FROM idem_stat WHERE operation = 'a'}),
	'9 6 1.50', 'requests per execution');

value(q{SELECT idem_claim('b', 'k1', lease => '1 h', owner => 'w'); SELECT idem_claim('b', 'k1', lease => '1 h', owner => 'w')});
value(q{SELECT idem_claim('b', 'k1'); SELECT idem_claim('b', 'k1', wait => '20 ms'); SELECT idem_claim('b', 'k2', lease => '1 ms'); SELECT pg_sleep(0.01); SELECT idem_claim('b', 'k2')});
ok(refused(q{SELECT idem_complete_key('b', 'k1', 1)}, 'ID002'), 'a stale fence');
ok(refused(q{SELECT idem_resolve('b', 'k2', 'failed', fence => 1)}, 'ID002'), 'a stale fence of a reconciler');
value(q{SELECT idem_resolve('b', 'k2', 'failed')});
value(q{SELECT idem_once('b', 'k3'); SELECT idem_once('b', 'k3'); SELECT idem_accept('b', 'k4'); SELECT idem_start('b', 'k4', '1 h')});
is(counts('b'), 'accepted=1 completed=1 executed=4 handed_again=1 in_progress=2 replayed_succeeded=1 resolved=1 stale_fences=2 unknown=1 waits=1',
	'leases, waits and work that is accepted');
value(q{SELECT idem_define('c', '{"retention": "0"}'); SELECT idem_once('c', 'k1')});
ok($node->poll_query_until('postgres', q{SELECT purged = 1 FROM idem_stat WHERE operation = 'c'}), 'purged');

#
# More operations than room: one row, no error.
#
value("SELECT idem_once('many_$_', 'k')") for 1 .. 6;
is(value('SELECT count(*) FROM idem_stat WHERE operation IS NULL AND executed > 0'), 1, 'what there is no room for is counted in one row');
value(q{SELECT idem_define('d', '{"wait": "0"}'); SELECT idem_once('d', 'k')});
is(value(q{SELECT executed FROM idem_stat WHERE operation = 'd'}), 1, 'F10: an operation that is defined takes the room of a made-up name');
is(value(q{SELECT count(*) FROM idem_stat WHERE operation IN ('c', 'd')}), 2, 'F10: and keeps it');
value('SELECT idem_stat_reset()');
is(value('SELECT sum(requests) FROM idem_stat'), 0, 'reset');
value("SELECT idem_once('later_$_', 'k')") for 1 .. 2;
is(value(q{SELECT string_agg(operation || ' ' || executed, ', ' ORDER BY operation) FROM idem_stat WHERE operation LIKE 'later%'}), 'later_1 1, later_2 1',
	'F10: names for which nothing is counted any more make room for others');
value('SELECT idem_stat_reset()');
value(q{CREATE ROLE canonical LOGIN; SELECT idem_grant('canonical'); SET ROLE canonical; SELECT count(idem_canonical('1', 'made up ' || i)) FROM generate_series(1, 600) i});
is(value(q{SELECT count(*) FROM idem_stat WHERE operation LIKE 'made up%' OR operation IS NULL}), 0, 'F10: idem_canonical takes no room');
value(q{SET idempotency.counters = off; SELECT idem_once('a', 'k99')});
is(value('SELECT sum(requests) FROM idem_stat'), 0, 'off');
value('CREATE DATABASE other');
value('CREATE EXTENSION idempotency', 'other');
is(value('SELECT count(*) FROM idem_stat WHERE operation IS NOT NULL', 'other'), 0, 'another database sees none of it');

#
# Views.
#
is(value(q{SELECT string_agg(concat_ws(' ', operation, key, state, owner), ', ' ORDER BY key) FROM idem_open}),
	'b k1 processing w, b k4 processing', 'idem_open');
value(q{SELECT idem_claim('b', 'k8', lease => '1 ms'); SELECT pg_sleep(0.01)});
is(value(q{SELECT state FROM idem_open WHERE key = 'k8'}), 'unknown', 'and what is unknown');
is(value(q{SELECT string_agg(key || ' ' || state, ', ' ORDER BY key) FROM idem_record WHERE operation = 'a' AND key < 'k9'}),
	'k1 succeeded, k2 failed, k5 cancelled', 'idem_record');
value(q{BEGIN; SELECT id FROM idem_claim('a', 'held') c, LATERAL idem_complete(c); PREPARE TRANSACTION 'p'; });
my $holder = $node->background_psql('postgres', on_error_die => 1);
$holder->query_safe(q{SET application_name = 'shop'; BEGIN; SELECT 1 FROM idem_claim('a', 'open')});
is(value(q{SELECT count(*) FROM idem_stat_activity WHERE idem_id('a', 'open')::text LIKE '%' || id_tail
	AND application_name = 'shop' AND age > '0' AND idle >= '0' AND state = 'idle in transaction'}), 1, 'idem_stat_activity');
$holder->quit;
value(q{ROLLBACK PREPARED 'p'});
becomes('SELECT count(*) FROM idem_stat_activity', 0, 'nothing is left of it');

#
# Who holds the horizon: sessions of other roles, prepared transactions, slots;
# and how long the last visit took.
#
value('CREATE ROLE reader LOGIN SUPERUSER; CREATE ROLE watcher LOGIN');
value("SELECT idem_grant('watcher', 'monitor')");
my $horizon = q{SELECT horizon_holder FROM idem_stat_worker WHERE database = 'postgres'};
my $reader = $node->background_psql('postgres', on_error_die => 1);
$reader->query_safe(q{SET ROLE reader; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1});
my $pid = $reader->query_safe('SELECT pg_backend_pid()');
value('CREATE TABLE t (); DROP TABLE t') for 1 .. 2;
becomes("SET ROLE watcher; $horizon", "session $pid", 'N12: a session holds the horizon, shown to monitors');
isnt(value("SET ROLE watcher; SELECT coalesce(max(horizon_holder), '') FROM idem_stat_worker WHERE database = 'other'"), "session $pid", 'not that of another database');
$reader->quit;
value(q{BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'left'});
value('CREATE TABLE u (); DROP TABLE u') for 1 .. 2;
becomes("SET ROLE watcher; $horizon", 'prepared transaction left', 'N12: so does a prepared transaction');
value(q{ROLLBACK PREPARED 'left'});
is(value(q{SELECT bool_and(duration >= '0' AND (state = 'running' OR duration = ended_at - started_at)) FROM idem_stat_worker WHERE visits > 0}), 't', 'duration');
ok($node->poll_query_until('postgres', q{SELECT next_visit > started_at FROM idem_stat_worker WHERE database = 'postgres'}), 'when the next visit is due');

#
# Who may see them.
#
value('CREATE ROLE m LOGIN; CREATE ROLE w LOGIN; CREATE ROLE a LOGIN; CREATE ROLE n LOGIN');
value("SELECT idem_grant('m', 'monitor'), idem_grant('w', 'worker'), idem_grant('a', 'app')");
for my $view (qw(idem_open idem_record idem_stat idem_stat_activity idem_stat_worker))
{
	my $psql = sub { return scalar $node->psql('postgres', "SET ROLE $_[0]; SELECT * FROM $view", on_error_stop => 1) };

	is($psql->('m'), 0, "monitors read $view");
	isnt($psql->($_), 0, "$_ does not") for qw(w a n);
}
isnt($node->psql('postgres', 'SET ROLE m; SELECT idem_stat_reset()', on_error_stop => 1), 0, 'monitors do not reset');

#
# Without preload.
#
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
value(q{SELECT idem_once('a', 'not preloaded'); SELECT idem_stat_reset()});
is(value('SELECT count(*) FROM idem_stat'), 0, 'without preload idem_stat is empty');
is(value('SELECT count(*) FROM idem_open'), 3, 'and the other views work');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal/, 'no crash');
done_testing();
