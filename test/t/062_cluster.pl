# Records that are distributed while calls are under way, what waits for a move and
# what does not, and what is left of a cluster in a dump.  What Citus says is said
# by test/lib/cluster.sql.

use strict;
use warnings;

use FindBin;
use IdempotencyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', init => { allows_streaming => 1 }, conf => <<'END');
shared_preload_libraries = 'idempotency'
idempotency.naptime = 50
idempotency.databases = 'postgres'
test.result = 'f'
autovacuum = off
END

$node->safe_psql('postgres', slurp_file("$FindBin::RealBin/../lib/cluster.sql"));
$node->safe_psql('postgres', <<'END');
	INSERT INTO pg_dist_node VALUES ('here', 5432, 0, true, 'primary');
	CREATE TABLE orders (tenant text, n int);
	INSERT INTO pg_dist_partition VALUES ('orders', 'h', 'tenant', 's');
	INSERT INTO pg_dist_shard VALUES ('orders', 1, '0', 'm'), ('orders', 2, 'n', 'z');
	INSERT INTO pg_dist_placement VALUES (1, 1, 0), (2, 1, 0);
	SELECT idem_define('gone', '{"retention": "1 h"}');
END

my $waiting = "SELECT count(*) = %d FROM pg_locks WHERE NOT granted AND relation = 'idempotency_internal.record'::regclass";
my $shard = sub { return $node->safe_psql('postgres', "SELECT get_shard_id_for_distribution_column('idempotency_internal.$_[0]'::regclass, '$_[1]'::text)"); };

# --- distributed while calls are under way ---------------------------------------------

my ($admin, $owner, $other, $reader, $worker) = sessions($node, 5);

# each session has looked for placed_record, and found none
$_->run("SELECT idem_status('pay', 'before')") foreach $owner, $other, $reader, $worker;
$owner->run("BEGIN; SELECT set_config('test.c', idem_claim('pay', 'open', '1')::text, false)");
$admin->send("SELECT idem_distribute('orders')");
wait_for_sql($node, sprintf $waiting, 1);
$other->send("SELECT idem_complete(idem_claim('pay', 'waits', '1'), '1')");
$reader->send("SELECT state FROM idem_status('pay', 'open')");
wait_for_sql($node, sprintf $waiting, 3);
$owner->run("SELECT idem_complete(current_setting('test.c')::idem_answer, '\"order\"'); COMMIT");
$_->result foreach $admin, $other, $reader;
is($admin->sqlstate, '00000', 'C20: distributed, once the open claim had ended');
is($reader->output, 'succeeded', 'C20: a call that waited finds what was moved');
is($other->sqlstate, '00000', 'C20: another that waited claims');
is(one_value($node, 'SELECT count(*) FROM idempotency_internal.record'), 0, 'C20: and writes where records are now');
is(one_value($node, sprintf 'SELECT string_agg(key, \' \' ORDER BY key) FROM idempotency_internal.placed_record_%s', $shard->('placed_record', 'a')), 'open waits', 'C20: both are in their shard');
is($worker->value("SELECT verdict FROM idem_accept('render', 'r', '1')"), 'execute', 'C20: the work list');
is($worker->value("SELECT verdict FROM idem_start_next('render', 1, '1 h')"), 'execute', 'C20: is there, too');
is(one_value($node, 'SELECT count(*) FROM idempotency_internal.open_work'), 0, 'C20: and nowhere else');

# --- what a move waits for, and what does not wait for a move --------------------------

$node->safe_psql('postgres', <<'END');
	SELECT count(idem_complete(idem_claim('gone', 'k' || n, '1', p), '1')) FROM generate_series(1, 300) n, unnest('{acme,zoe}'::text[]) p;
	SELECT idem_define('gone', '{"retention": "0"}');
END
my ($mover, $purger) = sessions($node, 2);
my $tables = join ', ', map { 'idempotency_internal.placed_record_' . $shard->('placed_record', $_) } 'a', 'z';
my $left = sub { return one_value($node, "SELECT count(*) FROM idempotency_internal.placed_rows() WHERE operation = 'gone'"); };

