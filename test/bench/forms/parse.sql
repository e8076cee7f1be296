-- The same, and the params are read as jsonb.
\set k random(1, 9000000000000000000)
SELECT :params::jsonb IS NULL, 'k-' || :k;
