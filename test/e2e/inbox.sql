-- The database of billing, another one than the shop's.  It is told of sales.

CREATE EXTENSION idempotency;

-- No unique index on purpose: a second booking must be seen, not be prevented.
CREATE TABLE booking (
	place bigint GENERATED ALWAYS AS IDENTITY,
	event_id uuid NOT NULL,
	customer text,
	cart text NOT NULL,
	line integer NOT NULL,
	amount integer NOT NULL
);

-- Deliveries of what was booked already.
CREATE TABLE repeat (event_id uuid NOT NULL);

-- Books a batch in one transaction: idem_once comes first, event id = key.  All
-- take the events in one order, so that no two wait for each other.
CREATE FUNCTION book(events jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	event jsonb;
	sale jsonb;
BEGIN
	FOR event IN SELECT e FROM jsonb_array_elements(events) e ORDER BY e ->> 'id' LOOP
		sale := event -> 'payload';
		IF idem_once('billing', event ->> 'id', 'shop') THEN
			INSERT INTO booking (event_id, customer, cart, line, amount)
			VALUES ((event ->> 'id')::uuid, sale ->> 'customer', sale ->> 'cart',
				(sale ->> 'line')::integer, (sale ->> 'amount')::integer);
		ELSE
			INSERT INTO repeat VALUES ((event ->> 'id')::uuid);
		END IF;
	END LOOP;
END $$;

DO $$ BEGIN
	CREATE ROLE billing LOGIN;
EXCEPTION WHEN duplicate_object THEN
	NULL;
END $$;
GRANT INSERT ON booking, repeat TO billing;
SELECT idem_grant('billing', 'app');
SELECT idem_define('billing', '{"wait": "2 s"}');
