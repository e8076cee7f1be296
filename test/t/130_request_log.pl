# The request log: LOG lines of the server, which say what was asked and answered,
# also when the transaction rolls back, with and without preloading.

use strict;
use warnings FATAL => 'all';

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('log');
$node->init;
$node->append_conf('postgresql.conf', <<'END');
idempotency.principal = 'acme'
log_min_duration_statement = 0
END
$node->start;

sub value { return $node->safe_psql($_[1] // 'postgres', $_[0]); }

# The requests that SQL logs, which may fail: references to hashes.
sub requests
{
	my ($sql, $out) = @_;
	my $from = -s $node->logfile;

	$node->psql('postgres', $sql, stdout => $out);
	return map { decode_json($_) } slurp_file($node->logfile, $from) =~ /LOG:  idempotency request: (.*)$/mg;
}

# What they say, one line for each.
sub said
{
	my @members = qw(key call verdict state error attempt resource error_class request);

	return join "\n", map { my $r = $_; join ' ', map { $r->{$_} // () } @members } @_;
}

value('CREATE EXTENSION idempotency');
value(q{SELECT idem_define('pay', '{"log_requests": true, "resource_pointer": "/order/id", "error_pointer": "/class"}')});

#
# One line for each request.
#
my $from = -s $node->logfile;
my @lines = (
	requests(q{SELECT idem_once('quiet', 'k')}),
	requests(q{SET idempotency.request_id = 'req-1'; SET application_name = 'shop';
		SELECT idem_complete(c, '{"order": {"id": 42, "secret": "s3cr3t"}}') FROM idem_claim('pay', 'k1', '{"card": "4711"}') c}),
	requests(q{SET request.headers = '{"host": "h", "x-request-id": "req-2"}'; SELECT idem_claim('pay', 'k1', '{"card": "4711"}')}),
	requests(q{BEGIN; SELECT idem_claim('pay', 'k2'); ROLLBACK}),
	requests(q{SELECT idem_complete_key('pay', 'k1', 1)}),
	requests(q{SELECT idem_status('pay', 'k3')}));
is(said(@lines), join("\n", 'k1 claim execute processing 1 req-1', 'k1 complete succeeded 1 42 req-1', 'k1 claim replay succeeded 1 42 req-2',
	'k2 claim execute processing 1', 'k1 complete ID002', 'k3 ask absent'), 'lines say what was asked and answered');
is_deeply([ @{$lines[0]}{qw(principal operation id application_name)} ], [ 'acme', 'pay', value(q{SELECT idem_id('pay', 'k1')}), 'shop' ], 'and of whom');
like($lines[0]{at}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d$/, 'and when');
cmp_ok($lines[0]{pid}, '>', 1, 'and in which process');
is(scalar(grep { /idempotency request.*(s3cr3t|4711)/ } split /\n/, slurp_file($node->logfile, $from)), 0, 'neither params nor results');
unlike(slurp_file($node->logfile, $from), qr/idempotency request: .*\n\S+ .*(STATEMENT|CONTEXT):/, 'neither statement nor context follows');

#
# S06: a recorded failure has its class.
#
is(said(requests(q{SELECT idem_fail(c, '{"class": "card_declined", "text": "4711"}') FROM idem_claim('pay', 'f1') c; SELECT idem_claim('pay', 'f1')})),
	"f1 claim execute processing 1\nf1 fail failed 1 card_declined\nf1 claim replay failed 1 card_declined", 'S06: error_pointer finds the class of a failure');

#
# Lines are for the server's log, whatever a client wants to be told.
#
my ($rc, $out, $err) = $node->psql('postgres', q{SET client_min_messages = debug5; SELECT idem_status('pay', 'k3')});
unlike($err, qr/idempotency request/, 'a client is not sent the line');

#
# Every function that is a request writes one line, with the SQLSTATE if it is
# refused, however early.  [call, SQL, what the line says]
#
value(q{SELECT idem_define('v7', '{"log_requests": true, "key_format": "uuidv7"}');
	SELECT idem_define('small', '{"log_requests": true, "max_params_bytes": 4, "max_result_bytes": 4, "require_params": true}');
	SELECT idem_define('bound', '{"log_requests": true, "role": "pg_monitor"}');
	SELECT idem_define('job', '{"log_requests": true, "lease": "1 h"}');
	CREATE ROLE outsider; SELECT idem_grant('outsider', 'admin')});
value(q{CREATE FUNCTION twice(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{"order": {"id": 7}}'::jsonb $$;
	CREATE FUNCTION fails(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
	CREATE FUNCTION inner_claim(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN PERFORM idem_claim('pay', ''); RETURN '1'; END $$});
my $future = q{'7fffffff-ffff-7000-8000-000000000001'};
my $long_key = q{repeat('k', 300)};
my $permit = q{(SELECT c FROM idem_claim('pay', 'permit', principal => 'p') c)};
my @requests = (
	['idem_claim', q{SELECT idem_claim('pay', '')}, 'claim 22023'],
	['idem_claim', q{SELECT idem_claim('pay', NULL)}, 'claim 22023'],
	['idem_claim', q{SELECT idem_claim('pay', 'x1', principal => '')}, 'x1 claim 22023'],
	['idem_claim', q{SET idempotency.principal = ''; SELECT idem_claim('pay', 'x2')}, 'x2 claim 22023'],
	['idem_claim', q{SELECT idem_claim('v7', 'x3')}, 'x3 claim 22023'],
	['idem_claim', qq{SELECT idem_claim('v7', $future)}, '7fffffff-ffff-7000-8000-000000000001 claim 22023'],
	['idem_claim', q{SELECT idem_claim('small', 'x4', '{"a": "long"}')}, 'x4 claim 22023'],
	['idem_claim', q{SELECT idem_claim('small', 'x5')}, 'x5 claim 22023'],
	['idem_claim', q{SELECT idem_claim('pay', 'x6', lease => '-1 s')}, 'x6 claim 22023'],
	['idem_claim', q{SELECT idem_claim('pay', 'x7', '{}', fingerprint => '\x00')}, 'x7 claim 22023'],
	['idem_claim', q{SET ROLE outsider; SELECT idem_claim('bound', 'x8')}, 'x8 claim 42501'],
	['idem_claim', q{SET default_transaction_read_only = on; SELECT idem_claim('pay', 'x9')}, 'x9 claim 25006'],
	['idem_claim', qq{SELECT length(id::text) FROM idem_claim('pay', $long_key)}, 'k' x 300 . ' claim 22023'],
	['idem_accept', q{SELECT idem_accept('v7', 'y1')}, 'y1 accept 22023'],
	['idem_accept', q{SELECT idem_accept('job', 'y2')}, 'y2 accept execute accepted 0'],
	['idem_start', q{SELECT idem_start('job', 'y3')}, 'y3 start ID001'],
	['idem_start', q{SELECT idem_start('job', 'y2', '-1 s')}, 'y2 start 22023'],
	['idem_start_next', q{SELECT idem_start_next('job', 0)}, 'start 22023'],
	['idem_start_next', q{SET ROLE outsider; SELECT idem_start_next('bound')}, 'start 42501'],
	['idem_start_next', q{SELECT idem_start_next('job')}, 'y2 start execute processing 1'],
	['idem_start_next', q{SELECT idem_start_next('job')}, ''],
	['idem_complete', qq{BEGIN; SELECT idem_complete($permit, '1'); ROLLBACK}, 'permit claim execute processing 1;permit complete succeeded 1'],
	['idem_complete', q{SELECT idem_complete(c) FROM idem_status('pay', 'none') c}, 'none ask absent;none complete 22023'],
	['idem_complete_key', q{SELECT idem_complete_key('pay', 'none', NULL)}, 'none complete 22023'],
	['idem_complete_key', q{SELECT idem_complete_key('pay', 'none', 1)}, 'none complete ID001'],
	['idem_complete_key', q{SELECT idem_complete_key('small', 'none', 1, '"long"')}, 'none complete ID004'],
	['idem_fail', q{SELECT idem_fail(c, '1') FROM idem_status('pay', 'none') c}, 'none ask absent;none fail 22023'],
	['idem_fail_key', q{SELECT idem_fail_key('pay', 'none', 1, '1')}, 'none fail ID001'],
	['idem_fail_key', q{SET ROLE outsider; SELECT idem_fail_key('bound', 'none', 1, '1')}, 'none fail 42501'],
	['idem_unsure', q{SELECT idem_unsure(c) FROM idem_status('pay', 'none') c}, 'none ask absent;none mark as unsure 22023'],
	['idem_unsure_key', q{SELECT idem_unsure_key('job', 'y2', 1)}, 'y2 mark as unsure ID002'],
	['idem_unsure_key', q{SELECT idem_unsure_key('job', 'y2', (SELECT fence FROM idempotency_internal.record WHERE key = 'y2'))}, 'y2 mark as unsure unknown 1'],
	['idem_renew', q{SELECT idem_renew(c, '1 s') FROM idem_status('pay', 'none') c}, 'none ask absent;none renew 22023'],
	['idem_renew_key', q{SELECT idem_renew_key('job', 'y2', 1, '0')}, 'y2 renew 22023'],
	['idem_release', q{SELECT idem_release(c) FROM idem_status('pay', 'none') c}, 'none ask absent;none release 22023'],
	['idem_release_key', q{SELECT idem_release_key('pay', 'none', 1)}, 'none release ID001'],
	['idem_status', q{SELECT idem_status('pay', '')}, 'ask 22023'],
	['idem_status', q{SET ROLE outsider; SELECT idem_status('bound', 'z')}, 'z ask 42501'],
	['idem_once', q{SELECT idem_once('v7', 'z1')}, 'z1 do once 22023'],
	['idem_once', q{SELECT idem_once('job', 'y2')}, 'y2 do once 55P03'],
	['idem_once', q{SELECT idem_once('pay', 'z2')}, 'z2 do once execute succeeded 1'],
	['idem_once_many', q{SELECT idem_once_many('pay', '{z3,NULL}')}, 'do once 22023'],
	['idem_once_many', q{SELECT idem_once_many('pay', NULL)}, 'do once 22023'],
	['idem_once_many', q{SELECT idem_once_many('pay', ARRAY['z2', 'z4'])}, 'z2 do once replay succeeded 1;z4 do once execute succeeded 1'],
	['idem_once_many', q{SELECT idem_once_many('pay', ARRAY['z2', ''])}, 'do once 22023'],
	['idem_once_many', q{SELECT idem_once_many('job', ARRAY['y2'])}, 'y2 do once 55P03'],
	['idem_run', q{SELECT idem_run('pay', 'r1', '1', 'twice(jsonb)')}, 'r1 run execute succeeded 1 7'],
	['idem_run', q{SELECT idem_run('pay', 'r1', '1', 'twice(jsonb)')}, 'r1 run replay succeeded 1 7'],
	['idem_run', q{SELECT idem_run('pay', 'r1', '2', 'twice(jsonb)')}, 'r1 run mismatch succeeded 1'],
	['idem_run', q{SELECT idem_run('pay', 'r2', '1', 'fails(jsonb)')}, 'r2 run execute failed 1'],
	['idem_run', q{SELECT idem_run('pay', 'r3', '1', NULL)}, 'r3 run 22023'],
	['idem_run', q{SELECT idem_run('pay', 'r4', '1', 'jsonb_typeof(jsonb)')}, 'r4 run 22023'],
	['idem_run', q{SELECT idem_run('pay', 'r5', '1', 'inner_claim(jsonb)')}, 'claim 22023;r5 run execute failed 1'],
	['idem_cancel', q{SELECT idem_cancel('pay', '')}, 'cancel 22023'],
	['idem_cancel', q{SELECT idem_cancel('pay', 'c1')}, 'c1 cancel replay failed 0'],
	['idem_reconcile', q{SELECT idem_reconcile('job', 0)}, 'reconcile 22023'],
	['idem_reconcile', q{SELECT idem_reconcile('job', 1, '0')}, 'reconcile 22023'],
	['idem_reconcile', q{SET default_transaction_read_only = on; SELECT idem_reconcile('job')}, 'reconcile 25006'],
	['idem_reconcile', q{SELECT idem_reconcile()}, 'y2 reconcile unknown unknown 1'],
	['idem_resolve', q{SELECT idem_resolve('job', 'y2', 'nonsense')}, 'y2 resolve 22023'],
	['idem_resolve', q{SELECT idem_resolve('job', 'y2', 'succeeded', fence => 1)}, 'y2 resolve ID002'],
	['idem_resolve', q{SELECT idem_resolve('job', 'y2', 'succeeded')}, 'y2 resolve succeeded 1'],
	['idem_expire_lease', q{SELECT idem_expire_lease('pay', 'none')}, 'none expire the lease of ID001'],
	['idem_reopen', q{SELECT idem_reopen('pay', 'r1')}, 'r1 reopen ID002'],
	['idem_reopen', q{SELECT idem_reopen('pay', 'r2')}, 'r2 reopen failed 1'],
	['idem_redact', q{SELECT idem_redact('pay', 'none')}, 'none redact ID001'],
	['idem_redact', q{SELECT idem_redact('pay', 'r1')}, 'r1 redact succeeded 1'],
);
my @all;
for my $request (@requests)
{
	my @got = requests($request->[1]);

	is(said(@got) =~ s/\n/;/gr, $request->[2], "one line: $request->[1]");
	push @all, @got;
}
is(scalar(grep { defined $_->{id} eq (!defined $_->{key} || length $_->{key} > 255 || !defined $_->{principal}) } @all), 0,
	'there is an id as soon as it is known whose key it is');

# Settings, ids and idem_explain, which is a person looking, are no requests.
my %tested = map { $_->[0] => 1 } @requests;
my @functions = split /\n/, value(q{SELECT proname FROM pg_proc WHERE proname LIKE 'idem\_%' AND pronargs > 0 AND (proargnames[1] IN ('operation', 'claim'))
	AND proname NOT IN ('idem_define', 'idem_undefine', 'idem_policy', 'idem_id', 'idem_explain', 'idem_explain_key') ORDER BY 1});
is_deeply([ grep { !$tested{$_} } @functions ], [], 'no request is forgotten');

#
# Whatever a client puts into its texts, a line is one line of JSON: what is too
# long ends with a whole character, and a value is not taken for a header's name.
#
sub request { return (requests($_[0]))[0]{request}; }
is(request(q{SET request.headers = '{"x-forwarded-for": "x-request-id", "x-request-id" : "req-3"}'; SELECT idem_status('pay', 'spoofed')}), 'req-3',
	'the header is found behind a value of its name');
is(request(q{SELECT set_config('request.headers', '{"x-request-id": "' || repeat('a', 127) || 'éé"}', false), idem_status('pay', 'cut')}), 'a' x 127,
	'a header is cut between characters');
is(request(q{SET request.headers = '{"x-request-id": ["req-4"], "b": }'; SELECT idem_status('pay', 'no string')}), undef, 'one that is no string is none');
my ($odd) = requests(q{SET idempotency.request_id = E'a"\\\\\n\x01é'; SELECT idem_status('pay', E'k"\n{}\\\\', E'p\r')});
is_deeply([ @{$odd}{qw(request key principal)} ], [ qq{a"\\\n\x01\x{e9}}, qq(k"\n{}\\), "p\r" ], 'quotes, backslashes and control characters are escaped');
my $long = 'ä' x 120;
my ($cut) = requests("SET application_name = 'shop'; SET idempotency.request_id = '${long}$long'; SELECT idem_status('pay', '$long', '$long')");
is_deeply([ map { length } @{$cut}{qw(key principal request)} ], [ 120, 120, 64 ], 'long texts are kept, or cut');
for my $case (['/a/1', '{"a": [1, "two"]}', 'two'], ['/a~1b', '{"a/b": true}', 'true'], ['/a', '{"a": {}}', undef], ['/0', '"scalar"', undef])
{
	my ($pointer, $result, $found) = @$case;

	value("SELECT idem_define('pay', '{\"resource_pointer\": \"$pointer\"}')");
	is((requests("SELECT idem_complete(c, '$result') FROM idem_claim('pay', 'p$pointer') c"))[1]{resource}, $found, "pointer $pointer in $result");
}

#
# With preload too; and nothing of the old log is left.
#
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'");
$node->restart;
is(said(requests(q{SELECT idem_status('pay', 'k3')})), 'k3 ask absent', 'with preload');

unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal/, 'no crash');
done_testing();
