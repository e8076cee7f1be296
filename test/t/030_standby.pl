# On a standby nothing is claimed and "not found" is not "never"; what it had
# received is replayed when it is promoted.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Cluster;
use Test::More;

my $conf = "max_connections = 30\nshared_buffers = 16MB\n";
my $primary = new_node('primary', init => { allows_streaming => 1 }, conf => $conf);
create_claims_table($primary);

# --- what is replicated before the standby falls behind ---------------------------------

my $owner = session($primary);
$owner->run("SELECT idem_define('op', '{\"retry_after\": \"4 s\", \"max_attempts\": 9}')");
$owner->run("SELECT idem_complete(c, '\"old\"') FROM idem_claim('op', 'old', '{\"a\": 1}') c");
$owner->run("SELECT idem_fail(c, '\"no funds\"') FROM idem_claim('op', 'failed') c");
$owner->claim("'op', 'leased', lease => '1 h'");
my $leased_fence = $owner->variable('c_fence');
$owner->claim("'op', 'overdue', lease => '1 ms'");

$owner->run("CREATE FUNCTION same(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT \$1'");

$primary->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'copy', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('write'));

# Uncommitted work on the primary, of which the standby has heard.
my ($open, $prepared, $undone) = sessions($primary, 3);
$open->run('BEGIN');
$open->claim("'op', 'open', lease => '1 h'");
$undone->run('BEGIN');
$undone->claim("'op', 'undone', lease => '1 h'");
$prepared->run('BEGIN');
$prepared->claim("'op', 'prepared'");
$prepared->complete('"prepared"');
$prepared->run("PREPARE TRANSACTION 'prepared'");
$owner->run('CHECKPOINT');    # writes a record, so that all before it is sent
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));

my $reader = session($standby);
my $status = sub {
	my ($key, $columns) = @_;
	$columns ||= "concat_ws(' ', coalesce(verdict::text, '-'), state, advice, attempt, result, error, coalesce(holder::text, 'nobody'))";
	return $reader->value("SELECT $columns FROM idem_status('op', '$key')");
};

is($status->('old'), '- succeeded use_result 1 "old" nobody', 'a replicated outcome is told');
is($status->('failed'), '- failed new_key 1 "no funds" nobody', 'so is a failure');
is($status->('leased'), '- processing retry_same_key 1 nobody', 'a lease that runs');
is($status->('overdue'), '- unknown reconcile 1 nobody', 'and one that is over');
is($status->('never seen'), '- unconfirmed retry_same_key nobody', 'a missing key is unconfirmed');
my $explained = sub {
	my ($key, $fact) = @_;
	return $reader->value("SELECT value FROM idem_explain('op', '$key') WHERE fact = '$fact'");
};
is($explained->('old', 'verdict'), 'replay', 'idem_explain works, too');
like($explained->('old', 'on a standby'), qr/^claims are refused here \(25006\)/, 'and says where it is');
is($explained->('overdue', 'verdict'), 'unknown', 'of a lease that is over');
is($explained->('never seen', 'verdict'), 'not known', 'of a missing key');
is($reader->value("SELECT count(*) FILTER (WHERE finding LIKE 'the check itself%') || ' of ' || count(DISTINCT item) FROM idem_doctor()"), '0 of 14', 'idem_doctor makes all its checks');
is($status->('never seen', 'retry_after BETWEEN \'2 s\' AND \'6 s\''), 't', 'with the time to ask again');
# Rows of transactions still open on the primary may have arrived or not: either
# way the answer is "not yet known", without a pid that would be the primary's.
my $open_there = qr/^- (processing|unconfirmed) retry_same_key nobody$/;
like($status->('open'), $open_there, 'a claim not committed on the primary is not known, and not absent');
like($status->('prepared'), $open_there, 'nor is a prepared one');
$undone->run('ROLLBACK');
$owner->run('CHECKPOINT');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
is($status->('undone'), '- unconfirmed retry_same_key nobody', 'rolled back there, it is unconfirmed here');
is($reader->value("SELECT idem_http_status(s) || ' ' || idem_http_status(t) FROM idem_status('op', 'old') s, idem_status('op', 'never seen') t"),
	'200 404', 'the HTTP statuses of both');
is($reader->value("SELECT idem_value(s) FROM idem_status('op', 'old') s"), '"old"', 'and the value of the first');
is($reader->value("SELECT string_agg(key || ' ' || state, ', ' ORDER BY key) FROM idem_list() WHERE key IN ('leased', 'overdue')"),
	'leased processing, overdue unknown', 'and a list of what is open');
is($reader->value("SELECT idem_policy('op')->>'max_attempts'"), '9', 'settings can be asked');
is($reader->value("SELECT idem_id('create_order', 'k1')"), '61362f49-1d33-8116-af4a-a257885ad4be', 'ids can be computed');

# --- nothing is changed on a standby --------------------------------------------------------

my $permit = "('execute', 'processing', 'run', idem_id('op', 'leased'), 'acme', 'op', 'leased', $leased_fence, 1, "
  . join(', ', ('NULL') x 9) . ')::idem_answer';
