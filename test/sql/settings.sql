-- Settings of operations: idem_define, idem_policy, and who may use an operation
-- (role, principal_setting; C12).
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- The defaults, as the contract has them
SELECT is(idem_policy('undefined'), '{
	"retention": "24 h", "guard": "0", "lease": null, "on_lease_expiry": "reconcile", "max_attempts": null,
	"deadline": null, "reconcile_attempts": 20, "wait": "0", "retry_after": "1 s", "defaults": {}, "fields": null,
	"ignore": [], "unordered": [], "numbers": "exact", "key_format": "any", "clock_skew": "5 min", "role": null,
	"principal_setting": null, "require_params": false, "max_params_bytes": 1048576, "max_result_bytes": 1048576,
	"log_requests": false, "resource_pointer": null, "error_pointer": null, "max_lease": "1 day", "store_result": true}'::jsonb, 'defaults');

-- Good and bad values of each
CREATE TEMP TABLE good (setting text, value jsonb);
INSERT INTO good VALUES
	('retention', '"0"'), ('retention', '"1 us"'), ('retention', '"7 days"'), ('retention', '"P1DT2H"'), ('retention', '"366000 days"'), ('retention', 'null'),
	('guard', '"0"'), ('guard', '"90 days"'),
	('max_lease', '"1 us"'), ('max_lease', '"30 days"'), ('max_lease', 'null'),
	('lease', '"30 s"'), ('lease', '"0"'), ('lease', 'null'),
	('on_lease_expiry', '"retry"'), ('on_lease_expiry', '"reconcile"'),
	('max_attempts', '1'), ('max_attempts', '2147483647'), ('max_attempts', '3.0'), ('max_attempts', 'null'),
	('deadline', '"1 us"'), ('deadline', '"1 day"'), ('deadline', 'null'),
	('reconcile_attempts', '0'), ('reconcile_attempts', '100'),
	('wait', '"0"'), ('wait', '"2 s"'),
	('retry_after', '"1 us"'), ('retry_after', '"1 h"'),
	('defaults', '{}'), ('defaults', '{"currency": "EUR", "nested": {"a": [1, null]}}'),
	('fields', '[]'), ('fields', '["/amount", "/items/*/sku", ""]'), ('fields', 'null'),
	('ignore', '[]'), ('ignore', '["/requestedAt", "/a~1b", "/c~0d"]'),
	('unordered', '[]'), ('unordered', '["/items", "/lines/*/tags"]'),
	('numbers', '"exact"'), ('numbers', '"double"'),
	('key_format', '"any"'), ('key_format', '"uuid"'), ('key_format', '"uuidv7"'), ('key_format', '"ulid"'),
	('clock_skew', '"0"'), ('clock_skew', '"1 min"'),
	('role', '"postgres"'), ('role', '"no such role"'), ('role', 'null'),
	('principal_setting', '"current_user"'), ('principal_setting', '"session_user"'), ('principal_setting', '"app.tenant"'),
	('principal_setting', '"request.jwt.claims ->> sub"'), ('principal_setting', 'null'),
	('require_params', 'true'), ('require_params', 'false'),
	('max_params_bytes', '1'), ('max_params_bytes', '104857600'),
	('max_result_bytes', '1'), ('max_result_bytes', '104857600'),
	('log_requests', 'true'), ('log_requests', 'false'),
	('store_result', 'false'), ('store_result', 'true'),
	('resource_pointer', '"/order/id"'), ('resource_pointer', 'null'),
	('error_pointer', '"/code"'), ('error_pointer', 'null');
CREATE TEMP TABLE bad (setting text, value jsonb);
INSERT INTO bad
SELECT setting, value FROM unnest('{retention,guard,lease,max_lease,deadline,wait,retry_after,clock_skew}'::text[]) setting,
	jsonb_array_elements('["-1 s", "1 mon", "1 year", "1 mon -30 days", "soon", "", 1, true, {}, [], "1000000 days", "-1000000 days", "1 day -25 hours", "infinity"]') value UNION ALL
