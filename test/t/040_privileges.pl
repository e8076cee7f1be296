# Who may call what, for whom; and that nobody gets around it.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $node = new_node('main', extension => 0);
my %roles = map { $_ => 1 } qw(app worker monitor admin outsider);
$node->safe_psql('postgres', join ' ', map { "CREATE ROLE $_ LOGIN;" } sort keys %roles);

# By name, with nothing in the search path: as managed platforms do it.
$node->safe_psql('postgres',
	"SET search_path = ''; CREATE SCHEMA idempotency; CREATE EXTENSION idempotency SCHEMA idempotency");
$node->safe_psql('postgres',
	"SET search_path = ''; SELECT idempotency.idem_grant(r, r) FROM unnest(ARRAY['app', 'worker', 'monitor', 'admin']) r");

my %as = map { $_ => session($node, user => $_, set => { search_path => 'idempotency' }) } sort keys %roles;
my $super = session($node, set => { search_path => 'idempotency, public' });

# --- tiers ------------------------------------------------------------------------------

# What each tier has, by the contract.  What does not exist yet is no matter.
my %tier = (
	public => [ map { "idem_$_" }
		  qw(id downstream_key new_key canonical fingerprint fingerprint_text backoff http_status value postgrest webhook_sign webhook_verify) ],
	app => [ map { "idem_$_" }
		  qw(claim accept complete fail unsure renew release complete_key fail_key renew_key release_key unsure_key
		  status explain list run once once_many cancel policy destination_policy permit report) ],
	worker => [ map { "idem_$_" } qw(start start_next reconcile resolve) ],
	monitor => [ 'idem_list', 'idem_explain', 'idem_doctor', 'idem_destination_policy' ],
	admin => [ map { "idem_$_" } qw(define destination_define purge redact grant revoke) ]);
my %may = map { $_ => { map { $_ => 1 } @{ $tier{public} } } } keys %roles;
$may{app}{$_} = $may{worker}{$_} = 1 foreach @{ $tier{app} };
$may{worker}{$_} = 1 foreach @{ $tier{worker} };
$may{monitor}{$_} = 1 foreach @{ $tier{monitor} };

my %known = map { $_ => 1 } map { @$_ } values %tier;
foreach my $role (sort keys %roles)
{
	my @wrong;
	my @functions = split /\n/, $super->run(
		"SELECT p.proname, has_function_privilege('$role', p.oid, 'EXECUTE') FROM pg_proc p, pg_depend d "
		  . "WHERE d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e' "
		  . "AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency') AND p.proname LIKE 'idem\\_%'");
	foreach (@functions)
	{
		my ($function, $has) = split /\|/;
		my $expected = $role eq 'admin' || $may{$role}{$function} ? 't' : 'f';
		push @wrong, "$function: $has" if $known{$function} && $has ne $expected;
	}
	cmp_ok(scalar @functions, '>', 20, 'the functions of the extension are found') if $role eq 'admin';
	is(join(', ', @wrong), '', "tier $role has what the contract says");
}

# The doors are shut to those without a tier.
my @doors = (
	"idem_claim('op', 'k')", "idem_complete(NULL)", "idem_fail(NULL, NULL)", "idem_unsure(NULL)",
	"idem_renew(NULL, '1 s')", "idem_release(NULL)", "idem_complete_key('op', 'k', 1)",
	"idem_fail_key('op', 'k', 1, '1')", "idem_renew_key('op', 'k', 1, '1 s')", "idem_release_key('op', 'k', 1)",
	"idem_unsure_key('op', 'k', 1)", "idem_status('op', 'k')", "idem_policy('op')", "idem_define('op', '{}')",
	"idem_destination_define('d', '{}')",
	"idem_purge()", "idem_grant('outsider')", "idem_revoke('app')");
