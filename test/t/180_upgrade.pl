# From one version of the extension to the next: released scripts stay as they
# were, an upgraded installation has the same shape as a fresh one, and sessions
# that have the old library loaded go on, or say "reconnect".
#
# The next version is made here from the present one: a table gets a column,
# idem_answer an attribute, and there is one function more.  It is built and
# installed into a copy of the private server.

use strict;
use warnings;

use File::Basename qw(dirname);
use IdempotencyTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $scratch = PostgreSQL::Test::Utils::tempdir();
my $present = slurp_file('idempotency.control') =~ /^default_version *= *'(.*)'/m ? $1 : die;
my $next = "$present.1";

sub run
{
	my ($what, $command) = @_;
	my $said = `$command 2>&1`;

	ok($? == 0, $what) or diag($said);
	return $said;
}

sub edit
{
	my ($file, @changes) = @_;
	my $text = slurp_file($file);

	while (my ($from, $to) = splice @changes, 0, 2)
	{
		$text =~ s/$from/ref $to ? $to->() : $to/e or die "nothing in $file is like $from";
	}
	unlink $file;    # it may be a link to that of the private server
	append_to_file($file, $text);
	return;
}

# What an installation is made of, with rights and comments.
my $shape = q{
	SELECT pg_describe_object(d.classid, d.objid, 0) || E'\n' || concat_ws(E'\n',
		obj_description(d.objid, CASE d.classid WHEN 'pg_proc'::regclass THEN 'pg_proc' WHEN 'pg_class'::regclass THEN 'pg_class' WHEN 'pg_type'::regclass THEN 'pg_type' ELSE 'pg_namespace' END),
		(SELECT string_agg(format('%s %s %s', a.grantee::regrole, a.privilege_type, a.is_grantable), ', ' ORDER BY a.grantee::regrole::text, a.privilege_type)
		   FROM (SELECT proacl FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid UNION ALL SELECT relacl FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid
			UNION ALL SELECT nspacl FROM pg_namespace WHERE d.classid = 'pg_namespace'::regclass AND oid = d.objid UNION ALL SELECT typacl FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = d.objid) x (acl), aclexplode(acl) a),
		(SELECT pg_get_functiondef(oid) FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid),
		(SELECT format('%s %s %s %s', relkind, relpersistence, reloptions, CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) END) FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid),
		(SELECT string_agg(format('%s %s %s %s %s', attname, format_type(atttypid, atttypmod), attnotnull, attcollation::regcollation, pg_get_expr(adbin, adrelid)), ', ' ORDER BY attnum)
		   FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		  WHERE attnum > 0 AND attrelid = coalesce((SELECT typrelid FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = d.objid), CASE WHEN d.classid = 'pg_class'::regclass THEN d.objid END)),
		(SELECT string_agg(pg_get_indexdef(indexrelid), ', ' ORDER BY indexrelid) FROM pg_index WHERE d.classid = 'pg_class'::regclass AND indrelid = d.objid),
		(SELECT string_agg(pg_get_constraintdef(oid), ', ' ORDER BY conname) FROM pg_constraint WHERE d.classid = 'pg_class'::regclass AND conrelid = d.objid),
		(SELECT string_agg(enumlabel, ', ' ORDER BY enumsortorder) FROM pg_enum WHERE d.classid = 'pg_type'::regclass AND enumtypid = d.objid),
		CASE WHEN d.classid = 'pg_class'::regclass AND d.objid = ANY (e.extconfig) THEN 'dumped' END)
	  FROM pg_extension e JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
	 WHERE e.extname = 'idempotency' ORDER BY pg_describe_object(d.classid, d.objid, 0)};

# --- freezing a version -----------------------------------------------------------------

