-- 100 claims in one transaction, all open at once, then completed.
\set k random(1, 9000000000000000000)
CALL claims_100('k-' || :k, :params);
