# kill -9 of the whole server while clients work: what was acknowledged is
# replayed, business rows and records agree, nothing is half there.
#
#   IDEM_CRASHES=20     how often to kill (3 otherwise); make crash
#
# Each client is a psql that says "started", "done" and so on around its
# transactions; so we know what the server acknowledged.

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $crashes = $ENV{IDEM_CRASHES} || 3;
my $clients = 8;
my $batch = 40;
my $scripts = PostgreSQL::Test::Utils::tempdir;

my $node = new_node('main', durable => 1, conf => "max_connections = 50\n");
create_claims_table($node);
$node->safe_psql('postgres',
	'CREATE TABLE heard (key text PRIMARY KEY, kind text, phase text, fence bigint)');

$node->safe_psql('postgres', q{SELECT idem_define('brief', '{"retention": "1 us"}')});

# --- the clients ------------------------------------------------------------------

# Each kind of work as a psql script.  KEY stands for the key; a result is
# always the key itself, so that everybody knows what it has to be.
my %kinds = (
	atomic => q{
		BEGIN;
		SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
		INSERT INTO business VALUES ('KEY', 1, 'PAD');
		SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"') AS done \gset
		COMMIT;
		\echo done KEY 0
	},
	savepoint => q{
		BEGIN;
		SAVEPOINT a;
		SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
		INSERT INTO business VALUES ('KEY', 1, 'void');
		ROLLBACK TO a;
		SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
		SAVEPOINT b;
		INSERT INTO business VALUES ('KEY', 1, 'PAD');
		SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"') AS done \gset
		RELEASE b;
		COMMIT;
		\echo done KEY 0
	},
	retried => q{
		BEGIN;
		SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
		SELECT idem_fail_key('load', 'KEY', :fence, '"again"', true) AS done \gset
		COMMIT;
		\echo failed KEY 0
		BEGIN;
		SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
		INSERT INTO business VALUES ('KEY', 2, 'PAD');
		SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"') AS done \gset
		COMMIT;
		\echo done KEY 0
	},
	leased => q{
		SELECT fence FROM idem_claim('load', 'KEY', '"KEY"', lease => '1 h') \gset
		\echo claimed KEY :fence
		BEGIN;
		INSERT INTO business VALUES ('KEY', 1, 'PAD');
		SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"') AS done \gset
		COMMIT;
		\echo done KEY 0
	},
	overdue => q{
		SELECT fence FROM idem_claim('load', 'KEY', '"KEY"', lease => '1 us') \gset
		\echo claimed KEY :fence
		BEGIN;
		INSERT INTO business VALUES ('KEY', 1, 'PAD');
		SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"') AS done \gset
		COMMIT;
		\echo done KEY 0
	},
	prepared => q{
		BEGIN;
		SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
		INSERT INTO business VALUES ('KEY', 1, 'PAD');
		SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"') AS done \gset
		PREPARE TRANSACTION 'KEY';
		\echo prepared KEY 0
		COMMIT PREPARED 'KEY';
		\echo done KEY 0
	},
	accepted => q{
		SELECT verdict FROM idem_accept('load', 'KEY', '"KEY"') \gset
		\echo accepted KEY 0
		BEGIN;
		SELECT fence FROM idem_start('load', 'KEY') \gset
		INSERT INTO business VALUES ('KEY', 1, 'PAD');
		SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"') AS done \gset
		COMMIT;
		\echo done KEY 0
	},
	once => q{
		BEGIN;
		INSERT INTO business SELECT 'KEY', 1, 'PAD' WHERE idem_once('load', 'KEY');
		COMMIT;
		\echo done KEY 0
	},
	batch => qq{
		BEGIN;
		WITH claimed AS MATERIALIZED (SELECT c FROM generate_series(1, $batch) i,
				idem_claim('load', 'KEY-' || i, '"KEY"') c),
			written AS (INSERT INTO business SELECT (c).key, 1, 'PAD' FROM claimed)
		SELECT count(idem_complete(c, '"KEY"')) AS done FROM claimed \\gset
		COMMIT;
		\\echo done KEY 0
	},
	emitted => q{
		BEGIN;
		SELECT (c).fence, idem_emit('there', '"KEY"', claim => c) AS event
		FROM (SELECT idem_claim('load', 'KEY', '"KEY"') AS c OFFSET 0) s \gset
		INSERT INTO business VALUES ('KEY', 1, 'PAD');
		SELECT idem_complete_key('load', 'KEY', :fence, '"KEY"') AS done \gset
		COMMIT;
		\echo done KEY 0
	},
	released => q{
		BEGIN;
		SELECT fence FROM idem_claim('load', 'KEY', '"KEY"') \gset
		SELECT idem_release_key('load', 'KEY', :fence) AS done \gset
		COMMIT;
		\echo released KEY 0
	});

