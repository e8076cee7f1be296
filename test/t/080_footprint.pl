# What a call costs, in things that can be counted: transaction ids, WAL, dead
# rows.  Times are shown and not judged; a busy machine has its own.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('main', conf => "autovacuum = off\nmax_connections = 40\n");
my $session = session($node);

# Dead rows of the record table, counted, not estimated.
my $dead = sub {
	$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS pgstattuple')
	  if extension_available($node, 'pgstattuple');
	return one_value($node, extension_available($node, 'pgstattuple')
		? "SELECT dead_tuple_count FROM pgstattuple('idempotency_internal.record')"
		: "SELECT coalesce(pg_stat_get_dead_tuples('idempotency_internal.record'::regclass), 0)");
};

# WAL that a session's work wrote.  No other session is there, but reading a page may
# tidy it up; so the least of some runs counts.
my $wal_of = sub {
	my ($sql) = @_;
	my $least;

	for (my $run = 0; $run < 5 && (!defined $least || $least > 0); $run++)
	{
		my $before = $session->value('SELECT pg_current_wal_insert_lsn()');
		$session->run($sql);
		my $wal = $session->value("SELECT pg_current_wal_insert_lsn() - '$before'::pg_lsn");
		$least = $wal if !defined $least || $wal < $least;
	}
	return $least;
};

# --- a replay (C47, invariant 15) -----------------------------------------------------

$session->run(q{SELECT idem_complete(c, '{"order": 1}') FROM idem_claim('op', 'done', '{"a": 1}') c});
$session->run(q{SELECT idem_fail(c, '{"no": 1}') FROM idem_claim('op', 'failed') c});
$session->run(q{SELECT idem_claim('op', 'running', lease => '1 h')});
$session->run(q{SELECT idem_claim('op', 'overdue', lease => '1 us')});
$session->run(q{SELECT idem_claim('op', 'done', '{"a": 1}')});    # hint bits, caches
$session->run('VACUUM idempotency_internal.record');
my $replays = q{
	DO $$
	BEGIN
		FOR i IN 1 .. 1000 LOOP
			PERFORM idem_claim('op', 'done', '{"a": 1}');
			PERFORM idem_claim('op', 'done', '{"a": 2}');
			PERFORM idem_claim('op', 'failed');
			PERFORM idem_claim('op', 'running');
			PERFORM idem_claim('op', 'overdue');
			PERFORM idem_status('op', 'done');
			PERFORM idem_status('op', 'never');
		END LOOP;
		IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
			RAISE 'a transaction id was taken';
		END IF;
	END $$};
is($wal_of->($replays), 0, '1000 replays, mismatches, refusals and questions write no WAL and take no transaction id');
is($dead->(), 0, 'and leave no dead row');
is($session->value('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM generate_series(1, 100), idem_claim($$op$$, $$done$$, $${"a": 1}$$); '
		  . "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'SIReadLock'; COMMIT"),
	'100 0', 'nor a predicate lock, at SERIALIZABLE');

# --- claims that are given up ------------------------------------------------------------

my $pages = sub { return $session->value("SELECT pg_relation_size('idempotency_internal.record')"); };
my $size = $pages->();
$session->run(q{
	DO $$ BEGIN FOR i IN 1 .. 500 LOOP PERFORM idem_claim('op', 'rolled back ' || i); ROLLBACK; END LOOP; END $$;
	DO $$ BEGIN FOR i IN 1 .. 500 LOOP PERFORM idem_release(c) FROM idem_claim('op', 'released ' || i) c; COMMIT; END LOOP; END $$});
is($dead->(), 0, 'atomic claims rolled back or released leave no dead row');
is($pages->(), $size, 'nor make the table longer');
is($session->value("SELECT count(*) FROM idempotency_internal.record WHERE key ~ 'rolled|released'"), 0, 'nor leave a live one');

# --- a claim that is completed --------------------------------------------------------------

$session->run('VACUUM idempotency_internal.record');
$session->run(q{DO $$ BEGIN FOR i IN 1 .. 500 LOOP
	PERFORM idem_complete(c, '{}') FROM idem_claim('op', 'completed ' || i) c; COMMIT; END LOOP; END $$});
is($dead->(), 0, 'a claim and its completion are one row, written once');

# --- times, to look at ------------------------------------------------------------------------

my $holder = session($node);
$holder->run('BEGIN');
$holder->claim("'op', 'held'");
my %call = (
	'claim and complete' => q{SELECT idem_complete(c, '{}') FROM idem_claim('op', 't' || i) c},
	'replay' => q{SELECT idem_claim('op', 'done', '{"a": 1}')},
	'duplicate of a held key' => q{SELECT idem_claim('op', 'held')},
	'status' => q{SELECT idem_status('op', 'done')});
foreach my $name (sort keys %call)
{
	(my $perform = $call{$name}) =~ s/^SELECT/PERFORM/;
	my $us = $session->value(qq{
		CREATE TEMP TABLE took (us float8);
		DO \$\$ DECLARE t timestamptz; BEGIN FOR i IN 1 .. 2000 LOOP t := clock_timestamp(); $perform;
			INSERT INTO took VALUES (extract(epoch FROM clock_timestamp() - t) * 1e6); END LOOP; END \$\$;
		SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY us) || ' µs, p99 ' || percentile_disc(0.99) WITHIN GROUP (ORDER BY us) || ' µs' FROM took;
		DROP TABLE took;});
	note("$name: median $us");
	pass("$name: measured");
}
is($holder->complete('1'), '1', 'the holder was not disturbed');
$holder->run('COMMIT');

$node->stop;
done_testing();
