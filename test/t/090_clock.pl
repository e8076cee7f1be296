# A clock that is set while a call waits, a taker waits for events or the worker
# rests: durations follow the monotonic clock, so a wait ends when it is over, and
# not an hour later.  W07.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

# --- a server whose clock can be set ----------------------------------------------------

my $folder = PostgreSQL::Test::Utils::tempdir;
my ($library, $clock) = ("$folder/set_clock.so", "$folder/clock");
is(system('cc', '-shared', '-fPIC', '-o', $library, 'test/perl/set_clock.c', '-ldl'), 0, 'a clock to set');

sub set_clock
{
	my ($seconds) = @_;
	my $mode = -e $clock ? '+<' : '>';

	open my $file, $mode, $clock or die "$clock: $!\n";
	syswrite $file, pack('q', $seconds * 1_000_000);
	close $file;
	return;
}

# A server whose clock follows the file.
sub clocked_node
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{SET_CLOCK} = $clock;
	return new_node(@_);
}

set_clock(0);
my $node = clocked_node('main');
my ($holder, $waiter) = (session($node), session($node));
my $ahead = sub { return $waiter->value("SELECT round(extract(epoch FROM clock_timestamp()) - " . time . ")") };
set_clock(-3600);
is($ahead->(), -3600, 'the clock of the server is set back');
set_clock(0);
is($ahead->(), 0, 'and right again');

# --- a wait while the clock is set back or forth -----------------------------------------

$node->safe_psql('postgres', q{SELECT idem_define('once', '{"wait": "2 s"}')});
foreach my $wait (
	[ 'idem_claim', 'pay', "SELECT verdict FROM idem_claim('pay', 'k', wait => '2 s')", 'in_progress' ],
	[ 'idem_once', 'once', "SELECT idem_once('once', 'k')", '55P03' ])
{
	my ($name, $operation, $call, $expected) = @$wait;

	foreach my $seconds (-3600, 3600)
	{
		my $start = time;

		$holder->run('BEGIN');
		$holder->run("SELECT idem_claim('$operation', 'k')");
		$waiter->send($call);
		sleep 0.5;
		ok(!$waiter->answered, "W07: $name waits");
		set_clock($seconds);
		$waiter->result;
		my $took = time - $start;
		set_clock(0);
		is($waiter->sqlstate eq '00000' ? $waiter->output : $waiter->sqlstate, $expected, "W07: the clock is set by $seconds s: $name answers");
		cmp_ok($took, '>=', 2, 'W07: when its wait is over');
		cmp_ok($took, '<', 60, 'W07: and not later');
		$holder->run('ROLLBACK');
	}
}

# --- fences, which only grow -----------------------------------------------------------------

my $fence = sub
{
	my ($session, $key) = @_;
	return $session->value("SELECT fence FROM idem_claim('fences', '$key', lease => '1 h')");
};
my $first = $fence->($waiter, 'first');
set_clock(-3600);
cmp_ok($fence->($waiter, 'second'), '>', $first, 'the clock is set back: the fences of a session grow all the same');
set_clock(3600);
my $ahead_by_an_hour = $fence->($holder, 'third');
$holder->run("SELECT idem_fail_key('fences', 'third', $ahead_by_an_hour, NULL, true)");
set_clock(0);
cmp_ok($fence->($waiter, 'third'), '>', $ahead_by_an_hour, 'and so do those of a record');

# --- keys, which lead with their time ---------------------------------------------------------

my @times = $waiter->value('SELECT left(idem_new_key()::text, 18)');
set_clock(-3600);
push @times, map { $waiter->value('SELECT left(idem_new_key()::text, 18)') } 1 .. 3;
set_clock(0);
is(join(' ', @times), join(' ', sort { $a cmp $b } keys %{ { map { $_ => 1 } @times } }), 'the clock is set back: each new key is later than the one before');

# --- a taker, with and without shared memory ----------------------------------------------

my $limited = clocked_node('preloaded', conf => <<'END');
shared_preload_libraries = 'idempotency'
idempotency.naptime = '1 s'
END
foreach my $server ($node, $limited)
{
	my $name = $server->name;
	my ($emitter, $taker) = sessions($server, 2);

	foreach my $seconds (-3600, 3600)
	{
		my $start = time;

		$taker->send("SELECT count(*) FROM idem_take('nothing', 1, '1 h', '2 s')");
		sleep 0.5;
		ok(!$taker->answered, "W07: idem_take waits ($name)");
		set_clock($seconds);
		is($taker->result, '0', "W07: the clock is set by $seconds s: idem_take answers");
		cmp_ok(time - $start, '>=', 2, 'W07: when its wait is over');
		cmp_ok(time - $start, '<', 60, 'W07: and not later');
		set_clock(0);
	}

	# the queue was empty up to an hour later than what is emitted now
	$emitter->run("SELECT idem_emit('set back', '1')");
	is($taker->value("SELECT count(*) FROM idem_take('set back', 9)"), '1', 'an event is taken');
	my $start = time;
	$taker->send("SELECT payload FROM idem_take('set back', 1, '1 h', '60 s')");
	sleep 0.5;
	set_clock(-3600);
	$emitter->run("SELECT idem_emit('set back', '2')");
	is($taker->result, '2', "W07: an event that is emitted after the clock was set back is taken ($name)");
	cmp_ok(time - $start, '<', 60, 'W07: before the wait is over');
	set_clock(0);
}

# --- the worker -----------------------------------------------------------------------------

my $visits = q{SELECT visits FROM idem_stat_worker WHERE database = 'postgres'};
my $still = q{SELECT count(*) FROM idem_record WHERE operation = 'old'};
my $watcher = session($limited);

$watcher->run(q{SELECT idem_define('old', '{"retention": "10 min", "guard": "10 min"}');
	SELECT idem_complete(c, '1') FROM generate_series(1, 500) n, idem_claim('old', 'k' || n) c});
foreach my $seconds (-3600, 3600, 0)
{
	set_clock($seconds);
	my $seen = $watcher->value($visits);
	my $start = time;
	wait_for_sql($limited, "SELECT ($visits) >= $seen + 3");
	cmp_ok(time - $start, '<', 60, "W07: the clock is set to $seconds s: the worker goes on");
	is($watcher->value("SELECT duration < '1 min' FROM idem_stat_worker WHERE database = 'postgres'"), 't', 'W07: no visit seems to take an hour')
	  if $seconds == -3600;
	wait_for_sql($limited, "SELECT ($still) = 0") if $seconds > 0;
	is($watcher->value($still), $seconds < 0 ? '500' : '0', 'and purges what is over by that clock');
}
is($watcher->value("SELECT last_error FROM idem_stat_worker WHERE database = 'postgres'"), '', 'without an error');

# five hours into a window of six: its segment takes new keys for another, and what is
# over in an hour does not go with it
set_clock(5 * 3600 - time % (6 * 3600));
$watcher->run(q{SELECT idem_define('short', '{"retention": "1 h"}'), idem_define('gone', '{"retention": "1 us"}');
	SELECT count(idem_once(operation, idem_new_key())) FROM generate_series(1, 2000), unnest('{short,gone}'::text[]) operation});
wait_for_sql($limited, "SELECT count(*) = 2000 FROM idem_record");
pass('in the segment of the present, what is over is deleted and not left for its end');
set_clock(0);

$limited->stop;
$node->stop;
done_testing();
