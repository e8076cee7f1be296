\set k random(1, 10000)
SELECT idem_value(idem_claim('bench', 'r-' || :k, '{"sku": "abc", "qty": 3, "amount": "12.50"}'));
