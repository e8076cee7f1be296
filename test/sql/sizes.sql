-- How large a value is: the text PostgreSQL gives back; F03, F07.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- The SQLSTATE of a claim with these params under that limit; none if it is
-- granted.
CREATE FUNCTION pg_temp.claimed(params jsonb, most bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_define('size', jsonb_build_object('max_params_bytes', most));
	PERFORM idem_release(idem_claim('size', 'k', params));
	RETURN 'none';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;

-- the limit is met to the byte
SELECT is(pg_temp.claimed(value, octet_length(value::text)) || ' ' || CASE octet_length(value::text) WHEN 1 THEN '22023' ELSE
	pg_temp.claimed(value, octet_length(value::text) - 1) END, 'none 22023', 'F03: ' || left(value::text, 60))
  FROM unnest(ARRAY['{}', '[]', '[[], {}, [[]]]', '{"a": {}}', '{"a": 1, "bb": [true, false, null], "c": {"d": "e", "f": []}}',
	'""', '"x"', 'true', 'false', 'null', '"\"\\\b\f\n\r\t\u0001\u001f/\u007f"', '{"\"\u0002": "é漢😀"}',
	'0', '1', '9', '10', '99', '100', '999', '1000', '9999', '10000', '123456789', '-1', '-0', '0.0', '0.000', '1.0', '1.50', '-0.5', '0.00001',
	'1e-20', '1E+5', '100000000', '10000.0001', '1e63', '1e64', '1e255', '1e256', '1e257', '-1e260', '1e1000', '1e-1000', '123.456e-30', '1e-16383',
	'12345678901234567890.12345678901234567890', '[1, 2.5, -3, 1e10]', '9223372036854775807', '1e131071']::jsonb[]) value;
SELECT is(count(*) FILTER (WHERE pg_temp.claimed(value, octet_length(value::text)) <> 'none'
		OR octet_length(value::text) > 1 AND pg_temp.claimed(value, octet_length(value::text) - 1) <> '22023')::int, 0,
	'F03: and for 60 numbers of every size and scale')
  FROM (SELECT to_jsonb((CASE n % 2 WHEN 0 THEN '-' ELSE '' END || (n * 7919 % 100000) || 'e' || (n % 300 - 150))::numeric + 0.00::numeric) AS value FROM generate_series(1, 60) n) numbers;

-- what would be returned as 1.18 GB is not kept, however small it is stored
CREATE TABLE poison AS SELECT ('[' || repeat('1e131071,', 9000) || '1]')::jsonb AS value;
SELECT throws_ok('SELECT idem_complete(idem_claim(''size'', ''poison''), value) FROM poison', 'ID004', NULL, 'F03: as a result'),
	throws_ok('SELECT idem_fail(idem_claim(''size'', ''poison''), value) FROM poison', 'ID004', NULL, 'F03: as an error'),
	throws_ok('SELECT idem_unsure(idem_claim(''size'', ''poison'', lease => ''1 h''), value) FROM poison', 'ID004', NULL, 'F03: as a detail'),
	throws_ok('SELECT idem_claim(''size'', ''poison'', value) FROM poison', '22023', NULL, 'F03: as params');
SELECT is((idem_claim('size', 'unsure', lease => '1 h')).verdict, 'execute', 'a leased claim');
SELECT idem_unsure_key('size', 'unsure', fence) FROM idempotency_internal.record WHERE id = idem_id('size', 'unsure');
SELECT throws_ok('SELECT idem_resolve(''size'', ''unsure'', ''succeeded'', value) FROM poison', 'ID004', NULL, 'F03: as what was found out');
DROP TABLE poison;

-- owner: 1 to 255 bytes; reason: as large as an error
SELECT throws_ok(format(call, quote_nullable(owner)), '22023', NULL, format('F07: an owner of %s bytes: %s', length(owner), call))
  FROM unnest(ARRAY['', repeat('x', 256)]) owner, unnest(ARRAY['SELECT idem_claim(''size'', ''k'', lease => ''1 h'', owner => %s)',
	'SELECT idem_start(''size'', ''unsure'', ''1 h'', owner => %s)', 'SELECT idem_start_next(''size'', 1, ''1 h'', %s)']) call;
SELECT is((idem_claim('size', length(owner)::text, lease => '1 h', owner => owner)).verdict, 'execute', format('F07: one of %s', length(owner))) FROM unnest(ARRAY['x', repeat('x', 255)]) owner;
SELECT idem_define('size', '{"max_result_bytes": 100}');
SELECT throws_ok('SELECT idem_cancel(''size'', ''cancelled'', reason => repeat(''x'', 100 - 16))', 'ID004', NULL, 'F07: a reason that is too long');
SELECT is((idem_status('size', 'cancelled')).state, 'absent', 'nothing is recorded');
SELECT is(octet_length((idem_cancel('size', 'cancelled', reason => repeat('x', 100 - 17))).error::text), 100, 'F07: one that fits to the byte');

SELECT finish();
