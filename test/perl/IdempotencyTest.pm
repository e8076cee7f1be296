# What the TAP tests share: clusters with the extension, and sessions that can
# be left waiting while others go on.
#
#   my $node = new_node('main', conf => "max_connections = 80\n");
#   my $session = session($node, user => 'app', isolation => 'serializable');
#   is($session->value("SELECT verdict FROM idem_claim('op', 'k')"), 'execute');
#
# A claim that needs no principal gets "acme": it is in the cluster's settings.

package IdempotencyTest;

use strict;
use warnings;

use Exporter 'import';
use IdempotencyTest::Session;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
  new_node configure session sessions create_claims_table
  is_error is_each one_value wait_for_sql send_all collect_all
  kill_server clear_killed kill_backend heap_and_index_agree extension_available
  page_is_true
  sleep time
);

# The isolation levels, weakest first.
our @LEVELS = ('read committed', 'repeatable read', 'serializable');

# new_node NAME, conf => TEXT, init => { ... }, extension => 0, durable => 1
#
# A started cluster, by default with the extension in database postgres.
sub new_node
{
	my ($name, %option) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(%{ $option{init} || {} });
	configure($node, %option);
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION idempotency')
	  unless defined $option{extension} && !$option{extension};
	return $node;
}

# Settings all of our clusters have.  Durable ones sync as a real one would;
# for the others a crash of the machine is no subject.
sub configure
{
	my ($node, %option) = @_;
	my $durable = $option{durable} ? 'on' : 'off';

	$node->append_conf('postgresql.conf', <<"END" . ($option{conf} || ''));
fsync = $durable
log_statement = none
max_prepared_transactions = 20
idempotency.principal = 'acme'
END
	return;
}

# session NODE, option => value...: see IdempotencyTest::Session.
sub session
{
	my ($node, %option) = @_;

	return IdempotencyTest::Session->new($node, %option);
}

# sessions NODE, NUMBER, option => value...
sub sessions
{
	my ($node, $number, %option) = @_;

	return map { session($node, %option) } 1 .. $number;
}

# Let all of them run the same, at the same time; then their outputs.
sub send_all
{
	my ($sql, @sessions) = @_;

	$_->send($sql) foreach @sessions;
	return;
}

sub collect_all
{
	my @sessions = @_;

	return map { $_->result } @sessions;
}

# The last statement of a session failed with that SQLSTATE, and its message
# matches.
sub is_error
{
	my ($session, $sqlstate, $pattern, $name) = @_;

	subtest $name => sub {
		is($session->sqlstate, $sqlstate, "SQLSTATE $sqlstate");
		like($session->error, $pattern, 'message and hint');
	};
	return;
}

# All values are the expected one; a failure shows what else there was.
sub is_each
{
	my ($values, $expected, $name) = @_;
	my %count;

	$count{$_}++ foreach @$values;
	return is_deeply(\%count, { $expected => scalar @$values }, $name);
}

