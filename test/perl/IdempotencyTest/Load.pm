# Clients that do every kind of work at once and say what they were told, and
# what has to be true when the server, or this server, is lost meanwhile.
#
#   my $load = IdempotencyTest::Load->new($node);
#   $load->start(1);                    round 1; purger => 0 leaves that client out
#   $load->wait_until_busy;
#   ...                                 the server is lost
#   $load->hear_out('round 1');
#   ...                                 it is there again, or $load->moves_to($other)
#   $load->judge('round 1');            lost => 1: it may have forgotten the latest
#   $load->judge_all;                   of all rounds
#
# Each client is a psql that says "started", "done" and so on around its
# transactions; so it is known what the server acknowledged.  The result of a
# key is the key itself, and its business row names it.

package IdempotencyTest::Load;

use strict;
use warnings;

use IdempotencyTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $CLIENTS = 8;
my $BATCH = 40;

# What a client hears when its server is gone.
my $CONNECTION_LOST =
  qr/server closed|terminated abnormally|while processing|connection to server was lost|no connection to the server|^$/;

# Each kind of work as a psql script.  KEY stands for the key, KEYS for those of
# a batch, PAD for a text that makes rows long.
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
	many => q{
		BEGIN;
		INSERT INTO business SELECT seen, 1, 'PAD'
		FROM idem_once_many('load', ARRAY(SELECT load_keys('KEY', 'many'))) seen;
		COMMIT;
		\echo done KEY 0
	},
	batch => q{
		BEGIN;
		WITH claimed AS MATERIALIZED (SELECT c FROM load_keys('KEY', 'batch') each,
				idem_claim('load', each, '"KEY"') c),
			written AS (INSERT INTO business SELECT (c).key, 1, 'PAD' FROM claimed)
		SELECT count(idem_complete(c, '"KEY"')) AS done FROM claimed \gset
		COMMIT;
		\echo done KEY 0
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

# One that records what is forgotten at once, as much as makes purge truncate a
# segment, and purges it.
my $purge = q{
	SELECT count(idem_once('brief', idem_new_key())) AS done FROM generate_series(1, 1500) \gset
	SELECT idem_purge() AS purged \gset
	\echo purged - 0
};

# One that takes events and acknowledges each other lot.
my $relay = join '', map { q{
	SELECT coalesce(string_agg(event_id::text, ','), '-') AS ids,
		coalesce(array_agg(event_id), '{}') AS events, coalesce(array_agg(fence), '{}') AS fences
	FROM idem_take('there', 20, '1 h', '1 s') \gset
	\echo taken :ids 0
} . $_ } '', q{
	SELECT idem_ack_many(:'events', :'fences') AS done \gset
	\echo delivered :ids 0
};

# new NODE: with tables and functions of its own in the node's database.
sub new
{
	my ($class, $node) = @_;
	my $self = bless {
		node => $node,
		scripts => PostgreSQL::Test::Utils::tempdir,
		rounds => 0,
		acknowledged => 0,
	}, $class;

	create_claims_table($node);
	$node->safe_psql('postgres', qq{
		CREATE INDEX ON business (split_part(key, '-', 2));
		CREATE TABLE heard (key text PRIMARY KEY, kind text, phase text, fence bigint);
		CREATE TABLE heard_event (id uuid PRIMARY KEY);
		CREATE FUNCTION load_keys(key text, kind text) RETURNS SETOF text LANGUAGE sql
		AS \$\$ SELECT key || '-' || i FROM generate_series(1, $BATCH) i WHERE kind IN ('batch', 'many')
			UNION ALL SELECT key WHERE kind NOT IN ('batch', 'many') \$\$;
		CREATE FUNCTION load_params(key text, kind text) RETURNS jsonb LANGUAGE sql
		AS \$\$ SELECT to_jsonb(key) WHERE kind NOT IN ('once', 'many') \$\$;
		SELECT idem_define('brief', '{"retention": "1 us"}')});
	return $self;
}

sub moves_to
{
	my ($self, $node) = @_;

	$self->{node} = $node;
	return;
}

# --- the clients ------------------------------------------------------------------

sub write_script
{
	my ($self, $name, $text) = @_;
	my $file = "$self->{scripts}/$name.sql";

	$text =~ s/^\s+//mg;
	open my $script, '>', $file or die "cannot write $file: $!";
	print $script $text;
	close $script or die "cannot write $file: $!";
	return $file;
}

# So much work that no client comes to its end.
sub work_of
{
	my ($round, $client) = @_;
	my $pad = 'x' x 500;
	my @work;

	foreach my $i (1 .. 3000)
	{
		my $kind = $order[ ($i + $client) % @order ];
		my $key = "$kind-$round-$client-$i";
		my $text = "\\echo started KEY 0$kinds{$kind}";

		$text =~ s/KEY/$key/g;
		$text =~ s/PAD/$pad/g;
		push @work, $text;
	}
	return join '', @work;
}

# start ROUND, purger => 0
sub start
{
	my ($self, $round, %option) = @_;
	my @files = map { $self->write_script("client-$_", work_of($round, $_)) } 1 .. $CLIENTS;

	push @files, $self->write_script('relay', $relay x 3000);
	push @files, $self->write_script('purger', $purge x 1000)
	  unless defined $option{purger} && !$option{purger};
	$self->{round} = $round;
	$self->{rounds}++;
	$self->{heard} = {};
	$self->{heard_events} = {};
	$self->{running} = [ map { $self->start_client($_) } @files ];
	return;
}

sub start_client
{
	my ($self, $file) = @_;

	open my $out, '>', "$file.out" or die "cannot write $file.out: $!";
	my $pid = fork;
	die "cannot fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		open STDOUT, '>&', $out;
		open STDERR, '>', "$file.err";
		$ENV{PGAPPNAME} = 'load';
		exec 'psql', '-Xqv', 'ON_ERROR_STOP=1', '-d', $self->{node}->connstr('postgres'), '-f', $file
		  or die "cannot run psql: $!";
	}
	return { pid => $pid, out => "$file.out", err => "$file.err" };
}

