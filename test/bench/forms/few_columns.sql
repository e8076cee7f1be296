-- The answer in FROM, with the columns that are needed.
\set k random(1, 9000000000000000000)
SELECT verdict, idem_complete(c, :result) FROM idem_claim('bench', 'k-' || :k, :params) c;