my @order = sort keys %kinds;

# A script of so much work that no client comes to its end.
sub write_script
{
	my ($round, $client) = @_;
	my $file = "$scripts/client-$client.sql";
	my $pad = 'x' x 500;

	open my $script, '>', $file or die "cannot write $file: $!";
	foreach my $i (1 .. 3000)
	{
		my $kind = $order[ ($i + $client) % @order ];
		my $key = "$kind-$round-$client-$i";
		my $text = $kinds{$kind};

		$text =~ s/KEY/$key/g;
		$text =~ s/PAD/$pad/g;
		$text =~ s/^\s+//mg;
		print $script "\\echo started $key 0\n$text";
	}
	close $script;
	return $file;
}

# One that records what is forgotten at once, as much as makes purge truncate a
# segment, and purges it.
sub write_purger
{
	my $file = "$scripts/purger.sql";

	open my $script, '>', $file or die "cannot write $file: $!";
	print $script q{
		SELECT count(idem_once('brief', idem_new_key())) AS done FROM generate_series(1, 1500) \gset
		SELECT idem_purge() AS purged \gset
		\echo purged brief 0
	} x 1000;
	close $script;
	return $file;
}

# Starts a client; returns what is needed to hear it out.
sub start_client
{
	my ($file) = @_;

	open my $out, '>', "$file.out" or die "cannot write $file.out: $!";
	my $pid = fork;
	die "cannot fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		open STDOUT, '>&', $out;
		open STDERR, '>', "$file.err";
		$ENV{PGAPPNAME} = 'load';
		exec 'psql', '-Xqv', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', $file
		  or die "cannot run psql: $!";
	}
	return { pid => $pid, out => "$file.out", err => "$file.err" };
}

# What a client has heard: key -> [kind, last phase, fence].
sub hear_out
{
	my ($client, $heard) = @_;
	my $phases = 0;

	waitpid $client->{pid}, 0;
	foreach my $line (split /\n/, slurp_file($client->{out}))
	{
		my ($phase, $key, $fence) = split / /, $line;
		next if $phase eq 'purged';
		my ($kind) = $key =~ /^(\w+)-/;

		$heard->{$key}[0] = $kind;
		$heard->{$key}[1] = $phase;
		$heard->{$key}[2] = $fence if $fence;
		$phases++;
	}
	return $phases;
}

# --- what has to be true ------------------------------------------------------------

# Keys of one phase and kind that a claim answers otherwise than expected.  The
# claims are rolled back: one that executes would be refused at COMMIT.
sub answered_otherwise
{
	my ($where, $expected) = @_;

	return one_value($node, qq{
		BEGIN;
		SELECT string_agg(concat_ws(' ', h.key, h.phase, c.verdict, c.state, c.result), '; ')
		FROM (SELECT h.*, CASE WHEN kind = 'batch' THEN key || '-' || i ELSE key END AS each
			FROM heard h, generate_series(1, CASE WHEN kind = 'batch' THEN $batch ELSE 1 END) i
			WHERE $where) h,
			idem_claim('load', h.each, CASE WHEN kind <> 'once' THEN to_jsonb(h.key) END) c
		WHERE NOT ($expected);
		ROLLBACK;});
}

