# What the database of .packaging/docker/compose.yml is made of, and what PostgREST
# then does in it: a POST with the same key twice makes one row.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $compose = slurp_file('.packaging/docker/compose.yml');
my %api = $compose =~ /^ +PGRST_(\w+): (.*)$/mg;

my $node = PostgreSQL::Test::Cluster->new('compose');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'");
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE shop');

$ENV{AUTHENTICATOR_PASSWORD} = 'trial';
is($node->psql('shop', undef, extra_params => [ '-v', 'ON_ERROR_STOP=1', '-f', '.packaging/docker/init/shop.sql' ]),
	0, 'the database is made');

# One request, as PostgREST makes it of the settings in compose.yml.
sub request
{
	my ($method, $headers, $query) = @_;
	my ($said, $error);

	$node->psql('shop', <<"END", stdout => \$said, stderr => \$error, connstr => $node->connstr('shop') . ' user=authenticator', on_error_stop => 1);
BEGIN;
SET LOCAL ROLE $api{DB_ANON_ROLE};
SET LOCAL search_path = $api{DB_SCHEMAS}, $api{DB_EXTRA_SEARCH_PATH};
SET LOCAL request.method = '$method';
SET LOCAL request.path = '/orders';
SET LOCAL request.headers = '$headers';
SET LOCAL request.jwt.claims = '{"role": "$api{DB_ANON_ROLE}"}';
SELECT FROM $api{DB_PRE_REQUEST}();
$query;
COMMIT;
END
	return ($said, $error);
}

my $insert = q{INSERT INTO orders (item, quantity) VALUES ('lamp', 1) RETURNING id};
my ($said, $error) = request('POST', '{"idempotency-key": "k1"}', $insert);
is($said, '1', 'a POST makes a row') or diag($error);
($said, $error) = request('POST', '{"idempotency-key": "k1"}', $insert);
is($said, '', 'its repeat makes none');
like($error, qr/"status": 200\b.*"Idempotent-Replayed": "true"/, 'and is told that it was done');
($said, $error) = request('POST', '{"idempotency-key": "k2"}', $insert);
like($said, qr/^\d+$/, 'another key makes another one') or diag($error);
request('POST', '{}', $insert) for 1 .. 2;
is((request('GET', '{}', 'SELECT count(*) FROM orders'))[0], '4', 'without a key each makes one');

# the role of docs/monitoring/sql_exporter.yml, which names no schema
is($node->safe_psql('shop', 'SELECT sum(requests) FROM idem_stat', extra_params => [ '-U', 'prometheus' ]),
	'3', 'the exporter sees the answers');

done_testing();
