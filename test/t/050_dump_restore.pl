# Moving a database: dumps, templates, and the extension dropped and made again
# take every outcome along, or say honestly that it is gone.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', extension => 0);
my $dumps = PostgreSQL::Test::Utils::tempdir;

# --- a database with everything in it ------------------------------------------------

$node->safe_psql('postgres', 'CREATE ROLE app LOGIN; CREATE ROLE worker LOGIN; CREATE ROLE outsider LOGIN; '
	  . 'CREATE ROLE backup LOGIN; GRANT pg_read_all_data TO backup; CREATE DATABASE original');
$node->safe_psql('original', <<'END');
CREATE SCHEMA idempotency;
CREATE EXTENSION idempotency SCHEMA idempotency;
SET search_path = idempotency, public;
SELECT idem_grant('app', 'app'), idem_grant('worker', 'worker');

SELECT idem_define('*', '{"retry_after": "2 s"}');
SELECT idem_define('for ever', '{"retention": null}');
SELECT idem_define('normalised', '{"numbers": "double", "max_attempts": 7}');
SELECT idem_define('short', '{"retention": "1 ms", "guard": "1 day"}');
SELECT idem_define('forgotten', '{"retention": "1 ms"}');
SELECT idem_define('of app', '{"role": "app", "principal_setting": "session_user"}');

CREATE TABLE public.key (operation text, key text, params jsonb, fence bigint, told text);
CREATE FUNCTION public.note_claim(c idem_answer, params jsonb) RETURNS idem_answer LANGUAGE sql AS
	$$ INSERT INTO public.key VALUES (c.operation, c.key, params, c.fence); SELECT c $$;

-- 100 completed ones, with results a dump might spoil
SELECT idem_complete(note_claim(idem_claim('order', 'k' || i, params), params), result)
FROM generate_series(1, 100) i,
	LATERAL (SELECT jsonb_build_object('number', i, 'text', E'\u00e9 \U0001F600 \t "quoted" \\ ' || i) AS params) p,
	LATERAL (SELECT CASE i % 7
		WHEN 0 THEN 'null'::jsonb
		WHEN 1 THEN NULL
		WHEN 2 THEN to_jsonb(E'line\nbreak \\N \\. tab\t' || i)
		WHEN 3 THEN ('[1e400, 0.1000, 123456789012345678901234567890, ' || i || ']')::jsonb
		WHEN 4 THEN jsonb_build_object('long', repeat('x', 10000) || i)
		ELSE jsonb_build_object('order', i, 'nested', jsonb_build_array(i, true, NULL)) END AS result) r;
SELECT idem_complete(note_claim(idem_claim('for ever', 'k' || i), NULL), to_jsonb(i)) FROM generate_series(1, 5) i;
SELECT idem_complete(note_claim(idem_claim('normalised', 'k' || i, p), p), to_jsonb(i))
FROM generate_series(1, 5) i, LATERAL (SELECT jsonb_build_object('amount', 9007199254740993 + 2 * i) AS p) p;
SELECT idem_fail(note_claim(idem_claim('order', 'failed' || i), NULL), '{"code": "no funds"}') FROM generate_series(1, 5) i;
SELECT idem_fail(note_claim(idem_claim('order', 'again' || i), NULL), '{"code": "busy"}', true) FROM generate_series(1, 5) i;
SELECT note_claim(idem_claim('order', 'running' || i, lease => '1 h', owner => 'w1'), NULL) FROM generate_series(1, 5) i;
SELECT note_claim(idem_claim('order', 'overdue' || i, lease => '1 ms'), NULL) FROM generate_series(1, 5) i;
SELECT idem_unsure(note_claim(idem_claim('order', 'unsure' || i, lease => '1 h'), NULL), '{"sent": true}') FROM generate_series(1, 5) i;
SELECT note_claim(idem_accept('order', 'accepted' || i), NULL) FROM generate_series(1, 5) i;
SELECT note_claim(idem_claim('order', 'released' || i, lease => '1 h'), NULL) FROM generate_series(1, 5) i;
SELECT idem_release_key('order', k.key, k.fence) FROM public.key k WHERE k.key LIKE 'released%';
SELECT idem_complete(note_claim(idem_claim('short', 'k' || i), NULL), to_jsonb(i)) FROM generate_series(1, 5) i;
SELECT idem_complete(note_claim(idem_claim('forgotten', 'k' || i), NULL), to_jsonb(i)) FROM generate_series(1, 5) i;
-- keys that carry their time, two in each segment
SELECT idem_complete(note_claim(idem_claim('timed', key), NULL), to_jsonb(i))
FROM generate_series(1, 64) i, LATERAL (SELECT overlay(lpad(to_hex(i * 21600000::bigint), 12, '0') || '-7000-8000-000000000000' placing '-' from 9 for 0) AS key) k;

