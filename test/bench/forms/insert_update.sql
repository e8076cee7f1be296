-- The smallest thing that notes a start and an end: INSERT and UPDATE, in one pipeline, nothing hashed.
\set k random(1, 9000000000000000000)
\startpipeline
INSERT INTO peer (principal, operation, key, params_hash, state, expires_at)
VALUES ('acme', 'bench', 'k-' || :k, '\x5891b5b522d5df08', 'processing', clock_timestamp() + interval '1 day');
UPDATE peer SET state = 'succeeded', result = :result WHERE principal = 'acme' AND operation = 'bench' AND key = 'k-' || :k RETURNING result;
\endpipeline
