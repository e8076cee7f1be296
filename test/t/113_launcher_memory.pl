# A launcher that has visited some hundred times has no more memory than one that
# has visited a few times, and has logged nothing (case C63).  IDEM_CYCLES=5000
# for the long form.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $cycles = $ENV{IDEM_CYCLES} || 300;

my $node = PostgreSQL::Test::Cluster->new('launcher');
$node->init;
$node->append_conf('postgresql.conf', <<'END');
shared_preload_libraries = 'idempotency'
idempotency.principal = 'acme'
idempotency.naptime = 1
autovacuum = off
log_statement = none
END
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION idempotency');
$node->safe_psql('postgres', 'CREATE DATABASE other');

sub value { return $node->safe_psql('postgres', $_[0]); }

my $launcher = value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'});

sub wait_for_visits
{
	my ($number) = @_;

	# in steps, because a poll gives up after some minutes
	for (my $seen = 0; $seen < $number; $seen += 100)
	{
		my $next = $seen + 100 < $number ? $seen + 100 : $number;

		$node->poll_query_until('postgres', "SELECT visits >= $next FROM idem_stat_worker WHERE database = 'postgres'")
		  or die 'the launcher visits no more';
	}
	pass("$number visits");
	return;
}

# Bytes the launcher has in its memory contexts: from the server, used; by context.
sub memory
{
	my $from = -s $node->logfile;

	value("SELECT pg_log_backend_memory_contexts($launcher)");
	PostgreSQL::Test::Utils::system_or_bail('sleep', '0.1') until slurp_file($node->logfile, $from) =~ /Grand total: (\d+) bytes.*?(\d+) used/;
	my ($total, $used) = ($1, $2);
	diag(join "\n", slurp_file($node->logfile, $from) =~ /level: \d+; ([^\n]* used)/g) if $ENV{IDEM_SHOW};
	return ($total, $used);
}

wait_for_visits(50);
my ($total, $used) = memory();
my $log = -s $node->logfile;
wait_for_visits(50 + $cycles);
my $said = join '', grep { !/memory context|checkpoint|level: |Grand total/ } map { "$_\n" } split /\n/, slurp_file($node->logfile, $log);
is($said, '', 'nothing was logged');
my ($total_later, $used_later) = memory();
is($total_later, $total, "after $cycles more visits the launcher has no more memory");
cmp_ok(abs($used_later - $used), '<', 1000, "and uses no more of it ($used, $used_later bytes)");
is(value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency launcher'}), $launcher, 'it is the same one');

done_testing();
