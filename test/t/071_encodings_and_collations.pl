# One id and one fingerprint for one value, whatever the encoding and collation
# of the database.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('main');

my %encoding = (utf8 => 'UTF8', latin1 => 'LATIN1', euc_jp => 'EUC_JP', sql_ascii => 'SQL_ASCII');
foreach my $db (sort keys %encoding)
{
	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0 ENCODING '$encoding{$db}' LOCALE 'C'");
	$node->safe_psql($db, 'CREATE EXTENSION idempotency');
}

# All clients speak UTF-8; to SQL_ASCII the bytes go as they are.
my %db = map { $_ => session($node, dbname => $_, client_encoding => $_ eq 'sql_ascii' ? 'SQL_ASCII' : 'UTF8') } sort keys %encoding;

# --- the same everywhere -------------------------------------------------------------------

# text that only some of them can hold, as UTF-8 bytes
my %text = (
	'ASCII' => [ 'key-1', qw(utf8 latin1 euc_jp sql_ascii) ],
	'French' => [ "d\xc3\xa9j\xc3\xa0 vu", qw(utf8 latin1 sql_ascii) ],
	'Japanese' => [ "\xe6\xb3\xa8\xe6\x96\x87-1", qw(utf8 euc_jp sql_ascii) ]);
foreach my $language (sort keys %text)
{
	my ($text, @dbs) = @{ $text{$language} };

	foreach my $what ("idem_id('op', '$text')", "idem_id('$text', 'k', '$text')", "idem_fingerprint('{\"$text\": [\"$text\", 1.50]}')",
		"idem_downstream_key('61362f49-1d33-8116-af4a-a257885ad4be', '$text')")
	{
		my %value = map { $db{$_}->value("SELECT $what") => 1 } @dbs;
		is(scalar keys %value, 1, "$language: $what is the same in " . join ', ', @dbs);
	}
	foreach my $db (@dbs)
	{
		my $session = $db{$db};

		is($session->value("SELECT idem_complete(c, '{\"$text\": 1}') FROM idem_claim('op', '$text', '{\"a\": \"$text\"}', '$text') c"),
			"{\"$text\": 1}", "$language in $db: claimed and completed");
		is($session->value("SELECT key || principal FROM idem_status('op', '$text', '$text')"), "$text$text", "$language in $db: texts come back");
		is($session->value("SELECT verdict FROM idem_claim('op', '$text', '{\"a\": \"$text\"}', '$text')"), 'replay', "$language in $db: replayed");
		is($session->value("SELECT verdict FROM idem_claim('op', '$text', '{\"a\": \"$text!\"}', '$text')"), 'mismatch', "$language in $db: mismatch");
	}
}
foreach my $db (sort keys %db)
{
	is($db{$db}->value("SELECT idem_id('create_order', 'k1', 'acme')"), '61362f49-1d33-8116-af4a-a257885ad4be', "$db: the id of the contract");
	is($db{$db}->value("SELECT encode(idem_fingerprint('{\"b\": 1, \"aa\": 2}'), 'hex')"),
		one_value($node, "SELECT encode(sha256('{\"aa\":2,\"b\":1}'), 'hex')"), "$db: the fingerprint is that of the canonical text");
}

# Limits count UTF-8 bytes, not characters or bytes of the encoding.
my $e = "\xc3\xa9";
is($db{latin1}->try("BEGIN; SELECT idem_claim('op', repeat('$e', 127) || 'x'); ROLLBACK"), '00000', '255 UTF-8 bytes in 128 LATIN1 characters');
is($db{latin1}->try("SELECT idem_claim('op', repeat('$e', 128))"), '22023', '256 are too many');
my $jp = "\xe6\xb3\xa8";
is($db{euc_jp}->try("BEGIN; SELECT idem_claim('op', repeat('$jp', 85)); ROLLBACK"), '00000', '85 Japanese characters are 255 UTF-8 bytes');
is($db{euc_jp}->try("SELECT idem_claim('op', repeat('$jp', 86))"), '22023', '86 are too many');

# --- bytes that are nothing ------------------------------------------------------------------

