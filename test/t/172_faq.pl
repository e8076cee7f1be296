# docs/faq.md: every symptom is what its cause gives, and goes with its cure.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', extension => 0, conf => "idempotency.principal = ''\n");
$node->safe_psql('postgres', 'CREATE SCHEMA idempotency');
$node->safe_psql('postgres', 'CREATE EXTENSION idempotency SCHEMA idempotency');
$node->safe_psql('postgres', "CREATE ROLE $_ LOGIN") foreach qw(app other);
my $app = session($node, user => 'app');
my $super = session($node, set => { search_path => 'public, idempotency', 'idempotency.principal' => 'acme' });
my $page = slurp_file('docs/faq.md');
my %seen;

# What a statement raises, by a page that has a line about it.
sub raises
{
	my ($session, $sql, $sqlstate, $message, $name) = @_;

	is($session->try($sql), $sqlstate, "$name: $sqlstate");
	like($session->error, $message, 'with that message');
	like($page, qr/^\|.*`$sqlstate`/m, 'the page has it');
	$seen{$sqlstate} = 1;
	$session->try('ROLLBACK');
	return;
}

sub answers
{
	my ($session, $sql, $value, $name) = @_;
	return is($session->value($sql), $value, $name);
}

# --- it cannot be called -----------------------------------------------------------------

raises($app, "SELECT idem_claim('op', 'k')", '42883', qr/function idem_claim\(unknown, unknown\) does not exist/, 'schema not in the search_path');
$node->safe_psql('postgres', 'ALTER ROLE app SET search_path = public, idempotency');
raises($app, "SELECT idempotency.idem_claim('op', 'k')", '42501', qr/permission denied for schema|permission denied for function/, 'no tier');
$super->run("SELECT idem_grant('app')");
$app = session($node, user => 'app');
raises($app, "SELECT idem_claim('op', 'k')", '22023', qr/no principal for operation "op"/, 'no principal');
answers($app, "BEGIN; SET LOCAL idempotency.principal = 'acme'; SELECT verdict FROM idem_claim('op', 'k', lease => '1 h'); COMMIT", 'execute', 'with SET LOCAL');
answers($app, "SELECT verdict FROM idem_claim('op', 'k', principal => 'acme')", 'in_progress', 'or the argument');
$app->run("SET idempotency.principal = 'acme'");
raises($app, "SELECT idem_claim('op', '019a0000-0000-7000-8000-000000000001'::uuid, '{}'::jsonb)", '42883', qr/function idem_claim\(unknown, uuid, jsonb\) does not exist/, 'N06: a key bound as uuid');
answers($app, "BEGIN; SELECT verdict FROM idem_claim('op', '019a0000-0000-7000-8000-000000000001'::uuid::text, '{}'::jsonb); ROLLBACK", 'execute', 'N06: as text');
is($super->value("SELECT count(*) FROM (SELECT proname FROM pg_proc WHERE proname LIKE 'idem\\_%' GROUP BY 1 HAVING count(*) > 1) x"), 0, 'N06: no name is overloaded for it, which literals would be ambiguous by');
raises($app, "SELECT idem_claim('op', 'k', '{}'::text)", '42883', qr/function idem_claim\(unknown, unknown, text\) does not exist/, 'params bound as text');
answers($app, "BEGIN; SELECT verdict FROM idem_claim('op', 'p', '{}'::text::jsonb); ROLLBACK", 'execute', 'with a cast');
$super->run(q{SELECT idem_define('tellers', '{"role": "other"}')});
raises($app, "SELECT idem_claim('tellers', 'k')", '42501', qr/not permitted to use operation "tellers" for this principal/, 'role of the operation');
raises($app, "BEGIN READ ONLY; SELECT idem_claim('op', 'k')", '25006', qr/cannot claim operation "op"/, 'read-only');

# --- COMMIT or a completion is refused -----------------------------------------------------

raises($app, "SELECT idem_claim('op', 'alone')", 'ID003', qr/claim of operation "op"/, 'an atomic claim without BEGIN');
answers($app, "BEGIN; SELECT idem_complete(c, '1') FROM idem_claim('op', 'alone') c; COMMIT", '1', 'with it');
$app->run("BEGIN; SELECT idem_claim('op', 'forgotten')");
raises($app, 'COMMIT', 'ID003', qr/claim of operation "op"/, 'a forgotten completion');
$app->run("BEGIN; SELECT idem_claim('op', 'forgotten')");
answers($app, 'SELECT key FROM idem_left_open()', 'forgotten', 'N03: idem_left_open lists it');
raises($app, 'SET CONSTRAINTS ALL IMMEDIATE', 'ID003', qr/claim of operation "op"/, 'N03: a test that rolls back asks');
$app->run("BEGIN; SELECT idem_claim('op', 'rolled back'); ROLLBACK");
raises($app, "SELECT idem_complete_key('op', 'rolled back', 1)", 'ID001', qr/no open claim/, 'a claim that was rolled back');
$app->claim("'op', 'other', lease => '1 h', principal => 'them'");
raises($app, "SELECT idem_complete_key('op', 'other', :c_fence)", 'ID001', qr/no open claim/, 'of another principal');
answers($app, "SELECT idem_complete_key('op', 'other', :c_fence, '2', principal => 'them')", '2', 'with the same');
$app->claim("'op', 'stale', lease => '1 h'");
raises($app, "SELECT idem_complete_key('op', 'stale', :c_fence - 1, '1')", 'ID002', qr/./, 'a stale fence');
$app->run("SELECT idem_complete_key('op', 'stale', :c_fence, '1')");
$super->run('CREATE TABLE business (n int)');
$super->run('GRANT ALL ON business TO app');
$app->run("BEGIN; INSERT INTO business VALUES (1); SELECT idem_complete_key('op', 'stale', :c_fence, '1')");
raises($app, 'COMMIT', 'ID002', qr/already completed/, 'a transaction that runs a second time');
answers($app, "SELECT verdict FROM idem_claim('op', 'stale')", 'replay', 'claimed again it replays');

