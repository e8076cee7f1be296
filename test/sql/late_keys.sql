-- Keys of a format, keys that carry their time, and what comes too late: C09,
-- C10, C56; contract §4, §5, invariant 8.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- A UUIDv7, or a ULID, made that long ago; n tells keys of one time apart.
CREATE FUNCTION pg_temp.v7(age interval, n int DEFAULT 0) RETURNS text LANGUAGE sql AS $$
	SELECT substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-7' || lpad(to_hex(n), 3, '0') || '-8000-000000000000'
	FROM lpad(to_hex((extract(epoch FROM clock_timestamp() - age) * 1000)::bigint), 12, '0') hex
$$;
CREATE FUNCTION pg_temp.ulid(age interval) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', ((ms >> (5 * i)) & 31)::int + 1, 1), '' ORDER BY i DESC) || repeat('0', 16)
	FROM (SELECT (extract(epoch FROM clock_timestamp() - age) * 1000)::bigint AS ms) t, generate_series(0, 9) i
$$;
CREATE FUNCTION pg_temp.claim(operation text, key text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', verdict, state, advice) FROM idem_claim($1, $2, NULL, 'acme', '1 h')
$$;
-- As if the record had been made that much earlier.
CREATE FUNCTION pg_temp.age_record(operation text, key text, by interval) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	place regclass;
BEGIN
	FOR place IN SELECT pg_temp.tables_of_records() LOOP
		EXECUTE format('UPDATE %s SET finished_at = finished_at - $1, expires_at = expires_at - $1, forget_at = forget_at - $1 WHERE id = $2', place)
			USING by, idem_id(operation, key, 'acme');
	END LOOP;
END
$$;


-- Formats
SELECT idem_define('any', '{}'), idem_define('uuid', '{"key_format": "uuid"}'),
	idem_define('v7', '{"key_format": "uuidv7", "retention": "1 h", "guard": "1 h"}'),
	idem_define('ulid', '{"key_format": "ulid", "retention": "1 h", "guard": "1 h"}') \gset d_
SELECT lives_ok(format('SELECT idem_claim(%L, %L, principal => ''acme'', lease => ''1 h'')', operation, key), operation || ' takes ' || what)
FROM (VALUES ('any', 'x', 'anything'), ('uuid', '019a0000-0000-4000-8000-000000000001', 'a UUIDv4'),
	('uuid', '019A0000-0000-7000-8000-00000000000F', 'upper case'), ('v7', pg_temp.v7('0'), 'a UUIDv7'), ('ulid', pg_temp.ulid('0'), 'a ULID')) v (operation, key, what);
SELECT throws_ok(format('SELECT idem_claim(%L, %L, principal => ''acme'')', operation, key), '22023', NULL, operation || ' refuses ' || what)
FROM (VALUES ('uuid', 'x', 'a word'), ('uuid', '019a000000004000800000000000000', 'one without hyphens'), ('uuid', '{019a0000-0000-4000-8000-000000000001}', 'one in braces'),
	('uuid', '019a0000-0000-4000-8000-00000000000g', 'what is not hexadecimal'),
	('v7', '019a0000-0000-4000-8000-000000000001', 'a UUIDv4'), ('v7', '019a0000-0000-7000-c000-000000000001', 'another variant'), ('v7', pg_temp.ulid('0'), 'a ULID'),
	('ulid', pg_temp.v7('0'), 'a UUIDv7'), ('ulid', lower(pg_temp.ulid('0')) || '', 'lower case'), ('ulid', '8' || substr(pg_temp.ulid('0'), 2), 'a time beyond 48 bits'),
	('ulid', replace(pg_temp.ulid('0'), '0', 'U'), 'a letter Crockford left out')) v (operation, key, what);
SELECT lives_ok(format('SELECT idem_status(%L, %L, ''acme'')', 'v7', 'x'), 'a question about such a key is no error');
SELECT throws_ok(format('SELECT %s', call), '22023', NULL, call || ' checks the format too')
FROM unnest('{"idem_accept(''v7'', ''x'', principal => ''acme'')","idem_once(''v7'', ''x'', ''acme'')","idem_cancel(''v7'', ''x'', ''acme'')","idem_once_many(''v7'', ''{x}'', ''acme'')"}'::text[]) call;

-- The future
SELECT lives_ok(format('SELECT idem_claim(''v7'', %L, principal => ''acme'', lease => ''1 h'')', pg_temp.v7('-4 min')), 'ahead by less than clock_skew');
SELECT throws_ok(format('SELECT idem_claim(''v7'', %L, principal => ''acme'')', pg_temp.v7('-6 min')), '22023', NULL, 'ahead by more');
SELECT throws_ok(format('SELECT idem_claim(''ulid'', %L, principal => ''acme'')', pg_temp.ulid('-6 min')), '22023', NULL, 'a ULID as well');
BEGIN;
SELECT idem_once('v7', pg_temp.v7('-4 min', 7), 'acme') \g /dev/null
SELECT ok(forget_at > finished_at + '2 h 3 min', 'its outcome is remembered from the time of the key on'), is(expires_at, finished_at + '1 h', 'and kept from now on')
  FROM idempotency_internal.every_record WHERE operation = 'v7' AND key LIKE '%-7007-%';
ROLLBACK;
SELECT idem_define('v7', '{"clock_skew": "10 min"}') \gset d_
SELECT lives_ok(format('SELECT idem_claim(''v7'', %L, principal => ''acme'', lease => ''1 h'')', pg_temp.v7('-6 min')), 'clock_skew decides');
SELECT lives_ok(format('SELECT idem_claim(''any'', %L, principal => ''acme'', lease => ''1 h'')', pg_temp.v7('-6 days')), 'elsewhere the time of a key means nothing');

-- A key on record is answered from the record, whatever the settings say now
SELECT idem_define('w06', '{}'), idem_define('w06_ahead', '{"key_format": "uuidv7", "clock_skew": "10 min"}') \gset d_
SELECT pg_temp.v7('-6 min') AS ahead, pg_temp.v7('-6 min', 1) AS ahead_work \gset
SELECT idem_once(operation, key, 'acme') FROM (VALUES ('w06', 'old-key'), ('w06_ahead', :'ahead')) v (operation, key);
SELECT (idem_accept(operation, key, principal => 'acme')).verdict FROM (VALUES ('w06', 'old-work'), ('w06_ahead', :'ahead_work')) v (operation, key);
SELECT idem_release(idem_claim('w06', 'released', principal => 'acme', lease => '1 h'));
SELECT idem_define('w06', '{"key_format": "uuidv7"}'), idem_define('w06_ahead', '{"clock_skew": "5 min"}') \gset d_
SELECT is(pg_temp.claim(operation, key), 'replay succeeded use_result', 'W06: claim replays a key of ' || operation),
	is(idem_once(operation, key, 'acme'), false, 'W06: once has seen it'), is((SELECT count(*) FROM idem_once_many(operation, ARRAY[key], 'acme'))::int, 0, 'W06: once_many too'),
	is((idem_cancel(operation, key, 'acme')).state, 'succeeded', 'W06: cancel tells it'), is((idem_status(operation, key, 'acme')).state, 'succeeded', 'W06: and status'),
	is((idem_accept(operation, key, principal => 'acme')).verdict, 'replay', 'W06: and accept')
  FROM (VALUES ('w06', 'old-key'), ('w06_ahead', :'ahead')) v (operation, key);
SELECT is((idem_start(operation, key, '1 h', 'acme')).verdict, 'execute', 'W06: accepted work of ' || operation || ' is started')
  FROM (VALUES ('w06', 'old-work'), ('w06_ahead', :'ahead_work')) v (operation, key);
SELECT is(pg_temp.claim('w06', 'released'), 'execute processing run', 'W06: a released key is on record');
SELECT throws_ok(format('SELECT idem_%s(''w06'', ''new-key'', principal => ''acme'')', call), '22023', NULL, 'a key that is not is judged: ' || call)
  FROM unnest('{claim,accept,start,cancel,once}'::text[]) call;

-- Late keys, of which nothing is on record
SELECT is(pg_temp.claim('v7', pg_temp.v7('119 min', 1)), 'execute processing run', 'younger than retention + guard');
SELECT is(pg_temp.claim('v7', pg_temp.v7('121 min', 2)), 'expired expired reconcile', 'older: late');
SELECT is(pg_temp.claim('ulid', pg_temp.ulid('119 min')), 'execute processing run', 'a ULID, younger');
SELECT is(pg_temp.claim('ulid', pg_temp.ulid('121 min')), 'expired expired reconcile', 'older');
SELECT is(pg_temp.claim('any', pg_temp.v7('10 years')), 'execute processing run', 'elsewhere no key is late');
SELECT is(pg_temp.shape(idem_status('v7', pg_temp.v7('121 min', 3), 'acme')), '- expired reconcile: who', 'status of a late key');
SELECT is((idem_accept('v7', pg_temp.v7('121 min', 4), NULL, 'acme')).verdict::text, 'expired', 'accept');
SELECT is((idem_cancel('v7', pg_temp.v7('121 min', 5), 'acme')).verdict::text, 'expired', 'cancel: cannot be proved any more');
SELECT throws_ok(format('SELECT idem_once(''v7'', %L, ''acme'')', pg_temp.v7('121 min', 6)), 'ID013', NULL, 'once');
SELECT is((SELECT count(*) FROM idempotency_internal.every_record WHERE operation IN ('v7') AND state <> 'p')::int, 0, 'none of them left a record');
SELECT idem_define('v7', '{"retention": null}') \gset d_
SELECT is(pg_temp.claim('v7', pg_temp.v7('121 min', 7)), 'expired expired reconcile', 'kept for ever from now on: what was late before stays so');
SELECT idem_define('forever', '{"key_format": "uuidv7", "retention": null}') \gset d_
SELECT is(pg_temp.claim('forever', pg_temp.v7('23 h', 1)), 'execute processing run', 'kept for ever from the beginning: only the defaults before it count');
SELECT is(pg_temp.claim('forever', pg_temp.v7('25 h', 2)), 'expired expired reconcile', 'older than those');

-- From success to forgotten: purge makes no visible difference
SELECT idem_define('life', '{"key_format": "uuidv7", "retention": "1 h", "guard": "1 h"}') \gset d_
SELECT pg_temp.v7('0', 9) AS k \gset
-- what other tests have left
SELECT idem_purge() \g /dev/null
SELECT idem_complete(c, '1') FROM idem_claim('life', :'k', NULL, 'acme') c \gset c_
SELECT is(pg_temp.claim('life', :'k'), 'replay succeeded use_result', 'recorded');
SELECT pg_temp.age_record('life', :'k', '61 min') \gset a_
SELECT is(pg_temp.claim('life', :'k'), 'expired expired reconcile', 'inside the guard');
SELECT pg_temp.age_record('life', :'k', '60 min') \gset a_
SELECT is(pg_temp.claim('life', :'k'), 'expired expired reconcile', 'past the guard by the record, but its key is not late yet: kept');
SELECT is(idem_purge(), 0::bigint, 'so purge leaves it');
SELECT ok(forget_at >= finished_at + interval '2 h', 'forget_at of a key with a time counts from it') FROM idem_status('life', :'k', 'acme');

SELECT idem_complete(c, '1') FROM idem_claim('life', pg_temp.v7('119 min', 10), NULL, 'acme') c \gset c_
SELECT key AS k FROM idempotency_internal.every_record WHERE operation = 'life' AND key <> :'k' \gset
SELECT ok(forget_at > finished_at + interval '119 min', 'an old key finished now is remembered as long as any') FROM idempotency_internal.every_record WHERE key = :'k';

-- The shortest time since the key's own: what was purged never looks new
SELECT idem_define('short', '{"key_format": "uuidv7", "retention": "1 s", "guard": "0"}') \gset d_
SELECT idem_complete(c, '1') FROM idem_claim('short', pg_temp.v7('0', 20), NULL, 'acme') c \gset c_
SELECT key AS k FROM idempotency_internal.every_record WHERE operation = 'short' \gset
SELECT pg_sleep(1.1) \gset s_
SELECT idem_define('short', '{"retention": "1 day"}') \gset d_
SELECT is(pg_temp.claim('short', :'k'), 'expired expired reconcile', 'a longer retention does not make a forgotten key new');
SELECT is(idem_purge() > 0, true, 'it is purged');
SELECT is(pg_temp.claim('short', :'k'), 'expired expired reconcile', 'nor a purged one');
SELECT is(pg_temp.claim('short', pg_temp.v7('5 s', 21)), 'expired expired reconcile', 'nor any key of that time');
SELECT pg_temp.v7('0', 22) AS k \gset
SELECT pg_sleep(1.1) \gset s_
SELECT is(pg_temp.claim('short', :'k'), 'execute processing run', 'keys made since have the longer one');
SELECT idem_define('*', '{"key_format": "uuidv7", "retention": "2 s"}') \gset d_
SELECT idem_define('*', '{"retention": "24 h"}') \gset d_
SELECT is(pg_temp.claim('never named', pg_temp.v7('3 s', 30)), 'expired expired reconcile', 'a past of * counts for operations that have no settings');
SELECT idem_define('named now', '{"guard": "1 s"}') \gset d_
SELECT is(pg_temp.claim('named now', pg_temp.v7('3 s', 31)), 'expired expired reconcile', 'and stays with those that get some');
SELECT is(pg_temp.claim('short', pg_temp.v7('0', 32)), 'execute processing run', 'but not for those that had their own');
SELECT idem_define('*', '{"key_format": "any"}') \gset d_

-- New keys
SELECT matches(idem_new_key(), '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$', 'idem_new_key makes UUIDv7');
SELECT is(pg_temp.claim('v7', idem_new_key()), 'execute processing run', 'that can be claimed');
SELECT is((SELECT count(DISTINCT k) FROM (SELECT idem_new_key() k FROM generate_series(1, 10000)) t)::int, 10000, 'no two are the same');
SELECT ok(bool_and(k > previous), 'and they grow') FROM (SELECT k, lag(k) OVER (ORDER BY i) AS previous FROM (SELECT i, idem_new_key() k FROM generate_series(1, 1000) i) a) b;

-- Versions of the normalisation are kept for ever
SELECT idem_define('versions', '{"ignore": ["/at"]}') \gset d_
SELECT idem_complete(c, '1') FROM idem_claim('versions', 'k', '{"a": 1, "at": 1}', 'acme') c \gset c_
SELECT idem_define('versions', '{"ignore": ["/other"]}') \gset d_
SELECT is((idem_claim('versions', 'k', '{"a": 1, "at": 2}', 'acme')).verdict::text, 'replay', 'an old record is compared by the settings it was hashed under');
SELECT is((idem_claim('versions', 'k', '{"a": 1, "other": 2}', 'acme')).verdict::text, 'mismatch', 'not by those of today');
SELECT idem_undefine('versions') \gset d_
SELECT idem_purge() \gset p_
SELECT is((SELECT count(*) FROM idempotency_internal.normalisation WHERE settings IN ('{"ignore": ["/at"]}', '{"ignore": ["/other"]}'))::int, 2, 'purge leaves all versions');
SELECT is((idem_claim('versions', 'k', '{"a": 1, "at": 3}', 'acme')).verdict::text, 'replay', 'also once no operation has them');

SELECT finish();
