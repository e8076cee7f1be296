-- 100 claims in one transaction, each completed before the next.
\set k random(1, 9000000000000000000)
CALL claims_100_each('k-' || :k, :params);
