-- Replays change nothing: no transaction id, no dead rows, no WAL (C47, invariants 4
-- and 15); and the other answers that decide nothing.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
SELECT idem_complete(c, '{"r": 1}') FROM idem_claim('replay', 'done', '{"p": 1}') c;
SELECT idem_fail(c, '"e"') FROM idem_claim('replay', 'failed') c;
SELECT verdict FROM idem_claim('replay', 'leased', lease => '1 h', owner => 'w');
SELECT idem_unsure(c) FROM idem_claim('replay', 'unknown') c;
SELECT idem_define('replay_guarded', '{"guard": "1 h"}');
SELECT idem_complete(c) FROM idem_claim('replay_guarded', 'expired') c;
SELECT pg_temp.age('replay_guarded', 'expired', '24 h');
CREATE FUNCTION pg_temp.versions() RETURNS text LANGUAGE sql AS $$
SELECT string_agg(concat_ws(' ', ctid, xmin, xmax, key), ', ' ORDER BY key) FROM idempotency_internal.record WHERE operation LIKE 'replay%'
$$;
SELECT pg_temp.versions() AS before \gset

-- No transaction id
CREATE TEMP TABLE question (n int GENERATED ALWAYS AS IDENTITY, what text, query text, verdict text);
INSERT INTO question (what, query, verdict) VALUES
	('replay', $$(idem_claim('replay', 'done', '{"p": 1}')).verdict$$, 'replay'),
	('replay, with a lease', $$(idem_claim('replay', 'done', '{"p": 1}', lease => '1 h')).verdict$$, 'replay'),
	('replay of a failure', $$(idem_claim('replay', 'failed')).verdict$$, 'replay'),
	('mismatch', $$(idem_claim('replay', 'done', '{"p": 2}')).verdict$$, 'mismatch'),
	('in progress', $$(idem_claim('replay', 'leased')).verdict$$, 'in_progress'),
	('the same lease again', $$(idem_claim('replay', 'leased', owner => 'w')).verdict$$, 'execute'),
	('unknown', $$(idem_claim('replay', 'unknown')).verdict$$, 'unknown'),
	('expired', $$(idem_claim('replay_guarded', 'expired')).verdict$$, 'expired'),
	('status', $$(idem_status('replay', 'done')).state$$, 'succeeded'),
	('status of nothing', $$(idem_status('replay', 'never')).state$$, 'absent'),
	('policy', $$idem_policy('replay')->>'guard'$$, '0'),
	('value', $$idem_value(idem_claim('replay', 'done', '{"p": 1}'))->>'r'$$, '1');
-- set_config keeps the answers: pgTAP itself writes
SELECT format('SELECT set_config(''test.q%s'', concat_ws(''|'', %s, pg_current_xact_id_if_assigned() IS NULL), false)', n, query) FROM question ORDER BY n \gexec
SELECT is(current_setting('test.q' || n), verdict || '|t', what || ': no transaction id') FROM question ORDER BY n;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT format('SELECT set_config(''test.q%s'', concat_ws(''|'', %s, pg_current_xact_id_if_assigned() IS NULL), false)', n, query) FROM question ORDER BY n \gexec
COMMIT;
SELECT is(current_setting('test.q' || n), verdict || '|t', what || ': no transaction id at SERIALIZABLE') FROM question ORDER BY n;

-- C47: a thousand replays: no dead rows, no WAL of ours
SELECT count(*) FROM (SELECT (idem_claim('replay', 'done', '{"p": 1}')).verdict FROM generate_series(1, 1000)) x WHERE verdict = 'replay';
SELECT is(pg_temp.versions(), :'before'::text, 'C47: not a row has changed');
CREATE FUNCTION pg_temp.wal_of(query text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, WAL, COSTS off, TIMING off, SUMMARY off, FORMAT json) ' || query INTO plan;
	RETURN coalesce((plan->0->'Plan'->>'WAL Records')::int, 0);
END $$;
SELECT is(pg_temp.wal_of($$SELECT idem_claim('replay', 'done', '{"p": 1}') FROM generate_series(1, 1000)$$), 0, 'C47: no WAL');
SELECT cmp_ok(pg_temp.wal_of($$SELECT idem_complete(c) FROM idem_claim('replay', 'writes') c$$), '>', 0, 'which a completion does write');

-- Invariant 4: the outcome, unchanged, whatever it is
SELECT is(idem_complete(c, r.result), r.result, 'completed with ' || left(r.result::text, 40)) FROM
	unnest(ARRAY['{"b": [1, 2.50, 1e300, -0.0], "a": {"c": null, "é": "\u00e9 \" \\ \n 😀"}}', '[]', '{}', '""', '0', '1e-300', 'true', 'null', '"x"']::jsonb[]) WITH ORDINALITY r (result, n), idem_claim('replay', 'result ' || n) c;
SELECT is((idem_claim('replay', 'result ' || n))::text, (idem_claim('replay', 'result ' || n))::text, 'the same every time') FROM generate_series(1, 9) n;
SELECT is((idem_claim('replay', 'result 1')).result::text, '{"a": {"c": null, "é": "é \" \\ \n 😀"}, "b": [1, 2.50, 1' || repeat('0', 300) || ', 0.0]}', 'to the digit');

SELECT * FROM finish();
