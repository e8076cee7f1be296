# kill -9 of the whole server while clients work and one call is held at a named
# instant: before and after its lock, its rows, their WAL, its commit record, the
# flush of that, and the end of its transaction for others (ProcArray).  What is
# true after any crash is true after these (021_crash_under_load.pl), and it is
# known whether the call happened.
#
#   IDEM_INSTANTS=all          each (4 otherwise, spread over them); make crash
#   IDEM_INSTANTS=truncat      those whose name or path matches
#
# Meanwhile another session asks for what the call has in hand, where the answer
# does not need a page that the held one has locked.

use strict;
use warnings;

use IdempotencyTest;
use IdempotencyTest::Debugger;
use IdempotencyTest::Load;
use Test::More;

my $SPREAD = 4;

# Then a new one, lest the checks take ever longer.
my $PER_SERVER = 20;

# --- the places -------------------------------------------------------------------

# A path of functions, at the last of which the call is held, and what the crash
# then leaves: nothing of the call, all of it, or either.

sub held_at
{
	my ($left, @path) = @_;

	return { left => $left, path => [@path] };
}

sub asked_at
{
	return { %{ held_at(@_) }, asked => 1 };
}

# What every transaction that has written goes through.  From the flush on it
# cannot be undone; others see it after ProcArrayEndTransaction.
my @record = (
	asked_at('nothing', 'XactLogCommitRecord'),
	asked_at('nothing', 'XactLogCommitRecord', 'XLogInsertRecord'),
	asked_at('either', 'XactLogCommitRecord', 'XLogFlush'),
	asked_at('all', 'XactLogCommitRecord', 'TransactionIdCommitTree'));
my @commit = (
	@record,
	asked_at('all', 'XactLogCommitRecord', 'ProcArrayEndTransaction'),
	held_at('all', 'XactLogCommitRecord', 'ProcArrayEndTransaction', 'LockReleaseAll'));

my @lock = (held_at('nothing', 'idem_claim', 'open_claim_lock', 'LockAcquire'));

# A row that is inserted by, or after, a function of ours.
sub inserted
{
	my ($from) = @_;

	return (
		asked_at('nothing', $from, 'heap_insert'),
		held_at('nothing', $from, 'heap_insert', 'XLogInsertRecord'),
		asked_at('nothing', $from, 'heap_insert', '_bt_doinsert'),
		held_at('nothing', $from, 'heap_insert', '_bt_doinsert', 'XLogInsertRecord'));
}

sub changed
{
	my ($from, $how) = @_;

	return (asked_at('nothing', $from, $how), held_at('nothing', $from, $how, 'XLogInsertRecord'));
}

# --- the calls --------------------------------------------------------------------

# Each with what was acknowledged before it and what it is; KEY stands for its key.
# states: what is read before and after it, as a rule with the $state.  ask, hears:
# what another session asks meanwhile, as a rule a $claim, and is told.

my $state = q{
	SELECT string_agg(DISTINCT concat_ws(' ', s.state, s.attempt), ', ')
	FROM load_keys('KEY', 'KIND') each, idem_status('load', each) s};
my $claim = q{
	BEGIN;
	SELECT c.verdict FROM load_keys('KEY', 'KIND') each, idem_claim('load', each, load_params('KEY', 'KIND')) c LIMIT 1;
	ROLLBACK};
my $event_state = q{
	SELECT coalesce((SELECT CASE WHEN lease_until > now() THEN 'leased' ELSE 'due' END
		FROM idempotency_internal.outbox_due WHERE destination = 'KEY'), 'delivered')};
my $take = q{SELECT count(*) FROM idem_take('KEY')};
my $lease = q{
	SELECT CASE WHEN lease_until > now() + '2 h' THEN 'renewed' ELSE 'leased' END
	FROM idem_record WHERE key = 'KEY'};
my $leased = q{SELECT fence FROM idem_claim('load', 'KEY', '"KEY"', lease => '1 h') \gset};
my $outcome = q{
	SELECT concat_ws(' ', s.state, s.attempt, s.result, s.error) FROM idem_status('load', 'KEY') s};
my $forgotten = q{SELECT count(*) FROM idem_record WHERE operation = 'forgotten'};

my $fail = q{
	BEGIN;
	SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
	SELECT idem_fail_key('load', 'KEY', :fence, '"again"', true) AS done \gset
	COMMIT};
my $prepare = q{
	BEGIN;
	SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
	INSERT INTO business VALUES ('KEY', 1, 'held');
	SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"') AS done \gset
	PREPARE TRANSACTION 'KEY'};

