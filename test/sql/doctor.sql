-- idem_doctor: each check says what is wrong, and "ok" once its advice has been
-- followed; what needs a restart or another session is in test/t/171_doctor.pl.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
CREATE DATABASE regress_idem_doctor TEMPLATE template0;
\connect regress_idem_doctor
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
RESET idempotency.principal;
SET idle_in_transaction_session_timeout = '1 min';
CREATE FUNCTION pg_temp.said(item text) RETURNS text LANGUAGE sql AS $$
SELECT string_agg(concat_ws(' | ', status, finding, advice), E'\n') FROM idem_doctor() d WHERE d.item = $1
$$;
-- What it says, and the same after the advice has been followed.
CREATE FUNCTION pg_temp.cured(item text, cure text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	ill text := pg_temp.said(item);
BEGIN
	EXECUTE cure;
	RETURN ill || ' => ' || (SELECT string_agg(status, ' ') FROM idem_doctor() d WHERE d.item = $1);
END
$$;

SELECT is(string_agg(item, ' '), 'version preload worker purge tables operations roles principal timeout unresolved destinations dead_letters dump nodes', 'a row for each item') FROM idem_doctor();
SELECT is(array_agg(item || ' ' || status), NULL, 'of a new database that is well: ok') FROM idem_doctor() WHERE status <> 'ok' AND item NOT IN ('preload', 'worker');
SELECT is(array_agg(item), NULL, 'advice with what is not ok, and only with that') FROM idem_doctor() WHERE (status = 'ok') <> (advice IS NULL) OR finding IS NULL;

CREATE FUNCTION pg_temp.late(key text, by interval) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	place regclass;
BEGIN
	FOR place IN SELECT pg_temp.tables_of_records() LOOP
		EXECUTE format('UPDATE %s r SET forget_at = clock_timestamp() - $1 WHERE r.key = $2', place) USING by, key;
	END LOOP;
END
$$;

-- versions
SELECT is(pg_temp.said('version'), format('ok | the extension is version %1$s, the library of this session %1$s, the files on disk %1$s', extversion), 'version') FROM pg_extension WHERE extname = 'idempotency';
BEGIN;
UPDATE pg_extension SET extversion = '9.9' WHERE extname = 'idempotency';
SELECT matches(pg_temp.said('version'), '^fail \| the extension is version 9.9, the library of this session .* reconnect; a server that preloads it has to be restarted\.$', 'a library of another version');
ROLLBACK;

-- purge
SELECT idem_define('purge', '{"retention": "1 min"}');
SELECT idem_complete(idem_claim('purge', key, lease => '1 h')) FROM unnest(ARRAY['a', 'b', 'c', idem_new_key()]) key, set_config('idempotency.principal', 'acme', true) \g /dev/null
SELECT is(pg_temp.said('purge'), 'ok | no record waits long for its purge', 'purge: not due');
SELECT pg_temp.late('a', '59 min'), pg_temp.late('b', '61 min'), pg_temp.late('c', '61 min');
SELECT is(pg_temp.said('purge'), 'warn | purge does not keep up: 2 records or more could have been removed long ago | Call SELECT idem_purge() as a statement of its own until it returns 0, then more often, or preload the library. It warns of what it has to leave.', 'purge: late');
SELECT pg_temp.late(key, '9 days') FROM idempotency_internal.every_record WHERE key !~ '^.$';
SELECT matches(pg_temp.said('purge'), '^warn .* 3 records', 'purge: a segment is late');
SELECT idem_purge() > 0 AS purged \g /dev/null
SELECT idem_purge() > 0 AS purged \g /dev/null
SELECT is(pg_temp.said('purge'), 'ok | no record waits long for its purge', 'purge: called');

-- operations
SELECT is(pg_temp.said('operations'), 'ok | every operation asked for is defined', 'operations: defined');
SELECT idem_complete(idem_claim('Order', 'k', principal => 'acme')) \g /dev/null
SELECT is(pg_temp.cured('operations', 'SELECT idem_define(''Order'', ''{}'')'), 'warn | 1 operations were asked for and never defined: ''Order'' | Correct the name where it is misspelt; else SELECT idem_define(''Order'', ''{}''), with the settings it is to have. => ok', 'operations: never defined');
SELECT idem_complete(idem_claim('spelt ' || i, idem_new_key(), principal => 'acme')), idem_accept('accepted', 'k' || i, principal => 'acme') FROM generate_series(1, 6) i \g /dev/null
SELECT matches(pg_temp.said('operations'), '^warn \| 7 operations .*: ''accepted'', ''spelt 1'', ''spelt 2'', ''spelt 3'', ''spelt 4'', \.\.\. ', 'operations: many, in every table');
SELECT idem_define('spelt ' || i, '{}') FROM generate_series(1, 6) i;
SELECT is(pg_temp.cured('operations', 'SELECT idem_define(''accepted'', ''{}'')'), 'warn | 1 operations were asked for and never defined: ''accepted'' | Correct the name where it is misspelt; else SELECT idem_define(''accepted'', ''{}''), with the settings it is to have. => ok', 'operations: of the work list');

-- roles
SELECT idem_define('o', '{"role": "regress gone"}'), idem_destination_define('d', '{"role": "regress_gone"}');
SELECT is(pg_temp.said('roles'), 'fail | operation ''o'' is for role ''regress gone'', which does not exist: no role may use it | CREATE ROLE "regress gone", or SELECT idem_define(''o'', ''{"role": null}'').
fail | destination ''d'' is for role ''regress_gone'', which does not exist: no role may use it | CREATE ROLE regress_gone, or SELECT idem_destination_define(''d'', ''{"role": null}'').', 'roles: gone');
CREATE ROLE "regress gone";
SELECT matches(pg_temp.cured('roles', 'SELECT idem_destination_define(''d'', ''{"role": null}'')'), '^fail \| destination ''d''.* => ok$', 'roles: made, and taken away');
SELECT idem_undefine('o');
DROP ROLE "regress gone";

-- principal, time-out
SET idempotency.principal = 'acme';
SELECT is(pg_temp.cured('principal', 'RESET idempotency.principal'), 'warn | idempotency.principal is set for this session: behind a pooler its next client inherits it | RESET idempotency.principal; use SET LOCAL in each transaction, or pass principal with each call. => ok', 'principal');
ALTER DATABASE regress_idem_doctor SET idempotency.principal = 'acme';
SET idle_in_transaction_session_timeout = 0;
SELECT is(pg_temp.said('timeout'), 'warn | a client that stops in the middle of a transaction keeps its claims for ever | ALTER DATABASE regress_idem_doctor SET idle_in_transaction_session_timeout = ''1 min'', then reconnect.', 'timeout');
ALTER DATABASE regress_idem_doctor SET idle_in_transaction_session_timeout = '1 min';
\connect
SELECT string_agg(status || ' ' || finding, ', ' ORDER BY item) AS said FROM idem_doctor() WHERE item IN ('principal', 'timeout') \gset
\i :suite
SELECT is(:'said'::text, 'ok idempotency.principal comes from: database, ok a client that stops in the middle of a transaction loses its claims in time', 'timeout, and a principal of the database');
RESET idempotency.principal;
CREATE FUNCTION pg_temp.said(item text) RETURNS text LANGUAGE sql AS $$
SELECT string_agg(concat_ws(' | ', status, finding, advice), E'\n') FROM idem_doctor() d WHERE d.item = $1
$$;
CREATE FUNCTION pg_temp.cured(item text, cure text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	ill text := pg_temp.said(item);
BEGIN
	EXECUTE cure;
	RETURN ill || ' => ' || (SELECT string_agg(status, ' ') FROM idem_doctor() d WHERE d.item = $1);
END
$$;

-- unknown outcomes
SELECT idem_unsure(idem_claim('o', 'unsure', lease => '1 h'));
UPDATE idempotency_internal.open_work SET due_at = NULL WHERE id = idem_id('o', 'unsure');
SELECT is(pg_temp.cured('unresolved', 'SELECT idem_resolve(operation, key, ''failed'', principal => principal) FROM idem_unresolved'),
	'warn | 1 unknown outcomes are left to a person | For each row of idem_unresolved find out what happened, then call idem_resolve(). => ok', 'unresolved');

-- destinations and dead letters
SELECT is(pg_temp.said('destinations'), 'ok | no destination has waited for ten minutes', 'destinations');
SELECT idem_emit(d, '1') FROM unnest('{mail,mail,log,fresh}'::text[]) d \g /dev/null
UPDATE idempotency_internal.outbox SET created_at = created_at - interval '11 min' WHERE destination <> 'fresh';
SELECT matches(pg_temp.said('destinations'), '^warn \| nothing takes the events of destination ''log'': the oldest waits since .* \| Start a relay .*
warn \| nothing takes the events of destination ''mail'': .* \| Start a relay that calls idem_take\(''mail'', ...\); if the events are read from the log, idem_destination_define\(''mail'', ''{"relay": "log"}''\)\.$', 'destinations: nothing takes them');
SELECT event_id AS e, fence AS f FROM idem_take('log') \gset
SELECT matches(pg_temp.said('destinations'), '^warn \| nothing takes the events of destination ''mail'':[^\n]*$', 'destinations: one is taken');
SELECT idem_ack(:'e', :f);
SELECT idem_nack(event_id, fence, '1', retryable => false) FROM idem_take('mail', 2) \g /dev/null
SELECT is(pg_temp.said('destinations'), 'ok | no destination has waited for ten minutes', 'destinations: all taken');
SELECT is(pg_temp.cured('dead_letters', 'SELECT idem_discard(event_id) FROM idem_dead_letter'), 'warn | 2 dead letters, of ''mail'' | For each row of idem_dead_letter mend the cause and call idem_redeliver(), or idem_discard(). => ok', 'dead letters');

-- dumps
CREATE ROLE regress_owner;
ALTER DATABASE regress_idem_doctor OWNER TO regress_owner;
SELECT is(pg_temp.cured('dump', 'GRANT pg_read_all_data TO regress_owner'), 'warn | the owner of the database, role regress_owner, cannot dump it: it may not read the records | GRANT pg_read_all_data TO regress_owner; or dump as another role that has it; or without the records, which forgets all keys: pg_dump --exclude-table-data=''idempotency_internal.*''. => ok', 'dump');
SELECT is(pg_temp.said('dump'), 'ok | the owner of the database, role regress_owner, can dump it with its records', 'dump: by the owner');

-- tables: the advice is SQL
CREATE FUNCTION pg_temp.mended(change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	ill record;
	said text := '';
BEGIN
	EXECUTE change;
	FOR i IN 1 .. 3 LOOP
		SELECT * INTO ill FROM idem_doctor() WHERE item = 'tables' LIMIT 1;
		said := said || ill.status || ' ';
		EXIT WHEN ill.status = 'ok';
		said := said || ill.finding || ' ';
		EXECUTE rtrim(ill.advice, '.');
	END LOOP;
	RETURN said;
END
$$;
SELECT is(pg_temp.mended('ALTER TABLE idempotency_internal.' || change), 'fail table "idempotency_internal.' || split_part(change, ' ', 1) || '" is not the table the extension made: ' || finding || ' ok ', change)
  FROM (VALUES ('record SET UNLOGGED', 'a crash would empty it'), ('record_s31 SET UNLOGGED', 'a crash would empty it'), ('outbox SET UNLOGGED', 'a crash would empty it'),
	('policy ADD note text', 'it has a column "note"'), ('outbox_due DROP CONSTRAINT outbox_due_pkey', 'it has no usable primary key')) v (change, finding);
SELECT is(pg_temp.mended('DROP INDEX idempotency_internal.' || index), 'fail an index of table "idempotency_internal.' || place || '" is missing ok ', 'DROP INDEX ' || index)
  FROM (VALUES ('record_forget_at_idx', 'record'), ('record_s07_forget_at_idx', 'record_s07'), ('open_work_due_at_idx', 'open_work'), ('open_work_principal_idx', 'open_work'),
	('open_work_since_idx', 'open_work'), ('outbox_created_at_idx', 'outbox'), ('outbox_due_at_idx', 'outbox_due'), ('outbox_due_order_idx', 'outbox_due')) v (index, place);
SELECT is(idem_once('o', 'after all that'), true, 'and the extension works'), isnt(idem_emit('mail', '1'), NULL, 'with its outbox');

-- a check that fails ends no other
BEGIN;
ALTER TABLE idempotency_internal.outbox_due RENAME TO elsewhere;
SELECT is(string_agg(concat_ws(' | ', item, status, finding, advice), E'\n' ORDER BY item), 'dead_letters | fail | the check itself failed: 42P01: relation "idempotency_internal.outbox_due" does not exist | Mend what the error tells, then check again.
destinations | fail | the check itself failed: 42P01: relation "idempotency_internal.outbox_due" does not exist | Mend what the error tells, then check again.
tables | fail | table "idempotency_internal.outbox_due" of extension "idempotency" does not exist | Restore the table from a backup, or drop and create the extension, which forgets all records.', 'a check that fails is a row of its own') FROM idem_doctor() WHERE status = 'fail';
SELECT is((SELECT count(DISTINCT item) FROM idem_doctor()), 14::bigint, 'and ends no other');
ROLLBACK;
SELECT is(array_agg(item || ' ' || status), NULL, 'in the end all is well') FROM idem_doctor() WHERE status <> 'ok' AND item NOT IN ('preload', 'worker');

-- for monitors and admins; it changes nothing
CREATE ROLE regress_app;
CREATE ROLE regress_worker;
CREATE ROLE regress_monitor;
CREATE ROLE regress_admin;
SELECT idem_grant('regress_app'), idem_grant('regress_worker', 'worker'), idem_grant('regress_monitor', 'monitor'), idem_grant('regress_admin', 'admin');
SELECT is(has_function_privilege('regress_' || r, 'idem_doctor()', 'EXECUTE'), expected, format('%s: %s', r, expected)) FROM (VALUES ('app', false), ('worker', false), ('monitor', true), ('admin', true)) v (r, expected);
BEGIN READ ONLY;
SET LOCAL ROLE regress_monitor;
SELECT count(*) > 13 AS complete FROM idem_doctor() \gset
COMMIT;
SELECT is(:'complete'::text, 't', 'by a monitor, in a read-only transaction');
SELECT * FROM finish();
ALTER DATABASE regress_idem_doctor OWNER TO CURRENT_USER;
DROP OWNED BY regress_app, regress_worker, regress_monitor, regress_admin;
DROP ROLE regress_app, regress_worker, regress_monitor, regress_admin;
REVOKE pg_read_all_data FROM regress_owner;
DROP ROLE regress_owner;
\connect postgres
DROP DATABASE regress_idem_doctor;
