-- Params of any size: too long for a command line, they are fetched once.
\if :first
SELECT body AS params FROM params WHERE bytes = :bytes \gset
\set first 0
\endif
\set k random(1, 9000000000000000000)
SELECT idem_complete(idem_claim('bench', 'k-' || :k, :params), :result);