# A client that is not connected yet would be told another error.
sub wait_until_busy
{
	my ($self) = @_;
	my $running = @{ $self->{running} };

	wait_for_sql($self->{node}, "SELECT count(*) = $running FROM pg_stat_activity WHERE application_name = 'load'");
	$self->wait_for_more;
	return;
}

# Until one of the clients has begun and ended a key since, and was told so: one
# has committed three.
sub wait_for_more
{
	my ($self) = @_;
	my $done = "SELECT count(DISTINCT substring(key from '^\\w+-\\d+-\\d+-\\d+')) FROM business WHERE split_part(key, '-', 2) = '$self->{round}'";
	my $now = one_value($self->{node}, $done);

	wait_for_sql($self->{node}, "SELECT ($done) > $now + 2 * $CLIENTS");
	return;
}

# hear KEY, PHASE, FENCE: what another client was told.
sub hear
{
	my ($self, $key, $phase, $fence) = @_;
	my ($kind) = $key =~ /^(\w+)-/;

	$self->{heard}{$key}[0] = $kind;
	$self->{heard}{$key}[1] = $phase;
	$self->{heard}{$key}[2] = $fence if $fence;
	return;
}

# Waits for the ends of the clients, for which there is but one reason.
sub hear_out
{
	my ($self, $label) = @_;
	my @strange;

	foreach my $client (@{ $self->{running} })
	{
		waitpid $client->{pid}, 0;
		foreach my $line (split /\n/, slurp_file($client->{out}))
		{
			my ($phase, $key, $fence) = split / /, $line;

			next if $key eq '-';
			if ($phase =~ /^(taken|delivered)$/) { $self->{heard_events}{$_} = 1 foreach split /,/, $key }
			else { $self->hear($key, $phase, $fence) }
		}
		push @strange, grep { !/$CONNECTION_LOST/ } split /\n/, slurp_file($client->{err});
	}
	is(join("\n", @strange), '', "$label: no client saw an error but the loss of its connection");
	return;
}

# Keys of those heard in a phase.
sub heard_in
{
	my ($self, $phase) = @_;

	return grep { $self->{heard}{$_}[1] eq $phase } sort keys %{ $self->{heard} };
}

# What was heard as tables, for the checks.
sub store_heard
{
	my ($self) = @_;
	my $heard = $self->{heard};
	my $keys = join ', ', map { "('$_', '$heard->{$_}[0]', '$heard->{$_}[1]', " . ($heard->{$_}[2] || 'NULL') . ')' }
	  sort keys %$heard;
	my $events = join ', ', map { "('$_')" } sort keys %{ $self->{heard_events} };

	$self->{node}->safe_psql('postgres', "TRUNCATE heard; INSERT INTO heard VALUES $keys");
	$self->{node}->safe_psql('postgres', "INSERT INTO heard_event VALUES $events ON CONFLICT DO NOTHING") if $events;
	return;
}