SELECT setting, 'null' FROM unnest('{guard,wait,retry_after,clock_skew,on_lease_expiry,reconcile_attempts,numbers,key_format,require_params,max_params_bytes,max_result_bytes,log_requests,store_result}'::text[]) setting UNION ALL
SELECT setting, '"0"' FROM unnest('{deadline,retry_after,max_lease}'::text[]) setting UNION ALL
SELECT setting, value FROM unnest('{max_attempts,max_params_bytes,max_result_bytes}'::text[]) setting, jsonb_array_elements('[0, -1, 1.5, 2147483648, 1e300, "1", true, [], {}]') value UNION ALL
SELECT 'reconcile_attempts', value FROM jsonb_array_elements('[-1, 1.5, 2147483648, "1", true]') value UNION ALL
SELECT setting, value FROM unnest('{on_lease_expiry,key_format,numbers}'::text[]) setting, jsonb_array_elements('["", "Retry", "never", 1, true, [], {}]') value UNION ALL
SELECT setting, value FROM unnest('{require_params,log_requests,store_result}'::text[]) setting, jsonb_array_elements('["true", 1, [], {}]') value UNION ALL
SELECT setting, value FROM unnest('{role,principal_setting,resource_pointer,error_pointer}'::text[]) setting, jsonb_array_elements('["", 1, true, [], {}]') value UNION ALL
SELECT 'role', to_jsonb(repeat('r', 64)) UNION ALL
SELECT 'resource_pointer', value FROM jsonb_array_elements('["order/id", "/a~2b"]') value;
SELECT lives_ok(format('SELECT idem_define(%L, %L)', 'set_' || setting, jsonb_build_object(setting, value)), format('%s %s', setting, value)) FROM good;
SELECT is(idem_policy('set_' || setting)->setting, (array_agg(value ORDER BY good.ctid DESC))[1], setting || ' is shown as given') FROM good GROUP BY setting ORDER BY setting;
SELECT throws_ok(format('SELECT idem_define(%L, %L)', 'set_' || setting, jsonb_build_object(setting, value)), '22023', NULL, format('%s %s', setting, value)) FROM bad;
SELECT is(array_agg(setting ORDER BY setting), '{defaults,fields,ignore,unordered}', 'each setting was tried, but for bad values of those that shape params')
  FROM jsonb_object_keys(idem_policy('undefined')) setting
 WHERE setting NOT IN (SELECT setting FROM good) OR setting NOT IN (SELECT setting FROM bad);
SELECT is(idem_policy('set_' || setting)->setting, (array_agg(value ORDER BY good.ctid DESC))[1], setting || ' is unchanged by bad values') FROM good GROUP BY setting ORDER BY setting;

-- Not settings at all
SELECT throws_ok(format('SELECT idem_define(''set'', %L)', settings), '22023', NULL, format('settings %L', settings))
  FROM unnest('{"{\"retentoin\": \"1 h\"}","{\"Retention\": \"1 h\"}","{\"retention \": \"1 h\"}","{\"\": 1}",[],"[{\"retention\": \"1 h\"}]",1,null,"\"retention\"",NULL}'::jsonb[]) settings;
SELECT throws_ok('SELECT idem_define(''set'', ''{"wait": "1 s", "retention": "1 h", "colour": 1}'')', '22023', NULL, 'one unknown among good ones');
SELECT is(idem_policy('set'), idem_policy('undefined'), 'nothing was stored');
SELECT throws_ok(format('SELECT idem_define(%L, ''{}'')', operation), '22023', NULL, format('operation %L', left(operation, 10))) FROM unnest(ARRAY[NULL, '', repeat('o', 256)]) operation;
SELECT throws_ok(format('SELECT idem_policy(%L)', operation), '22023', NULL, format('policy of operation %L', left(operation, 10))) FROM unnest(ARRAY[NULL, '', repeat('o', 256)]) operation;
SELECT lives_ok(format('SELECT idem_define(%L, ''{"wait": "1 s"}''), idem_policy(%1$L)', operation), format('operation %L', left(operation, 10))) FROM unnest(ARRAY[repeat('o', 255), 'é', ' ']) operation;
SELECT lives_ok('SELECT idem_define(''set'', ''{}'')', 'no settings');

