-- Nothing commits half-done: ID003 at COMMIT and PREPARE, savepoints, PL/pgSQL
-- exception blocks, nested calls, procedures; C44, C45, C53.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite
CREATE TEMP TABLE business (what text);

-- The last error, and what a transaction came to
CREATE FUNCTION pg_temp.outcome(key text) RETURNS text LANGUAGE sql AS $$ SELECT coalesce(pg_temp.stored('permit', key), 'nothing') $$;

-- ID003 at COMMIT: names the first, counts the rest
BEGIN;
INSERT INTO business VALUES ('left open');
SELECT (idem_claim('permit', 'one')).id \gset
COMMIT;
SELECT is(:'SQLSTATE', 'ID003'::text, 'one claim left open'),
	is(:'LAST_ERROR_MESSAGE', format('COMMIT refused: the claim of operation "permit" (id %s) is left open', :'id'), 'named');
SELECT is(count(*), 0::bigint, 'nothing of the transaction is left') FROM business;
SELECT is(pg_temp.outcome('one'), 'nothing', 'no trace of the claim');
BEGIN;
SELECT (idem_claim('permit', 'one')).id \gset
SELECT count(idem_claim('permit', 'more ' || n)) FROM generate_series(1, 4) n;
SELECT is((idem_claim('permit', 'leased', lease => '1 h')).verdict, 'execute', 'a lease among them');
SELECT idem_complete(c) FROM idem_claim('permit', 'done') c;
COMMIT;
SELECT is(:'SQLSTATE', 'ID003'::text, 'five claims left open'),
	is(:'LAST_ERROR_MESSAGE', format('COMMIT refused: the claim of operation "permit" (id %s) and 4 more are left open', :'id'), 'the first is named, the rest counted');
SELECT is(pg_temp.outcome('leased'), 'nothing', 'the lease is gone with them');
SELECT is(pg_temp.outcome('done'), 'nothing', 'and the completed one');

-- ... of a statement that is its own transaction
SELECT idem_claim('permit', 'alone');
SELECT is(:'SQLSTATE', 'ID003'::text, 'a claim that is a transaction of its own');
SELECT verdict FROM idem_claim('permit', 'leased alone', lease => '1 h');
SELECT is(:'SQLSTATE', '00000'::text, 'a lease may be');

-- ID003 at PREPARE, COMMIT AND CHAIN, END
BEGIN;
SELECT (idem_claim('permit', 'prepared')).id \gset
PREPARE TRANSACTION 'idempotency permit';
SELECT is(:'SQLSTATE', 'ID003'::text, 'C44: PREPARE with an open claim'),
	is(:'LAST_ERROR_MESSAGE', format('PREPARE TRANSACTION refused: the claim of operation "permit" (id %s) is left open', :'id'), 'says so');
SELECT is(count(*), 0::bigint, 'nothing was prepared') FROM pg_prepared_xacts WHERE gid = 'idempotency permit';
BEGIN;
SELECT verdict FROM idem_claim('permit', 'chain');
COMMIT AND CHAIN;
SELECT is(:'SQLSTATE', 'ID003'::text, 'COMMIT AND CHAIN');
ROLLBACK;
BEGIN;
SELECT verdict FROM idem_claim('permit', 'chain');
ROLLBACK AND CHAIN;
SELECT is(a.attempt, 1, 'ROLLBACK AND CHAIN: the next transaction starts afresh') FROM idem_claim('permit', 'chain') a;
ROLLBACK;
-- C44: completed and prepared
BEGIN;
SELECT idem_complete(c, '1') FROM idem_claim('permit', 'two phases') c;
PREPARE TRANSACTION 'idempotency permit';
SELECT is(pg_temp.shape(a), 'in_progress processing retry_same_key: who retry_after holder', 'C44: prepared: in progress'), is(a.holder, 0, 'C44: held by nobody')
  FROM idem_claim('permit', 'two phases') a;