# --- what has to be true ------------------------------------------------------------

# Keys heard in some phase that a claim answers otherwise than expected.  The
# claims are rolled back: one that executes would be refused at COMMIT.
sub answered_otherwise
{
	my ($self, $where, $expected) = @_;

	return one_value($self->{node}, qq{
		BEGIN;
		SELECT string_agg(concat_ws(' ', h.key, h.phase, c.verdict, c.state, c.result), '; ')
		FROM (SELECT h.*, each FROM heard h, load_keys(key, kind) each WHERE $where) h,
			idem_claim('load', h.each, load_params(h.key, h.kind)) c
		WHERE NOT ($expected);
		ROLLBACK;});
}

my $IS_REPLAYED = q{verdict = 'replay' AND state = 'succeeded' AND result IS NOT DISTINCT FROM load_params(h.key, h.kind)};

# Business rows and succeeded records are the same keys, each once.
sub business_and_records_differ
{
	my ($self) = @_;

	return one_value($self->{node}, q{
		SELECT string_agg(concat_ws(' ', r.key, b.key, b.n), '; ')
		FROM (SELECT key FROM idempotency_internal.record WHERE state = 's' AND operation = 'load') r
			FULL JOIN (SELECT key, count(*) AS n FROM business GROUP BY key) b USING (key)
		WHERE r.key IS NULL OR b.key IS NULL OR b.n <> 1});
}

sub half_batches
{
	my ($self) = @_;

	return one_value($self->{node}, qq{
		SELECT count(*) FROM (SELECT 1 FROM business WHERE key ~ '^(batch|many)-'
			GROUP BY substring(key from '^\\w+-\\d+-\\d+-\\d+') HAVING count(*) <> $BATCH) half});
}

