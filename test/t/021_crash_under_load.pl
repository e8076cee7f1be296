# kill -9 of the whole server while clients work: what was acknowledged is
# replayed, business rows and records agree, nothing is half there.
#
#   IDEM_CRASHES=20     how often to kill (3 otherwise); make crash

use strict;
use warnings;

use IdempotencyTest;
use IdempotencyTest::Load;
use Test::More;

# Then a new one, lest the checks take ever longer.
my $PER_SERVER = 20;

# Has purge truncated a segment?
my $truncated = q{
	SELECT count(*) > 0 FROM pg_class
	WHERE relnamespace = 'idempotency_internal'::regnamespace AND relname ~ '^record_s' AND relfilenode <> oid};

sub crash_server
{
	my ($name, @crashes) = @_;
	my $node = new_node($name, durable => 1, conf => "max_connections = 50\n");
	my $load = IdempotencyTest::Load->new($node);

	foreach my $crash (@crashes)
	{
		$load->start($crash);
		$load->wait_until_busy;
		wait_for_sql($node, $truncated) if $crash == $crashes[-1];
		sleep rand 0.7;
		kill_server($node);
		$load->hear_out("crash $crash");
		$node->start;
		$load->judge("crash $crash");
	}
	$load->judge_all;
	$node->stop;
	$node->clean_node;
	return;
}

my @crashes = 1 .. $ENV{IDEM_CRASHES} || 3;
while (my @some = splice @crashes, 0, $PER_SERVER)
{
	crash_server("main$some[0]", @some);
}
done_testing();
