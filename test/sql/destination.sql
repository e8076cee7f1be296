-- Settings of destinations: idem_destination_define, idem_destination_policy.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- The defaults, as the contract has them
SELECT is(idem_destination_policy('undefined'), '{
	"base": "1 s", "cap": "5 min", "max_attempts": 50, "deadline": "24 h", "retry_budget": 0.2, "breaker_failures": 0.5,
	"breaker_window": "30 s", "breaker_cooldown": "30 s", "max_in_flight": null, "retention": "7 days",
	"skip_dead_head": true, "max_event_bytes": 1048576, "relay": "take", "role": null}'::jsonb, 'defaults');

-- Good and bad values of each
CREATE TEMP TABLE good (setting text, value jsonb);
INSERT INTO good VALUES
	('base', '"0"'), ('base', '"1 us"'), ('base', '"1 h"'), ('cap', '"0"'), ('cap', '"366000 days"'),
	('max_attempts', '1'), ('max_attempts', '2147483647'), ('max_attempts', 'null'),
	('deadline', '"1 us"'), ('deadline', '"7 days"'), ('deadline', 'null'),
	('retry_budget', '0'), ('retry_budget', '0.1'), ('retry_budget', '1'), ('retry_budget', '1.0'), ('retry_budget', 'null'),
	('breaker_failures', '0.000001'), ('breaker_failures', '0.5'), ('breaker_failures', '1'), ('breaker_failures', 'null'),
	('breaker_window', '"1 us"'), ('breaker_window', '"10 min"'), ('breaker_cooldown', '"1 us"'), ('breaker_cooldown', '"1 min"'),
	('max_in_flight', '0'), ('max_in_flight', '100'), ('max_in_flight', 'null'),
	('max_event_bytes', '1'), ('max_event_bytes', '1048576'), ('relay', '"log"'), ('relay', '"take"'),
	('role', '"regress_idem_no_such"'), ('role', 'null'),
	('retention', '"0"'), ('retention', '"30 days"'), ('retention', 'null'),
	('skip_dead_head', 'false'), ('skip_dead_head', 'true');
CREATE TEMP TABLE bad (setting text, value jsonb);
INSERT INTO bad
SELECT setting, value FROM unnest('{base,cap,deadline,breaker_window,breaker_cooldown,retention}'::text[]) setting,
	jsonb_array_elements('["-1 s", "1 mon", "1 year", "soon", "", 1, true, {}, [], "1000000 days", "infinity", "24", "1.5", " 90 ", "1 day 2", "1 12:00", "-5"]') value UNION ALL
SELECT setting, 'null' FROM unnest('{base,cap,breaker_window,breaker_cooldown,skip_dead_head,max_event_bytes,relay}'::text[]) setting UNION ALL
SELECT 'max_event_bytes', value FROM jsonb_array_elements('[0, -1, 1.5, 2147483648, "1", true]') value UNION ALL
SELECT 'relay', value FROM jsonb_array_elements('["both", "", 1, true, []]') value UNION ALL
SELECT 'role', value FROM jsonb_array_elements(jsonb_build_array('', 1, true, repeat('r', 64))) value UNION ALL
SELECT setting, '"0"' FROM unnest('{deadline,breaker_window,breaker_cooldown}'::text[]) setting UNION ALL
SELECT 'max_attempts', value FROM jsonb_array_elements('[0, -1, 1.5, 2147483648, 1e300, "1", true, [], {}]') value UNION ALL
SELECT 'max_in_flight', value FROM jsonb_array_elements('[-1, 1.5, 2147483648, "1", true]') value UNION ALL
SELECT 'retry_budget', value FROM jsonb_array_elements('[-0.1, 1.1, 1e300, -1e300, "0.1", "10 %", true, [], {}]') value UNION ALL
SELECT 'breaker_failures', value FROM jsonb_array_elements('[0, -0.1, 1.000001, 2, "0.5", false, [], {}]') value UNION ALL
SELECT 'skip_dead_head', value FROM jsonb_array_elements('["true", 1, [], {}]') value;
SELECT lives_ok(format('SELECT idem_destination_define(%L, %L)', 'set_' || setting, jsonb_build_object(setting, value)), format('%s %s', setting, value)) FROM good;
SELECT is(idem_destination_policy('set_' || setting)->setting, (array_agg(value ORDER BY good.ctid DESC))[1], setting || ' is shown as given') FROM good GROUP BY setting ORDER BY setting;
SELECT throws_ok(format('SELECT idem_destination_define(%L, %L)', 'set_' || setting, jsonb_build_object(setting, value)), '22023', NULL, format('%s %s', setting, value)) FROM bad;
SELECT is((SELECT array_agg(DISTINCT setting ORDER BY setting) FROM good), array_agg(setting ORDER BY setting), 'each setting was tried') FROM jsonb_object_keys(idem_destination_policy('undefined')) setting;
SELECT is((SELECT array_agg(DISTINCT setting ORDER BY setting) FROM bad), array_agg(setting ORDER BY setting), 'with bad values too') FROM jsonb_object_keys(idem_destination_policy('undefined')) setting;

