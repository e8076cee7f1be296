-- The database that every client of the suite talks to: the extension in a
-- schema of its own, two tables, and roles that are no superusers.
CREATE SCHEMA idempotency;
CREATE EXTENSION idempotency SCHEMA idempotency;
CREATE TABLE orders (
	id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	client text NOT NULL,
	item text NOT NULL,
	quantity int NOT NULL CHECK (quantity > 0)
);
CREATE TABLE payment (id uuid PRIMARY KEY, amount int NOT NULL, charge text);
CREATE ROLE app LOGIN;
CREATE ROLE clerk LOGIN;
GRANT ALL ON orders, payment TO app;
GRANT ALL ON payment TO clerk;
SELECT idempotency.idem_grant('app', 'app');
SELECT idempotency.idem_grant('clerk', 'worker');
SELECT format('ALTER DATABASE %I SET search_path = public, idempotency', current_database()) \gexec

-- pg_cron purges what is short-lived, at the next full minute.
CREATE EXTENSION pg_cron;
SET search_path = public, idempotency;
SELECT idem_define('short_lived', '{"retention": "1 ms"}');
BEGIN;
SELECT idem_complete(c) FROM idem_claim('short_lived', 'k1', principal => 'pg_cron') c;
COMMIT;
SELECT cron.schedule('purge', '* * * * *', 'SELECT idempotency.idem_purge()');
