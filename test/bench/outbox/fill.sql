INSERT INTO queue (destination, payload)
	SELECT 'bulk', '{"order": 4711, "amount": "129.00", "currency": "EUR"}' FROM generate_series(1, :events);
SELECT count(idem_emit('bulk', '{"order": 4711, "amount": "129.00", "currency": "EUR"}')) FROM generate_series(1, :events);
ANALYZE;
CHECKPOINT;
