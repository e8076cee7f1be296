-- What PostGraphile shows: functions that claim inside, in a schema of their own, so
-- that the extension's are not shown.
CREATE SCHEMA api;
GRANT USAGE ON SCHEMA api TO app;

CREATE FUNCTION api.place(key text, item text, quantity int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	claim idem_answer := idem_claim('create_order', key, jsonb_build_object('item', item, 'quantity', quantity));
	placed int;
BEGIN
	IF claim.verdict <> 'execute' THEN
		RETURN idem_value(claim);
	END IF;
	BEGIN
		INSERT INTO orders (client, item, quantity) VALUES ('postgraphile', item, quantity) RETURNING id INTO placed;
	EXCEPTION WHEN check_violation THEN
		PERFORM idem_fail(claim, '{"code": "bad_quantity"}');
		RETURN '{"code": "bad_quantity"}';
	END;
	RETURN idem_complete(claim, jsonb_build_object('order', placed));
END $$;

CREATE FUNCTION api.forget(key text) RETURNS text LANGUAGE sql VOLATILE AS
	$$ SELECT verdict::text FROM idem_claim('create_order', key) $$;
CREATE FUNCTION api.charge(key uuid, lease interval) RETURNS bigint LANGUAGE sql VOLATILE AS
	$$ SELECT fence FROM idem_claim('charge', key::text, lease => lease) $$;
CREATE FUNCTION api.charged(key uuid, fence bigint, result jsonb) RETURNS jsonb LANGUAGE sql VOLATILE AS
	$$ SELECT idem_complete_key('charge', key::text, fence, result) $$;
CREATE FUNCTION api.handle(key text) RETURNS idem_answer LANGUAGE sql VOLATILE AS
	$$ SELECT * FROM idem_claim('create_order', key, lease => '5 s') $$;
CREATE FUNCTION api.finish(claim idem_answer, result jsonb) RETURNS jsonb LANGUAGE sql VOLATILE AS
	$$ SELECT idem_complete(claim, result) $$;
CREATE FUNCTION api.seen(key text) RETURNS boolean LANGUAGE sql VOLATILE AS
	$$ SELECT idem_once('on_payment', key) $$;
CREATE FUNCTION api.seen_too(key text) RETURNS boolean LANGUAGE sql STABLE AS
	$$ SELECT idem_once('on_payment', key) $$;
