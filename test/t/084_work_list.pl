# F08: what one principal has open does not slow down the lists of another.  Each
# call is measured with 300 and with IDEM_ROUNDS (300 000) records of "large"
# open; blocks are counted beside the time, as they do not depend on the machine.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $records = $ENV{IDEM_ROUNDS} || 300000;
my $node = new_node('main', conf => "shared_buffers = 256MB\nfsync = off\nautovacuum = off\n");

my %calls = (
	'idem_list(max_records => 1)' => q{SELECT count(*) FROM idem_list('small', NULL, 1)},
	'idem_list of an operation' => q{SELECT count(*) FROM idem_list('small', 'pay', 1)},
	'idem_list of all principals' => q{SET idempotency.principal = ''; SELECT count(*) FROM idem_list(NULL, NULL, 1)},
	'idem_reconcile(operation, 1)' => q{SELECT count(*) FROM idem_reconcile('pay', 1, '1 us')},
	'idem_reconcile(NULL, 1)' => q{SELECT count(*) FROM idem_reconcile(NULL, 1, '1 us')},
	'idem_start_next bound to a principal' => q{SELECT count(*) FROM idem_start_next('bound', 1, '1 h')});

# The blocks a call reads, the milliseconds it takes at best of 25, and its rows.
sub measured
{
	my ($sql) = @_;
	my $set = $sql =~ s/^(SET [^;]*;) // ? $1 : '';
	my $explained = $node->safe_psql('postgres', "SET app.tenant = 'small'; $set BEGIN; $sql; ROLLBACK;"
		. " BEGIN; EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) $sql; ROLLBACK;");
	my ($hit) = $explained =~ /"Shared Hit Blocks": (\d+)/;
	my ($read) = $explained =~ /"Shared Read Blocks": (\d+)/;
	my @took = $node->safe_psql('postgres', "SET app.tenant = 'small'; $set "
		. join(' ', ("BEGIN; EXPLAIN (ANALYZE, TIMING OFF) $sql; ROLLBACK;") x 25)) =~ /Execution Time: ([\d.]+)/g;
	my ($best) = sort { $a <=> $b } @took;
	my $rows = (split /\n/, $explained)[0];
	return { blocks => $hit + $read, ms => $best, rows => $rows };
}

sub accept_large
{
	my ($from, $to) = @_;
	$node->safe_psql('postgres', "SELECT count(idem_accept(CASE WHEN n % 2 = 0 THEN 'pay' ELSE 'bound' END, 'k-' || n, principal => 'large')) "
		. "FROM generate_series($from, $to) n");
	return;
}

accept_large(1, 300);
$node->safe_psql('postgres', q{
	SELECT idem_unsure(idem_claim('pay', 'mine ' || n, principal => 'small', lease => '1 h')) FROM generate_series(1, 3) n;
	SELECT count(idem_accept('bound', 'mine ' || n, principal => 'small')) FROM generate_series(1, 3) n;
	SELECT idem_define('bound', '{"principal_setting": "app.tenant"}')});
my %few = map { $_ => measured($calls{$_}) } keys %calls;

$node->safe_psql('postgres', q{SELECT idem_define('bound', '{"principal_setting": null}')});
accept_large(301, $records);
$node->safe_psql('postgres', q{SELECT idem_define('bound', '{"principal_setting": "app.tenant"}')});
my %many = map { $_ => measured($calls{$_}) } keys %calls;

foreach my $call (sort keys %calls)
{
	my ($before, $after) = ($few{$call}, $many{$call});

	is("$before->{rows} $after->{rows}", '1 1', "F08: $call: one record");
	cmp_ok($after->{blocks}, '<=', 2 * $before->{blocks}, "F08: $call: blocks $before->{blocks} with 300 records open, $after->{blocks} with $records");
	cmp_ok($after->{ms}, '<=', 2 * $before->{ms} + 0.2, "F08: $call: $before->{ms} ms with 300, $after->{ms} ms with $records");
}

done_testing();
