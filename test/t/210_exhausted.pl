# What a server runs out of: locks, connections, space, transaction ids and
# multixacts.  What cannot be done is refused as a whole, by the server's own
# error; what is on record is replayed all the while; afterwards everything goes on.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Small WAL segments, so that a limit on the size of files can spare them.
my $node = new_node('main', init => { extra => ['--wal-segsize=1'], allows_streaming => 'logical' }, conf => <<'END');
max_connections = 15
max_locks_per_transaction = 10
shared_buffers = 32MB
shared_preload_libraries = 'idempotency'
idempotency.naptime = 50
idempotency.worker = off
autovacuum = off
restart_after_crash = on
END
create_claims_table($node);
$node->safe_psql('postgres', q{
	SELECT idem_define('gone', '{"retention": "0"}');
	SELECT idem_define('large', '{"max_result_bytes": 10000000}');
	SELECT idem_complete(c, '"old"') FROM idem_claim('op', 'old') c});

my $internal = 'idempotency_internal';
my $replay = q{SELECT verdict || ' ' || result FROM idem_claim('op', 'old')};
my $purged = "SELECT count(*) = 0 FROM $internal.record WHERE operation = 'gone'";

# A statement of that session says true, at last: others may not be able to connect.
sub wait_in
{
	my ($session, $sql) = @_;

	for (my $tries = 0; $session->try($sql) ne '00000' || $session->output ne 't'; $tries++)
	{
		die "timed out waiting for: $sql" if $tries > 10 * $PostgreSQL::Test::Utils::timeout_default;
		sleep 0.1;
	}
	return pass($_[2]);
}

# --- locks ------------------------------------------------------------------------------

{
	my ($hog, $owner, $other, $leaser) = sessions($node, 4);
	my $fill = sub {
		$hog->run(q{DO $$ BEGIN FOR i IN 1 .. 10000000 LOOP PERFORM pg_advisory_lock(i); END LOOP; EXCEPTION WHEN out_of_memory THEN END $$});
	};
	my $free = sub { $hog->run('SELECT pg_advisory_unlock_all()'); };

	# sessions that know all that they are going to use
	foreach my $session ($owner, $other, $leaser)
	{
		$session->run(q{BEGIN; SELECT idem_complete(c, '1') FROM idem_claim('op', 'warm') c; ROLLBACK});
		$session->run(q{BEGIN; SELECT idem_claim('op', 'warm', lease => '1 h'); SELECT result FROM idem_status('op', 'old'); ROLLBACK});
		$session->claim("'op', 'lease of " . $session->pid . "', lease => '1 h'");
	}

	$owner->run('BEGIN');
	$owner->run("INSERT INTO business VALUES ('first')");
	$owner->claim("'op', 'first'");
	$owner->complete('1');
	$fill->();
	is($owner->try(q{SELECT idem_claim('op', 'second')}), '53200', 'the table of locks is full: a claim is refused');
	$owner->run('ROLLBACK');
	$free->();
	is($other->value(q{SELECT string_agg(state::text, ',') FROM unnest('{first,second}'::text[]) k, idem_status('op', k)}) . ' '
		  . $other->value('SELECT count(*) FROM business'), 'absent,absent 0', 'all of its transaction is rolled back');
	is($owner->value(q{BEGIN; SELECT string_agg(verdict || ' ' || attempt, ',') FROM unnest('{first,second}'::text[]) k, idem_claim('op', k); ROLLBACK}),
		'execute 1,execute 1', 'each key is free');

	$owner->run('BEGIN');
	$owner->run("INSERT INTO business VALUES ('kept')");
	$owner->claim("'op', 'kept'");
	$owner->run('SAVEPOINT s');
	$fill->();
	is($owner->try(q{SELECT idem_claim('op', 'second')}), '53200', 'in a savepoint, too');
	$owner->run('ROLLBACK TO s');
	$free->();
	is($owner->complete('2'), '2', 'which is rolled back: the claim before is completed');
	$owner->run('COMMIT');
	is($other->value(q{SELECT verdict || ' ' || result FROM idem_claim('op', 'kept')}), 'replay 2', 'and replayed');

	# many claims at once have few locks, and run out like one
	$owner->run('BEGIN');
	$fill->();
	is($owner->try(q{SELECT count(idem_complete(c, '1')) FROM generate_series(1, 100) i, idem_claim('op', 'many ' || i) c}), '53200', 'many in one statement are refused together');
	$owner->run('ROLLBACK');
	$free->();
	is($owner->value(q{SELECT count(idem_complete(c, '1')) FROM generate_series(1, 100) i, idem_claim('op', 'many ' || i) c}), 100, 'and made together');
	is($owner->value(q{SELECT string_agg(DISTINCT verdict || ' ' || attempt, ',') FROM generate_series(1, 100) i, idem_claim('op', 'many ' || i) c}), 'replay 1', 'and replayed');

	$leaser->claim("'op', 'leased', lease => '1 h'");
	$other->run(q{SELECT idem_once('gone', 'purge me')});
	$other->run('ALTER SYSTEM SET idempotency.worker = on');
	$fill->();
	is($leaser->try(q{SELECT idem_complete(:'c'::idem_answer, '3')}), '53200', 'a lease cannot be completed');
	is($leaser->value(q{SELECT result FROM idem_status('op', 'old')}), '"old"', 'what is on record can be asked for');
	my $log = -s $node->logfile;
	$leaser->run('SELECT pg_reload_conf()');
	$node->wait_for_log(qr/background worker "idempotency \w+" \(PID \d+\) exited with exit code 1/, $log);
	pass('the worker has to give up');
	$free->();
	is($leaser->complete('3'), '3', 'afterwards it is');
	wait_in($other, $purged, 'and the worker comes again and purges');
}

