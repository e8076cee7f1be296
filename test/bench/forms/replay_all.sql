\set k random(1, :keys)
SELECT * FROM idem_claim('bench', 'p-' || :k, :params);
