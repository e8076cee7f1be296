# A destination that is down (C82), and its retry budget (C81), seen from relays
# of the outbox: the breaker opens, probes go half-open, the total time is used
# up, what is dead is redelivered under its id and applied once.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('outage', conf => "shared_preload_libraries = 'idempotency'\nidempotency.worker = off\n");
my @relays = sessions($node, 8);
my ($one, $two) = @relays;

sub define { my ($destination, $settings) = @_; $one->run("SELECT idem_destination_define('$destination', '$settings')"); return; }
sub shown { my ($destination, $columns) = @_; return $one->value("SELECT concat_ws(' ', $columns) FROM idem_stat_destination WHERE destination = '$destination'"); }
sub emit { my ($destination, $number) = @_; return sort split /\n/, $one->run("SELECT idem_emit('$destination', to_jsonb(n)) FROM generate_series(1, $number) n"); }

# What a relay gets, as a list of "id attempt fence".
sub take
{
	my ($relay, $destination, $most) = @_;
	return split /\n/, $relay->run("SELECT event_id || ' ' || attempt || ' ' || fence FROM idem_take('$destination', $most, '1 h')");
}

sub refuse
{
	my ($relay, @taken) = @_;
	foreach (@taken)
	{
		my ($id, undef, $fence) = split / /;
		$relay->run("SELECT idem_nack('$id', $fence, '{\"down\": true}')");
	}
	return;
}

sub ids { return sort map { (split / /)[0] } @_; }

# The pause of the breaker is over, and then as long as before: nothing here
# waits for it.
sub cool_down
{
	my ($destination) = @_;
	define($destination, '{"breaker_cooldown": "1 us"}');
	is(shown($destination, 'breaker'), 'half-open', 'half-open after the pause');
	$one->run("SELECT idem_report('$destination', NULL, true)");	# it stays so from the next call on
	define($destination, '{"breaker_cooldown": "1 h"}');
	return;
}

#
# C82
#
define('bank', '{"base": "0", "cap": "0", "deadline": "1 h", "max_attempts": null, "retry_budget": null, "breaker_cooldown": "1 h"}');
my @emitted = emit('bank', 20);
my @taken = take($one, 'bank', 100);
is(scalar @taken, 20, 'as long as nobody knows better, all is sent');
refuse($one, @taken);
is(shown('bank', 'breaker, breaker_opened, recently_failed'), 'open 1 5', 'C82: five failures open the breaker, the others add nothing');
is(scalar take($_, 'bank', 100), 0, 'C82: nothing is sent any more, though all is due') foreach @relays;

foreach my $time (1 .. 3)
{
	cool_down('bank');
	my @probe = take($two, 'bank', 100);
	is(scalar @probe, 1, 'C82: half-open: one probe, of all that is due');
	is(scalar take($one, 'bank', 100), 0, 'and no second');
	refuse($two, @probe);
	is(shown('bank', 'breaker, breaker_opened'), 'open ' . ($time + 1), 'it fails: open again');
	is(scalar take($two, 'bank', 100), 0, 'nothing is sent');
}
is($one->value("SELECT sum(attempt) FROM idempotency_internal.outbox_due WHERE destination = 'bank'"), '23', 'C82: 20 events, 23 calls to a destination that is down');

define('bank', '{"deadline": "1 us"}');
is(scalar take($one, 'bank', 100), 0, 'the total time is over, the breaker open');
cool_down('bank');
is(scalar take($one, 'bank', 100), 0, 'half-open: none is left to probe with');
is($one->value("SELECT string_agg(DISTINCT reason, ' ') || ' ' || count(*) FROM idem_dead_letter WHERE destination = 'bank'"), 'deadline 20', 'C82: dead letters');
is(shown('bank', 'breaker, in_flight'), 'half-open 0', 'the probe that was not made keeps no place');

# the destination is back
define('bank', '{"deadline": "1 h"}');
$one->run("SELECT idem_redeliver(event_id) FROM idem_dead_letter WHERE destination = 'bank'");
my @probe = take($one, 'bank', 100);
is(scalar @probe, 1, 'redelivered: first a probe');
my @applied;
sub apply
{
	my ($relay, @events) = @_;
	foreach (@events)
	{
		my ($id, undef, $fence) = split / /;
		push @applied, $id if $relay->value("SELECT idem_once('at the bank', '$id')") eq 't';
		$relay->run("SELECT idem_ack('$id', $fence)");
	}
	return;
}
apply($one, @probe);
is(shown('bank', 'breaker'), 'closed', 'it succeeds: closed');
my @rest = take($two, 'bank', 100);
is_deeply([ ids(@probe, @rest) ], \@emitted, 'C82: redelivery keeps the ids');
apply($two, @rest);
is_deeply([ sort @applied ], \@emitted, 'each is applied once');
is($one->value("SELECT count(*) FROM idempotency_internal.outbox_due WHERE destination = 'bank'"), '0', 'nothing is left');
is(shown('bank', 'in_flight'), '0', 'nor in flight');

#
# C81, where it is known which are retries: eight relays, whose takes are rolled
# back half of the time, send no more than 10 of 100 again.
#
define('flaky', '{"base": "0", "cap": "0", "retry_budget": 0.1, "breaker_failures": null}');
emit('flaky', 100);
send_all("SELECT idem_nack(event_id, fence, '1') FROM (SELECT * FROM idem_take('flaky', 12)) t", @relays);
collect_all(@relays);
refuse($one, take($one, 'flaky', 4));
is(shown('flaky', 'let_go, failed, retries, retries_left::int'), '100 100 0 10', 'C81: 100 first tries, all failed');
send_all("BEGIN; SELECT event_id FROM idem_take('flaky', 1); ROLLBACK; SELECT idem_nack(event_id, fence, '1') FROM (SELECT * FROM idem_take('flaky', 3)) t", @relays);
collect_all(@relays);
is(shown('flaky', 'failed - 100, retries_left::int'), '10 0', 'C81: 8 relays send 10 of them again, whose takes are rolled back as often');
cmp_ok(shown('flaky', 'retries'), '>=', 10, 'C81: these stay counted');
is(scalar take($_, 'flaky', 100), 0, 'and no more') foreach @relays;
emit('flaky', 20);
@taken = take($one, 'flaky', 100);
is(join(' ', map { (split / /)[1] } @taken), join(' ', (1) x 20), 'first tries go, whatever retries have used up');
is(scalar take($two, 'flaky', 100), 2, 'and lay in tokens for two more');

$_->quit foreach @relays;
done_testing();
