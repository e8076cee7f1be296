-- Purge removes what everybody treats as absent, and nothing else: C09, C54, C57,
-- invariants 8 and 9; one bounded batch a call.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
-- the tables are shared with the tests before: start from empty ones
SELECT format('TRUNCATE %s, idempotency_internal.open_work', string_agg(place::text, ', ')) FROM pg_temp.tables_of_records() place \gexec
SELECT idem_define('purge', '{"retention": "1 h", "guard": "1 h"}'), idem_define('purge_ever', '{"retention": null}'),
	idem_define('purge_limited', '{"max_attempts": 1, "deadline": "1 h", "retention": "1 h"}');

-- One record of each kind
SELECT idem_complete(c, '1') FROM idem_claim('purge', 'succeeded') c;
SELECT idem_fail(c, '1') FROM idem_claim('purge', 'failed') c;
SELECT idem_fail(c, '1', true) FROM idem_claim('purge', 'retryable') c;
SELECT idem_unsure(c) FROM idem_claim('purge', 'unknown') c;
SELECT verdict FROM idem_claim('purge', 'leased', lease => '1 h');
SELECT idem_release(c) FROM idem_claim('purge', 'released', lease => '1 h') c;
SELECT idem_complete(c, '1') FROM idem_claim('purge_ever', 'succeeded') c;
SELECT idem_fail(c, '1') FROM idem_claim('purge_ever', 'failed') c;
SELECT idem_release(c) FROM idem_claim('purge_ever', 'released', lease => '1 h') c;
SELECT idem_fail(c, '1', true) FROM idem_claim('purge_limited', 'used up') c;
CREATE FUNCTION pg_temp.kept() RETURNS text LANGUAGE sql AS $$ SELECT string_agg(operation || '/' || key, ' ' ORDER BY operation, key) FROM idempotency_internal.record $$;
CREATE FUNCTION pg_temp.told() RETURNS text LANGUAGE sql AS $$
SELECT string_agg(o || '/' || k || ' ' || pg_temp.shape(idem_status(o, k)), E'\n' ORDER BY o, k)
  FROM (VALUES ('purge', 'succeeded'), ('purge', 'failed'), ('purge', 'retryable'), ('purge', 'unknown'), ('purge', 'leased'), ('purge', 'released'),
	('purge_ever', 'succeeded'), ('purge_ever', 'failed'), ('purge_ever', 'released'), ('purge_limited', 'used up')) v (o, k)
$$;
CREATE FUNCTION pg_temp.age_all(by interval) RETURNS void LANGUAGE sql AS $$ SELECT pg_temp.age(operation, key, by) FROM idempotency_internal.record $$;

-- Fresh: nothing goes
SELECT pg_temp.told() AS before \gset
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 0, 'fresh: nothing is purged'), is(pg_temp.told(), :'before'::text, 'and nothing reads differently');

-- C09: inside guard
SELECT pg_temp.age_all('90 min');
SELECT pg_temp.told() AS before \gset
SELECT is((idem_claim('purge', 'succeeded')).verdict, 'expired', 'C09: expired before purge');
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 1, 'inside guard: only what has none is purged'), is(pg_temp.kept(),
	'purge/failed purge/leased purge/released purge/retryable purge/succeeded purge/unknown purge_ever/failed purge_ever/released purge_ever/succeeded', 'the failure out of attempts'),
	is(pg_temp.told(), :'before'::text, 'invariant 8: nothing reads differently');
SELECT is((idem_claim('purge', 'succeeded')).verdict, 'expired', 'C09: expired after purge');
SELECT is((idem_claim('purge', 'leased')).verdict, 'unknown', 'a lease that ran out is unknown');

-- Past guard
SELECT pg_temp.age_all('60 min');
SELECT pg_temp.told() AS before \gset
SELECT is((idem_status('purge', key)).state, 'absent', key || ' reads as absent before it is purged') FROM unnest('{succeeded,failed,released}'::text[]) key;
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 3, 'past guard: purged'), is(pg_temp.kept(), 'purge/leased purge/retryable purge/unknown purge_ever/failed purge_ever/released purge_ever/succeeded', 'C54, C57, invariant 9: the rest stays'),
	is(pg_temp.told(), :'before'::text, 'invariant 8: nothing reads differently');

