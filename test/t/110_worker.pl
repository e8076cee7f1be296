# The background worker: what it does, and every event that is ordinary for it
# (CASES C62 to C65).  IDEM_ROUNDS=200 for the long form of the loops.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $loops = $ENV{IDEM_ROUNDS} || 10;

my $node = PostgreSQL::Test::Cluster->new('worker');
$node->init;
$node->append_conf('postgresql.conf', <<'END');
shared_preload_libraries = 'idempotency'
idempotency.principal = 'acme'
idempotency.naptime = 50
autovacuum = off
log_min_messages = warning
log_statement = none
END
my $began = -e $node->logfile ? -s $node->logfile : 0;
$node->start;

sub value { return $node->safe_psql($_[1] // 'postgres', $_[0]); }

sub visits { return value("SELECT visits FROM idem_stat_worker WHERE database = '$_[0]'"); }

# Wait until the worker has been in a database once more, from start to end.
sub wait_for_visit
{
	my ($database) = @_;
	my $before = visits($database) || 0;

	return $node->poll_query_until('postgres',
		"SELECT coalesce(max(visits), 0) > $before + 1 FROM idem_stat_worker WHERE database = '$database'");
}

sub define { return value("SELECT idem_define('gone', '{\"retention\": \"0\"}')", $_[0]); }

# Complete records that are to be forgotten at once.
sub expired_records
{
	my ($number, $database) = @_;

	define($database) unless value("SELECT count(*) FROM idempotency_internal.policy WHERE operation = 'gone'", $database);
	value(<<"END", $database);
		DO \$\$ BEGIN
			FOR i IN 1 .. $number LOOP
				PERFORM idem_complete(c) FROM idem_claim('gone', gen_random_uuid()::text) c;
			END LOOP;
		END \$\$;
END
	return;
}

my $count = 'SELECT count(*) FROM idempotency_internal.record';
my $gone = "$count WHERE operation = 'gone'";

sub purges
{
	my ($what, $database) = @_;

	expired_records(20, $database);
	ok($node->poll_query_until($database // 'postgres', "SELECT ($gone) = 0"), $what);
	return;
}

sub purges_around
{
	my ($what, $left) = @_;

	expired_records(5);
	ok($node->poll_query_until('postgres', "SELECT ($count) = $left"), $what);
	return;
}

sub new_log
{
	my ($from) = @_;

	return join '', grep { /ERROR|FATAL|PANIC|WARNING|TRAP|LOG:  (?!checkpoint)/ }
	  map { "$_\n" } split /\n/, slurp_file($node->logfile, $from);
}

#
# Preloaded, but without the extension anywhere: silent.  A later one is found.
#
my $log = -s $node->logfile;
sleep 1;
is(new_log($log), '', 'without CREATE EXTENSION nothing is logged');
value('CREATE EXTENSION idempotency');
purges('an extension made later is found without a restart');
is(value("SELECT state IN ('done', 'running') AND purged_total >= 20 AND last_error IS NULL
	FROM idem_stat_worker WHERE database = 'postgres'"), 't', 'the view says so');

#
# Only what is forgotten goes.
#
value('SELECT idem_complete(c) FROM idem_claim(\'kept\', \'k1\') c');
expired_records(5);
ok($node->poll_query_until('postgres', "SELECT ($count) = 1"), 'a record inside its retention stays');
value("SELECT idem_define('kept', '{\"retention\": null}')");

#
# A row held by another transaction is skipped, and goes later.
#
my $holder = $node->background_psql('postgres', on_error_die => 1);
value('ALTER SYSTEM SET idempotency.worker = off; SELECT pg_reload_conf()');
ok($node->poll_query_until('postgres',
	"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker')"),
	'the worker can be switched off');
expired_records(3);
my $held = value("SELECT id FROM idempotency_internal.record WHERE operation = 'gone' ORDER BY id LIMIT 1");
$holder->query_safe("BEGIN; SELECT 1 FROM idempotency_internal.record WHERE id = '$held' FOR UPDATE");
value('ALTER SYSTEM RESET idempotency.worker; SELECT pg_reload_conf()');
ok($node->poll_query_until('postgres', "SELECT ($count) = 2"), 'a locked row is left');
wait_for_visit('postgres');
is(value($count), 2, 'as long as it is locked');
$holder->query_safe('COMMIT');
$holder->quit;
ok($node->poll_query_until('postgres', "SELECT ($count) = 1"), 'nothing is left for ever');

#
# A record that cannot be understood is left, and does not stop the others.
#
$log = -s $node->logfile;
expired_records(1);
value("INSERT INTO idempotency_internal.policy VALUES ('broken', '{\"retention\": 12}', '[]')");
value("INSERT INTO idempotency_internal.record (id, claimed_at, forget_at, fence, attempt, state, principal, operation, key)
	SELECT gen_random_uuid(), now(), now() - interval '1 day', 1, 1, 's', 'acme', 'broken', i::text FROM generate_series(1, 3) i");
purges_around('records that fail do not stop the others', 4);
wait_for_visit('postgres') for 1 .. 2;
is(value("SELECT left_behind FROM idem_stat_worker WHERE database = 'postgres' AND state = 'done'
	UNION ALL SELECT 3 LIMIT 1"), 3, 'they are counted');
my @reports = new_log($log) =~ /cannot be purged/g;
is(scalar @reports, 1, 'and reported once');
value(q{DELETE FROM idempotency_internal.policy WHERE operation = 'broken'; SELECT idem_define('broken', '{"retention": "0"}')});
ok($node->poll_query_until('postgres', "SELECT ($count) = 1"), 'they are tried again');

#
# A table that is damaged is left, and does not stop the others.
#
value('ALTER SYSTEM SET idempotency.worker = off; SELECT pg_reload_conf()');
$node->poll_query_until('postgres', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker')");
value("SELECT idem_once('gone', '00000000-0000-7000-8000-000000000001')");
value('DROP INDEX idempotency_internal.record_s00_forget_at_idx');
value("SELECT count(idem_once('gone', 'beside ' || i)) FROM generate_series(1, 250) i");
value('ALTER SYSTEM RESET idempotency.worker; SELECT pg_reload_conf()');
ok($node->poll_query_until('postgres', "SELECT ($count) = 1"), 'a segment without its index does not stop the others');
ok($node->poll_query_until('postgres', "SELECT left_behind = 1 AND state = 'done' AND last_error LIKE 'an index of table%record_s00%'
	FROM idem_stat_worker WHERE database = 'postgres'"), 'it is reported, and the visit is no failure');
value('CREATE INDEX record_s00_forget_at_idx ON idempotency_internal.record_s00 USING brin (forget_at idempotency_internal.forget_at_ops) WITH (pages_per_range = 16)');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM idempotency_internal.record_s00'), 'and purged when it is whole again');

#
# What failed in a database of another encoding can be read in all.
#
value(q{CREATE DATABASE latin1 ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'});
value('CREATE EXTENSION idempotency', 'latin1');
value(q{INSERT INTO idempotency_internal.policy VALUES ('b' || repeat(chr(233), 40), '{"retention": 12}', '[]');
	INSERT INTO idempotency_internal.record (id, claimed_at, forget_at, fence, attempt, state, principal, operation, key)
	SELECT gen_random_uuid(), now(), now() - interval '1 day', 1, 1, 's', 'acme', 'b' || repeat(chr(233), 40), 'k'}, 'latin1');
ok($node->poll_query_until('postgres', q{SELECT last_error LIKE '%"b' || repeat('?', 40) || '"%' FROM idem_stat_worker WHERE database = 'latin1'}),
	'what cannot be shown in this encoding shows as question marks');
is(value(q{SELECT last_error LIKE '%"b' || repeat(chr(233), 40) || '"%' FROM idem_stat_worker WHERE database = 'latin1'}, 'latin1'), 't',
	'where it is known it shows as it is');
value('DROP DATABASE latin1');

#
# Read-only by default, in every way it can be set.
#
value('ALTER DATABASE postgres SET default_transaction_read_only = on');
value('SET default_transaction_read_only = off; SELECT idem_complete(c) FROM idem_claim(\'gone\', \'read-only\') c');
ok($node->poll_query_until('postgres', "SELECT ($count) = 1"), 'read-only by default: still purged');
value('SET default_transaction_read_only = off; ALTER DATABASE postgres RESET default_transaction_read_only');
value("ALTER DATABASE postgres SET search_path = nowhere; ALTER DATABASE postgres SET lock_timeout = 1;
	ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'");
value("SELECT public.idem_complete(c) FROM public.idem_claim('gone', 'settings') c");
ok($node->poll_query_until('postgres', "SELECT ($count) = 1"), 'settings of the database do not reach the worker');
value('ALTER DATABASE postgres RESET ALL');

#
# Cancel, terminate.
#
SKIP:
{
	my $victim = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency worker'";

	expired_records(3000);
	value('ALTER SYSTEM SET idempotency.purge_batch = 100');
	value('ALTER SYSTEM SET idempotency.purge_delay = 200; SELECT pg_reload_conf()');
	expired_records(2000);
	ok($node->poll_query_until('postgres', "SELECT EXISTS ($victim)"), 'a worker is there');
	value("SELECT pg_cancel_backend(pid) FROM ($victim) w");
	value('SELECT pg_sleep(0.3)');
	value("SELECT pg_terminate_backend(pid) FROM ($victim) w");
	value("SELECT pg_cancel_backend(pid), pg_reload_conf() FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'");
	value('ALTER SYSTEM RESET idempotency.purge_batch');
	value('ALTER SYSTEM RESET idempotency.purge_delay; SELECT pg_reload_conf()');
	ok($node->poll_query_until('postgres', "SELECT ($count) = 1"), 'cancelled and terminated: a later visit goes on');
	value("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'");
	purges('launcher terminated: it is started again');
}

#
# DROP EXTENSION: forgotten within a cycle, nothing in the log.  CREATE again.
#
$log = -s $node->logfile;
for (1 .. $loops)
{
	value('DROP EXTENSION idempotency');
	value('CREATE EXTENSION idempotency');
}
value('DROP EXTENSION idempotency; CREATE EXTENSION idempotency');
wait_for_visit('postgres');
value('DROP EXTENSION idempotency');
sleep 1;
is(new_log($log), '', 'DROP EXTENSION in a loop leaves nothing in the log');
value('CREATE EXTENSION idempotency');

#
# DROP DATABASE while the worker is in it.
#
value('CREATE DATABASE victim');
value('CREATE EXTENSION idempotency', 'victim');
value('ALTER SYSTEM SET idempotency.purge_batch = 10');
value('ALTER SYSTEM SET idempotency.purge_delay = 100; SELECT pg_reload_conf()');
expired_records(3000, 'victim');
ok($node->poll_query_until('postgres',
	"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker' AND datname = 'victim')"),
	'the worker is in the database');
# each gives others five seconds to leave, and fails if they do not
for my $change ('ALTER DATABASE victim RENAME TO victim2', 'CREATE DATABASE copy TEMPLATE victim2', 'DROP DATABASE victim2', 'DROP DATABASE copy')
{
	is($node->psql('postgres', $change), 0, $change);
}
value('ALTER SYSTEM RESET idempotency.purge_batch');
value('ALTER SYSTEM RESET idempotency.purge_delay; SELECT pg_reload_conf()');
ok($node->poll_query_until('postgres',
	"SELECT NOT EXISTS (SELECT FROM idem_stat_worker WHERE database IN ('victim', 'victim2', 'copy'))"),
	'and forgotten');

#
# T05: a database that is dropped between the launcher's list and its visit.
#
value('CREATE DATABASE listed');
ok($node->poll_query_until('postgres', "SELECT EXISTS (SELECT FROM idem_stat_worker WHERE database = 'listed' AND visits > 0)"), 'a database is on the list');
value('ALTER SYSTEM SET idempotency.purge_batch = 10');
value('ALTER SYSTEM SET idempotency.purge_delay = 100; SELECT pg_reload_conf()');
expired_records(2000);
my $busy = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker' AND datname = 'postgres')
	AND (SELECT state = 'running' AND purged > 0 FROM idem_stat_worker WHERE database = 'postgres')";
ok($node->poll_query_until('postgres', $busy), 'and another one is visited');
is($node->psql('postgres', 'DROP DATABASE listed'), 0, 'it is dropped before its turn');
value('ALTER SYSTEM RESET idempotency.purge_batch');
value('ALTER SYSTEM RESET idempotency.purge_delay; SELECT pg_reload_conf()');
wait_for_visit('postgres');
ok($node->poll_query_until('postgres', "SELECT ($gone) = 0"), 'the other one is purged');

#
# The extension in template1; databases come and go.
#
$node->safe_psql('template1', 'CREATE EXTENSION idempotency');
my $failed = 0;
for my $i (1 .. $loops)
{
	$failed++ if $node->psql('postgres', "CREATE DATABASE come_$i") != 0;
	expired_records(10, "come_$i") if $i % 5 == 0;
	$failed++ if $node->psql('postgres', "DROP DATABASE come_$i") != 0;
}
is($failed, 0, "$loops times CREATE and DROP DATABASE from a template that has the extension");
value('CREATE DATABASE stays');
purges('a database made from such a template is purged', 'stays');

#
# idempotency.databases
#
value("ALTER SYSTEM SET idempotency.databases = 'postgres, other'; SELECT pg_reload_conf()");
ok($node->poll_query_until('postgres',
	"SELECT array_agg(database) = '{postgres}' FROM idem_stat_worker"), 'only the databases that are named are visited');
value('ALTER SYSTEM RESET idempotency.databases; SELECT pg_reload_conf()');

#
# No slot free for a worker.
#
$node->stop('fast');
$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
$log = -s $node->logfile;
$node->start;
ok($node->poll_query_until('postgres',
	"SELECT EXISTS (SELECT FROM idem_stat_worker WHERE state IN ('done', 'failed') OR visits > 0)"), 'few slots: it lives');
$node->append_conf('postgresql.conf', 'max_worker_processes = 1');
$node->restart;
$node->poll_query_until('postgres', "SELECT EXISTS (SELECT FROM idem_stat_worker WHERE last_error LIKE 'no background%')
	OR NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency launcher')");
my @complaints = slurp_file($node->logfile, $log) =~ /no free background worker slot/g;
cmp_ok(scalar @complaints, '<=', 3, 'no free slot: said once for each database');
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;
purges('slots again: it works again');

#
# A run that has grown faster ends in the middle: the next one goes on at its pace.
#
my $running = "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'idempotency worker'";
value('ALTER SYSTEM SET idempotency.purge_batch = 10');
value('ALTER SYSTEM SET idempotency.purge_delay = 200; SELECT pg_reload_conf()');
expired_records(1000);
ok($node->poll_query_until('postgres', "SELECT ($gone) < 800"), 'late records are purged for some periods of the pace');
value('ALTER SYSTEM SET idempotency.worker = off; SELECT pg_reload_conf()');
ok($node->poll_query_until('postgres', "SELECT NOT ($running)"), 'the run ends in the middle');
value($_) for 'ALTER SYSTEM RESET idempotency.worker', 'ALTER SYSTEM RESET idempotency.purge_batch',
	'ALTER SYSTEM RESET idempotency.purge_delay', 'SELECT pg_reload_conf()';
ok($node->poll_query_until('postgres', "SELECT ($gone) = 0"), 'and the next one goes on');

#
# Fast shutdown in the middle of a purge.
#
define();
value("INSERT INTO idempotency_internal.record (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state, principal, operation, key)
	SELECT gen_random_uuid(), t, t, t, t, 1, 1, 's', 'acme', 'gone', i::text
	FROM generate_series(1, @{[ $ENV{IDEM_RECORDS} || 50000 ]}) i, LATERAL (SELECT now() - interval '1 day') AS time(t)");
$node->poll_query_until('postgres',
	"SELECT EXISTS (SELECT FROM idem_stat_worker WHERE database = 'postgres' AND state = 'running' AND purged > 0)");
# the bound is there for a worker that waits for ever; test/bench/background measures
my $started = time;
$node->stop('fast');
cmp_ok(time - $started, '<', 60, 'fast shutdown in the middle of a purge');
$node->append_conf('postgresql.conf', 'idempotency.worker = off');
$node->start;
cmp_ok(value($gone), '>', 0, 'which was not done');
$node->append_conf('postgresql.conf', 'idempotency.worker = on');
$node->reload;
purges_around('and is afterwards', 0);
$node->stop('fast');

# nothing that should not be there
unlike(slurp_file($node->logfile, $began), qr/FATAL:  (database \d+|terminating background worker)/, 'T05: what is ordinary is not FATAL');
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal/, 'no crash');

done_testing();
