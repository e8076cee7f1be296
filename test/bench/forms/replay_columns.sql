\set k random(1, :keys)
SELECT verdict, result FROM idem_claim('bench', 'r-' || :k, '{"sku": "abc", "qty": 3, "amount": "12.50"}');
