SELECT count(*) FROM idem_once_many('bench', (SELECT array_agg('r-' || i) FROM generate_series(1, 1000) i));
