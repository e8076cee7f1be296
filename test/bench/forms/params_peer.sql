-- The PL/pgSQL peer with params of any size.
\if :first
SELECT body AS params FROM params WHERE bytes = :bytes \gset
\set first 0
\endif
\set k random(1, 9000000000000000000)
CALL peer_procedure('k-' || :k, :params);
