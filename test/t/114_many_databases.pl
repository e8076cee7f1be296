# More databases than the worker's view has room for: each is visited as often as
# the others, and not said to be missed.  IDEM_DATABASES=10000 for the long form,
# which says what a round of visits costs.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $many = $ENV{IDEM_DATABASES} || 260;
my $node = new_node('main', extension => 0, conf => <<'END');
autovacuum = off
log_min_messages = debug1
idempotency.naptime = '1 h'
END

# Databases that share the files of one: making so many takes a while.
$node->safe_psql('postgres', 'CREATE DATABASE one');
$node->safe_psql('one', 'CREATE EXTENSION idempotency; VACUUM FREEZE');
my $files = $node->data_dir . '/base/';
my $one = one_value($node, q{SELECT oid FROM pg_database WHERE datname = 'one'});
$node->safe_psql('postgres', 'SET allow_system_table_mods = on; INSERT INTO pg_database SELECT d.* FROM pg_database o, generate_series(1, ' . $many . ') i, '
	  . q{jsonb_populate_record(o, jsonb_build_object('oid', 200000 + i, 'datname', 'many' || i)) d WHERE o.datname = 'one'});
$node->stop;
symlink $one, $files . (200000 + $_) or die foreach 1 .. $many;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'\n");
$node->start;

sub visits
{
	my ($database) = @_;

	return scalar(() = slurp_file($node->logfile) =~ /starting background worker process "idempotency worker for database $database"/g);
}

# Seconds of a processor: of a process, and of those that it had and are over.
sub seconds_of
{
	my ($pid) = @_;
	my @stat = split ' ', slurp_file("/proc/$pid/stat") =~ s/^.*\) //r;

	return (($stat[11] + $stat[12]) / 100, ($stat[13] + $stat[14]) / 100);
}

sub megabytes_of
{
	my ($pid) = @_;

	return join ', ', map { "$_->[1] " . int($_->[0] / 1024) . ' MB' }
	  map { [ slurp_file("/proc/$pid/status") =~ /^$_:\s+(\d+)/m, $_ ] } 'VmHWM', 'RssAnon';
}

my $started = time;
my ($launcher) = one_value($node, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'});
my $server = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
my @before = seconds_of($server);
sleep 1 until slurp_file($node->logfile) =~ /starting background worker process "idempotency worker for database @{[200000 + $many]}"/
  || time > $started + 3600;
if ($ENV{IDEM_DATABASES})
{
	my @after = seconds_of($server);

	diag(sprintf '%d databases in %d s; %.1f ms of a processor for each visit, %.2f for the server, %.2f for the launcher (%s)',
		$many, time - $started, map({ 1000 * $_ / $many } $after[1] - $before[1], $after[0] - $before[0],
			(seconds_of($launcher))[0]), megabytes_of($launcher));
}
is(visits('\d+'), $many + 2, 'each database is visited');
wait_for_sql($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idempotency worker'");
is(one_value($node, q{SELECT string_agg(status || ' ' || (finding ~ 'shows so of'), ',') FROM idem_doctor() WHERE item = 'worker'}, "many$many"), 'ok true', 'the last of them is not said to be missed');

# Rounds: each ends with a database that is new.
foreach my $round (1 .. 3)
{
	$node->safe_psql('postgres', "CREATE DATABASE new$round");
	my $new = one_value($node, "SELECT oid FROM pg_database WHERE datname = 'new$round'");
	my $log = -s $node->logfile;
	$node->reload;
	$node->wait_for_log(qr/starting background worker process "idempotency worker for database $new"/, $log);
}
is(visits('\d+'), $many + 2 + 3, 'none is visited again before its time, whether there is room for it or not');
unlike(slurp_file($node->logfile), qr/ (WARNING|ERROR|FATAL|PANIC): /, 'no visit fails');

$node->stop;
done_testing();