foreach my $role ('outsider', 'monitor')
{
	$super->run("GRANT USAGE ON SCHEMA idempotency TO outsider");
	is_each([ map { $as{$role}->try("SELECT $_") } @doors ], '42501', "$role may call none of them");
}
is_each([ map { $as{app}->try("SELECT $_") } grep { /define|purge|grant|revoke/ } @doors ], '42501', 'app may not administer');
is($as{outsider}->value("SELECT idem_id('create_order', 'k1')"), '61362f49-1d33-8116-af4a-a257885ad4be', 'anybody may compute');

# No table is reachable, by anybody.
{
	my @tables = split /\n/, $super->run("SELECT relname FROM pg_class WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind IN ('r', 'v', 'm', 'S')");
	my @allowed;

	cmp_ok(scalar @tables, '>=', 3, 'there are tables');
	foreach my $table (@tables)
	{
		foreach my $sql ("SELECT * FROM %s", "TABLE %s", "INSERT INTO %s SELECT", "UPDATE %s SET ctid = ctid",
			"DELETE FROM %s", "TRUNCATE %s", "COPY %s TO STDOUT", "BEGIN; LOCK TABLE %s", "DROP TABLE %s",
			"CREATE TRIGGER t BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION tsvector_update_trigger()")
		{
			push @allowed, map { $as{$_}->try(sprintf $sql, "idempotency_internal.$table") eq '42501' ? () : "$_: $sql" }
			  sort keys %as;
			$_->run('ROLLBACK') foreach values %as;
		}
	}
	is_deeply(\@allowed, [], 'no tier may read, write, lock or change our tables');
	is_each([ map { $super->value("SELECT has_schema_privilege('$_', 'idempotency_internal', 'USAGE')") } sort keys %as ],
		'f', 'nor look into their schema');
}

# --- idem_grant ------------------------------------------------------------------------------

{
	my $odd = 'o"dd; DROP ROLE app; --';
	(my $quoted = $odd) =~ s/"/""/g;

	$super->run(qq{CREATE ROLE "$quoted" LOGIN});
	is($as{admin}->try("SELECT idem_grant('outsider')"), '00000', 'an admin may pass on');
	is($as{outsider}->value("SELECT state FROM idem_status('op', 'k')"), 'absent', 'which acts at once');
	is($as{admin}->try("SELECT idem_revoke('outsider')"), '00000', 'and take back');
	is($as{outsider}->try("SELECT idempotency.idem_status('op', 'k')"), '42501', 'which acts at once, too');
	is($as{admin}->try("SELECT idem_grant('$odd')"), '00000', 'an odd name is a name');
	is($super->value("SELECT count(*) FROM pg_roles WHERE rolname = 'app'"), 1, 'it drops nothing');
	$as{admin}->try("SELECT idem_revoke('$odd')");
	$super->run(qq{REVOKE ALL ON SCHEMA idempotency FROM "$quoted"; DROP ROLE "$quoted"});
	is($as{admin}->try("SELECT idem_grant('nobody here')"), '42704', 'a role must exist');
	is($as{admin}->try("SELECT idem_grant('app', 'king')"), '22023', 'and so must a tier');
	is($as{admin}->try('SELECT idem_grant(NULL)'), '22023', 'NULL is no role');

	# dropping a role with a tier is PostgreSQL's business
	$super->run("CREATE ROLE passing; SELECT idem_grant('passing', 'admin')");
	is($super->try('DROP OWNED BY passing; DROP ROLE passing'), '00000', 'a role with a tier can be dropped the usual way');
}

# --- the role of an operation ------------------------------------------------------------------

$super->run(q{
	CREATE ROLE tellers;
	CREATE ROLE inherits LOGIN INHERIT IN ROLE tellers;
	CREATE ROLE sets LOGIN NOINHERIT IN ROLE tellers;
	SELECT idem_grant(r) FROM unnest(ARRAY['inherits', 'sets', 'tellers']) r;
	SELECT idem_define('pay', '{"role": "tellers"}');
	SELECT idem_complete(c, '"secret"') FROM idem_claim('pay', 'known') c;
	SELECT idem_claim('pay', 'held', lease => '1 h');
});
my %teller = map { $_ => session($node, user => $_, set => { search_path => 'idempotency' }) } 'inherits', 'sets';
my $known = "SELECT verdict || coalesce(result::text, '') FROM idem_claim('pay', 'known')";

