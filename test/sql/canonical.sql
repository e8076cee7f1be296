-- Canonical text and fingerprint of jsonb: contract §7, cases C30, C36, and the
-- published vectors of RFC 8785.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set start :abs_srcdir '/lib/start.sql'
\i :start

SELECT idem_define('strict_json', '{"numbers": "double"}') \g /dev/null

-- The texts of the pair files as jsonb would take them; NULL if it does not
CREATE FUNCTION pg_temp.fingerprint(doc text, operation text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN encode(idem_fingerprint(doc::jsonb, operation), 'hex');
EXCEPTION WHEN SQLSTATE '22032' THEN
	RETURN 'refused';
WHEN OTHERS THEN
	RETURN NULL;
END $$;
CREATE FUNCTION pg_temp.canonical(doc text, operation text DEFAULT NULL) RETURNS text LANGUAGE sql AS
	'SELECT idem_canonical(doc::jsonb, operation)';

SELECT plan(85);

-- The six sample documents of RFC 8785
CREATE TEMP TABLE sample (name text, input text, output text, hex text);
\set samples `cd "$PG_ABS_SRCDIR/data/jcs" && for f in input/*.json; do n=$(basename "$f" .json); echo "$n $(base64 -w0 "$f") $(base64 -w0 "output/$n.json") $(tr -d '[:space:]' <"outhex/$n.txt")"; done`
INSERT INTO sample SELECT w[1], convert_from(decode(w[2], 'base64'), 'UTF8'), rtrim(convert_from(decode(w[3], 'base64'), 'UTF8'), E'\n'), w[4]
  FROM regexp_split_to_table(:'samples', E'\n') line, regexp_split_to_array(line, ' ') w WHERE line <> '';

SELECT is(pg_temp.canonical(input, 'strict_json'), output, 'RFC 8785 ' || name) FROM sample;
SELECT is(convert_to(pg_temp.canonical(input, 'strict_json'), 'UTF8'),
	decode(hex, 'hex'), 'RFC 8785 bytes of ' || name) FROM sample;
SELECT is(idem_fingerprint(input::jsonb, 'strict_json'),
	sha256(decode(hex, 'hex')), 'fingerprint is the SHA-256 of ' || name) FROM sample;
SELECT is(idem_fingerprint(input::jsonb), sha256(convert_to(pg_temp.canonical(input), 'UTF8')),
	'and of the exact form of ' || name) FROM sample;

-- Doubles: each given by its exact decimal value, computed from its bits
CREATE FUNCTION pg_temp.exact_value(hex text) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	bits bit(64) := ('x' || lpad(hex, 16, '0'))::bit(64);
	exponent int := substring(bits FROM 2 FOR 11)::int;
	value numeric := (substring(bits FROM 13 FOR 52)::bit(52)::bigint)::numeric;
BEGIN
	IF exponent > 0 THEN
		value := value + 4503599627370496;
		exponent := exponent - 1;
	END IF;
	exponent := exponent - 1074;
	WHILE exponent <> 0 LOOP
		IF exponent >= 50 THEN
			value := value * 1125899906842624;
			exponent := exponent - 50;
		ELSIF exponent > 0 THEN
			value := value * 2;
			exponent := exponent - 1;
		ELSIF exponent <= -20 THEN
			value := value * 0.00000095367431640625;
			exponent := exponent + 20;
		ELSE
			value := value * 0.5;
			exponent := exponent + 1;
		END IF;
	END LOOP;
	RETURN CASE WHEN substring(bits FROM 1 FOR 1) = B'1' THEN -value ELSE value END;
END $$;
CREATE TEMP TABLE es6 (hex text, expected text);
\set file `cat "$PG_ABS_SRCDIR/data/jcs/es6testfile1000.txt"`
INSERT INTO es6 SELECT split_part(line, ',', 1), split_part(line, ',', 2)
  FROM regexp_split_to_table(:'file', E'\n') line WHERE line <> '';
\set file `cat "$PG_ABS_SRCDIR/data/jcs/es6-edge168.tsv"`
INSERT INTO es6 SELECT split_part(line, E'\t', 1), split_part(line, E'\t', 2)
  FROM regexp_split_to_table(:'file', E'\n') line WHERE line <> '' AND line NOT LIKE '#%';
SELECT is(count(*)::int, 1168, 'all doubles were read') FROM es6;
SELECT is_empty($$SELECT * FROM (SELECT hex, expected, idem_canonical(to_jsonb(pg_temp.exact_value(hex)), 'strict_json') AS found FROM es6) e
	WHERE found <> expected$$, 'doubles from their exact value, numbers double');
SELECT is_empty($$SELECT * FROM (SELECT hex, expected, idem_canonical(expected::jsonb) AS found FROM es6) e
	WHERE found <> expected$$, 'the texts of doubles are their own exact form');
SELECT is_empty($$SELECT * FROM (SELECT hex, expected, idem_canonical(to_jsonb(expected::numeric + 0.000::numeric)) AS found FROM es6) e
	WHERE found <> expected$$, 'whatever scale they are stored with');

-- Pairs that are the same value or are not
CREATE TEMP TABLE pair (id text, a text, b text, exact text, jcs text, why text);
\set pairs `cat "$PG_ABS_SRCDIR/data/jcs/fingerprint-pairs.jsonl"`
INSERT INTO pair SELECT p->>'id', p->>'a', p->>'b', p->>'exact', p->>'jcs', p->>'why'
  FROM regexp_split_to_table(:'pairs', E'\n') line, CAST(line AS json) p WHERE line <> '';
SELECT is(count(*)::int, 43, 'all pairs were read') FROM pair;
SELECT is_empty($$SELECT id, why FROM pair
	WHERE exact <> CASE WHEN pg_temp.fingerprint(a, NULL) = pg_temp.fingerprint(b, NULL) THEN 'same' ELSE 'different' END
	  AND exact <> 'refuse' AND pg_temp.fingerprint(a, NULL) IS NOT NULL$$, 'pairs, exact');
SELECT is_empty($$SELECT id, why FROM pair
	WHERE jcs <> CASE WHEN pg_temp.fingerprint(a, 'strict_json') = pg_temp.fingerprint(b, 'strict_json') THEN 'same' ELSE 'different' END
	  AND jcs <> 'refuse' AND pg_temp.fingerprint(a, 'strict_json') IS NOT NULL$$, 'pairs, numbers double');
SELECT results_eq($$SELECT id FROM pair WHERE jcs = 'refuse' AND pg_temp.fingerprint(a, 'strict_json') = 'refused'$$,
	ARRAY['F025'], 'what only a double cannot hold is refused');

-- Numbers, exact
SELECT is(pg_temp.canonical(given), expected, 'number ' || left(given, 40)) FROM (VALUES
	('1.0', '1'), ('1e2', '100'), ('-0', '0'), ('-0.00', '0'), ('1e21', '1e+21'), ('1e20', '100000000000000000000'),
	('123456789012345678901', '123456789012345678901'), ('1234567890123456789012', '1.234567890123456789012e+21'),
	('0.000001', '0.000001'), ('0.0000001', '1e-7'), ('-0.00000012', '-1.2e-7'), ('1e131071', '1e+131071'),
	('10001', '10001'), ('100010000', '100010000'), ('0.00010001', '0.00010001'), ('-12345.6789', '-12345.6789'),
	('1e-16383', '1e-16383'), ('9007199254740993', '9007199254740993'))
	n (given, expected);
SELECT is(length(pg_temp.canonical('1' || repeat('0', 131070) || '1')), 131081, 'number of 131072 digits');

-- Strings
SELECT is(pg_temp.canonical('"\b\t\n\f\r\"\\\/\u0001\u001f\u007f\u0080\u20ac\ud83d\ude00"'),
	E'"\\b\\t\\n\\f\\r\\"\\\\/\\u0001\\u001f\x7f\u0080€😀"', 'escapes');
SELECT is_empty($$SELECT n FROM generate_series(0, 40) n, generate_series(0, 40) m,
	LATERAL (SELECT repeat('x', n) || e || repeat('y', m) FROM unnest(ARRAY['"', '\', E'\n', 'é', '', ' ']) e) s (s)
	WHERE idem_canonical(to_jsonb(s)) <> to_jsonb(s)::text$$, 'escapes at every offset');
SELECT is_empty($$SELECT n FROM generate_series(8100, 8300) n,
	LATERAL (SELECT repeat('x', n) || '"' || repeat('y', n)) s (s)
	WHERE idem_fingerprint(to_jsonb(s)) <> sha256(convert_to(to_jsonb(s)::text, 'UTF8'))$$, 'strings across the buffer''s end');
SELECT is(idem_fingerprint(to_jsonb(repeat('ab"', 3000000))),
	sha256(convert_to('"' || repeat('ab\"', 3000000) || '"', 'UTF8')), 'a string of 9 MB');

-- Members
SELECT is(pg_temp.canonical('{"b":1,"aa":2,"":{"b":[{"z":1,"y":2}],"aa":0}}'),
	'{"":{"aa":0,"b":[{"y":2,"z":1}]},"aa":2,"b":1}', 'C30: nested members');
SELECT is(pg_temp.canonical('{"\ufb33":1,"\ud83d\ude02":2,"\ue000":3,"\ud7ff":4,"a\uffff":5,"a\ud800\udc00":6}'),
	E'{"a\U00010000":6,"a\uffff":5,"\ud7ff":4,"😂":2,"\ue000":3,"\ufb33":1}', 'UTF-16 order');
SELECT is(pg_temp.canonical('{"commonprefix_b":1,"commonprefix_a":2,"commonprefix":3,"commonprefix_aa":4}'),
	'{"commonprefix":3,"commonprefix_a":2,"commonprefix_aa":4,"commonprefix_b":1}', 'long names');
SELECT is(idem_fingerprint(jsonb_object_agg(n::text, n)),
	sha256(convert_to('{' || string_agg(format('"%s":%s', n, n), ',' ORDER BY n::text COLLATE "C") || '}', 'UTF8')),
	'C30: 200 000 members') FROM generate_series(200000, 1, -1) n;
SELECT is(idem_fingerprint(jsonb_object_agg(repeat(chr(122 - n % 26), n), n)),
	sha256(convert_to('{' || string_agg(format('"%s":%s', repeat(chr(122 - n % 26), n), n), ','
		ORDER BY repeat(chr(122 - n % 26), n) COLLATE "C") || '}', 'UTF8')),
	'1000 members of 1000 lengths') FROM generate_series(1, 1000) n;

-- Scalars and emptiness
SELECT is(pg_temp.canonical(v), v, 'value ' || v)
  FROM unnest(ARRAY['null', 'true', 'false', '0', '""', '[]', '{}', '[[],{}]', '{"a":{}}']) v;
SELECT is(idem_canonical(NULL), NULL, 'canonical of NULL');
SELECT is(idem_fingerprint(NULL), NULL, 'fingerprint of NULL');
SELECT is(count(DISTINCT idem_fingerprint(v::jsonb))::int, 6, 'kinds of emptiness differ')
  FROM unnest(ARRAY['null', '""', '[]', '{}', '0', 'false']) v;

-- Refusals name the operation and show nothing of the value
SELECT throws_ok('SELECT idem_canonical(''[1,4711e400]'', ''strict_json'')', '22032',
	'params of operation "strict_json" cannot be canonicalised', 'a number beyond double');
SELECT is(pg_temp.canonical('[4711e400,1e-400]'), '[4.711e+403,1e-400]', 'which exact numbers keep');
SELECT is(pg_temp.canonical('1e-400', 'strict_json'), '0', 'what is too small for a double is zero');

SELECT throws_ok($$SELECT idem_fingerprint(jsonb_build_array(repeat('x', 20000), 1e400), 'strict_json')$$, '22032',
	NULL, 'an error in the middle of a digest');
SELECT is(idem_fingerprint('"after"'), sha256('"after"'), 'does not show in the next one');

-- Depth
SELECT is(pg_temp.canonical(repeat('[', 1000) || repeat(']', 1000)), repeat('[', 1000) || repeat(']', 1000), 'nesting');
SET max_stack_depth = '2MB';
CREATE TEMP TABLE deep AS SELECT (repeat('{"a":[', 2500) || '1' || repeat(']}', 2500))::jsonb AS j;
SELECT is(length(idem_canonical(j)), 2500 * 8 + 1, 'nesting of 5000') FROM deep;
SET max_stack_depth = '100kB';
SELECT throws_ok('SELECT idem_canonical(j) FROM deep', '54001', NULL, 'beyond the stack: 54001');
RESET max_stack_depth;
SELECT is(idem_fingerprint('{"a":1}'), sha256('{"a":1}'), 'and the session goes on');

-- A digit far behind decides between two doubles
SELECT is(idem_canonical(('9007199254740993.' || repeat('0', 800))::jsonb, 'strict_json'), '9007199254740992', 'half way: to the even one'),
	is(idem_canonical(('9007199254740993.' || repeat('0', 800) || '1')::jsonb, 'strict_json'), '9007199254740994', 'beyond it, 800 digits later');

-- C36, and a change of any leaf shows
SELECT is(length(idem_canonical(jsonb_agg('1e9999'::numeric))), 80001, 'C36: 10 000 times 1e9999')
  FROM generate_series(1, 10000);
SELECT is(count(DISTINCT idem_fingerprint(v::jsonb))::int, 7, 'every leaf counts')
  FROM unnest(ARRAY['{"a":[1,{"b":"x"}],"c":null}', '{"a":[2,{"b":"x"}],"c":null}', '{"a":[1,{"b":"y"}],"c":null}',
	'{"a":[1,{"b":"x"}],"c":false}', '{"a":[1,{"b":"x"}]}', '{"a":[{"b":"x"},1],"c":null}', '{"a":[1,{"d":"x"}],"c":null}']) v;

SELECT finish();
