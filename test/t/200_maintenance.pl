# What an administrator does with tables that are in use: they are rebuilt, moved
# and emptied, and given to another owner; the server is put back to an earlier
# time, or moved by logical replication.  No claim is lost, none executes twice.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main',
	init => { allows_streaming => 'logical', has_archiving => 1 },
	conf => "max_connections = 40\nmax_wal_senders = 16\nmax_replication_slots = 16\nautovacuum = off\ndeadlock_timeout = 100ms\n");
create_claims_table($node);
$node->safe_psql('postgres', q{
	SELECT idem_define('gone', '{"retention": "0"}');
	SELECT idem_complete(c, to_jsonb(k)) FROM unnest('{a,b,c,01ARZ3NDEKTSV4RRFFQ69G5FAV}'::text[]) k, idem_claim('old', k) c});

my $internal = 'idempotency_internal';
my @tables = split /\n/, one_value($node, "SELECT oid::regclass FROM pg_class
	WHERE relnamespace = '$internal'::regnamespace AND relkind = 'r' ORDER BY relname");
cmp_ok(scalar @tables, '>', 36, 'tables to work on');

sub verdict { return one_value($node, "SELECT verdict || coalesce(' ' || result::text, '') FROM idem_claim('op', '$_[0]', lease => '1 h')"); }

# Is the backend waiting for a lock of a relation?
sub wait_until_blocked
{
	my ($session) = @_;

	wait_for_sql($node, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $session->pid);
	return;
}

# --- REINDEX CONCURRENTLY, stopped at each of its steps ---------------------------------

{
	my ($dba, $reader, @owners) = sessions($node, 5);
	my $phase = sub {
		wait_for_sql($node, "SELECT phase = '$_[0]' FROM pg_stat_progress_create_index WHERE pid = " . $dba->pid);
	};

	# All that may happen to a key, while the table has one index more than usual.
	my $all_works = sub {
		my ($when) = @_;
		my ($owner, $other) = sessions($node, 2);
		my $key = "while $when";

		$owner->run('BEGIN');
		is($owner->claim("'op', '$key'"), 'execute', "$when: a key is claimed");
		$owner->complete('1');
		is($other->claim("'op', '$key'"), 'in_progress', "$when: nobody waits for it, and nobody else executes");
		$owner->run('ROLLBACK');
		is($other->claim("'op', '$key', lease => '1 h'"), 'execute', "$when: rolled back, it is free");
		is($other->complete('2'), '2', "$when: a lease is completed");
		is(verdict($key), 'replay 2', "$when: and replayed");
		is(one_value($node, "SELECT idem_once('op', '$key, at once')"), 't', "$when: another is done at once");
		is(one_value($node, "SELECT idem_once('gone', '$key')"), 't', "$when: what is forgotten at once");
		is(one_value($node, 'SELECT idem_purge()'), 1, "$when: is purged");
		is(one_value($node, "SELECT idem_once('gone', '$key')"), 't', "$when: and may be done again");
		is(one_value($node, 'SELECT idem_purge()'), 1, "$when: and purged again");
		is(one_value($node, "SELECT string_agg(verdict || ' ' || result, ',') FROM unnest('{a,b,c}'::text[]) k, idem_claim('old', k)"),
			'replay "a",replay "b",replay "c"', "$when: what is on record is replayed");
	};

	$_->run('BEGIN') foreach @owners;
	is($owners[0]->claim("'op', 'first'"), 'execute', 'a claim is open');
	$dba->send("REINDEX TABLE CONCURRENTLY $internal.record");
	$phase->('waiting for writers before build');
	$all_works->('new indexes are made');
	is($owners[1]->claim("'op', 'second'"), 'execute', 'a claim of when the new index was not kept up yet');
	$owners[0]->complete('1');
	$owners[0]->run('COMMIT');
	$phase->('waiting for writers before validation');
	$all_works->('new indexes are checked');
	is($owners[2]->claim("'op', 'third'"), 'execute', 'a claim of when it was kept up and not used');
	$reader->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
	$owners[1]->complete('1');
	$owners[1]->run('COMMIT');
	$phase->('waiting for old snapshots');
	$all_works->('new indexes are complete');
	$reader->run('COMMIT');
	$phase->('waiting for readers before marking dead');
	$all_works->('old indexes are left');
	$owners[2]->complete('1');
	$owners[2]->run('COMMIT');
	$dba->result;
	is($dba->sqlstate, '00000', 'REINDEX CONCURRENTLY ends');
	is(verdict($_), 'replay 1', "the $_ claim is replayed") foreach 'first', 'second', 'third';
	is(heap_and_index_agree($node), '', 'table and indexes agree');
}

# A REINDEX CONCURRENTLY that is cancelled leaves an index that is not valid.
{
	my ($dba, $owner) = sessions($node, 2);

	$owner->run('BEGIN');
	$owner->claim("'op', 'cancelled'");
	$dba->send("REINDEX TABLE CONCURRENTLY $internal.record");
	wait_until_blocked($dba);
	one_value($node, 'SELECT pg_cancel_backend(' . $dba->pid . ')');
	$dba->result;
	is($dba->sqlstate, '57014', 'one is cancelled');
	cmp_ok(one_value($node, "SELECT count(*) FROM pg_index WHERE NOT indisvalid AND indrelid = '$internal.record'::regclass"), '>', 0, 'and leaves indexes behind');
	$owner->complete('1');
	$owner->run('COMMIT');
	is(verdict('cancelled'), 'replay 1', 'which nothing minds');
	is(one_value($node, "SELECT string_agg(status, ',') FROM idem_doctor() WHERE item = 'tables'"), 'ok', 'nor does idem_doctor');
	$dba->run("DO \$\$ DECLARE i regclass; BEGIN FOR i IN SELECT indexrelid FROM pg_index WHERE NOT indisvalid LOOP EXECUTE format('DROP INDEX %s', i); END LOOP; END \$\$");
}

# --- what locks a table altogether ---------------------------------------------------------

{
	my ($dba, $owner, $other) = sessions($node, 3);

	foreach my $command ("VACUUM FULL $internal.record", "CLUSTER $internal.record USING record_pkey", "TRUNCATE $internal.outbox")
	{
		$owner->run('BEGIN');
		$owner->claim("'op', '$command'");
		$owner->run(q{SELECT idem_emit('mail', '{}', 'k')});
		$dba->send($command);
		wait_until_blocked($dba);
		is($other->try("SET lock_timeout = '10ms'; SELECT idem_claim('op', 'behind')"), '55P03', "$command: who comes behind it waits")
		  if $command !~ /TRUNCATE/;
		$owner->complete('1');
		$owner->run('COMMIT');
		$dba->result;
		is($dba->sqlstate, '00000', "$command: waits for the open claim");
		is(verdict($command), 'replay 1', "$command: which is replayed");
	}
	$other->run('RESET lock_timeout');
}

# --- rebuilt and moved under load ----------------------------------------------------------

{
	my $dba = session($node);
	my @workers = sessions($node, 3);
	my $place = PostgreSQL::Test::Utils::tempdir;

	$dba->run("CREATE TABLE stop (); CREATE TABLESPACE elsewhere LOCATION '$place'");
	# keys of both kinds, each tried by all; each fifth is left to a lease
	$dba->run(q{CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
		DECLARE
			key text;
			c idem_answer;
		BEGIN
			WHILE to_regclass('public.stop') IS NOT NULL LOOP
				key := CASE WHEN random() < 0.5 THEN 'k' || (random() * 100000)::int ELSE format('01ARZ3NDEKTSV4RRFFQ69G5%s', 100 + (random() * 800)::int) END;
				c := idem_claim('load', key);
				IF c.verdict = 'execute' THEN
					INSERT INTO business VALUES (key, c.attempt, 'load');
					PERFORM idem_complete(c, to_jsonb(key)), idem_emit('mail', to_jsonb(key), 'k' || (random() * 10)::int, c);
				END IF;
				COMMIT;
				c := idem_claim('load', key || 'l', lease => '1 h');
				COMMIT;
				IF c.verdict = 'execute' THEN
					INSERT INTO business VALUES (key || 'l', c.attempt, 'load');
					PERFORM idem_complete(c, to_jsonb(key));
				END IF;
				COMMIT;
				PERFORM idem_ack(e.event_id, e.fence) FROM idem_take('mail', 5, '1 min') e;
				COMMIT;
			END LOOP;
		END $$});
	send_all('CALL work()', @workers);
	wait_for_sql($node, "SELECT count(*) > 20 FROM business WHERE note = 'load'");
	$dba->run("REINDEX SCHEMA CONCURRENTLY $internal");
	my $segment = one_value($node, join ' UNION ALL ', map { "(SELECT '$_' FROM $_ LIMIT 1)" } grep { /record_s/ } @tables);
	my @busy = ("$internal.record", $segment, map { "$internal.$_" } 'open_work', 'outbox', 'outbox_due', 'policy', 'normalisation');
	foreach my $table (@busy)
	{
		$dba->run("VACUUM FULL $table");
		$dba->run("ALTER TABLE $table SET TABLESPACE elsewhere");
		$dba->run("REINDEX (TABLESPACE elsewhere) TABLE CONCURRENTLY $table");
	}
	# one by one: ALTER INDEX ALL locks them all
	foreach my $index (split /\n/, $dba->run("SELECT indexrelid::regclass FROM pg_index WHERE indrelid = ANY ('{" . join(',', @busy) . "}'::regclass[])"))
	{
		$dba->run("ALTER INDEX $index SET TABLESPACE pg_default");
	}
	my $done = one_value($node, "SELECT count(*) FROM business WHERE note = 'load'");
	wait_for_sql($node, "SELECT count(*) > $done FROM business WHERE note = 'load'");
	$dba->run('DROP TABLE stop');
	$_->result foreach @workers;
	is(join(',', map { $_->sqlstate } @workers), '00000,00000,00000', 'rebuilt and moved beside claims: nothing fails')
	  or diag(map { $_->error } @workers);
	is(one_value($node, "SELECT count(*) - count(DISTINCT key) FROM business WHERE note = 'load'"), 0, 'nothing executed twice');
	is(one_value($node, "SELECT count(*) FROM (SELECT key FROM business WHERE note = 'load' EXCEPT ALL
		SELECT key FROM $internal.every_record WHERE operation = 'load' AND state = 's') x"), 0, 'each business row has its record');
	is(one_value($node, "SELECT count(*) FROM (SELECT key FROM $internal.every_record WHERE operation = 'load' EXCEPT ALL
		SELECT key FROM business WHERE note = 'load') x"), 0, 'and each record its business row');
	$dba->run("ALTER $_ ALL IN TABLESPACE elsewhere SET TABLESPACE pg_default") foreach 'TABLE', 'INDEX';
	$dba->run('DROP TABLESPACE elsewhere');
	is(heap_and_index_agree($node), '', 'tables and indexes agree');
	is(one_value($node, "SELECT string_agg(status, ',') FROM idem_doctor() WHERE item = 'tables'"), 'ok', 'idem_doctor finds them in order');
}

# --- TRUNCATE by the owner -------------------------------------------------------------------

{
	my $owner = session($node);

	$owner->claim("'op', 'emptied', lease => '1 h'");
	$owner->run(q{SELECT idem_accept('op', 'emptied work'), idem_claim('op', 'emptied too', lease => '1 us')});
	$node->safe_psql('postgres', "TRUNCATE $internal.record");
	is($owner->try("SELECT idem_complete(:'c'::idem_answer, '1')"), 'ID001', 'emptied: an owner learns that its claim is gone');
	is(one_value($node, q{SELECT (SELECT count(*) FROM idem_start_next('op', 10, '1 h')) + (SELECT count(*) FROM idem_reconcile('op', 10)) || ' ' || (SELECT count(*) FROM idem_list())}),
		'0 0', 'nothing is handed out of what was open, or listed');
	is($owner->claim("'op', 'emptied', lease => '1 h'"), 'execute', 'the key executes again');
	is($owner->complete('2'), '2', 'and is completed');
	is(one_value($node, q{SELECT (idem_accept('op', 'emptied work')).state}), 'accepted', 'work is accepted');
	is(one_value($node, q{SELECT string_agg(key, ',') FROM idem_start_next('op', 10, '1 h')}), 'emptied work', 'and handed out again');
	is(one_value($node, "SELECT string_agg(verdict::text, ',') FROM unnest('{a,01ARZ3NDEKTSV4RRFFQ69G5FAV}'::text[]) k, idem_claim('old', k, lease => '1 us')"),
		'execute,replay', 'segments are tables of their own');

	# the other way round: records whose entry in the work list is gone
	$owner->run(q{SELECT idem_accept('op', 'unlisted'), idem_accept('op', 'unlisted too'), idem_accept('op', 'unlisted three')});
	$owner->claim("'op', 'unlisted lease', lease => '1 h'");
	$node->safe_psql('postgres', "TRUNCATE $internal.open_work");
	is($owner->complete('3'), '3', 'without its entry in the work list a lease is completed');
	is(one_value($node, q{SELECT verdict FROM idem_start('op', 'unlisted', '1 h')}), 'execute', 'and accepted work started');
	is(one_value($node, q{SELECT count(*) FROM idem_start_next('op', 10, '1 h')}), 0, 'but not handed out');
}

# --- another owner -----------------------------------------------------------------------------

{
	$node->safe_psql('postgres', q{CREATE ROLE first_dba SUPERUSER LOGIN; CREATE ROLE second_dba SUPERUSER LOGIN; CREATE ROLE app LOGIN; CREATE DATABASE given});
	$node->safe_psql('given', q{CREATE EXTENSION idempotency; SELECT idem_grant('app'); SELECT idem_define('gone', '{"retention": "0"}');
		SELECT idem_once('op', 'k'), idem_once('gone', 'k')}, extra_params => [ '-U', 'first_dba' ]);
	$node->safe_psql('given', 'REASSIGN OWNED BY first_dba TO second_dba; DROP OWNED BY first_dba; DROP ROLE first_dba');
	my $app = session($node, dbname => 'given', user => 'app');
	is($app->value("SELECT idem_once('op', 'k') || ' ' || idem_once('op', 'new') || ' ' || (idem_status('op', 'k')).state"), 'false true succeeded',
		'given to another owner: the rights of a tier are as before');
	is(one_value($node, 'SELECT idem_purge()', 'given'), 1, 'and it is purged');
	is(one_value($node, q{SELECT string_agg(status, ',') FROM idem_doctor() WHERE item IN ('tables', 'version')}, 'given'), 'ok,ok', 'and in order');
}

# --- back to a time between claim and completion ------------------------------------------------

# The archive has all that was written, and more than a server that is set back needs.
sub archive_all
{
	my $segment = one_value($node, 'SELECT pg_walfile_name(pg_current_wal_lsn())');

	one_value($node, 'SELECT pg_switch_wal()');
	wait_for_sql($node, "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver");
	return;
}

sub restored
{
	my ($name, $action) = @_;
	my $server = PostgreSQL::Test::Cluster->new($name);

	$server->init_from_backup($node, 'base', has_restoring => 1);
	# an archive of one server has no place for another's
	$server->append_conf('postgresql.conf', "archive_mode = off\nrecovery_target_name = 'between'\nrecovery_target_action = $action\n");
	$server->start;
	return $server;
}

{
	my $owner = session($node);

	$owner->run(q{SELECT idem_define('pit', '{"retry_after": "3 s"}'), idem_define('again', '{"on_lease_expiry": "retry"}')});
	$owner->run(q{SELECT idem_complete(c, '"early"') FROM idem_claim('pit', 'early') c});
	$node->backup('base');
	$owner->claim("'pit', 'leased', lease => '1 h'");
	my $fence = $owner->variable('c_fence');
	$owner->claim("'pit', 'overdue', lease => '1 us'");
	my $overdue_fence = $owner->variable('c_fence');
	$owner->run(q{SELECT idem_claim('again', 'overdue', lease => '1 us'), idem_accept('pit', 'work')});
	$owner->run(q{SELECT idem_emit('back', '"event"', 'k')});
	$owner->run(q{BEGIN; SELECT idem_claim('pit', 'prepared', lease => '1 h'); PREPARE TRANSACTION 'prepared'});
	my $open = session($node);
	$open->run('BEGIN');
	$open->claim("'pit', 'open'");
	$open->run("INSERT INTO business VALUES ('open')");
	$open->complete('1');
	$owner->run(q{SELECT pg_create_restore_point('between')});

	# what the restored server will not know of
	$open->run('COMMIT');
	$owner->run(q{COMMIT PREPARED 'prepared'});
	$owner->run("SELECT idem_complete_key('pit', 'leased', $fence, '\"late\"'), idem_complete_key('pit', 'overdue', $overdue_fence, '\"late\"')");
	$owner->run("INSERT INTO business VALUES ('later', 1); SELECT idem_complete(c, '1') FROM idem_claim('pit', 'later') c");
	my $later_fence = $owner->value("SELECT fence FROM $internal.record WHERE key = 'later'");
	$owner->run(q{SELECT idem_complete(c, '1') FROM idem_start_next('pit', 1, '1 h') c});
	my $event = $owner->value(q{SELECT idem_ack(event_id, fence)::text || event_id FROM idem_take('back', 1, '1 h')});
	$owner->run(q{SELECT idem_define('pit', '{"retry_after": "9 s"}')});
	archive_all();

	my $back = restored('back', 'promote');
	wait_for_sql($back, 'SELECT NOT pg_is_in_recovery()');
	my $there = session($back);
	my $claim = sub { return $there->value("BEGIN; SELECT concat_ws(' ', verdict, attempt, result, holder) FROM idem_claim($_[0]); ROLLBACK"); };

	is($claim->("'pit', 'early'"), 'replay 1 "early"', 'set back: what was done before is replayed');
	is($claim->("'pit', 'leased', lease => '1 h'"), 'in_progress 1', 'what was claimed and not completed is in progress');
	is($claim->("'pit', 'overdue', lease => '1 h'"), 'unknown 1', 'or unknown, when its lease is over: it never executes again by itself');
	is($claim->("'again', 'overdue', lease => '1 h'"), 'execute 2', 'unless the operation says that it may');
	is($claim->("'pit', 'prepared', lease => '1 h'"), 'in_progress 0', 'what was prepared is held');
	is($claim->("'pit', 'open'"), 'execute 1', 'what was open has not happened');
	is($there->value("SELECT count(*) FROM business WHERE key IN ('open', 'later')"), 0, 'nor have its business rows');
	$there->run('BEGIN');
	is($there->claim("'pit', 'later'"), 'execute', 'nor what was done later: its key executes');
	cmp_ok($there->variable('c_fence'), '>', $later_fence, 'under a higher fence, so that others can tell the two');
	$there->run('ROLLBACK');
	is($there->value(q{SELECT idem_policy('pit') ->> 'retry_after'}), '3 s', 'settings are those of then');
	is($there->value(q{SELECT string_agg(key, ',') FROM idem_start_next('pit', 10, '1 h')}), 'work', 'accepted work is handed out again');
	my ($id) = $event =~ /([-0-9a-f]{36})$/;
	is($there->value(q{SELECT event_id FROM idem_take('back', 10, '1 h')}), $id, 'an event is delivered again, under its id');
	is($there->value(q{SELECT string_agg(key, ',') FROM idem_reconcile('pit', 10)}), 'overdue', 'what is unknown is there to reconcile');
	is($there->value("SELECT idem_complete_key('pit', 'leased', $fence, '\"late\"')"), '"late"', 'an owner that repeats its completion makes it known');
	is($claim->("'pit', 'leased'"), 'replay 1 "late"', 'and it is replayed');
	$there->run(q{ROLLBACK PREPARED 'prepared'});
	is($claim->("'pit', 'prepared'"), 'execute 1', 'what was prepared is free when that is rolled back');
	is(heap_and_index_agree($back), '', 'tables and indexes agree');
	$back->stop;

	# a look before it is decided
	my $paused = restored('paused', 'pause');
	wait_for_sql($paused, q{SELECT pg_get_wal_replay_pause_state() = 'paused'});
	is(one_value($paused, q{SELECT string_agg(state::text, ',') FROM unnest('{leased,overdue,later}'::text[]) k, idem_status('pit', k)}),
		'processing,unknown,unconfirmed', 'paused at the target, it tells the same, and what it does not know is unconfirmed');
	is(session($paused)->try(q{SELECT idem_claim('pit', 'later')}), '25006', 'and lets nobody claim');
	$paused->stop;
}

# --- switched over by logical replication ---------------------------------------------------------

{
	my $new = new_node('new', init => { allows_streaming => 'logical' }, conf => <<'END');
shared_preload_libraries = 'idempotency'
idempotency.worker = off
max_worker_processes = 20
max_logical_replication_workers = 12
max_sync_workers_per_subscription = 8
wal_retrieve_retry_interval = 50ms
END
	my $old = session($node);

	create_claims_table($new);
	$node->safe_psql('postgres', 'CREATE PUBLICATION all_of_it FOR ALL TABLES');
	$new->safe_psql('postgres', q{SELECT count(*) FROM idem_take('moved', 1, '1 h')});
	$new->safe_psql('postgres', sprintf q{CREATE SUBSCRIPTION old CONNECTION '%s dbname=postgres' PUBLICATION all_of_it}, $node->connstr);
	$new->wait_for_subscription_sync($node, 'old');
	$old->run(q{SELECT idem_define('moved', '{"retry_after": "7 s", "ignore": ["/nonce"]}')});
	$old->run(q{SELECT idem_complete(c, to_jsonb(k)) FROM unnest('{a,01ARZ3NDEKTSV4RRFFQ69G5FAV}'::text[]) k, idem_claim('moved', k, '{"n": 1, "nonce": 2}') c});
	$old->claim("'moved', 'leased', lease => '1 h'");
	$old->run(q{SELECT idem_claim('moved', 'overdue', lease => '1 us'), idem_accept('moved', 'work'), idem_emit('moved', '"event"', 'k')});
	$old->run("SELECT idem_complete(:'c'::idem_answer, '1')");
	$old->claim("'moved', 'leased too', lease => '1 h'");
	my $fence = $old->variable('c_fence');
	$node->wait_for_catchup('old');
	$new->safe_psql('postgres', 'DROP SUBSCRIPTION old');

	my $late = session($new);
	my $claim = sub { return $late->value("BEGIN; SELECT concat_ws(' ', verdict, attempt, result) FROM idem_claim($_[0]); ROLLBACK"); };
	is($claim->(q{'moved', 'a', '{"n": 1, "nonce": 3}'}), 'replay 1 "a"', 'switched over: what was done is replayed');
	is($claim->(q{'moved', '01ARZ3NDEKTSV4RRFFQ69G5FAV', '{"n": 1}'}), 'replay 1 "01ARZ3NDEKTSV4RRFFQ69G5FAV"', 'of segments, too');
	is($claim->(q{'moved', 'a', '{"n": 2}'}), 'mismatch 1', 'by the params it had');
	is($claim->(q{'moved', 'leased'}), 'replay 1 1', 'what was completed after the copy');
	is($claim->(q{'moved', 'overdue'}), 'unknown 1', 'the unknown is unknown');
	is($claim->(q{'moved', 'leased too'}), 'in_progress 1', 'a lease runs');
	is($late->value("SELECT idem_complete_key('moved', 'leased too', $fence, '2')"), 2, 'and its owner may complete it');
	is($late->value(q{SELECT string_agg(key, ',') FROM idem_start_next('moved', 10, '1 h')}), 'work', 'work is handed out');
	is($late->value(q{SELECT idem_policy('moved') ->> 'retry_after'}), '7 s', 'the settings have come along');
	is($late->value(q{SELECT payload FROM idem_take('moved', 1, '1 h', '10 s')}), '"event"', 'and events, though a relay has asked before');
	is(heap_and_index_agree($new), '', 'tables and indexes agree');
	$new->stop;
}

$node->stop;
done_testing();
