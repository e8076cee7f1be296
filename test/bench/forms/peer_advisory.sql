-- An advisory lock for the transaction, a look, and an INSERT at the end.
\set k random(1, 9000000000000000000)
CALL peer_advisory('k-' || :k, :params);
