-- The floor; the key is a UUID.
INSERT INTO floor_record (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state,
	principal, operation, key, fingerprint, result)
VALUES (gen_random_uuid(), clock_timestamp(), clock_timestamp(), clock_timestamp(), clock_timestamp(),
	1700000000000000, 1, 's', 'acme', 'bench', gen_random_uuid()::text,
	'\x5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03', :result)
RETURNING result;
