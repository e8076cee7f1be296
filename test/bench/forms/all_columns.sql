-- The answer in FROM, with all its columns.
\set k random(1, 9000000000000000000)
SELECT c.*, idem_complete(c, :result) FROM idem_claim('bench', 'k-' || :k, :params) c;