# --- connections -------------------------------------------------------------------------------

{
	my ($owner, $other) = sessions($node, 2);
	my @others;

	$owner->claim("'op', 'not alone', lease => '1 h'");
	for (my $more = 1; $more && @others < 20;)
	{
		$more = eval { push @others, session($node); };
	}
	like($@, qr/too many clients/, 'no connection is left');
	is($owner->complete('1'), '1', 'who has one goes on');
	is($other->value(q{SELECT verdict FROM idem_claim('op', 'not alone')}), 'replay', 'and is answered');
	$other->run(q{SELECT idem_once('gone', 'purge me')});
	wait_in($other, $purged, 'the worker needs none: it purges');
	$_->quit foreach @others;
}

# --- space ---------------------------------------------------------------------------------------

# From now on that session cannot write beyond so many bytes of a file; without
# any, it can again.
sub limit_files
{
	my ($session, $bytes) = @_;

	system_or_bail('prlimit', '--pid', $session->pid, '--fsize=' . ($bytes || 'unlimited') . ':');
	return;
}

{
	my ($owner, $other) = sessions($node, 2);

	# tables larger than a segment of WAL, which is written all the time
	$owner->run(q{SELECT count(idem_once('op', 'fill ' || i)) FROM generate_series(1, 9000) i});
	$owner->run(q{SELECT idem_complete(c, to_jsonb(t)) FROM idem_claim('large', 'fill') c, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 50000) i) s (t)});
	my $size = $owner->value("SELECT pg_relation_size('$internal.record')");
	cmp_ok($size, '>', 1024 * 1024, 'a table to outgrow its disk');
	$owner->claim("'large', 'leased', lease => '1 h'");
	$owner->run('CHECKPOINT');    # so that it has nothing to write for others
	limit_files($owner, $size + 100);

	$owner->run('BEGIN');
	$owner->run("INSERT INTO business VALUES ('too much')");
	# from 16 on the server takes this for a fault of another kind than a full disk
	my $full = qr/^(53100|XX000)$/;
	like($owner->try(q{SELECT count(idem_complete(c, to_jsonb(repeat(md5(i::text), 40)))) FROM generate_series(1, 200) i, idem_claim('op', 'too much ' || i) c}), $full, 'the disk is full in the middle of completions');
	$owner->run('ROLLBACK');
	is($owner->value(q{SELECT string_agg(DISTINCT state::text, ',') FROM generate_series(1, 200) i, idem_status('op', 'too much ' || i)}), 'absent', 'none is on record');
	is($owner->value(q{SELECT count(*) FROM business WHERE key = 'too much'}), 0, 'nor what was done');
	limit_files($owner, 100 + $owner->value("SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = '$internal.record'::regclass"));
	like($owner->try(q{SELECT idem_complete(:'c'::idem_answer, to_jsonb(string_agg(md5(i::text), ''))) FROM generate_series(1, 60000) i}), $full, 'a lease cannot be completed with a large result');
	is($owner->value($replay), 'replay "old"', 'replays go on');
	is($other->value(q{SELECT verdict FROM idem_claim('large', 'leased')}), 'in_progress', 'the lease runs');
	limit_files($owner);
	is($owner->value(q{SELECT length(idem_complete(:'c'::idem_answer, to_jsonb(string_agg(md5(i::text), '')))::text) FROM generate_series(1, 60000) i}), 60000 * 32 + 2, 'with space again it is completed');
	is($other->value(q{SELECT verdict || ' ' || length(result::text) FROM idem_claim('large', 'leased')}), 'replay ' . (60000 * 32 + 2), 'and replayed');
	is($owner->value(q{SELECT string_agg(DISTINCT verdict || ' ' || attempt, ',') FROM generate_series(1, 200) i, idem_claim('op', 'too much ' || i, lease => '1 s')}), 'execute 1', 'what was refused executes');
	is(heap_and_index_agree($node), '', 'tables and indexes agree');
}

