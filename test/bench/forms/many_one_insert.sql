-- 1000 records by one statement.
\set k random(1, 9000000000000000000)
INSERT INTO floor_record (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state, principal, operation, key)
SELECT gen_random_uuid(), clock_timestamp(), clock_timestamp(), clock_timestamp(), clock_timestamp(),
	1700000000000000, 1, 's', 'acme', 'bench', 'k-' || :k || '-' || i
  FROM generate_series(1, 1000) i
ON CONFLICT DO NOTHING;
