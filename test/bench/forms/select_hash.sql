-- What a replay is by hand: the row of three texts, and whether the params are the same.
\set k random(1, :keys)
SELECT state, result, params_hash = sha256(convert_to(:params::jsonb::text, 'UTF8')) AS same
FROM peer WHERE principal = 'acme' AND operation = 'bench' AND key = 'p-' || :k;
