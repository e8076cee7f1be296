# idem_explain about a key that another session has: who that is, what it does
# and waits for, as far as pg_stat_activity shows it to the caller.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('main');
$node->safe_psql('postgres', q{
	CREATE ROLE app LOGIN;
	CREATE ROLE other LOGIN;
	CREATE ROLE monitor LOGIN;
	CREATE ROLE seer LOGIN IN ROLE pg_read_all_stats;
	SELECT idem_grant(r) FROM unnest('{app,other,seer}'::name[]) r;
	SELECT idem_grant('monitor', 'monitor');
	CREATE TABLE busy (n int);
	GRANT ALL ON busy TO app;
});
my %as = map { $_ => session($node, user => $_) } qw(app other monitor seer);
my $holder = session($node, user => 'app', set => { application_name => 'till 7' });
my $blocker = session($node);
my $told = sub {
	my ($who, $key, $fact) = @_;
	return $as{$who}->value("SELECT coalesce((SELECT value FROM idem_explain('op', '$key') WHERE fact = '$fact'), 'nothing')");
};

# --- an atomic claim, whose transaction waits for another one ------------------------------

$blocker->run('BEGIN; LOCK TABLE busy');
$holder->run('BEGIN');
$holder->claim("'op', 'held'");
$holder->send("INSERT INTO busy VALUES (1) /* held by the till */");
wait_for_sql($node, "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND pid = " . $holder->pid);

foreach my $who (qw(app other monitor seer))
{
	is($told->($who, 'held', 'verdict'), 'in_progress', "$who: in the way is another session");
	is($told->($who, 'held', 'because'), 'the open transaction of another session holds the key', "$who: that is why");
	is($told->($who, 'held', 'holder'), 'pid ' . $holder->pid . ', role app', "$who: its pid and role are shown to all");
}
foreach my $who (qw(app seer))
{
	is($told->($who, 'held', "holder''s application"), 'till 7', "$who sees the application");
	like($told->($who, 'held', "holder''s transaction"), qr/^active, open for \d\d:\d\d:\d\d$/, "$who sees since when");
	is($told->($who, 'held', "holder''s query"), 'INSERT INTO busy VALUES (1) /* held by the till */;', "$who sees the query");
	is($told->($who, 'held', 'holder waits for'), 'Lock relation, held by pid ' . $blocker->pid, "$who sees what it waits for");
}
foreach my $fact ("holder''s transaction", "holder''s query", 'holder waits for')
{
	like($told->('other', 'held', $fact), qr/^not shown to this role: members of pg_read_all_stats/, "another role does not see $fact");
}
like($told->('monitor', 'held', "holder''s transaction"), qr/^active, open for /, 'a monitor sees since when, as in idem_stat_activity');
like($told->('monitor', 'held', "holder''s query"), qr/^not shown to this role/, 'but no query');
unlike($as{other}->run("SELECT string_agg(value, ' ') FROM idem_explain('op', 'held')"), qr/busy/, 'nothing of the query either');

$blocker->run('ROLLBACK');
$holder->result;
$holder->run('ROLLBACK');
is($told->('app', 'held', 'verdict'), 'execute', 'rolled back: a claim executes');
is($told->('app', 'held', 'holder'), 'nothing', 'and there is no holder');

# --- a leased claim that is not committed -------------------------------------------------------

$holder->run('BEGIN');
$holder->claim("'op', 'leased', lease => '1 h'");
is($told->('other', 'leased', 'verdict'), 'in_progress', 'a leased claim, not committed');
is($told->('other', 'leased', 'holder'), 'pid ' . $holder->pid . ', role app', 'its session');
$holder->run('COMMIT');
is($told->('other', 'leased', 'because'), 'a lease is running; under the owner that took it, execute', 'committed: the lease');
is($told->('other', 'leased', 'holder'), 'nothing', 'and no session is in the way');

# --- prepared transactions ------------------------------------------------------------------------

$holder->run('BEGIN');
$holder->claim("'op', 'prepared'");
$holder->complete('1');
$holder->run("PREPARE TRANSACTION 'of the till'");
is($told->('other', 'prepared', 'because'), 'a prepared transaction holds the key', 'a prepared transaction');
like($told->('other', 'prepared', 'holder'), qr/^prepared transaction 'of the till' of app, prepared \d\d:\d\d:\d\d ago$/, 'and which');
$holder->run("COMMIT PREPARED 'of the till'");
is($told->('other', 'prepared', 'verdict'), 'replay', 'committed: its outcome');

$node->stop;
done_testing();