is($teller{inherits}->value($known), 'replay"secret"', 'a member may');
is($teller{sets}->try($known), '42501', 'one that does not inherit may not');
is($teller{sets}->value("SET ROLE tellers; $known"), 'replay"secret"', 'until it takes the role');
$teller{sets}->run('RESET ROLE');
is($as{app}->try($known), '42501', 'others may not');
is($as{admin}->try($known), '42501', 'not even an admin of the extension');

# Refusals tell nothing about the key.
sub refusals
{
	my ($session, $arguments) = @_;
	my %said;

	foreach my $key ('known', 'held', 'never seen')
	{
		foreach my $call ("idem_claim('pay', '$key'$arguments)", "idem_status('pay', '$key'$arguments)",
			"idem_complete_key('pay', '$key', 1$arguments)", "idem_release_key('pay', '$key', 1$arguments)",
			"idem_fail_key('pay', '$key', 1, '1'$arguments)", "idem_renew_key('pay', '$key', 1, '1 s'$arguments)",
			"idem_unsure_key('pay', '$key', 1$arguments)",
			"idem_claim('pay', '$key', '{\"other\": 1}', lease => '1 s', wait => '1 h'$arguments)")
		{
			$session->try("SELECT $call");
			(my $text = $session->error) =~ s/^psql:\S* //mg;
			$said{ $session->sqlstate . " $text" }++;
		}
	}
	return \%said;
}
{
	my $said = refusals($as{app}, '');
	is(scalar keys %$said, 1, 'a refusal says the same whatever was asked of whichever key');
	like((keys %$said)[0], qr/^42501 .*"pay".*\nHINT: .*role/s, 'naming the operation, with a hint');
	unlike((keys %$said)[0], qr/secret|known|held|never/, 'and nothing of the key');
}

$super->run(q{SELECT idem_define('pay', '{"role": "ghosts"}')});
is($teller{inherits}->try($known), '42501', 'a change acts on the next call');
is($super->try($known), '42501', 'a missing role means nobody');
$super->run('CREATE ROLE ghosts; GRANT ghosts TO inherits');
is($teller{inherits}->value($known), 'replay"secret"', 'once it exists, its members');
$super->run('DROP ROLE ghosts');
is($teller{inherits}->try($known), '42501', 'dropped, nobody again');
$super->run(q{SELECT idem_define('pay', '{"role": null}')});
is($as{app}->value($known), 'replay"secret"', 'without a role, every caller');

# --- whose principal ------------------------------------------------------------------------------

# bound SETTING, SQL that says who one is, principal that is right
sub is_bound
{
	my ($setting, $be, $right, $session) = @_;
	my $name = "$setting after $be";

	$super->run("SELECT idem_define('bound', '{\"principal_setting\": \"$setting\"}')");
	$session->run("BEGIN; $be");
	is($session->try("SELECT idem_status('bound', 'k', '$right')"), '00000', "$name: for oneself");
	is($session->try("SAVEPOINT a; SELECT idem_status('bound', 'k', 'somebody else')"), '42501', "$name: not for others");
	is($session->try("ROLLBACK TO a; SELECT idem_claim('bound', 'k', principal => 'somebody else')"), '42501', "$name: nor claim");
	is($session->try("ROLLBACK TO a; SELECT idem_status('bound', 'k')"), '42501', "$name: nor for the default principal");
	is($session->value("ROLLBACK TO a; SET LOCAL idempotency.principal = '$right'; SELECT principal FROM idem_status('bound', 'k')"),
		$right, "$name: unless that is oneself");
	$session->run('ROLLBACK');
	return;
}
$super->run('GRANT worker TO app');
is_bound('current_user', 'SELECT 1', 'app', $as{app});
is_bound('current_user', 'SET LOCAL ROLE worker', 'worker', $as{app});
is_bound('session_user', 'SET LOCAL ROLE worker', 'app', $as{app});
is_bound('app.tenant', "SET LOCAL app.tenant = 'tenant 7'", 'tenant 7', $as{app});
is_bound('request.jwt.claims ->> sub', qq{SET LOCAL request.jwt.claims = '{"role": "x", "sub": "alice"}'}, 'alice', $as{app});
is_bound('request.jwt.claims ->> sub', qq{SELECT set_config('request.jwt.claims', '{"sub": "\\u00e9l\\u00e8ve"}', true)},
	"\xc3\xa9l\xc3\xa8ve", $as{app});

