# The outbox from end to end: relays that die, servers that crash, takers that
# wait, a database that moves, and who reads the events from the log (C70, C72,
# C77).

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('outbox', durable => 1, init => { allows_streaming => 'logical' }, conf => <<'END');
shared_preload_libraries = 'idempotency'
wal_level = logical
END

my $due = q{SELECT count(*) FROM idempotency_internal.outbox_due WHERE state <> 'd'};

# --- C72: the relay dies after sending, before it acknowledges, 40 times --------------

sub consume
{
	my ($event) = @_;

	return $node->safe_psql('postgres', <<"END");
DO \$\$ BEGIN
	IF idem_once('ledger', '$event') THEN
		INSERT INTO applied VALUES ('$event');
	END IF;
END \$\$;
END
}

$node->safe_psql('postgres', 'CREATE TABLE applied (event uuid)');
$node->safe_psql('postgres', q{SELECT idem_destination_define(d, '{"base": "10 ms", "cap": "10 ms"}') FROM unnest('{crashing,steady,crash}'::text[]) d});
my $event = $node->safe_psql('postgres', q{SELECT idem_emit('crashing', '"pay"')});
my $attempt;
for my $crash (1 .. 40)
{
	my $relay = session($node);
	my ($id, $fence);

	($id, $attempt, $fence) = split /\|/, $relay->value(
		q{SELECT event_id, attempt, fence FROM idem_take('crashing', 1, '20 ms', '60 s')});
	BAIL_OUT("took $id instead of $event") if $id ne $event;
	consume($id);
	kill 'TERM', $relay->pid;
	$relay->try("SELECT idem_ack('$id', $fence)");
}
is($attempt, 40, 'C72: 40 relays have died');
my ($id, $fence);
($id, $attempt, $fence) = split /\|/, $node->safe_psql('postgres',
	q{SELECT event_id, attempt, fence FROM idem_take('crashing', 1, '1 h', '60 s')});
is($id, $event, 'C72: the event still has its id');
is($attempt, 41, 'C72: attempt 41');
consume($id);
$node->safe_psql('postgres', "SELECT idem_ack('$id', $fence)");
is(one_value($node, 'SELECT count(*) FROM applied'), 1, 'C72: a consumer with idem_once applies it once');
is(one_value($node, $due), 0, 'C72: it is delivered');

# --- W01: one event of 30 kills its relay each time -----------------------------------

$node->safe_psql('postgres', <<'END');
SELECT idem_destination_define('killing', '{"base": "10 ms", "cap": "10 ms", "max_attempts": 3}');
SELECT count(idem_emit('killing', to_jsonb(n))) FROM generate_series(1, 30) n;
CREATE TABLE delivered (n int);
END
my $started = time;
my $dead_letters = q{SELECT count(*) FROM idem_dead_letter WHERE destination = 'killing'};
my $waiting_events = q{SELECT count(*) FROM idempotency_internal.outbox_due WHERE destination = 'killing' AND state <> 'd'};
my $relays = 0;
while (one_value($node, $waiting_events) > 0 && time - $started < 60)
{
	my $relay = session($node);

	$relays++;
	# it delivers what it takes until it meets event 17
	for my $batch (1 .. 200)
	{
		my @taken = map { [ split /\|/ ] } split /\n/, $relay->run(
			q{SELECT payload, event_id, fence FROM idem_take('killing', 30, '3 s', '50 ms')});
		my $dies = 0;
		for my $event (@taken)
		{
			my ($n, $id, $fence) = @$event;
			$dies = 1, last if $n == 17;
			$relay->try("DO \$\$ BEGIN INSERT INTO delivered VALUES ($n); PERFORM idem_ack('$id', $fence); END \$\$");
		}
		last if $dies || one_value($node, $waiting_events) == 0;
	}
	kill 'TERM', $relay->pid;
}
is(one_value($node, "SELECT count(*) || ' ' || count(DISTINCT n) || ' ' || sum(n) FROM delivered"), '29 29 448', 'W01: 29 events are delivered');
is(one_value($node, $dead_letters), 1, 'W01: one is a dead letter');
is(one_value($node, q{SELECT payload::text || ' ' || reason || ' ' || attempts FROM idem_dead_letter WHERE destination = 'killing'}),
	'17 max_attempts 3', 'W01: the one that killed its relay');