my $source = "$scratch/source";
run('a copy of the sources', "mkdir $source && cp -a Makefile idempotency.control README.md CHANGELOG.md docs src $source && mkdir $source/sql && cp -a sql/parts $source/sql && cp -a sql/idempotency--*--*.sql $source/sql || true");
edit("$source/Makefile", qr/^RELEASED =.*/m => 'RELEASED =');
append_to_file("$source/.gitignore", "# released\n");
{
	my $make = "make -s -C $source PG_CONFIG=/no/server";
	my $script = "$source/sql/idempotency--$present.sql";

	is(system("$make check-released >$scratch/said 2>&1"), 0, 'a version that is not released may change');
	run('freeze', "$make freeze");
	like(slurp_file("$source/Makefile"), qr/^RELEASED = .*\Q$present\E$/m, 'the Makefile keeps the version');
	like(slurp_file("$source/.gitignore"), qr/^!\/sql\/idempotency--\Q$present\E\.sql$/m, 'git keeps the script');
	my $released = slurp_file($script);
	like($released, qr/^CREATE FUNCTION idem_claim\(/m, 'and the script is there');
	is(system("$make check-released >$scratch/said 2>&1"), 0, 'the script is what was released');
	isnt(system("$make freeze >$scratch/said 2>&1"), 0, 'it is frozen once');
	append_to_file("$source/sql/parts/90_rights.sql", "-- a change after the release\n");
	isnt(system("$make check-released >$scratch/said 2>&1"), 0, 'a change after the release is noticed');
	like(slurp_file("$scratch/said"), qr/raise default_version and write an upgrade script/, 'with what to do');
	is(slurp_file($script), $released, 'and does not reach the script');
	edit("$source/idempotency.control", qr/^default_version = .*/m => "default_version = '$next'");
	isnt(system("$make check-released >$scratch/said 2>&1"), 0, 'a new version needs an upgrade script');
	like(slurp_file("$scratch/said"), qr/sql\/idempotency--\Q$present--$next\E.sql is missing/, 'which is named');
}

# --- the next version ----------------------------------------------------------------------

my $function = <<'END';
CREATE FUNCTION idem_note(answer idem_answer) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT answer.note $$;
COMMENT ON FUNCTION idem_note(idem_answer) IS 'Returns the note of an answer.';
END
edit("$source/sql/parts/10_types.sql", qr/(\tforget_at timestamptz)\n\);/ => sub { "$1,\n\tnote text\n);" });
edit("$source/sql/parts/15_record.sql", qr/\thorizons jsonb NOT NULL,\n/ => "\thorizons jsonb NOT NULL,\n\tnote text,\n");
append_to_file("$source/sql/parts/40_claim_status.sql", $function);
edit("$source/sql/parts/90_rights.sql", qr/\t\('app', 'idem_list'\),\n/ => "\t('app', 'idem_list'),\n\t('app', 'idem_note'),\n",
	qr/-- a change after the release\n/ => '');
my ($tiers) = slurp_file("$source/sql/parts/90_rights.sql") =~ /^CREATE (VIEW idempotency_internal\.tier_object .*?;)\n/ms;
append_to_file("$source/sql/idempotency--$present--$next.sql", <<"END");
\\echo Use "ALTER EXTENSION idempotency UPDATE" to load this file. \\quit
ALTER TABLE idempotency_internal.policy ADD COLUMN note text;
ALTER TYPE idem_answer ADD ATTRIBUTE note text;
$function
CREATE OR REPLACE $tiers
SELECT idempotency_internal.add_objects('{idem_note}');
END
# Only the objects that differ are built anew: the header keeps its time, and the
# two that use the version are touched or edited.
my $made = (stat "$source/src/idempotency.h")[9];
edit("$source/src/idempotency.h", qr/LIBRARY_VERSION "[^"]*"/ => "LIBRARY_VERSION \"$next\"");
utime $made, $made, "$source/src/idempotency.h" or die $!;
utime undef, undef, "$source/src/idempotency.c" or die $!;
edit("$source/src/worker/worker.c", qr/define KNOWN_VERSIONS \{[^}]*/ => "define KNOWN_VERSIONS {\"$present\", \"$next\"");
edit("$source/src/server/catalog.c", qr/policy_types\[\] = \{TEXTOID, JSONBOID, JSONBOID\}/ => 'policy_types[] = {TEXTOID, JSONBOID, JSONBOID, TEXTOID}');

# --- a server of its own, at first with the present version -------------------------------

my $bin = `pg_config --bindir`;
chomp $bin;
my ($root) = $bin =~ m{^(.*/server)/} or die "not the private server: $bin";
my $own = "$scratch/server";
(my $inst = $bin) =~ s/^\Q$root\E/$own/;
$inst = dirname($inst);
run('a copy of the private server', "cp -al $root $own");
my $sharedir = `$inst/bin/pg_config --sharedir`;
chomp $sharedir;
like($sharedir, qr/^\Q$own\E/, 'with its own files');

