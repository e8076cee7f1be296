# A foreign server in the same transaction: a forgotten completion is refused
# before the remote transaction commits, whenever postgres_fdw was first used.
#
# postgres_fdw commits remotely from the callback before commit, which cannot be
# taken back; so everything here is about who is asked first.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('main');
$node->safe_psql('postgres', 'CREATE DATABASE remote');
$node->safe_psql('remote', 'CREATE TABLE payment (key text, note text)');
my ($host, $port) = ($node->host, $node->port);
$node->safe_psql('postgres', qq{
	CREATE EXTENSION postgres_fdw;
	CREATE SERVER remote FOREIGN DATA WRAPPER postgres_fdw
		OPTIONS (host '$host', port '$port', dbname 'remote');
	CREATE USER MAPPING FOR CURRENT_USER SERVER remote;
	IMPORT FOREIGN SCHEMA public FROM SERVER remote INTO public;
	CREATE SERVER second FOREIGN DATA WRAPPER postgres_fdw
		OPTIONS (host '$host', port '$port', dbname 'remote');
	CREATE USER MAPPING FOR CURRENT_USER SERVER second;
	CREATE FOREIGN TABLE second_payment (key text, note text) SERVER second OPTIONS (table_name 'payment');
	CREATE TABLE business (key text);
	CREATE SEQUENCE keys;

	-- the ways application code pays
	CREATE FUNCTION pay(key text) RETURNS void LANGUAGE plpgsql AS
		\$\$ BEGIN INSERT INTO payment VALUES (key, 'function'); END \$\$;
	CREATE FUNCTION claim_and_pay(key text) RETURNS void LANGUAGE plpgsql AS
		\$\$ BEGIN PERFORM idem_claim('pay', key); INSERT INTO payment VALUES (key, 'claim_and_pay'); END \$\$;
	CREATE FUNCTION pay_and_claim(key text) RETURNS void LANGUAGE plpgsql AS
		\$\$ BEGIN INSERT INTO payment VALUES (key, 'pay_and_claim'); PERFORM idem_claim('pay', key); END \$\$;
	CREATE FUNCTION claim_and_pay_in_block(key text) RETURNS void LANGUAGE plpgsql AS \$\$
	BEGIN
		PERFORM idem_claim('pay', key);
		BEGIN
			INSERT INTO payment VALUES (key, 'block');
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END \$\$;
	CREATE PROCEDURE claim_pay_commit(key text) LANGUAGE plpgsql AS \$\$
	BEGIN
		PERFORM idem_claim('pay', key);
		INSERT INTO payment VALUES (key, 'procedure');
		COMMIT;
	END \$\$;
	CREATE PROCEDURE pay_commit_claim_pay_commit(key text) LANGUAGE plpgsql AS \$\$
	BEGIN
		INSERT INTO payment VALUES ('first half of ' || key, 'procedure');
		COMMIT;
		PERFORM idem_claim('pay', key);
		PERFORM pay(key);
		COMMIT;
	END \$\$;
	CREATE PROCEDURE claim_then_pay_dynamically(key text) LANGUAGE plpgsql AS \$\$
	BEGIN
		PERFORM idem_claim('pay', key);
		EXECUTE format('INSERT INTO payment VALUES (%L, %L)', key, 'dynamic');
		COMMIT;
	END \$\$;
	CREATE FUNCTION pay_on_insert() RETURNS trigger LANGUAGE plpgsql AS
		\$\$ BEGIN INSERT INTO payment VALUES (NEW.key, 'trigger'); RETURN NULL; END \$\$;
	CREATE TABLE paid_at_commit (key text);
	CREATE CONSTRAINT TRIGGER pay AFTER INSERT ON paid_at_commit DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION pay_on_insert();
	CREATE TABLE paid_at_once (key text);
	CREATE TRIGGER pay AFTER INSERT ON paid_at_once FOR EACH ROW EXECUTE FUNCTION pay_on_insert();
});