$super->run('REVOKE worker FROM app');

# A setting that says nothing binds to nobody.
foreach my $case (
	[ 'app.unheard_of', 'SELECT 1' ],
	[ 'app.tenant', "SET LOCAL app.tenant = ''" ],
	[ 'request.jwt.claims ->> sub', 'SELECT 1' ],
	map { [ 'request.jwt.claims ->> sub', "SET LOCAL request.jwt.claims = '$_'" ] } '', 'not json', '{"sub": ', '[]', '"alice"', '7', 'null',
	'{}', '{"sub": null}', '{"sub": ""}', '{"Sub": "alice"}', '{"sub": {"sub": "alice"}}', '{"sub": ["alice"]}')
{
	my ($setting, $be) = @$case;
	my @said;

	$super->run("SELECT idem_define('bound', '{\"principal_setting\": \"$setting\"}')");
	foreach my $principal ('alice', 'null', '[]', '{}', ' ')
	{
		$as{app}->run("BEGIN; $be");
		push @said, $as{app}->try("SELECT idem_claim('bound', 'k', principal => '$principal')");
		$as{app}->run('ROLLBACK');
	}
	is_each(\@said, '42501', "$setting after $be: nobody may");
}

# Rights between the first try and the retry (C12).
{
	my $params = q{'{"amount": 1}'};
	my $claim = "SELECT verdict || coalesce(result::text, '') FROM idempotency.idem_claim('c12', 'k', $params)";

	$as{app}->run("SELECT idem_complete(c, '\"secret\"') FROM idem_claim('c12', 'k', $params) c");
	$super->run("SELECT idem_revoke('app')");
	is($as{app}->try($claim), '42501', 'rights revoked between first try and retry: refused');
	unlike($as{app}->output . $as{app}->error, qr/secret/, 'without the result');
	$super->run("SELECT idem_grant('app')");
	is($as{app}->value($claim), 'replay"secret"', 'granted again: replay');
	$super->run(q{SELECT idem_define('c12', '{"role": "tellers"}')});
	is($as{app}->try($claim), '42501', 'the same with the role of the operation');
	unlike($as{app}->output . $as{app}->error, qr/secret/, 'without the result');
	$super->run('GRANT tellers TO app');
	is($as{app}->value($claim), 'replay"secret"', 'granted: replay');

	# in the middle of a transaction
	$as{app}->run('BEGIN');
	$as{app}->claim("'c12', 'open'");
	$super->run('REVOKE tellers FROM app');
	is($as{app}->try("SELECT idem_complete(:'c'::idem_answer)"), '42501', 'revoked while a claim is open: it cannot be completed');
	$as{app}->run('ROLLBACK');
	is($super->value("SELECT state FROM idem_status('c12', 'open')"), 'absent', 'and leaves nothing');
	$super->run(q{SELECT idem_define('c12', '{"role": null}')});
}

