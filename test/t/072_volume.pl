# Many keys at once and large ones: lock table, memory and indexes hold.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

# The lock table is that of the defaults, and small: it is what may run out.
my $node = new_node('main', conf => "max_connections = 20\nmax_locks_per_transaction = 64\nshared_buffers = 128MB\n");
create_claims_table($node);

my $locks = "SELECT count(*) FROM pg_locks WHERE pid = %d AND locktype = 'advisory'";

# --- 10 000 claims open at once (C46) ---------------------------------------------------

foreach my $how ('one after the other', 'in one statement', 'in savepoints')
{
	my ($owner, $other) = sessions($node, 2);
	my $many = $how eq 'in savepoints' ? 1000 : 10000;

	$owner->run('BEGIN');
	if ($how eq 'one after the other')
	{
		$owner->run("DO \$\$ BEGIN FOR i IN 1 .. $many LOOP PERFORM idem_claim('open', '$how ' || i); END LOOP; END \$\$");
	}
	elsif ($how eq 'in one statement')
	{
		$owner->run("CREATE TEMP TABLE claim ON COMMIT DROP AS SELECT c FROM generate_series(1, $many) i, idem_claim('open', '$how ' || i) c");
	}
	else
	{
		$owner->run("DO \$\$ BEGIN FOR i IN 1 .. $many LOOP BEGIN PERFORM idem_claim('open', '$how ' || i); EXCEPTION WHEN division_by_zero THEN END; END LOOP; END \$\$");
	}
	cmp_ok(one_value($node, sprintf $locks, $owner->pid), '<=', 64, "$how: $many claims are open, few of them as locks");
	is(one_value($node, "SELECT string_agg(DISTINCT concat_ws(' ', verdict, holder), ',') "
			  . "FROM (SELECT generate_series(1, $many, 97) UNION VALUES (1), (2), (31), (32), (33), (34), ($many)) s(i), idem_claim('open', '$how ' || i)"),
		'in_progress ' . $owner->pid, "$how: others get in_progress for each");
	is(one_value($node, "SELECT string_agg(DISTINCT concat_ws(' ', state, holder), ',') FROM generate_series(1, $many, 97) i, idem_status('open', '$how ' || i)"),
		'processing ' . $owner->pid, "$how: and status says so");
	is($owner->value("SELECT string_agg(DISTINCT concat_ws(' ', verdict, holder), ',') FROM generate_series(1, $many, 97) i, idem_claim('open', '$how ' || i)"),
		'in_progress ' . $owner->pid, "$how: so does the owner, asking again");
	is($other->value("SELECT idem_complete(c, '1') FROM idem_claim('open', 'unrelated, $how') c"), 1, "$how: others work on other keys");
	is($owner->try('COMMIT'), 'ID003', "$how: left open, COMMIT is refused");
	like($owner->error, qr/ and @{[ $many - 1 ]} more /, "$how: counting them");
	is(one_value($node, "SELECT count(*) FROM idempotency_internal.record WHERE key LIKE '$how%'"), 0, "$how: nothing is on record");
	is(one_value($node, "BEGIN; SELECT string_agg(DISTINCT verdict || ' ' || attempt, ',') FROM generate_series(1, $many, 97) i, idem_claim('open', '$how ' || i); ROLLBACK"),
		'execute 1', "$how: every key is free");
}

# Completed in another order than claimed, some rolled back.
{
	my $owner = session($node);

	$owner->run(q{
		BEGIN;
		CREATE TEMP TABLE claim ON COMMIT DROP AS
			SELECT i, c FROM generate_series(1, 10000) i, idem_claim('mixed', 'k' || i) c;
		SAVEPOINT a;
		SELECT count(idem_complete(c, to_jsonb(i))) FROM claim WHERE i % 3 = 0;
		ROLLBACK TO a;
		SAVEPOINT b;
		SELECT count(idem_complete(c, to_jsonb(i))) FROM (SELECT * FROM claim ORDER BY i DESC) d WHERE i % 3 = 0;
		RELEASE b;
		SELECT idem_release(c) FROM claim WHERE i % 3 = 1;
		SELECT idem_fail(c, to_jsonb(i)) FROM claim WHERE i % 3 = 2;
		COMMIT});
	is(one_value($node, "SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT s.state, count(*) AS n "
			  . "FROM generate_series(1, 10000) i, idem_status('mixed', 'k' || i) s GROUP BY 1) t"),
		'absent 3334, succeeded 3333, failed 3333', '10 000 open claims end in three ways, in another order');
	is($owner->value(sprintf $locks, $owner->pid), 0, 'no lock is left');
}

# --- 100 000 in one transaction, and memory -----------------------------------------------