cmp_ok(time - $started, '<', 60, 'W01: within a minute');
is($relays, 5, 'W01: that cost one relay for the batch, and one for each attempt');

# --- what is delivered is walked over once, though nobody can vacuum it ---------------

# A relay that acknowledges a batch and takes the next one in one transaction.
# How many entries of the index that take saw.
$node->safe_psql('postgres', <<'END');
CREATE TABLE batch (event_id uuid, fence bigint);
CREATE FUNCTION relay(size integer, lease interval DEFAULT '1 h') RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	due_at CONSTANT oid := 'idempotency_internal.outbox_due_at_idx'::regclass;
	before bigint;
BEGIN
	PERFORM idem_ack_many(array_agg(event_id), array_agg(fence)) FROM batch HAVING count(*) > 0;
	DELETE FROM batch;
	before := pg_stat_get_xact_tuples_returned(due_at);
	INSERT INTO batch SELECT event_id, fence FROM idem_take('steady', size, lease);
	RETURN pg_stat_get_xact_tuples_returned(due_at) - before;
END $$;
SELECT count(idem_emit('steady', to_jsonb(n))) FROM generate_series(1, 3000) n;
END
my $old = session($node);
my $steady = session($node);
$old->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM batch;');
my $revisit = 'SELECT pg_sleep(1.1)';	# takes begin at the frontier again
# on a slow machine that is later than a second during these
my $walked = 0;
$walked += $steady->value('SELECT relay(100)') - 100 for 1 .. 20;
$steady->run($revisit);
$walked += $steady->value('SELECT relay(100)') - 100;
cmp_ok($walked, '>', 1500, 'a take that begins at the frontier walks over what was delivered');
$steady->value('SELECT relay(100)');
$steady->run($revisit);
cmp_ok($steady->value('SELECT relay(100)'), '<', 1000, '... once');

# ... but not past what a ROLLBACK brings back
$steady->run($revisit);
$steady->run("SELECT relay(100, '3 s')");
$steady->run($revisit);
$steady->run('BEGIN; SELECT relay(100); ROLLBACK;');
$steady->run('BEGIN; SAVEPOINT s; SELECT relay(100); ROLLBACK TO s; SELECT relay(1); ROLLBACK;');
$steady->run("SELECT pg_sleep(3.1); CREATE TABLE again AS SELECT * FROM idem_take('steady', 1)");
# they come one by one, the others together
$steady->run("INSERT INTO again SELECT * FROM idem_take('steady', 3000)") for 1 .. 100;
is($steady->value('SELECT count(*) FROM again JOIN batch USING (event_id)'),
	100, 'what was acknowledged and rolled back is taken again');
$steady->run('SELECT idem_ack_many(array_agg(event_id), array_agg(fence)) FROM again');
$old->run('COMMIT');

# --- waiting ------------------------------------------------------------------------

