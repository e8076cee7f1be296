-- The params stand in the statement: nothing of them is sent, as for the SELECT.
\set k random(1, :keys)
SELECT idem_value(idem_claim('bench', 'r-' || :k, '{"sku": "abc", "qty": 3, "amount": "12.50"}'));