# Two principals never meet (C20).
{
	my ($alice, $bob) = sessions($node, 2, user => 'app', set => { search_path => 'idempotency' });
	my $claim = q{SELECT verdict FROM idem_claim('shared', 'k', '{"a": 1}')};
	my $status = q{SELECT to_jsonb(s) - 'id' - 'key' - 'retry_after' FROM idem_status('shared', '%s', 'bob') s};

	$super->run(q{SELECT idem_define('shared', '{"principal_setting": "idempotency.principal"}')});
	$alice->run("SET idempotency.principal = 'alice'");
	$bob->run("SET idempotency.principal = 'bob'");
	$alice->run('BEGIN');
	is($alice->value($claim), 'execute', 'alice executes');
	is($bob->value(sprintf $status, 'k'), $bob->value(sprintf $status, 'never seen'),
		'to bob her open key is like one never seen');
	$bob->run('BEGIN');
	is($bob->value($claim), 'execute', 'bob executes, not blocked');
	$_->run('ROLLBACK') foreach $alice, $bob;
	$alice->run(q{SELECT idem_complete(c, '"hers"') FROM idem_claim('shared', 'k', '{"a": 1}') c});
	is($bob->value(sprintf $status, 'k'), $bob->value(sprintf $status, 'never seen'),
		'to bob her finished key is like one never seen');
	my $fence = $super->value(q{SELECT fence FROM idempotency_internal.record WHERE operation = 'shared' AND principal = 'alice'});
	is($bob->try("SELECT idem_complete_key('shared', 'k', $fence, '\"his\"')"), 'ID001', 'her fence is nothing to his key');
	is($bob->try("SELECT idem_complete_key('shared', 'k', $fence, '\"his\"', 'alice')"), '42501', 'nor can he name her');
	$bob->run(q{SELECT idem_complete(c, '"his"') FROM idem_claim('shared', 'k', '{"a": 1}') c});
	is($alice->value(q{SELECT result FROM idem_claim('shared', 'k', '{"a": 1}')}), '"hers"', 'both have their own outcome: hers');
	is($bob->value(q{SELECT result FROM idem_claim('shared', 'k', '{"a": 1}')}), '"his"', 'and his');
}

# --- SECURITY DEFINER -------------------------------------------------------------------------------

$super->run(q{
	CREATE ROLE bank LOGIN;
	SELECT idem_grant('bank');
	CREATE SCHEMA bank AUTHORIZATION bank;
	GRANT USAGE ON SCHEMA bank TO outsider;
	SELECT idem_define('deposit', '{"role": "bank", "principal_setting": "session_user"}');
	SET ROLE bank;
	CREATE TABLE bank.ledger (who text, amount integer);
	CREATE FUNCTION bank.deposit(key text, amount integer) RETURNS jsonb
	LANGUAGE plpgsql SECURITY DEFINER SET search_path = '' AS $$
	DECLARE
		c idempotency.idem_answer;
	BEGIN
		c := idempotency.idem_claim('deposit', key, pg_catalog.to_jsonb(amount), session_user);
		IF c.verdict = 'execute' THEN
			INSERT INTO bank.ledger VALUES (session_user, amount);
			RETURN idempotency.idem_complete(c, pg_catalog.to_jsonb(amount));
		END IF;
		RETURN idempotency.idem_value(c);
	END $$;
	RESET ROLE;
});
is($as{outsider}->try("SELECT idempotency.idem_claim('deposit', 'k', principal => 'outsider')"), '42501',
	'who has no tier cannot claim');
is($as{outsider}->value("SELECT concat_ws(' ', bank.deposit('k', 7), bank.deposit('k', 7))"), '7 7',
	'but may call a function of one who has');
is($super->value('SELECT string_agg(who || amount, $$ $$) FROM bank.ledger'), 'outsider7', 'which does its work once');
is($as{outsider}->try("SELECT bank.deposit('k', 8)"), 'ID011', 'and refuses other params');
is($as{app}->try("SELECT idem_claim('deposit', 'k2', principal => 'app')"), '42501', 'app, without the role, cannot go around it');

# --- hijacking -----------------------------------------------------------------------------------------