-- After a thousand years
SELECT pg_temp.age_all('365000 days');
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 0, 'a thousand years on: nothing more is purged'), is(pg_temp.told(), :'before'::text, 'nothing reads differently');
SELECT is((idem_claim('purge_ever', 'succeeded')).verdict, 'replay', 'C54: retention for ever'), is((idem_claim('purge', 'unknown')).verdict, 'unknown', 'C57: unknown for ever');
BEGIN;
SELECT is((idem_claim('purge', 'retryable')).attempt, 2, 'a retryable failure executes for ever');
ROLLBACK;

-- The retention it was recorded with counts, not today's
SELECT idem_complete(c, '1') FROM idem_claim('purge', 'old settings') c;
SELECT idem_define('purge', '{"retention": "1 us", "guard": "0"}');
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 0, 'a shorter retention defined later does not count');
SELECT idem_define('purge', '{"retention": null}');
SELECT pg_temp.age('purge', 'old settings', '3 h');
SELECT is((idem_status('purge', 'old settings')).state, 'absent', 'nor does a longer one');
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 1, 'purged');

-- Bounded batches
SELECT idem_define('purge_many', '{"retention": "1 us"}');
SELECT count(idem_complete(c)) FROM generate_series(1, 2500) n, idem_claim('purge_many', 'k' || n) c;
SELECT idem_purge(10) AS purged \gset
SELECT is(:purged, 10, 'at most max_records');
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 1000, 'NULL: idempotency.purge_batch, by default a thousand');
SET idempotency.purge_batch = 7;
SELECT idem_purge(NULL) AS purged \gset
SELECT is(:purged, 7, 'or as set');
RESET idempotency.purge_batch;
SELECT idem_purge(9223372036854775807) AS purged \gset
SELECT is(:purged, 1483, 'the rest');
SELECT idem_purge(1) AS purged \gset
SELECT is(:purged, 0, 'until 0');
-- one a batch: nothing is passed over for ever
SELECT count(idem_complete(c)) FROM generate_series(1, 3) n, idem_claim('purge_many', 'few' || n) c;
SELECT idem_purge(1) AS first \gset
SELECT idem_purge(1) AS second \gset
SELECT idem_purge(1) AS third \gset
SELECT idem_purge(1) AS fourth \gset
SELECT is(ARRAY[:first, :second, :third, :fourth], '{1,1,1,0}', 'one a batch, until all are gone');

-- The index on forget_at: which blocks a purge has to read, as the planner sees it
CREATE FUNCTION pg_temp.blocks_due() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	PERFORM set_config('enable_seqscan', 'off', true);
	EXECUTE 'EXPLAIN (ANALYZE, FORMAT json) SELECT FROM idempotency_internal.record WHERE forget_at <= now()' INTO plan;
	PERFORM set_config('enable_seqscan', 'on', true);
	RETURN plan->0->'Plan'->>'Lossy Heap Blocks';
END $$;
CREATE FUNCTION pg_temp.blocks() RETURNS int LANGUAGE sql AS $$ SELECT pg_relation_size('idempotency_internal.record') / current_setting('block_size')::int $$;
TRUNCATE idempotency_internal.record;
SELECT idem_define('purge_later', '{"retention": "1 h"}');
SELECT count(idem_once('purge_many', 'first ' || n)) FROM generate_series(1, 3000) n;
SELECT cmp_ok(pg_temp.blocks(), '>', 48, 'more than three ranges'), is(pg_temp.blocks_due(), pg_temp.blocks(), 'written without a summary: all have to be read');
SELECT idem_purge(1) AS purged \gset
SELECT idem_purge(10000) AS purged \gset
SELECT is(:purged, 2999, 'all are purged');
VACUUM idempotency_internal.record;
SELECT count(idem_once('purge_later', 'second ' || n)) FROM generate_series(1, 3000) n;
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 0, 'in their place stands what is not forgotten');
SELECT cmp_ok(pg_temp.blocks_due(), '<', 16, 'which does not look due for ever: what is not a whole range is read');
UPDATE idempotency_internal.record SET expires_at = now() - interval '1 s', forget_at = now() - interval '1 s';
SELECT cmp_ok(pg_temp.blocks_due(), '>', 48, 'until it is');
-- changed by hand, to times in no order; and purged bit by bit
UPDATE idempotency_internal.record SET forget_at = CASE abs(hashtext(key)) % 3 WHEN 0 THEN forget_at WHEN 1 THEN forget_at + interval '10 days' END;
SELECT count(*) AS due FROM idempotency_internal.record WHERE forget_at < now() \gset
SELECT idem_purge(100) AS purged \gset
SELECT is(:purged, 100, 'among what is kept, some are purged');
SELECT idem_purge(10000) AS purged \gset
SELECT is(:purged, :due - 100, 'and all that are due');
SELECT is(count(*) FILTER (WHERE forget_at IS NULL) > 500 AND count(*) FILTER (WHERE forget_at > now()) > 500 AND count(*) = 3000 - :due, true, 'the others stay') FROM idempotency_internal.record;
-- a new index has summaries; an index of another kind is not taken for it
CREATE INDEX regress_minmax ON idempotency_internal.record USING brin (forget_at timestamptz_bloom_ops);
DROP INDEX idempotency_internal.record_forget_at_idx;
SELECT idem_purge() AS purged \gset
CREATE INDEX record_forget_at_idx ON idempotency_internal.record USING brin (forget_at idempotency_internal.forget_at_ops) WITH (pages_per_range = 16);
DROP INDEX idempotency_internal.regress_minmax;
UPDATE idempotency_internal.record SET forget_at = now() - interval '1 s' WHERE forget_at > now();
SELECT idem_purge(10000) AS purged \gset
SELECT is(count(*) FILTER (WHERE forget_at IS NOT NULL), 0::bigint, 'a new index serves as well') FROM idempotency_internal.record;
TRUNCATE idempotency_internal.record;
-- statistics see it, so that autovacuum does
SELECT throws_ok(format('SELECT idem_purge(%s)', n), '22023', NULL, 'max_records ' || n) FROM unnest(ARRAY[0, -1]) n;

