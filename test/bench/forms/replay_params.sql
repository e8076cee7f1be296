\set k random(1, :keys)
SELECT verdict, result FROM idem_claim('bench', 'p-' || :k, :params);
