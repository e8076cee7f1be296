BEGIN;
SELECT pg_advisory_xact_lock(hashtextextended('acme bench held', 0));
SELECT idem_complete(c) FROM idem_claim('bench', 'held', '{"sku": "abc"}') c;
PREPARE TRANSACTION 'bench';
