# The worker on a standby and after its promotion, and a server that does not
# preload the library (CASES C64, C66).

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf', <<'END');
idempotency.principal = 'acme'
idempotency.naptime = 50
END
$primary->start;
$primary->safe_psql('postgres', 'CREATE EXTENSION idempotency');
$primary->safe_psql('postgres', q{SELECT idem_define('gone', '{"retention": "0"}')});
$primary->safe_psql('postgres', q{SELECT idem_complete(c) FROM idem_claim('gone', 'k1') c});

my $count = 'SELECT count(*) FROM idempotency_internal.record';

#
# Not preloaded.
#
sleep 1;
is($primary->safe_psql('postgres', $count), 1, 'without preload nothing purges');
is($primary->safe_psql('postgres', 'SELECT count(*) FROM idem_stat_worker'), 0, 'and the view is empty');
is($primary->safe_psql('postgres', 'SELECT idem_purge()'), 1, 'but idem_purge() does');
$primary->safe_psql('postgres', 'SHOW idempotency.naptime');

#
# Standby.
#
$primary->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'\nidempotency.worker = off");
$primary->restart;
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'idempotency.worker = on');
$standby->start;
$primary->safe_psql('postgres', q{SELECT idem_complete(c) FROM idem_claim('gone', 'k2') c});
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
sleep 1;
is($standby->safe_psql('postgres', $count), 1, 'on a standby nothing happens');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM idem_stat_worker'), 0, 'and the view is empty');
unlike(slurp_file($standby->logfile), qr/ERROR|FATAL/, 'nor is anything logged');
$standby->promote;
ok($standby->poll_query_until('postgres', "SELECT ($count) = 0"), 'after promotion it works, without a restart');
$primary->stop;
$standby->stop;

done_testing();