# What a transaction does, and why it is worth a look.  KEY stands for the key.
my %forgetful = (
	'claim, then pay' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); INSERT INTO payment VALUES ('KEY'); COMMIT},
	'pay, then claim' => q{BEGIN; INSERT INTO payment VALUES ('KEY'); SELECT idem_claim('pay', 'KEY'); COMMIT},
	'pay, claim, pay' => q{BEGIN; INSERT INTO payment VALUES ('KEY'); SELECT idem_claim('pay', 'KEY');
		INSERT INTO payment VALUES ('KEY'); COMMIT},
	'claim, pay two servers' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); INSERT INTO payment VALUES ('KEY');
		INSERT INTO second_payment VALUES ('KEY'); COMMIT},
	'claim and pay in one statement' => q{BEGIN; WITH c AS MATERIALIZED (SELECT key FROM idem_claim('pay', 'KEY'))
		INSERT INTO payment SELECT key FROM c; COMMIT},
	'claim and pay in one statement of its own' => q{WITH c AS MATERIALIZED (SELECT key FROM idem_claim('pay', 'KEY'))
		INSERT INTO payment SELECT key FROM c},
	'a function claims and pays' => q{SELECT claim_and_pay('KEY')},
	'a function pays and claims' => q{SELECT pay_and_claim('KEY')},
	'a function pays in an exception block' => q{SELECT claim_and_pay_in_block('KEY')},
	'a DO block' => q{DO $$ BEGIN PERFORM idem_claim('pay', 'KEY'); PERFORM pay('KEY'); END $$},
	'claim, then a function pays' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); SELECT pay('KEY'); COMMIT},
	'a savepoint around the payment' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); SAVEPOINT a;
		INSERT INTO payment VALUES ('KEY'); RELEASE a; COMMIT},
	'a savepoint around the claim' => q{BEGIN; INSERT INTO payment VALUES ('KEY'); SAVEPOINT a;
		SELECT idem_claim('pay', 'KEY'); RELEASE a; COMMIT},
	'COPY to the foreign table' => qq{BEGIN; SELECT idem_claim('pay', 'KEY'); COPY payment FROM STDIN;\nKEY\tcopy\n\\.\nCOMMIT},
	'a prepared statement' => q{PREPARE p AS INSERT INTO payment VALUES ('KEY'); BEGIN;
		SELECT idem_claim('pay', 'KEY'); EXECUTE p; COMMIT},
	'only reading, before' => q{BEGIN; SELECT count(*) FROM payment; INSERT INTO business VALUES ('KEY');
		SELECT idem_claim('pay', 'KEY'); COMMIT},
	'a cursor left open' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); DECLARE d CURSOR FOR SELECT * FROM payment;
		FETCH d; INSERT INTO second_payment VALUES ('KEY'); COMMIT},
	'a trigger pays' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); INSERT INTO paid_at_once VALUES ('KEY'); COMMIT},
	'a deferred trigger pays' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); INSERT INTO paid_at_commit VALUES ('KEY'); COMMIT},
	'COMMIT AND CHAIN' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); INSERT INTO payment VALUES ('KEY'); COMMIT AND CHAIN},
	'a procedure commits' => q{CALL claim_pay_commit('KEY')},
	'a procedure commits its second half' => q{CALL pay_commit_claim_pay_commit('KEY')},
	'a procedure pays dynamically' => q{CALL claim_then_pay_dynamically('KEY')},
	'a completion that is rolled back' => q{BEGIN; INSERT INTO payment VALUES ('KEY');
		SELECT c::text AS c FROM idem_claim('pay', 'KEY') c \gset
		SAVEPOINT a; SELECT idem_complete(:'c'::idem_answer); ROLLBACK TO a; COMMIT},
	'an error between' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); SAVEPOINT a; SELECT 1/0; ROLLBACK TO a;
		INSERT INTO payment VALUES ('KEY'); COMMIT},
	'an error in the claiming statement of a savepoint' => q{BEGIN; SAVEPOINT a;
		SELECT 1/0 FROM idem_claim('pay', 'KEY'); ROLLBACK TO a;
		SELECT idem_claim('pay', 'KEY'); INSERT INTO payment VALUES ('KEY'); COMMIT},
	'the remote transaction is begun by a failed statement' => q{BEGIN; SELECT idem_claim('pay', 'KEY'); SAVEPOINT a;
		INSERT INTO payment SELECT 'KEY', (1/(length('KEY') - length('KEY')))::text; ROLLBACK TO a;
		INSERT INTO payment VALUES ('KEY'); COMMIT},
	'a statement of several queries' => q{SELECT idem_claim('pay', 'KEY')\; INSERT INTO payment VALUES ('KEY')},
	'a leased claim beside an open one' => q{BEGIN; SELECT idem_claim('pay', 'KEY leased', lease => '1 h');
		SELECT idem_claim('pay', 'KEY'); INSERT INTO payment VALUES ('KEY'); COMMIT},
);

# Before it, the session has done one of these: what was loaded and registered
# first decides the order of callbacks.
my %history = (
	'in a fresh session' => 'SELECT 1',
	'after another foreign transaction' => 'SELECT count(*) FROM payment',
	'after another claim' => q{SELECT idem_complete(c) FROM idem_claim('pay', 'other' || nextval('keys')) c},
	'after both, fdw first' => q{SELECT count(*) FROM payment;
		SELECT idem_complete(c) FROM idem_claim('pay', 'other' || nextval('keys')) c},
	'after both, claim first' => q{SELECT idem_complete(c) FROM idem_claim('pay', 'other' || nextval('keys')) c;
		SELECT count(*) FROM payment},
	'after LOAD of both' => q{LOAD 'idempotency'; LOAD 'postgres_fdw'},
);