-- What cannot be purged does not keep the rest
SELECT idem_complete(c) FROM unnest('{purge_broken,purge_sound}'::text[]) operation, idem_claim(operation, 'k') c;
SELECT pg_temp.age(operation, 'k', '2 days') FROM unnest('{purge_broken,purge_sound}'::text[]) operation;
UPDATE idempotency_internal.record SET fingerprint = 'short' WHERE operation = 'purge_broken';
SELECT idem_purge() AS purged \gset
SELECT is(pg_temp.stored('purge_sound', 'k'), NULL, 'one that is sound goes, with a warning about the other');
SELECT is(count(*), 1::bigint, 'which stays') FROM idem_record WHERE operation = 'purge_broken';
UPDATE idempotency_internal.record SET fingerprint = NULL WHERE operation = 'purge_broken';
SELECT idem_purge() AS purged \gset
SELECT is(count(*), 0::bigint, 'until it can be purged') FROM idem_record WHERE operation = 'purge_broken';

-- ... nor do events whose destination is damaged
SELECT idem_destination_define(d, '{"retention": "0"}') FROM unnest('{a_broken,b_sound}'::text[]) d \g /dev/null
SELECT idem_emit(d, '1') FROM unnest('{a_broken,b_sound}'::text[]) d \g /dev/null
SELECT sum(idem_ack_many(ARRAY[event_id], ARRAY[fence])) AS delivered FROM unnest('{a_broken,b_sound}'::text[]) d, idem_take(d) \gset
SELECT idem_complete(c) FROM idem_claim('purge_sound', 'k') c;
SELECT pg_temp.age('purge_sound', 'k', '2 days');
-- changed by hand, and every session told
UPDATE idempotency_internal.destination SET settings = '[]' WHERE destination = 'a_broken';
SELECT idem_destination_define('other', '{}') \g /dev/null
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 2, 'the record and the event of the other destination go, with a warning');
UPDATE idempotency_internal.destination SET settings = '{"retention": "0"}' WHERE destination = 'a_broken';
SELECT idem_destination_define('other', '{}') \g /dev/null
SELECT idem_purge() AS purged \gset
SELECT is(:purged, 1, 'the event goes when its destination is mended');
DELETE FROM idempotency_internal.destination;

-- One transaction of its own
BEGIN;
SELECT idem_purge();
ROLLBACK;
SELECT is(:'LAST_ERROR_SQLSTATE'::text, '25001', 'not in a transaction block');
SELECT throws_ok('SELECT idem_purge()', '25001', NULL, 'not in a subtransaction');
SELECT 1 \; SELECT idem_purge();
SELECT is(:'LAST_ERROR_SQLSTATE'::text, '25001', 'not with other statements');
SET default_transaction_read_only = on;
SELECT idem_purge();
SET default_transaction_read_only = off;
SELECT is(:'LAST_ERROR_SQLSTATE'::text, '25006', 'not in a read-only transaction');

SELECT * FROM finish();
