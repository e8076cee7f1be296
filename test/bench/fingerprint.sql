-- Time of idem_fingerprint(j) and of sha256(convert_to(j::text, 'UTF8')) for the
-- same params, one after the other, round by round; test/bench/fingerprint runs it.
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
SELECT size.name, length(pg_temp.params(lines)::text) AS bytes, round,
	pg_temp.cost('idem_fingerprint(CASE WHEN generate_series > 0 THEN $1 END)', pg_temp.params(lines), calls) AS ours,
	pg_temp.cost('sha256(convert_to((CASE WHEN generate_series > 0 THEN $1 END)::text, ''UTF8''))', pg_temp.params(lines), calls) AS theirs,
	pg_temp.cost('CASE WHEN generate_series > 0 THEN $1 END', pg_temp.params(lines), calls) AS nothing
  FROM (VALUES (1, '200 B', 0, 20000), (2, '20 kB', 140, 400), (3, '1 MB', 7000, 8)) size (n, name, lines, calls),
	generate_series(1, :rounds) round
 ORDER BY round, n;

SELECT format('%-6s (%s bytes) %s gross, %s net; %s µs against %s µs; target %s', name, bytes,
	round(percentile_cont(0.5) WITHIN GROUP (ORDER BY ours / theirs)::numeric, 3),
	round(percentile_cont(0.5) WITHIN GROUP (ORDER BY (ours - nothing) / (theirs - nothing))::numeric, 3),
	round(percentile_cont(0.5) WITHIN GROUP (ORDER BY ours)::numeric / 1000, 2),
	round(percentile_cont(0.5) WITHIN GROUP (ORDER BY theirs)::numeric / 1000, 2),
	CASE name WHEN '200 B' THEN 0.35 ELSE 0.45 END)
  FROM cost GROUP BY name, bytes ORDER BY bytes;

-- An object whose members come in the worst order
CREATE TEMP TABLE reversed AS SELECT jsonb_object_agg(n::text, n) AS j FROM generate_series(200000, 1, -1) n;
SELECT pg_temp.cost('idem_fingerprint(CASE WHEN generate_series > 0 THEN $1 END)', j, 10) AS ns FROM reversed \gset
SELECT format('200 000 members in reverse order: %s ms; target below 1000', round(:ns / 1e6));
