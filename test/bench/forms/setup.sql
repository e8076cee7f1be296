-- What the forms are measured on: the floor, and the peers as a user would write them.
CREATE EXTENSION IF NOT EXISTS idempotency;
SELECT idem_define('timed', '{"key_format": "uuidv7"}') \g /dev/null
CREATE TABLE floor_record (LIKE idempotency_internal.record INCLUDING DEFAULTS);
ALTER TABLE floor_record ADD PRIMARY KEY (id);

CREATE TABLE peer (
	principal text NOT NULL,
	operation text NOT NULL,
	key text NOT NULL,
	params_hash bytea NOT NULL,
	state text NOT NULL,
	result jsonb,
	created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	expires_at timestamptz NOT NULL,
	PRIMARY KEY (principal, operation, key)
);
CREATE INDEX ON peer (expires_at);

-- The usual PL/pgSQL: insert a row to claim the key, look at it if it was there, update it at the end.
CREATE FUNCTION peer_claim(the_operation text, the_key text, params jsonb, OUT verdict text, OUT result jsonb)
LANGUAGE plpgsql AS $$
DECLARE
	hash bytea := sha256(convert_to(params::text, 'UTF8'));
	found_hash bytea;
	found_state text;
	inserted integer;
BEGIN
	INSERT INTO peer (principal, operation, key, params_hash, state, expires_at)
	VALUES (current_setting('idempotency.principal'), the_operation, the_key, hash, 'processing',
		clock_timestamp() + interval '1 day')
	ON CONFLICT (principal, operation, key) DO NOTHING;
	GET DIAGNOSTICS inserted = ROW_COUNT;
	IF inserted = 1 THEN
		verdict := 'execute';
		RETURN;
	END IF;
	SELECT p.params_hash, p.state, p.result INTO found_hash, found_state, result
	FROM peer p
	WHERE p.principal = current_setting('idempotency.principal') AND p.operation = the_operation AND p.key = the_key;
	IF found_hash <> hash THEN
		verdict := 'mismatch';
		result := NULL;
	ELSIF found_state = 'processing' THEN
		verdict := 'in_progress';
	ELSE
		verdict := 'replay';
	END IF;
END $$;

