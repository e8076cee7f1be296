-- Quiet output in UTF-8, and pgTAP beside the extension.  abs_srcdir must be
-- known.
\set QUIET 1
\set VERBOSITY terse
SET client_encoding = 'UTF8';
\pset format unaligned
\pset tuples_only on
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idempotency;
CREATE SCHEMA IF NOT EXISTS tap;
CREATE EXTENSION IF NOT EXISTS pgtap SCHEMA tap;
SELECT format('SET search_path = %s', string_agg(extnamespace::regnamespace::text, ', ' ORDER BY extname))
  FROM pg_extension WHERE extname IN ('idempotency', 'pgtap') \gexec
