-- The floor: params are sent, read as jsonb and hashed, and the finished row is inserted.
\if :first
SELECT body AS params FROM params WHERE bytes = :bytes \gset
\set first 0
\endif
\set k random(1, 9000000000000000000)
INSERT INTO floor_record (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state,
	principal, operation, key, fingerprint, result)
VALUES (gen_random_uuid(), clock_timestamp(), clock_timestamp(), clock_timestamp(), clock_timestamp(),
	1700000000000000, 1, 's', 'acme', 'bench', 'k-' || :k,
	sha256(convert_to(:params::jsonb::text, 'UTF8')), :result)
RETURNING result;