my $node = PostgreSQL::Test::Cluster->new('main', install_path => $inst);
$node->init;
configure($node, conf => "idempotency.naptime = 50\n");
$node->start;
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach 'upgraded', 'answers';
foreach my $database ('upgraded', 'answers')
{
	$node->safe_psql($database, 'CREATE EXTENSION idempotency');
}
$node->safe_psql('postgres', "CREATE ROLE $_ LOGIN") foreach qw(app worker monitor admin reader);
$node->safe_psql('upgraded', "SELECT idem_grant(r::name, r) FROM unnest('{app,worker,monitor,admin}'::text[]) r");
$node->safe_psql('upgraded', 'GRANT EXECUTE ON FUNCTION idem_status TO reader');
$node->safe_psql('upgraded', q{SELECT idem_define('op', '{"wait": "0"}')});
$node->safe_psql('upgraded', q{SELECT idem_complete(c, '"before"') FROM idem_claim('op', 'done', '1') c});
my $old = session($node, dbname => 'upgraded');
my $other = session($node, dbname => 'upgraded');
$other->run("SELECT idem_status('op', 'done')");
my $elsewhere = session($node, dbname => 'answers');
$old->claim("'op', 'leased', lease => '1 h'");
my $fence = $old->variable('c_fence');
$elsewhere->run("PREPARE ask AS SELECT verdict FROM idem_claim('op', \$1)");
$elsewhere->run("CREATE FUNCTION asked(k text) RETURNS text LANGUAGE plpgsql AS \$\$ DECLARE a idem_answer := idem_claim('op', k); BEGIN PERFORM idem_complete(a); RETURN a.verdict; END \$\$");
is($elsewhere->value("SELECT asked('a')"), 'execute', 'a session with the old library');
$elsewhere->run("CREATE TABLE kept AS SELECT idem_claim('op', 'kept', lease => '1 h') AS answer");

# from each version that is released
my ($released) = slurp_file('Makefile') =~ /^RELEASED =(.*)/m or die;
foreach my $version (grep { $_ ne $present } split ' ', $released)
{
	$node->safe_psql('postgres', "CREATE DATABASE \"from $version\"");
	$node->safe_psql("from $version", "CREATE EXTENSION idempotency VERSION '$version'");
	$node->safe_psql("from $version", 'ALTER EXTENSION idempotency UPDATE');
	is(one_value($node, $shape, "from $version"), one_value($node, $shape, 'answers'), "an installation of $version, upgraded, has the shape of a fresh one");
}

my $library = `$inst/bin/pg_config --pkglibdir`;
chomp $library;
$library .= '/idempotency.so';
run('the present library is kept', "cp -L $library $scratch/present.so");

# --- the files of the next version -----------------------------------------------------------

my $flags = "PG_CONFIG=$inst/bin/pg_config with_llvm=no";
run('the next version is built and installed', "env -u MAKEFLAGS -u MAKELEVEL make -s -j2 -C $source all install $flags");
is($old->value("SELECT status FROM idem_doctor() WHERE item = 'version'"), 'warn', 'idem_doctor: the files are newer');
is($old->value("SELECT verdict FROM idem_claim('op', 'done', '1')"), 'replay', 'which changes nothing yet');

my $early = session($node, dbname => 'upgraded');
is($early->try("SELECT idem_status('op', 'done')"), '42809', 'a new session, before the extension is updated');
like($early->error, qr/^HINT: .* If the extension is older, run ALTER EXTENSION idempotency UPDATE\./m, 'says what to do');

# --- ALTER EXTENSION UPDATE --------------------------------------------------------------------

# reading settings locks their table, which the update would wait for: they are cached now
$other->run("SELECT idem_status('op', 'done')");
$other->run('BEGIN');
$other->claim("'op', 'open'");
my $update = session($node, dbname => 'upgraded');
$update->run('ALTER EXTENSION idempotency UPDATE');
is($update->value("SELECT extversion FROM pg_extension WHERE extname = 'idempotency'"), $next, 'to the next version');

foreach my $call ("SELECT idem_claim('op', 'done', '1')", "SELECT idem_complete_key('op', 'leased', $fence, '1')", "SELECT idem_status('op', 'done')")
{
	$old->try($call);
	is_error($old, '42809', qr/^HINT:  The extension is version \Q$next\E, the library of this session \Q$present\E\..* If the library is, reconnect;/m, "old session: reconnect: $call");
	unlike($old->error, qr/DROP COLUMN/, 'not: undo the change');
}
like($old->value("SELECT status || ' ' || advice FROM idem_doctor() WHERE item = 'version'"), qr/^fail .*reconnect/, 'idem_doctor says so, too');
is($old->value("SELECT count(*) FROM idem_doctor() WHERE item = 'tables' AND advice LIKE 'The extension is version%'"), 1, 'of that table alone');
$other->try("SELECT idem_complete_key('op', 'open', :c_fence, '1')");
is_error($other, '42809', qr/reconnect;/, 'a claim that was open: its transaction cannot go on');
$other->try('COMMIT');