my %calls = (
	'an atomic claim' => {
		kind => 'atomic',
		call => q{
			BEGIN;
			SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
			INSERT INTO business VALUES ('KEY', 1, 'held');
			SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"');
			COMMIT},
		states => [ 'absent', 'succeeded 1' ],
		places => [
			@lock,
			asked_at('nothing', 'idem_claim', 'open_claim_begin'),
			inserted('idem_complete_key'),
			asked_at('nothing', 'open_claim_finish', 'LockRelease'),
			@commit
		],
	},
	'a leased claim' => {
		kind => 'leased',
		call => q{SELECT idem_claim('load', 'KEY', '"KEY"', lease => '1 h')},
		states => [ 'absent', 'processing 1' ],
		places => [
			@lock,
			inserted('store_insert'),
			inserted('work_follow'),
			asked_at('nothing', 'idem_claim', 'open_claim_unlock'),
			@commit
		],
	},
	'a completion' => {
		kind => 'leased',
		before => $leased,
		call => q{
			BEGIN;
			INSERT INTO business VALUES ('KEY', 1, 'held');
			SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"');
			COMMIT},
		states => [ 'processing 1', 'succeeded 1' ],
		places => [ changed('store_update', 'heap_update'), changed('work_follow', 'heap_delete'), @commit ],
	},
	'a takeover with a lease' => {
		kind => 'leased',
		before => $fail,
		call => q{SELECT idem_claim('load', 'KEY', '"KEY"', lease => '1 h')},
		states => [ 'failed 1', 'processing 2' ],
		places => [ @lock, changed('store_update', 'heap_update'), inserted('work_follow'), @commit ],
	},
	'an atomic takeover' => {
		kind => 'retried',
		before => $fail,
		call => q{
			BEGIN;
			SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
			INSERT INTO business VALUES ('KEY', 2, 'held');
			SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"');
			COMMIT},
		states => [ 'failed 1', 'succeeded 2' ],
		places => [
			asked_at('nothing', 'idem_claim', 'open_claim_begin'),
			changed('store_update', 'heap_update'),
			asked_at('nothing', 'open_claim_finish', 'LockRelease'),
			@commit
		],
	},
	'a release' => {
		kind => 'leased',
		before => $leased,
		call => q{SELECT idem_release_key('load', 'KEY', :fence)},
		states => [ 'processing 1', 'absent' ],
		places => [ changed('store_update', 'heap_update'), changed('work_follow', 'heap_delete'), @commit ],
	},
	'a resolution' => {
		kind => 'leased',
		before => q{SELECT fence FROM idem_claim('load', 'KEY', '"KEY"', lease => '1 us') \gset},
		call => q{
			BEGIN;
			INSERT INTO business VALUES ('KEY', 1, 'held');
			SELECT idem_resolve('load', 'KEY', 'succeeded', '"KEY"');
			COMMIT},
		hears => 'unknown',
		states => [ 'unknown 1', 'succeeded 1' ],
		places => [ changed('store_update', 'heap_update'), changed('work_follow', 'heap_delete'), @commit ],
	},
	'a failure' => {
		kind => 'leased',
		before => $leased,
		call => q{SELECT idem_fail_key('load', 'KEY', :fence, '"refused"')},
		states => [ 'processing 1', 'failed 1' ],
		places => [ changed('store_update', 'heap_update'), changed('work_follow', 'heap_delete'), @commit ],
	},
	'an unsure outcome' => {
		kind => 'leased',
		before => $leased,
		call => q{SELECT idem_unsure_key('load', 'KEY', :fence, '"lost"')},
		states => [ 'processing 1', 'unknown 1' ],
		places => [ changed('store_update', 'heap_update'), changed('work_follow', 'heap_update'), @commit ],
	},
	'a renewal' => {
		kind => 'leased',
		before => $leased,
		call => q{SELECT idem_renew_key('load', 'KEY', :fence, '3 h')},
		state => $lease,
		states => [ 'leased', 'renewed' ],
		places => [ changed('store_update', 'heap_update'), changed('work_follow', 'heap_update'), @commit ],
	},
	'an end of a lease' => {
		kind => 'leased',
		before => $leased,
		call => q{SELECT idem_expire_lease('load', 'KEY')},
		states => [ 'processing 1', 'unknown 1' ],
		places => [ changed('store_update', 'heap_update'), changed('work_follow', 'heap_update'), @commit ],
	},
	'a cancellation' => {
		kind => 'leased',
		call => q{SELECT idem_cancel('load', 'KEY')},
		states => [ 'absent', 'failed 0' ],
		places => [ inserted('store_insert'), asked_at('nothing', 'idem_cancel', 'open_claim_unlock'), @commit ],
	},
	'a cancellation of what was accepted' => {
		kind => 'leased',
		before => q{SELECT idem_accept('load', 'KEY', '"KEY"')},
		call => q{SELECT idem_cancel('load', 'KEY')},
		states => [ 'accepted 0', 'failed 0' ],
		places => [ changed('store_update', 'heap_update'), changed('work_follow', 'heap_delete'), @commit ],
	},
	'a reopening' => {
		kind => 'leased',
		before => $leased . q{
			SELECT idem_fail_key('load', 'KEY', :fence, '"refused"')},
		call => q{SELECT idem_reopen('load', 'KEY', reason => 'mended')},
		hears => 'replay',
		state => $outcome,
		states => [ 'failed 1 "refused"', 'failed 1 {"error": "refused", "reopened": "mended"}' ],
		places => [ changed('store_update', 'heap_update'), @commit ],
	},
	'a redaction' => {
		kind => 'leased',
		before => q{
			BEGIN;
			SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
			INSERT INTO business VALUES ('KEY', 1, 'held');
			SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"');
			COMMIT},
		call => q{SELECT idem_redact('load', 'KEY')},
		hears => 'replay',
		state => $outcome,
		states => [ 'succeeded 1 "KEY"', 'succeeded 1' ],
		places => [ changed('store_update', 'heap_update'), @commit ],
	},
	'an acceptance' => {
		kind => 'leased',
		call => q{SELECT idem_accept('load', 'KEY', '"KEY"')},
		states => [ 'absent', 'accepted 0' ],
		places => [ inserted('store_insert'), inserted('work_follow'), @commit ],
	},
	'a start' => {
		kind => 'leased',
		before => q{SELECT idem_accept('load', 'KEY', '"KEY"')},
		call => q{SELECT idem_start('load', 'KEY', '1 h')},
		states => [ 'accepted 0', 'processing 1' ],
		places => [ changed('store_update', 'heap_update'), changed('work_follow', 'heap_update'), @commit ],
	},
	'a batch' => {
		kind => 'many',
		call => q{
			BEGIN;
			INSERT INTO business SELECT seen, 1, 'held'
			FROM idem_once_many('load', ARRAY(SELECT load_keys('KEY', 'many'))) seen;
			COMMIT},
		states => [ 'absent', 'succeeded 1' ],
		places => [
			held_at('nothing', 'store_insert', 'store_insert', 'heap_insert'),
			held_at('nothing', 'store_insert', 'store_insert', '_bt_doinsert'),
			@commit
		],
	},
	'an emission' => {
		kind => 'emitted',
		call => q{
			BEGIN;
			SELECT (c).fence, idem_emit('there', '"KEY"', claim => c) AS event
			FROM (SELECT idem_claim('load', 'KEY', '"KEY"') AS c OFFSET 0) s \gset
			INSERT INTO business VALUES ('KEY', 1, 'held');
			SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"');
			COMMIT},
		states => [ 'absent', 'succeeded 1' ],
		places => [
			inserted('events_insert'), inserted('queue_add'),
			held_at('nothing', 'queue_add', 'queue_start_assigned'), @commit
		],
	},
	'a take' => {
		before => q{SELECT idem_emit('KEY', '1')},
		call => q{SELECT idem_take('KEY', 1, '1 h')},
		state => $event_state,
		states => [ 'due', 'leased' ],
		ask => $take,
		hears => 0,
		places => [ changed('queue_update', 'heap_update'), @commit ],
	},
	'an acknowledgement' => {
		before => q{
			SELECT idem_emit('KEY', '1');
			SELECT event_id, fence FROM idem_take('KEY', 1, '1 h') \gset},
		call => q{SELECT idem_ack(:'event_id', :fence)},
		state => $event_state,
		states => [ 'leased', 'delivered' ],
		ask => $take,
		hears => 0,
		places => [ changed('queue_delete', 'heap_delete'), @commit ],
	},
	'a PREPARE' => {
		kind => 'prepared',
		call => $prepare,
		states => [ 'absent', 'processing' ],
		places => [
			asked_at('nothing', 'EndPrepare'),
			held_at('nothing', 'EndPrepare', 'XLogInsertRecord'),
			asked_at('either', 'EndPrepare', 'XLogFlush'),
			asked_at('all', 'EndPrepare', 'PostPrepare_Locks')
		],
	},
	'a COMMIT PREPARED' => {
		kind => 'prepared',
		before => $prepare,
		call => q{COMMIT PREPARED 'KEY'},
		states => [ 'processing', 'succeeded 1' ],
		places => [
			@record,
			asked_at('all', 'XactLogCommitRecord', 'ProcArrayRemove'),
			held_at('all', 'XactLogCommitRecord', 'ProcArrayRemove', 'lock_twophase_postcommit')
		],
	},
	'a purge of rows' => {
		purges => 1,
		before => q{SELECT count(idem_once('forgotten', 'KEY-' || i)) FROM generate_series(1, 30) i},
		call => q{SELECT idem_purge()},
		state => $forgotten,
		states => [ 30, 0 ],
		places => [ changed('idem_purge', 'heap_delete'), @commit ],
	},
	'a truncation of a segment' => {
		purges => 1,
		before => q{
			SELECT count(idem_once('forgotten', '01900000-0000-7000-8000-' || lpad(to_hex(ROUND * 10000 + i), 12, '0')))
			FROM generate_series(1, 2000) i},
		call => q{SELECT idem_purge()},
		state => $forgotten,
		states => [ 2000, 0 ],
		places => [
			held_at('nothing', 'idem_purge', 'ExecuteTruncate'),
			held_at('nothing', 'ExecuteTruncate', 'smgrcreate'),
			held_at('nothing', 'ExecuteTruncate', 'smgrcreate', 'XLogInsertRecord'),
			held_at('nothing', 'ExecuteTruncate', 'btbuild'),
			@commit,
			held_at('all', 'XactLogCommitRecord', 'ProcArrayEndTransaction', 'smgrDoPendingDeletes'),
			held_at('all', 'XactLogCommitRecord', 'ProcArrayEndTransaction', 'mdunlink')
		],
	});

