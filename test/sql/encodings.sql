-- C34: one id and one fingerprint for one value, whatever encodes the database.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set start :abs_srcdir '/lib/start.sql'
\i :start

\set here :DBNAME
DROP DATABASE IF EXISTS idempotency_latin9;
DROP DATABASE IF EXISTS idempotency_eucjp;
DROP DATABASE IF EXISTS idempotency_ascii;
DROP DATABASE IF EXISTS idempotency_mule;
CREATE DATABASE idempotency_latin9 ENCODING 'LATIN9' LOCALE 'C' TEMPLATE template0;
CREATE DATABASE idempotency_eucjp ENCODING 'EUC_JP' LOCALE 'C' TEMPLATE template0;
CREATE DATABASE idempotency_ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0;
CREATE DATABASE idempotency_mule ENCODING 'MULE_INTERNAL' LOCALE 'C' TEMPLATE template0;

\c idempotency_latin9
SET client_encoding = 'UTF8';
CREATE EXTENSION idempotency;
SELECT encode(idem_fingerprint('{"prix":"12 €","nom":"é","z":"ü","ÿ":1,"zz":2}'), 'hex') AS latin9_fingerprint,
	idem_canonical('{"prix":"12 €","nom":"é","z":"ü","ÿ":1,"zz":2}') AS latin9_canonical,
	idem_id('opé', 'k€', 'acmé') AS latin9_id,
	idem_downstream_key('61362f49-1d33-8116-af4a-a257885ad4be', '€') AS latin9_step,
	encode(idem_fingerprint(jsonb_build_object('s', repeat('é€', 100000))), 'hex') AS latin9_long,
	encode(idem_fingerprint_text('{"prix":"12 \u20ac","nom":"é","z":"\u00fc","ÿ":1,"zz":2}'), 'hex') AS latin9_text,
	idem_id('o', repeat('é', 127), 'p') AS latin9_127 \gset
SELECT idem_define('o', '{"defaults": {"é€": "ü"}, "ignore": ["/€"], "unordered": ["/é"]}') \g /dev/null
SELECT idem_canonical('{"€": 1, "é": ["é", "z", "€"]}', 'o') AS latin9_settings,
	encode(idem_fingerprint_text('{"€": 1, "é": ["é", "z", "€"]}', 'o'), 'hex') AS latin9_settings_text \gset
SELECT idem_fingerprint_text('["é", "secret \ud83d\ude00"]') \g /dev/null
\set latin9_beyond :SQLSTATE ' ' :LAST_ERROR_MESSAGE
\set latin9_refused none
SELECT idem_id('o', repeat('é', 128), 'p') \g /dev/null
\set latin9_refused :SQLSTATE

\c idempotency_eucjp
SET client_encoding = 'UTF8';
CREATE EXTENSION idempotency;
SELECT encode(idem_fingerprint('{"日本":["語",1.50],"名":"山田","a":{"ｱ":null}}'), 'hex') AS eucjp_fingerprint,
	encode(idem_fingerprint('"語"'), 'hex') AS eucjp_scalar,
	idem_canonical('{"日本":["語",1.50],"名":"山田","a":{"ｱ":null}}') AS eucjp_canonical,
	idem_id('注文', '鍵', '山田') AS eucjp_id \gset
-- two bytes that stand for no character
SELECT idem_id('o', convert_from('\xa2af', 'EUC_JP'), 'p') \g /dev/null
\set eucjp_unassigned :SQLSTATE ' ' :LAST_ERROR_MESSAGE

\c idempotency_ascii
SET client_encoding = 'UTF8';
CREATE EXTENSION idempotency;
SELECT encode(idem_fingerprint('{"日本":["語",1.50],"é":"😀"}'), 'hex') AS ascii_fingerprint,
	idem_id('注文', '鍵', '山田') AS ascii_id \gset
SELECT idem_id('o', convert_from('\xff', 'SQL_ASCII'), 'p') \g /dev/null
\set ascii_key :SQLSTATE
SELECT idem_downstream_key('61362f49-1d33-8116-af4a-a257885ad4be', convert_from('\xff', 'SQL_ASCII')) \g /dev/null
\set ascii_step :SQLSTATE
SELECT idem_fingerprint(to_jsonb(convert_from('\x61ed', 'SQL_ASCII'))) \g /dev/null
\set ascii_params :SQLSTATE
SELECT idem_fingerprint_text(convert_from('\x5b22c3a961ed225d', 'SQL_ASCII')) \g /dev/null
\set ascii_text :SQLSTATE ' ' :LAST_ERROR_MESSAGE
SELECT idem_fingerprint_text('["\u00e9"]') \g /dev/null
\set ascii_beyond :SQLSTATE
SELECT encode(idem_fingerprint_text('{"日本":["語",1.50],"é":"😀"}'), 'hex') AS ascii_text_fingerprint \gset

