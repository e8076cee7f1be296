SELECT r.operation, r.key, r.fence, idem_downstream_key(r.id, 'charge'),
     o.total, o.currency
FROM idem_reconcile(lease => '10 s') r
     LEFT JOIN orders o ON o.basket = r.key;
