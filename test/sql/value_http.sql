-- What an answer means: idem_value and idem_http_status, for every answer there is.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- Every verdict with every state, as if it had been answered
CREATE FUNCTION pg_temp.answer(verdict text, state text) RETURNS idem_answer LANGUAGE sql AS $$
SELECT jsonb_populate_record(NULL::idem_answer, jsonb_build_object('verdict', verdict, 'state', state, 'id', idem_id('value', 'k'),
	'operation', 'value', 'key', 'k', 'principal', 'acme', 'result', '{"r": 1}'::jsonb, 'error', '{"e": 1}'::jsonb))
$$;
CREATE TEMP TABLE meaning (verdict text, state text, http int, value text);
INSERT INTO meaning VALUES
	-- from a claim and its kin
	('execute', 'processing', 200, '22023'),
	('execute', 'accepted', 202, 'ID010'),
	('execute', 'failed', 422, 'ID014'),
	('execute', 'succeeded', 200, '{"r": 1}'),
	('replay', 'succeeded', 200, '{"r": 1}'),
	('replay', 'failed', 422, 'ID014'),
	('in_progress', 'processing', 409, 'ID010'),
	('in_progress', 'accepted', 202, 'ID010'),
	('mismatch', 'processing', 422, 'ID011'),
	('mismatch', 'accepted', 422, 'ID011'),
	('mismatch', 'succeeded', 422, 'ID011'),
	('mismatch', 'failed', 422, 'ID011'),
	('mismatch', 'unknown', 422, 'ID011'),
	('unknown', 'unknown', 409, 'ID012'),
	('expired', 'expired', 410, 'ID013'),
	-- from idem_status
	(NULL, 'absent', 404, 'ID001'),
	(NULL, 'unconfirmed', 404, 'ID001'),
	(NULL, 'accepted', 202, 'ID010'),
	(NULL, 'processing', 202, 'ID010'),
	(NULL, 'succeeded', 200, '{"r": 1}'),
	(NULL, 'failed', 422, 'ID014'),
	(NULL, 'unknown', 409, 'ID012'),
	(NULL, 'expired', 410, 'ID013');
SELECT is(idem_http_status(pg_temp.answer(verdict, state)), http, format('HTTP status of %s/%s', coalesce(verdict, 'status'), state)) FROM meaning;
SELECT is(CASE r.state WHEN 'none' THEN idem_value(pg_temp.answer(m.verdict, m.state))::text ELSE r.state END, value, format('value of %s/%s', coalesce(m.verdict, 'status'), m.state))
  FROM meaning m, LATERAL pg_temp.raised(format('SELECT idem_value(pg_temp.answer(%L, %L))', m.verdict, m.state)) r
 WHERE m.value LIKE '_____' AND m.value NOT LIKE '{%';
SELECT is(idem_value(pg_temp.answer(verdict, state)), value::jsonb, format('value of %s/%s', coalesce(verdict, 'status'), state)) FROM meaning WHERE value LIKE '{%';

-- The detail of ID014 is the stored error, whatever it is
SELECT idem_fail(c, e.error::jsonb) FROM unnest('{"{\"code\": 7}","\"text\"","null","[]",NULL}'::text[]) WITH ORDINALITY e (error, n), idem_claim('value', 'failed ' || n) c;
SELECT is(r.state || ' ' || r.detail, 'ID014 ' || coalesce(error::jsonb::text, ''), 'detail of an error ' || coalesce(error, 'NULL'))
  FROM unnest('{"{\"code\": 7}","\"text\"","null","[]",NULL}'::text[]) WITH ORDINALITY e (error, n), pg_temp.raised(format('SELECT idem_value(idem_claim(''value'', %L))', 'failed ' || n)) r;

-- As they come
SELECT is(idem_value(c), NULL, 'a result of SQL NULL') FROM idem_complete((SELECT c FROM idem_claim('value', 'null') c)) x, LATERAL idem_claim('value', 'null') c;
SELECT is(idem_complete(c, 'null'), 'null', 'a result of JSON null') FROM idem_claim('value', 'json null') c;
SELECT is(idem_value(idem_claim('value', 'json null')), 'null', 'is that');
SELECT is(idem_http_status(c), 200, 'execute'), is(idem_http_status(idem_claim('value', 'leased')), 409, 'in progress'), is(idem_http_status(idem_status('value', 'leased')), 202, 'processing')
  FROM idem_claim('value', 'leased', lease => '1 h') c;
SELECT is(idem_http_status(idem_status('value', 'never')), 404, 'absent');

-- No answer at all
SELECT throws_ok('SELECT idem_value(NULL)', '22023', NULL, 'value of NULL');
SELECT throws_ok('SELECT idem_http_status(NULL)', '22023', NULL, 'HTTP status of NULL');
SELECT throws_ok('SELECT idem_value(pg_temp.answer(NULL, NULL))', '22023', NULL, 'value of nothing');
SELECT throws_ok('SELECT idem_http_status(pg_temp.answer(NULL, NULL))', '22023', NULL, 'HTTP status of nothing');

-- Both compute from their argument alone
SELECT is(array_agg(concat(provolatile, proparallel) ORDER BY proname), '{is,is}', 'immutable and parallel safe') FROM pg_proc WHERE proname IN ('idem_value', 'idem_http_status');

SELECT * FROM finish();
