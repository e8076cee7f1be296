# An owner that comes late against a taker, under load, many times over: never
# two outcomes, and never none.  IDEM_ROUNDS says how many times; `make races`
# does it 10 000 times.

use strict;
use warnings;

use IdempotencyTest;
use Test::More;

my $rounds = $ENV{IDEM_ROUNDS} || 300;
my $batch = 100;
my $node = new_node('main', conf => "max_connections = 30\n");

$node->safe_psql('postgres', <<'END');
SELECT idem_define('op', '{"on_lease_expiry": "retry"}');
CREATE TABLE business (key text, who text);

-- A leased claim whose outcome is not known; its owner knows the fence.
CREATE FUNCTION lose(key text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	claim idem_answer := idem_claim('op', lose.key, lease => '1 h');
BEGIN
	PERFORM idem_unsure(claim);
	RETURN claim.fence;
END $$;

-- The owner comes late.
CREATE FUNCTION finish(key text, fence bigint, who text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO business VALUES (key, who);
	PERFORM idem_complete_key('op', finish.key, finish.fence, to_jsonb(who));
	RETURN 'done';
END $$;

-- The taker does the work again, in one transaction.
CREATE FUNCTION take(key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	claim idem_answer := idem_claim('op', take.key, lease => '0');
BEGIN
	IF claim.verdict <> 'execute' THEN
		RETURN claim.verdict;
	END IF;
	INSERT INTO business VALUES (key, 'taker');
	PERFORM idem_complete(claim, '"taker"');
	RETURN 'done';
END $$;
END

my $clerk = session($node);
my %seen;

# One round: what owner, taker and a bystander say.  The taker takes atomically
# or with a lease; the bystander takes and gives up.
sub race
{
	my ($key, $fence, $round, $owner, $taker, $bystander) = @_;

	$owner->send("SELECT finish('$key', $fence, 'owner')");
	if ($round % 2)
	{
		$taker->send("SELECT take('$key')");
	}
	else
	{
		$taker->send("SELECT fence AS f FROM idem_claim('op', '$key', lease => '1 h') \\gset\n"
			  . "\\if :{?f}\nSELECT finish('$key', nullif(:'f', '')::bigint, 'taker');\n\\endif\n\\unset f");
	}
	$bystander->send("BEGIN; SELECT verdict FROM idem_claim('op', '$key'); ROLLBACK");
	foreach my $session ($owner, $taker, $bystander)
	{
		$session->result;
		my $error = $session->error =~ /ERROR: +(.*)/ ? $1 : 'no error';
		$error =~ s/\(id .*?\)/(id)/;
		$seen{$error}++;
	}
	return;
}

foreach my $level (@IdempotencyTest::LEVELS)
{
	my ($owner, $taker, $bystander) = sessions($node, 3, isolation => $level);
	my $share = int($rounds / 3) + 1;
	my $prefix = join '', map { substr $_, 0, 1 } split ' ', $level;

	for (my $done = 0; $done < $share; $done += $batch)
	{
		my @fences = split /\n/, $clerk->run("SELECT lose('$prefix' || n) FROM generate_series($done, $done + $batch - 1) n");
		race("$prefix" . ($done + $_), $fences[$_], $_, $owner, $taker, $bystander) foreach 0 .. $batch - 1;
	}
	my $keys = one_value($node, "SELECT count(*) FROM idempotency_internal.record WHERE key LIKE '$prefix%' AND key ~ '^[a-z]+[0-9]+\$' AND left(key, length('$prefix')) = '$prefix'");

	is(one_value($node, "SELECT count(*) FROM business WHERE regexp_replace(key, '[0-9]', '', 'g') = '$prefix' GROUP BY key HAVING count(*) > 1 LIMIT 1"),
		'', "$level: no key has the work of two");
	is(one_value($node, "SELECT count(*) FROM idempotency_internal.record r WHERE regexp_replace(key, '[0-9]', '', 'g') = '$prefix'
			AND (r.state <> 's' OR (SELECT to_jsonb(b.who) FROM business b WHERE b.key = r.key) IS DISTINCT FROM r.result)"),
		0, "$level: every key has the outcome of who did the work");
	$_->quit foreach $owner, $taker, $bystander;
}

# --- a record that moves ---------------------------------------------------------

# Each change of a column that is in an index moves the record to another index
# entry.  A claim that looks meanwhile must not miss it: the owner of a claim is never
# told that there is none, nor a stale one.
{
	my ($mover, $owner) = sessions($node, 2);
	my $fence = $owner->value(q{SELECT fence FROM idem_claim('moving', 'k', lease => '1 h')});

	$mover->run(<<'END');
CREATE PROCEDURE move(pause float) LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		UPDATE idempotency_internal.record SET forget_at = clock_timestamp() + '1 day' WHERE id = idem_id('moving', 'k');
		COMMIT;
		PERFORM pg_sleep(pause) WHERE pause > 0;
	END LOOP;
END $$;
CREATE FUNCTION try_to_finish(fence bigint, tries integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	told jsonb := '{}';
BEGIN
	FOR i IN 1 .. tries LOOP
		BEGIN
			PERFORM idem_complete_key('moving', 'k', fence);
			RAISE EXCEPTION USING ERRCODE = 'ZZ000';
		EXCEPTION WHEN OTHERS THEN
			told := told || jsonb_build_object(SQLSTATE, true);
		END;
	END LOOP;
	RETURN (SELECT string_agg(state, ' ' ORDER BY state) FROM jsonb_object_keys(told) state);
END $$;
END
	foreach ([ 0, 1, 'ID002', 'a stale owner is told ID002' ],
		[ 0.001, $fence, 'ZZ000', 'its owner can complete it' ])
	{
		my ($pause, $with, $expected, $what) = @$_;

		# short transactions: a long one would keep all the old versions
		$mover->send("CALL move($pause)");
		is_each([ map { $owner->value("SELECT try_to_finish($with, 200)") } 1 .. ($pause ? 5 : 600) ],
			$expected, "$what, however the record moves");
		one_value($node, 'SELECT pg_cancel_backend(' . $mover->pid . ')');
		$mover->result;
	}
}

my $both = one_value($node, "SELECT string_agg(DISTINCT who, ' ' ORDER BY who) FROM business");
is($both, 'owner taker', 'sometimes the owner was first, sometimes the taker');
my @unexpected = grep { !/^no error$|no longer yours|could not serialize access: the last attempt/ } sort keys %seen;
is("@unexpected", '', 'nobody was told anything but that it was too late');
note "$seen{$_} times: $_" foreach sort keys %seen;
is(heap_and_index_agree($node), '', 'tables and indexes agree');

done_testing();
