-- SQL ON CONFLICT and UPDATE, in one pipeline, which is one transaction.
\set k random(1, 9000000000000000000)
\startpipeline
INSERT INTO peer (principal, operation, key, params_hash, state, expires_at)
VALUES ('acme', 'bench', 'k-' || :k, sha256(convert_to(:params::jsonb::text, 'UTF8')), 'processing', clock_timestamp() + interval '1 day')
ON CONFLICT (principal, operation, key) DO NOTHING RETURNING key;
UPDATE peer SET state = 'succeeded', result = :result WHERE principal = 'acme' AND operation = 'bench' AND key = 'k-' || :k RETURNING result;
\endpipeline
