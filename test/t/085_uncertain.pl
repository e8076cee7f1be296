# docs/uncertain.md, kept true: its SQL is run in reading order and what it shows
# ("-- => ...") is compared; its script is run against a provider that is a
# folder of files.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main');
my $page = page_is_true($node, 'docs/uncertain.md');

# --- the script ------------------------------------------------------------------

my ($script) = $page =~ /^```sh\n(.*?)^```/ms;
my $folder = PostgreSQL::Test::Utils::tempdir;
append_to_file("$folder/reconcile-pay", $script);
write_program('ask-provider', <<'END');
# A file named after the key is a charge; a file "down" is a provider that is.
echo "$1" >>"$ASKED"
[ ! -e "$CHARGES/down" ] || exit 7
cat "$CHARGES/$1" 2>/dev/null || exit 1
END
chmod 0755, "$folder/reconcile-pay";
mkdir "$folder/charges";

$node->safe_psql('postgres', q{CREATE ROLE keeper LOGIN; SELECT idem_grant('keeper', 'worker')});

sub write_program
{
	my ($name, $body) = @_;

	unlink "$folder/$name";
	append_to_file("$folder/$name", "#!/usr/bin/env bash\n$body");
	chmod 0755, "$folder/$name";
	return;
}

# A payment of which only the provider knows more.
sub lose
{
	my ($key) = @_;

	return one_value($node, "SELECT idem_downstream_key(c.id, 'charge') FROM (SELECT idem_claim('pay', \$\$$key\$\$, '1', lease => '1 h')) x (a), "
		  . 'LATERAL (SELECT (x.a).*) c, LATERAL (SELECT idem_unsure(x.a)) u');
}

sub reconcile
{
	local $ENV{PATH} = "$folder:$ENV{PATH}";
	local $ENV{CHARGES} = "$folder/charges";
	local $ENV{ASKED} = "$folder/asked";
	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	local $ENV{PGDATABASE} = 'postgres';
	local $ENV{PGUSER} = 'keeper';

	unlink "$folder/asked";
	my ($stdout, $stderr);
	my $good = IPC::Run::run([ 'reconcile-pay', 'once' ], '>', \$stdout, '2>', \$stderr);
	return ($good, $stdout, $stderr);
}

sub state_of
{
	my ($key) = @_;

	return one_value($node, "SELECT concat_ws(' ', state, result) FROM idem_status('pay', \$\$$key\$\$)");
}

my $charged = lose('charged');
my $awkward = q{it's a "key" \ with | blanks};
my $lost = lose($awkward);
append_to_file("$folder/charges/$charged", qq({"charge": "it's ch_9"}\n));
append_to_file("$folder/charges/down", '');

my ($good, $stdout, $stderr) = reconcile();
ok($good, 'the script ends well while the provider is down') or diag($stderr);
is($stdout, '', 'it has resolved nothing');
is(state_of($_), 'unknown', 'unknown as before') foreach 'charged', $awkward;
is(slurp_file("$folder/asked"), "$charged\n$lost\n", 'it asked about each once, oldest first');

unlink "$folder/charges/down";
($good, $stdout) = reconcile();
is($stdout, '', 'the next run is too early for a second try');
$node->safe_psql('postgres', 'UPDATE idempotency_internal.open_work SET due_at = now()');
($good, $stdout, $stderr) = reconcile();
ok($good, 'the provider answers again: the script ends well') or diag($stderr);
is($stdout, "charged|succeeded\n$awkward|absent\n", 'each is resolved');
is(state_of('charged'), q(succeeded {"charge": "it's ch_9"}), 'the charge that was found is the result');
is(one_value($node, "SELECT verdict || ' ' || attempt FROM idem_claim('pay', \$\$$awkward\$\$, '1', lease => '1 h')"),
	'execute 2', 'what was not executed may be');

# the owner was quicker: ID002, and the script goes on
lose('raced');
my $next = lose('next');
append_to_file("$folder/charges/$next", '{"charge": "ch_10"}');
my $fence = one_value($node, q{SELECT fence FROM idempotency_internal.record WHERE key = 'raced'});
write_program('ask-provider', <<"END");
psql -XAtqc "SELECT idem_complete_key('pay', 'raced', $fence, '1')" >/dev/null 2>&1 || true
cat "\$CHARGES/\$1" 2>/dev/null || exit 1
END
($good, $stdout, $stderr) = reconcile();
ok($good, 'an owner that was quicker does not stop it');
like($stderr, qr/it is not unknown/, 'it was told so');
is(state_of('raced'), 'succeeded 1', 'the outcome is that of the owner');
is(state_of('next'), 'succeeded {"charge": "ch_10"}', 'the next one is resolved');

done_testing();
