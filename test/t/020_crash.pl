# What a crash leaves: nothing of an atomic claim, everything that was
# committed, and prepared transactions as they were.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $node = new_node('main', durable => 1, conf => "restart_after_crash = on\n");
create_claims_table($node);

my $status = sub {
	my ($key) = @_;
	return one_value($node, "SELECT concat_ws(' ', state, attempt, holder) FROM idem_status('op', '$key')");
};
my $claim = sub {
	my ($key, $more) = @_;
	$more = $more ? ", $more" : '';
	return one_value($node, "SELECT concat_ws(' ', verdict, attempt, result) FROM idem_claim('op', '$key'$more)");
};

# Without psql: one that is refused may be gone before its statement is written to it.
my $wait_until_up = sub {
	for (my $tries = 0; $tries < 10 * $PostgreSQL::Test::Utils::timeout_default; $tries++)
	{
		return if system('pg_isready', '-q', '-d', $node->connstr('postgres')) == 0;
		sleep 0.1;
	}
	die 'the server did not come back';
};

# --- kill -9 of one backend -----------------------------------------------------

{
	my $owner = session($node);

	$owner->run('BEGIN');
	$owner->claim("'op', 'killed'");
	$owner->run("INSERT INTO business VALUES ('killed')");
	$owner->run("SELECT verdict FROM idem_claim('op', 'leased and killed', lease => '1 h')");
	kill_backend($node, $owner->pid);
	is($owner->try('COMMIT'), 'lost', 'the owner of an open claim is killed');
	$wait_until_up->();
	is($status->('killed'), 'absent', 'nothing is on record');
	is(one_value($node, 'SELECT count(*) FROM business'), 0, 'its business rows are gone');
	is($claim->('leased and killed', "lease => '1 h'"), 'execute 1', 'a leased claim it had not committed as well');
	my $next = session($node);
	$next->run('BEGIN');
	is($next->claim("'op', 'killed'"), 'execute', 'the next claim executes');
	is($next->variable('c_attempt'), 1, 'as attempt 1');
	$next->complete('1');
	$next->run('COMMIT');
}

{
	my $owner = session($node);

	$owner->run('BEGIN');
	$owner->claim("'op', 'completed and killed'");
	$owner->run("INSERT INTO business VALUES ('completed and killed')");
	$owner->complete('1');
	kill_backend($node, $owner->pid);
	is($owner->try('COMMIT'), 'lost', 'the owner of a completed, uncommitted claim is killed');
	$wait_until_up->();
	is($status->('completed and killed'), 'absent', 'nothing is on record');
	is($claim->('completed and killed', "lease => '1 h'"), 'execute 1', 'the next claim executes as attempt 1');
	is(one_value($node, 'SELECT count(*) FROM business'), 0, 'its business rows are gone');
}

# An attempt that takes over: the crash leaves the record as it was before.
{
	my $owner = session($node);

	$owner->run("SELECT idem_fail(c, '{}', true) FROM idem_claim('op', 'third time') c") foreach 1, 2;
	$owner->run('BEGIN');
	$owner->claim("'op', 'third time'");
	is($owner->variable('c_attempt'), 3, 'attempt 3 is open');
	my $fence = $owner->variable('c_fence');
	kill_backend($node, $owner->pid);
	$owner->try('COMMIT');
	$wait_until_up->();
	is(one_value($node, "SELECT attempt || ' ' || (fence > $fence) FROM idem_claim('op', 'third time', lease => '1 h')"),
		'3 true', 'after the crash it is attempt 3 again, under a higher fence');
	is(session($node)->try("SELECT idem_complete_key('op', 'third time', $fence)"), 'ID002', 'the old fence is refused');
}

# Leased claims live in the table: their owner may still be out there.
{
	my $owner = session($node);

	$owner->claim("'op', 'long lease', lease => '1 h'");
	my $fence = $owner->variable('c_fence');
	$owner->claim("'op', 'short lease', lease => '1 ms'");
	kill_backend($node, $owner->pid);
	$owner->try('SELECT 1');
	$wait_until_up->();
	is($status->('long lease'), 'processing 1', 'a committed leased claim is still processing');
	is($claim->('long lease'), 'in_progress 1', 'and nobody else executes it');
	is($status->('short lease'), 'unknown 1', 'a lease that is over reads as unknown');
	is($claim->('short lease'), 'unknown 1', 'and is not executed again');
	is(one_value($node, "SELECT idem_complete_key('op', 'long lease', $fence, '5')"), 5, 'its owner may still complete it');
	is($claim->('long lease'), 'replay 1 5', 'which is then replayed');
}

# --- prepared transactions ---------------------------------------------------------

