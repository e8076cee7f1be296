-- A look and an INSERT in a serializable transaction; what fails is run again.
\if :first
SET default_transaction_isolation = serializable;
\set first 0
\endif
\set k random(1, 9000000000000000000)
CALL peer_look_and_insert('k-' || :k, :params);
