SET application_name = 'holder';
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT verdict FROM idem_claim('bench', 'held', '{"sku": "abc"}');
SELECT pg_sleep(600);
