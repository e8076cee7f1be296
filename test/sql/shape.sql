-- Tables that are not what the script made: refused, and each hint can be
-- followed; W03, T06.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- What a claim raises after a change, and after each hint has been followed;
-- "executes" at the end.
CREATE FUNCTION pg_temp.mended(change text, probe text DEFAULT 'SELECT idem_release(idem_claim(''shape'', ''k''))') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	e record;
	said text := '';
BEGIN
	EXECUTE change;
	FOR i IN 1 .. 3 LOOP
		SELECT * INTO e FROM pg_temp.raised(probe);
		IF e.state = 'none' THEN
			RETURN said || 'executes';
		END IF;
		said := said || e.state || ' ' || regexp_replace(e.message, '.*: ', '') || ', ' || e.hint || ' ';
		EXECUTE rtrim(e.hint, '.');
	END LOOP;
	RETURN said;
END
$$;
SELECT is(pg_temp.mended(change), raised || 'executes', 'W03: ' || change) FROM (VALUES
	('CREATE TABLE pointing (id uuid REFERENCES idempotency_internal.record)',
		'42809 constraint "pointing_id_fkey" needs triggers on it, ALTER TABLE public.pointing DROP CONSTRAINT pointing_id_fkey. '),
	('ALTER TABLE pointing ADD FOREIGN KEY (id) REFERENCES idempotency_internal.record; DROP TABLE pointing', ''),
	('CREATE TRIGGER "on it" AFTER INSERT ON idempotency_internal.record EXECUTE FUNCTION suppress_redundant_updates_trigger()',
		'42809 it has a trigger "on it", DROP TRIGGER "on it" ON idempotency_internal.record. '),
	('CREATE TABLE pointed (id text PRIMARY KEY); ALTER TABLE idempotency_internal.record ADD CONSTRAINT "to it" FOREIGN KEY (owner) REFERENCES pointed NOT VALID',
		'42809 constraint "to it" needs triggers on it, ALTER TABLE idempotency_internal.record DROP CONSTRAINT "to it". '),
	('DROP TABLE pointed; ALTER TABLE idempotency_internal.record ADD "the note" text DEFAULT ''x''',
		'42809 it has a column "the note", ALTER TABLE idempotency_internal.record DROP COLUMN "the note". '),
	('ALTER TABLE idempotency_internal.record ADD note text, ADD more int', '42809 it has a column "note", ALTER TABLE idempotency_internal.record DROP COLUMN note. '
		'42809 it has a column "more", ALTER TABLE idempotency_internal.record DROP COLUMN more. '),
	('CREATE TABLE heir () INHERITS (idempotency_internal.record)', '42809 other tables inherit from it, ALTER TABLE public.heir NO INHERIT idempotency_internal.record. '),
	('CREATE TABLE heiress () INHERITS (idempotency_internal.record); DROP TABLE heir, heiress', ''),
	('CREATE TABLE parted (LIKE idempotency_internal.record) PARTITION BY LIST (id); ALTER TABLE parted ATTACH PARTITION idempotency_internal.record DEFAULT',
		'42809 it is a partition, ALTER TABLE public.parted DETACH PARTITION idempotency_internal.record. '),
	('DROP TABLE parted', ''),
	('ALTER TABLE idempotency_internal.record SET UNLOGGED', '42809 a crash would empty it, ALTER TABLE idempotency_internal.record SET LOGGED. '),
	('ALTER TABLE idempotency_internal.record DROP CONSTRAINT record_pkey',
		'42809 it has no usable primary key, ALTER TABLE idempotency_internal.record ADD PRIMARY KEY (id). '),
	('ALTER TABLE idempotency_internal.record DROP CONSTRAINT record_pkey, ADD CONSTRAINT wide PRIMARY KEY (id, key)',
		'42809 its primary key is not a valid, immediate one on the first column, ALTER TABLE idempotency_internal.record DROP CONSTRAINT wide, ADD PRIMARY KEY (id). ')
	) v (change, raised);