{
	my ($owner, $other) = sessions($node, 2);
	my $memory = 'SELECT sum(total_bytes) FROM pg_backend_memory_contexts';
	my $work = "DO \$\$ DECLARE c idem_answer; BEGIN FOR i IN 1 .. %d LOOP "
	  . "c := idem_claim('many', '%s' || i, '{\"a\": [1, 2, {\"b\": \"c\"}]}'); PERFORM idem_complete(c, '{\"done\": true}'); END LOOP; END \$\$";

	$owner->run(sprintf $work, 1000, 'warm ');
	$owner->value($memory);
	my $before = $owner->value($memory);
	$owner->run('BEGIN');
	$owner->run(sprintf $work, 100000, 'k');
	my $after = $owner->value($memory);
	note($owner->run('SELECT name, parent, total_bytes, used_bytes FROM pg_backend_memory_contexts ORDER BY 3 DESC LIMIT 4'));
	cmp_ok(one_value($node, sprintf $locks, $owner->pid), '<=', 64, '100 000 claims completed in one transaction: few locks');
	cmp_ok($after - $before, '<', 2 * 1024 * 1024, 'its memory does not grow with them');
	is($owner->value('SELECT pg_current_xact_id_if_assigned() IS NOT NULL'), 't', 'it is one transaction');
	is(one_value($node, "SELECT string_agg(DISTINCT concat_ws(' ', verdict, holder), ',') FROM generate_series(1, 100000, 997) i, idem_claim('many', 'k' || i, '{}')"),
		'in_progress ' . $owner->pid, 'before it commits, others get in_progress for each');
	$owner->run('COMMIT');
	is($other->value("SELECT count(*) FROM generate_series(1, 100000) i, idem_claim('many', 'k' || i, '{\"a\": [1, 2, {\"b\": \"c\"}]}') WHERE verdict = 'replay'"),
		100000, 'then each of them is replayed');
	cmp_ok($owner->value($memory) - $before, '<', 1024 * 1024, 'at its end the memory is what it was');

	# the same as that many transactions, of which a third is rolled back
	$before = $owner->value($memory);
	$owner->run("DO \$\$ DECLARE c idem_answer; BEGIN FOR i IN 1 .. 20000 LOOP c := idem_claim('short', 'k' || i); "
		  . "IF i % 3 > 0 THEN PERFORM idem_complete(c); COMMIT; ELSE ROLLBACK; END IF; END LOOP; END \$\$");
	cmp_ok($owner->value($memory) - $before, '<', 512 * 1024, '20 000 transactions leave no memory behind');

	# many operations: what a session remembers of their policies is bounded
	$owner->run("SELECT count(idem_policy('operation ' || i)) FROM generate_series(1, 3000) i");
	$before = $owner->value($memory);
	$owner->run("SELECT count(idem_policy('another operation ' || i)) FROM generate_series(1, 20000) i");
	cmp_ok($owner->value($memory) - $before, '<', 4 * 1024 * 1024, '20 000 names of operations do not pile up in a session');
}

# No subtransaction ids are used by claims (C46): 200 are open, the ids are those of the transaction.
{
	my $owner = session($node);

	$owner->run('BEGIN');
	$owner->run('SELECT pg_current_xact_id()');
	$owner->run("SELECT count(idem_complete(c, '1')) FROM generate_series(1, 200) i, idem_claim('subxids', 'k' || i) c");
	is($owner->value("SELECT count(DISTINCT xmin::text) FROM idempotency_internal.record WHERE operation = 'subxids'"), 1,
		'200 claims in one transaction use its id alone');
	$owner->run('COMMIT');
}

# --- keys of all sizes (C22) -----------------------------------------------------------------

my $session = session($node);
my $noise = "(SELECT string_agg(encode(sha256(i::text::bytea), 'base64'), '') FROM generate_series(1, 40000) i)";
foreach my $kind ("repeat('x', %d)", "left($noise, %d)")
{
	my $name = $kind =~ /repeat/ ? 'compressible' : 'incompressible';

	foreach my $size (1, 255)
	{
		my $key = sprintf $kind, $size;

		is($session->value("SELECT idem_complete(c, to_jsonb(length(c.key))) FROM idem_claim('size', $key) c"), $size, "$name key of $size bytes");
		is($session->value("SELECT verdict FROM idem_claim('size', $key)"), 'replay', 'replayed');
	}
	foreach my $size (256, 8192, 1024 * 1024)
	{
		my $key = sprintf $kind, $size;

		foreach my $call ("idem_claim('size', $key)", "idem_claim($key, 'k')", "idem_claim('size', 'k', principal => $key)",
			"idem_status('size', $key)", "idem_id('size', $key)", "idem_complete_key('size', $key, 1)", "idem_policy($key)")
		{
			is($session->try("SELECT $call"), '22023', "$name text of $size bytes is refused by " . substr $call, 0, 20);
			cmp_ok(length $session->error, '<', 2000, 'in few words');
		}
	}
}
is($session->value("SELECT verdict FROM idem_claim('size', repeat('\xc3\xa9', 127) || 'x', lease => '1 h')"), 'execute', '255 bytes of 128 characters');
is($session->try("SELECT idem_claim('size', repeat('\xc3\xa9', 128))"), '22023', '256 bytes of 128 characters are too many');

# Results and params at their limits.
{
	my $large = sprintf "to_jsonb(left($noise, %d))", 1024 * 1024 - 2;    # with its quotes 1 MiB
	my $larger = sprintf "to_jsonb(left($noise, %d))", 1024 * 1024 - 1;

	$session->run('BEGIN');
	$session->claim("'size', 'result'");
	is($session->try("SAVEPOINT a; SELECT idem_complete(:'c'::idem_answer, $larger)"), 'ID004', 'a result one byte too large');
	is($session->value("ROLLBACK TO a; SELECT length(idem_complete(:'c'::idem_answer, $large)::text)"), 1024 * 1024, 'a result of 1 MiB');
	$session->run('COMMIT');
	is($session->value("SELECT result = $large FROM idem_claim('size', 'result')"), 't', 'is replayed as it was');
	is($session->try("SELECT idem_claim('size', 'params', $larger)"), '22023', 'params one byte too large');
	is($session->value("SELECT idem_complete(c) IS NULL FROM idem_claim('size', 'params', $large) c"), 't', 'params of 1 MiB');
}

is(heap_and_index_agree($node), '', 'table and indexes agree');
$node->stop;
done_testing();
