-- The answer is passed on as a value.
\set k random(1, 9000000000000000000)
SELECT idem_complete(idem_claim('bench', 'k-' || :k, :params), :result);
