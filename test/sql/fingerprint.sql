-- Which requests are the same: params, fingerprints of the caller's own, and neither.
-- (How params are made canonical: canonical.sql.)
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

-- Three records: with params, with a fingerprint, with neither
SELECT idem_complete(c, '"params"') FROM idem_claim('print', 'params', '{"amount": 10.50, "items": ["a", "b"]}') c;
SELECT idem_complete(c, '"own"') FROM idem_claim('print', 'own', fingerprint => sha256('raw request')) c;
SELECT idem_complete(c, '"none"') FROM idem_claim('print', 'none') c;

SELECT is((idem_claim('print', 'params', params::jsonb)).verdict, verdict::idem_verdict, format('params %s', params))
  FROM (VALUES ('{"amount": 10.50, "items": ["a", "b"]}', 'replay'), ('{"items":["a","b"],"amount":10.5}', 'replay'), ('{"items": ["a", "b"], "amount": 1.05e1}', 'replay'),
	('{"amount": 10.51, "items": ["a", "b"]}', 'mismatch'), ('{"amount": "10.50", "items": ["a", "b"]}', 'mismatch'), ('{"amount": 10.5, "items": ["b", "a"]}', 'mismatch'),
	('{"amount": 10.5, "items": ["a", "b"], "note": null}', 'mismatch'), ('{"amount": 10.5}', 'mismatch'), ('{}', 'mismatch'), ('null', 'mismatch'), (NULL, 'mismatch')) v (params, verdict);
SELECT is((idem_claim('print', 'own', fingerprint => fingerprint)).verdict, verdict::idem_verdict, format('fingerprint %s', coalesce(left(fingerprint::text, 10), 'NULL')))
  FROM (VALUES (sha256('raw request'), 'replay'), (sha256('raw request '), 'mismatch'), (set_byte(sha256('raw request'), 31, 0), 'mismatch'), (set_byte(sha256('raw request'), 0, 0), 'mismatch'), (NULL, 'mismatch')) v (fingerprint, verdict);
SELECT is((idem_claim('print', 'own', params)).verdict, 'mismatch', 'a fingerprint, then params ' || params::text) FROM unnest('{"\"raw request\"",null,"{}"}'::jsonb[]) params WHERE params IS NOT NULL;
SELECT is((idem_claim('print', 'none', params)).verdict, 'mismatch', 'neither, then params ' || params::text) FROM unnest(ARRAY['{}', 'null', '""', '[]', '0', 'false']::jsonb[]) params;
SELECT is((idem_claim('print', 'none', fingerprint => sha256(raw))).verdict, 'mismatch', 'neither, then a fingerprint') FROM unnest(ARRAY['', 'null']::bytea[]) raw;
SELECT is((idem_claim('print', 'none')).verdict, 'replay', 'neither, again');
-- a mismatch tells the state, never the outcome
SELECT is(pg_temp.shape(idem_claim('print', 'own', fingerprint => sha256('x'))), 'mismatch succeeded new_key: who attempt claimed_at finished_at expires_at forget_at', 'a mismatch');

-- The fingerprint of params is what idem_fingerprint says: the two are one
SELECT is((idem_claim('print', 'params', fingerprint => idem_fingerprint('{"items": ["a", "b"], "amount": 10.5}'))).result, '"params"', 'params, then their fingerprint');
SELECT idem_complete(c, '"twin"') FROM idem_claim('print', 'twin', fingerprint => idem_fingerprint('{"a": 1}')) c;
SELECT is((idem_claim('print', 'twin', '{"a": 1.0}')).result, '"twin"', 'a fingerprint, then the params it is of');

-- Bad fingerprints
SELECT throws_ok(format('SELECT idem_claim(''print'', ''bad'', fingerprint => %L)', fingerprint), '22023', NULL, format('a fingerprint of %s bytes', length(fingerprint)))
  FROM unnest(ARRAY['', 'x', substr(sha256(''), 1, 31), sha256('') || 'x', sha512('')]::bytea[]) fingerprint;
SELECT throws_ok(format('SELECT idem_claim(''print'', ''bad'', %L, fingerprint => sha256(''''))', params), '22023', NULL, 'both params and a fingerprint: ' || params) FROM unnest('{"{}","null"}'::text[]) params;

-- What counts is kept over attempts; a released key may come with others
SELECT idem_fail(c, '1', true) FROM idem_claim('print', 'retried', '1') c;
SELECT is((idem_claim('print', 'retried', '2')).verdict, 'mismatch', 'another attempt, other params');
SELECT idem_fail(c, '1', true) FROM idem_claim('print', 'retried', '1') c;
SELECT is((idem_claim('print', 'retried', '2')).verdict, 'mismatch', 'a third, other params');
SELECT idem_release(c) FROM idem_claim('print', 'retried', '1') c;
SELECT idem_complete(c, '"two"') FROM idem_claim('print', 'retried', '2') c;
SELECT is((idem_claim('print', 'retried', '1')).verdict, 'mismatch', 'released, and executed with others: the old ones do not match'), is((idem_claim('print', 'retried', '2')).result, '"two"', 'the new ones do');

-- The operation's numbers setting decides what is equal, as of the record
SELECT idem_define('print_double', '{"numbers": "double"}');
SELECT idem_complete(c, '1') FROM idem_claim('print', 'large', '9007199254740993') c;
SELECT is((idem_claim('print', 'large', '9007199254740992')).verdict, 'mismatch', 'numbers exact: 2^53 + 1 is not 2^53');
SELECT idem_complete(c, '1') FROM idem_claim('print_double', 'large', '9007199254740993') c;
SELECT is((idem_claim('print_double', 'large', '9007199254740992')).verdict, 'replay', 'numbers double: it is');
SELECT idem_define('print', '{"numbers": "double"}');
SELECT is((idem_claim('print', 'large', '9007199254740993')).verdict, 'replay', 'C56: a record made before a change of the setting still replays');
SELECT is((idem_claim('print', 'large', '9007199254740992')).verdict, 'mismatch', 'and compares as it was made');
SELECT idem_complete(c, '1') FROM idem_claim('print', 'large after', '9007199254740993') c;
SELECT is((idem_claim('print', 'large after', '9007199254740992')).verdict, 'replay', 'one made after it compares as it says now');
SELECT idem_define('print', '{"numbers": "exact"}');
SELECT is((idem_claim('print', 'large after', '9007199254740992')).verdict, 'replay', 'C56: and back');
SELECT is((idem_claim('print', 'params', '{"amount": 10.50, "items": ["a", "b"]}')).verdict, 'replay', 'the others are as before');
-- a taker hashes under today's settings
SELECT idem_fail(c, '1', true) FROM idem_claim('print', 'taken over', '9007199254740993') c;
SELECT idem_define('print', '{"numbers": "double"}');
SELECT idem_complete(c, '1') FROM idem_claim('print', 'taken over', '9007199254740993') c;
SELECT is((idem_claim('print', 'taken over', '9007199254740992')).verdict, 'replay', 'a later attempt is recorded under the settings of its time');

SELECT * FROM finish();
