-- The PL/pgSQL peer in four round trips.
\set k random(1, 9000000000000000000)
BEGIN;
SELECT verdict, result FROM peer_claim('bench', 'k-' || :k, :params);
SELECT peer_complete('bench', 'k-' || :k, :result);
COMMIT;
