# The limits with which destinations are called: circuit breaker, retry
# budget (C81), calls in flight; for all sessions together, outside transactions.

use strict;
use warnings FATAL => 'all';

use IdempotencyTest;
use Test::More;

my $node = new_node('limits', conf => "shared_preload_libraries = 'idempotency'\nidempotency.worker = off\n");
my @sessions = sessions($node, 8);
my ($one, $two, $three) = @sessions;

sub define { my ($destination, $settings) = @_; $one->run("SELECT idem_destination_define('$destination', '$settings')"); return; }
sub permit { my ($session, $destination, $is_retry) = @_; return $session->value("SELECT decision FROM idem_permit('$destination', " . ($is_retry ? 'true' : 'false') . ')'); }
sub report
{
	my ($session, $destination, $succeeded, $is_retry, $times) = @_;
	$session->run(sprintf "SELECT idem_report('%s', %s, %s) FROM generate_series(1, %d)", $destination,
		!defined $succeeded ? 'NULL' : $succeeded ? 'true' : 'false', $is_retry ? 'true' : 'false', $times // 1);
	return;
}
sub shown { my ($destination, $columns) = @_; return $one->value("SELECT concat_ws(' ', $columns) FROM idem_stat_destination WHERE destination = '$destination'"); }
sub is_let_go_some_time
{
	my ($session, $destination) = @_;
	for (1 .. 3000)
	{
		return 1 if permit($session, $destination) eq 'go';
		sleep 0.01;
	}
	return 0;
}

#
# Anything, at first.
#
is($one->value("SELECT p FROM idem_permit('new') p"), '(go,)', 'a destination nobody has defined may be called');
report($one, 'new', 1, 0);
is(shown('new', 'breaker, recently_succeeded, recently_failed, in_flight, retries_left, let_go, succeeded, failed, retries'),
	'closed 1 0 0 0.200000 1 1 0 0', 'and is known then');
foreach my $bad ("idem_permit(NULL)", "idem_permit('')", "idem_permit(repeat('d', 256))", "idem_report(NULL, true)",
	"idem_permit('new', NULL)", "idem_permit('*')", "idem_report('new', true, NULL)")
{
	is($one->try("SELECT $bad"), '22023', $bad);
}
is(shown('new', 'succeeded, failed'), '1 0', 'what is refused is not counted');

#
# The circuit breaker.
#
define('breaks', '{"breaker_cooldown": "1 h", "retry_budget": null}');
report($one, 'breaks', 0, 0, 4);
is(permit($two, 'breaks'), 'go', 'few calls say nothing');
report($two, 'breaks', 0, 0);
is(permit($three, 'breaks'), 'wait', 'five of five have failed: it opens, for all sessions');
is($one->value("SELECT retry_after BETWEEN '59 min' AND '67 min' FROM idem_permit('breaks')"), 't', 'and says when to ask again');
is(permit($one, 'new'), 'go', 'another destination does not care');
report($one, 'breaks', 1, 0, 100);
is(permit($one, 'breaks'), 'wait', 'calls that come back late do not close it');
is(shown('breaks', 'breaker, breaker_opened, told_to_wait'), 'open 1 3', 'shown open');
define('breaks', '{"breaker_failures": null}');
is(permit($one, 'breaks'), 'go', 'without the setting it is closed');

define('share', '{"breaker_failures": 0.5, "breaker_cooldown": "1 h"}');
report($one, 'share', 1, 0, 10);
report($one, 'share', 0, 0, 9);
is(permit($two, 'share'), 'go', 'less than half');
report($two, 'share', 0, 0);
is(permit($one, 'share'), 'wait', 'half');

define('tiny', '{"breaker_window": "50 ms", "breaker_cooldown": "1 h"}');
report($one, 'tiny', 0, 0, 4);
sleep 0.1;
report($one, 'tiny', 0, 0, 4);
is(permit($one, 'tiny'), 'go', 'what lies back longer than the window does not count');

define('probed', '{"breaker_cooldown": "1 h", "retry_budget": 0}');
report($one, 'probed', 0, 0, 5);
is(permit($one, 'probed'), 'wait', 'open');
# The pause is over, and then as long as before: no test waits for it.
sub cool_down
{
	my ($destination) = @_;
	define($destination, '{"breaker_cooldown": "1 us"}');
	is(shown($destination, 'breaker'), 'half-open', 'half-open after the pause');
	report($one, $destination, undef, 1);	# it stays so from the next call on
	define($destination, '{"breaker_cooldown": "1 h"}');
	return;
}
cool_down('probed');
is(permit($one, 'probed', 1), 'go', 'one probe is let through, whatever the retry budget says');
is(permit($two, 'probed'), 'wait', 'only one');
report($one, 'probed', 0, 1);
is(permit($two, 'probed'), 'wait', 'it fails: open again');
is(shown('probed', 'breaker, breaker_opened'), 'open 2', 'for the whole pause');
cool_down('probed');
is(permit($two, 'probed', 1), 'go', 'the next probe');
report($two, 'probed', undef, 1);
is(permit($one, 'probed', 1), 'go', 'which is not made after all: another one goes');
report($one, 'probed', 1, 1);
is(shown('probed', 'breaker, recently_succeeded, recently_failed'), 'closed 0 0', 'succeeds: closed, and the past forgotten');
define('probed', '{"retry_budget": null}');
is(permit($one, 'probed'), 'go', 'calls go');
is(permit($two, 'probed'), 'go', 'also of others');

define('lost', '{"breaker_cooldown": "100 ms"}');
report($one, 'lost', 0, 0, 5);
ok(is_let_go_some_time($one, 'lost'), 'a probe that nobody reports');
ok(is_let_go_some_time($two, 'lost'), 'makes place for another');

#
# C81: the retry budget.  Eight sessions, all at once, each permit and report in
# a transaction that is rolled back.
#
sub retry_at_once
{
	my ($destination, $succeeded) = @_;
	send_all(qq{BEGIN;
		DO \$\$ BEGIN
			FOR i IN 1 .. 10 LOOP
				BEGIN
					IF (idem_permit('$destination', true)).decision = 'go' THEN
						PERFORM pg_sleep(random() * 0.002);
						PERFORM idem_report('$destination', '$succeeded', true);
					END IF;
					RAISE EXCEPTION USING ERRCODE = 'UNDO1';
				EXCEPTION WHEN SQLSTATE 'UNDO1' THEN NULL;
				END;
			END LOOP;
		END \$\$;
		ROLLBACK}, @sessions);
	collect_all(@sessions);
	is(join(' ', grep { $_ ne '00000' } map { $_->sqlstate } @sessions), '', 'no error');
	return;
}

foreach my $case ([ 'calm', 1, 1 ], [ 'down', 0, 0 ])
{
	my ($name, $first_succeeds, $retry_succeeds) = @$case;
	define($name, '{"retry_budget": 0.1, "breaker_failures": null}');
	send_all("SELECT idem_permit('$name'), idem_report('$name', '$first_succeeds') FROM generate_series(1, 12)", @sessions);
	collect_all(@sessions);
	$one->run("SELECT idem_permit('$name'), idem_report('$name', '$first_succeeds') FROM generate_series(1, 4)");
	is(shown($name, 'let_go, retries_left::int'), '100 10', "C81: 100 first tries ($name) lay in 10 retries, and none was refused");

	retry_at_once($name, $retry_succeeds);
	is(shown($name, 'let_go - 100, retries, told_to_give_up, retries_left::int, in_flight'), '10 10 70 0 0',
		"C81: of 80 retries of 8 sessions ($name) 10 are let go, rolled back or not");
	is(permit($one, $name), 'go', 'first tries always go');
}
is(join(' ', map { permit($_, 'calm') } @sessions), join(' ', ('go') x 8), 'nine more first tries');
is(permit($one, 'calm', 1), 'give_up', 'are not enough for a retry');
is(permit($one, 'calm'), 'go', 'the tenth lays in the last tenth of a token');
is(permit($two, 'calm', 1), 'go', 'which a retry takes');
is(permit($three, 'calm', 1), 'give_up', 'one retry');
is(shown('calm', 'in_flight'), '11', 'calls are under way');
report($two, 'calm', undef, 1);
is(shown('calm', 'in_flight, recently_succeeded + recently_failed'), '10 110', 'Contract 1: a call that was not made gives its slot back, and says nothing about the destination');
is(permit($three, 'calm', 1), 'go', 'and its token');
report($three, 'calm', undef, 1);
report($one, 'calm', undef, 0);
is(permit($three, 'calm', 1), 'give_up', 'a first try that was not made lays nothing in');

define('none', '{"retry_budget": 0, "breaker_failures": null}');
is(permit($one, 'none'), 'go', 'no budget at all: a first try goes');
is(permit($two, 'none', 1), 'give_up', 'not one retry');
is(permit($two, 'none'), 'go', 'but the next first try');
define('free', '{"retry_budget": null, "breaker_failures": null}');
is(join(' ', map { my $said = permit($one, 'free', 1); report($one, 'free', 0, 1); $said } 1 .. 20), join(' ', ('go') x 20), 'no limit at all');
is(shown('free', "retries_left IS NULL, retries"), 't 20', 'counted all the same');
define('rare', '{"breaker_failures": null}');
is(permit($one, 'rare'), 'go', 'little traffic: one first try');
is(permit($one, 'rare', 1), 'go', 'one retry is let go without a whole token');
is(permit($one, 'rare', 1), 'give_up', 'not a second so soon');

#
# Calls in flight.
#
define('narrow', '{"max_in_flight": 3}');
is(join(' ', map { permit($_, 'narrow') } $one, $one, $two, $two, $three), 'go go go wait wait', 'three at a time');
is($one->value("SELECT retry_after BETWEEN '0.5 s' AND '1.5 s' FROM idem_permit('narrow')"), 't', 'a wait, with jitter');
report($three, 'narrow', 1, 0);
is(permit($three, 'narrow'), 'go', 'reported, by whoever: a place is free');
is(permit($three, 'narrow'), 'wait', 'one');
$two->run('BEGIN');
report($two, 'narrow', 1, 0);
$two->run('ROLLBACK');
is(shown('narrow', 'in_flight'), '2', 'a report counts although it was rolled back');
report($one, 'narrow', 1, 0, 7);
is(shown('narrow', 'in_flight'), '0', 'never less than none');
define('narrow', '{"max_in_flight": 0}');
is(permit($one, 'narrow'), 'wait', '0 stops all');

# who ends gives back what is still its own
define('ends', '{"max_in_flight": 4}');
my $dies = session($node);
is(join(' ', map { permit($_, 'ends') } $dies, $dies, $dies, $one), 'go go go go', 'full');
report($two, 'ends', 1, 0);
is(permit($two, 'ends'), 'go', 'one of its calls is reported elsewhere, and its place taken by another');
is(shown('ends', 'in_flight'), '4', 'full again');
$one->run('SELECT pg_terminate_backend(' . $dies->value('SELECT pg_backend_pid()') . ')');
wait_for_sql($node, "SELECT in_flight = 2 FROM idem_stat_destination WHERE destination = 'ends'");
is(shown('ends', 'in_flight'), '2', 'a killed session gives back two, not three: one was reported');

# an event has a place as long as its lease, unless its take comes to nothing
sub took { my ($session, $rest) = @_; return $session->value('SELECT count(*) FROM idem_take(' . "'leases'" . ($rest // '') . ')'); }
sub acked { my ($session, $where) = @_; return $session->value("SELECT idem_ack_many(array_agg(event_id), array_agg(fence)) FROM idempotency_internal.outbox_due WHERE destination = 'leases' AND $where"); }
define('leases', '{"max_in_flight": 2, "base": "1 h", "cap": "1 h"}');
$one->run("SELECT idem_emit('leases', to_jsonb(n)) FROM generate_series(1, 9) n");
$one->run('BEGIN');
is(took($one, ', 9'), '2', 'two events at a time');
$one->run('ROLLBACK');
is(shown('leases', 'in_flight'), '0', 'a take that is rolled back was not sent: its places are free');
$one->run('BEGIN; SAVEPOINT a');
is(took($one, ', 9'), '2', 'two events');
$one->run('SAVEPOINT b; RELEASE b; ROLLBACK TO a');
is(took($one, ', 9'), '2', 'so are those of a savepoint');
is(acked($one, "fence = (SELECT min(fence) FROM idempotency_internal.outbox_due WHERE destination = 'leases' AND fence > 0)"), '1', 'one is acknowledged');
$one->run('SAVEPOINT c');
is(took($one, ', 9'), '1', 'its place is free');
$one->run('RELEASE c; ROLLBACK');
is(shown('leases', 'in_flight'), '0', 'rolled back: each place is given back once');
is($one->try(q{DO $$ BEGIN
	PERFORM idem_take('leases', 9);
	RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN NULL;
END $$}), '00000', 'a take in a block that fails');
is(shown('leases', 'in_flight'), '0', 'came to nothing');
$dies = session($node);
is(took($dies, ', 9'), '2', 'a session takes two');
$one->run('SELECT pg_terminate_backend(' . $dies->value('SELECT pg_backend_pid()') . ')');
wait_for_sql($node, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $dies->pid);
is(shown('leases', 'in_flight'), '2', 'it ends, its leases go on');
is(took($one), '0', 'so nobody takes a third');
is(acked($one, 'fence > 0'), '2', 'who sent them acknowledges');
is(shown('leases', 'in_flight'), '0', 'and their places are free');
is(took($two, ", 9, '1 ms'"), '2', 'two under short leases, of which nobody is heard again');
wait_for_sql($node, "SELECT in_flight = 0 FROM idem_stat_destination WHERE destination = 'leases'");
wait_for_sql($node, "SELECT count(*) > 0 FROM idem_take('leases', 9)");
pass('their leases are over: the session that took them need not end');

# what is put back, or taken in vain, was never sent: it costs no token and lays none in
sub take { my ($session, $destination, $n) = @_; return $session->value("SELECT count(*) FROM idem_take('$destination', $n)"); }
sub give_back
{
	my ($session, $destination, $attempted, $n) = @_;
	$session->run("SELECT idem_nack(event_id, fence, NULL, attempted => $attempted) FROM idempotency_internal.outbox_due
		WHERE destination = '$destination' AND lease_until > clock_timestamp() LIMIT $n");
	return;
}
sub emit { my ($destination, $n) = @_; $one->run("SELECT idem_emit('$destination', to_jsonb(n)) FROM generate_series(1, $n) n"); return; }
my $budget = '"base": "0 s", "cap": "0 s", "breaker_failures": null, "max_attempts": null';

define('putback', qq({"retry_budget": 0.25, $budget}));
emit('putback', 3);
foreach my $again (1 .. 3)
{
	is(take($one, 'putback', 3), '3', 'three events are taken');
	give_back($one, 'putback', 'false', 3);
}
is(shown('putback', 'retries_left::float8, in_flight'), '0 0', 'and put back three times: first tries that are not made lay nothing in');
foreach my $undo ('ROLLBACK', 'SAVEPOINT s', 'SAVEPOINT s; SAVEPOINT t')
{
	$one->run('BEGIN');
	$one->run($undo) if $undo ne 'ROLLBACK';
	is(take($one, 'putback', 3), '3', 'taken');
	$one->run('RELEASE t') if $undo =~ /t$/;
	$one->run('ROLLBACK TO s') if $undo ne 'ROLLBACK';
	$one->run('ROLLBACK');
	is(shown('putback', 'retries_left::float8, in_flight'), '0 0', "and rolled back ($undo): no more do they");
}
define('again', qq({"retry_budget": 0.25, $budget}));
emit('again', 8);
is(take($one, 'again', 8), '8', 'eight first tries are made');
give_back($one, 'again', 'true', 8);
is(shown('again', 'retries_left::float8'), '2', 'they lay in two retries');
is(take($one, 'again', 8), '2', 'which are taken');
is(take($two, 'again', 8), '0', 'and no third one');
give_back($one, 'again', 'false', 1);
is(shown('again', 'retries_left::float8'), '1', 'a retry that is put back gives its token back');
is(take($two, 'again', 8), '1', 'so the next take hands it out');
give_back($two, 'again', 'false', 2);
$one->run('BEGIN');
is(take($one, 'again', 8), '2', 'two retries are taken');
$one->run('ROLLBACK');
is(take($two, 'again', 8), '2', 'and rolled back: the next take hands them out');
give_back($two, 'again', 'false', 2);
$one->run('BEGIN');
is(take($one, 'again', 8), '2', 'two retries are taken');
give_back($one, 'again', 'false', 1);
give_back($one, 'again', 'true', 1);
$one->run('ROLLBACK');
is(shown('again', 'retries_left::float8, in_flight'), '1 0', 'what was answered before the rollback is not given back again');

# a retry whose relay died comes again as a first try, and is put back as one
define('mixed', qq({"retry_budget": 0.5, $budget}));
emit('mixed', 5);
is(take($one, 'mixed', 5), '5', 'five first tries');
give_back($one, 'mixed', 'true', 1);
is($one->value("SELECT idem_ack_many(array_agg(event_id), array_agg(fence)) FROM idempotency_internal.outbox_due
	WHERE destination = 'mixed' AND lease_until > clock_timestamp()"), '4', 'of which four succeed');
is($one->value("SELECT count(*) FROM idem_take('mixed', 1, '1 us')"), '1', 'a retry that is never answered');
my $left = shown('mixed', 'retries_left::float8, retries');
is(take($one, 'mixed', 1), '1', 'taken once more');
give_back($one, 'mixed', 'false', 1);
is(shown('mixed', 'retries_left::float8, retries'), $left, 'and put back: the budget is what it was');

# never more than allowed, whatever the sessions do: each call takes one of as
# many locks as there are places, at once or not at all
define('crowd', '{"max_in_flight": 3, "retry_budget": null}');
send_all(q{DO $$ DECLARE place int; calls int := 0;
	BEGIN
		WHILE calls < 60 LOOP
			CONTINUE WHEN (idem_permit('crowd')).decision <> 'go';
			calls := calls + 1;
			SELECT n INTO place FROM generate_series(1, 3) n WHERE pg_try_advisory_lock(n) LIMIT 1;
			IF place IS NULL THEN RAISE EXCEPTION 'a fourth call'; END IF;
			PERFORM pg_sleep(random() * 0.001);
			PERFORM pg_advisory_unlock(place);
			PERFORM idem_report('crowd', true);
		END LOOP;
	END $$}, @sessions);
collect_all(@sessions);
is(join(' ', grep { $_ ne '00000' } map { $_->sqlstate } @sessions), '', '8 sessions, 3 places: never a fourth call');
is(shown('crowd', 'let_go, told_to_wait > 0, in_flight, succeeded'), '480 t 0 480', 'and all were busy');

#
# Who may, other databases, counting again.
#
$one->run(q{CREATE ROLE app LOGIN; CREATE ROLE watcher LOGIN; SELECT idem_grant('app'), idem_grant('watcher', 'monitor')});
my ($app, $watcher) = map { session($node, user => $_) } 'app', 'watcher';
is(permit($app, 'new'), 'go', 'tier app asks');
is($app->try("SELECT idem_report('new', true)"), '00000', 'and reports');
is($app->try('SELECT * FROM idem_stat_destination'), '42501', 'but does not see');
is($watcher->value("SELECT count(*) FROM idem_stat_destination WHERE destination = 'new'"), '1', 'tier monitor sees');
is($watcher->try("SELECT idem_permit('new')"), '42501', 'but does not ask');

# F09: destinations have a role
define('mail', '{"role": "app", "max_in_flight": 5}');
$one->run(q{CREATE ROLE other LOGIN; SELECT idem_grant('other')});
my $other = session($node, user => 'other');
is($other->try("SELECT idem_report('mail', false) FROM generate_series(1, 5)"), '42501', 'F09: without the role of the destination no report');
is($other->try("SELECT idem_permit('mail')"), '42501', 'F09: and no permit');
is(shown('mail', 'breaker'), '', 'F09: nothing is kept of it');
is(permit($app, 'mail'), 'go', 'F09: with the role it is called');
is(shown('mail', 'breaker, failed'), 'closed 0', 'F09: five reports by another role open no breaker');

$one->run('CREATE DATABASE elsewhere');
$node->safe_psql('elsewhere', 'CREATE EXTENSION idempotency');
is($node->safe_psql('elsewhere', "SELECT decision FROM idem_permit('breaks')"), 'go', 'another database has destinations of its own');
is($node->safe_psql('elsewhere', "SELECT count(*) FROM idem_stat_destination"), '1', 'and sees only those');
$one->run('SELECT idem_stat_reset()');
is(shown('share', 'breaker, succeeded, failed, told_to_wait'), 'open 0 0 0', 'counted from zero, the breaker as it was');

#
# More destinations than there is room for (F09).
#
is($one->value(q{SELECT count(*) FROM generate_series(1, 600) n, idem_report('quiet ' || n, true)}), '600', 'names without number');
is($one->value("SELECT count(*) FROM idem_stat_destination WHERE destination IS NULL"), '0', 'those at rest make room');
is(permit($two, 'share'), 'wait', 'an open breaker stays');
is(shown('mail', 'breaker, in_flight'), 'closed 1', 'F09: and so does what is defined, at rest or not');
my $elsewhere = session($node, dbname => 'elsewhere');
$elsewhere->run(q{SELECT (idem_permit('busy ' || n)).decision FROM generate_series(1, 300) n});
is($elsewhere->value(q{SELECT string_agg(DISTINCT (idem_permit('more ' || n)).decision, ' ') FROM generate_series(1, 300) n}), 'go',
	'when all are busy, undefined ones go without limits');
cmp_ok($one->value('SELECT let_go FROM idem_stat_destination WHERE destination IS NULL'), '>', 300, 'which is counted');
cmp_ok($one->value("SELECT count(*) FROM idem_stat_destination WHERE destination IS NOT NULL"), "<=", 256, "and memory has an end");
is(permit($two, 'share'), 'wait', 'an open breaker still stays');
define('later', '{"max_in_flight": 1}');
is(join(' ', map { permit($_, 'later') } $one, $two), 'go wait', 'F09: what is defined gets an entry however many invented names are busy elsewhere');
# so many defined ones that one has none
$one->run(q{SELECT idem_destination_define('full ' || n, '{"max_in_flight": 9}'), idem_permit('full ' || n) FROM generate_series(1, 300) n});
define('stopped', '{"max_in_flight": 0}');
is(permit($one, 'stopped'), 'wait', 'F09: without an entry 0 still stops all');
$one->run("SELECT idem_emit('stopped', '1')");
is($one->value("SELECT count(*) FROM idem_take('stopped')"), '0', 'F09: events too');
$elsewhere->quit;

#
# A restart forgets; without preload there is none.
#
$_->quit foreach @sessions, $app, $watcher, $other;
$node->restart;
is($node->safe_psql('postgres', 'SELECT count(*) FROM idem_stat_destination'), '0', 'forgotten over a restart');
is($node->safe_psql('postgres', "SELECT decision FROM idem_permit('share')"), 'go', 'closed again');
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
my $plain = session($node);
is($plain->try("SELECT idem_permit('mail')"), '55000', 'without preload: refused');
like($plain->error, qr/"mail".*shared_preload_libraries/s, 'saying what to do');
is($plain->try("SELECT idem_report('mail', true)"), '55000', 'and so is a report');
is($plain->value('SELECT count(*) FROM idem_stat_destination'), '0', 'nothing to see');
is($plain->try('SELECT idem_stat_reset()'), '00000', 'nothing to count again');
$plain->quit;

done_testing();
