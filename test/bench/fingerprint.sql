-- Microseconds of idem_fingerprint(j) and of sha256(convert_to(j::text, 'UTF8')) for the same
-- params, one after the other, round by round, without what the loop itself takes.
\set QUIET 1
\pset format unaligned
\pset tuples_only on
\pset fieldsep ' '

-- An order with so many lines; each is about 135 bytes of text
CREATE FUNCTION pg_temp.params(lines int) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_object('customer', 'c-10017', 'currency', 'EUR', 'amount', 1299.95, 'express', true) ||
		CASE WHEN lines = 0 THEN '{"address": {"street": "Main Street 12", "city": "Springfield", "zip": "12345"}, "note": null, "channel": "web", "coupon": "SPRING", "items": [1, 2]}'::jsonb
		ELSE jsonb_build_object('items', (SELECT jsonb_agg(jsonb_build_object('sku', 'sku-' || n, 'name', 'Article number ' || n, 'quantity', n % 7,
			'price', n * 1.25, 'tags', jsonb_build_array('a', 'bb', n), 'gift', n % 2 = 0)) FROM generate_series(1, lines) n)) END
$$;

-- Nanoseconds of one evaluation of an expression over $1
CREATE FUNCTION pg_temp.cost(expression text, params jsonb, calls int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz;
	n bigint;
BEGIN
	started := clock_timestamp();
	EXECUTE format('SELECT count(%s) FROM generate_series(1, $2)', expression) INTO n USING params, calls;
	RETURN extract(epoch FROM clock_timestamp() - started) * 1e9 / calls;
END $$;

CREATE TEMP TABLE cost AS
SELECT n, size.name, round,
	pg_temp.cost('idem_fingerprint(CASE WHEN generate_series > 0 THEN $1 END)', pg_temp.params(lines), calls) AS ours,
	pg_temp.cost('sha256(convert_to((CASE WHEN generate_series > 0 THEN $1 END)::text, ''UTF8''))', pg_temp.params(lines), calls) AS theirs,
	pg_temp.cost('CASE WHEN generate_series > 0 THEN $1 END', pg_temp.params(lines), calls) AS nothing
  FROM (VALUES (1, 200, 0, 20000), (2, 20000, 140, 400), (3, 1000000, 7000, 8)) size (n, name, lines, calls),
	generate_series(1, :rounds) round
 ORDER BY round, n;

SELECT name, form, ns / 1000 FROM cost, LATERAL (VALUES ('sha256', theirs - nothing), ('ours', ours - nothing)) f (form, ns)
 ORDER BY round, n, form DESC;

-- Of 100 000 small arrays: arrays whose order means nothing, beside arrays whose order does;
-- and an object with 200 000 members that come in the worst order
SELECT idem_define('unordered', '{"unordered": ["/*/tags"]}'), idem_define('ordered', '{"ignore": ["/*/none"]}') \g /dev/null
CREATE TEMP TABLE tagged AS SELECT jsonb_agg(jsonb_build_object('id', n, 'tags', '[3, 1, 2]'::jsonb)) AS j FROM generate_series(1, 100000) n;
CREATE TEMP TABLE reversed AS SELECT jsonb_object_agg(n::text, n) AS j FROM generate_series(200000, 1, -1) n;
SELECT 'arrays', 'ordered', pg_temp.cost('idem_fingerprint(CASE WHEN generate_series > 0 THEN $1 END, ''ordered'')', j, 5) / 1000 FROM tagged;
SELECT 'arrays', 'unordered', pg_temp.cost('idem_fingerprint(CASE WHEN generate_series > 0 THEN $1 END, ''unordered'')', j, 5) / 1000 FROM tagged;
SELECT 'arrays', 'reversed_members', pg_temp.cost('idem_fingerprint(CASE WHEN generate_series > 0 THEN $1 END)', j, 10) / 1000 FROM reversed;
