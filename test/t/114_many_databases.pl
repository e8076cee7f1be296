# More databases than the worker's view has room for: each is visited as often as
# the others, and not said to be missed.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $many = 260;
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

$node->wait_for_log(qr/starting background worker process "idempotency worker for database @{[200000 + $many]}"/);
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

$node->stop;
done_testing();
