# Many sessions on one key: exactly one of them executes, whatever they do, and
# none of them sees an SQL error or waits when it did not ask to.
#
#   IDEM_ROUNDS=200     rounds of each race (20 otherwise)
#   IDEM_SESSIONS=50    sessions in each race

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $rounds = $ENV{IDEM_ROUNDS} || 20;
my $sessions = $ENV{IDEM_SESSIONS} || 50;
my @levels = @IdempotencyTest::LEVELS;

my $node = new_node('main', conf => "max_connections = 120\ndeadlock_timeout = 100ms\n");
create_claims_table($node);

# What one session does in one race.  All meet at a barrier before each round;
# they all come through it within a millisecond or so.
$node->safe_psql('postgres', <<'END');
CREATE SEQUENCE arrivals MINVALUE 0 START 0;
CREATE TABLE answer (race text, round integer, verdict text, attempt integer, result jsonb);

CREATE PROCEDURE meet(number bigint) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('arrivals');
	WHILE (SELECT last_value FROM arrivals) < number - 1 LOOP
		PERFORM pg_sleep(0.001);
	END LOOP;
END $$;

-- Work that is done in the claiming transaction.
CREATE FUNCTION work(race text, round integer, claim idem_answer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO business VALUES (claim.key, claim.attempt);
	IF round % 3 > 0 THEN
		PERFORM pg_sleep(0.002 * (round % 3));
	END IF;
	PERFORM idem_complete(claim, jsonb_build_object('round', round, 'by', pg_backend_pid()));
END $$;

CREATE PROCEDURE race(race text, sessions integer, rounds integer, lease interval,
	claims_before integer, old_snapshot boolean) LANGUAGE plpgsql AS $$
DECLARE
	c idem_answer;
	mine idem_answer[];
BEGIN
	FOR round IN 1 .. rounds LOOP
		mine := ARRAY(SELECT idem_claim('filler', race || round || pg_backend_pid() || '-' || i)
			FROM generate_series(1, claims_before) i);
		CALL meet(sessions::bigint * round);
		IF NOT old_snapshot THEN
			COMMIT;
		END IF;
		c := idem_claim('race', race || round, jsonb_build_object('round', round), lease => lease);
		INSERT INTO answer VALUES (race, round, c.verdict, c.attempt, c.result);
		IF c.verdict = 'execute' THEN
			IF lease > '0' THEN
				COMMIT;
			END IF;
			PERFORM work(race, round, c);
		END IF;
		PERFORM idem_complete(m) FROM unnest(mine) m;
		COMMIT;
	END LOOP;
END $$;
END

# run_race NAME, LEVEL, lease => , sessions => , before => claims open already,
# old_snapshot => taken before the barrier
sub run_race
{
	my ($race, $level, %option) = @_;
	my ($lease, $before, $old_snapshot) = ($option{lease} || '0', $option{before} || 0, $option{old_snapshot} || 'false');
	my @racers = sessions($node, $option{sessions} || $sessions, isolation => $level,
		set => { statement_timeout => '120s' });
	my $n = @racers;

	$node->safe_psql('postgres', "SELECT setval('arrivals', 0, false)");
	send_all("CALL race('$race', $n, $rounds, '$lease', $before, $old_snapshot)", @racers);
	collect_all(@racers);
	is(join('', map { $_->error } @racers), '', "$race: no session saw an error");
	is(one_value($node, "SELECT count(*) FROM answer WHERE race = '$race'"),
		$n * $rounds, "$race: every session got an answer in each of $rounds rounds");
	is(one_value($node, "SELECT count(*) FROM (SELECT round FROM answer WHERE race = '$race' "
			  . "GROUP BY round HAVING count(*) FILTER (WHERE verdict = 'execute') <> 1) wrong"),
		0, "$race: exactly one of $n sessions executes");
	is(one_value($node, "SELECT string_agg(DISTINCT verdict, ' ') FROM answer WHERE race = '$race' "
			  . "AND verdict NOT IN ('execute', 'in_progress', 'replay')"),
		'', "$race: the others are told in_progress or replay");
	is(one_value($node, "SELECT count(*) || ' ' || count(DISTINCT key) FROM business WHERE key LIKE '$race%'"),
		"$rounds $rounds", "$race: the work is done once");
	is(one_value($node, "SELECT count(*) FROM answer a WHERE race = '$race' AND verdict = 'replay' "
			  . "AND result->'round' IS DISTINCT FROM to_jsonb(round)"),
		0, "$race: a replay brings the recorded result");
	return;
}

run_race("atomic, $_, ", $_) foreach @levels;
run_race("snapshot before, $_, ", $_, old_snapshot => 'true', sessions => 16) foreach @levels[ 1, 2 ];
run_race('leased, ', $levels[0], lease => '1 min', sessions => 16);

# A transaction with many claims open has rows of further ones instead of locks.
run_race("rows instead of locks, $_, ", $_, before => 40, old_snapshot => 'true', sessions => 12)
  foreach @levels[ 0, 2 ];

# --- whoever rolls back leaves the key to the next ------------------------------

$node->safe_psql('postgres', <<'END');
CREATE PROCEDURE unreliable(race text, sessions integer, rounds integer) LANGUAGE plpgsql AS $$
DECLARE
	c idem_answer;
BEGIN
	FOR round IN 1 .. rounds LOOP
		CALL meet(sessions::bigint * round);
		COMMIT;
		LOOP
			BEGIN
				c := idem_claim('race', race || round, wait => '10 ms');
				IF c.verdict = 'execute' THEN
					INSERT INTO business VALUES (c.key, c.attempt);
					PERFORM pg_sleep(random() * 0.002);
					IF random() < 0.2 THEN
						RAISE EXCEPTION 'not this time' USING ERRCODE = 'UE001';
					END IF;
					IF random() < 0.3 AND c.attempt < 5 THEN
						PERFORM idem_fail(c, '{"again": true}', retryable => true);
					ELSE
						PERFORM idem_complete(c, to_jsonb(c.attempt));
					END IF;
				END IF;
			EXCEPTION
				WHEN SQLSTATE 'UE001' THEN
					c.verdict := NULL;
				WHEN serialization_failure THEN
					c.verdict := NULL;
			END;
			IF random() < 0.2 THEN
				ROLLBACK;
				CONTINUE;
			END IF;
			COMMIT;
			EXIT WHEN c.verdict = 'replay';
		END LOOP;
	END LOOP;
END $$;
END

foreach my $level (@levels)
{
	my $race = "unreliable, $level, ";
	my @racers = sessions($node, 12, isolation => $level, set => { statement_timeout => '120s' });

	$node->safe_psql('postgres', "SELECT setval('arrivals', 0, false)");
	send_all("CALL unreliable('$race', 12, $rounds)", @racers);
	collect_all(@racers);
	is(join('', map { $_->error } @racers), '', "$race: no error");
	is(one_value($node, "SELECT count(*) FROM (SELECT 1 FROM business WHERE key LIKE '$race%' "
			  . 'GROUP BY key, attempt HAVING count(*) > 1) twice'),
		0, "$race: each attempt took effect at most once");
	is(one_value($node, "SELECT count(*) FROM idempotency_internal.record r WHERE key LIKE '$race%' AND state = 's' "
			  . 'AND attempt = (SELECT max(attempt) FROM business b WHERE b.key = r.key) '
			  . 'AND attempt = (SELECT count(*) FROM business b WHERE b.key = r.key)'),
		$rounds, "$race: every attempt on record is one that took effect, and the last succeeded");
}

# --- wait 0 never waits ---------------------------------------------------------

# Duplicates are to be answered at once.  How fast is for the bench; here it is
# enough that all are answered while the holder has not moved, and that none
# comes near a lock: lock_timeout would end it.
my @duplicates = sessions($node, 19, set => { lock_timeout => '1ms', statement_timeout => '120s' });

sub answers_while_held
{
	my ($name, $key, $holder_pid, $still_held) = @_;

	foreach my $level (@levels)
	{
		send_all("BEGIN ISOLATION LEVEL $level;\n"
			  . "SELECT verdict, state, advice, holder FROM idem_claim('hold', '$key', wait => '0');\n"
			  . 'COMMIT;', @duplicates);
		is_each([ collect_all(@duplicates) ], "in_progress|processing|retry_same_key|$holder_pid",
			"$name: 19 duplicates at $level are answered");
		is(join('', map { $_->error } @duplicates), '', "$name: without an error at $level");
	}
	ok($still_held->(), "$name: and the holder still holds");
	is(one_value($node, "SELECT state || ' ' || holder FROM idem_status('hold', '$key')"),
		"processing $holder_pid", "$name: status says the same");
	return;
}

foreach my $level (@levels)
{
	my $holder = session($node, isolation => $level);
	my $idle = sub {
		return one_value($node, "SELECT state = 'idle in transaction' FROM pg_stat_activity WHERE pid = "
			  . $holder->pid) eq 't';
	};

	$holder->run('BEGIN');
	$holder->claim("'hold', 'open $level'");
	answers_while_held("open holder at $level", "open $level", $holder->pid, $idle);
	$holder->complete('1');
	answers_while_held("holder at $level that has completed", "open $level", $holder->pid, $idle);
	$holder->run('COMMIT');

	$holder->run("BEGIN; SAVEPOINT a; SAVEPOINT b;");
	$holder->claim("'hold', 'savepoint $level'");
	answers_while_held("holder in a savepoint at $level", "savepoint $level", $holder->pid, $idle);
	$holder->run('RELEASE b; SAVEPOINT c;');
	$holder->complete('1');
	answers_while_held("holder completed in another savepoint at $level", "savepoint $level", $holder->pid, $idle);
	$holder->run('ROLLBACK TO c');
	answers_while_held("holder whose completion was rolled back at $level", "savepoint $level", $holder->pid, $idle);
	$holder->run('ROLLBACK');
	is(one_value($node, "SELECT verdict FROM idem_claim('hold', 'savepoint $level', lease => '1 s')"),
		'execute', "after its rollback the key executes ($level)");

	$holder->run('BEGIN');
	$holder->claim("'hold', 'prepared $level'");
	$holder->complete('1');
	$holder->run("PREPARE TRANSACTION 'held'");
	answers_while_held("prepared holder at $level", "prepared $level", 0, sub {
		return one_value($node, 'SELECT count(*) FROM pg_prepared_xacts') == 1;
	});
	$holder->run("COMMIT PREPARED 'held'");
	is(one_value($node, "SELECT verdict || ' ' || result FROM idem_claim('hold', 'prepared $level')"),
		'replay 1', "COMMIT PREPARED makes it a replay ($level)");
}

# A takeover that is not committed yet holds the key like a first claim.
{
	my $holder = session($node);

	$holder->run("SELECT idem_fail(c, '{}', true) FROM idem_claim('hold', 'again') c");
	$holder->run('BEGIN');
	is($holder->claim("'hold', 'again'"), 'execute', 'a retryable failure executes again');
	is_each([ map { $_->value("SELECT verdict FROM idem_claim('hold', 'again')") } @duplicates ],
		'in_progress', 'an open takeover holds the key');
	$holder->complete('2');
	is_each([ map { $_->value("SELECT verdict FROM idem_claim('hold', 'again')") } @duplicates ],
		'in_progress', 'and still does when completed, not committed');
	$holder->run('COMMIT');
	is_each([ map { $_->value("SELECT verdict || coalesce(result::text, '') FROM idem_claim('hold', 'again')") } @duplicates ],
		'replay2', 'once committed it is replayed');
}

# --- waiting ends -----------------------------------------------------------------

{
	my $holder = session($node);
	my @waiters = sessions($node, 8, set => { lock_timeout => '200ms' });
	my $answer = "SELECT verdict || coalesce(result::text, '') FROM idem_claim('wait', '%s', wait => '1 min')";

	$holder->run('BEGIN');
	$holder->claim("'wait', 'completed'");
	send_all(sprintf($answer, 'completed'), @waiters);
	sleep 0.4;
	is(scalar(grep { $_->answered } @waiters), 0, 'waiters outlast their lock_timeout');
	$holder->complete('7');
	sleep 0.1;
	is(scalar(grep { $_->answered } @waiters), 0, 'and do not believe what is not committed');
	$holder->run('COMMIT');
	is_each([ collect_all(@waiters) ], 'replay7', 'when the holder commits, all waiters replay');

	my ($first, $second) = @waiters;
	$holder->run('BEGIN');
	$holder->claim("'wait', 'rolled back'");
	$first->send('BEGIN; ' . sprintf($answer, 'rolled back'));
	sleep 0.1;
	$holder->run('ROLLBACK');
	is($first->result, 'execute', 'when the holder rolls back, a waiter executes');
	$first->run('ROLLBACK');

	$holder->run('BEGIN');
	$holder->claim("'wait', 'never'");
	$first->run('BEGIN');
	is($first->value("SELECT verdict FROM idem_claim('wait', 'never', wait => '300 ms')"),
		'in_progress', 'when nothing happens, the wait ends at its deadline');
	is($first->value('SELECT clock_timestamp() - now() BETWEEN \'299 ms\' AND \'10 s\''),
		't', 'not before, and not never');
	$first->run("INSERT INTO business VALUES ('never')");
	$first->run('COMMIT');
	pass('and the transaction can go on');
}

# Two that wait for each other both end at the deadline, as no deadlock.
foreach my $level (@levels)
{
	my ($a, $b) = sessions($node, 2, isolation => $level);

	$_->run('BEGIN') foreach $a, $b;
	$a->claim("'mutual', 'a $level'");
	$b->claim("'mutual', 'b $level'");
	$a->send("SELECT verdict || ' ' || holder FROM idem_claim('mutual', 'b $level', wait => '600 ms')");
	$b->send("SELECT verdict || ' ' || holder FROM idem_claim('mutual', 'a $level', wait => '600 ms')");
	is($a->result, 'in_progress ' . $b->pid, "one waits to its deadline at $level");
	is($b->result, 'in_progress ' . $a->pid, "and so does the other at $level");
	$_->complete('1') foreach $a, $b;
	$_->run('COMMIT') foreach $a, $b;
	is(one_value($node, "SELECT count(*) FROM idempotency_internal.record WHERE operation = 'mutual' "
			  . "AND state = 's' AND key IN ('a $level', 'b $level')"), 2, "both then commit at $level");
}

# --- batches of once-only keys -------------------------------------------------------

# The same keys in other orders: no deadlock, and each key is new to one of them.
{
	my @batchers = sessions($node, 4, set => { deadlock_timeout => '10ms', statement_timeout => '120s' });
	my @orders = ("ARRAY['b', 'a', 'c', 'd']", "ARRAY['c', 'a', 'b', 'a']", "ARRAY['d', 'c', 'b', 'a']", "ARRAY['a', 'd', 'b', 'c']");
	my $number = 10 * $rounds;

	$node->safe_psql('postgres', q{
		SELECT idem_define('batch', '{"wait": "1 min"}');
		CREATE TABLE seen (key text);
		CREATE PROCEDURE see(keys text[], rounds integer) LANGUAGE plpgsql AS $$
		BEGIN
			FOR round IN 1 .. rounds LOOP
				INSERT INTO seen SELECT idem_once_many('batch', (SELECT array_agg(k || round ORDER BY n)
					FROM unnest(keys) WITH ORDINALITY AS u(k, n)));
				IF random() < 0.1 THEN
					ROLLBACK;
					INSERT INTO seen SELECT idem_once_many('batch', (SELECT array_agg(k || round ORDER BY n)
						FROM unnest(keys) WITH ORDINALITY AS u(k, n)));
				END IF;
				COMMIT;
			END LOOP;
		END $$});
	$batchers[$_]->send("CALL see($orders[$_], $number)") foreach 0 .. $#batchers;
	collect_all(@batchers);
	is(join('', map { $_->error } @batchers), '', 'batches in four orders meet without a deadlock');
	is(one_value($node, 'SELECT count(*) || $$ $$ || count(DISTINCT key) FROM seen'),
		join(' ', (4 * $number) x 2), 'and each key is seen for the first time once');
}

# --- unrelated keys do not meet -----------------------------------------------------

# From the empty table on: nothing there for a predicate lock to be small about.
$node->safe_psql('postgres', 'TRUNCATE idempotency_internal.record');
$node->pgbench(
	'--no-vacuum --client=8 --jobs=2 --transactions=100',
	0,
	[ qr{number of transactions actually processed: 800/800}, qr{number of failed transactions: 0 } ],
	[qr{^$}],
	'800 serializable transactions of 8 clients on unrelated keys: not one fails',
	{
		'unrelated' => q{
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT key AS k, fence AS f FROM idem_claim('unrelated', gen_random_uuid()::text) \gset
SELECT pg_sleep(0.01);
INSERT INTO business VALUES (':k');
SELECT idem_complete_key('unrelated', ':k', :f, '{"done": true}');
COMMIT;
}
	});
is(one_value($node, "SELECT count(*) FROM idempotency_internal.record WHERE state = 's'"),
	800, 'and all are on record');

is(heap_and_index_agree($node), '', 'table and indexes agree');
$node->stop;
done_testing();
