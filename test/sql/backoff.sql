-- idem_backoff: full jitter, bounded; C80.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- Many draws of one kind.
CREATE FUNCTION pg_temp.draw(n integer, attempt integer, base interval DEFAULT '100 ms', cap interval DEFAULT '30 s') RETURNS SETOF interval LANGUAGE sql AS
$$ SELECT idem_backoff(attempt, base, cap) FROM generate_series(1, n) $$;
SELECT ok(bool_and(b BETWEEN '0' AND least(interval '30 s', interval '100 ms' * 2 ^ least(attempt, 20))), 'C80: attempt ' || attempt || ': within [0, min(30 s, 100 ms * 2^attempt)]')
  FROM unnest('{0,1,2,8,9,31,32,62,63,64,1000,2147483647}'::int[]) attempt, pg_temp.draw(200, attempt) b
 GROUP BY attempt ORDER BY attempt;
SELECT ok(max(b) > '20 s', 'C80: attempt ' || attempt || ': reaches up to the cap')
  FROM unnest('{9,31,32,63,64,2147483647}'::int[]) attempt, pg_temp.draw(200, attempt) b GROUP BY attempt ORDER BY attempt;
SELECT ok(max(b) BETWEEN '90 ms' AND '100 ms', 'attempt 0: up to the base') FROM pg_temp.draw(1000, 0) b;
SELECT ok(max(b) BETWEEN '180 ms' AND '200 ms', 'attempt 1: up to twice the base') FROM pg_temp.draw(1000, 1) b;

-- Uniform: each tenth of the range gets a tenth of 10 000 draws; five standard
-- deviations are 150, and a right one fails once in a million runs
SELECT ok(max(abs(n - 1000)) < 160 AND count(*) = 10, 'C80: 10 000 draws are uniform')
  FROM (SELECT width_bucket(extract(epoch FROM idem_backoff(20, '1 s', '10 s')), 0, 10, 10) bucket, count(*) n FROM generate_series(1, 10000) GROUP BY 1) d;
SELECT cmp_ok(count(DISTINCT b)::int, '>', 9900, 'C80: hardly two are the same') FROM (SELECT idem_backoff(20) b FROM generate_series(1, 10000)) d;
-- Base and cap
SELECT ok(bool_and(b <= '1 s'), 'the cap holds') FROM pg_temp.draw(200, 50, '100 ms', '1 s') b;
SELECT ok(bool_and(b <= '1 s'), 'also below the base') FROM pg_temp.draw(200, 0, '1 h', '1 s') b;
SELECT is(idem_backoff(5, '0'), '0', 'base 0: no pause'), is(idem_backoff(5, cap => '0'), '0', 'cap 0: no pause'), is(idem_backoff(2147483647, '0', '0'), '0', 'both');
SELECT ok(bool_and(b BETWEEN '0' AND '100 days'), 'days are hours') FROM pg_temp.draw(200, 64, '1 day', '100 days') b;
SELECT ok(idem_backoff(62, '1 us', '366000 days') BETWEEN '0' AND '366000 days', 'the longest cap');

SELECT throws_ok('SELECT idem_backoff(' || arguments || ')', '22023', NULL, 'C80: backoff(' || arguments || '): 22023')
  FROM unnest(ARRAY['-1', '-2147483648', 'NULL', '1, NULL', '1, ''1 s'', NULL', '1, ''-1 s''', '1, ''1 s'', ''-1 s''', '1, ''1 mon''', '1, ''1 s'', ''1 mon''']) arguments;

-- It needs no right but to call it
CREATE ROLE regress_backoff;
SET ROLE regress_backoff;
SELECT idem_backoff(0) IS NOT NULL AS drawn \gset
RESET ROLE;
SELECT ok(:'drawn', 'anybody may call it');
DROP ROLE regress_backoff;

SELECT string_agg(idem_backoff(20)::text, ' ') AS first FROM generate_series(1, 10) \gset
SELECT finish();
\c -
\i :suite
SELECT isnt(string_agg(idem_backoff(20)::text, ' '), :'first', 'C80: another backend draws differently') FROM generate_series(1, 10);

SELECT finish();
