-- Settings that say which params mean the same: contract §5 and §7, invariant 12,
-- cases C31, C32, C33, C56.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set start :abs_srcdir '/lib/start.sql'
\i :start
SET idempotency.principal = 'acme';

-- A claim that completes at once, and what a claim is answered
CREATE FUNCTION pg_temp.once(operation text, key text, params jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer idem_answer := idem_claim(operation, key, params);
BEGIN
	IF answer.verdict = 'execute' THEN
		PERFORM idem_complete(answer, '{"done": true}');
	END IF;
	RETURN answer.verdict;
END $$;
CREATE FUNCTION pg_temp.shown(settings jsonb, params jsonb) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_define('shown', '{"defaults": {}, "fields": null, "ignore": [], "unordered": [], "numbers": "exact"}'::jsonb || settings);
	RETURN idem_canonical(params, 'shown');
END $$;

SELECT plan(103);

-- defaults
SELECT is(pg_temp.shown(s::jsonb, p::jsonb), expected, 'defaults: ' || p) FROM (VALUES
	('{"defaults": {"currency": "EUR"}}', '{}', '{"currency":"EUR"}'),
	('{"defaults": {"currency": "EUR"}}', '{"currency": null}', '{"currency":null}'),
	('{"defaults": {"currency": "EUR"}}', '{"currency": "USD"}', '{"currency":"USD"}'),
	('{"defaults": {"currency": "EUR"}}', '{"b": 1, "currencyx": 2, "a": 3}', '{"a":3,"b":1,"currency":"EUR","currencyx":2}'),
	('{"defaults": {"currency": "EUR"}}', '[]', '[]'),
	('{"defaults": {"currency": "EUR"}}', 'null', 'null'),
	('{"defaults": {"currency": "EUR"}}', '"x"', '"x"'),
	('{"defaults": {"o": {"x": 1, "y": {"z": 2}}}}', '{"o": {"y": {}}}', '{"o":{"x":1,"y":{"z":2}}}'),
	('{"defaults": {"o": {"x": 1}}}', '{"o": [1]}', '{"o":[1]}'),
	('{"defaults": {"o": {"x": 1}}}', '{"o": "s"}', '{"o":"s"}'),
	('{"defaults": {"o": [1, 2]}}', '{"o": {}}', '{"o":{}}'),
	('{"defaults": {"o": {"x": 1.0}}}', '{}', '{"o":{"x":1}}'),
	('{"defaults": {"x": 1}}', '{"o": [{}]}', '{"o":[{}],"x":1}'),
	('{"defaults": {"😀": 1, "\ufb33": 2, "": 3}}', '{"é": 0, "\ufb33": 9}', E'{"":3,"é":0,"😀":1,"\ufb33":9}'))
	v (s, p, expected);
SELECT is(idem_canonical(NULL, 'shown'), NULL, 'defaults do not apply to SQL NULL');
SELECT is(idem_fingerprint(NULL, 'shown'), NULL, 'nor to its fingerprint');
SELECT is(idem_fingerprint_text(NULL, 'shown'), NULL, 'nor to that of text');

-- fields and ignore
SELECT is(pg_temp.shown(s::jsonb, p::jsonb), expected, s || ' of ' || p) FROM (VALUES
	('{"ignore": ["/a"]}', '{"a": 1, "b": {"a": 2}}', '{"b":{"a":2}}'),
	('{"ignore": ["/b/a"]}', '{"a": 1, "b": {"a": 2}}', '{"a":1,"b":{}}'),
	('{"ignore": ["/b/a"]}', '{"b": [{"a": 2}]}', '{"b":[{"a":2}]}'),
	('{"ignore": ["/b/*/a"]}', '{"b": [{"a": 2}, 3, {"c": 4}]}', '{"b":[{},3,{"c":4}]}'),
	('{"ignore": ["/b/*"]}', '{"b": [1, 2], "c": 3}', '{"b":[],"c":3}'),
	('{"ignore": ["/*"]}', '[1, 2]', '[]'),
	('{"ignore": ["/*"]}', '{"*": 1, "a": 2}', '{"a":2}'),
	('{"ignore": ["/*/*"]}', '[[1], {"*": 2}]', '[[],{}]'),
	('{"ignore": ["/a~1b", "/c~0d", "/~01"]}', '{"a/b": 1, "c~d": 2, "~1": 3, "e": 4}', '{"e":4}'),
	('{"ignore": ["/"]}', '{"": 1, "a": 2}', '{"a":2}'),
	('{"ignore": ["//x"]}', '{"": {"x": 1, "y": 2}}', '{"":{"y":2}}'),
	('{"ignore": ["/é"]}', '{"é": 1, "e": 2}', '{"e":2}'),
	('{"ignore": ["/-"]}', '{"-": 1, "a": [1]}', '{"a":[1]}'),
	('{"ignore": ["/a", "/a/b"]}', '{"a": {"b": 1, "c": 2}, "d": 3}', '{"d":3}'),
	('{"fields": ["/a"]}', '{"a": {"x": 1}, "b": 2}', '{"a":{"x":1}}'),
	('{"fields": ["/a"]}', '{"b": 2}', '{}'),
	('{"fields": ["/a/x"]}', '{"a": {"x": 1, "y": 2}, "b": 2}', '{"a":{"x":1}}'),
	('{"fields": ["/a/x", "/a"]}', '{"a": {"x": 1, "y": 2}, "b": 2}', '{"a":{"x":1,"y":2}}'),
	('{"fields": ["/a/x"]}', '{"a": {"y": 2}}', '{"a":{}}'),
	('{"fields": ["/a/x"]}', '{"a": 5, "b": 1}', '{"a":5}'),
	('{"fields": ["/a/x"]}', '{"a": [5], "b": 1}', '{"a":[5]}'),
	('{"fields": ["/a/*/x"]}', '{"a": {"y": 5}, "b": 1}', '{"a":{"y":5}}'),
	('{"fields": ["/a/*/x", "/c"]}', '{"a": [{"x": 1, "y": 2}, 3, []], "b": 1, "c": [{"z": 1}]}', '{"a":[{"x":1},3,[]],"c":[{"z":1}]}'),
	('{"fields": ["/a"]}', '[1, 2]', '[1,2]'),
	('{"fields": ["/a"]}', '7', '7'),
	('{"fields": []}', '{"a": 1}', '{}'),
	('{"fields": [""]}', '{"a": 1}', '{"a":1}'),
	('{"fields": null}', '{"a": 1}', '{"a":1}'),
	('{"fields": ["/a", "/b"], "ignore": ["/a/x", "/c"]}', '{"a": {"x": 1, "y": 2}, "b": 3, "c": 4}', '{"a":{"y":2},"b":3}'),
	('{"fields": ["/a/x"], "ignore": ["/a"]}', '{"a": {"x": 1, "y": 2}, "b": 3}', '{}'),
	('{"fields": ["/o/x"], "defaults": {"o": {"x": 1, "y": 2}}}', '{}', '{"o":{"x":1}}'),
	('{"ignore": ["/o/x"], "defaults": {"o": {"x": 1, "y": 2}}}', '{"o": {"z": 3}}', '{"o":{"y":2,"z":3}}'))
	v (s, p, expected);

-- unordered
SELECT is(pg_temp.shown(s::jsonb, p::jsonb), expected, s || ' of ' || p) FROM (VALUES
	('{"unordered": ["/a"]}', '{"a": [3, "x", 10, 1, 3], "b": [2, 1]}', '{"a":["x",1,10,3,3],"b":[2,1]}'),
	('{"unordered": ["/a"]}', '{"a": {"x": [2, 1]}}', '{"a":{"x":[2,1]}}'),
	('{"unordered": ["/a"]}', '{"a": []}', '{"a":[]}'),
	('{"unordered": [""]}', '[2, 1]', '[1,2]'),
	('{"unordered": [""]}', '"x"', '"x"'),
	('{"unordered": ["", "/*"]}', '[[3, 2], [2, 1, 9]]', '[[1,2,9],[2,3]]'),
	('{"unordered": ["/*"]}', '[[3, 2], [2, 1, 9]]', '[[2,3],[1,2,9]]'),
	('{"unordered": ["/a", "/a/*/t"]}', '{"a": [{"t": [2, 1], "n": 1}, {"t": [1], "n": 0}]}', '{"a":[{"n":0,"t":[1]},{"n":1,"t":[1,2]}]}'),
	('{"unordered": ["/a"], "ignore": ["/a/*/n"]}', '{"a": [{"t": 2, "n": 1}, {"t": 1, "n": 9}]}', '{"a":[{"t":1},{"t":2}]}'),
	('{"unordered": ["/a"], "numbers": "double"}', '{"a": [9007199254740993, 9007199254740992]}', '{"a":[9007199254740992,9007199254740992]}'),
	('{"unordered": ["/a"], "defaults": {"a": [2, 1]}}', '{}', '{"a":[1,2]}'))
	v (s, p, expected);
SELECT is(pg_temp.shown('{"unordered": ["/a"]}', jsonb_build_object('a', jsonb_agg(n % 1000))),
	'{"a":[' || string_agg((n % 1000)::text, ',' ORDER BY (n % 1000)::text COLLATE "C") || ']}', 'a multiset of 20 000')
  FROM generate_series(20000, 1, -1) n;
SELECT is(pg_temp.shown('{"unordered": ["/a"]}', jsonb_build_object('a', jsonb_build_array(repeat('b', 20000), repeat('a', 9000), repeat('b', 19999)))),
	'{"a":["' || repeat('a', 9000) || '","' || repeat('b', 19999) || '","' || repeat('b', 20000) || '"]}', 'elements longer than the buffer');

-- Settings are checked when they are defined; messages name setting and operation
SELECT throws_ok(format($$SELECT idem_define('bad', %L)$$, s), '22023',
	format('invalid value for setting "%s" of operation "bad"', substring(s FROM '"(\w+)"')), 'refused: ' || s) FROM unnest(ARRAY[
	'{"ignore": ["/items/0"]}', '{"fields": ["/items/12/x"]}', '{"unordered": ["/0"]}', '{"ignore": ["a"]}', '{"ignore": ["/~"]}',
	'{"ignore": ["/~2"]}', '{"ignore": [1]}', '{"ignore": "/a"}', '{"ignore": {"a": 1}}', '{"fields": {}}', '{"fields": [["/a"]]}',
	'{"ignore": [""]}', '{"defaults": []}', '{"defaults": null}', '{"defaults": "x"}', '{"numbers": "float"}', '{"numbers": null}']) s;
SELECT lives_ok($$SELECT idem_define('good', '{"ignore": ["/0x", "/-", "/a/*/b", "/"], "fields": [""], "unordered": [""]}')$$, 'accepted');

-- C31: volatile members
SELECT idem_define('c31', '{"ignore": ["/requestedAt", "/nonce"]}') \g /dev/null
SELECT is(pg_temp.once('c31', 'k', '{"amount": 5, "requestedAt": 1, "nonce": "a"}'), 'execute', 'C31: first');
SELECT is(pg_temp.once('c31', 'k', '{"amount": 5, "requestedAt": 2}'), 'replay', 'C31: bodies that differ only there');
SELECT is(pg_temp.once('c31', 'k', '{"amount": 6, "requestedAt": 1, "nonce": "a"}'), 'mismatch', 'C31: others differ');
SELECT idem_define('c31f', '{"fields": ["/amount", "/currency"]}') \g /dev/null
SELECT is(pg_temp.once('c31f', 'k', '{"amount": 5, "currency": "EUR", "x": 1}'), 'execute', 'C31: fields, first');
SELECT is(pg_temp.once('c31f', 'k', '{"amount": 5, "currency": "EUR"}'), 'replay', 'C31: fields, others do not count');
SELECT is(pg_temp.once('c31f', 'k', '{"amount": 5, "x": 1}'), 'mismatch', 'C31: a field absent in one call is a difference');

-- C32: defaults
SELECT idem_define('c32', '{"defaults": {"currency": "EUR"}}') \g /dev/null
SELECT is(pg_temp.once('c32', 'k', '{"amount": 5}'), 'execute', 'C32: absent');
SELECT is(pg_temp.once('c32', 'k', '{"amount": 5, "currency": "EUR"}'), 'replay', 'C32: absent = EUR');
SELECT is(pg_temp.once('c32', 'k', '{"amount": 5, "currency": null}'), 'mismatch', 'C32: null is not absent');
SELECT is(pg_temp.once('c32', 'null', NULL), 'execute', 'C32: SQL NULL');
SELECT is(pg_temp.once('c32', 'null', '{"currency": "EUR"}'), 'mismatch', 'C32: is not {}');

-- C33: multisets
SELECT idem_define('c33', '{"unordered": ["/items"]}') \g /dev/null
SELECT is(pg_temp.once('c33', 'k', '{"items": [{"sku": 1, "n": 2}, {"sku": 2}]}'), 'execute', 'C33: first');
SELECT is(pg_temp.once('c33', 'k', '{"items": [{"sku": 2}, {"n": 2.0, "sku": 1}]}'), 'replay', 'C33: another order');
SELECT is(pg_temp.once('c33', 'k', '{"items": [{"sku": 2}, {"sku": 2}, {"n": 2, "sku": 1}]}'), 'mismatch', 'C33: one item twice is not once');

-- C56: records remember the settings they were hashed under
SELECT idem_define('c56', '{"retention": "1 day"}') \g /dev/null
SELECT is(pg_temp.once('c56', 'k', '{"amount": 5, "nonce": 1}'), 'execute', 'C56: first');
SELECT idem_define('c56', '{"ignore": ["/nonce"]}') \g /dev/null
SELECT is(pg_temp.once('c56', 'k', '{"amount": 5, "nonce": 1}'), 'replay', 'C56: a retry after ignore was added');
SELECT is(pg_temp.once('c56', 'k', '{"amount": 5, "nonce": 2}'), 'mismatch', 'C56: under the old settings nonce counts');
SELECT is(pg_temp.once('c56', 'k2', '{"amount": 5, "nonce": 1}'), 'execute', 'C56: a new record');
SELECT is(pg_temp.once('c56', 'k2', '{"amount": 5, "nonce": 2}'), 'replay', 'C56: under the new ones it does not');
SELECT idem_define('c56', '{"defaults": {"currency": "EUR"}, "ignore": []}') \g /dev/null
SELECT is(pg_temp.once('c56', 'k', '{"amount": 5, "nonce": 1}'), 'replay', 'C56: and after a second change');
SELECT is(pg_temp.once('c56', 'k2', '{"amount": 5, "nonce": 3}'), 'replay', 'C56: also of the other record');

-- Depth and cancelling
SELECT idem_define('deep', '{"defaults": {"zz": 1}, "unordered": ["", "/*"], "fields": ["/a", "/*"]}') \g /dev/null
SET max_stack_depth = '2MB';
CREATE TEMP TABLE deep AS SELECT jsonb_build_object('a', (repeat('[', 5000) || repeat(']', 5000))::jsonb) AS j;
SELECT is(length(idem_canonical(j, 'deep')), 10006, 'nesting of 5000') FROM deep;
SET max_stack_depth = '100kB';
SELECT throws_ok($$SELECT idem_canonical(j, 'deep') FROM deep$$, '54001', NULL, 'beyond the stack: 54001');
RESET max_stack_depth;

SELECT finish();
