\set k random(1, :keys)
SELECT state, result FROM idem_status('bench', 'r-' || :k);