my $new = session($node, dbname => 'upgraded');
is($new->value("SELECT verdict || ' ' || (result #>> '{}') || coalesce(note, ' no note') FROM idem_claim('op', 'done', '1')"), 'replay before no note', 'new session: what was recorded is replayed, in an answer with the new attribute');
is($new->value("SELECT attempt FROM idem_claim('op', 'open', lease => '1 h')"), 1, 'a claim that was open left no trace');
is($new->value("SELECT idem_complete_key('op', 'leased', $fence, '\"after\"')"), '"after"', 'a lease of the old session is completed');
is($new->value("SELECT coalesce(idem_note(idem_status('op', 'leased')), 'none')"), 'none', 'the new function works');
$new->run(q{SELECT idem_define('op', '{"wait": "1 s"}')});
is($new->value("SELECT idem_policy('op') ->> 'wait'"), '1 s', 'settings are written into the wider table');
is($new->value("SELECT string_agg(status, ' ') FROM idem_doctor() WHERE item IN ('version', 'tables')"), 'ok ok', 'idem_doctor is content');

# --- the same shape as a fresh installation -----------------------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE fresh');
$node->safe_psql('fresh', 'CREATE EXTENSION idempotency');
$node->safe_psql('fresh', "SELECT idem_grant(r::name, r) FROM unnest('{app,worker,monitor,admin}'::text[]) r");
$node->safe_psql('fresh', 'GRANT EXECUTE ON FUNCTION idem_status TO reader');
my @shapes = map { one_value($node, $shape, $_) } 'fresh', 'upgraded';
cmp_ok(length $shapes[0], '>', 100_000, 'the shape is a long text');
like($shapes[0], qr/^function idem_note\(idem_answer\)$/m, 'with what is new');
is($shapes[1], $shapes[0], 'an upgraded installation has the shape of a fresh one, with the rights of all roles');
is($new->value("SELECT string_agg(r, ' ' ORDER BY r) FROM unnest('{app,worker,monitor,admin,reader}'::text[]) r WHERE has_function_privilege(r, 'idem_note(idem_answer)', 'EXECUTE')"),
	'admin app worker', 'those with a tier have its new function');

# --- an attribute more, and sessions that go on --------------------------------------------------

$node->safe_psql('answers', 'ALTER TYPE idem_answer ADD ATTRIBUTE note text');
is($elsewhere->value("SELECT asked('b')"), 'execute', 'an answer that has grown: a procedure goes on');
is($elsewhere->value("EXECUTE ask('b')"), 'replay', 'and a prepared statement');
is($elsewhere->value("SELECT verdict || coalesce(note, ' no note') FROM idem_claim('op', 'b')"), 'replay no note', 'with the new attribute null');
is($elsewhere->value("SELECT idem_complete(answer, '7') FROM kept"), '7', 'an answer that was kept is still good');
is($elsewhere->value('SELECT (answer).verdict || coalesce((answer).note, \' no note\') FROM kept'), 'execute no note', 'an answer that was kept in a table has it, too');

$node->safe_psql('answers', 'ALTER TYPE idem_answer ' . join ', ', map { "ADD ATTRIBUTE n$_ text" } 1 .. 40);
is($elsewhere->value("SELECT verdict || coalesce(n40, ' no note') FROM idem_claim('op', 'b')"), 'replay no note', 'with 40 attributes more');

$node->safe_psql('answers', 'ALTER TYPE idem_event ADD ATTRIBUTE note text');
is($elsewhere->value("SELECT count(idem_emit('d', to_jsonb(n))) FROM generate_series(1, 2) n"), 2, 'an event that has grown');
is($elsewhere->value("SELECT string_agg(payload || coalesce(note, ' no note'), ', ' ORDER BY payload) FROM idem_take('d', 2)"), '1 no note, 2 no note', 'is taken, with the new attribute null');

# --- a server that preloads the library -----------------------------------------------------------

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'\n");
run('the present library again', "rm $library && cp $scratch/present.so $library");
$node->restart;
my $preloaded = session($node, dbname => 'upgraded');
is($preloaded->try("SELECT idem_status('op', 'done')"), '42809', 'an old library that is preloaded');
like($preloaded->error, qr/a server that preloads it has to be restarted/, 'says what to do');
is($preloaded->value("SELECT status FROM idem_doctor() WHERE item = 'version'"), 'fail', 'as does idem_doctor');
wait_for_sql($node, "SELECT coalesce(bool_or(state = 'no extension'), false) FROM idem_stat_worker WHERE database = 'upgraded'", 'upgraded');
is(one_value($node, "SELECT count(*) FROM idem_stat_worker WHERE failures_in_row > 0", 'upgraded'), 0, 'its worker leaves the database alone');
$node->stop;
done_testing();
