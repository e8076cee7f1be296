-- 1000 records by 1000 statements, without the way from the client and back.
\set k random(1, 9000000000000000000)
SELECT insert_one_by_one('k-' || :k);
