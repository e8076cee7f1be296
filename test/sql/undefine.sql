-- Settings given and taken away again: idem_undefine, idem_destination_undefine; intervals without a unit.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
SELECT idem_policy('undefined') AS policy, idem_destination_policy('undefined') AS destination \gset built_in_

-- Those that are named follow * again, and * the built-in ones
SELECT idem_define('o', '{"retention": "7 days", "guard": "1 day", "wait": "1 s"}'), idem_destination_define('d', '{"cap": "1 h", "deadline": null, "max_attempts": 3}') \g /dev/null
SELECT idem_define('*', '{"guard": "2 days", "max_attempts": 9}'), idem_destination_define('*', '{"deadline": "2 h", "base": "2 s"}') \g /dev/null
SELECT idem_undefine('o', '{guard,max_attempts}'), idem_destination_undefine('d', '{deadline,base}') \g /dev/null
SELECT is(idem_policy('o'), :'built_in_policy'::jsonb || '{"retention": "7 days", "guard": "2 days", "wait": "1 s", "max_attempts": 9}', 'W11: those named follow *'),
	is(idem_destination_policy('d'), :'built_in_destination'::jsonb || '{"cap": "1 h", "deadline": "2 h", "max_attempts": 3, "base": "2 s"}', 'W11: those of a destination');
SELECT idem_undefine('o'), idem_destination_undefine('d') \g /dev/null
SELECT is(idem_policy('o'), idem_policy('undefined'), 'W11: all follow *'), is(idem_destination_policy('d'), idem_destination_policy('undefined'), 'W11: all of a destination');
SELECT idem_undefine('*', '{guard}'), idem_destination_undefine('*', '{base}') \g /dev/null
SELECT is(idem_policy('o'), :'built_in_policy'::jsonb || '{"max_attempts": 9}', 'W11: * follows the built-in'), is(idem_destination_policy('d'), :'built_in_destination'::jsonb || '{"deadline": "2 h"}', 'W11: * of destinations');
SELECT idem_undefine('*'), idem_destination_undefine('*') \g /dev/null
SELECT is(idem_policy('o'), :'built_in_policy'::jsonb, 'W11: all of *'), is(idem_destination_policy('d'), :'built_in_destination'::jsonb, 'W11: all of * of destinations');
SELECT idem_undefine('never defined'), idem_undefine('o', '{}'), idem_destination_undefine('never defined'), idem_destination_undefine('d', '{}') \g /dev/null
SELECT is(:'ERROR'::boolean, false, 'W11: nothing to undefine is no error');
SELECT is(count(*), 0::bigint, 'W11: and defines nothing') FROM idempotency_internal.policy WHERE operation = 'never defined';

-- The past stays the past: a key is late by the shortest horizon since its time
SELECT idem_define('late', '{"key_format": "uuidv7", "retention": "1 s", "guard": "0"}'), idem_undefine('late', '{retention,guard}') \g /dev/null
SELECT is(horizons->-1->>'length', '1000000', 'W11: horizons that ended are kept') FROM idempotency_internal.policy WHERE operation = 'late';

-- What is written into the tables by hand, or by logical replication, is seen after a change of nothing
SELECT idem_define('o', '{"wait": "1 s"}'), idem_destination_define('d', '{"cap": "1 h"}') \g /dev/null
SELECT is(idem_policy('o')->>'wait', '1 s', 'N05: cached'), is(idem_destination_policy('d')->>'cap', '1 h', 'N05: cached');
UPDATE idempotency_internal.policy SET settings = '{"wait": "2 s"}' WHERE operation = 'o';
UPDATE idempotency_internal.destination SET settings = '{"cap": "2 h"}' WHERE destination = 'd';
SELECT count(*) FROM idempotency_internal.policy \gset before_
SELECT idem_undefine('*', '{}'), idem_destination_undefine('*', '{}') \g /dev/null
SELECT is(idem_policy('o')->>'wait', '2 s', 'N05: read again'), is(idem_destination_policy('d')->>'cap', '2 h', 'N05: read again');
SELECT is(count(*), :before_count::bigint, 'N05: and nothing defined') FROM idempotency_internal.policy;
SELECT idem_undefine('o'), idem_destination_undefine('d') \g /dev/null