-- Absent = unchanged; null = none
SELECT idem_define('set_more', '{"lease": "1 h", "wait": "1 ms"}');
SELECT idem_define('set_more', '{"lease": "2 h"}');
SELECT is(idem_policy('set_more'), idem_policy('undefined') || '{"lease": "2 h", "wait": "1 ms"}', 'what is not named keeps its value');
SELECT idem_define('set_more', '{"lease": null}');
SELECT is(idem_policy('set_more'), idem_policy('undefined') || '{"wait": "1 ms"}', 'null means none');

-- Operation *: the defaults of all
SELECT idem_define('*', '{"guard": "1 h", "retry_after": "2 s"}');
SELECT is(idem_policy('undefined')->>'guard', '1 h', '* reaches operations without settings'), is(idem_policy('set_more')->>'guard', '1 h', 'and those with settings of their own'),
	is(idem_policy('*')->>'guard', '1 h', 'and shows itself');
SELECT idem_define('set_more', '{"guard": "2 h"}');
SELECT is(idem_policy('set_more')->>'guard', '2 h', 'an operation''s own setting wins'), is(idem_policy('set_more')->>'retry_after', '2 s', 'over that of * only where given');
SELECT idem_define('*', '{"guard": "3 h"}');
SELECT is(idem_policy('set_more')->>'guard', '2 h', 'also if * changes later'), is(idem_policy('undefined')->>'guard', '3 h', 'which the others follow');
SELECT throws_ok('SELECT idem_define(''*'', ''{"guard": "1 mon"}'')', '22023', NULL, 'a bad value for *');
SELECT idem_define('*', '{"guard": "0", "retry_after": "1 s"}');
SELECT throws_ok('SELECT idem_claim(''*'', ''k'')', '22023', NULL, 'W15: no key of the operation * that stands for all');

-- A change acts at once, and only if it commits
BEGIN;
SELECT idem_define('set_tx', '{"retention": "1 h"}');
SELECT idem_complete(c) FROM idem_claim('set_tx', 'inside') c;
SELECT is(expires_at - finished_at, '1 h', 'in the same transaction') FROM idem_status('set_tx', 'inside');
SAVEPOINT s;
SELECT idem_define('set_tx', '{"retention": "2 h"}');
SELECT is(idem_policy('set_tx')->>'retention', '2 h', 'in a savepoint');
ROLLBACK TO s;
SELECT is(idem_policy('set_tx')->>'retention', '1 h', 'after its rollback');
SELECT idem_complete(c) FROM idem_claim('set_tx', 'after') c;
SELECT is(expires_at - finished_at, '1 h', 'claims too') FROM idem_status('set_tx', 'after');
ROLLBACK;
SELECT is(idem_policy('set_tx'), idem_policy('undefined'), 'after ROLLBACK');
SELECT is(idem_complete(c), NULL, 'defined, claimed and completed in one statement') FROM idem_define('set_one', '{"retention": "1 h"}'), LATERAL idem_claim('set_one', 'k') c;
SELECT is(expires_at - finished_at, '1 h', 'under the new settings') FROM idem_status('set_one', 'k');
-- records keep the ends they were given
SELECT idem_define('set_one', '{"retention": "2 h", "guard": "1 h"}');
SELECT is(forget_at - finished_at, '1 h', 'a record keeps its retention and guard') FROM idem_status('set_one', 'k');

-- What the settings do
SELECT idem_define('set_params', '{"require_params": true, "max_params_bytes": 11}');
SELECT throws_ok('SELECT idem_claim(''set_params'', ''k'')', '22023', NULL, 'require_params: none given');
SELECT throws_ok('SELECT idem_claim(''set_params'', ''k'', ''{"abcd": 12}'')', '22023', NULL, 'max_params_bytes: 12 bytes of text');
BEGIN;
SELECT is((idem_claim('set_params', 'k', '{"abcd": 1}')).verdict, 'execute', 'max_params_bytes: 11 bytes');
SELECT is((idem_claim('set_params', 'k2', 'null')).verdict, 'execute', 'require_params: JSON null is something');
SELECT is((idem_claim('set_params', 'k3', fingerprint => sha256(''))).verdict, 'execute', 'require_params: so is a fingerprint');
ROLLBACK;
SELECT idem_define('set_uuid', '{"key_format": "uuid"}');
SELECT throws_ok(format('SELECT idem_claim(''set_uuid'', %L)', key), '22023', NULL, 'key_format uuid: ' || key)
  FROM unnest('{k,019a0000-0000-7000-8000-00000000000,019a00000000700080000000000000001,019a0000-0000-7000-8000-00000000000g,"{019a0000-0000-7000-8000-000000000001}"," 019a0000-0000-7000-8000-000000000001"}'::text[]) key;
