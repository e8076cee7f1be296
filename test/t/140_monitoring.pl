# The monitoring kit of docs/monitoring: the exporter's queries run as a
# monitor; Debian's prometheus-sql-exporter exports every number; promtool
# accepts the alert rules and sees them fire; rules and dashboard name only
# metrics that are exported.  test/run has seen to it that both programs are there.

use strict;
use warnings FATAL => 'all';

use IO::Socket::INET;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $kit = 'docs/monitoring';
my $config = slurp_file("$kit/sql_exporter.yml");

my $node = PostgreSQL::Test::Cluster->new('monitoring');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'\nidempotency.principal = 'acme'\nidempotency.naptime = 50");
$node->start;
$node->safe_psql('postgres', <<'END');
CREATE EXTENSION idempotency;
CREATE ROLE prometheus LOGIN;
SELECT idem_grant('prometheus', 'monitor');
SELECT idem_once('consume', 'k');
SELECT idem_permit('bank'), idem_report('bank', true);
SELECT idem_claim('pay', 'k', lease => '1 h');
SELECT idem_emit('bank', '1'), idem_emit('bank', '2');
SELECT idem_nack(event_id, fence, '{}', retryable => false) FROM idem_take('bank', 1);
END
$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM idem_stat_worker WHERE ended_at IS NOT NULL});

# name => { values => [...], query => ... }
my %metric;
while ($config =~ /- name: (idem_\w+)\n.*?values: \[(.*?)\].*?query: \|\n((?: {10}[^\n]*\n)+)/sg)
{
	my ($name, $values, $query) = ($1, $2, $3);

	$metric{$name} = { values => [ $values =~ /(\w+)/g ], query => $query };
}
is(scalar keys %metric, 6, 'the queries are found');
for my $name (sort keys %metric)
{
	my ($rc, $out, $err) = $node->psql('postgres', "SET ROLE prometheus;\n$metric{$name}{query}");

	is($rc, 0, "$name runs as a monitor") or diag($err);
	isnt($out, '', "$name has a row");
}

# What rules and dashboard ask for is what is exported.
for my $file ('alerts.yml', 'dashboard.json')
{
	my $text = slurp_file("$kit/$file");
	my @unknown = grep { !$metric{ s/^sql_//r } } $text =~ /\b(sql_idem_\w+)/g;
	my %known = map { $_ => 1 } map { @{ $_->{values} } } values %metric;
	my @columns = map { split /\|/ } $text =~ /col=~?\\?"([\w|]+)/g;

	is_deeply(\@unknown, [], "$file names metrics that are exported");
	is_deeply([ grep { !$known{$_} } @columns ], [], "and their values");
	cmp_ok(scalar @columns, '>', 4, 'of which there are some');
}
ok(eval { decode_json(slurp_file("$kit/dashboard.json")) }, 'the dashboard is JSON');

#
# Debian's exporter.
#
{
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $host = $node->host;
	my $folder = PostgreSQL::Test::Utils::tempdir();

	$config =~ s{'postgres://.*'}{'postgres://prometheus\@/postgres?host=$host&port=@{[ $node->port ]}&sslmode=disable'};
	$config =~ s/interval: 30s/interval: 1s/;
	append_to_file("$folder/config.yml", $config);
	local $ENV{CONFIG} = "$folder/config.yml";
	my $out = '';
	my $exporter = IPC::Run::start([ 'prometheus-sql-exporter', '-config.file', "$folder/config.yml", '-web.listen-address', "127.0.0.1:$port" ],
		'<', \undef, '>&', \$out);
	my $metrics = '';
	for (1 .. 100)
	{
		my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 2);

		if ($socket)
		{
			print $socket "GET /metrics HTTP/1.0\r\n\r\n";
			$metrics = join '', <$socket>;
			last if $metrics =~ /sql_idem_worker/ && $metrics =~ /sql_idem_answers/;
		}
		Time::HiRes::usleep(100_000);
	}
	$exporter->kill_kill;
	my @missing = grep { my $name = $_; grep { $metrics !~ /^sql_$name\{.*col="$_"/m } @{ $metric{$name}{values} } } sort keys %metric;
	is_deeply(\@missing, [], 'the exporter exports every value') or diag($out);
	like($metrics, qr/^sql_idem_answers\{(?=.*col="executions")(?=.*operation="consume").*\} 1$/m, 'and they are right');
}

#
# Debian's promtool.
#
command_ok([ 'promtool', 'check', 'rules', "$kit/alerts.yml" ], 'promtool accepts the rules');
command_ok([ 'promtool', 'test', 'rules', "$kit/alerts_test.yml" ], 'and sees them fire when they should');

done_testing();