SELECT idem_destination_define('mail', '{"max_attempts": 3}'), idem_destination_define('*', '{"deadline": null}');
-- the settings change while records live
SELECT idem_define('normalised', '{"numbers": "exact", "ignore": ["/nonce"]}');
END

# What status says of every key, but for what is drawn anew each time.
my $told = q{
	SELECT k.operation, k.key, s.verdict, s.state, s.advice, s.id, s.fence, s.attempt, s.result, s.error, s.holder,
		s.claimed_at, s.finished_at, s.lease_until, s.expires_at, s.forget_at
	FROM public.key k, idempotency.idem_status(k.operation, k.key) s ORDER BY 1, 2};
my $policies = q{SELECT o, idempotency.idem_policy(o)
	FROM unnest(ARRAY['*', 'order', 'for ever', 'normalised', 'short', 'forgotten', 'of app']) o
	UNION ALL SELECT 'to ' || d, idempotency.idem_destination_policy(d) FROM unnest(ARRAY['*', 'mail', 'other']) d ORDER BY 1};
my $work = q{SELECT key, state, attempt, lease_until FROM idempotency.idem_list('acme') ORDER BY key};
my $told_before = one_value($node, $told, 'original');
my $work_before = one_value($node, $work, 'original');
my $policies_before = one_value($node, $policies, 'original');
is(scalar(() = $told_before =~ /\n/g) + 1, 219, 'a database with 219 keys in all states');
is(one_value($node, q{SELECT count(DISTINCT tableoid) || ' ' || count(*) FROM (}
	  . join(' UNION ALL ', map { sprintf 'SELECT tableoid, operation FROM idempotency_internal.record_s%02d', $_ } 0 .. 31)
	  . q{) r WHERE operation = 'timed'}, 'original'), '32 64', 'in all segments');

