-- The PL/pgSQL peer.
\set k random(1, 9000000000000000000)
CALL peer_procedure('k-' || :k, :params);
