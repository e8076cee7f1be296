-- The shop's database: sales, and the events that tell of them.

CREATE EXTENSION idempotency;

CREATE TABLE sale (
	cart text NOT NULL,
	line integer NOT NULL,
	amount integer NOT NULL
);

DO $$ BEGIN
	CREATE ROLE shop_till LOGIN;
	CREATE ROLE shop_relay LOGIN;
EXCEPTION WHEN duplicate_object THEN
	NULL;    -- roles are the server's, and another play was here
END $$;
GRANT SELECT, INSERT ON sale TO shop_till;
SELECT idem_grant('shop_till', 'app');
SELECT idem_grant('shop_relay', 'worker');

-- A cart is one intent; its lines are sold, and told of, in one transaction with
-- it.  The events follow from the claim: whoever sells the cart again, because
-- COMMIT was not answered, adds none.
CREATE FUNCTION sell(cart text, amounts integer[], customer text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	claim idem_answer := idem_claim('sell', cart, jsonb_build_object('amounts', amounts, 'customer', customer), 'shop');
BEGIN
	IF claim.verdict <> 'execute' THEN
		RETURN idem_value(claim);
	END IF;
	FOR line IN 1 .. array_length(amounts, 1) LOOP
		INSERT INTO sale VALUES (cart, line, amounts[line]);
		PERFORM idem_emit('billing', jsonb_build_object('customer', customer, 'cart', cart, 'line', line, 'amount', amounts[line]), customer, claim,
			step => line::text);
	END LOOP;
	RETURN idem_complete(claim, to_jsonb(array_length(amounts, 1)));
END $$;

-- Impatient, since the play is short.
SELECT idem_destination_define('billing',
	'{"base": "100 ms", "cap": "1 s", "max_attempts": 1000, "retry_budget": null, "breaker_failures": null}');