\c idempotency_mule
SET client_encoding = 'SQL_ASCII';
CREATE EXTENSION idempotency;
SELECT idem_id('o', 'k', 'p') AS mule_id \gset
SELECT idem_id('o', convert_from('\x81e9', 'MULE_INTERNAL'), 'p') \g /dev/null
\set mule_beyond :SQLSTATE

\c :here
SET client_encoding = 'UTF8';
SET client_min_messages = warning;
SELECT format('SET search_path = %s', string_agg(extnamespace::regnamespace::text, ', ' ORDER BY extname))
  FROM pg_extension WHERE extname IN ('idempotency', 'pgtap') \gexec
DROP DATABASE idempotency_latin9;
DROP DATABASE idempotency_eucjp;
DROP DATABASE idempotency_ascii;
DROP DATABASE idempotency_mule;

SELECT plan(25);
SELECT is(:'eucjp_unassigned'::text, '22023 key for operation "o" is not valid in the encoding of the database', 'EUC_JP: bytes without a character');
SELECT is(:'ascii_step'::text, '22023', 'SQL_ASCII: invalid step');
SELECT is(:'mule_id'::uuid, idem_id('o', 'k', 'p'), 'MULE_INTERNAL: ASCII has the same id');
SELECT is(:'mule_beyond'::text, '42883', 'MULE_INTERNAL: anything else has no UTF-8');
SELECT is(:'latin9_text'::text, :'latin9_fingerprint', 'LATIN9: fingerprint of text');
SELECT is(:'latin9_beyond'::text, '22032 params cannot be canonicalised', 'LATIN9: characters it has not');
SELECT is(:'latin9_settings'::text, '{"é":["z","é","€"],"é€":"ü"}', 'LATIN9: settings');
SELECT is(:'latin9_settings_text', encode(sha256(convert_to('{"é":["z","é","€"],"é€":"ü"}', 'UTF8')), 'hex'), 'LATIN9: settings, text');
SELECT is(:'ascii_text'::text, '22032 params cannot be canonicalised', 'SQL_ASCII: invalid text');
SELECT is(:'ascii_beyond'::text, '22032', 'SQL_ASCII: escapes beyond ASCII');
SELECT is(:'ascii_text_fingerprint'::text, :'ascii_fingerprint', 'SQL_ASCII: fingerprint of valid text');
SELECT is(:'latin9_fingerprint', encode(idem_fingerprint('{"prix":"12 €","nom":"é","z":"ü","ÿ":1,"zz":2}'), 'hex'), 'LATIN9: fingerprint');
SELECT is(:'latin9_canonical', idem_canonical('{"prix":"12 €","nom":"é","z":"ü","ÿ":1,"zz":2}'), 'LATIN9: canonical text');
SELECT is(:'latin9_id'::uuid, idem_id('opé', 'k€', 'acmé'), 'LATIN9: id');
SELECT is(:'latin9_step'::uuid, idem_downstream_key('61362f49-1d33-8116-af4a-a257885ad4be', '€'), 'LATIN9: downstream key');
SELECT is(:'latin9_long', encode(idem_fingerprint(jsonb_build_object('s', repeat('é€', 100000))), 'hex'), 'LATIN9: long string');
SELECT is(:'latin9_127'::uuid, idem_id('o', repeat('é', 127), 'p'), 'LATIN9: the limit counts UTF-8 bytes');
SELECT is(:'latin9_refused'::text, '22023', 'LATIN9: 128 bytes there, 256 in UTF-8');
SELECT is(:'eucjp_fingerprint', encode(idem_fingerprint('{"日本":["語",1.50],"名":"山田","a":{"ｱ":null}}'), 'hex'), 'EUC_JP: fingerprint');
SELECT is(:'eucjp_scalar', encode(idem_fingerprint('"語"'), 'hex'), 'EUC_JP: fingerprint of a scalar');
SELECT is(:'eucjp_canonical', idem_canonical('{"日本":["語",1.50],"名":"山田","a":{"ｱ":null}}'), 'EUC_JP: canonical text');
SELECT is(:'eucjp_id'::uuid, idem_id('注文', '鍵', '山田'), 'EUC_JP: id');
SELECT is(:'ascii_fingerprint', encode(idem_fingerprint('{"日本":["語",1.50],"é":"😀"}'), 'hex'), 'SQL_ASCII: fingerprint of valid UTF-8');
SELECT is(:'ascii_id'::uuid, idem_id('注文', '鍵', '山田'), 'SQL_ASCII: id of valid UTF-8');
SELECT is(:'ascii_key' || ' ' || :'ascii_params', '22023 22032', 'SQL_ASCII: other bytes are refused');
SELECT finish();