# Business rows and succeeded records are the same keys, each once.
sub business_and_records_differ
{
	return one_value($node, q{
		SELECT string_agg(concat_ws(' ', r.key, b.key, b.n), '; ')
		FROM (SELECT key FROM idempotency_internal.record WHERE state = 's') r
			FULL JOIN (SELECT key, count(*) AS n FROM business GROUP BY key) b USING (key)
		WHERE r.key IS NULL OR b.key IS NULL OR b.n <> 1});
}

sub half_batches
{
	return one_value($node, qq{
		SELECT count(*) FROM (SELECT 1 FROM business WHERE key LIKE 'batch-%'
			GROUP BY substring(key from '^batch-\\d+-\\d+-\\d+') HAVING count(*) <> $batch) half});
}

# An event is there if and only if its business row is.
sub business_and_events_differ
{
	return one_value($node, q{
		SELECT string_agg(concat_ws(' ', b.key, e.key, e.n), '; ')
		FROM (SELECT key FROM business WHERE key LIKE 'emitted-%' AND note <> 'claimed again') b
			FULL JOIN (SELECT payload #>> '{}' AS key, count(*) AS n FROM idem_outbox_event
				GROUP BY payload #>> '{}') e USING (key)
		WHERE b.key IS NULL OR e.key IS NULL OR e.n <> 1});
}

# The list of open work is that of the records that are open.
sub work_and_records_differ
{
	return one_value($node, q{
		SELECT string_agg(concat_ws(' ', id, r.key), '; ')
		FROM (SELECT id, key FROM idempotency_internal.record WHERE state IN ('a', 'p')) r
			FULL JOIN idempotency_internal.open_work w USING (id)
		WHERE r.key IS NULL OR w.operation IS NULL});
}

# Every key that was not heard to be done is brought to its end, as a client
# would: claim again with the same key; do the work if told to.
sub finish_everything
{
	$node->safe_psql('postgres', q{
		DO $$
		DECLARE
			h record;
			c idem_answer;
		BEGIN
			FOR h IN
				SELECT key, kind, fence, phase, CASE WHEN kind = 'batch' THEN key || '-' || i ELSE key END AS each
				FROM heard, generate_series(1, CASE WHEN kind = 'batch' THEN } . $batch . q{ ELSE 1 END) i
				WHERE phase <> 'done'
			LOOP
				IF h.phase = 'claimed' AND idem_state_of(h.each) <> 'succeeded' THEN
					INSERT INTO business VALUES (h.each, 1, 'owner came back');
					PERFORM idem_complete_key('load', h.each, h.fence, to_jsonb(h.key));
				ELSE
					c := idem_claim('load', h.each, CASE WHEN h.kind <> 'once' THEN to_jsonb(h.key) END);
					IF c.state = 'accepted' THEN
						c := idem_start('load', h.each);
					END IF;
					IF c.verdict = 'execute' THEN
						INSERT INTO business VALUES (c.key, c.attempt, 'claimed again');
						PERFORM idem_complete(c, CASE WHEN h.kind <> 'once' THEN to_jsonb(h.key) END);
					END IF;
				END IF;
			END LOOP;
		END $$});
	return;
}
$node->safe_psql('postgres', q{
	CREATE FUNCTION idem_state_of(key text) RETURNS text LANGUAGE sql
	AS $$ SELECT state::text FROM idem_status('load', key) $$});

# --- the crashes ----------------------------------------------------------------------

my $acknowledged = 0;
foreach my $crash (1 .. $crashes)
{
	my %heard;
	my @running = map { start_client($_) } write_purger(), map { write_script($crash, $_) } 1 .. $clients;

	# one that is not connected yet would be told another error
	wait_for_sql($node, "SELECT count(*) = " . @running . " FROM pg_stat_activity WHERE application_name = 'load'");
	wait_for_sql($node, "SELECT count(*) > $clients FROM business WHERE key LIKE '%-$crash-%'");
	sleep rand 0.7;
	kill_server($node);
	my $phases = 0;
	$phases += hear_out($_, \%heard) foreach @running;
	my $errors = join '', map { slurp_file($_->{err}) } @running;
	my @strange = grep { !/server closed|terminated abnormally|while processing|connection to server was lost|no connection to the server|^$/ }
	  split /\n/, $errors;
	is(join("\n", @strange), '', "crash $crash: no client saw an error but the loss of its connection");

	$node->start;
	my $values = join ', ', map { "('$_', '$heard{$_}[0]', '$heard{$_}[1]', " . ($heard{$_}[2] || 'NULL') . ')' }
	  sort keys %heard;
	$node->safe_psql('postgres', "TRUNCATE heard; INSERT INTO heard VALUES $values");
	my $done = grep { $_->[1] eq 'done' } values %heard;
	my $doubted = grep { $_->[1] !~ /^(done|released)$/ } values %heard;
	$acknowledged += $done;

	# Prepared transactions are still in the way; then they end, either way.
	is(answered_otherwise("phase = 'prepared'", "verdict = 'in_progress' AND holder = 0 OR verdict = 'replay'"),
		'', "crash $crash: an acknowledged PREPARE holds its key");
	my @prepared = split /\n/, one_value($node, 'SELECT gid FROM pg_prepared_xacts ORDER BY random()');
	foreach my $i (0 .. $#prepared)
	{
		$node->safe_psql('postgres', ($i % 2 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$prepared[$i]'");
	}

	is(answered_otherwise("phase = 'done'", "verdict = 'replay' AND state = 'succeeded' AND (result = to_jsonb(h.key) OR kind = 'once')"),
		'', "crash $crash: each of $done acknowledged outcomes is replayed");
	is(answered_otherwise("phase = 'claimed' AND kind = 'leased'",
			"verdict = 'in_progress' AND state = 'processing' AND c.fence IS NULL AND h.fence > 0 OR verdict = 'replay'"),
		'', "crash $crash: an acknowledged lease keeps running");
	is(answered_otherwise("phase = 'claimed' AND kind = 'overdue'",
			"verdict = 'unknown' AND state = 'unknown' OR verdict = 'replay'"),
		'', "crash $crash: one that is over is unknown, not executed again");
	is(answered_otherwise("phase = 'accepted'", "verdict = 'in_progress' AND state = 'accepted' OR verdict = 'replay'"),
		'', "crash $crash: what was accepted still is");
	is(business_and_records_differ(), '', "crash $crash: business rows and succeeded records agree");
	is(work_and_records_differ(), '', "crash $crash: open work and open records agree");
	is(business_and_events_differ(), '', "crash $crash: business rows and events agree");
	is(half_batches(), 0, "crash $crash: no batch is half there");
	is(heap_and_index_agree($node), '', "crash $crash: table and indexes agree");

	finish_everything();
	is(answered_otherwise("phase <> 'released' AND kind NOT IN ('leased', 'overdue')", "verdict = 'replay' AND (result = to_jsonb(h.key) OR kind = 'once')"),
		'', "crash $crash: claimed again, every key comes to its end");
	is(business_and_records_differ(), '', "crash $crash: once");
	is(work_and_records_differ(), '', "crash $crash: and open work is what is left open");
	note(sprintf 'crash %d of %d: %d phases heard, %d keys in doubt, %d prepared left',
		$crash, $crashes, $phases, $doubted, scalar @prepared);
}
ok($acknowledged > $crashes * $clients, "the clients got something done ($acknowledged outcomes)");

is(one_value($node, q{SELECT count(*) > 0 FROM pg_class
		WHERE relnamespace = 'idempotency_internal'::regnamespace AND relname ~ '^record_s' AND relfilenode <> oid}),
	't', 'purge truncated segments meanwhile');

# Over all rounds, not only the last one.
is(one_value($node, q{SELECT count(*) FROM business b, idem_claim('load', b.key, to_jsonb(
		CASE WHEN b.key LIKE 'batch-%' THEN substring(b.key from '^batch-\d+-\d+-\d+')
			WHEN b.key NOT LIKE 'once-%' THEN b.key END)) c
		WHERE c.verdict <> 'replay'}),
	0, 'whatever was done in any round is replayed after the last crash');
$node->stop;
done_testing();
