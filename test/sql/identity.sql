-- Ids, downstream keys and new keys: contract §7, cases C20 to C23.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set start :abs_srcdir '/lib/start.sql'
\i :start

CREATE TEMP TABLE vector (kind text, arguments jsonb, result uuid, why text);
\set vectors `cat "$PG_ABS_SRCDIR/data/identity-vectors.tsv"`
INSERT INTO vector
SELECT p[1], p[2]::jsonb, p[3]::uuid, p[4]
  FROM regexp_split_to_table(:'vectors', E'\n') line, regexp_split_to_array(line, E'\t') p
 WHERE line NOT LIKE '#%';

CREATE TEMP TABLE framing (id text, a jsonb, b jsonb);
\set pairs `cat "$PG_ABS_SRCDIR/data/jcs/key-framing-pairs.jsonl"`
INSERT INTO framing
SELECT p->>'id', p->'a', p->'b'
  FROM regexp_split_to_table(:'pairs', E'\n') line, CAST(line AS jsonb) p
 WHERE line <> '' AND NOT (p->'a') @> '[""]';

SELECT plan(66);

-- Vectors, shared with docs/identity.md and test/identity_vectors.py
SELECT is(idem_id(arguments->>1, arguments->>2, arguments->>0), result, why)
  FROM vector WHERE kind = 'id';
SELECT is(idem_downstream_key((arguments->>0)::uuid, arguments->>1), result, why)
  FROM vector WHERE kind = 'step';
SELECT is(count(*)::int, 22, 'all vectors were read') FROM vector;

-- No two triples share an id
SELECT isnt(idem_id(a->>1, a->>2, a->>0), idem_id(b->>1, b->>2, b->>0), 'framing ' || id)
  FROM framing;
SELECT is(count(DISTINCT idem_id('o', key, 'p'))::int, 5, 'C23: a-b, ab, a b, Ab, AB are five keys')
  FROM unnest('{a-b,ab,a b,Ab,AB}'::text[]) key;
SELECT isnt(idem_id('op', 'k', 'u1'), idem_id('op', 'k', 'u2'), 'C20: principals do not meet');
SELECT isnt(idem_id('op', 'k', 'u1'), idem_id('po', 'k', 'u1'), 'C21: operations do not meet');
SELECT is(idem_id('op', '   ', 'u1'), idem_id('op', '   ', 'u1'), 'C05: blanks are a key');
SELECT isnt(idem_id('op', '   ', 'u1'), idem_id('op', '  ', 'u1'), 'C05: blanks are not trimmed');

-- C22: 1 to 255 bytes of UTF-8
SELECT isnt(idem_id('o', repeat('k', 255), 'p'), NULL, 'key of 255 bytes');
SELECT isnt(idem_id('o', repeat('é', 127) || 'k', 'p'), NULL, 'key of 255 bytes, 128 characters');
SELECT isnt(idem_id(repeat('o', 255), 'k', 'p'), NULL, 'operation of 255 bytes');
SELECT isnt(idem_id('o', 'k', repeat('p', 255)), NULL, 'principal of 255 bytes');
SELECT throws_ok(format('SELECT idem_id(%L, %L, %L)', o, k, p), '22023', message, what)
  FROM (VALUES
	('o', repeat('k', 256), 'p', 'key for operation "o" is too long', 'key of 256 bytes'),
	('o', repeat('é', 128), 'p', 'key for operation "o" is too long', 'key of 256 bytes, 128 characters'),
	('o', repeat('k', 1048576), 'p', 'key for operation "o" is too long', 'key of 1 MB'),
	('o', '', 'p', 'key for operation "o" is empty', 'empty key'),
	(repeat('o', 256), 'k', 'p', 'operation is too long', 'operation of 256 bytes'),
	('', 'k', 'p', 'operation is empty', 'empty operation'),
	('o', 'k', repeat('p', 256), 'principal for operation "o" is too long', 'principal of 256 bytes'))
	bad (o, k, p, message, what);
SELECT throws_ok('SELECT idem_id(''o'', NULL, ''p'')', '22023', NULL, 'key NULL');
SELECT throws_ok('SELECT idem_id(NULL, ''k'', ''p'')', '22023', NULL, 'operation NULL');
SELECT throws_ok('SELECT idem_id(''o'', ''k'', '''')', '22023', NULL, 'principal empty');

-- The principal of the session
RESET idempotency.principal;
SELECT throws_ok('SELECT idem_id(''o'', ''k'')', '22023', NULL, 'no principal anywhere');
SET idempotency.principal = 'acme';
SELECT is(idem_id('create_order', 'k1'), '61362f49-1d33-8116-af4a-a257885ad4be', 'principal of the session');
RESET idempotency.principal;

-- Time-led ids sort above the others
SELECT ok(bool_and(idem_id('o', gen_random_uuid()::text, 'p') < '80000000-0000-0000-0000-000000000000'),
	'ids of keys without time have the top bit clear') FROM generate_series(1, 100);
SELECT ok(bool_and(idem_id('o', idem_new_key(), 'p') > '80000000-0000-0000-0000-000000000000'),
	'ids of keys with time have it set') FROM generate_series(1, 100);

-- Downstream keys
SELECT throws_ok('SELECT idem_downstream_key(NULL, ''pay'')', '22023', NULL, 'downstream key of no id');
SELECT throws_ok('SELECT idem_downstream_key(gen_random_uuid(), NULL)', '22023', NULL, 'downstream key of no step');

-- New keys
CREATE TEMP TABLE fresh AS SELECT n, idem_new_key() AS key FROM generate_series(1, 10000) n;
SELECT is(count(*)::int, 0, 'all are UUIDv7 in lower case') FROM fresh
 WHERE key !~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$';
SELECT is(count(DISTINCT key)::int, 10000, 'no two are the same') FROM fresh;
SELECT is(count(*)::int, 0, 'they ascend within a session')
  FROM (SELECT key, lag(key) OVER (ORDER BY n) AS before FROM fresh) k
 WHERE key COLLATE "C" <= before COLLATE "C";
SELECT ok(bool_and(abs(extract(epoch FROM clock_timestamp()) * 1000
	- ('x' || lpad(translate(left(key, 13), '-', ''), 16, '0'))::bit(64)::bigint) < 60000),
	'their time is now') FROM fresh;
SELECT ok(stddev(get_byte(decode(right(key, 2), 'hex'), 0)) BETWEEN 60 AND 90, 'their end is random') FROM fresh;

-- A failed digest leaves nothing behind that the next would notice
SELECT throws_ok($$SELECT idem_id('o', repeat('k', 256), 'p') FROM idem_downstream_key(gen_random_uuid(), 'x')$$, '22023', NULL, 'an error');
SELECT is(idem_id('create_order', 'k1', 'acme'), '61362f49-1d33-8116-af4a-a257885ad4be', 'after an error');
BEGIN;
SAVEPOINT s;
SELECT idem_id('create_order', 'k1', 'acme') AS inside \gset
ROLLBACK TO s;
SELECT idem_id('create_order', 'k1', 'acme') AS between \gset
ROLLBACK;
SELECT is(:'inside'::uuid, '61362f49-1d33-8116-af4a-a257885ad4be', 'in a savepoint');
SELECT is(:'between'::uuid, '61362f49-1d33-8116-af4a-a257885ad4be', 'after its rollback');
SELECT is(idem_id('create_order', 'k1', 'acme'), '61362f49-1d33-8116-af4a-a257885ad4be', 'after the transaction''s rollback');

SELECT finish();