# Everything that has to be true of a copy.  The claims are rolled back, so that
# the copy can be copied again.
sub is_whole
{
	my ($db, $name) = @_;
	my $claims = sub {
		my ($where, $what) = @_;
		return one_value($node, "SET search_path = idempotency; BEGIN; "
			  . "SELECT string_agg(DISTINCT $what, ',') FROM (SELECT * FROM public.key k WHERE $where) k, "
			  . 'idem_claim(k.operation, k.key, k.params) c; ROLLBACK', $db);
	};

	is(one_value($node, $told, $db), $told_before, "$name: status of each key is the same");
	is(one_value($node, $policies, $db), $policies_before, "$name: so are the policies");
	is(one_value($node, "SET search_path = idempotency; SELECT count(*) FROM public.key k, "
			  . "idem_claim(k.operation, k.key, k.params) c, idem_status(k.operation, k.key) s "
			  . "WHERE k.operation = 'order' AND k.key LIKE 'k%' AND c.verdict = 'replay' "
			  . 'AND c.result IS NOT DISTINCT FROM s.result', $db),
		100, "$name: 100 completed keys replay");
	is($claims->("operation = 'for ever'", 'c.verdict::text'), 'replay', "$name: and those kept for ever");
	is($claims->("operation = 'timed'", 'c.verdict::text'), 'replay', "$name: and those whose keys carry their time");
	is(one_value($node, "SET search_path = idempotency; SELECT string_agg(DISTINCT verdict::text, ',') FROM public.key k, "
			  . "idem_claim(k.operation, k.key, jsonb_build_object('amount', (k.params->>'amount')::float8)) "
			  . "WHERE k.operation = 'normalised'", $db),
		'replay', "$name: params are compared under the settings they were hashed with");
	is(one_value($node, $work, $db), $work_before, "$name: the list of open work is the same");
	is($claims->("key LIKE 'accepted%'", "c.verdict || ' ' || c.state"), 'in_progress accepted', "$name: accepted work is still to do");
	is(one_value($node, "SET search_path = idempotency; BEGIN; SELECT count(*) || ' ' || bool_and(key LIKE 'accepted%') FROM idem_start_next('order', 100, '1 h'); ROLLBACK", $db),
		'5 true', "$name: and handed out");
	is(one_value($node, "SET search_path = idempotency; BEGIN; SELECT count(*) || ' ' || bool_and(key ~ 'overdue|unsure') FROM idem_reconcile('order', 100); ROLLBACK", $db),
		'10 true', "$name: the unknown is there to reconcile");
	is($claims->("key LIKE 'failed%'", "c.verdict || ' ' || c.state || ' ' || (c.error->>'code')"),
		'replay failed no funds', "$name: failures replay");
	is($claims->("key LIKE 'again%'", "c.verdict || ' ' || c.attempt || ' ' || (c.fence > k.fence)"),
		'execute 2 true', "$name: retryable ones execute under a higher fence");
	is($claims->("key LIKE 'released%'", "c.verdict || ' ' || c.attempt || ' ' || (c.fence > k.fence)"),
		'execute 2 true', "$name: so do released ones");
	is($claims->("key LIKE 'running%'", "c.verdict || ' ' || c.state"),
		'in_progress processing', "$name: a running lease runs");
	is($claims->("key LIKE 'overdue%' OR key LIKE 'unsure%'", "c.verdict || ' ' || c.state"),
		'unknown unknown', "$name: one that is over is unknown, not executed");
	is($claims->("operation = 'short'", 'c.verdict::text'), 'expired', "$name: the guard still refuses");
	is($claims->("operation = 'forgotten'", "c.verdict || ' ' || c.attempt || ' ' || (c.fence > k.fence)"),
		'execute 1 true', "$name: the forgotten executes, under a higher fence");
	is(one_value($node, "SET search_path = idempotency; BEGIN; SELECT string_agg(DISTINCT idem_complete_key('order', key, fence, '9')::text, ',') "
			  . "FROM public.key WHERE key LIKE 'running%' OR key LIKE 'overdue%'; ROLLBACK", $db),
		'9', "$name: owners of leases may still complete");
	return;
}

# Rights: who could, can; who could not, cannot.
sub has_same_rights
{
	my ($db, $name) = @_;
	my %session = map {
		$_ => session($node, dbname => $db, user => $_, set => { search_path => 'idempotency' })
	} 'app', 'worker', 'outsider';

	is($session{app}->value("SELECT verdict FROM idem_claim('order', 'k2', '{}')"), 'mismatch', "$name: app may claim");
	is($session{worker}->value("SELECT state FROM idem_status('order', 'k2')"), 'succeeded', "$name: worker may ask");
	is($session{outsider}->try("SELECT * FROM idempotency.idem_status('order', 'k2')"), '42501', "$name: a outsider may not");
	is($session{app}->try("SELECT idem_define('order', '{}')"), '42501', "$name: app may not define");
	is($session{app}->try('SELECT * FROM idempotency_internal.record'), '42501', "$name: nor look at the tables");
	is($session{worker}->try("SELECT idem_claim('of app', 'x', principal => 'worker')"), '42501', "$name: the role of an operation binds");
	is($session{app}->try("SELECT idem_claim('of app', 'x', principal => 'worker')"), '42501', "$name: so does principal_setting");
	$session{app}->run('BEGIN');
	is($session{app}->value("SELECT verdict FROM idem_claim('of app', 'x', principal => 'app')"), 'execute', "$name: and lets the right one in");
	$session{app}->run('ROLLBACK');
	return;
}

