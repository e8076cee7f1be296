\set k random(1, 9000000000000000000)
SELECT idem_complete(c, '{"order": 7, "status": "created"}')
  FROM idem_claim('watched', 'k-' || :k, '{"sku": "abc", "qty": 3, "amount": "12.50"}') c;