CREATE FUNCTION peer_complete(the_operation text, the_key text, the_result jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
	UPDATE peer p SET state = 'succeeded', result = the_result
	WHERE p.principal = current_setting('idempotency.principal') AND p.operation = the_operation AND p.key = the_key;
	RETURN the_result;
END $$;

CREATE PROCEDURE ours_procedure(key text, params jsonb) LANGUAGE plpgsql AS $$
DECLARE
	claim idem_answer := idem_claim('bench', key, params);
BEGIN
	IF claim.verdict = 'execute' THEN
		PERFORM idem_complete(claim, '{"order": 7, "status": "created"}');
	END IF;
END $$;

CREATE PROCEDURE peer_procedure(key text, params jsonb) LANGUAGE plpgsql AS $$
DECLARE
	claim record;
BEGIN
	claim := peer_claim('bench', key, params);
	IF claim.verdict = 'execute' THEN
		PERFORM peer_complete('bench', key, '{"order": 7, "status": "created"}');
	END IF;
END $$;

-- Whoever has the lock is the only one with this key.
CREATE PROCEDURE peer_advisory(the_key text, params jsonb) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock(hashtextextended(current_setting('idempotency.principal') || ' bench ' || the_key, 0));
	CALL peer_look_and_insert(the_key, params);
END $$;

-- Two that look at the same time both find nothing: one of them fails in a serializable transaction.
CREATE PROCEDURE peer_look_and_insert(the_key text, params jsonb) LANGUAGE plpgsql AS $$
DECLARE
	hash bytea := sha256(convert_to(params::text, 'UTF8'));
	found_hash bytea;
BEGIN
	SELECT p.params_hash INTO found_hash
	FROM peer p
	WHERE p.principal = current_setting('idempotency.principal') AND p.operation = 'bench' AND p.key = the_key;
	IF FOUND AND found_hash <> hash THEN
		RAISE EXCEPTION 'used with other params';
	ELSIF FOUND THEN
		RETURN;
	END IF;
	INSERT INTO peer (principal, operation, key, params_hash, state, expires_at, result)
	VALUES (current_setting('idempotency.principal'), 'bench', the_key, hash, 'succeeded',
		clock_timestamp() + interval '1 day', '{"order": 7, "status": "created"}');
END $$;

-- For idem_once and idem_once_many.
CREATE TABLE seen (
	principal text NOT NULL,
	operation text NOT NULL,
	key text NOT NULL,
	seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (principal, operation, key)
);

CREATE FUNCTION insert_one_by_one(prefix text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		INSERT INTO floor_record (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state, principal, operation, key)
		VALUES (gen_random_uuid(), clock_timestamp(), clock_timestamp(), clock_timestamp(), clock_timestamp(),
			1700000000000000, 1, 's', 'acme', 'bench', prefix || '-' || i)
		ON CONFLICT DO NOTHING;
	END LOOP;
END $$;

-- Many in one transaction.
CREATE PROCEDURE inserts_100(prefix text) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 100 LOOP
		INSERT INTO floor_record (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state,
			principal, operation, key, fingerprint, result)
		VALUES (gen_random_uuid(), clock_timestamp(), clock_timestamp(), clock_timestamp(), clock_timestamp(),
			1700000000000000, 1, 's', 'acme', 'bench', prefix || '-' || i,
			'\x5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03', '{"order": 7, "status": "created"}');
	END LOOP;
END $$;

CREATE PROCEDURE claims_100_each(prefix text, params jsonb) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 100 LOOP
		PERFORM idem_complete(idem_claim('bench', prefix || '-' || i, params), '{"order": 7, "status": "created"}');
	END LOOP;
END $$;

CREATE PROCEDURE claims_100(prefix text, params jsonb) LANGUAGE plpgsql AS $$
DECLARE
	claims idem_answer[];
BEGIN
	claims := ARRAY(SELECT idem_claim('bench', prefix || '-' || i, params) FROM generate_series(1, 100) i);
	PERFORM idem_complete(c, '{"order": 7, "status": "created"}') FROM unnest(claims) c;
END $$;

-- Params of about so many bytes: an order with more or fewer lines.
CREATE TABLE params (bytes integer, body text);
INSERT INTO params
SELECT bytes, jsonb_build_object('customer', 'c-1042', 'currency', 'EUR', 'address', '{"city": "Graz", "street": "Annenstrasse 7"}'::jsonb,
	'items', (SELECT jsonb_agg(jsonb_build_object('sku', 'lamp-' || n, 'quantity', n % 7, 'price', n * 1.25)) FROM generate_series(1, lines) n))
  FROM (VALUES (200, 2), (20000, 385), (1000000, 18000)) size (bytes, lines);

-- Outcomes to replay: the keys r-1 to r-NUMBER, of the params in forms/replay_value.sql, and
-- p-1 to p-NUMBER, of these params.
CREATE PROCEDURE replayed(number integer, params jsonb) LANGUAGE plpgsql AS $$
DECLARE
	outcome jsonb := '{"order": 7, "status": "created"}';
BEGIN
	FOR i IN 1 .. number LOOP
		PERFORM idem_complete(idem_claim('bench', 'r-' || i, '{"sku": "abc", "qty": 3, "amount": "12.50"}'), outcome);
		INSERT INTO floor_record (id, claimed_at, finished_at, expires_at, forget_at, fence, attempt, state, principal, operation, key, fingerprint, result)
		SELECT idem_id('bench', k), now(), now(), now(), now(), i, 1, 's', 'acme', 'bench', k, sha256('x'), outcome
		  FROM unnest(ARRAY['r-' || i, 'p-' || i]) k;
		PERFORM idem_complete(idem_claim('bench', 'p-' || i, params), outcome);
		PERFORM peer_claim('bench', 'p-' || i, params), peer_complete('bench', 'p-' || i, outcome);
		IF i % 1000 = 0 THEN
			COMMIT;
		END IF;
	END LOOP;
END $$;

-- One session that makes so many claims, each completed and committed.
CREATE PROCEDURE many_claims(number integer, params jsonb) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. number LOOP
		PERFORM idem_complete(idem_claim('bench', gen_random_uuid()::text, params), '{"order": 7, "status": "created"}');
		COMMIT;
	END LOOP;
END $$;
