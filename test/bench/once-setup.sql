-- The same 1000 statements without the way from the client and back.
CREATE FUNCTION insert_one_by_one(prefix text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		INSERT INTO bare (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state, principal, operation, key)
		VALUES (gen_random_uuid(), clock_timestamp(), clock_timestamp(), clock_timestamp(), clock_timestamp(),
			1700000000000000, 1, 's', 'acme', 'bench', prefix || '-' || i)
		ON CONFLICT DO NOTHING;
	END LOOP;
END $$;
