-- Protocol and executor: the params arrive, and nothing is done.
\set k random(1, 9000000000000000000)
SELECT :params::text IS NULL, 'k-' || :k;
