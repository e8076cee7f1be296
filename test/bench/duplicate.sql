SELECT verdict FROM idem_claim('bench', 'held', '{"sku": "abc"}');
