-- What watching costs a session, in its own CPU time: three kinds of blocks of
-- claims, each completed and committed, alternate at random every few
-- milliseconds in one session, so that whatever else the machine does hits all
-- alike.  Prints nanoseconds of a claim with counters, with counters and log,
-- and with neither: means, because the kernel counts in ticks longer than a
-- block.
\set QUIET on
CREATE TEMP TABLE block (kind text, ns float8);
DO $$
DECLARE
	kinds text[] := '{neither,counters,log}';
	kind text;
	before bigint;
	after bigint;
	claims int := 20;
BEGIN
	FOR turn IN 1 .. 9000 LOOP
		kind := kinds[1 + floor(random() * 3)];
		PERFORM set_config('idempotency.counters', CASE kind WHEN 'neither' THEN 'off' ELSE 'on' END, false);
		COMMIT;
		-- the table grows under all three alike
		before := split_part(pg_read_file('/proc/self/schedstat', 0, 100), ' ', 1);
		FOR i IN 1 .. claims LOOP
			PERFORM idem_complete(c, '{"order": 7, "status": "created"}')
			   FROM idem_claim(CASE kind WHEN 'log' THEN 'watched' ELSE 'bench' END, gen_random_uuid()::text,
					'{"sku": "abc", "qty": 3, "amount": "12.50"}') c;
			COMMIT;
		END LOOP;
		after := split_part(pg_read_file('/proc/self/schedstat', 0, 100), ' ', 1);
		INSERT INTO block VALUES (kind, (after - before)::float8 / claims);
		COMMIT;
	END LOOP;
END $$;
SELECT string_agg(ns::text, ' ' ORDER BY kind) FROM (
	SELECT kind, round(avg(ns)) AS ns FROM block GROUP BY kind) m;