# page_is_true NODE, FILE: its SQL runs, in reading order and in one session, and
# prints what it shows ("-- => ...").
sub page_is_true
{
	my ($node, $file) = @_;
	my $page = slurp_file($file);
	my @blocks;

	while ($page =~ /^```sql\n(.*?)^```/msg)
	{
		push @blocks, { sql => $1, line => 1 + (substr($page, 0, $-[1]) =~ tr/\n//) };
	}
	cmp_ok(scalar @blocks, '>', 0, "$file has SQL");
	my ($status, $out, $err) = $node->psql('postgres',
		join('', map { "\\echo -- block $_->{line}\n$_->{sql}" } @blocks),
		on_error_stop => 1, extra_params => [ '-F', ' | ' ]);
	is($status, 0, 'its SQL runs') or diag($err);
	foreach my $block (@blocks)
	{
		my @shown = $block->{sql} =~ /-- => (.*)$/mg or next;
		my ($printed) = "$out\n" =~ /^-- block $block->{line}\n(.*?)(?=^-- block |\z)/ms;

		is_deeply([ grep { $_ ne '' } split /\n/, defined $printed ? $printed : '' ],
			\@shown, "line $block->{line} prints what it shows");
	}
	return $page;
}

# One value of a query by a session of its own.
sub one_value
{
	my ($node, $sql, $dbname) = @_;

	return $node->safe_psql($dbname || 'postgres', $sql);
}

# Wait until a query says true.
sub wait_for_sql
{
	my ($node, $sql, $dbname) = @_;

	$node->poll_query_until($dbname || 'postgres', $sql)
	  or die "timed out waiting for: $sql";
	return;
}

# kill -9 of the server: no process writes a byte after this.  The postmaster is
# stopped first, so that it starts no process we have not seen.
sub kill_server
{
	my ($node) = @_;
	my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];

	kill 'STOP', $postmaster;
	sleep 0.005 until state_of($postmaster) =~ /[TXZ]/;
	my @children = split ' ', slurp_file("/proc/$postmaster/task/$postmaster/children");
	kill 'KILL', @children, $postmaster;
	$node->kill9;    # so that the node knows
	for (my $tries = 0; $tries < 1000 && grep { is_alive($_) } $postmaster, @children; $tries++)
	{
		sleep 0.01;
	}

	# Some containers never reap a process whose parent is gone, and its number
	# then looks like a running postmaster to the next one.
	for (my $tries = 0; $tries < 100 && kill(0, $postmaster); $tries++)
	{
		sleep 0.02;
	}
	unlink $node->data_dir . '/postmaster.pid';
	return;
}

# Removes the shared memory of a killed server that is needed no more: only its next
# start does.
sub clear_killed
{
	my ($node) = @_;

	$node->start;
	$node->stop('immediate');
	return;
}

# A zombie is not alive: it holds nothing of the cluster any more.
sub is_alive { return state_of($_[0]) !~ /[ZX]/; }

# The letter of a process in /proc; X where it is gone.
sub state_of
{
	my ($pid) = @_;

	open my $stat, '<', "/proc/$pid/stat" or return 'X';
	my $line = <$stat>;
	close $stat;
	return defined $line && $line =~ /\) (\w) / ? $1 : 'X';
}

# kill -9 of one backend; the server notices and recovers.
sub kill_backend
{
	my ($node, $pid) = @_;

	my $offset = -s $node->logfile;

	kill 'KILL', $pid or die "could not kill backend $pid: $!";
	# before it has noticed, the server still lets connections in
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $offset);
	return;
}

# Every row of our tables is in each of their indexes, and nothing else is.
# Returns what amcheck complains about, or nothing.
sub heap_and_index_agree
{
	my ($node) = @_;
	my ($stdout, $stderr);

	$node->psql(
		'postgres', q{
		SET client_min_messages = warning;
		CREATE EXTENSION IF NOT EXISTS amcheck;
		SELECT bt_index_parent_check(c.oid, true)
		FROM pg_class c
			JOIN pg_am a ON a.oid = c.relam AND a.amname = 'btree'
		WHERE c.relnamespace = 'idempotency_internal'::regnamespace AND c.relkind = 'i';
		-- a summary that missed a row would hide it from purge
		DO $$
		DECLARE
			place regclass;
			until timestamptz;
			by_heap bigint;
			by_index bigint;
		BEGIN
			FOR place IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'idempotency_internal'::regnamespace AND c.relname ~ '^record(_s..)?$' LOOP
				FOR until IN EXECUTE format('SELECT unnest(percentile_disc(ARRAY[0, 0.1, 0.5, 0.9, 1]) WITHIN GROUP (ORDER BY forget_at)) FROM %s', place) LOOP
					PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'off', true);
					EXECUTE format('SELECT count(*) FROM %s WHERE forget_at <= $1', place) INTO by_heap USING until;
					PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'on', true);
					EXECUTE format('SELECT count(*) FROM %s WHERE forget_at <= $1', place) INTO by_index USING until;
					IF by_heap <> by_index THEN
						RAISE '% has % rows up to %, its index knows of %', place, by_heap, until, by_index;
					END IF;
				END LOOP;
			END LOOP;
		END $$;
		SELECT v.* FROM pg_class c, verify_heapam(c.oid) v
		WHERE c.relnamespace = 'idempotency_internal'::regnamespace AND c.relkind = 'r';
		}, stdout => \$stdout, stderr => \$stderr);
	$stdout =~ s/^\n*$//;
	return join '', grep { $_ } $stdout, $stderr;
}

# A table for business rows: what a claim was for.  No unique index: the
# extension is to keep the keys unique, and the tests count.
sub create_claims_table
{
	my ($node, $dbname) = @_;

	$node->safe_psql($dbname || 'postgres',
		'CREATE TABLE business (key text NOT NULL, attempt integer, note text)');
	return;
}

# Can that extension be made on this server?
sub extension_available
{
	my ($node, $name) = @_;

	return one_value($node,
		"SELECT count(*) FROM pg_available_extensions WHERE name = '$name'") > 0;
}

1;
