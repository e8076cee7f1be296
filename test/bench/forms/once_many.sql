\set k random(1, 9000000000000000000)
SELECT count(*) FROM idem_once_many('bench', (SELECT array_agg('k-' || :k || '-' || i) FROM generate_series(1, 1000) i));
