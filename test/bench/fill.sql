-- So many finished records in TABLE, which is the peer or has the columns of a record.  Half of
-- the keys are like those of the forms, half are UUIDs.  Its index is built at the end, which
-- takes less time.
SELECT conname AS primary_key, conrelid = 'peer'::regclass AS peer
  FROM pg_constraint WHERE conrelid = :'table'::regclass AND contype = 'p' \gset
ALTER TABLE :table DROP CONSTRAINT :primary_key;
CREATE TEMP VIEW filling AS
SELECT CASE i % 2 WHEN 0 THEN gen_random_uuid()::text ELSE 'k-' || (random() * 9e18)::bigint END AS key,
	'\x5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03'::bytea AS hash,
	'{"order": 7, "status": "created"}'::jsonb AS result
  FROM generate_series(1, :records) i;
\if :peer
INSERT INTO :table (principal, operation, key, params_hash, state, result, expires_at)
SELECT 'acme', 'bench', key, hash, 'succeeded', result, now() + interval '1 day' FROM filling;
ALTER TABLE :table ADD CONSTRAINT :primary_key PRIMARY KEY (principal, operation, key);
\else
INSERT INTO :table (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state, principal, operation, key, fingerprint, result)
SELECT gen_random_uuid(), now(), now(), now() + interval '1 day', now() + interval '30 days', 1, 1, 's',
	'acme', 'bench', key, hash, result FROM filling;
ALTER TABLE :table ADD CONSTRAINT :primary_key PRIMARY KEY (id);
\endif
