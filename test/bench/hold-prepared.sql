SET application_name = 'holder';
BEGIN;
SELECT idem_complete(c) FROM idem_claim('bench', 'held', '{"sku": "abc"}') c;
PREPARE TRANSACTION 'bench';