BEGIN;
SELECT is((idem_claim('set_uuid', key)).verdict, 'execute', 'key_format uuid: ' || key)
  FROM unnest('{6ba7b810-9dad-11d1-80b4-00c04fd430c8,6BA7B810-9DAD-41D1-80B4-00C04FD430C8}'::text[]) key;
ROLLBACK;
SELECT idem_release(idem_claim('set_later', 'k', lease => '1 h'));
SELECT idem_define('set_later', '{"key_format": "uuid"}');
SELECT throws_ok('SELECT idem_claim(''set_later'', ''k2'')', '22023', NULL, 'key_format: of a new key'), is((idem_claim('set_later', 'k', lease => '1 h')).verdict, 'execute', 'not of one that was released before');

-- Who may: role (C12)
CREATE ROLE regress_idem_clerk;
CREATE ROLE regress_idem_boss IN ROLE regress_idem_clerk;
CREATE ROLE regress_idem_noinherit NOINHERIT IN ROLE regress_idem_clerk;
CREATE ROLE regress_idem_other;
SELECT idem_grant(rolname) FROM pg_roles WHERE rolname ~ '^regress_idem_';
GRANT USAGE ON SCHEMA tap TO regress_idem_clerk, regress_idem_boss, regress_idem_noinherit, regress_idem_other;
CREATE FUNCTION pg_temp.try(who name, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', who);
	BEGIN
		EXECUTE call INTO r;
	EXCEPTION WHEN OTHERS THEN
		-- the id is of the key that was asked for, and says nothing about it
		r := SQLSTATE || ' ' || regexp_replace(SQLERRM, '[0-9a-f-]{36}', 'ID');
	END;
	RESET ROLE;
	RETURN r;
END $$;
SELECT idem_define('set_role', '{"role": "regress_idem_clerk"}');
SELECT is(pg_temp.try(who, format('SELECT idem_complete(c, ''"by %s"'') FROM idem_claim(''set_role'', %1$L) c', who)), format('"by %s"', who), 'role: ' || who)
  FROM unnest('{regress_idem_clerk,regress_idem_boss,postgres}'::name[]) who;
CREATE TEMP TABLE call (what text);
INSERT INTO call VALUES ('SELECT idem_claim(''set_role'', ''%s'')'), ('SELECT idem_status(''set_role'', ''%s'')'), ('SELECT idem_complete_key(''set_role'', ''%s'', 1)'),
	('SELECT idem_fail_key(''set_role'', ''%s'', 1, ''1'')'), ('SELECT idem_renew_key(''set_role'', ''%s'', 1, ''1 h'')'), ('SELECT idem_release_key(''set_role'', ''%s'', 1)'),
	('SELECT idem_unsure_key(''set_role'', ''%s'', 1)'), ('SELECT idem_policy(''set_role'')');
SELECT matches(pg_temp.try(who, format(what, 'regress_idem_clerk')), '^42501 .*\"set_role\"', format('role: %s: %s', who, what))
  FROM call, unnest('{regress_idem_other,regress_idem_noinherit}'::name[]) who ORDER BY what, who;
SELECT is(pg_temp.try('regress_idem_other', format(what, 'regress_idem_clerk')), pg_temp.try('regress_idem_other', format(what, 'never seen')), 'the same whether or not the key exists: ' || what) FROM call ORDER BY what;
SELECT idem_define('set_role', '{"role": "regress idem nobody"}');
SELECT is(left(pg_temp.try(who, 'SELECT idem_claim(''set_role'', ''k'')'), 5), '42501', 'a missing role means nobody: ' || who)
  FROM unnest('{regress_idem_clerk,postgres}'::name[]) who;
SELECT idem_define('set_role', '{"role": "regress_idem_clerk"}');
-- C12: revoked between the first try and the retry
REVOKE regress_idem_clerk FROM regress_idem_boss;
SELECT matches(pg_temp.try('regress_idem_boss', 'SELECT idem_claim(''set_role'', ''regress_idem_boss'')'), '^42501 .*\"set_role\"', 'C12: revoked: refused, and no result');
GRANT regress_idem_clerk TO regress_idem_boss;
SELECT is(pg_temp.try('regress_idem_boss', 'SELECT (idem_claim(''set_role'', ''regress_idem_boss'')).result'), '"by regress_idem_boss"', 'C12: granted again: replay');
SELECT idem_define('set_role', '{"role": null}');
SELECT is(pg_temp.try('regress_idem_other', 'SELECT (idem_claim(''set_role'', ''regress_idem_boss'')).result'), '"by regress_idem_boss"', 'role null: anyone who may call');

-- Who may: principal_setting
SELECT idem_define('set_cu', '{"principal_setting": "current_user"}');
SELECT is(pg_temp.try('regress_idem_clerk', 'SELECT idem_complete(c, ''1'') FROM idem_claim(''set_cu'', ''k'', principal => ''regress_idem_clerk'') c'), '1', 'current_user: its own');
SELECT matches(pg_temp.try('regress_idem_other', format('SELECT %s', replace(call, 'PRINCIPAL', quote_literal('regress_idem_clerk')))), '^42501 .*\"set_cu\"', 'current_user: another''s: ' || call)
  FROM unnest('{"idem_claim(''set_cu'', ''k'', principal => PRINCIPAL)","idem_status(''set_cu'', ''k'', PRINCIPAL)","idem_complete_key(''set_cu'', ''k'', 1, ''1'', PRINCIPAL)","idem_status(''set_cu'', ''never'', PRINCIPAL)"}'::text[]) call;
SELECT is(left(pg_temp.try('regress_idem_other', 'SELECT idem_claim(''set_cu'', ''k'')'), 5), '42501', 'current_user: nor by the setting idempotency.principal');
SELECT idem_define('set_su', '{"principal_setting": "session_user"}');
SELECT is(left(pg_temp.try('regress_idem_clerk', 'SELECT idem_claim(''set_su'', ''k'', principal => ''regress_idem_clerk'')'), 5), '42501', 'session_user: SET ROLE changes nothing');
SELECT is(pg_temp.try('regress_idem_clerk', format('SELECT (idem_status(''set_su'', ''k'', %L)).state', session_user)), 'absent', 'session_user: its own');
SELECT idem_define('set_guc', '{"principal_setting": "app.tenant"}');
SELECT is(left(pg_temp.try('regress_idem_clerk', 'SELECT idem_claim(''set_guc'', ''k'')'), 5), '42501', 'a setting that is not set: nobody');
SET app.tenant = 'acme';
SELECT is(pg_temp.try('regress_idem_clerk', 'SELECT (idem_status(''set_guc'', ''k'')).state'), 'absent', 'a setting: equal');
SELECT is(left(pg_temp.try('regress_idem_clerk', format('SELECT idem_status(''set_guc'', ''k'', %L)', principal)), 5), '42501', format('a setting: not %L', principal))
  FROM unnest('{Acme,"acme ",acm,acmee}'::text[]) principal;
SET app.tenant = '';
SELECT is(left(pg_temp.try('regress_idem_clerk', 'SELECT idem_status(''set_guc'', ''k'')'), 5), '42501', 'a setting that is empty: nobody');
SELECT idem_define('set_jwt', '{"principal_setting": "request.jwt.claims ->> sub"}');
SELECT is(left(pg_temp.try('regress_idem_clerk', 'SELECT (idem_status(''set_jwt'', ''k'')).state FROM set_config(''request.jwt.claims'', ' || quote_literal(claims) || ', true)'), 6), result, 'claims ' || claims)
  FROM (VALUES ('{"sub": "acme"}', 'absent'), ('{"sub": "acme", "role": "x"}', 'absent'), ('{"sub": "other"}', '42501 '), ('{"sub": null}', '42501 '), ('{"sub": 1}', '42501 '),
	('{"sub": ["acme"]}', '42501 '), ('{"Sub": "acme"}', '42501 '), ('{}', '42501 '), ('[]', '42501 '), ('"acme"', '42501 '), ('', '42501 '), ('{', '42501 '), ('acme', '42501 ')) v (claims, result);
SELECT idem_define('set_jwt2', '{"principal_setting": "request.jwt.claims->>sub"}');
SET request.jwt.claims = '{"sub": "acme"}';
SELECT is(pg_temp.try('regress_idem_clerk', 'SELECT (idem_status(''set_jwt2'', ''k'')).state'), 'absent', 'without blanks around the arrow');
-- both before and after a record exists
SELECT is(pg_temp.try('regress_idem_clerk', 'SELECT idem_complete(c, ''1'') FROM idem_claim(''set_jwt'', ''k'') c'), '1', 'completed');
SET request.jwt.claims = '{"sub": "other"}';
SELECT matches(pg_temp.try('regress_idem_clerk', format('SELECT idem_claim(''set_jwt'', %L)', key)), '^42501 .*\"set_jwt\"', 'another''s, key ' || key) FROM unnest('{k,never}'::text[]) key;
-- a permit handed over by somebody else
SET request.jwt.claims = '{"sub": "acme"}';
SELECT idem_claim('set_jwt', 'handed over', lease => '1 h')::text AS c \gset
SET request.jwt.claims = '{"sub": "other"}';
SELECT throws_ok(format('SELECT idem_complete(%L)', :'c'), '42501', NULL, 'a permit of another principal is no use');

-- A row that was broken by hand is refused by its own operation's calls only.
DO $$
DECLARE
	broken text[];
BEGIN
	FOREACH broken SLICE 1 IN ARRAY '{{"{\"retention\": 12}",[]}, {"{\"unordered\": \"no array\"}",[]}, {"[]",[]}, {"7",[]}, {"{}","{}"}, {"{}","1"}, {"{\"ignore\": [\"/a\"], \"retention\": \"none\"}",[]}}'::text[]
	LOOP
		INSERT INTO idempotency_internal.policy VALUES ('set_broken ' || broken::text, broken[1]::jsonb, broken[2]::jsonb);
	END LOOP;
END $$;
SELECT is(count(*), 7::bigint, 'seven kinds of broken rows') FROM idempotency_internal.policy WHERE operation LIKE 'set\_broken%';
SELECT lives_ok('SELECT idem_define(''set_whole'', ''{"retention": "3 h", "ignore": ["/x"]}'')', 'another operation is defined');
SELECT lives_ok('SELECT idem_define(''set_whole'', ''{"retention": "2 h", "ignore": ["/y"]}'')', 'and changed');
SELECT is(horizons -> -1 ->> 'length', '10800000000', 'the horizon it had is kept') FROM idempotency_internal.policy WHERE operation = 'set_whole';
SELECT lives_ok('SELECT idem_define(''*'', ''{"guard": "1 min"}'')', 'so are the defaults of all');
SELECT lives_ok('SELECT idem_define(''*'', ''{"guard": "0"}'')', 'and back');
SELECT isnt((SELECT idem_claim('set_whole', 'k', '{}', lease => '1 h')).verdict, NULL, 'and used');
SELECT matches(pg_temp.try(session_user::text, format('SELECT idem_define(%L, ''{"wait": "1 s"}'')', operation)), '^(22023|XX001) ', 'its own definition is refused: ' || settings::text || ' ' || horizons::text)
  FROM idempotency_internal.policy WHERE operation LIKE 'set\_broken%' ORDER BY operation;
SELECT throws_ok('SELECT idem_define(''*'', ''{"lease": "none"}'')', '22023', NULL, 'what would break others is still refused');
DELETE FROM idempotency_internal.policy WHERE operation LIKE 'set\_broken%';

-- A list of databases that is none
ALTER SYSTEM SET idempotency.databases = 'one, "two';
SELECT is(:'SQLSTATE'::text, '22023', 'idempotency.databases: a list that does not end: 22023');

SELECT idem_revoke(rolname) FROM pg_roles WHERE rolname ~ '^regress_idem_';
DROP OWNED BY regress_idem_clerk, regress_idem_boss, regress_idem_noinherit, regress_idem_other;
DROP ROLE regress_idem_boss, regress_idem_noinherit, regress_idem_clerk, regress_idem_other;
SELECT throws_ok($$SELECT idem_define('set', '{"wait": "213503983 days"}')$$, '22023', NULL, 'more days than there are microseconds for');
SELECT * FROM finish();
