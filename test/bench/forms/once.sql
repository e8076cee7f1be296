\set k random(1, 9000000000000000000)
SELECT idem_once('bench', 'k-' || :k);
