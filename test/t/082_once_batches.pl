# Batches of idem_once_many that overlap, shuffled, by two sessions at once: no
# deadlock, and every id once.  A batch of 100 000 keys with the default lock
# table.  IDEM_ROUNDS says how many times; `make races` does it 1000 times.

use strict;
use warnings;

use IdempotencyTest;
use List::Util qw(shuffle min);
use Test::More;

my $rounds = min($ENV{IDEM_ROUNDS} || 60, 1000);
my $node = new_node('main', conf => "deadlock_timeout = 10ms\n");

$node->safe_psql('postgres', q{SELECT idem_define('in', '{"wait": "30 s"}')});

# --- two sessions, shuffled overlapping batches ---------------------------------

my @sessions = map { session($node, isolation => $_) } 'read committed', 'repeatable read';
my (%first, %errors);

# A batch of 40 of the round's 60 ids, as an array of SQL.
sub batch
{
	my ($round) = @_;
	my @ids = shuffle(map { "round $round id $_" } 1 .. 60);

	return 'ARRAY[' . join(',', map { "'$_'" } @ids[0 .. 39]) . ']';
}

foreach my $round (1 .. $rounds)
{
	foreach my $session (@sessions)
	{
		# now and then one is rolled back, and its ids are seen by the other
		my $end = $round % 5 == 0 && $session == $sessions[ $round % 2 ] ? 'ROLLBACK' : 'COMMIT';

		$session->{end} = $end;
		$session->send("BEGIN; SELECT * FROM idem_once_many('in', " . batch($round) . "); $end");
	}
	foreach my $session (@sessions)
	{
		my $output = $session->result;

		$errors{ $session->error }++ if $session->error ne '';
		next if $session->{end} eq 'ROLLBACK';
		$first{$_}++ foreach grep { /^round/ } split /\n/, $output;
	}
}
is(join('', sort keys %errors), '', "$rounds rounds: no deadlock, no error at all");
my @twice = grep { $first{$_} > 1 } sort keys %first;
is("@twice", '', 'no id was seen for the first time twice');
is(one_value($node, 'SELECT count(*) FROM idempotency_internal.record'), scalar(keys %first), 'every id on record was seen for the first time once');
is(one_value($node, "SELECT count(*) FROM idempotency_internal.record WHERE state <> 's'"), 0, 'each is done');
is(one_value($node, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"), 0, 'the server counted no deadlock');

# --- a large batch ---------------------------------------------------------------

my ($large, $other) = @sessions;
my $keys = q{(SELECT array_agg('large ' || n) FROM generate_series(1, 100000) n)};

is(one_value($node, 'SHOW max_locks_per_transaction'), 64, 'the lock table has its default size');
$large->run('BEGIN');
is($large->value("SELECT count(*) FROM idem_once_many('large', $keys)"), 100000, '100 000 new keys in one batch');
cmp_ok($large->value('SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()'), '<', 50, 'hold few locks');
is($other->try(q{SELECT idem_once('large', 'large 77777')}), '55P03', 'others are told that they are held');
is($other->value(q{SELECT verdict || ' ' || (holder > 0) FROM idem_claim('large', 'large 5')}), 'in_progress true', 'and by whom');
$large->run('COMMIT');
is($other->value("SELECT count(*) FROM idem_once_many('large', $keys)"), 0, 'committed: none is new');
is($other->value(q{SELECT idem_once('large', 'large 77777')}), 'f', 'seen before');
$large->run('BEGIN');
is($large->value("SELECT count(*) FROM idem_once_many('large', $keys, 'other')"), 100000, 'of another principal: all new');
$large->run('ROLLBACK');
is($other->value(q{SELECT idem_once('large', 'large 1', 'other')}), 't', 'rolled back: new again');

done_testing();
