-- What the outbox is measured against: one table that is inserted into, and a
-- queue as it is written by hand.
CREATE EXTENSION IF NOT EXISTS idempotency;
CREATE TABLE plain (
	id uuid DEFAULT gen_random_uuid() PRIMARY KEY,
	created_at timestamptz DEFAULT now(),
	destination text NOT NULL,
	payload jsonb NOT NULL
);
CREATE TABLE queue (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	created_at timestamptz DEFAULT now(),
	destination text NOT NULL,
	payload jsonb NOT NULL
);