my $id = '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}';
my %writing = (
	'claim' => "SELECT idem_claim('op', 'never seen')",
	'claim of a known key' => "SELECT idem_claim('op', 'old', '{\"a\": 1}')",
	'leased claim' => "SELECT idem_claim('op', 'never seen', lease => '1 h')",
	'waiting claim' => "SELECT idem_claim('op', 'leased', wait => '1 h')",
	'accept' => "SELECT idem_accept('op', 'never seen')",
	'start' => "SELECT idem_start('op', 'leased')",
	'once' => "SELECT idem_once('op', 'never seen')",
	'run' => "SELECT idem_run('op', 'never seen', '1', 'same(jsonb)')",
	'cancel' => "SELECT idem_cancel('op', 'never seen')",
	'redact' => "SELECT idem_redact('op', 'old')",
	'resolve' => "SELECT idem_resolve('op', 'overdue', 'failed', '1')",
	'complete' => "SELECT idem_complete($permit)",
	'complete by key' => "SELECT idem_complete_key('op', 'leased', $leased_fence)",
	'fail' => "SELECT idem_fail($permit, '1')",
	'fail by key' => "SELECT idem_fail_key('op', 'leased', $leased_fence, '1')",
	'unsure' => "SELECT idem_unsure($permit)",
	'renew' => "SELECT idem_renew($permit, '1 h')",
	'renew by key' => "SELECT idem_renew_key('op', 'leased', $leased_fence, '1 h')",
	'release' => "SELECT idem_release($permit)",
	'release by key' => "SELECT idem_release_key('op', 'leased', $leased_fence)");
foreach my $what (sort keys %writing)
{
	$reader->try($writing{$what});
	is_error($reader, '25006', qr/"op" \(id $id\).*standby.*\nHINT: .*primary/s, "$what is refused, naming operation and id");
}
is($reader->try($_), '25006', "$_ is refused")
  foreach "SELECT idem_once_many('op', ARRAY['a', 'b'])", "SELECT idem_start_next('op')", "SELECT idem_reconcile('op')",
  "SELECT idem_purge()", "SELECT idem_define('op', '{}')", 'SELECT idem_grant(current_user)';

# A read-only transaction of the primary is the same, without a standby.
my $read_only = session($primary, set => { default_transaction_read_only => 'on' });
foreach my $what (sort keys %writing)
{
	$read_only->try($writing{$what});
	is_error($read_only, '25006', qr/"op" \(id $id\).*read-only.*\nHINT: /s, "$what in a read-only transaction is refused");
}
is($read_only->value("SELECT state FROM idem_status('op', 'never seen')"), 'absent', 'there, missing is absent');

# --- a standby that is late -------------------------------------------------------------------

$standby->append_conf('postgresql.conf', "recovery_min_apply_delay = '1h'\n");
$standby->reload;
wait_for_sql($standby, "SELECT current_setting('recovery_min_apply_delay') = '1h'");
foreach my $i (1 .. 20)
{
	$owner->run("SELECT idem_complete(c, '$i') FROM idem_claim('op', 'late$i') c");
}
$owner->run("SELECT idem_complete_key('op', 'leased', $leased_fence, '\"done\"')");
my $sent = $primary->lsn('flush');
wait_for_sql($standby, "SELECT pg_last_wal_receive_lsn() >= '$sent'");
is($reader->value("SELECT string_agg(DISTINCT concat_ws(' ', verdict, state, advice, holder), ',') "
		  . "FROM generate_series(2, 20) i, idem_status('op', 'late' || i)"),
	'unconfirmed retry_same_key', 'keys committed on the primary and not applied here are unconfirmed');
like($status->('late1'), $open_there, 'so is the one whose commit is being held back');
is($status->('leased'), '- processing retry_same_key 1 nobody', 'a completion not applied here is not told');
is($reader->try("SELECT idem_claim('op', 'late1')"), '25006', 'nor can it be claimed');

# --- promotion ------------------------------------------------------------------------------------

# The primary is lost with transactions open.
my $in_flight = session($primary);
$in_flight->run('BEGIN');
$in_flight->claim("'op', 'in flight'");
$in_flight->run("INSERT INTO business VALUES ('in flight')");
$in_flight->complete('1');
kill_server($primary);
$_->quit foreach $owner, $open, $undone, $prepared, $read_only, $in_flight;
$standby->promote;

# The session of before goes on.
my $claim = sub {
	my ($key, $more) = @_;
	return $reader->value("BEGIN; SELECT concat_ws(' ', verdict, attempt, result, holder) FROM idem_claim('op', '$key'"
		  . ($more || '') . '); ROLLBACK');
};
is($reader->value("SELECT count(*) FROM generate_series(1, 20) i, idem_claim('op', 'late' || i) c "
		  . "WHERE verdict = 'replay' AND result = to_jsonb(i)"),
	20, 'after promotion all that was received is replayed');
is($claim->('old', ", '{\"a\": 1}'"), 'replay 1 "old"', 'and what was old');
is($claim->('old', ", '{\"a\": 2}'"), 'mismatch 1', 'with the params it had');
is($claim->('leased'), 'replay 1 "done"', 'the late completion as well');
is($claim->('overdue'), 'unknown 1', 'what was unknown still is');
is($claim->('open'), 'execute 1', 'what was not committed did not happen');
is($claim->('in flight'), 'execute 1', 'completed or not');
is(one_value($standby, 'SELECT count(*) FROM business'), 0, 'nor are its business rows there');
is($claim->('never seen'), 'execute 1', 'a key never seen executes');
is($status->('and this'), '- absent retry_same_key nobody', 'and missing is absent again');
is($claim->('prepared'), 'in_progress 0', 'a prepared transaction is still in the way');
$reader->run("COMMIT PREPARED 'prepared'");
is($claim->('prepared'), 'replay 1 "prepared"', 'until it is committed');
is($reader->value("SELECT fence > $leased_fence FROM idem_claim('op', 'new', lease => '1 h')"), 't', 'fences go on growing');
is(heap_and_index_agree($standby), '', 'table and indexes agree');

$standby->stop;
clear_killed($primary);
done_testing();