is_whole('original', 'original');
has_same_rights('original', 'original');

# --- dump and restore ------------------------------------------------------------------

my $n = 0;
foreach my $way (
	[ 'custom format', ['--format=custom'], ['--exit-on-error'] ],
	[ 'directory format, in parallel', [ '--format=directory', '--jobs=2' ], ['--jobs=2'] ],
	[ 'plain text', ['--format=plain'], undef ],
	[ 'plain text with inserts', [ '--format=plain', '--column-inserts' ], undef ],
	[ 'schema, then data', ['--format=custom'], ['--schema-only'], ['--data-only'] ],
	[ 'by a role that may only read', [ '--format=custom', '--username=backup' ], ['--exit-on-error'] ])
{
	my ($name, $dump, @restores) = @$way;
	my $file = "$dumps/dump-" . ++$n;
	my $db = "copy$n";
	my $connection = $node->connstr('original');

	$node->command_ok([ 'pg_dump', @$dump, "--file=$file", "--dbname=$connection" ], "$name: dumped");
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	foreach my $restore (@restores)
	{
		$connection = $node->connstr($db);
		if ($restore)
		{
			$node->command_ok([ 'pg_restore', @$restore, "--dbname=$connection", $file ], "$name: restored");
		}
		else
		{
			$node->command_ok([ 'psql', '-Xqv', 'ON_ERROR_STOP=1', '-d', $connection, '-f', $file ], "$name: restored");
		}
	}
	is_whole($db, $name);
}
has_same_rights('copy1', 'restored');

# Restored over what is there, as some do each night.
{
	my $connection = $node->connstr('copy1');

	$node->command_ok([ 'pg_restore', '--clean', '--if-exists', '--exit-on-error', "--dbname=$connection", "$dumps/dump-1" ],
		'restored over itself');
	is_whole('copy1', 'over itself');
	has_same_rights('copy1', 'over itself');
}

