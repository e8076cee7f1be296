# Many sessions of one owner start the next accepted work at the same time: each
# is handed out once, though each of them could pass for the owner whose first
# answer was lost.  Some give it back, and accept it again or not: then it is
# handed out once more, or never, and no session is told an error.  IDEM_ROUNDS says
# how many records there are.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $records = $ENV{IDEM_ROUNDS} || 3000;
my $node = new_node('main', conf => "max_connections = 40\n");

$node->safe_psql('postgres', qq{
	CREATE TABLE granted (key text, fence bigint, given_back boolean);
	SELECT count(idem_accept('render', 'k-' || n, '1')) FROM generate_series(1, $records) n;
});

# TRANSACTIONS of each of 16 sessions; what is started is noted with its fence.
sub start_all
{
	my ($name, $sql) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir . "/$name.sql";

	append_to_file($file, $sql);
	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	command_ok([ 'pgbench', '-n', '-c', 16, '-j', 2, '-t', int($records / 16) + 20, '-f', $file, 'postgres' ],
		"16 sessions of one owner: $name");
	return;
}

# --- one owner -------------------------------------------------------------------

start_all('started once', q{
	INSERT INTO granted SELECT key, fence FROM idem_start_next('render', 1, '1 h', 'worker');
});
is(one_value($node, 'SELECT count(*) FROM granted'), $records, 'as many were handed out as were accepted');
is(one_value($node, 'SELECT count(DISTINCT key) FROM granted'), $records, 'each of them once');

# --- given back ------------------------------------------------------------------

$node->safe_psql('postgres', q{
	TRUNCATE granted;
	SELECT idem_release_key('render', r.key, r.fence, retry_after => '0')
	FROM (SELECT key, fence FROM idempotency_internal.record) r;
});
start_all('given back at once', q{
	INSERT INTO granted SELECT key, fence, idem_release_key('render', key, fence, retry_after => '1 h') IS NULL
	FROM idem_start_next('render', 1, '1 h', 'worker');
});
is(one_value($node, 'SELECT count(*) FROM granted'), $records, 'what was released is not started again before its time');
is(one_value($node, 'SELECT count(DISTINCT key) FROM granted'), $records, 'and each was handed out once');

done_testing();