-- A refused value leaves everything as it was, also the good ones beside it
SELECT throws_ok($$SELECT idem_destination_define('set_base', '{"cap": "1 s", "base": "1 mon"}')$$, '22023', NULL, 'one bad value');
SELECT is(idem_destination_policy('set_base'), idem_destination_policy('undefined') || '{"base": "1 h"}', 'nothing of it is stored');
SELECT * FROM pg_temp.raised($$SELECT idem_destination_define('mail', '{"retry": 1}')$$);
SELECT * FROM pg_temp.raised($$SELECT idem_destination_define('mail', '{"retry_budget": 2}')$$);
SELECT * FROM pg_temp.raised($$SELECT idem_destination_define('mail', '{"cap": "2 mons"}')$$);
SELECT * FROM pg_temp.raised($$SELECT idem_destination_define('mail', '[]')$$);

-- Bad arguments
SELECT throws_ok('SELECT idem_destination_define(' || arguments || ')', '22023', NULL, arguments)
  FROM unnest(ARRAY[$$NULL, '{}'$$, $$'d', NULL$$, $$'', '{}'$$, $$repeat('d', 256), '{}'$$, $$'d', '1'$$, $$'d', '[]'$$, $$'d', '"base"'$$, $$'d', '{"Base": "1 s"}'$$, $$'d', '{"": 1}'$$]) arguments;
SELECT throws_ok('SELECT idem_destination_policy(' || argument || ')', '22023', NULL, argument) FROM unnest(ARRAY['NULL', $$''$$, $$repeat('d', 256)$$]) argument;
SELECT is(idem_destination_policy(repeat('d', 255)), idem_destination_policy('undefined'), 'the longest name');

-- Absent = unchanged; null = none; * changes the defaults of those that say nothing
SELECT idem_destination_define('mail', '{"max_attempts": 5}'), idem_destination_define('mail', '{"deadline": null}'), idem_destination_define('mail', '{}');
SELECT is(idem_destination_policy('mail'), idem_destination_policy('undefined') || '{"max_attempts": 5, "deadline": null}', 'settings add up');
SELECT idem_destination_define('*', '{"max_attempts": 7, "cap": "1 h"}');
SELECT is(idem_destination_policy('mail')->'max_attempts', '5', 'its own counts'), is(idem_destination_policy('mail')->'cap', '"1 h"', 'else the default of all'),
	is(idem_destination_policy('other')->'max_attempts', '7', 'also where nothing is defined');

-- What is rolled back was never in force after it; operations have nothing to do with it
BEGIN;
SELECT idem_destination_define('mail', '{"max_attempts": 6}');
SELECT is(idem_destination_policy('mail')->'max_attempts', '6', 'at once in the session that defines');
ROLLBACK;
SELECT is(idem_destination_policy('mail')->'max_attempts', '5', 'and gone with the transaction');
BEGIN READ ONLY;
SELECT is(idem_destination_policy('mail')->'max_attempts', '5', 'asked in a read-only transaction');
SELECT throws_ok($$SELECT idem_destination_define('mail', '{}')$$, '25006', NULL, 'but not changed');
ROLLBACK;
SELECT is(idem_policy('mail'), idem_policy('undefined'), 'an operation of that name is not touched');

-- More names than are remembered
SELECT is(count(DISTINCT idem_destination_policy('many ' || n))::int, 1, 'names without number') FROM generate_series(1, 600) n;

-- The table is not open to anybody, and edited by hand it is refused
SELECT is(relacl, NULL, 'no rights on the table') FROM pg_class WHERE oid = 'idempotency_internal.destination'::regclass;
BEGIN;
UPDATE idempotency_internal.destination SET settings = '[]' WHERE destination = 'mail';
SELECT idem_destination_define('another', '{}');
SELECT throws_ok($$SELECT idem_destination_policy('mail')$$, 'XX001', NULL, 'a row that is not of its form');
ROLLBACK;
SELECT idem_destination_define('*', '{"max_attempts": 50, "cap": "5 min"}');
SELECT * FROM finish();