# Everything a call could be led astray by: a schema in front of pg_catalog with
# functions, operators, casts, types and tables of well-known names, and the
# same as temporary objects.
my $trap = sub {
	my ($schema) = @_;
	my @types = ('text', 'uuid', 'int8', 'int4', 'jsonb', 'name', 'oid', 'timestamptz', 'interval', 'bool', 'bytea', '"char"');
	my $sql = "CREATE FUNCTION $schema.trap() RETURNS boolean LANGUAGE plpgsql AS "
	  . "\$\$ BEGIN RAISE EXCEPTION 'hijacked' USING ERRCODE = 'EVIL1'; END \$\$;\n";

	foreach my $type (@types)
	{
		(my $name = $type) =~ s/\W//g;
		$sql .= "CREATE FUNCTION $schema.trap_$name(pg_catalog.$type, pg_catalog.$type) RETURNS pg_catalog.bool LANGUAGE sql AS 'SELECT $schema.trap()';\n";
		$sql .= "CREATE OPERATOR $schema.$_ (LEFTARG = pg_catalog.$type, RIGHTARG = pg_catalog.$type, FUNCTION = $schema.trap_$name);\n"
		  foreach '=', '<', '>', '<=', '>=', '<>', '||', '+', '-';
	}
	$sql .= "CREATE FUNCTION $schema.$_ LANGUAGE sql AS 'SELECT $schema.trap()::text';\n"
	  foreach 'now() RETURNS text', 'clock_timestamp() RETURNS text', 'format(pg_catalog.text, VARIADIC pg_catalog.text[]) RETURNS text',
	  'quote_ident(pg_catalog.text) RETURNS text', 'to_jsonb(pg_catalog.text) RETURNS text', 'current_setting(pg_catalog.text) RETURNS text',
	  'sha256(pg_catalog.bytea) RETURNS text', 'set_config(pg_catalog.text, pg_catalog.text, pg_catalog.bool) RETURNS text',
	  'pg_notify(pg_catalog.text, pg_catalog.text) RETURNS text';
	$sql .= "CREATE TABLE $schema.$_ (evil pg_catalog.int4);\n"
	  foreach 'record', 'policy', 'normalisation', 'open_work', 'destination', 'pg_class', 'pg_proc', 'pg_namespace', 'pg_roles', 'pg_authid';
	$sql .= "CREATE DOMAIN $schema.$_ AS pg_catalog.int4 CHECK (VALUE > 0);\n" foreach 'text', 'uuid', 'jsonb', 'idem_answer', 'idem_verdict';
	return $sql;
};
foreach my $where ('evil', 'pg_temp')
{
	my $victim = session($node);
	my $me = $victim->value('SELECT current_user');
	my $path = "SET search_path = $where, pg_catalog";

	$victim->run('CREATE SCHEMA evil') if $where eq 'evil';
	$victim->run($trap->($where));
	$victim->run($path);
	is($victim->try("SELECT 'a'::pg_catalog.text = 'a'::pg_catalog.text"), 'EVIL1', "$where: the trap is set")
	  if $where eq 'evil';
	my @calls = (
		"idempotency.idem_grant('outsider')", "idempotency.idem_revoke('outsider')",
		"idempotency.idem_define('trapped', '{\"retention\": \"1 ms\", \"role\": \"$me\", \"principal_setting\": \"current_user\"}')",
		"idempotency.idem_policy('trapped')",
		"idempotency.idem_complete(c, '1') FROM idempotency.idem_claim('trapped', 'k', '{\"a\": 1.5}', '$me') c",
		"idempotency.idem_fail(c, '1', true) FROM idempotency.idem_claim('trapped', 'l', '{}', '$me') c",
		"idempotency.idem_complete(c) FROM idempotency.idem_claim('trapped', 'l', '{}', '$me') c",
		"idempotency.idem_release(c) FROM idempotency.idem_claim('trapped', 'm', '{}', '$me', lease => '1 h') c",
		"idempotency.idem_claim('trapped', 'n', NULL, '$me', lease => '1 h', owner => 'w')",
		"idempotency.idem_status('trapped', 'k', '$me')",
		"idempotency.idem_canonical('{\"a\": [1, \"x\"]}', 'trapped')", "idempotency.idem_fingerprint('{}')",
		"idempotency.idem_id('a', 'b', 'c')", 'idempotency.idem_new_key()', 'idempotency.idem_purge()');
	my @said = map { $victim->try("SELECT $_"); $victim->sqlstate eq '00000' ? () : "$_: " . $victim->error } @calls;
	is(join("\n", @said), '', "$where: no call is led astray");
}
$super->run('DROP SCHEMA evil CASCADE');

