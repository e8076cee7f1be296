# A cluster that runs sessions on several nodes would execute a key once on each:
# CREATE EXTENSION beside a sharding extension warns, and on worker nodes claims
# are refused.  N04; a row and a table stand for the sharding extension.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('main', extension => 0, conf => "allow_system_table_mods = on\n");
my $create = sub {
	my ($out, $err);

	$node->psql('postgres', 'CREATE EXTENSION idempotency', stdout => \$out, stderr => \$err);
	return $err;
};

is($create->(), '', 'N04: by itself it warns of nothing');
$node->safe_psql('postgres', q{
	DROP EXTENSION idempotency;
	INSERT INTO pg_extension VALUES (99999, 'citus', 10, 11, false, '12.1', NULL, NULL);
});
my $warning = $create->();
like($warning, qr/WARNING:  the records of extension "idempotency" are not distributed/, 'N04: beside a sharding extension it warns');
like($warning, qr/HINT:  Run idem_distribute\(\) on the coordinator/, 'N04: and says what to do');

# --- the nodes -------------------------------------------------------------------------

my @calls = (
	"idem_claim('pay', 'claim')", "idem_accept('pay', 'accept')", "idem_start('pay', 'accepted', '1 h')",
	"idem_start_next('pay', 1, '1 h')", "idem_once('pay', 'once')", "idem_once_many('pay', '{many}')",
	"idem_run('pay', 'run', '1', 'echo(jsonb)')", "idem_cancel('pay', 'cancel')");
my $session = session($node);
$session->run("CREATE FUNCTION echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT \$1'");
$session->run("SELECT idem_accept('pay', 'accepted')");
my $states = sub {
	my @states;

	foreach my $call (@calls)
	{
		push @states, $session->try("BEGIN; SELECT $call");
		$session->run('ROLLBACK');
	}
	return "@states";
};
my $all = sub { return join ' ', ($_[0]) x @calls };

is($states->(), $all->('00000'), 'N04: no node table: all calls execute');
$session->run('CREATE TABLE pg_catalog.pg_dist_local_group (groupid integer PRIMARY KEY)');
is($states->(), $all->('00000'), 'N04: an empty one: so they do');
$session->run('INSERT INTO pg_catalog.pg_dist_local_group VALUES (0)');
is($states->(), $all->('00000'), 'N04: on the coordinator: so they do');
$session->run("SELECT set_config('test.c', c::text, false) FROM idem_claim('pay', 'finished elsewhere', lease => '1 h') c");
$session->run('UPDATE pg_catalog.pg_dist_local_group SET groupid = 3');
is($states->(), $all->('0A000'), 'N04: on a worker node: all are refused');
$session->try("SELECT $calls[-1]");
like($session->error, qr/ERROR:  cannot cancel operation "pay" on a worker node of a cluster.*^HINT:  Call it on the coordinator/ms, 'N04: with a hint');
is($session->value("SELECT state FROM idem_status('pay', 'accepted')"), 'accepted', 'N04: status answers everywhere');
is($session->try("SELECT idem_complete(current_setting('test.c')::idem_answer)"), '00000', 'N04: what was claimed can be finished');
$session->run('SET idempotency.allow_on_worker_nodes = on');
is($states->(), $all->('00000'), 'N04: the setting allows them, as the hint says');
$session->run('RESET idempotency.allow_on_worker_nodes');
$session->run('DROP TABLE pg_catalog.pg_dist_local_group');
is($states->(), $all->('00000'), 'N04: the sharding extension is gone: all calls execute');
$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
my $app = session($node, user => 'app');
$app->run('SELECT idem_new_key()');
is($app->try('SET idempotency.allow_on_worker_nodes = on'), '42501', 'N04: only a superuser may allow them');

$node->stop;
done_testing();
