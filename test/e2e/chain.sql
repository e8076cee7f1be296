-- The database of the export service.  Nothing here knows about repeats: that
-- is the extension's, and what would hide a mistake of it is left out.

CREATE EXTENSION idempotency;

-- One row for each intent.  There is no unique index on purpose: a second row
-- for the same intent must be seen, not be prevented.
CREATE TABLE task (
	id uuid NOT NULL,
	principal text NOT NULL,
	operation text NOT NULL,
	key text NOT NULL,
	params jsonb NOT NULL,
	file text,
	made_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON task (id);

-- What the reconciler was handed, and what it found.
CREATE TABLE finding (
	id uuid NOT NULL,
	found text NOT NULL DEFAULT 'nothing yet' CHECK (found IN ('nothing yet', 'succeeded', 'not_executed')),
	fence bigint NOT NULL
);
CREATE INDEX ON finding (id);

DO $$ BEGIN
	CREATE ROLE export_service LOGIN;
	CREATE ROLE export_worker LOGIN;
EXCEPTION WHEN duplicate_object THEN
	NULL;    -- roles are the server's, and another play was here
END $$;
GRANT SELECT, INSERT ON task TO export_service;
GRANT SELECT, UPDATE ON task TO export_worker;
GRANT SELECT, INSERT, UPDATE ON finding TO export_worker;
SELECT idem_grant('export_service', 'app');
SELECT idem_grant('export_worker', 'worker');

-- export: its generator honours keys.  letter: its generator does what it is
-- told as often as it is told, but can be asked.
SELECT idem_define('export', '{"key_format": "uuidv7", "retention": "30 days", "guard": "30 days"}');
SELECT idem_define('letter', '{"key_format": "uuidv7", "retention": "30 days", "guard": "30 days"}');