$node->safe_psql('postgres', 'ALTER SYSTEM SET idempotency.worker = off');
$node->reload;
$node->safe_psql('postgres', 'UPDATE ' . (split /, /, $tables)[$_] . " SET forget_at = now() - interval '1 min', expires_at = forget_at WHERE operation = 'gone'") foreach 0, 1;
$mover->run(sprintf 'BEGIN; SELECT lock_shard_metadata(7, ARRAY[%s, %s])', $shard->('placed_record', 'a'), $shard->('placed_work', 'a'));
is($purger->value('SELECT idem_purge()'), 0, 'C21: purge does not wait for a move, nor go around it');
$mover->run('COMMIT');
is($purger->value('SELECT idem_purge(100)'), 100, 'C21: when it has ended, purge goes on');

# a table that is damaged keeps the others from nothing
my $index = 'idempotency_internal.placed_record_' . $shard->('placed_record', 'a') . '_forget_at_idx';
my $definition = one_value($node, "SELECT pg_get_indexdef('$index'::regclass)");
$node->safe_psql('postgres', "DROP INDEX $index");
$node->safe_psql('postgres', 'ALTER SYSTEM RESET idempotency.worker');
$node->reload;
ok($node->poll_query_until('postgres', "SELECT count(*) <= 300 AND bool_and(principal = 'acme') FROM idempotency_internal.placed_rows() WHERE operation = 'gone'"), 'C22: the worker purges the shards that are in order');
ok($node->poll_query_until('postgres', "SELECT left_behind > 0 FROM idem_stat_worker WHERE database = 'postgres'"), 'C22: and says that it left one behind');
$node->safe_psql('postgres', $definition);
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM idempotency_internal.placed_rows() WHERE operation = 'gone'"), 'C22: until it is mended');
is(one_value($node, "SELECT purged_total FROM idem_stat_worker WHERE database = 'postgres'"), 500, 'C22: which its progress shows');

# --- prepared transactions ---------------------------------------------------------------

$owner->run("BEGIN; SELECT idem_complete(idem_claim('pay', 'prepared', '1'), '1'); PREPARE TRANSACTION 'p'");
$mover->send(sprintf 'BEGIN; SELECT lock_shard_metadata(7, ARRAY[%s]); COMMIT', $shard->('placed_record', 'a'));
wait_for_sql($node, "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'");
$owner->run("COMMIT PREPARED 'p'");
$mover->result;
is($mover->sqlstate, '00000', 'C23: a move waits for a prepared transaction');

# --- a standby ---------------------------------------------------------------------------

# it can take no lock that keeps shards as they are
my $standby = PostgreSQL::Test::Cluster->new('standby');
$node->backup('copy');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay', $node->lsn('write'));
is(one_value($standby, "SELECT result FROM idem_status('pay', 'open')"), '"order"', 'C25: a standby answers');
is(one_value($standby, "SELECT string_agg(key, ' ') FROM idem_list('acme')"), 'r', 'C25: and lists');
$standby->stop;

# --- a dump --------------------------------------------------------------------------------

my $dump = PostgreSQL::Test::Utils::tempdir . '/dump';

# Citus dumps the rows with the table itself
$node->safe_psql('postgres', <<'END');
	DROP TRIGGER stand_in_route ON idempotency_internal.placed_record;
	DROP TRIGGER stand_in_route ON idempotency_internal.placed_work;
	INSERT INTO idempotency_internal.placed_record SELECT r.*, principal FROM idempotency_internal.placed_rows() r;
	INSERT INTO idempotency_internal.placed_work SELECT w.*, principal FROM idempotency_internal.placed_entries() w;
END
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-T', 'idempotency_internal.placed_*_*', '-t', 'idempotency_internal.placed_*', '-e', 'idempotency', $node->connstr('postgres') ], 'C24: dumped');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->safe_psql('restored', 'CREATE EXTENSION idempotency');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('restored'), '-n', 'idempotency_internal', '-t', 'placed_record', '-t', 'placed_work', $dump ], 'C24: restored');
my $restored = session($node, dbname => 'restored');

is($restored->try("SELECT idem_status('pay', 'open')"), '55000', 'C24: what was distributed is not used as it is');
like($restored->error, qr/HINT:.*SELECT idempotency_internal\.gather_placed\(\)/, 'C24: and the hint says what to do');
is($restored->value('SELECT count(*) FROM idem_record'), 4, 'C24: the views show it');
is($restored->value('SELECT idempotency_internal.gather_placed()'), 4, 'C24: which does');
is($restored->value("SELECT result FROM idem_status('pay', 'open')"), '"order"', 'C24: all is known again');
is($restored->value("SELECT state FROM idem_list('acme')"), 'processing', 'C24: and what is under way');

$node->stop;
done_testing();