SELECT is(pg_temp.shape(a), '- processing retry_same_key: who retry_after holder', 'C44: status too'), is(a.holder, 0, 'C44: held by nobody') FROM idem_status('permit', 'two phases') a;
BEGIN;
SELECT is((idem_claim('permit', 'unrelated')).verdict, 'execute', 'the session may go on meanwhile');
ROLLBACK;
COMMIT PREPARED 'idempotency permit';
SELECT is((idem_claim('permit', 'two phases')).result, '1', 'C44: COMMIT PREPARED: replay');
BEGIN;
SELECT idem_claim('permit', 'two phases and a savepoint')::text AS c \gset
SAVEPOINT s;
SELECT idem_complete(:'c', '1');
PREPARE TRANSACTION 'idempotency permit';
SELECT is((idem_claim('permit', 'two phases and a savepoint')).holder, 0, 'completed in a savepoint and prepared');
SELECT is(count(*), 0::bigint, 'its row stands for its lock') FROM pg_locks WHERE locktype = 'advisory';
COMMIT PREPARED 'idempotency permit';
SELECT is((idem_claim('permit', 'two phases and a savepoint')).result, '1', 'committed');
BEGIN;
SELECT idem_complete(c, '1') FROM idem_claim('permit', 'two phases back') c;
PREPARE TRANSACTION 'idempotency permit';
ROLLBACK PREPARED 'idempotency permit';
BEGIN;
SELECT is((idem_claim('permit', 'two phases back')).attempt, 1, 'C44: ROLLBACK PREPARED: execute');
ROLLBACK;

