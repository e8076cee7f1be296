-- pgTAP: a test rolls back, so nothing is committed that COMMIT could refuse; SET
-- CONSTRAINTS ALL IMMEDIATE asks in its place.
\set QUIET 1
CREATE SCHEMA IF NOT EXISTS tap;
CREATE EXTENSION IF NOT EXISTS pgtap SCHEMA tap;
SET search_path = public, idempotency, tap;
BEGIN;
SELECT plan(15);
SET LOCAL idempotency.principal = 'pgtap';

SELECT * FROM idem_claim('create_order', 'k1', '{"item": "lamp"}') \gset
SELECT is(:'verdict'::text, 'execute', 'execute: \gset has the columns of the answer');
SELECT is(verdict::text || holder, 'in_progress' || pg_backend_pid(), 'in progress: also for a second claim of the same transaction')
FROM idem_claim('create_order', 'k1', '{"item": "lamp"}');
SELECT throws_ok('SET CONSTRAINTS ALL IMMEDIATE', 'ID003', NULL, 'forgotten completion: SET CONSTRAINTS ALL IMMEDIATE raises what COMMIT would');
SELECT results_eq('SELECT key FROM idem_left_open()', ARRAY['k1'], 'forgotten completion: idem_left_open() names it');
SELECT is(idem_complete_key('create_order', 'k1', :fence, '{"order": 1}'), '{"order": 1}', 'execute: the result is handed back');
SELECT lives_ok('SET CONSTRAINTS ALL IMMEDIATE', 'forgotten completion: none is');
SELECT is(verdict::text || result, 'replay{"order": 1}', 'replay: the recorded result') FROM idem_claim('create_order', 'k1', '{"item": "lamp"}');
SELECT is(verdict, 'mismatch', 'mismatch: other params') FROM idem_claim('create_order', 'k1', '{"item": "desk"}');

SELECT fence AS failing FROM idem_claim('create_order', 'k3') \gset
SELECT throws_ok($$ INSERT INTO orders (client, item, quantity) VALUES ('pgtap', 'lamp', 0) $$, '23514', NULL, 'savepoint: throws_ok is one, the claim outlives it');
SELECT idem_fail_key('create_order', 'k3', :failing, '{"code": "bad_quantity"}') \g /dev/null
SELECT is(error, '{"code": "bad_quantity"}', 'failure recorded: it is replayed') FROM idem_claim('create_order', 'k3');

SELECT fence AS leased FROM idem_claim('create_order', 'k4', lease => interval '30 s') \gset
SELECT is(idem_complete_key('create_order', 'k4', :leased, '[]'), '[]', 'leased call: in one transaction it is as one without lease');
SELECT is(idem_complete(c, '[1, 2]'), '[1, 2]', 'answer handed back: as the composite it is') FROM idem_claim('create_order', 'k5') c;
SELECT is(ARRAY[idem_once('on_payment', 'e1'), idem_once('on_payment', 'e1')], '{t,f}', 'once: true, then false');
SAVEPOINT test;
SELECT verdict FROM idem_claim('create_order', 'k6') \g /dev/null
ROLLBACK TO SAVEPOINT test;
SELECT lives_ok('SET CONSTRAINTS ALL IMMEDIATE', 'trap: a test that rolls back before it asks passes over what was forgotten');
SELECT throws_ok($$ SELECT idem_once('on_payment', gen_random_uuid()) $$, '42883', NULL, 'types: a key of type uuid is no text: cast it');
ROLLBACK;
