# Promotion of a standby while clients work on the primary, which is then killed.
# Of a synchronous one nothing is lost that was acknowledged: before it is promoted
# what it has not replayed is unconfirmed there, never absent, and afterwards a
# replay.  What an asynchronous one has not received is lost as a whole: the
# outcome with its business rows and its event.
#
#   IDEM_PROMOTIONS=20         so many synchronous ones, half as many others (1 and
#                              1 otherwise); make failover
#
# The promoted standby is the next primary.

use strict;
use warnings;

use IdempotencyTest;
use IdempotencyTest::Load;
use PostgreSQL::Test::Cluster;
use Test::More;

# Then a new primary, lest copies and checks take ever longer.
my $PER_PRIMARY = 5;

my $round = 0;
my ($primary, $load);

# A standby of the primary that has caught up, and for which commits wait or not.
sub new_standby
{
	my ($synchronous) = @_;
	my $standby = PostgreSQL::Test::Cluster->new("standby$round");

	$primary->backup('copy');
	$standby->init_from_backup($primary, 'copy', has_streaming => 1);
	$standby->start;
	$primary->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = '} . ($synchronous ? '*' : '') . q{'});
	$primary->reload;
	wait_for_sql($primary, q{SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '}
		  . ($synchronous ? 'sync' : 'async') . q{'});
	# before the next checkpoint its process has told all others of the setting
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	return $standby;
}

# The primary is lost, and the standby takes its place.
sub fail_over
{
	my ($standby) = @_;

	$standby->promote;
	$standby->safe_psql('postgres', 'ALTER SYSTEM RESET ALL');
	$standby->reload;
	wait_for_sql($standby, q{SELECT current_setting('synchronous_standby_names') = ''});
	$load->moves_to($standby);
	clear_killed($primary);
	$primary->clean_node;
	$primary = $standby;
	return;
}

# What the standby says of the keys whose outcome was acknowledged.
sub told_by
{
	my ($standby) = @_;
	my $keys = join ', ', map { "('$_')" } $load->heard_in('done');
	my %told = map { split /\|/ } split /\n/, one_value($standby, qq{
		SELECT s.state, count(*) FROM (VALUES $keys) h(key), load_keys(h.key, split_part(h.key, '-', 1)) each, idem_status('load', each) s
		GROUP BY s.state});

	return %told;
}

sub promote_synchronous
{
	my $label = 'synchronous ' . ++$round;
	my $standby = new_standby(1);

	$load->start($round);
	$load->wait_until_busy;
	# what is acknowledged from now on is received there, and not replayed
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	wait_for_sql($standby, q{SELECT pg_get_wal_replay_pause_state() = 'paused'});
	$load->wait_for_more;
	sleep rand 0.7;
	kill_server($primary);
	$load->hear_out($label);

	my %told = told_by($standby);
	cmp_ok($told{unconfirmed} || 0, '>', 0, "$label: what was acknowledged may be unconfirmed before the promotion");
	is($told{absent}, undef, "$label: it is not absent");
	fail_over($standby);
	$load->judge($label);
	return;
}

sub promote_asynchronous
{
	my $label = 'asynchronous ' . ++$round;
	my $standby = new_standby(0);

	$load->start($round);
	$load->wait_until_busy;
	# what is acknowledged from now on is not received there
	$standby->safe_psql('postgres', q{ALTER SYSTEM SET primary_conninfo = ''});
	$standby->reload;
	wait_for_sql($standby, 'SELECT count(*) = 0 FROM pg_stat_wal_receiver');
	$load->wait_for_more;
	sleep rand 0.7;
	kill_server($primary);
	$load->hear_out($label);

	fail_over($standby);
	my %told = told_by($standby);
	cmp_ok($told{absent} || 0, '>', 0, "$label: of what was acknowledged, something is lost");
	$load->judge($label, lost => 1);
	return;
}

my @promotions = 1 .. $ENV{IDEM_PROMOTIONS} || 1;
while (my @some = splice @promotions, 0, $PER_PRIMARY)
{
	$primary = new_node("primary$some[0]", durable => 1, init => { allows_streaming => 1 }, conf => "max_connections = 50\n");
	$load = IdempotencyTest::Load->new($primary);
	foreach my $promotion (@some)
	{
		promote_synchronous();
		promote_asynchronous() if $promotion % 2;
	}
	$load->judge_all;
	$primary->stop;
	$primary->clean_node;
}
done_testing();
