-- The floor of a replay: one row by its primary key.
\set k random(1, :keys)
SELECT state, result FROM floor_record WHERE id = idem_id('bench', 'r-' || :k);
