# README.md, kept true: its SQL is run in reading order, what it shows as a
# result ("-- => ...") is compared, and its tables are held against the
# extension: settings and their defaults, functions, server settings, SQLSTATEs.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $readme = slurp_file('README.md');
my $node = PostgreSQL::Test::Cluster->new('readme');
$node->init;
$node->start;

# The text from a heading to the next one of its rank.
sub section
{
	my ($title) = @_;
	$readme =~ /^## \Q$title\E\n(.*?)(?=^## |\z)/ms or die "no section $title";
	return $1;
}

# The first cells of the tables in a text, one list of `words` a row.
sub first_cells
{
	my ($text) = @_;
	return map { [/`([^`]+)`/g] } $text =~ /^\| (`[^|]*) \|/mg;
}

sub lines { return [ sort split /\n/, $node->safe_psql('plain', shift) ]; }

#
# The SQL, in one session, because later blocks use what earlier ones made.
#
my @blocks;
while ($readme =~ /^```sql\n(.*?)^```/msg)
{
	push @blocks, { sql => $1, line => 1 + (substr($readme, 0, $-[1]) =~ tr/\n//) };
}
cmp_ok(scalar @blocks, '>', 5, 'the README has SQL');
my @first = grep { $_->{line} < 60 } @blocks;
like($first[0]{sql}, qr/idem_complete\(/, 'a procedure is shown by line 60');
like($first[1]{sql}, qr/lease =>.*idem_complete_key\(/s, 'a lease is shown by line 60');
cmp_ok($first[1]{line} + ($first[1]{sql} =~ tr/\n//), '<=', 61, 'both end by line 60');

my $script = join '', map { "\\echo -- block $_->{line}\n$_->{sql}" } @blocks;
my ($status, $out, $err) = $node->psql('postgres', $script,
	on_error_stop => 1, extra_params => [ '-F', ' | ' ]);
is($status, 0, 'the SQL runs') or diag($err);

for my $block (@blocks)
{
	my @shown = $block->{sql} =~ /-- => (.*)$/mg or next;
	my ($printed) = "$out\n" =~ /^-- block $block->{line}\n(.*?)(?=^-- block |\z)/ms;
	is_deeply([ grep { $_ ne '' } split /\n/, $printed // '' ],
		\@shown, "line $block->{line} prints what it shows");
}

#
# The tables.
#
$node->safe_psql('postgres', 'CREATE DATABASE plain');
$node->safe_psql('plain', 'CREATE EXTENSION idempotency');

my ($of_operation, $of_server) = split /^Settings of the server\. /m,
	section('Settings of an operation');
is_deeply([ sort map { s/^`|`$//gr } $of_operation =~ /^\| (`[^|]+` \| `[^|]+`) \|/mg ],
	lines(q{SELECT key || '` | `' || value FROM jsonb_each(idem_policy('any'))}),
	'all settings are listed, with their defaults');
is_deeply([ sort map { s/^`|`$//gr } section('Settings of a destination') =~ /^\| (`[^|]+` \| `[^|]+`) \|/mg ],
	lines(q{SELECT key || '` | `' || value FROM jsonb_each(idem_destination_policy('any'))}),
	'all settings of destinations are listed, with their defaults');
is_deeply([ sort map { @$_ } first_cells($of_server) ],
	lines(q{LOAD 'idempotency';
		SELECT name FROM pg_settings WHERE name LIKE 'idempotency.%'}),
	'all server settings are listed');
is_deeply([ sort map { @$_ } first_cells(section('Functions')) ],
	lines(q{SELECT p.proname FROM pg_extension e JOIN pg_depend d ON d.refobjid = e.oid
		JOIN pg_proc p ON p.oid = d.objid
		WHERE e.extname = 'idempotency' AND d.deptype = 'e'
		AND d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_proc'::regclass}),
	'all functions are listed');

my %listed;
for my $cell (first_cells(section('Errors')))
{
	$listed{$_} = 1 for @$cell;
	# `ID010` to `ID014`
	my ($from, $to) = map { /^ID(\d+)$/ ? $1 : () } @$cell;
	$listed{ sprintf 'ID%03d', $_ } = 1 for defined $to ? $from .. $to : ();
}
is_deeply([ grep { !$listed{$_} } @{ lines(q{SELECT DISTINCT m[1] FROM pg_proc,
		regexp_matches(obj_description(oid, 'pg_proc'), '\y(ID\d{3}|[0-9]{2}[0-9A-Z]{3})\y', 'g') m
		WHERE proname LIKE 'idem\_%'}) } ],
	[], 'all SQLSTATEs that functions say they raise are listed');

done_testing();
