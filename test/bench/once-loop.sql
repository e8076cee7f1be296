\set k random(1, 9000000000000000000)
SELECT insert_one_by_one('k-' || :k);