sub counted
{
	my ($key) = @_;

	return $node->safe_psql('remote', "SELECT count(*) FROM payment WHERE key = '$key'");
}

foreach my $history (sort keys %history)
{
	my (@not_refused, @paid, @remembered);
	my $number = 0;

	foreach my $name (sort keys %forgetful)
	{
		my $session = session($node);
		my $key = "$history " . ++$number;
		(my $sql = $forgetful{$name}) =~ s/KEY/$key/g;

		$session->run($history{$history});
		push @not_refused, "$name: " . $session->sqlstate . ' ' . $session->error
		  if $session->try($sql) ne 'ID003';
		push @paid, $name if counted($key);
		$session->try('ROLLBACK');
		push @remembered, $name
		  if $session->value("SELECT state FROM idem_status('pay', '$key')") ne 'absent';
		push @not_refused, "$name: the session is not usable"
		  if $session->value('SELECT count(*) FROM payment WHERE false') ne '0';
	}
	is(join("\n", @not_refused), '', "$history: COMMIT is refused in each of $number ways to forget");
	is(join("\n", @paid), '', "$history: and nothing was committed remotely");
	is(join("\n", @remembered), '', "$history: nor is anything on record");
}

# The same transactions, not forgetting: everything commits once.
{
	my $session = session($node);

	foreach my $order ('claim first', 'payment first')
	{
		my $key = "good, $order";

		$session->run('BEGIN');
		$session->run("INSERT INTO payment VALUES ('$key')") if $order eq 'payment first';
		$session->claim("'pay', '$key'");
		$session->run("INSERT INTO payment VALUES ('$key')") if $order eq 'claim first';
		$session->complete('1');
		$session->run('COMMIT');
		is(counted($key), 1, "$key: with its completion the payment commits");
		is($session->value("SELECT verdict FROM idem_claim('pay', '$key')"), 'replay', "$key: and the claim replays");
	}
}

# Work that was accepted and is started without a lease is a claim like any.
{
	my ($first, $second) = sessions($node, 2);

	$first->run("SELECT idem_accept('pay', 'accepted')");
	is($first->try("BEGIN; SELECT idem_start('pay', 'accepted'); INSERT INTO payment VALUES ('accepted'); COMMIT"),
		'ID003', 'started and forgotten: refused');
	is($second->try("BEGIN; INSERT INTO payment VALUES ('accepted'); SELECT idem_start_next('pay'); COMMIT"),
		'ID003', 'whichever way it was started');
	is(counted('accepted'), 0, 'nothing is paid');
	is($first->value("SELECT state FROM idem_status('pay', 'accepted')"), 'accepted', 'and it is still to do');
}

# A transaction tried again although it had committed: refused before the
# remote side commits a second time.
foreach my $order ('payment first', 'completion first', 'fdw unused before')
{
	my $owner = session($node);
	my $key = "again, $order";

	$owner->claim("'pay', '$key', lease => '1 h'");
	my $fence = $owner->variable('c_fence');
	my $complete = "SELECT idem_complete_key('pay', '$key', $fence, '1')";
	my $pay = "INSERT INTO payment VALUES ('$key')";
	my $transaction = $order eq 'payment first' ? "$pay; $complete" : "$complete; $pay";
	$owner->run("BEGIN; INSERT INTO business VALUES ('$key'); $transaction; COMMIT");
	is(counted($key), 1, "$key: the first try commits");

	my $again = $order eq 'fdw unused before' ? session($node) : $owner;
	is($again->try("BEGIN; INSERT INTO business VALUES ('$key'); $transaction; COMMIT"),
		'ID002', "$key: the second is refused at COMMIT");
	is(counted($key), 1, "$key: and not paid twice");
	is(one_value($node, "SELECT count(*) FROM business WHERE key = '$key'"), 1, "$key: business rows once");
}

# PREPARE with a foreign server is postgres_fdw's to refuse, an open claim ours;
# either way nothing is paid.
{
	my $session = session($node);

	$session->try("BEGIN; SELECT idem_claim('pay', 'two-phase'); INSERT INTO payment VALUES ('two-phase'); PREPARE TRANSACTION 'x'");
	like($session->sqlstate, qr/^(ID003|0A000)$/, 'PREPARE is refused');
	is(counted('two-phase'), 0, 'and nothing is paid');
	is(one_value($node, 'SELECT count(*) FROM pg_prepared_xacts'), 0, 'nor prepared');
}

$node->stop;
done_testing();
