# A session that goes on for long has at its end the memory that it had after a
# tenth of it: claims, events and refusals leave nothing behind.  IDEM_ROUNDS=100000
# for a million of transactions.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rounds = $ENV{IDEM_ROUNDS} || 5000;

my $node = new_node('main', conf => "shared_preload_libraries = 'idempotency'\nidempotency.worker = off\n");
my $session = session($node, timeout => 3600);

$session->run(q{
	SELECT idem_define('pay', '{"on_lease_expiry": "retry", "defaults": {"currency": "EUR"}}');
	SELECT idem_define('ship', '{"key_format": "uuidv7"}');
	SELECT idem_destination_define('shop', '{}')});

# Refuses what a client may get wrong; each error is caught, as an application does.
$session->run(q{
	CREATE PROCEDURE refused(statement text, expected text) LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE statement;
		RAISE 'not refused: %', statement;
	EXCEPTION WHEN OTHERS THEN
		IF SQLSTATE <> expected THEN RAISE; END IF;
	END $$});

# What a round does, each in a transaction of its own.
my @calls = (
	q{c := idem_claim('pay', 'k' || i, '{"amount": [1, 2, {"of": "it"}]}'); PERFORM idem_emit('shop', '{"paid": true}', 'k' || i % 100, c); PERFORM idem_complete(c, '{"done": true}');},
	q{PERFORM idem_ack_many(array_agg(e.event_id), array_agg(e.fence)) FROM idem_take('shop', 2) e;},
	q{IF (idem_claim('pay', 'k' || i, '{"amount": [1, 2, {"of": "it"}]}')).verdict <> 'replay' THEN RAISE 'no replay'; END IF;},
	q{IF (idem_claim('pay', 'k' || i, '{"amount": 3}')).verdict <> 'mismatch' THEN RAISE 'no mismatch'; END IF;},
	q{c := idem_claim('ship', idem_new_key(), lease => '1 h', owner => 'w'); PERFORM idem_renew(c, '2 h'); PERFORM idem_fail(c, '{"no": 1}', true);},
	q{PERFORM idem_once('pay', 'once ' || i); PERFORM idem_accept('pay', 'later ' || i); PERFORM idem_status('pay', 'later ' || i);},
	q{CALL refused($r$SELECT idem_complete_key('pay', 'never', 1)$r$, 'ID001');},
	q{CALL refused($r$SELECT idem_claim('ship', 'no uuid')$r$, '22023');},
	q{CALL refused($r$SELECT idem_fingerprint_text('{"a": 1, "a": 2}')$r$, '22032');},
	q{PERFORM idem_claim('pay', 'undone ' || i);});

# In statements of 100 rounds, in which the last call of each is rolled back.
my $body = join "\n", map { "$_ " . (/undone/ ? 'ROLLBACK;' : 'COMMIT;') } @calls;
my $of_rounds = "DO \$do\$ DECLARE c idem_answer; BEGIN FOR i IN %d .. %d LOOP $body END LOOP; END \$do\$";

sub play
{
	my ($from, $to) = @_;

	for (my $first = $from; $first <= $to; $first += 100)
	{
		my $last = $first + 99 < $to ? $first + 99 : $to;

		$session->run(sprintf $of_rounds, $first, $last);
		$session->try(q{BEGIN; SELECT idem_claim('pay', 'open'); COMMIT}) eq 'ID003' or die 'not refused';
	}
	return;
}

# Bytes: used in the memory contexts, and of the process without what it shares.
sub memory
{
	my $contexts = $session->value('SELECT sum(used_bytes) FROM pg_backend_memory_contexts');
	my ($process) = slurp_file('/proc/' . $session->pid . '/status') =~ /^RssAnon:\s*(\d+) kB/m;

	return ($contexts, $process * 1024);
}

my $tenth = int $rounds / 10;
memory();
play(1, $tenth);
my @before = memory();
play($tenth + 1, $rounds);
my @after = memory();
note(sprintf '%d rounds: %d bytes in contexts, %d in all; before, after a tenth, %d and %d', $rounds, @after, @before);
cmp_ok($after[0] - $before[0], '<', 16 * 1024, 'the memory contexts have not grown');
cmp_ok($after[1] - $before[1], '<', 256 * 1024, 'nor has the process');

$node->stop;
done_testing();