my @keys = ('to commit', 'to roll back', 'leased to commit', 'leased to roll back');
foreach my $key (@keys)
{
	my $owner = session($node);
	my $lease = $key =~ /leased/ ? '1 h' : '0';

	$owner->run('BEGIN');
	$owner->claim("'op', '$key', lease => '$lease'");
	$owner->run("INSERT INTO business VALUES ('$key')");
	$owner->complete('1') if $lease eq '0';
	$owner->run("PREPARE TRANSACTION '$key'");
}

my %restart = (
	'while it runs' => sub { },
	'after a fast restart' => sub { $node->stop('fast'); $node->start; },
	'after an immediate restart' => sub { $node->stop('immediate'); $node->start; },
	'after kill -9 of the server' => sub { kill_server($node); $node->start; },
	'after a checkpoint and kill -9' => sub {
		$node->safe_psql('postgres', 'CHECKPOINT');
		kill_server($node);
		$node->start;
	});
foreach my $when ('while it runs', sort grep { /^after/ } keys %restart)
{
	$restart{$when}->();
	foreach my $key (@keys)
	{
		is(one_value($node, "SELECT concat_ws(' ', verdict, state, holder, fence) FROM idem_claim('op', '$key')"),
			'in_progress processing 0', "$key: a prepared holder is seen $when");
	}
	is($status->('to commit'), 'processing 0', "and by status $when");
}
is(one_value($node, "SELECT verdict || ' ' || (clock_timestamp() - now() >= '200 ms') "
		  . "FROM idem_claim('op', 'to commit', wait => '200 ms')"),
	'in_progress true', 'waiting for a prepared holder ends at the deadline');

$node->safe_psql('postgres', "COMMIT PREPARED '$_'") foreach 'to commit', 'leased to commit';
$node->safe_psql('postgres', "ROLLBACK PREPARED '$_'") foreach 'to roll back', 'leased to roll back';
is($claim->('to commit'), 'replay 1 1', 'COMMIT PREPARED after the restarts: replay');
is($claim->('to roll back', "lease => '1 h'"), 'execute 1', 'ROLLBACK PREPARED: execute');
is($claim->('leased to commit'), 'in_progress 1', 'COMMIT PREPARED of a leased claim: its lease runs');
is($claim->('leased to roll back', "lease => '1 h'"), 'execute 1', 'ROLLBACK PREPARED of it: execute');
is(one_value($node, "SELECT string_agg(key, ',' ORDER BY key) FROM business WHERE key IN ('"
		  . join("', '", @keys) . "')"),
	'leased to commit,to commit', 'business rows went with the claims');

# A prepared transaction of many claims, part of them rows from the start.
{
	my $owner = session($node);

	$owner->run('BEGIN');
	$owner->run("SELECT count(idem_complete(c, '1')) FROM generate_series(1, 100) i, idem_claim('batch', 'k' || i) c");
	$owner->run("PREPARE TRANSACTION 'batch'");
	kill_server($node);
	$node->start;
	is(one_value($node, "SELECT string_agg(DISTINCT concat_ws(' ', verdict, holder), ',') "
			  . "FROM generate_series(1, 100) i, idem_claim('batch', 'k' || i) c"),
		'in_progress 0', 'a prepared batch of 100 holds each of its keys after kill -9');
	$node->safe_psql('postgres', "COMMIT PREPARED 'batch'");
	is(one_value($node, "SELECT string_agg(DISTINCT verdict::text, ',') "
			  . "FROM generate_series(1, 100) i, idem_claim('batch', 'k' || i) c"),
		'replay', 'and replays each once committed');
}

# PREPARE is refused like COMMIT; nothing stays behind.
{
	my $owner = session($node);

	$owner->run('BEGIN');
	$owner->claim("'op', 'forgotten'");
	$owner->run("INSERT INTO business VALUES ('forgotten')");
	is($owner->try("PREPARE TRANSACTION 'forgotten'"), 'ID003', 'PREPARE with an open claim is refused');
	is(one_value($node, 'SELECT count(*) FROM pg_prepared_xacts'), 0, 'nothing is prepared');
	is($claim->('forgotten', "lease => '1 h'"), 'execute 1', 'the key is free');
	$owner->run('BEGIN');
	$owner->claim("'op', 'forgotten again'");
	is($owner->try('COMMIT'), 'ID003', 'so is COMMIT');
	like($owner->error, qr/COMMIT refused: .*"op" \(id [0-9a-f-]{36}\).*\n.*HINT:.*idem_run/s, 'naming operation and id, with a hint');
	is(one_value($node, "SELECT count(*) FROM business WHERE key LIKE 'forgotten%'"), 0, 'no business row is there');
}

is(heap_and_index_agree($node), '', 'table and indexes agree');
$node->stop;
done_testing();
