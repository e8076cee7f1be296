# What another transaction does between two looks of one call.  No lock of SQL can
# hold a call there; a debugger does.

use strict;
use warnings;

use IdempotencyTest;
use IdempotencyTest::Debugger;
use Test::More;

my $node = new_node('main', conf => "max_connections = 20\nautovacuum = off\n");

$node->safe_psql('postgres', <<'END');
CREATE ROLE others;
CREATE ROLE worker LOGIN;
SELECT idem_grant('worker', 'worker'), idem_define('passed', '{"role": "worker"}'), idem_define('gone', '{"retention": "1 us"}');
CREATE TABLE saved AS SELECT * FROM idempotency_internal.record WHERE false;
END

# Each: what stands before, by another session that may leave a transaction open; the
# call, and the path of functions at the last of which it is held; what the other
# session does meanwhile; and what the call then says.  KEY is a key of its own.
my $completing = q{
	SELECT fence FROM idem_claim('op', 'KEY', lease => '1 h') \gset
	BEGIN;
	SELECT idem_complete_key('op', 'KEY', :fence, '1')};
my $claim = q{BEGIN; SELECT verdict FROM idem_claim('op', 'KEY'); ROLLBACK};
my $claim_with_lease = q{SELECT verdict FROM idem_claim('op', 'KEY', lease => '1 h')};
my $fail = q{SELECT idem_fail(idem_claim('op', 'KEY', lease => '1 h'), '1', true)};
my $purged = q{
	SELECT count(idem_once('gone', 'KEY-' || i)) FROM generate_series(1, 2500) i;
	SELECT idem_once('op', 'KEY');
	SELECT idem_purge(10000);
	VACUUM idempotency_internal.record};
my $purge = 'SELECT idem_purge(10000)';
my $more = q{
	SELECT count(idem_once('gone', 'more-KEY-' || i)), count(idem_claim('op', 'leased-KEY-' || i, lease => '1 h'))
	FROM generate_series(1, 100) i};
my @cases = (
	{
		name => 'a claim whose way is free once it looks who is in it',
		before => q{BEGIN; SELECT idem_claim('op', 'KEY')},
		call => $claim,
		path => [ 'idem_claim', 'open_claim_lock', 'open_claim_holder' ],
		meanwhile => 'ROLLBACK',
		says => 'execute',
	},
	{
		name => 'a claim of what nobody takes over once it looks who does',
		before => "$fail; BEGIN; $claim_with_lease",
		call => $claim,
		path => [ 'idem_claim', 'open_claim_holder_of_xid' ],
		meanwhile => 'ROLLBACK',
		says => 'execute',
	},
	{
		name => 'a status of what is completed once it looks who completes it',
		before => $completing,
		call => q{SELECT state FROM idem_status('op', 'KEY')},
		path => [ 'idem_status', 'open_claim_holder_of_xid' ],
		meanwhile => 'COMMIT',
		says => 'succeeded',
	},
	{
		name => 'a claim that takes over from what is redacted before it writes',
		before => $fail,
		call => $claim_with_lease,
		path => [ 'idem_claim', 'store_update' ],
		meanwhile => q{SELECT idem_redact('op', 'KEY')},
		says => 'execute',
	},
	{
		name => 'a claim of what a subscription brings before it writes',
		before => q{
			SELECT idem_complete(idem_claim('op', 'KEY', lease => '1 h'), '1');
			WITH gone AS (DELETE FROM idempotency_internal.record WHERE key = 'KEY' RETURNING *) INSERT INTO saved SELECT * FROM gone},
		call => $claim_with_lease,
		path => [ 'idem_claim', 'store_insert' ],
		meanwhile => q{INSERT INTO idempotency_internal.record SELECT * FROM saved WHERE key = 'KEY'},
		says => 'replay',
	},
	{
		name => 'a reconciler of what another one has had meanwhile',
		before => q{SELECT idem_unsure(idem_claim('lost', 'KEY', lease => '1 h'))},
		call => q{SELECT key FROM idem_reconcile('lost', 10, '1 h')},
		path => [ 'idem_reconcile', 'open_claim_lock' ],
		meanwhile => q{SELECT key FROM idem_reconcile('lost', 10, '1 h')},
		hears => 'KEY',
		says => '',
	},
	{
		name => 'a reconciler that may not have it any more',
		user => 'worker',
		before => q{SELECT idem_unsure(idem_claim('passed', 'KEY', lease => '1 h'))},
		call => q{SELECT key FROM idem_reconcile('passed', 10, '1 h')},
		path => [ 'idem_reconcile', 'store_probe_id' ],
		meanwhile => q{SELECT left(idem_define('passed', '{"role": "others"}')::text, 0)},
		says => '',
	},
	{
		name => 'a take while another one looks which event of a key is the first',
		before => q{SELECT idem_emit('KEY', '1', 'k')},
		call => q{SELECT payload FROM idem_take('KEY')},
		path => [ 'idem_take', 'queue_first_of_key' ],
		meanwhile => q{SELECT count(*) FROM idem_take('KEY')},
		hears => 0,
		says => 1,
	},
	{
		name => 'a redelivery of what is taken before it is made due',
		before => q{SELECT idem_emit('KEY', '1')},
		call => q{SELECT idem_redeliver(event_id) FROM idempotency_internal.outbox WHERE destination = 'KEY'},
		path => [ 'idem_redeliver', 'rows_lock', 'rows_lock' ],
		meanwhile => q{SELECT attempt FROM idem_take('KEY', lease => '1 h')},
		hears => 1,
		says => '',
		then => q{SELECT count(*) FROM idempotency_internal.outbox_due WHERE destination = 'KEY' AND lease_until > now()},
		left => 1,
	},
	{
		name => 'a summary of a range that gets rows before it is begun',
		before => $purged,
		call => $purge,
		path => [ 'idem_purge', 'brin_doupdate' ],
		meanwhile => $more,
		hears => '100|100',
		says => 0,
		then => $purge,
		left => 100,
	},
	{
		name => 'a summary of a range that gets rows before it is done',
		before => $purged,
		call => $purge,
		path => [ 'idem_purge', 'brin_doupdate', 'brin_doupdate' ],
		meanwhile => $more,
		hears => '100|100',
		says => 0,
		then => $purge,
		left => 100,
	});

foreach my $n (0 .. $#cases)
{
	my $case = $cases[$n];
	my $text = sub {
		my ($sql) = @_;
		$sql =~ s/KEY/key-$n/g;
		return $sql;
	};
	my $other = session($node);
	my $held = session($node, $case->{user} ? (user => $case->{user}) : ());

	$held->run(q{SELECT idem_id('op', 'k')});    # it has the library
	$other->run($text->($case->{before}));
	my $debugger = IdempotencyTest::Debugger->new($held->pid);
	$debugger->stop_at(@{ $case->{path} });
	$held->send($text->($case->{call}));
	$debugger->wait_until_stopped($held);
	my $heard = $other->value($text->($case->{meanwhile}));
	is($heard, $text->($case->{hears}), "$case->{name}: the other one") if defined $case->{hears};
	$debugger->let_go;
	is($held->result, $text->($case->{says}), $case->{name});
	is($other->value($text->($case->{then})), $case->{left}, "$case->{name}: what is left") if $case->{then};
	$_->quit foreach $held, $other;
}
is(heap_and_index_agree($node), '', 'tables and indexes agree');

$node->stop;
done_testing();
