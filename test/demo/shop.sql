-- The shop of the demo.  Nothing but create_order knows about idempotency.

CREATE EXTENSION idempotency;

CREATE TABLE basket (
	basket text PRIMARY KEY,
	customer text NOT NULL,
	city text NOT NULL,
	sku text NOT NULL,
	quantity integer NOT NULL,
	unit_price numeric NOT NULL,
	currency text NOT NULL
);

CREATE TABLE orders (
	id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	basket text NOT NULL,
	customer text NOT NULL,
	sku text NOT NULL,
	quantity integer NOT NULL,
	total numeric NOT NULL,
	currency text NOT NULL
);

CREATE TABLE payments (
	basket text NOT NULL,
	charge text NOT NULL,
	amount numeric NOT NULL,
	currency text NOT NULL
);

-- What a browser sends: a key, made once per basket, and what is wanted.
CREATE VIEW request AS
SELECT b.basket AS key, to_jsonb(b) - 'city' AS params, b.quantity * b.unit_price AS total, b.currency
FROM basket b;

CREATE FUNCTION create_order(key text, params jsonb,
	patience interval DEFAULT '0')
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	claim idem_answer :=
		idem_claim('create_order', key, params, wait => patience);
	placed orders;
BEGIN
	IF claim.verdict <> 'execute' THEN
		RETURN idem_value(claim);    -- the recorded result, or an error
	END IF;
	INSERT INTO orders (basket, customer, sku, quantity, total, currency)
	SELECT basket, customer, sku, quantity, quantity * unit_price, currency
	FROM jsonb_populate_record(NULL::basket, params)
	RETURNING * INTO placed;
	RETURN idem_complete(claim,
		jsonb_build_object('order', placed.id, 'total', placed.total));
END $$;

-- Two roles: the application, and a clerk who looks into what is unknown.
CREATE ROLE shop LOGIN;
CREATE ROLE clerk LOGIN;
ALTER ROLE shop SET idempotency.principal = 'shop';
ALTER ROLE clerk SET idempotency.principal = 'shop';
GRANT SELECT ON request TO shop;
GRANT SELECT, INSERT ON orders, payments TO shop, clerk;
SELECT idem_grant('shop');
SELECT idem_grant('clerk', 'worker');

-- What became of a voucher cannot be found out: one try is enough.
SELECT idem_define('pay_by_voucher', '{"reconcile_attempts": 1}');
