# README.md and the pages that make up the manual, kept true: the SQL of each
# page is run in reading order in a database of its own, what it shows as a
# result ("-- => ...") is compared, and the tables are held against the
# extension: settings and their defaults, functions, server settings, SQLSTATEs.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('readme');
$node->init;
$node->start;

my %page = map { $_ => slurp_file($_) }
	qw(README.md docs/answers.md docs/settings.md docs/reference.md docs/operations.md);

# The text of a page from a heading to the next one of its rank.
sub section
{
	my ($page, $title) = @_;
	$page{$page} =~ /^## \Q$title\E\n(.*?)(?=^## |\z)/ms or die "no section $title in $page";
	return $1;
}

# The first cells of the tables in a text, one list of `words` a row.
sub first_cells
{
	my ($part) = @_;
	return map { [/`([^`]+)`/g] } $part =~ /^\| (`[^|]*) \|/mg;
}

sub lines { return [ sort split /\n/, $node->safe_psql('plain', shift) ]; }

# The blocks of SQL in a page, with their line numbers.
sub blocks
{
	my ($page) = @_;
	my @blocks;
	while ($page{$page} =~ /^```sql\n(.*?)^```/msg)
	{
		push @blocks, { sql => $1, line => 1 + (substr($page{$page}, 0, $-[1]) =~ tr/\n//) };
	}
	return @blocks;
}

#
# README.md leads with what a newcomer needs.
#
my @first = blocks('README.md');
cmp_ok(scalar @first, '>', 5, 'the README has SQL');
like($page{'README.md'}, qr/\A(?:.*\n){0,19}.*make install/, 'N23: make install stands by line 20');
cmp_ok($page{'README.md'} =~ tr/\n//, '<=', 280, 'the README has at most 280 lines');
like($first[0]{sql}, qr/CREATE SCHEMA.*idem_complete\(/s, 'a procedure is shown first');
like($first[1]{sql}, qr/lease =>.*idem_complete_key\(/s, 'a lease is shown next');

like($page{'README.md'}, qr/^\| operation, key \|.*^\| principal \|.*^\| fence \|.*^\| lease \|.*^\| retention, guard \|/ms,
	'N23: the words are explained');
like($page{'README.md'}, qr/^idem_claim\(operation text, key text/m, "N23: idem_claim's signature is shown");
like($page{'README.md'}, qr/^\\else\n/m, 'N23: the blocks for clients branch on the verdict');
like($page{'README.md'}, qr/^`\* \* \* \* \* psql .*idem_purge\(\)/m, 'N23: a line of a crontab purges');

# What else a user must be told.
like($page{'docs/settings.md'}, qr/binds\nonly sessions that cannot run `SET`.*`pg_locks` shows/s,
	'F14: what principal_setting binds, and what it does not hide');
like($page{'docs/operations.md'}, qr/^\*\*Removing\.\*\*.*\n.*\n.*restart before `make uninstall`/m,
	'N21: a server that preloads the library needs it to start');
like(slurp_file('test/README.md'), qr/pgTAP and\n`max_prepared_transactions` above 0/,
	'N20: what installcheck needs of a server');
like(slurp_file('docs/chain.md'), qr/^CREATE TABLE task.*^BEGIN;\nINSERT INTO task.*`idem_list`/ms,
	'S05: where a worker finds the params, and a page that lost its key its work');

# Of two rows that fit, the first must be the right one.
my ($late, $fresh) = map { index(section('docs/answers.md', 'The decision table'), $_) }
	'carries its time and is older', "| nothing on record, or forgotten | `execute`";
cmp_ok($late, '<', $fresh, 'T07: a late key stands before what is not on record');
cmp_ok($late, '>', 0, 'T07: and it is there');

#
# The SQL: each page in one session, because later blocks use what earlier ones made.
#
for my $page (sort keys %page)
{
	my @blocks = blocks($page) or next;
	my $database = $page =~ s/\W/_/gr;
	$node->safe_psql('postgres', qq{CREATE DATABASE "$database"});
	my $script = join '', map { "\\echo -- block $_->{line}\n$_->{sql}" } @blocks;
	my ($status, $out, $err) = $node->psql($database, $script,
		on_error_stop => 1, extra_params => [ '-F', ' | ' ]);
	is($status, 0, "$page: the SQL runs") or diag($err);

	for my $block (@blocks)
	{
		my @shown = $block->{sql} =~ /-- => (.*)$/mg or next;
		my ($printed) = "$out\n" =~ /^-- block $block->{line}\n(.*?)(?=^-- block |\z)/ms;
		is_deeply([ grep { $_ ne '' } split /\n/, $printed // '' ],
			\@shown, "$page: line $block->{line} prints what it shows");
	}
}

#
# The tables.
#
$node->safe_psql('postgres', 'CREATE DATABASE plain');
$node->safe_psql('plain', 'CREATE EXTENSION idempotency');

for my $kind ([ 'operation', 'idem_policy' ], [ 'destination', 'idem_destination_policy' ])
{
	my ($of, $shown_by) = @$kind;
	my $table = section('docs/settings.md', ($of eq 'operation' ? 'Settings of an ' : 'Settings of a ') . $of);
	is_deeply([ sort map { s/^`|`$//gr } $table =~ /^\| (`[^|]+` \| `[^|]+`) \|/mg ],
		lines(qq{SELECT key || '` | `' || value FROM jsonb_each($shown_by('any'))}),
		"all settings of $of are listed, with their defaults");
}
is_deeply([ sort map { @$_ } first_cells(section('docs/settings.md', 'Settings of the server')) ],
	lines(q{LOAD 'idempotency';
		SELECT name FROM pg_settings WHERE name LIKE 'idempotency.%'}),
	'all server settings are listed');
is_deeply([ sort map { @$_ } first_cells(section('docs/reference.md', 'Functions')) ],
	lines(q{SELECT p.proname FROM pg_extension e JOIN pg_depend d ON d.refobjid = e.oid
		JOIN pg_proc p ON p.oid = d.objid
		WHERE e.extname = 'idempotency' AND d.deptype = 'e'
		AND d.refclassid = 'pg_extension'::regclass AND d.classid = 'pg_proc'::regclass
		AND p.pronamespace <> 'idempotency_internal'::regnamespace}),
	'all functions are listed');

# What a record takes: `idem_once`, and with fingerprint and result; a UUIDv7 as key.
my @said = $page{'docs/operations.md'} =~ /^\*\*Size\.\*\* A record takes about (\d+) bytes .*? to\n(\d+) /m;
for my $kind ([ once => q{SELECT idem_once('export', idem_new_key(), 'acme')} ],
	[ claim => q{SELECT idem_complete(idem_claim('create_order', idem_new_key(), '{"item": 1}', 'acme'),
		'{"order_id": 1, "state": "confirmed!"}')} ])
{
	my ($name, $call) = @$kind;
	my $said = shift @said;
	$node->safe_psql('postgres', qq{CREATE DATABASE "size_$name"});
	$node->safe_psql("size_$name", "CREATE EXTENSION idempotency; $call FROM generate_series(1, 20000)");
	my $bytes = $node->safe_psql("size_$name", q{SELECT sum(pg_table_size(oid) + pg_indexes_size(oid)) / 20000
		FROM pg_class WHERE oid::regclass::text ~ '^idempotency_internal\.record' AND pg_relation_size(oid) > 0 AND relkind = 'r'});
	cmp_ok(abs($bytes - $said), '<', 0.1 * $said, sprintf 'S07: a record of %s takes %.0f bytes, as said', $name, $bytes);
}

my %listed;
for my $cell (first_cells(section('docs/reference.md', 'Errors')))
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