my @instants;
foreach my $name (sort keys %calls)
{
	push @instants, map { { call => $calls{$name}, place => $_, name => "$name at " . join(', ', @{ $_->{path} }) } }
	  @{ $calls{$name}{places} };
}

# --- the crashes ------------------------------------------------------------------

sub chosen
{
	my $which = $ENV{IDEM_INSTANTS} || '';
	my $first = rand;

	return @instants if $which eq 'all';
	return grep { $_->{name} =~ /$which/ } @instants if $which ne '';
	return map { $instants[ ($_ + $first) * @instants / $SPREAD ] } 0 .. $SPREAD - 1;
}

sub crash_at
{
	my ($node, $load, $round, $instant) = @_;
	my ($call, $place) = @$instant{qw(call place)};
	my $kind = $call->{kind} || 'other';
	my $key = "$kind-$round-0-0";
	my $text = sub {
		my ($sql) = @_;
		$sql =~ s/KEY/$key/g;
		$sql =~ s/KIND/$kind/g;
		$sql =~ s/ROUND/$round/g;
		return $sql;
	};
	my ($held, $asking) = sessions($node, 2);

	1 while $call->{purges} && one_value($node, 'SELECT idem_purge()') > 0;
	$held->run($text->($call->{before} || 'SELECT idem_purge()'));
	my $debugger = IdempotencyTest::Debugger->new($held->pid);
	$load->start($round, purger => !$call->{purges});
	$load->hear($key, 'started') if $call->{kind};
	$load->wait_until_busy;

	$debugger->stop_at(@{ $place->{path} });
	$held->send($text->($call->{call}));
	$debugger->wait_until_stopped($held);
	if ($place->{asked} && ($call->{kind} || $call->{ask}))
	{
		is($asking->value($text->($call->{ask} || $claim)), defined $call->{hears} ? $call->{hears} : 'in_progress',
			"$instant->{name}: what another session is told");
	}
	kill_server($node);
	$debugger->quit;
	$_->quit foreach $held, $asking;
	$load->hear_out($instant->{name});

	$node->start;
	my ($before, $after) = map { qr/\Q$_\E/ } map { $text->($_) } @{ $call->{states} };
	my %left = (nothing => $before, all => $after, either => qr/$before|$after/);
	like(one_value($node, $text->($call->{state} || $state)), qr/^($left{ $place->{left} })$/,
		"$instant->{name}: the crash leaves $place->{left}");
	$load->judge($instant->{name});
	return;
}

sub crash_server
{
	my ($name, @some) = @_;
	my $node = new_node($name, durable => 1, conf => "max_connections = 50\n");
	my $load = IdempotencyTest::Load->new($node);

	$node->safe_psql('postgres', q{SELECT idem_define('forgotten', '{"retention": "1 us"}')});
	crash_at($node, $load, $_ + 1, $some[$_]) foreach 0 .. $#some;
	$load->judge_all;
	$node->stop;
	$node->clean_node;
	return;
}

my @chosen = chosen();
while (my @some = splice @chosen, 0, $PER_SERVER)
{
	crash_server('main' . @chosen, @some);
}
done_testing();
