#!/usr/bin/env bash
# Random documents, hashed by the extension and by a reference.  Prints TAP.
#
#   FUZZ_SEED=1 FUZZ_DOCUMENTS=1000000 test/run fuzz
#
# test/run has made the database that PGHOST etc. lead to, and put the npm
# package into the folder IDEM_FUZZ.  The same seed gives the same documents.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seed=${FUZZ_SEED:-$((RANDOM * 32768 + RANDOM))}
# a part of them is compared with another text instead of the reference
count=${FUZZ_DOCUMENTS:-180000}

echo "# FUZZ_SEED=$seed FUZZ_DOCUMENTS=$count"
cp "$HERE"/*.mjs "$IDEM_FUZZ/"
{
	sed '/^-- documents/,$d' "$HERE/compare.sql"
	echo '\o /dev/null'
	node "$IDEM_FUZZ/generate.mjs" "$seed" operations
	echo '\o'
	echo 'CREATE TEMP TABLE document (number int, operation text, text text, other text, expected text, as_jsonb boolean);'
	echo 'COPY document FROM stdin;'
	node "$IDEM_FUZZ/generate.mjs" "$seed" "$count"
	echo '\.'
	sed '1,/^-- documents/d' "$HERE/compare.sql"
} | "$IDEM_BIN/psql" -X