SELECT is(pg_temp.mended('DROP INDEX idempotency_internal.' || index, probe), '55000 an index of table "idempotency_internal.' || split_part(hint, ' ', 1)
		|| '" is missing, CREATE INDEX ' || index || ' ON idempotency_internal.' || hint || '. executes', 'W03: DROP INDEX ' || index) FROM (VALUES
	('open_work_due_at_idx', 'open_work (queue, operation, due_at)', 'SELECT idem_start_next(''shape'')'),
	('outbox_due_at_idx', 'outbox_due (destination, state, due_at)', 'SELECT idem_take(''shape'')')) v (index, hint, probe);

-- columns added and dropped lie behind those of the script in every table, and
-- every function goes on
DO $$
DECLARE
	place regclass;
BEGIN
	FOR place IN SELECT oid FROM pg_class WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind = 'r' LOOP
		EXECUTE format('ALTER TABLE %s ADD note text DEFAULT ''x'', ADD more int', place);
		EXECUTE format('ALTER TABLE %s DROP note, DROP more', place);
	END LOOP;
END
$$;
SELECT idem_define('shape', '{"retention": "2 h"}'), idem_destination_define('shape', '{"max_attempts": 3}');
SELECT idem_complete(idem_claim('shape', 'done', '1', lease => '1 h', owner => 'w'), '"kept"');
SELECT is((a).result, '"kept"', 'W03: a record is written and read'), is((a).expires_at - (a).finished_at, '2 h', 'W03: settings too') FROM (SELECT idem_claim('shape', 'done', '1')) v (a);
SELECT is((idem_accept('shape', 'work')).state, 'accepted', 'W03: so is the work list');
SELECT is(key, 'work', 'W03: which is looked through') FROM idem_start_next('shape', 1, '1 h');
SELECT is((idem_once('shape', gen_random_uuid()::text)), true, 'W03: and once');
SELECT isnt(idem_emit('shape', '1'), NULL, 'W03: an event is emitted');
SELECT payload AS p, event_id AS e, fence AS f FROM idem_take('shape') \gset
SELECT is(:'p'::jsonb, '1', 'W03: and taken');
SELECT idem_ack(:'e', :f);
DELETE FROM idempotency_internal.outbox;

-- T06: what was changed by hand says what to do
UPDATE idempotency_internal.record SET fingerprint = '\x00' WHERE id = idem_id('shape', 'done');
SELECT is(state, 'XX001', 'T06: a fingerprint changed by hand: XX001'), matches(hint, 'delete it from table "idempotency_internal.record"', 'T06: with a hint')
  FROM pg_temp.raised('SELECT idem_claim(''shape'', ''done'', ''1'')');
DELETE FROM idempotency_internal.record WHERE id = idem_id('shape', 'done');
SELECT is((idem_claim('shape', 'done', '1', lease => '1 h')).verdict, 'execute', 'T06: that can be followed');
SELECT idem_define('shape', '{"ignore": ["/at"]}');
SELECT is((idem_claim('shape', 'normalised', '{"a": 1, "at": 2}', lease => '1 h')).verdict, 'execute', 'a record hashed under settings');
SELECT idem_define('shape', '{"ignore": ["/by"]}');
DELETE FROM idempotency_internal.normalisation WHERE settings @> '{"ignore": ["/at"]}';
\c
\i :suite
SELECT is(state, 'XX001', 'T06: settings deleted by hand: XX001'), matches(hint, 'idem_define\(\)', 'T06: with a hint')
  FROM pg_temp.raised('SELECT idem_claim(''shape'', ''normalised'', ''{"a": 1}'')');
SELECT idem_define('shape', '{"ignore": ["/at"]}'), idem_define('shape', '{"ignore": ["/by"]}');
SELECT is((idem_claim('shape', 'normalised', '{"a": 1}')).verdict, 'in_progress', 'T06: that can be followed');

SELECT finish();