my $waiting = q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT payload FROM idem_take%' AND wait_event_type = 'Extension'};
my @takers = sessions($node, 3);
send_all(q{SELECT payload FROM idem_take('awaited', 1, '1 h', '1 h');}, @takers);
wait_for_sql($node, "SELECT ($waiting) = 3");
is(one_value($node, q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT payload FROM idem_take%' AND backend_xid IS NOT NULL}),
	0, 'takers that wait have no transaction id');
my $emitter = session($node);
$emitter->run(q{BEGIN; SELECT idem_emit('awaited', to_jsonb(n)) FROM generate_series(1, 2) n;});
$emitter->run(q{SELECT idem_emit('awaited', '3', delay => '1 ms'); PREPARE TRANSACTION 'three'; COMMIT PREPARED 'three';});
is(join(' ', sort map { s/\s//gr } collect_all(@takers)), '1 2 3', 'an event for each of them wakes them, also one from a prepared transaction');
is(one_value($node, q{SELECT count(*) FROM idem_take('awaited', 1, '1 h', '50 ms')}), 0, 'the deadline ends a wait');

my $cancelled = session($node);
$cancelled->send(q{SELECT payload FROM idem_take('nothing', 1, '1 h', '1 h');});
wait_for_sql($node, "SELECT ($waiting) = 1");
$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $cancelled->pid . ')');
$cancelled->result;
is($cancelled->sqlstate, '57014', 'a wait can be cancelled');
is($cancelled->value('SELECT 1'), 1, 'and the session goes on');

# --- a crash between take and acknowledgement -----------------------------------------

$node->safe_psql('postgres', q{SELECT idem_emit('crash', to_jsonb(n), 'key ' || n % 10) FROM generate_series(1, 100) n});
my $first = $node->safe_psql('postgres', q{SELECT event_id FROM idem_take('crash', 100, '1 s')});
is(scalar(split /\n/, $first), 10, 'the first event of each of ten keys');
kill_server($node);
$node->start;
$node->safe_psql('postgres', 'SELECT pg_sleep(1.1)');
my @second = map { $node->safe_psql('postgres', q{SELECT event_id FROM idem_take('crash', 100, '1 h', '60 s')}) } 1 .. 10;
is(join("\n", sort @second), join("\n", sort split /\n/, $first), 'are delivered again after a crash, with their ids, one by one');
is(one_value($node, q{SELECT min(attempt) || ' ' || max(attempt) FROM idempotency_internal.outbox_due WHERE destination = 'crash' AND attempt > 0}),
	'1 1', 'an attempt that was not of one event alone does not count');
my $rounds = 0;
while ($rounds++ < 20)
{
	$node->safe_psql('postgres', q{SELECT idem_ack_many(array_agg(event_id), array_agg(fence))
		FROM idempotency_internal.outbox_due WHERE destination = 'crash' AND lease_until > clock_timestamp()});
	last if one_value($node, q{SELECT count(*) FROM idem_take('crash', 100, '1 h')}) == 0;
}
is($rounds, 10, 'each key gives its ten events one after the other');
is(one_value($node, $due), 3, 'nothing else is left in the queue');

# --- moving --------------------------------------------------------------------------

$node->safe_psql('postgres', q{SELECT idem_emit('moved', to_jsonb(n), 'k') FROM generate_series(1, 3) n; SELECT idem_emit('moved', '"late"', delay => '1 h')});
my $dump = $node->backup_dir . '.sql';
command_ok([ 'pg_dump', '-f', $dump, $node->connstr('postgres') ], 'a dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, $node->connstr('restored') ], 'restored');
$node->safe_psql('restored', q{SELECT idem_emit('moved', '4', 'k')});
my $order = '';
for (1 .. 4)
{
	$order .= $node->safe_psql('restored', q{SELECT payload FROM idem_take('moved', 10, '1 h')});
	$node->safe_psql('restored', q{SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE destination = 'moved' AND lease_until > clock_timestamp()});
}
is($order, '1234', 'the order of a key goes on where it was');
is(one_value($node, q{SELECT count(*) FROM idempotency_internal.outbox}, 'restored'),
	one_value($node, q{SELECT count(*) + 1 FROM idempotency_internal.outbox}), 'all events are there');

# --- N02: to a logical replica ----------------------------------------------------------

$node->safe_psql('postgres', q{SELECT idem_emit('switched', to_jsonb(n), 'k') FROM generate_series(1, 3) n});
$node->safe_psql('postgres', q{CREATE PUBLICATION outbox FOR TABLE idempotency_internal.outbox, idempotency_internal.outbox_due});
$node->safe_psql('postgres', 'CREATE DATABASE replica');
$node->safe_psql('replica', 'CREATE EXTENSION idempotency');
$node->safe_psql('postgres', q{SELECT pg_create_logical_replication_slot('outbox', 'pgoutput')});
$node->safe_psql('replica', 'CREATE SUBSCRIPTION outbox CONNECTION \'' . $node->connstr . q{ dbname=postgres' PUBLICATION outbox WITH (create_slot = false, slot_name = 'outbox')});
$node->safe_psql('postgres', q{SELECT idem_emit('switched', '4', 'k')});
wait_for_sql($node, "SELECT count(*) = 4 FROM idempotency_internal.$_ WHERE destination = 'switched'", 'replica')
  foreach 'outbox', 'outbox_due';    # each is copied by a process of its own
$node->safe_psql('replica', q{ALTER SUBSCRIPTION outbox DISABLE; ALTER SUBSCRIPTION outbox SET (slot_name = NONE); DROP SUBSCRIPTION outbox});
wait_for_sql($node, q{SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'outbox'});
$node->safe_psql('postgres', q{SELECT pg_drop_replication_slot('outbox'); DROP PUBLICATION outbox});
$node->safe_psql('replica', q{SELECT idem_emit('switched', '5', 'k')});
$order = '';
for (1 .. 5)
{
	$order .= $node->safe_psql('replica', q{SELECT payload FROM idem_take('switched', 10, '1 h', '60 s')});
	$node->safe_psql('replica', q{SELECT idem_ack(event_id, fence) FROM idempotency_internal.outbox_due WHERE destination = 'switched' AND lease_until > clock_timestamp()});
}
is($order, '12345', 'N02: the order of a key survives a switch to a logical replica');

# --- more destinations than there are low-water marks -----------------------------------

# With pauses: a mark is made, or given to another destination, once in a while.
$node->safe_psql('postgres', <<'END');
DO $$
BEGIN
	FOR i IN 1 .. 1200 LOOP
		PERFORM idem_take('many-' || i), pg_sleep(CASE WHEN i % 60 = 0 THEN 0.03 ELSE 0 END);
	END LOOP;
END $$;
SELECT count(idem_emit('many-' || i, '1')) FROM generate_series(1, 1200) i;
END
is(one_value($node, q{SELECT count(e) FROM generate_series(1, 1200) i, idem_take('many-' || i) e}), 1200, 'none is overlooked');

# --- read from the log -----------------------------------------------------------------

SKIP:
{
	skip 'test_decoding is not installed', 3
	  unless eval { $node->safe_psql('postgres', q{SELECT pg_create_logical_replication_slot('events', 'test_decoding')}); 1 };
	my ($late, $early) = sessions($node, 2);

	$late->run(q{BEGIN; SELECT idem_emit('logged', '"emitted first"', 'order 1', headers => '{"type": "Placed"}')});
	$early->run(q{BEGIN; SELECT idem_emit('logged', '"emitted second"', 'order 2')});
	$early->run(q{SELECT idem_emit('logged', '"rolled back"') FROM (SELECT 1) x; ROLLBACK; BEGIN; SELECT idem_emit('logged', '"emitted second"', 'order 2'); COMMIT});
	$late->run('COMMIT');
	$node->safe_psql('postgres', q{SELECT idem_ack_many(array_agg(event_id), array_agg(fence)) FROM idem_take('logged', 10)});
	$node->safe_psql('postgres', q{SELECT idem_redeliver(event_id) FROM idempotency_internal.outbox WHERE destination = 'logged'});
	my $changes = $node->safe_psql('postgres', q{SELECT data FROM pg_logical_slot_get_changes('events', NULL, NULL)
		WHERE data LIKE 'table idempotency_internal.outbox:%'});
	is_deeply([ $changes =~ /payload\[jsonb\]:'"([^"]*)"'/g ], [ 'emitted second', 'emitted first' ],
		'C70: the log has each event once, in the order of commits');
	unlike($changes, qr/: (UPDATE|DELETE):/, 'delivery and redelivery do not show there');
	like($changes, qr/INSERT: event_id\[uuid\]:'[-0-9a-f]{36}' .*destination\[text\]:'logged' ordering_key\[text\]:'order 1' .*headers\[jsonb\]:'\{"type": "Placed"\}'/,
		'with the columns that the event router is told of');
	$node->safe_psql('postgres', q{SELECT pg_drop_replication_slot('events')});
}

is(heap_and_index_agree($node), '', 'tables and indexes agree') if extension_available($node, 'amcheck');

done_testing();
