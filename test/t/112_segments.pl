# Segments emptied as a whole: what it costs in WAL, what the worker leaves for
# it, and that nothing but what is forgotten is ever lost, beside dumps, claims,
# a crash and a standby (DESIGN "Purge without debt"; invariants 3, 4, 8, 9).
# What stands against what in detail is in test/specs/purge_segment.spec.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', init => { extra => ['--data-checksums'], allows_streaming => 1 }, conf => <<'END');
shared_preload_libraries = 'idempotency'
idempotency.worker = off
idempotency.naptime = 50
idempotency.purge_delay = 0
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 4GB
END

# Windows are counted back from the one of now, also if it ends meanwhile.
my $now = int(time / 21600);
$node->safe_psql('postgres', <<"END");
SELECT idem_define('gone', '{"retention": "1 us"}'), idem_define('kept', '{"retention": null}');
-- a UUIDv7 made so many windows of six hours ago, a minute after its begin
CREATE FUNCTION v7(windows_ago int, n bigint) RETURNS text LANGUAGE sql AS \$\$
	SELECT substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-7000-8000-' || lpad(to_hex(n), 12, '0')
	FROM lpad(to_hex(($now - windows_ago) * 21600000::bigint + 60000), 12, '0') hex
\$\$;
CREATE FUNCTION table_of(windows_ago int) RETURNS regclass LANGUAGE sql AS \$\$
	SELECT ('idempotency_internal.record_s' || lpad((($now - windows_ago) % 32)::text, 2, '0'))::regclass