$super->run(q{SELECT idem_define('rr', '{"on_lease_expiry": "retry"}')});
$app->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM business');
$super->run("SELECT idem_unsure(idem_claim('rr', 'k', lease => '1 h'))");
raises($app, "SELECT idem_claim('rr', 'k')", '40001', qr/could not serialize access/, 'REPEATABLE READ');
answers($app, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT verdict FROM idem_claim('rr', 'k'); ROLLBACK", 'execute', 'run again');

# --- the answer is not the expected one ---------------------------------------------------------

answers($app, "BEGIN; SELECT (idem_claim('op', 'twice')).verdict; SELECT (idem_claim('op', 'twice')).verdict, (idem_claim('op', 'twice')).holder = pg_backend_pid(); ROLLBACK", 'execute in_progress|t', 'claimed twice in one transaction');
my $idle = session($node, user => 'app', set => { 'idempotency.principal' => 'acme' });
$idle->run("BEGIN; SELECT idem_claim('op', 'held')");
answers($app, "SELECT verdict FROM idem_claim('op', 'held')", 'in_progress', 'a session idle in a transaction');
answers($app, "SELECT value FROM idem_explain('op', 'held') WHERE fact = 'holder'", 'pid ' . $idle->pid . ', role app', 'idem_explain names it');
$super->run("ALTER ROLE app SET idle_in_transaction_session_timeout = '10 ms'");
$idle->run('ROLLBACK');
my $timed = session($node, user => 'app', set => { 'idempotency.principal' => 'acme' });
$timed->send("BEGIN; SELECT idem_claim('op', 'held')");
wait_for_sql($node, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $timed->pid);
answers($app, "BEGIN; SELECT verdict FROM idem_claim('op', 'held'); ROLLBACK", 'execute', 'the time-out frees the key');
$app->run("SELECT verdict FROM idem_claim('op', 'dead', lease => '1 h')");
answers($app, "SELECT verdict FROM idem_claim('op', 'dead')", 'in_progress', 'a client that died');
answers($super, "SELECT state FROM idem_expire_lease('op', 'dead')", 'unknown', 'idem_expire_lease');
$app->run("SELECT idem_complete(c) FROM idem_claim('op', 'timed', '{\"a\": 1, \"at\": 1}') c");
answers($app, "SELECT verdict FROM idem_claim('op', 'timed', '{\"a\": 1, \"at\": 2}')", 'mismatch', 'a time in the params');
$super->run(q{SELECT idem_define('op2', '{"ignore": ["/at"]}')});
answers($app, "SELECT idem_canonical('{\"a\": 1, \"at\": 2}', 'op2')", '{"a":1}', 'what is compared with ignore');
$app->run("SELECT idem_complete(c) FROM idem_claim('op2', 'timed', '{\"a\": 1, \"at\": 1}') c");
answers($app, "SELECT verdict FROM idem_claim('op2', 'timed', '{\"a\": 1, \"at\": 2}')", 'replay', 'with ignore');
answers($app, "BEGIN; SELECT (idem_claim('op', 'columns')).*; SELECT verdict FROM idem_claim('op', 'columns'); ROLLBACK" =~ s/SELECT \(idem_claim\('op', 'columns'\)\)\.\*/SELECT split_part(x::text, ',', 1), split_part(y::text, ',', 1) FROM (SELECT idem_claim('op', 'columns') AS x, idem_claim('op', 'columns') AS y) z/r,
	'(execute|(in_progress in_progress', 'called once a column');
answers($app, "BEGIN; DO \$\$ BEGIN BEGIN PERFORM idem_claim('op', 'block'); RAISE 'no'; EXCEPTION WHEN OTHERS THEN NULL; END; END \$\$; SELECT count(*) FROM idem_left_open(); COMMIT", '0', 'a claim in a block with EXCEPTION is gone');

# --- housekeeping ---------------------------------------------------------------------------------

answers($super, 'SELECT count(*) FROM idem_stat', '0', 'not preloaded: idem_stat is empty');
raises($app, "SELECT idem_permit('d')", '55000', qr/shared_preload_libraries/, 'not preloaded: idem_permit');
raises($super, 'BEGIN; SELECT idem_purge()', '25001', qr/./, 'idem_purge in a transaction block');
answers($super, 'SELECT idem_purge() >= 0', 't', 'by itself');
$super->run(q{CREATE ROLE passing; SELECT idem_grant('passing')});
is($super->try('DROP ROLE passing'), '2BP01', 'a role with a tier cannot be dropped');
$super->run("SELECT idem_revoke('passing'); DROP ROLE passing");
pass('without it can');

# Others are where they are proven: the page names no SQLSTATE that none is about.
my %elsewhere = ('0A000' => '061_sharding.pl', '42809' => '180_upgrade.pl');
foreach my $sqlstate (sort keys %elsewhere)
{
	ok(slurp_file("test/t/$elsewhere{$sqlstate}") =~ /\b$sqlstate\b/, "$sqlstate: in $elsewhere{$sqlstate}");
}
is_deeply([ grep { !$seen{$_} && !$elsewhere{$_} } $page =~ /`([0-9A-Z]{5})`/g ], [], 'every SQLSTATE of the page is tested');

$node->stop;
done_testing();
