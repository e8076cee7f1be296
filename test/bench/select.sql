\set k random(1, 10000)
SELECT state, result FROM bare WHERE id = idem_id('bench', 'r-' || :k);
