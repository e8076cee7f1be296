# Sessions as poolers, impatient clients and administrators leave them: reset,
# cancelled, timed out, terminated.  A claim ends with its transaction, and the
# session, if it lives, goes on.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('main', conf => "max_connections = 60\n");
create_claims_table($node);

my $status = sub {
	my ($key) = @_;
	return one_value($node, "SELECT state FROM idem_status('op', '$key')");
};

# --- a pooler in transaction mode -----------------------------------------------------

# Many clients on three connections, each transaction on whichever is free, with
# DISCARD ALL between them; nothing of a client stays in a session.
{
	my @pool = sessions($node, 3);
	my (@wrong, %fence);
	my $turn = 0;
	my $on_some_connection = sub {
		my ($client, $sql) = @_;
		my $connection = $pool[ $turn++ % @pool ];

		$connection->run('BEGIN');
		$connection->run("SELECT set_config('idempotency.principal', '$client', true)");
		my $value = $connection->value($sql);
		$connection->run('COMMIT; DISCARD ALL');
		return $value;
	};

	foreach my $client (map { "client $_" } 1 .. 10)
	{
		my $atomic = $on_some_connection->($client, "SELECT idem_complete(c, to_jsonb(c.principal)) FROM idem_claim('op', 'k', '{\"a\": 1}') c");
		push @wrong, "$client: $atomic" if $atomic ne "\"$client\"";
		$fence{$client} = $on_some_connection->($client, "SELECT fence FROM idem_claim('op', 'leased', lease => '1 h')");
	}
	foreach my $client (sort keys %fence)
	{
		my $renewed = $on_some_connection->($client, "SELECT idem_renew_key('op', 'leased', $fence{$client}, '2 h') > now()");
		my $done = $on_some_connection->($client, "SELECT idem_complete_key('op', 'leased', $fence{$client}, '7')");
		my $again = $on_some_connection->($client, "SELECT idem_complete_key('op', 'leased', $fence{$client}, '7')");
		my $replay = $on_some_connection->($client, "SELECT concat_ws(' ', principal, verdict, result) FROM idem_claim('op', 'k', '{\"a\": 1}')");
		push @wrong, "$client: $renewed $done $again $replay"
		  if "$renewed $done $again $replay" ne "t 7 7 $client replay \"$client\"";
	}
	is(join("\n", @wrong), '', 'ten clients share three connections with DISCARD ALL between transactions');
	is($pool[0]->value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"), 0, 'no lock stays');

	# what a session has prepared works across another one's changes
	$pool[0]->run("PREPARE claim(text) AS SELECT verdict FROM idem_claim('op', \$1)");
	$pool[0]->run('BEGIN');
	is($pool[0]->value("EXECUTE claim('prepared')"), 'execute', 'a prepared claim');
	$pool[0]->run('ROLLBACK');
	$pool[1]->run("SELECT idem_define('op', '{\"key_format\": \"uuid\"}')");
	is($pool[0]->try("EXECUTE claim('prepared')"), '22023', 'acts under the policy of the moment');
	$pool[1]->run("SELECT idem_define('op', '{\"key_format\": \"any\"}')");
	$pool[0]->run('BEGIN');
	is($pool[0]->value("EXECUTE claim('prepared')"), 'execute', 'and of the next');
	is($pool[0]->try('DISCARD ALL'), '25001', 'DISCARD ALL is none inside a transaction');
	$pool[0]->run('ROLLBACK');
}

# Advisory locks of applications and ours are different things.
{
	my ($holder, $user) = sessions($node, 2);

	$holder->run('BEGIN');
	$holder->claim("'op', 'advisory'");
	my ($high, $low, $class) = split /\|/, $holder->value(
		"SELECT classid, objid, objsubid FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'");
	cmp_ok($class, '>', 2, 'the lock of an id is of another class than those of pg_advisory_lock');
	is($user->value("SELECT pg_try_advisory_lock((${high}::bigint << 32) | ${low}::bigint)"), 't', 'with the same numbers');
	$holder->run('SELECT pg_advisory_unlock_all()');
	is($user->value("SELECT verdict FROM idem_claim('op', 'advisory')"), 'in_progress', 'pg_advisory_unlock_all does not end a claim');
	$holder->complete('1');
	$holder->run('COMMIT');
}

# --- cancelled and timed out ------------------------------------------------------------

my $holder = session($node);
$holder->run('BEGIN');
$holder->claim("'op', 'held'");
my $waiting = "SELECT verdict FROM idem_claim('op', 'held', wait => '1 h')";
my $is_waiting = sub {
	my ($session) = @_;
	wait_for_sql($node, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . $session->pid);
};
my $usable = sub {
	my ($session, $name) = @_;
	is($session->value("SELECT idem_complete(c, '1') FROM idem_claim('op', '$name') c"), '1', "$name: the session is usable");
};

{
	my $waiter = session($node);

	$waiter->send($waiting);
	$is_waiting->($waiter);
	one_value($node, 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	$waiter->result;
	is($waiter->sqlstate, '57014', 'a waiting claim can be cancelled');
	$usable->($waiter, 'cancelled');

	$waiter->run('BEGIN');
	$waiter->claim("'op', 'kept'");
	$waiter->send("SAVEPOINT a; $waiting");
	$is_waiting->($waiter);
	one_value($node, 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	$waiter->result;
	is($waiter->sqlstate, '57014', 'cancelled in a savepoint');
	$waiter->run('ROLLBACK TO a');
	$waiter->complete('1');
	$waiter->run('COMMIT');
	is($status->('kept'), 'succeeded', 'the transaction goes on with its own claim');

	is($waiter->try("SET statement_timeout = '200ms'; $waiting"), '57014', 'statement_timeout ends a wait');
	$waiter->run('RESET statement_timeout');
	$usable->($waiter, 'timed out');
	is($waiter->value("SET lock_timeout = '50ms'; SELECT verdict FROM idem_claim('op', 'held', wait => '300 ms')"),
		'in_progress', 'lock_timeout does not');
	$waiter->run('RESET lock_timeout');

	# while it waits to finish what another transaction is changing
	my $owner = session($node);
	$owner->claim("'op', 'fought over', lease => '1 h'");
	my $fence = $owner->variable('c_fence');
	$owner->run("BEGIN; SELECT idem_renew(:'c'::idem_answer, '2 h')");
	foreach my $finish ("idem_complete_key('op', 'fought over', $fence, '1')", "idem_fail_key('op', 'fought over', $fence, '1')",
		"idem_release_key('op', 'fought over', $fence)", "idem_renew_key('op', 'fought over', $fence, '3 h')",
		"idem_unsure_key('op', 'fought over', $fence)")
	{
		$waiter->send("SELECT $finish");
		wait_for_sql($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . $waiter->pid);
		one_value($node, 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
		$waiter->result;
		is($waiter->sqlstate, '57014', "cancelled while waiting to finish: $finish");
	}
	$usable->($waiter, 'not finished');
	$owner->run('COMMIT');
	is($waiter->value("SELECT idem_complete_key('op', 'fought over', $fence, '1')"), '1', 'and then it may finish');
}

# --- terminated -----------------------------------------------------------------------------

{
	my $waiter = session($node);
	$waiter->send($waiting);
	$is_waiting->($waiter);
	one_value($node, 'SELECT pg_terminate_backend(' . $waiter->pid . ')');
	$waiter->result;
	is($waiter->sqlstate, 'lost', 'a waiting claim can be terminated');

	my $owner = session($node);
	$owner->run("BEGIN; INSERT INTO business VALUES ('terminated')");
	$owner->claim("'op', 'terminated'");
	one_value($node, 'SELECT pg_terminate_backend(' . $owner->pid . ', 60000)');
	is($status->('terminated'), 'absent', 'the claim of a terminated session is gone');
	$usable->(session($node), 'terminated');
	is(one_value($node, "SELECT count(*) FROM business"), 0, 'so are its business rows');

	my $idle = session($node);
	$idle->run("SET idle_in_transaction_session_timeout = '100ms'; BEGIN");
	$idle->claim("'op', 'idle'");
	wait_for_sql($node, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $idle->pid);
	is($status->('idle'), 'absent', 'an owner that idles too long loses its claim');

	my $leaver = session($node);
	$leaver->run('BEGIN');
	$leaver->claim("'op', 'left'");
	$leaver->quit;
	wait_for_sql($node, "SELECT state = 'absent' FROM idem_status('op', 'left')");
	$usable->(session($node), 'left');
}
is($status->('held'), 'processing', 'the holder of it all still holds');
$holder->complete('1');
$holder->run('COMMIT');

# Cancel at any point: nothing hangs, nothing is half there.  A cancelled worker
# starts again, until all have been cancelled often enough.
{
	my @workers = sessions($node, 4);
	my %count;

	$node->safe_psql('postgres', q{
		CREATE PROCEDURE restless() LANGUAGE plpgsql AS $$
		DECLARE
			c idem_answer;
		BEGIN
			LOOP
				BEGIN
					c := idem_claim('restless', 'k' || (random() * 500)::integer, '{"a": [1, 2, 3]}',
						lease => CASE WHEN random() < 0.3 THEN interval '1 h' ELSE interval '0' END, wait => '1 ms');
					IF c.verdict = 'execute' AND random() < 0.2 THEN
						PERFORM idem_release(c);
					ELSIF c.verdict = 'execute' THEN
						INSERT INTO business VALUES (c.key, c.attempt, 'restless');
						PERFORM idem_complete(c, to_jsonb(c.key));
					END IF;
				EXCEPTION WHEN query_canceled THEN
					NULL;
				END;
				COMMIT;
			END LOOP;
		END $$});
	send_all('CALL restless()', @workers);
	for (my $round = 0; $round < 100; $round++)
	{
		one_value($node, 'SELECT ' . join ', ', map { 'pg_cancel_backend(' . $_->pid . ')' } @workers);
		foreach my $worker (grep { $_->answered } @workers)
		{
			$worker->result;
			$count{ $worker->sqlstate }++;
			$worker->send('ROLLBACK; CALL restless()');
		}
	}
	foreach my $worker (@workers)
	{
		until ($worker->answered)
		{
			one_value($node, 'SELECT pg_cancel_backend(' . $worker->pid . ')');
			sleep 0.01;
		}
		$worker->result;
		$worker->try('ROLLBACK');
	}
	is_deeply([ keys %count ], ['57014'], 'cancelled again and again, nothing else goes wrong');
	is_each([ map { $_->value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'") } @workers ],
		0, 'no lock is left');
	is(one_value($node, "SELECT count(*) FROM (SELECT key FROM business WHERE note = 'restless' GROUP BY key HAVING count(*) > 1) twice"),
		0, 'nothing is done twice');
	is(one_value($node, "SELECT count(*) FROM (SELECT key FROM business WHERE note = 'restless') b "
			  . "FULL JOIN (SELECT key FROM idempotency_internal.record WHERE operation = 'restless' AND state = 's') r USING (key) "
			  . 'WHERE b.key IS NULL OR r.key IS NULL'),
		0, 'and what is done is on record');
	is(one_value($node, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"), 0, 'nobody waits for anybody');
}

# --- the extension is dropped while a call waits for its tables -------------------------------

{
	$node->safe_psql('postgres', 'CREATE DATABASE dropped');
	my ($admin, $user) = map { session($node, dbname => 'dropped') } 1 .. 2;
	my %states;

	$admin->run('CREATE EXTENSION idempotency');
	# idem_take waits for its row type, in PostgreSQL's own code
	foreach my $call (
		"idem_claim('op', 'k')", "idem_status('op', 'k')", "idem_list()", "idem_once('op', 'k')",
		"idem_start_next('op')", "idem_reconcile('op')", "idem_policy('op')", "idem_define('op', '{}')",
		"idem_destination_policy('d')", "idem_emit('d', '{}')", "idem_explain('op', 'k')")
	{
		$user->run("SET idempotency.principal = 'acme'; SELECT count(*) FROM idem_list()");
		$admin->run('BEGIN; DROP EXTENSION idempotency');
		$user->send("SELECT count(*) FROM $call");
		wait_for_sql($node, 'SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = ' . $user->pid . ')');
		$admin->run('COMMIT; CREATE EXTENSION idempotency');
		$user->result;
		push @{ $states{ $user->sqlstate } }, $call;
	}
	is(join(' ', keys %states), '55000', 'a call that waits while the extension is dropped') or diag(explain(\%states));
}

# --- beside a module that is loaded before, whose hooks go on ------------------------------------

{
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_stat_statements, idempotency'\nidempotency.worker = off\n");
	$node->restart;
	my $user = session($node);

	$user->run('CREATE EXTENSION pg_stat_statements');
	is($user->value("SELECT idem_once('beside', 'k')"), 't', 'beside pg_stat_statements: a call');
	$user->run('SET CONSTRAINTS ALL IMMEDIATE');
	is($user->value(q{SELECT string_agg(left(query, 19) || ' ' || calls, ', ' ORDER BY query) FROM pg_stat_statements WHERE query ~ '^(SELECT idem_once|SET CONSTRAINTS)'}),
		'SELECT idem_once($1 1, SET CONSTRAINTS ALL 1', 'it sees queries and commands');
	is($user->value(q{SELECT executed FROM idem_stat WHERE operation = 'beside'}), 1, 'as we do');
	$user->run("BEGIN; SELECT idem_claim('beside', 'k2')");
	$user->send('COMMIT');
	$user->result;
	is($user->sqlstate, 'ID003', 'and refuse to commit');
}

is(heap_and_index_agree($node), '', 'table and indexes agree');
$node->stop;
done_testing();