# --- CREATE EXTENSION into a trap --------------------------------------------------------------------------

$node->safe_psql('postgres', "CREATE DATABASE prepared; CREATE ROLE mallory LOGIN CREATEDB");
$node->safe_psql('prepared', 'GRANT CREATE ON DATABASE prepared TO mallory');
{
	my $mallory = session($node, dbname => 'prepared', user => 'mallory');
	my $victim = session($node, dbname => 'prepared');

	is($mallory->try('CREATE EXTENSION idempotency'), '42501', 'a role that is no superuser cannot make the extension');
	$mallory->run('CREATE SCHEMA idempotency_internal; CREATE TABLE idempotency_internal.record (evil integer)');
	is($victim->try('CREATE EXTENSION idempotency'), '42P06', 'it does not move into a schema somebody else made');
	is($victim->value("SELECT count(*) FROM pg_extension WHERE extname = 'idempotency'"), 0, 'and is not there');
	$mallory->run('DROP SCHEMA idempotency_internal CASCADE');

	# a target schema full of traps
	$mallory->run('CREATE SCHEMA idempotency');
	$mallory->run($trap->('idempotency'));
	$mallory->run('DROP DOMAIN idempotency.idem_answer, idempotency.idem_verdict');
	is($victim->try('CREATE EXTENSION idempotency SCHEMA idempotency'), '00000', 'made in a schema full of traps')
	  or diag $victim->error;
	is($victim->value("SELECT idempotency.idem_complete(c, '1') FROM idempotency.idem_claim('op', 'k', '{}') c"), 1, 'it works');
	is($victim->value("SELECT string_agg(DISTINCT t.typnamespace::regnamespace::text, ',') FROM pg_attribute a, pg_type t "
			  . "WHERE a.attrelid = 'idempotency.idem_answer'::regclass AND t.oid = a.atttypid AND t.typname !~ '^idem'"),
		'pg_catalog', 'and its types are the real ones');
	$victim->run('DROP EXTENSION idempotency');

	$mallory->run("CREATE FUNCTION idempotency.idem_status(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT 1::pg_catalog.text'");
	is($victim->try('CREATE EXTENSION idempotency SCHEMA idempotency'), '42723', 'a function that was there first is not replaced');
	$mallory->run("DROP FUNCTION idempotency.idem_status(text, text, text); CREATE DOMAIN idempotency.idem_state AS pg_catalog.text");
	is($victim->try('CREATE EXTENSION idempotency SCHEMA idempotency'), '42710', 'nor a type');
	is($victim->value("SELECT count(*) FROM pg_namespace WHERE nspname = 'idempotency_internal'"), 0, 'and nothing is left behind');
}

# Tables are heap whatever the default says (C49).
$node->safe_psql('postgres', 'CREATE DATABASE methods');
$node->safe_psql('methods', q{
	CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler;
	SET default_table_access_method = other;
	CREATE EXTENSION idempotency});
is(one_value($node, "SELECT string_agg(DISTINCT amname, ',') FROM pg_class c JOIN pg_am a ON a.oid = c.relam "
		  . "WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind = 'r'", 'methods'),
	'heap', 'tables are heap whatever the default is');
is(one_value($node, "SELECT idem_complete(c, '1') FROM idem_claim('op', 'k') c", 'methods'), 1, 'and work');

$node->stop;
done_testing();