# A copy of a copy is the same dump.
$node->command_ok([ 'pg_dump', '--format=plain', "--file=$dumps/again", '--dbname=' . $node->connstr('copy3') ], 'dumped again');
my ($first, $second) = map { my $text = slurp_file($_); $text =~ s/^\\(un)?restrict .*\n//mg; join "\n", sort split /\n/, $text }
  "$dumps/dump-3", "$dumps/again";
ok($first eq $second, 'the dump of the copy is that of the original');

# --- CREATE DATABASE ... TEMPLATE -----------------------------------------------------------

foreach my $strategy ('wal_log', 'file_copy')
{
	$node->safe_psql('postgres', "CREATE DATABASE t_$strategy TEMPLATE original STRATEGY $strategy");
	is_whole("t_$strategy", "template, $strategy");
}
has_same_rights('t_wal_log', 'template');

# Claims are a database's own.
{
	my ($here, $there) = map { session($node, dbname => $_, set => { search_path => 'idempotency' }) } 'original', 't_wal_log';

	$_->run('BEGIN') foreach $here, $there;
	is($here->claim("'order', 'same key'"), 'execute', 'a key is claimed');
	is($there->claim("'order', 'same key'"), 'execute', 'that is nothing to another database');
	is($there->value("SELECT id FROM idem_status('order', 'same key')"),
		$here->value("SELECT id FROM idem_status('order', 'same key')"), 'though the id is the same');
}

# --- DROP EXTENSION ---------------------------------------------------------------------------

{
	my ($session, $other) = sessions($node, 2, dbname => 't_file_copy');
	my $make = 'CREATE EXTENSION idempotency SCHEMA idempotency';
	my $claim = "SELECT verdict FROM idempotency.idem_claim('order', 'k1')";
	my $once = "SELECT idempotency.idem_complete(c, '1') FROM idempotency.idem_claim('order', 'k1') c";

	$_->run($claim) foreach $session, $other;
	is($session->try('DROP EXTENSION idempotency'), '2BP01', 'what uses its types keeps it');
	$session->run('DROP FUNCTION note_claim');
	$session->run('DROP EXTENSION idempotency');
	is($_->try($claim), '42883', 'dropped, there is no such function') foreach $session, $other;
	is(one_value($node, "SELECT count(*) FROM pg_namespace WHERE nspname = 'idempotency_internal'", 't_file_copy'),
		0, 'nothing of it is left');
	$session->run($make);
	$session->run($once);
	is($_->value($claim), 'replay', 'made again in the same session, sessions of before work on')
	  foreach $session, $other;

	# a prepared plan that outlives it
	$other->run("PREPARE p AS SELECT verdict FROM idempotency.idem_claim('order', 'k1')");
	is($other->value('EXECUTE p'), 'replay', 'a prepared statement');
	$session->run("DROP EXTENSION idempotency; $make");
	isnt($other->try('EXECUTE p'), 'lost', 'is no danger after the extension was made again');
	is($other->value("BEGIN; $claim; ROLLBACK"), 'execute', 'the new one is empty');

	# undone
	$session->run($once);
	$session->run("BEGIN; DROP EXTENSION idempotency; ROLLBACK");
	is($_->value($claim), 'replay', 'a drop that is rolled back did not happen') foreach $session, $other;
	$session->run("BEGIN; DROP EXTENSION idempotency; $make; $once; ROLLBACK");
	is($_->value("SELECT result FROM idempotency.idem_status('order', 'k1')"), '1', 'nor a new one')
	  foreach $session, $other;

	# while somebody works with it
	$other->run('BEGIN');
	$other->run("SELECT idempotency.idem_claim('order', 'open')");
	is($session->try("SET lock_timeout = '100ms'; DROP EXTENSION idempotency"), '55P03', 'a drop waits for open claims');
	$other->run('ROLLBACK');
	is($session->try("BEGIN; SELECT idempotency.idem_claim('order', 'own'); DROP EXTENSION idempotency; COMMIT"),
		'ID003', 'one cannot drop it to get rid of an open claim');
	is($session->value($claim), 'replay', 'which leaves everything as it was');
	is($session->try("BEGIN; SELECT idempotency.idem_complete(c) FROM idempotency.idem_claim('order', 'own') c; "
			  . "DROP EXTENSION idempotency; COMMIT"), '00000', 'dropped after a completion in the same transaction');
	$session->run("RESET lock_timeout; DROP SCHEMA idempotency; CREATE EXTENSION idempotency");
	is($session->value("BEGIN; SELECT verdict FROM idem_claim('order', 'k1'); ROLLBACK"), 'execute', 'and made in another schema');
	is($session->value("SELECT count(*) FROM pg_extension WHERE extname = 'idempotency'"), 1, 'there is one');
}

# --- a database whose owner is not a superuser ------------------------------------------

{
	$node->safe_psql('postgres', 'CREATE ROLE owner LOGIN; CREATE DATABASE owned OWNER owner');
	$node->safe_psql('owned', "CREATE EXTENSION idempotency; CREATE TABLE sold (); ALTER TABLE sold OWNER TO owner; "
		  . "SELECT idem_complete(idem_claim('order', 'k', principal => 'a')); SELECT idem_emit('mail', '{}', ordering_key => 'k')");
	foreach my $options ('--schema-only', '--exclude-table-data=idempotency_internal.*')
	{
		$node->command_like([ 'pg_dump', '-U', 'owner', $options, 'owned' ], qr/CREATE EXTENSION.*CREATE TABLE public\.sold/s,
			"N01: pg_dump $options by the owner of the database");
	}
	$node->command_fails([ 'pg_dump', '-U', 'owner', 'owned' ], 'N01: the records are not the owner\'s to read');
	$node->command_like([ 'pg_dump', '-U', 'backup', 'owned' ], qr/COPY idempotency_internal\.record /, 'N01: but those of pg_read_all_data');
	$node->safe_psql('postgres', 'DROP DATABASE owned; DROP ROLE owner');
}

# DROP DATABASE needs nothing of us.
$node->safe_psql('postgres', 'DROP DATABASE t_file_copy');
$node->stop;
done_testing();
