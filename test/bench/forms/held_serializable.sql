\if :first
SET default_transaction_isolation = serializable;
\set first 0
\endif
SELECT verdict FROM idem_claim('bench', 'held', :params);
