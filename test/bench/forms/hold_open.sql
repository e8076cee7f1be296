SET application_name = 'holder';
BEGIN;
SELECT pg_advisory_xact_lock(hashtextextended('acme bench held', 0));
SELECT verdict FROM idem_claim('bench', 'held', '{"sku": "abc"}');
SELECT pg_sleep(600);