-- Rolled back, refused
BEGIN;
SELECT idem_define('o', '{"wait": "1 s"}') \g /dev/null
SAVEPOINT s;
SELECT idem_undefine('o') \g /dev/null
SELECT is(idem_policy('o')->>'wait', '0', 'W11: undefined at once in the session that does it');
ROLLBACK TO SAVEPOINT s;
SELECT is(idem_policy('o')->>'wait', '1 s', 'W11: and defined again after a rollback');
ROLLBACK;
SELECT throws_ok('SELECT idem_' || prefix || 'undefine(' || arguments || ')', '22023', NULL, 'W11: ' || prefix || 'undefine ' || arguments)
  FROM unnest('{"",destination_}'::text[]) prefix, unnest(ARRAY['NULL', $$''$$, $$repeat('o', 256)$$, $$'o', '{no_such}'$$, $$'o', '{Role}'$$, $$'o', '{""}'$$, $$'o', '{role,NULL}'$$, $$'o', '{{role,role}}'$$]) arguments;
BEGIN READ ONLY;
SELECT throws_ok($$SELECT idem_undefine('o')$$, '25006', NULL, 'W11: read-only'), throws_ok($$SELECT idem_destination_undefine('d')$$, '25006', NULL, 'W11: read-only');
ROLLBACK;
SELECT * FROM pg_temp.raised($$SELECT idem_undefine('o', '{no_such}')$$);
SELECT * FROM pg_temp.raised($$SELECT idem_destination_undefine('d', '{NULL}')$$);
SELECT * FROM pg_temp.raised($$SELECT idem_undefine('o', '{{guard},{wait}}')$$);

-- A change reads the rows that are named, and only one of * reads all
CREATE FUNCTION pg_temp.rows_read() RETURNS bigint LANGUAGE sql VOLATILE AS $$
	SELECT sum(pg_stat_get_xact_tuples_returned(t) + pg_stat_get_xact_tuples_fetched(t))::bigint
	  FROM unnest('{idempotency_internal.policy,idempotency_internal.destination,idempotency_internal.normalisation}'::regclass[]) t
$$;
BEGIN;
SELECT idem_define('many ' || n, jsonb_build_object('wait', n || ' s', 'ignore', jsonb_build_array('/a' || n))), idem_destination_define('many ' || n, jsonb_build_object('max_attempts', n))
  FROM generate_series(1, 100) n \g /dev/null
SELECT pg_temp.rows_read() AS before \gset
SELECT idem_define('many 1', '{"retention": "2 days", "ignore": ["/x"]}'), idem_undefine('many 2', '{ignore}'), idem_destination_define('many 1', '{"cap": "1 h"}'), idem_destination_undefine('many 2') \g /dev/null
SELECT cmp_ok(pg_temp.rows_read() - :before, '<', 30::bigint, 'four changes of one name each do not read a hundred others');
SELECT pg_temp.rows_read() AS before \gset
SELECT idem_define('*', '{"retention": "3 days"}') \g /dev/null
SELECT cmp_ok(pg_temp.rows_read() - :before, '>=', 100::bigint, 'a change of * does');
SELECT is(count(*), 99::bigint, 'and ends the horizon of those that follow it') FROM idempotency_internal.policy WHERE operation LIKE 'many %' AND horizons->-1->>'length' = '86400000000' AND operation <> 'many 1';
ROLLBACK;

-- Intervals in JSON have a unit
SELECT throws_ok(format('SELECT idem_define(''o'', %L)', jsonb_build_object('retention', value)), '22023', NULL, 'W12: ' || value) FROM unnest(ARRAY['24', '1.5', ' 90 ', '1 day 2', '2 1 day', '1 12:00', '-5', '+5', '24h 3', 'P1DT2']) value;
SELECT lives_ok(format('SELECT idem_define(''o'', %L)', jsonb_build_object('retention', value)), 'W12: ' || value) FROM unnest(ARRAY['0', '00', '0.0', '24h', '24 hours', '1 day 12:00', '12:00', '12:00:00.5', 'P1DT2H', 'PT1.5S', '1.5 h', '1d2h', '@ 1 minute', '90s ', '1 h 2 min']) value;
SELECT * FROM pg_temp.raised($$SELECT idem_define('o', '{"retention": "24"}')$$);
SELECT idem_undefine('o') \g /dev/null
SELECT * FROM finish();