# SQL_ASCII takes any; what is not UTF-8 has no id and no canonical form.
foreach my $bytes ("\\xff", "\\xc3", "\\xc3(", "\\xe6\\xb3", "\\xc0\\xaf", "\\xed\\xa0\\x80", "\\xf4\\x90\\x80\\x80", "a\\x80b")
{
	foreach my $call ("idem_id('op', E'$bytes')", "idem_id(E'$bytes', 'k')", "idem_id('op', 'k', E'$bytes')",
		"idem_claim('op', E'$bytes')", "idem_claim(E'$bytes', 'k')", "idem_claim('op', 'k', principal => E'$bytes')",
		"idem_status('op', E'$bytes')", "idem_complete_key('op', E'$bytes', 1)")
	{
		is($db{sql_ascii}->try("SELECT $call"), '22023', "SQL_ASCII: $call is refused");
	}
	is($db{sql_ascii}->try("SELECT idem_claim('op', 'params', (E'{\"a\": \"$bytes\"}')::jsonb)"), '22032', "SQL_ASCII: $bytes in params is refused");
	is($db{sql_ascii}->try("SELECT idem_claim('op', 'params', (E'{\"$bytes\": 1}')::jsonb)"), '22032', "SQL_ASCII: $bytes as a name is refused");
	is($db{sql_ascii}->value("SELECT state FROM idem_status('op', 'params')"), 'absent', 'and leaves nothing');
}

# --- collations ---------------------------------------------------------------------------------

my @alike = ('a-b', 'ab', 'a b', 'Ab', 'AB', "a\xcc\x81b", "\xc3\xa1b", 'ab ', ' ab', "ab\t", "a\xc2\xadb");

sub all_differ
{
	my ($session, $name) = @_;
	my @verdicts;

	$session->run("DELETE FROM keys; INSERT INTO keys VALUES ('" . join("'), ('", @alike) . "')");
	is($session->value('SELECT count(*) FROM keys a, keys b WHERE a.key = b.key') > @alike ? 'alike' : 'different',
		$name =~ /nondeterministic/ ? 'alike' : 'different', "$name: to the column they are");
	is($session->value("SELECT count(DISTINCT c.id) || ' ' || count(*) FILTER (WHERE c.verdict = 'execute') || ' ' || count(idem_complete(c, to_jsonb(c.key))) "
			  . 'FROM keys k, idem_claim(k.operation, k.key, NULL, k.principal) c'),
		join(' ', (scalar @alike) x 3), "$name: to us each is a key of its own");
	is($session->value("SELECT count(*) FROM keys k, idem_claim(k.operation, k.key, NULL, k.principal) c WHERE verdict = 'replay' AND result = to_jsonb(k.key::text)"),
		scalar @alike, "$name: with its own outcome");
	return;
}

my $icu = one_value($node, "SELECT count(*) FROM pg_collation WHERE collprovider = 'i'") > 0;
if (!$icu)
{
	note('this server knows no ICU: only its own collations are tried');
	my $session = session($node);
	$session->run('CREATE TABLE keys (key text, operation text DEFAULT $$op$$, principal text DEFAULT $$acme$$)');
	all_differ($session, 'without ICU');
}
else
{
	my $session = session($node);
	$session->run(q{CREATE COLLATION nondeterministic (provider = icu, locale = 'und-u-ka-shifted-ks-level1', deterministic = false);
		CREATE TABLE keys (key text COLLATE nondeterministic, operation text COLLATE nondeterministic DEFAULT 'op',
			principal text COLLATE nondeterministic DEFAULT 'acme')});
	all_differ($session, 'a nondeterministic column');

	$node->safe_psql('postgres', q{CREATE DATABASE icu TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'und-u-ka-shifted-ks-level1'});
	$node->safe_psql('icu', 'CREATE EXTENSION idempotency');
	$session = session($node, dbname => 'icu');
	$session->run(q{CREATE TABLE keys (key text, operation text DEFAULT 'op', principal text DEFAULT 'acme')});
	all_differ($session, 'an ICU database');
	$session->run(q{DROP TABLE keys; CREATE COLLATION nondeterministic (provider = icu, locale = 'und-u-ka-shifted-ks-level1', deterministic = false);
		CREATE TABLE keys (key text COLLATE nondeterministic, operation text COLLATE nondeterministic DEFAULT 'Op',
			principal text COLLATE nondeterministic DEFAULT 'Acme')});
	all_differ($session, 'a nondeterministic column of an ICU database');

	is($session->value("SELECT count(DISTINCT idem_policy(o COLLATE nondeterministic)->>'retention') FROM unnest(ARRAY['pay', 'PAY', 'p-ay']) o, "
			  . "idem_define('pay', '{\"retention\": \"7 days\"}')"),
		2, 'a policy is that of one operation, not of those that compare equal');
}
is(one_value($node, q{
	SELECT string_agg(DISTINCT c.collname, ',') FROM pg_index i
		CROSS JOIN LATERAL unnest(i.indcollation) AS k(oid) JOIN pg_collation c ON c.oid = k.oid
	WHERE i.indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'idempotency_internal'::regnamespace)}),
	'C', 'no index of ours depends on a collation');

$node->stop;
done_testing();