# No space for WAL ends the server; what it has acknowledged is replayed.
{
	my $owner = session($node);
	my $done = 0;

	# keys of another table, which stays smaller
	my $work = q{WITH b AS (INSERT INTO business SELECT k, %d, 'wal' FROM idem_new_key() k RETURNING key)
		SELECT idem_complete(c, '%1$d') FROM b, idem_claim('op', b.key) c};
	$owner->run(q{SELECT pg_switch_wal()});
	$owner->run(q{SELECT idem_once('op', 'in a new segment')});    # which is made now
	limit_files($owner, 900 * 1024);
	$done++ while $owner->try(sprintf $work, $done) eq '00000';
	is($owner->sqlstate, 'lost', 'without space for WAL the server gives up');
	$node->poll_query_until('postgres', 'SELECT true') or die 'the server did not come back';
	ok(slurp_file($node->logfile) =~ /PANIC:  could not write/, 'for that reason');
	cmp_ok($done, '>', 0, "after $done completions");
	is(one_value($node, "SELECT count(*) FROM business b, idem_claim('op', b.key) c WHERE note = 'wal' AND b.attempt < $done AND verdict = 'replay' AND result = to_jsonb(b.attempt)"), $done, 'all that it had acknowledged is replayed');
	is(one_value($node, "SELECT count(*) FILTER (WHERE b.key IS NULL OR r.key IS NULL) FROM (SELECT key FROM business WHERE note = 'wal') b
		FULL JOIN (SELECT key FROM $internal.every_record WHERE operation = 'op' AND key ~ '^[0-9a-f]{8}-') r USING (key)"), 0, 'no business row without its record, no record without its business row');
}

# --- transaction ids and multixacts ---------------------------------------------------------------

# Lets a cluster that is stopped go on at another number: as for a server that has
# run for years, whose files of states have got there.
sub jump
{
	my ($file, $bytes, @option) = @_;

	$node->stop;
	system_or_bail('pg_resetwal', @option, $node->data_dir);
	append_to_file($node->data_dir . "/$file", "\0" x $bytes) unless -e $node->data_dir . "/$file";
	$node->start;
	return;
}

sub jump_to_xid { return jump(sprintf('pg_xact/%04X', $_[0] / 1048576), 262144, '-x', $_[0]); }
sub jump_to_multixact { return jump(sprintf('pg_multixact/offsets/%04X', $_[0] / 65536), 262144, '-m', "$_[0],1"); }

sub freeze_all
{
	$node->command_ok([ 'vacuumdb', '--all', '--freeze', '--quiet' ], 'all databases are frozen');
	return;
}

# How far that counter of a cluster may go: 3 million before the oldest comes round again.
sub limit_of { return ($_[0] + 2**31 - 1 - 3_000_000) % 2**32; }

sub oldest { return one_value($node, "SELECT dat$_[0] FROM pg_database ORDER BY age(datfrozenxid) DESC LIMIT 1"); }

{
	my $claim = sub { return session($node)->value("BEGIN; SELECT concat_ws(' ', verdict, attempt, result, holder) FROM idem_claim($_[0]); ROLLBACK"); };
	my $owner = session($node);

	# a database without connections cannot be frozen by hand
	$owner->run(q{UPDATE pg_database SET datallowconn = true});
	$owner->claim("'op', 'years', lease => '1 h'");
	my $fence = $owner->variable('c_fence');
	$owner->run(q{SELECT idem_fail(c, '{}', true) FROM idem_claim('op', 'again') c});
	$owner->run(q{SELECT idem_emit('mail', '1', 'k')});
	$owner->quit;

	jump_to_xid(1_200_000_000);
	is($claim->("'op', 'old'"), 'replay 1 "old"', 'some years later: what was done is replayed');
	freeze_all();
	is($claim->("'op', 'old'"), 'replay 1 "old"', 'frozen, too');
	# what holds the horizon, here for ever; the emergency vacuum must not lift the limit
	one_value($node, q{SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')});
	jump_to_xid(limit_of(oldest('frozenxid')));
	my $late = session($node);
	is($claim->("'op', 'old'"), 'replay 1 "old"', 'at the limit of transaction ids: it is replayed');
	is($late->value(q{SELECT state FROM idem_status('op', 'years')}), 'processing', 'status is told');
	$late->run('BEGIN');
	is($late->claim("'op', 'new'"), 'execute', 'a claim takes no id');
	is($late->try(q{SELECT idem_complete(:'c'::idem_answer, '1')}), '54000', 'its completion is refused');
	$late->run('ROLLBACK');
	is($late->try("SELECT idem_complete_key('op', 'years', $fence, '1')"), '54000', 'so is that of a lease');
	is($late->try(q{SELECT idem_claim('op', 'new', lease => '1 h')}), '54000', 'and a claim with one');
	is($late->value(q{SELECT state FROM idem_status('op', 'new')}), 'absent', 'nothing of them is there');
	one_value($node, q{SELECT pg_drop_replication_slot('forgotten')});
	freeze_all();
	is($late->value("SELECT idem_complete_key('op', 'years', $fence, '1')"), '1', 'afterwards the lease is completed');
	is($claim->("'op', 'new'"), 'execute 1', 'and the key is free');

	jump_to_xid(2**32 - 30);
	$late = session($node);
	$late->run('BEGIN');
	$late->run("INSERT INTO business VALUES ('turn')");
	$late->claim("'op', 'turn'");
	one_value($node, join ';', ('SELECT pg_current_xact_id()') x 40);
	is(one_value($node, 'SELECT pg_current_xact_id()::text::bigint > 4294967296'), 't', 'the counter turns over');
	is($late->complete('1'), '1', 'a claim of before is completed after');
	$late->run('COMMIT');
	is($claim->("'op', 'turn'"), 'replay 1 1', 'and replayed');
	is($claim->("'op', 'again'"), 'execute 2', 'what may be retried is');
	is($claim->("'op', 'old'"), 'replay 1 "old"', 'what is old is replayed');
	is($late->value(q{SELECT count(idem_ack(event_id, fence)) FROM idem_take('mail', 1, '1 h')}), 1, 'an event is delivered');
	$late->run(q{SELECT idem_once('gone', 'purge me')});
	wait_in($late, $purged, 'purge works');
	is(heap_and_index_agree($node), '', 'tables and indexes agree');
}

# A multixact is needed where a transaction reads a record FOR SHARE while its owner completes it.
{
	my $owner = session($node);

	$owner->claim("'op', 'shared', lease => '1 h'");
	my $fence = $owner->variable('c_fence');
	$owner->run("BEGIN; SELECT 1 FROM $internal.record WHERE key = 'shared' FOR KEY SHARE; PREPARE TRANSACTION 'forgotten'");
	$owner->quit;
	jump_to_multixact(limit_of(1) + 1);
	$owner = session($node);
	is($owner->try("SELECT idem_complete_key('op', 'shared', $fence, '1')"), '54000', 'at the limit of multixacts a completion that needs one is refused');
	is($owner->value(q{SELECT verdict FROM idem_claim('op', 'shared')}), 'in_progress', 'the lease runs');
	is($owner->value(q{SELECT idem_once('op', 'beside')}), 't', 'others need none');
	$owner->run(q{COMMIT PREPARED 'forgotten'});
	is($owner->value("SELECT idem_complete_key('op', 'shared', $fence, '1')"), '1', 'nor does it, when nobody reads the record');
	freeze_all();
	$owner->claim("'op', 'shared again', lease => '1 h'");
	my $reader = session($node);
	$reader->run("BEGIN; SELECT 1 FROM $internal.record WHERE key = 'shared again' FOR KEY SHARE");
	is($owner->complete('2'), '2', 'frozen, there are multixacts again');
	$reader->run('COMMIT');
	is($owner->value(q{SELECT verdict || ' ' || result FROM idem_claim('op', 'shared again')}), 'replay 2', 'and what has had one is replayed');
	is(heap_and_index_agree($node), '', 'tables and indexes agree');
}

$node->stop;
done_testing();
