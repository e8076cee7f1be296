-- The bare side: the same columns under the same unique index, and no more.
CREATE EXTENSION idempotency;
CREATE TABLE bare (LIKE idempotency_internal.record INCLUDING DEFAULTS);
ALTER TABLE bare ADD PRIMARY KEY (id);
INSERT INTO bare SELECT idem_id('bench', 'r-' || i), now(), now(), NULL, now(), now(), i, NULL, 1, 's',
	'acme', 'bench', 'r-' || i, sha256('x'), NULL, '{"order": 7, "status": "created"}'
  FROM generate_series(1, 10000) i;
DO $$
BEGIN
	FOR i IN 1 .. 10000 LOOP
		PERFORM idem_complete(c, '{"order": 7, "status": "created"}')
		   FROM idem_claim('bench', 'r-' || i, '{"sku": "abc", "qty": 3, "amount": "12.50"}') c;
	END LOOP;
END $$;
VACUUM ANALYZE;
