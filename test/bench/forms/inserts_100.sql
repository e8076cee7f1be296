-- 100 finished rows in one transaction, in a procedure.
\set k random(1, 9000000000000000000)
CALL inserts_100('k-' || :k);
