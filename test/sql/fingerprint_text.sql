-- The fingerprint of raw JSON text: contract §5 and §7, cases C30, C34, C35, C36, and
-- the pairs of texts that are the same, differ, or are refused.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set start :abs_srcdir '/lib/start.sql'
\i :start

SELECT idem_define('text_double', '{"numbers": "double"}') \g /dev/null
SELECT idem_define('text_settings', '{"defaults": {"d": [2, 1]}, "ignore": ["/x"], "unordered": ["/d"]}') \g /dev/null

CREATE FUNCTION pg_temp.raw(params text, operation text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN encode(idem_fingerprint_text(params, operation), 'hex');
EXCEPTION WHEN SQLSTATE '22032' THEN
	RETURN 'refuse';
END $$;
-- The position that a refusal gives; all that it says must be ours
CREATE FUNCTION pg_temp.refused_at(params text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail text;
	context text;
BEGIN
	PERFORM idem_fingerprint_text(params);
	RETURN NULL;
EXCEPTION WHEN SQLSTATE '22032' THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, context = PG_EXCEPTION_CONTEXT;
	IF message || detail || context LIKE '%secret%' THEN
		RETURN -1;
	END IF;
	RETURN substring(detail FROM ' (?:is|ends) at byte (\d+) of the text\.$')::int;
END $$;

SELECT plan(113);

-- Pairs
CREATE TEMP TABLE pair (id text, a text, b text, exact text, jcs text, why text);
\set pairs `cat "$PG_ABS_SRCDIR/data/jcs/fingerprint-pairs.jsonl"`
INSERT INTO pair SELECT p->>'id', p->>'a', p->>'b', p->>'exact', p->>'jcs', p->>'why'
  FROM regexp_split_to_table(:'pairs', E'\n') line, CAST(line AS json) p WHERE line <> '';
SELECT is(CASE WHEN pg_temp.raw(a) = 'refuse' THEN 'refuse' WHEN pg_temp.raw(a) = pg_temp.raw(b) THEN 'same' ELSE 'different' END,
	exact, id || ', exact: ' || why) FROM pair ORDER BY id;
SELECT is_empty($$SELECT id, why FROM pair WHERE jcs <> CASE WHEN pg_temp.raw(a, 'text_double') = 'refuse' THEN 'refuse'
	WHEN pg_temp.raw(a, 'text_double') = pg_temp.raw(b, 'text_double') THEN 'same' ELSE 'different' END$$, 'pairs, numbers double');

-- Strictness, with the position of the wrong byte
SELECT is(pg_temp.refused_at(t), at, 'refused at ' || at || ': ' || left(t, 40)) FROM (VALUES
	('', 1), (' ', 2), ('{"secret', 2), ('{"secret"', 10), ('{"secret":', 11), ('{"secret":1', 12), ('{"secret":1,', 13), ('["secret"', 10),
	('{"secret":1,}', 13), ('[1,,2]', 4), ('[,1]', 2), ('[1 2]', 4), ('{1:2}', 2), ('{"a" 1}', 6), ('secret', 1), ('[tru]', 2), ('[1}', 3),
	('01', 1), ('-', 1), ('-a', 1), ('.5', 1), ('1.e5', 1), ('1e', 1), ('1e+', 1), ('0x10', 1), ('1_000', 1), ('Infinity', 1),
	(E'"\t"', 1), (E'"a\u007f"', NULL), ('"\u12g4"', 1), ('"\u123"', 1), ('"\u', 1), ('"\', 1), ('"\"', 1), ('"\ud800"', 1),
	('"\ud800\u0041"', 1), ('["ab\udc00\ud800"]', 2), ('"\ud83d\ud83d\ude00"', 1), (U&'\FEFF1', 1), (U&'[\00A0 1]', 2), (E'\x0b1', 1),
	(U&'\2028 1', 1), ('{"é":1,"\u00e9":2}', 19), ('{"b":{"a":1,"c":2,"\u0061":3}}', 29), ('[1e131072]', 9), ('[1e-16384]', 9),
	('[-1e99999999999999999999]', 24), ('["é",1e-99999999999999999999]', 29))
	v (t, at);
SELECT is(pg_temp.raw('"\x"'), 'refuse', 'refused: an escape that is none');
SELECT throws_ok($$SELECT idem_fingerprint_text('{"a":1,"a":"secret"}', 'text_double')$$, '22032',
	'params of operation "text_double" cannot be canonicalised', 'the operation is named');
SELECT throws_ok($$SELECT idem_fingerprint_text('[1e400]', 'text_double')$$, '22032',
	'params of operation "text_double" cannot be canonicalised', 'a number beyond double');

-- It agrees with jsonb
SELECT is_empty($$SELECT t FROM unnest(ARRAY['null', ' true ', 'false', '0', '-0', '-0.00', '1.50', '1E+2', '12345678901234567890.123456789',
	'1e131071', '1e-16383', '0e99', '[]', '{}', '[ ]', '{ }', '[[],{}]', '""', '"\b\f\n\r\t\/\\\"\u001f\u20ac\ud83d\ude00"', '"é"',
	'{"b":1,"aa":[2,{"z":null,"y":"x"}],"":0}', '{"\ufb33":1,"\ud83d\ude02":2}', '[0.00010,10001.0001,99999999,-0.0001e-20]']) t,
	unnest(ARRAY[NULL, 'text_settings']) o WHERE idem_fingerprint_text(t, o) <> idem_fingerprint(t::jsonb, o)$$, 'agrees with jsonb');
SELECT is_empty($$SELECT n FROM generate_series(-70, 70) n, unnest(ARRAY['1', '-12345', '99999999', '1.2345', '0.00012']) d
	WHERE idem_fingerprint_text(d || 'e' || n) <> idem_fingerprint((d || 'e' || n)::jsonb)$$, 'at every place of the point');
SELECT is_empty($$SELECT n FROM generate_series(0, 40) n,
	LATERAL (SELECT jsonb_object_agg(repeat(chr(97 + m % 26), m % 19) || m, repeat('é', m)) FROM generate_series(0, n) m) d (j)
	WHERE idem_fingerprint_text(j::text) <> idem_fingerprint(j)$$, 'with every number of members');
SELECT is(idem_fingerprint_text(jsonb_object_agg(n::text, n)::text), idem_fingerprint(jsonb_object_agg(n::text, n)),
	'C30: 200 000 members') FROM generate_series(200000, 1, -1) n;
SELECT is(idem_fingerprint_text('["' || repeat('x', 300000) || '",' || repeat('7', 100000) || ']'),
	idem_fingerprint(('["' || repeat('x', 300000) || '",' || repeat('7', 100000) || ']')::jsonb), 'a long string and a long number');
SELECT is(idem_fingerprint_text('{"x":1,"b":2}', 'text_settings'), sha256('{"b":2,"d":[1,2]}'), 'the settings of the operation apply');
SELECT is(idem_fingerprint_text(NULL), NULL, 'NULL');

-- What jsonb cannot hold
SELECT is(pg_temp.refused_at(t), at, 'refused as jsonb does: ' || left(t, 40)) FROM (VALUES
	('"a\u0000b"', 1), ('{"a":1,"\u0000":1}', 8), ('[1.' || repeat('0', 20000) || ']', 20003), ('0e99999999999999999999', 22))
	v (t, at);
SELECT is(idem_fingerprint_text('0.' || repeat('0', 20000) || '1e20001'), sha256('1'), 'taken as jsonb does: an exponent that makes up for zeros');

-- C35, C36
SELECT throws_ok($$SELECT idem_fingerprint_text(repeat('[', 1000000) || repeat(']', 1000000))$$, '54001', NULL, 'C35: a million arrays');
SELECT throws_ok($$SELECT idem_fingerprint_text(repeat('{"a":', 1000000) || '1' || repeat('}', 1000000))$$, '54001', NULL, 'C35: a million objects');
SET max_stack_depth = '100kB';
SELECT throws_ok($$SELECT idem_fingerprint_text(repeat('[', 1000000) || repeat(']', 1000000))$$, '54001', NULL, 'C35: with 100 kB of stack');
SELECT throws_ok($$SELECT idem_fingerprint_text(repeat('[', 1000000))$$, '54001', NULL, 'C35: not even closed');
RESET max_stack_depth;
SELECT is(idem_fingerprint_text(repeat('[', 2000) || repeat(']', 2000)), sha256(convert_to(repeat('[', 2000) || repeat(']', 2000), 'UTF8')), 'nesting of 2000');
SELECT is(idem_fingerprint_text('[' || rtrim(repeat('1e9999,', 10000), ',') || ']'),
	sha256(convert_to('[' || rtrim(repeat('1e+9999,', 10000), ',') || ']', 'UTF8')), 'C36: 10 000 times 1e9999');

SELECT finish();
