SET application_name = 'holder';
BEGIN;
SELECT verdict FROM idem_claim('bench', 'held', '{"sku": "abc"}');
SELECT pg_sleep(600);
