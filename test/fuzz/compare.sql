-- Compares fingerprints with what generate.mjs expects.  Between the two halves
-- of this file, fingerprint.sh puts the documents.  Prints TAP.
\set ON_ERROR_STOP 1
\set QUIET 1
\pset format unaligned
\pset tuples_only on
SET client_min_messages = warning;
-- documents
CREATE FUNCTION pg_temp.raw(params text, operation text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN encode(idem_fingerprint_text(params, operation), 'hex');
EXCEPTION WHEN SQLSTATE '22032' THEN
	RETURN 'refuse';
END $$;
CREATE FUNCTION pg_temp.stored(params text, operation text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN encode(idem_fingerprint(params::jsonb, operation), 'hex');
EXCEPTION WHEN SQLSTATE '22032' THEN
	RETURN 'refuse';
WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;

CREATE TEMP TABLE judged AS
SELECT *,
	CASE WHEN other IS NULL THEN raw ELSE CASE WHEN raw = raw_other THEN 'same' ELSE 'different' END END AS found,
	CASE WHEN other IS NULL THEN stored ELSE CASE WHEN stored = stored_other THEN 'same' ELSE 'different' END END AS found_stored
  FROM (SELECT *, pg_temp.raw(text, operation) AS raw, pg_temp.raw(other, operation) AS raw_other,
		CASE WHEN as_jsonb THEN pg_temp.stored(text, operation) END AS stored,
		CASE WHEN as_jsonb THEN pg_temp.stored(other, operation) END AS stored_other
	  FROM document) d;

SELECT format('# document %s under %s: expected %s, as text %s, as jsonb %s%s#   %s%s', number, coalesce(operation, 'no operation'),
	expected, found, found_stored, E'\n', left(regexp_replace(text, '[\n\r]', ' ', 'g'), 500), E'\n#   ' || left(regexp_replace(other, '[\n\r]', ' ', 'g'), 500))
  FROM judged
 WHERE found <> expected OR (as_jsonb AND (found_stored <> expected OR stored <> raw OR stored_other <> raw_other)) OR raw_other = 'refuse'
 ORDER BY length(text) LIMIT 10;

SELECT '1..5';
SELECT CASE WHEN count(*) FILTER (WHERE found <> expected) = 0 AND count(*) > 0 THEN 'ok' ELSE 'not ok' END || ' 1 - '
	|| count(*) || ' documents as the reference has them, as text'
  FROM judged WHERE other IS NULL;
SELECT CASE WHEN count(*) FILTER (WHERE found_stored <> expected) = 0 AND count(*) > 0 THEN 'ok' ELSE 'not ok' END || ' 2 - '
	|| count(*) || ' of them as jsonb'
  FROM judged WHERE other IS NULL AND as_jsonb;
SELECT CASE WHEN count(*) FILTER (WHERE expected = 'refuse') > 0 AND count(*) FILTER (WHERE expected <> 'refuse') > 0
	THEN 'ok' ELSE 'not ok' END || ' 3 - of ' || count(*) || ' texts some are to be refused and some not'
  FROM judged WHERE other IS NULL;
SELECT CASE WHEN count(*) FILTER (WHERE found <> expected OR raw_other = 'refuse') = 0 AND count(*) > 0 THEN 'ok' ELSE 'not ok' END || ' 4 - '
	|| count(*) || ' pairs are the same or are not, exact, as text'
  FROM judged WHERE other IS NOT NULL;
SELECT CASE WHEN count(*) FILTER (WHERE found_stored <> expected OR stored <> raw OR stored_other <> raw_other) = 0 AND count(*) > 0
	THEN 'ok' ELSE 'not ok' END || ' 5 - ' || count(*) || ' of them as jsonb'
  FROM judged WHERE other IS NOT NULL AND as_jsonb;