-- C45: claim, completion and release against ROLLBACK TO and RELEASE, three
-- levels deep.  Each script is run in a transaction that also inserts a business
-- row; checked is whether that is there afterwards, and what is stored.
--	save, keep, undo, drop: SAVEPOINT, RELEASE, ROLLBACK TO, and both of them
--	complete!ID001: raises that; first: with the fence of the first claim
CREATE FUNCTION pg_temp.ended(steps text) RETURNS text LANGUAGE sql AS $$
SELECT CASE WHEN EXISTS (SELECT FROM business WHERE what = steps) THEN 'committed' ELSE 'refused' END
$$;
CREATE TEMP SEQUENCE first_fence;
CREATE TEMP SEQUENCE last_fence;
CREATE FUNCTION pg_temp.claim(key text, is_first boolean, lease interval DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	a idem_answer := idem_claim('permit', key, lease => lease);
BEGIN
	ASSERT a.verdict = 'execute', 'not granted';
	-- unlike a table, a sequence is not rolled back
	PERFORM setval('last_fence', a.fence), CASE WHEN is_first THEN setval('first_fence', a.fence) END;
END $$;
CREATE FUNCTION pg_temp.step(step text, key text) RETURNS text LANGUAGE sql AS $$
SELECT CASE split_part(step, '!', 1)
	WHEN 'save' THEN 'SAVEPOINT s'
	WHEN 'keep' THEN 'RELEASE s'
	WHEN 'undo' THEN 'ROLLBACK TO s'
	ELSE format('DO $do$ BEGIN PERFORM %s; END $do$', CASE split_part(step, '!', 1)
		WHEN 'claim' THEN format('pg_temp.claim(%L, false)', key)
		WHEN 'claim1' THEN format('pg_temp.claim(%L, true)', key)
		WHEN 'lease' THEN format('pg_temp.claim(%L, false, ''1 h'')', key)
		WHEN 'complete' THEN format('idem_complete_key(''permit'', %L, (SELECT last_value FROM last_fence))', key)
		WHEN 'first' THEN format('idem_complete_key(''permit'', %L, (SELECT last_value FROM first_fence))', key)
		WHEN 'fail' THEN format('idem_fail_key(''permit'', %L, (SELECT last_value FROM last_fence), ''"e"'')', key)
		WHEN 'later' THEN format('idem_fail_key(''permit'', %L, (SELECT last_value FROM last_fence), ''"e"'', true)', key)
		WHEN 'unsure' THEN format('idem_unsure_key(''permit'', %L, (SELECT last_value FROM last_fence))', key)
		WHEN 'release' THEN format('idem_release_key(''permit'', %L, (SELECT last_value FROM last_fence))', key)
	END)
END
$$;
CREATE TEMP TABLE script (n int GENERATED ALWAYS AS IDENTITY, steps text, ends text, stored text);
INSERT INTO script (steps, ends, stored) VALUES
	-- claim at level 1 to 4, released or rolled back
	('claim', 'ID003', 'nothing'),
	('claim complete', 'committed', 's 1'),
	('claim release', 'committed', 'nothing'),
	('save claim keep', 'ID003', 'nothing'),
	('save claim undo', 'committed', 'nothing'),
	('save claim keep complete', 'committed', 's 1'),
	('save claim undo complete!ID001', 'ID001', 'nothing'),
	('save claim undo release!ID001', 'ID001', 'nothing'),
	('save claim undo claim complete', 'committed', 's 1'),
	('save claim undo claim', 'ID003', 'nothing'),
	('save save save claim keep keep keep', 'ID003', 'nothing'),
	('save save save claim keep keep keep complete', 'committed', 's 1'),
	('save save save claim keep keep undo', 'committed', 'nothing'),
	('save save save claim keep undo', 'committed', 'nothing'),
	('save save save claim undo', 'committed', 'nothing'),
	('save save save claim undo claim keep keep keep complete', 'committed', 's 1'),
	('save save save claim keep undo complete!ID001', 'ID001', 'nothing'),
	-- completion at other levels than the claim
	('claim save complete keep', 'committed', 's 1'),
	('claim save complete undo', 'ID003', 'nothing'),
	('claim save complete undo complete', 'committed', 's 1'),
	('claim save complete undo release', 'committed', 'nothing'),
	('claim save save complete keep undo', 'ID003', 'nothing'),
	('claim save save complete keep undo complete', 'committed', 's 1'),
	('claim save save complete keep keep', 'committed', 's 1'),
	('claim save save complete undo complete keep keep', 'committed', 's 1'),
	('claim save save save complete keep keep keep', 'committed', 's 1'),
	('claim save save save complete keep keep undo', 'ID003', 'nothing'),
	('save claim save complete keep keep', 'committed', 's 1'),
	('save claim save complete undo keep', 'ID003', 'nothing'),
	('save claim save complete keep undo', 'committed', 'nothing'),
	('save claim save complete drop undo', 'committed', 'nothing'),
	('save claim save complete undo keep complete', 'committed', 's 1'),
	('save claim keep save complete undo complete', 'committed', 's 1'),
	('save claim keep save complete undo', 'ID003', 'nothing'),
	-- ROLLBACK TO twice, and going on in the same savepoint
	('save claim complete undo claim complete undo', 'committed', 'nothing'),
	('save claim complete undo claim complete', 'committed', 's 1'),
	('claim save complete undo complete undo complete', 'committed', 's 1'),
	-- release, and claim again after it
	('claim save release keep', 'committed', 'nothing'),
	('claim save release undo', 'ID003', 'nothing'),
	('claim save release undo complete', 'committed', 's 1'),
	('claim save release undo release', 'committed', 'nothing'),
	('claim release claim complete', 'committed', 's 1'),
	('claim release claim', 'ID003', 'nothing'),
	('claim save release claim complete keep', 'committed', 's 1'),
	('claim save release claim keep', 'ID003', 'nothing'),
	('claim save release claim keep complete', 'committed', 's 1'),
	('claim save release claim undo', 'ID003', 'nothing'),
	('claim save release claim complete undo', 'ID003', 'nothing'),
	('claim save release claim release undo', 'ID003', 'nothing'),
	('claim save release claim undo first', 'committed', 's 1'),
	('claim save release claim complete undo first', 'committed', 's 1'),
	('claim save release claim undo complete!ID002', 'ID002', 'nothing'),
	('claim save release claim first!ID002', 'ID002', 'nothing'),
	('claim save release keep claim first!ID002', 'ID002', 'nothing'),
	('claim save release claim release keep', 'committed', 'nothing'),
	('claim save release save claim keep keep complete', 'committed', 's 1'),
	('claim save release save claim undo keep', 'committed', 'nothing'),
	('claim save release save claim complete drop undo', 'ID003', 'nothing'),
	('claim save release save claim save complete keep keep keep', 'committed', 's 1'),
	('claim save release save claim save complete keep undo keep', 'committed', 'nothing'),
	('claim save save release keep claim complete keep', 'committed', 's 1'),
	('claim save save release keep keep claim complete', 'committed', 's 1'),
	('claim save save release claim keep undo', 'ID003', 'nothing'),
	-- other outcomes than complete
	('claim save fail undo', 'ID003', 'nothing'),
	('claim save fail keep', 'committed', 'f 1 "e"'),
	('claim save unsure undo complete', 'committed', 's 1'),
	('claim save unsure keep', 'committed', 'p 1'),
	('claim save unsure keep complete', 'committed', 's 1'),
	('claim unsure', 'committed', 'p 1'),
	('claim unsure complete', 'committed', 's 1'),
	('claim save later keep claim', 'ID003', 'nothing'),
	('claim save later keep claim complete', 'committed', 's 2'),
	('claim later save claim undo', 'committed', 't 1 "e"'),
	('claim later save claim complete undo', 'committed', 't 1 "e"'),
	('claim later save claim complete keep', 'committed', 's 2'),
	('claim later save claim save complete undo complete keep', 'committed', 's 2'),
	('claim later claim release', 'committed', 'r 2'),
	('claim later save claim release undo', 'committed', 't 1 "e"'),
	-- leases
	('lease', 'committed', 'p 1'),
	('save lease undo', 'committed', 'nothing'),
	('save lease keep', 'committed', 'p 1'),
	('save lease undo complete!ID001', 'ID001', 'nothing'),
	('save save lease keep undo', 'committed', 'nothing'),
	('save lease undo lease complete', 'committed', 's 1'),
	('lease save complete undo', 'committed', 'p 1'),
	('lease save complete keep', 'committed', 's 1'),
	('lease save complete undo complete', 'committed', 's 1'),
	('lease save complete undo fail', 'committed', 'f 1 "e"'),
	('lease save release undo', 'committed', 'p 1'),
	('lease save release undo complete', 'committed', 's 1'),
	('lease release', 'committed', 'r 1'),
	('lease save release claim undo', 'committed', 'p 1'),
	('lease save release claim complete keep', 'committed', 's 2'),
	('lease save release keep claim', 'ID003', 'nothing'),
	('lease later claim complete', 'committed', 's 2'),
	('lease later save claim complete undo', 'committed', 't 1 "e"'),
	('claim release lease', 'committed', 'p 1'),
	('claim save release lease undo first', 'committed', 's 1'),
	('claim save release lease keep', 'committed', 'p 1'),
	-- a completion repeated where it was rolled back
	('claim complete save complete undo', 'committed', 's 1'),
	('claim save complete undo save complete keep', 'committed', 's 1');
-- 'drop' ends a savepoint that has been rolled back
UPDATE script SET steps = replace(steps, 'drop', 'undo keep');
-- Each is run twice: alone, and after 40 other claims, so that it is held as a
-- row and not as a lock.
CREATE FUNCTION pg_temp.others() RETURNS void LANGUAGE sql AS $$
SELECT set_config('test.other', jsonb_agg(c)::text, true) FROM generate_series(1, 40) n, idem_claim('permit', 'other ' || n) c
$$;
CREATE FUNCTION pg_temp.others_done() RETURNS void LANGUAGE sql AS $$
SELECT idem_release(c) FROM jsonb_populate_recordset(NULL::idem_answer, current_setting('test.other')::jsonb) c
$$;
SELECT statement
  FROM script, (VALUES ('alone'), ('in a batch')) v (variant), LATERAL (SELECT format('%s, %s', steps, variant)) w (what), LATERAL (SELECT format('c45 %s %s', n, variant)) k (key), LATERAL (
	SELECT 0, 'BEGIN' UNION ALL
	SELECT 1, format('INSERT INTO business VALUES (%L)', what) UNION ALL
	SELECT 2, 'DO $do$ BEGIN PERFORM pg_temp.others(); END $do$' WHERE variant <> 'alone' UNION ALL
	SELECT 2 + o, pg_temp.step(CASE WHEN step = 'claim' AND o = (SELECT min(o) FROM string_to_table(steps, ' ') WITH ORDINALITY f (step, o) WHERE step = 'claim')
		THEN 'claim1' ELSE step END, key) FROM string_to_table(steps, ' ') WITH ORDINALITY t (step, o) UNION ALL
	SELECT 99, 'DO $do$ BEGIN PERFORM pg_temp.others_done(); END $do$' WHERE variant <> 'alone' AND ends NOT LIKE 'ID00_' OR variant <> 'alone' AND ends = 'ID003' UNION ALL
	SELECT 100, 'COMMIT' UNION ALL
	SELECT 101, format('SELECT is(pg_temp.ended(%L) || '', '' || pg_temp.outcome(%L), %L, %L)', what, key,
		CASE ends WHEN 'committed' THEN ends ELSE 'refused' END || ', ' || stored, format('C45: %s: %s', what, ends))
	) s (o, statement)
 ORDER BY variant, n, o \gexec
SELECT is(count(*), 0::bigint, 'the others left no trace') FROM idempotency_internal.record WHERE key LIKE 'other %';

-- PL/pgSQL: an exception block is a savepoint
CREATE FUNCTION pg_temp.trap(query text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE query;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
BEGIN;
SELECT is(pg_temp.trap($$SELECT pg_temp.claim('block', true) FROM (SELECT 1) x UNION ALL SELECT NULL FROM (SELECT 1 / (random() < 0)::int) y$$), '22012', 'C45: a claim in a block that fails');
SELECT is((idem_status('permit', 'block')).state, 'absent', 'C45: is void');
SELECT is(pg_temp.trap($$SELECT pg_temp.claim('block', true)$$), 'no error', 'C45: a claim in a block that does not');
SELECT is((idem_status('permit', 'block')).holder, pg_backend_pid(), 'C45: is open');
SELECT is(pg_temp.trap($$SELECT idem_complete_key('permit', 'block', (SELECT last_value FROM last_fence)), 1 / (random() < 0)::int$$), '22012', 'C45: a completion in a block that fails');
SELECT is((idem_status('permit', 'block')).holder, pg_backend_pid(), 'C45: leaves the claim open');
SELECT is(pg_temp.trap($$SELECT pg_temp.trap('SELECT idem_complete_key(''permit'', ''block'', (SELECT last_value FROM last_fence))'), 1 / (random() < 0)::int$$), '22012', 'C45: and in a nested one');
SELECT is((idem_status('permit', 'block')).holder, pg_backend_pid(), 'C45: too');
SELECT is(pg_temp.trap($$SELECT pg_temp.trap('SELECT idem_complete_key(''permit'', ''block'', (SELECT last_value FROM last_fence))')$$), 'no error', 'C45: completed in nested blocks');
COMMIT;
SELECT is(:'SQLSTATE', '00000'::text, 'C45: may commit'), is(pg_temp.outcome('block'), 's 1', 'and is recorded');

-- an error of ours, trapped, leaves the claim as it was
BEGIN;
SELECT idem_claim('permit', 'trapped')::text AS c \gset
SELECT is(pg_temp.trap(format('SELECT idem_complete_key(''permit'', ''trapped'', 1)')), 'ID002', 'a wrong fence, trapped');
SELECT is(pg_temp.trap(format('SELECT idem_renew(%L, ''1 h'')', :'c')), '22023', 'a renewal, trapped');
SELECT is(pg_temp.trap(format('SELECT idem_complete(%L)', :'c')), 'no error', 'then completed');
COMMIT;
SELECT is(:'SQLSTATE', '00000'::text, 'and committed');

-- deep nesting: a claim forty levels down, completed at every level and undone
CREATE FUNCTION pg_temp.dive(depth int, key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	found text;
BEGIN
	IF depth = 0 THEN
		PERFORM pg_temp.claim(key, true);
		RETURN 'claimed';
	END IF;
	BEGIN
		found := pg_temp.dive(depth - 1, key);
		BEGIN
			PERFORM idem_complete_key('permit', key, (SELECT last_value FROM last_fence));
			RAISE 'undo';
		EXCEPTION WHEN raise_exception THEN
			RETURN (idem_status('permit', key)).state;
		END;
	END;
END $$;
BEGIN;
SELECT is(pg_temp.dive(40, 'deep'), 'processing', 'forty levels');
SELECT is(idem_complete_key('permit', 'deep', last_value), NULL, 'completed in the end') FROM last_fence;
COMMIT;
SELECT is(pg_temp.outcome('deep'), 's 1', 'recorded');

-- nested calls: a function that claims calls one that claims
CREATE FUNCTION pg_temp.work(key text, depth int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	c idem_answer := idem_claim('permit', key || depth);
BEGIN
	IF c.verdict <> 'execute' THEN
		RETURN idem_value(c);
	END IF;
	RETURN idem_complete(c, CASE depth WHEN 0 THEN '0' ELSE jsonb_build_array(depth, pg_temp.work(key, depth - 1)) END);
END $$;
SELECT is(pg_temp.work('nested', 3), '[3, [2, [1, 0]]]', 'nested calls'), is(pg_temp.work('nested', 3), '[3, [2, [1, 0]]]', 'repeated at once');
SELECT is(pg_temp.work('nested', 3), '[3, [2, [1, 0]]]', 'repeated later');
SELECT is(pg_temp.work('nested', 4), '[4, [3, [2, [1, 0]]]]', 'one more around them');
-- a function that claims its own key again
CREATE FUNCTION pg_temp.recursive() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c idem_answer := idem_claim('permit', 'recursive');
BEGIN
	IF c.verdict = 'execute' THEN
		RETURN pg_temp.recursive() || idem_complete(c, '"done"')::text;
	END IF;
	RETURN c.verdict;
END $$;
SELECT is(pg_temp.recursive(), 'in_progress"done"', 'its own key again');

-- a trigger that claims, also at the very end of a transaction
CREATE FUNCTION pg_temp.on_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM CASE TG_ARGV[0] WHEN 'done' THEN idem_complete(c) END FROM idem_claim('permit', NEW.what) c;
	RETURN NULL;
END $$;
CREATE TEMP TABLE deferred_done (what text);
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON deferred_done DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.on_insert('done');
CREATE TEMP TABLE deferred_open (what text);
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON deferred_open DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.on_insert('open');
INSERT INTO deferred_done VALUES ('deferred done');
SELECT is(:'SQLSTATE', '00000'::text, 'claimed and completed in a deferred trigger'), is(pg_temp.outcome('deferred done'), 's 1', 'recorded');
INSERT INTO deferred_open VALUES ('deferred open');
SELECT is(:'SQLSTATE', 'ID003'::text, 'left open in a deferred trigger'), is(pg_temp.outcome('deferred open'), 'nothing', 'nothing recorded');
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT (idem_claim('permit', 'held cursor')).verdict;
COMMIT;
SELECT is(:'SQLSTATE', 'ID003'::text, 'claimed by a cursor that is held at COMMIT');

-- DO blocks and procedures
DO $$ BEGIN PERFORM idem_claim('permit', 'do'); END $$;
SELECT is(:'SQLSTATE', 'ID003'::text, 'a DO block that leaves a claim open');
DO $$ BEGIN PERFORM idem_complete(c) FROM idem_claim('permit', 'do') c; END $$;
SELECT is(:'SQLSTATE', '00000'::text, 'one that does not'), is(pg_temp.outcome('do'), 's 1', 'recorded');
CREATE PROCEDURE pg_temp.each(keys text[], complete boolean) LANGUAGE plpgsql AS $$
DECLARE
	key text;
	c idem_answer;
BEGIN
	FOREACH key IN ARRAY keys LOOP
		c := idem_claim('permit', key);
		INSERT INTO business VALUES (key);
		IF complete THEN
			PERFORM idem_complete(c, to_jsonb(key));
		END IF;
		COMMIT;
	END LOOP;
END $$;
CALL pg_temp.each('{proc1,proc2}', true);
SELECT is(:'SQLSTATE', '00000'::text, 'a procedure that commits after each'), is(pg_temp.outcome('proc2'), 's 1 "proc2"', 'recorded');
CALL pg_temp.each('{proc3,proc4}', false);
SELECT is(:'SQLSTATE', 'ID003'::text, 'COMMIT in a procedure is refused'), is(count(*), 0::bigint, 'and nothing is left') FROM business WHERE what IN ('proc3', 'proc4');
CREATE PROCEDURE pg_temp.across() LANGUAGE plpgsql AS $$
DECLARE
	c idem_answer := idem_claim('permit', 'across');
BEGIN
	ROLLBACK;
	PERFORM idem_complete(c);
END $$;
CALL pg_temp.across();
SELECT is(:'SQLSTATE', 'ID001'::text, 'completed after a ROLLBACK in the procedure');
CREATE PROCEDURE pg_temp.refused_and_on() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_claim('permit', 'refused');
	BEGIN
		COMMIT;
	EXCEPTION WHEN OTHERS THEN
		INSERT INTO business VALUES (SQLSTATE);
	END;
END $$;
CALL pg_temp.refused_and_on();
SELECT is(:'SQLSTATE', 'ID003'::text, 'an exception block around COMMIT does not help'), is(pg_temp.outcome('refused'), 'nothing', 'nothing is left');
CREATE PROCEDURE pg_temp.lease_and_commit() LANGUAGE plpgsql AS $$
DECLARE
	c idem_answer := idem_claim('permit', 'lease and commit', lease => '1 h');
BEGIN
	COMMIT;
	PERFORM idem_complete(c, '1');
END $$;
CALL pg_temp.lease_and_commit();
SELECT is(:'SQLSTATE', '00000'::text, 'a lease outlives COMMIT'), is(pg_temp.outcome('lease and commit'), 's 1 1', 'and is completed');

-- A failed transaction has no claims; nor has the next one
BEGIN;
SELECT verdict FROM idem_claim('permit', 'failed transaction');
SELECT 1 / 0;
COMMIT;
SELECT is(:'SQLSTATE', '00000'::text, 'COMMIT of a failed transaction is a rollback');
SELECT is(pg_temp.outcome('failed transaction'), 'nothing', 'no trace');
BEGIN;
SAVEPOINT s;
SELECT verdict FROM idem_claim('permit', 'failed savepoint');
SELECT 1 / 0;
ROLLBACK TO s;
SELECT is((idem_status('permit', 'failed savepoint')).state, 'absent', 'void after an error and ROLLBACK TO');
COMMIT;
SELECT is(:'SQLSTATE', '00000'::text, 'nothing is left open');

-- Read-only transactions
BEGIN READ ONLY;
SELECT throws_ok('SELECT idem_claim(''permit'', ''read only'')', '25006', NULL, 'claim in a read-only transaction');
ROLLBACK;
BEGIN;
SELECT idem_claim('permit', 'read only')::text AS c \gset
SET TRANSACTION READ ONLY;
SELECT idem_complete(:'c');
\set state :SQLSTATE
ROLLBACK;
SELECT is(:'state', '25006'::text, 'complete in a transaction that has become read-only');
SELECT idem_complete(c) FROM idem_claim('permit', 'read only') c;
BEGIN READ ONLY;
SELECT state FROM idem_status('permit', 'read only') \gset
ROLLBACK;
SELECT is(:'state'::text, 'succeeded', 'status in a read-only transaction');

SELECT * FROM finish();