# An event is there if and only if its business row is.
sub business_and_events_differ
{
	my ($self) = @_;

	return one_value($self->{node}, q{
		SELECT string_agg(concat_ws(' ', b.key, e.key, e.n), '; ')
		FROM (SELECT key FROM business WHERE key LIKE 'emitted-%' AND note <> 'claimed again') b
			FULL JOIN (SELECT payload #>> '{}' AS key, count(*) AS n FROM idem_outbox_event
				WHERE aggregatetype = 'there' GROUP BY payload #>> '{}') e USING (key)
		WHERE b.key IS NULL OR e.key IS NULL OR e.n <> 1});
}

# Events that no relay has heard of are in the queue.
sub lost_events
{
	my ($self) = @_;

	return one_value($self->{node}, q{
		SELECT string_agg(event_id::text, '; ') FROM idempotency_internal.outbox o
		WHERE destination = 'there'
			AND NOT EXISTS (SELECT FROM idempotency_internal.outbox_due d WHERE d.event_id = o.event_id)
			AND NOT EXISTS (SELECT FROM heard_event h WHERE h.id = o.event_id)});
}

# Those that one has are leased to it, or delivered.
sub events_taken_again
{
	my ($self) = @_;

	return one_value($self->{node}, q{
		BEGIN;
		SELECT string_agg(event_id::text, '; ') FROM idem_take('there', 1000000, '1 h') JOIN heard_event ON id = event_id;
		ROLLBACK;});
}

# The list of open work is that of the records that are open.
sub work_and_records_differ
{
	my ($self) = @_;

	return one_value($self->{node}, q{
		SELECT string_agg(concat_ws(' ', id, r.key), '; ')
		FROM (SELECT id, key FROM idempotency_internal.record WHERE state IN ('a', 'p')) r
			FULL JOIN idempotency_internal.open_work w USING (id)
		WHERE r.key IS NULL OR w.operation IS NULL});
}

# Prepared transactions end, some either way.
sub end_prepared
{
	my ($self) = @_;
	my @prepared = split /\n/, one_value($self->{node}, 'SELECT gid FROM pg_prepared_xacts ORDER BY random()');

	foreach my $i (0 .. $#prepared)
	{
		$self->{node}->safe_psql('postgres', ($i % 2 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$prepared[$i]'");
	}
	return scalar @prepared;
}

# Every key, or every one not heard to be done, is brought to its end as a client
# would: claim again with the same key; do the work if told to.
sub finish_everything
{
	my ($self, $where) = @_;

	$self->{node}->safe_psql('postgres', qq{
		DO \$\$
		DECLARE
			h record;
			c idem_answer;
		BEGIN
			FOR h IN SELECT key, load_params(key, kind) AS params, fence, phase, each FROM heard, load_keys(key, kind) each
				WHERE $where
			LOOP
				c := idem_status('load', h.each);
				IF h.phase = 'claimed' AND c.state IN ('processing', 'unknown') THEN
					INSERT INTO business VALUES (h.each, 1, 'owner came back');
					PERFORM idem_complete_key('load', h.each, h.fence, h.params);
				ELSE
					c := idem_claim('load', h.each, h.params);
					IF c.state = 'accepted' THEN
						c := idem_start('load', h.each);
					END IF;
					IF c.verdict = 'execute' THEN
						INSERT INTO business VALUES (c.key, c.attempt, 'claimed again');
						PERFORM idem_complete(c, h.params);
					END IF;
				END IF;
			END LOOP;
		END \$\$});
	return;
}

# What was acknowledged is there.
sub judge_acknowledged
{
	my ($self, $label) = @_;
	my $done = $self->heard_in('done');

	is($self->answered_otherwise("phase = 'done'", $IS_REPLAYED), '', "$label: each of $done acknowledged outcomes is replayed");
	is($self->answered_otherwise("phase = 'claimed' AND kind = 'leased'",
			"verdict = 'in_progress' AND state = 'processing' AND c.fence IS NULL AND h.fence > 0 OR verdict = 'replay'"),
		'', "$label: an acknowledged lease keeps running");
	is($self->answered_otherwise("phase = 'claimed' AND kind = 'overdue'",
			"verdict = 'unknown' AND state = 'unknown' OR verdict = 'replay'"),
		'', "$label: one that is over is unknown, not executed again");
	is($self->answered_otherwise("phase = 'accepted'", "verdict = 'in_progress' AND state = 'accepted' OR verdict = 'replay'"),
		'', "$label: what was accepted still is");
	is($self->events_taken_again, '', "$label: no event that was taken or delivered is taken again");
	return;
}

# Nothing is there by half.
sub judge_halves
{
	my ($self, $label) = @_;

	is($self->business_and_records_differ, '', "$label: business rows and succeeded records agree");
	is($self->work_and_records_differ, '', "$label: open work and open records agree");
	is($self->business_and_events_differ, '', "$label: business rows and events agree");
	is($self->lost_events, '', "$label: an event is in the queue until it is delivered");
	is($self->half_batches, 0, "$label: no batch is half there");
	is(heap_and_index_agree($self->{node}), '', "$label: table and indexes agree");
	return;
}

# judge LABEL, lost => 1
sub judge
{
	my ($self, $label, %option) = @_;
	my $lost = $option{lost};
	my $done = $self->heard_in('done');
	my $heard = keys %{ $self->{heard} };
	my $prepared;

	$self->store_heard;
	is($self->answered_otherwise("phase = 'prepared'", "verdict = 'in_progress' AND holder = 0 OR verdict = 'replay'"),
		'', "$label: an acknowledged PREPARE holds its key") unless $lost;
	$prepared = $self->end_prepared;
	$self->judge_acknowledged($label) unless $lost;
	$self->judge_halves($label);

	$self->finish_everything($lost ? 'true' : "phase <> 'done'");
	is($self->answered_otherwise("phase <> 'released' AND kind NOT IN ('leased', 'overdue')", $IS_REPLAYED),
		'', "$label: claimed again, every key comes to its end");
	is($self->business_and_records_differ, '', "$label: once");
	is($self->work_and_records_differ, '', "$label: and open work is what is left open");
	$self->{acknowledged} += $done;
	note(sprintf '%s: %d of %d keys heard to be done, %d events heard of, %d prepared transactions left',
		$label, $done, $heard, scalar keys %{ $self->{heard_events} }, $prepared);
	return;
}

# Over all rounds, not only the last one.
sub judge_all
{
	my ($self) = @_;

	cmp_ok($self->{acknowledged}, '>', $self->{rounds} * $CLIENTS, 'the clients got something done');
	is(one_value($self->{node}, q{
		SELECT count(*) FROM (SELECT b.key, substring(b.key from '^\w+-\d+-\d+-\d+') AS called, split_part(b.key, '-', 1) AS kind
				FROM business b) b,
			idem_claim('load', b.key, load_params(b.called, b.kind)) c
		WHERE c.verdict <> 'replay'}),
		0, 'whatever was done in any round is replayed after the last one');
	return;
}

1;
