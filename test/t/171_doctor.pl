# idem_doctor where it takes a restart, the worker, another session or a node of
# a cluster: each advice is followed, and the check is content then.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('main', conf => "allow_system_table_mods = on\n");
my $said = sub {
	my ($item) = @_;
	return one_value($node, "SELECT concat_ws(' | ', status, finding, advice) FROM idem_doctor() WHERE item = '$item'");
};
my $wait_for = sub {
	my ($item, $like) = @_;
	wait_for_sql($node, "SELECT concat_ws(' | ', status, finding, advice) LIKE '$like' FROM idem_doctor() WHERE item = '$item'");
	return pass("$item: $like");
};

# --- preloading and the worker -------------------------------------------------------------

is($said->('preload'), 'warn | the library is not preloaded: nothing is purged by itself, nothing is counted, calls of destinations are not limited'
	  . ' | Add idempotency to shared_preload_libraries and restart the server. Without it a scheduler has to call idem_purge().', 'not preloaded');
is($said->('worker'), 'ok | there is no worker without preloading', 'so there is no worker');
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'\nidempotency.naptime = 50\n");
$node->restart;
is($said->('preload'), 'ok | the library is preloaded', 'preloaded');
$wait_for->('worker', 'ok | the worker was here last at %');

$node->safe_psql('postgres', 'ALTER SYSTEM SET idempotency.worker = off');
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
$wait_for->('worker', 'warn | the worker is switched off | ALTER SYSTEM RESET idempotency.worker, then SELECT pg_reload_conf().%');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET idempotency.worker');
$node->safe_psql('postgres', "ALTER SYSTEM SET idempotency.databases = 'elsewhere, \"More\"'");
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
$wait_for->('worker', 'warn | the worker does not come here: % | Add postgres to idempotency.databases, or reset it, %');
$node->safe_psql('postgres', "ALTER SYSTEM SET idempotency.databases = 'elsewhere, \"postgres\"'");
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
$wait_for->('worker', 'ok | the worker was here last at %');


# what the worker has told of itself, an hour ago
my $visits = one_value($node, "SELECT pg_get_functiondef('idem_stat_visits'::regproc)");
my $tells = sub {
	my ($row) = @_;
	my $body = $visits =~ s/LANGUAGE c.*//sr;
	$node->safe_psql('postgres', "$body LANGUAGE sql AS \$\$ SELECT $row \$\$");
};
$tells->("'postgres', 'failed', NULL::int, now(), now(), interval '0', now(), 7::bigint, 0::bigint, 0::bigint, 0::bigint, now(), 3, now(), 'no space left'");
is($said->('worker'), 'fail | the worker has failed 3 times in a row: no space left | Mend what the error tells; the worker tries again by itself.', 'the worker fails');
$tells->("'postgres', 'done', NULL::int, now(), now(), interval '0', now() - interval '1 hour', 7::bigint, 0::bigint, 0::bigint, 0::bigint, now(), 0, NULL::timestamptz, NULL");
like($said->('worker'), qr/^fail \| the worker was due at .* and has not come \| Look for "idempotency" in the server's log\. /, 'the worker does not come');
$node->safe_psql('postgres', $visits);
$wait_for->('worker', 'ok | the worker was here last at %');

# --- dumps -----------------------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE ROLE owner LOGIN');
$node->safe_psql('postgres', 'ALTER DATABASE postgres OWNER TO owner');
my @dump = ('pg_dump', '-U', 'owner', '-p', $node->port, '-h', $node->host, 'postgres');
like($said->('dump'), qr/^warn \| the owner of the database, role owner, cannot dump it/, 'the owner cannot dump');
$node->command_fails(\@dump, 'which is true');
$node->command_ok([ @dump, "--exclude-table-data=idempotency_internal.*" ], 'without the records it can, as the advice says');
$node->safe_psql('postgres', 'GRANT pg_read_all_data TO owner');
is($said->('dump'), 'ok | the owner of the database, role owner, can dump it with its records', 'the advice followed');
$node->command_ok(\@dump, 'which is true, too');

# --- nodes of a cluster ----------------------------------------------------------------------

is($said->('nodes'), 'ok | the server is no node of a sharded cluster', 'no cluster');
$node->safe_psql('postgres', 'CREATE TABLE pg_catalog.pg_dist_local_group (groupid integer PRIMARY KEY)');
is($said->('nodes'), 'ok | the server is no node of a sharded cluster', 'an empty table');
$node->safe_psql('postgres', 'INSERT INTO pg_catalog.pg_dist_local_group VALUES (3)');
$node->safe_psql('postgres', 'CREATE TABLE idempotency_internal.placed_record ()');
is($said->('nodes'), 'ok | the records are distributed beside the rows of their tenants', 'a cluster whose records are distributed');
$node->safe_psql('postgres', 'DROP TABLE idempotency_internal.placed_record');
is($said->('nodes'), 'warn | this is a worker node of a sharded cluster: claims are refused here | Claim on the coordinator, or run idem_distribute() there.', 'N04: a worker node');
$node->safe_psql('postgres', 'ALTER SYSTEM SET idempotency.allow_on_worker_nodes = on');
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
$wait_for->('nodes', 'fail | keys may be claimed on every node of the cluster: % | ALTER SYSTEM RESET idempotency.allow_on_worker_nodes, then SELECT pg_reload_conf(), %');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET idempotency.allow_on_worker_nodes');
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
$node->safe_psql('postgres', 'UPDATE pg_catalog.pg_dist_local_group SET groupid = 0');
$wait_for->('nodes', 'ok | this is the coordinator of a sharded cluster; on its worker nodes claims are refused');

$node->stop;
done_testing();