\$\$;
END
$node->safe_psql('postgres', <<'END');
CREATE FUNCTION fill(operation text, windows_ago int, how_many int) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(idem_once(operation, v7(windows_ago, n))) FROM generate_series(1, how_many) n
$$;
CREATE FUNCTION rows_of(windows_ago int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
BEGIN
	EXECUTE format('SELECT count(*) FROM %s', table_of(windows_ago)) INTO n;
	RETURN n;
END $$;
CREATE FUNCTION file_of(windows_ago int) RETURNS oid LANGUAGE sql AS $$ SELECT pg_relation_filenode(table_of(windows_ago)) $$;
CREATE FUNCTION update_of(windows_ago int, assignment text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('UPDATE %s SET %s', table_of(windows_ago), assignment);
END $$;
END

sub value { return one_value($node, @_); }

sub set_worker
{
	my ($on) = @_;

	value("ALTER SYSTEM SET idempotency.worker = $on");
	value('SELECT pg_reload_conf()');
	wait_for_sql($node, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker')") if $on eq 'off';
	return;
}

sub wait_for_visits
{
	my $before = value('SELECT visits FROM idem_stat_worker WHERE database = current_database() UNION ALL SELECT 0 LIMIT 1');

	wait_for_sql($node, "SELECT coalesce(max(visits), 0) > $before + 2 FROM idem_stat_worker WHERE database = current_database()");
	return;
}

# With summaries of what is there now: the launcher may not have heard yet that it
# is to be off, and a summary of the rows as they were filled in says later.
sub filled_long_ago
{
	my ($segment, $more) = @_;
	my $table = value("SELECT table_of($segment)");

	value("BEGIN; SELECT fill('gone', $segment, 3000); " . ($more // '') .
		  "SELECT update_of($segment, 'forget_at = now() - interval ''2 h'''); COMMIT");
	value("VACUUM $table");
	value("REINDEX TABLE $table");
	return;
}

# Purge by hand until nothing is left: how many, and the WAL it wrote, with every
# page written in full at its first change.
sub purge_all
{
	my ($sql) = @_;
	my $session = session($node);
	my $purged = 0;

	$session->run('CHECKPOINT');
	my $before = $session->value('SELECT pg_current_wal_insert_lsn()');
	while (my $n = $session->value($sql)) { $purged += $n; }
	return ($purged, $session->value("SELECT pg_current_wal_insert_lsn() - '$before'::pg_lsn"));
}

# --- WAL --------------------------------------------------------------------------------

my $many = 50000;
value("SELECT count(idem_once('gone', md5(n::text))) FROM generate_series(1, $many) n");
my ($deleted, $wal_of_delete) = purge_all('SELECT idem_purge(100000)');
is($deleted, $many, 'records without a time are deleted');
value('VACUUM idempotency_internal.record');
value("SELECT fill('gone', 8, $many)");
my ($emptied, $wal_of_emptying) = purge_all('SELECT idem_purge()');
is($emptied, $many, 'a segment is emptied');
cmp_ok($wal_of_emptying, '<', $wal_of_delete / 100, 'with less than 1 % of the WAL, with checksums and right after a checkpoint')
  or diag("$wal_of_emptying against $wal_of_delete bytes");
value("SELECT fill('gone', 8, 3000)");
my ($few, $wal_of_few) = purge_all('SELECT idem_purge()');
is($few, 3000, 'so is a small one, within the second that summaries may be late');
cmp_ok($wal_of_few, '<', $wal_of_delete / 100, 'and no page of it is written for the look');
note("WAL of $many records: $wal_of_delete bytes deleted, $wal_of_emptying emptied");
is(value("SELECT purged FROM idem_stat WHERE operation = 'gone'"), 2 * $many + $few, 'all are counted');

# spread over several segments, and the present one
value("SELECT fill('gone', ago, 3000) FROM generate_series(0, 5) ago");
my $files = value('SELECT array_agg(file_of(ago)) FROM generate_series(0, 5) ago');
is((purge_all('SELECT idem_purge()'))[0], 18000, 'so are several');
is(value("SELECT count(*) FROM generate_series(0, 5) ago WHERE file_of(ago) = ANY ('$files')"), 0, 'each as a whole');

# --- the worker --------------------------------------------------------------------------

# all is over
value("SELECT fill('gone', 8, 3000)");
my $file = value('SELECT file_of(8)');
my $total = value("SELECT purged FROM idem_stat WHERE operation = 'gone'");
set_worker('on');
wait_for_sql($node, 'SELECT rows_of(8) = 0');
isnt(value('SELECT file_of(8)'), $file, 'the worker empties a segment that is over');
wait_for_sql($node, "SELECT purged_total >= 3000 FROM idem_stat_worker WHERE database = 'postgres'");
is(value("SELECT purged FROM idem_stat WHERE operation = 'gone'"), $total + 3000, 'and counts');

# over soon, as segments go: what is forgotten waits for the rest
set_worker('off');
value("SELECT fill('gone', 8, 3000)");
$file = value('SELECT file_of(8)');
value("SELECT update_of(8, 'forget_at = now() + ''1 h'', expires_at = now() + ''1 h'' WHERE key LIKE ''%1''')");
set_worker('on');
wait_for_visits();
is(value('SELECT rows_of(8)'), 3000, 'what will soon go with its segment is left');
value("SELECT update_of(8, 'forget_at = now() - interval ''1 s''')");
wait_for_sql($node, 'SELECT rows_of(8) = 0');
isnt(value('SELECT file_of(8)'), $file, 'and goes with it');

# over late: deleted
set_worker('off');
value("SELECT fill('gone', 8, 3000)");
value("SELECT update_of(8, 'forget_at = now() + ''4 days'' WHERE key LIKE ''%1''')");
my $stay = value("SELECT count(*) FROM idem_record WHERE forget_at > now()");
set_worker('on');
wait_for_sql($node, "SELECT rows_of(8) = $stay");
pass('what would have to wait longer than the segment is closed is deleted');
value("SELECT update_of(8, 'forget_at = NULL')");
set_worker('off');
value("SELECT count(idem_once('gone', v7(8, n))) FROM generate_series(100001, 102000) n");
set_worker('on');
wait_for_sql($node, "SELECT rows_of(8) = $stay");
pass('so is what stands beside something that is kept');
value("SELECT update_of(8, 'forget_at = now() - interval ''1 s''')");
wait_for_sql($node, 'SELECT rows_of(8) = 0');

# the segment of the present: short retentions go at once
value("SELECT idem_define('short', '{\"retention\": \"1 h\"}')");
value("SELECT count(idem_once('short', idem_new_key())) FROM generate_series(1, 2000)");
value("SELECT count(idem_once('gone', idem_new_key())) FROM generate_series(1, 2000)");
wait_for_sql($node, "SELECT count(*) = 2000 FROM idem_record");
pass('in the segment of the present nothing waits');
set_worker('off');

# a transaction is in the way
value("SELECT fill('gone', 8, 3000)");
$file = value('SELECT file_of(8)');
my $holder = session($node);
$holder->run('BEGIN');
$holder->run('LOCK TABLE ' . value('SELECT table_of(8)') . ' IN ACCESS SHARE MODE');
set_worker('on');
wait_for_visits();
is(value('SELECT rows_of(8)'), 3000, 'the worker gives those in the way of a segment some time');
is(value('SELECT file_of(8)'), $file, 'waiting for nobody');
is(value("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL"), 0, 'not even in a queue');
$holder->run('COMMIT');
wait_for_sql($node, 'SELECT rows_of(8) = 0');
isnt(value('SELECT file_of(8)'), $file, 'it is emptied when they have gone');
set_worker('off');
filled_long_ago(8);
$file = value('SELECT file_of(8)');
$holder->run('BEGIN');
$holder->run('LOCK TABLE ' . value('SELECT table_of(8)') . ' IN ACCESS SHARE MODE');
set_worker('on');
wait_for_sql($node, 'SELECT rows_of(8) = 0');
is(value('SELECT file_of(8)'), $file, 'after an hour it deletes around them');
$holder->run('COMMIT');
set_worker('off');
filled_long_ago(8);
$file = value('SELECT file_of(8)');
$holder->run('BEGIN');
$holder->run('LOCK TABLE ' . value('SELECT table_of(8)') . ' IN SHARE UPDATE EXCLUSIVE MODE');
set_worker('on');
wait_for_visits();
is(value('SELECT rows_of(8)'), 3000, 'but waits for a vacuum');
$holder->run('COMMIT');
wait_for_sql($node, 'SELECT rows_of(8) = 0');
isnt(value('SELECT file_of(8)'), $file, 'and empties the segment then');

# a record that cannot be understood
set_worker('off');
filled_long_ago(7, <<'END');
SELECT idem_once('broken', v7(7, 999999));
INSERT INTO idempotency_internal.policy VALUES ('broken', '{"retention": 12}', '[]');
END
set_worker('on');
wait_for_sql($node, 'SELECT rows_of(7) = 1');
pass('a record that cannot be understood does not keep the others of its segment');
wait_for_sql($node, "SELECT left_behind >= 1 FROM idem_stat_worker WHERE database = 'postgres' AND state = 'done'");
value("DELETE FROM idempotency_internal.policy WHERE operation = 'broken'; SELECT idem_define('broken', '{\"retention\": \"1 us\"}')");
wait_for_sql($node, 'SELECT rows_of(7) = 0');
set_worker('off');

# a commit that waits for a standby holds no segment
value("SELECT fill('gone', 9, 3000)");
$file = value('SELECT file_of(9)');
value("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
value('SELECT pg_reload_conf()');
wait_for_sql($node, "SELECT current_setting('synchronous_standby_names') = 'nobody'");
my $waiting = session($node);
$waiting->send('SELECT idem_purge()');
wait_for_sql($node, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
is(value("SET lock_timeout = '10 s'; SELECT (idem_status('gone', v7(9, 3000))).state"), 'absent', 'a purge that waits for a standby keeps nobody waiting');
is(value('SELECT file_of(9)'), $file, 'it empties nothing');
value('SET synchronous_commit = off; ALTER SYSTEM RESET synchronous_standby_names');
value('SELECT pg_reload_conf()');
$waiting->result;
$waiting->quit;
is(value('SET synchronous_commit = local; SELECT idem_purge()'), 2000, 'one that need not wait');
isnt(value('SELECT file_of(9)'), $file, 'does');

# not to be forgotten yet, and so many that purge does not read them all to learn that
value("SELECT idem_define('later', '{\"retention\": \"9 days\"}')");
value("SELECT fill('later', 9, 60000)");
$file = value('SELECT file_of(9)');
is(value('SELECT idem_purge(100000)'), 0, 'what is not over is not purged, however large its segment');
is(value('SELECT file_of(9)'), $file, 'nor emptied');
value('DELETE FROM ' . value('SELECT table_of(9)'));

# --- dumps beside it -------------------------------------------------------------------------

# something to be kept in every other segment; in those between, all goes
my $dumps = PostgreSQL::Test::Utils::tempdir;
my $purge = join "\n", ('SELECT idem_purge();') x 12;
my $kept = "SELECT count(*), count(DISTINCT id) FROM idem_record WHERE operation = 'kept'";
my $replayed = "SELECT count(*) FROM generate_series(0, 30, 2) ago, idem_claim('kept', v7(ago, 555000 + ago)) WHERE verdict = 'replay'";
my $fill = "SELECT fill('gone', ago, 2500) FROM generate_series(1, 31, 2) ago";
my $n = value("SELECT count(idem_once('kept', v7(ago, 555000 + ago))) FROM generate_series(0, 30, 2) ago");
is($n, 16, 'something in every other segment is to be kept');
for my $round (1 .. 3)
{
	my @purges = sessions($node, 2);

	value($fill);
	$file = value('SELECT array_agg(file_of(ago)) FROM generate_series(1, 31, 2) ago');
	$_->send($purge) foreach @purges;
	# before the dump has its locks, or while it is about to take them
	wait_for_sql($node, "SELECT count(*) > 0 FROM generate_series(1, 31, 2) ago WHERE file_of(ago) <> ALL ('$file')") if $round != 2;
	$node->command_ok([ 'pg_dump', '--format=custom', "--file=$dumps/$round", '--dbname=' . $node->connstr('postgres') ], "round $round: dumped beside purges");
	collect_all(@purges);
	$node->safe_psql('postgres', "CREATE DATABASE copy$round");
	$node->command_ok([ 'pg_restore', '--exit-on-error', '--dbname=' . $node->connstr("copy$round"), "$dumps/$round" ], "round $round: restored");
	is(value($kept, "copy$round"), "$n|$n", "round $round: with all that is to be kept");
	is(value($replayed, "copy$round"), $n, "round $round: in the tables where claims look for it");
}
is(value($kept), "$n|$n", 'nothing is lost here either');

# --- a crash in the middle -------------------------------------------------------------------

for my $round (1 .. 3)
{
	my @purges = sessions($node, 2);

	value($fill);
	$file = value('SELECT array_agg(file_of(ago)) FROM generate_series(1, 31, 2) ago');
	$_->send($purge) foreach @purges;
	wait_for_sql($node, "SELECT count(*) > 0 FROM generate_series(1, 31, 2) ago WHERE file_of(ago) <> ALL ('$file')");
	kill_server($node);
	$node->start;
	is(value($kept), "$n|$n", "crash $round: all that is to be kept is there");
	is(value($replayed), $n, "crash $round: and replays");
	is(heap_and_index_agree($node), '', "crash $round: heaps and indexes agree");
	purge_all('SELECT idem_purge()');
	is(value("SELECT count(*) FROM idem_record WHERE operation = 'gone'"), 0, "crash $round: the rest is purged afterwards");
}

# --- a standby -------------------------------------------------------------------------------

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
my $reader = session($standby);
value("SELECT fill('gone', 41, 3000)");
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
is($reader->value("SELECT state FROM idem_status('gone', v7(41, 1))"), 'unconfirmed', 'a standby reads a segment');
$file = value('SELECT file_of(41)');
purge_all('SELECT idem_purge()');
isnt(value('SELECT file_of(41)'), $file, 'the segment is emptied');
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
is($reader->value("SELECT state FROM idem_status('gone', v7(41, 1))"), 'unconfirmed', 'and reads the same once it has been purged');
is($reader->value("SELECT count(*) FROM generate_series(0, 30, 2) ago, idem_status('kept', v7(ago, 555000 + ago)) WHERE state = 'succeeded'"), $n, 'and what is kept');
$standby->promote;
is(one_value($standby, $replayed), $n, 'promoted, it replays');
is(one_value($standby, "SELECT idem_once('gone', v7(41, 1))"), 't', 'and goes on in the emptied segment');

done_testing();
