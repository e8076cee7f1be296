#!/usr/bin/env bash
# The parser of raw JSON text under libFuzzer.  Prints TAP.
#
#   FUZZ_SECONDS=3600 test/run fuzz
#
# What it finds is left in the folder IDEM_FUZZ, with what it has learnt.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$HERE/../..
seconds=${FUZZ_SECONDS:-60}
corpus=$IDEM_FUZZ/corpus

mkdir -p "$corpus"
cp "$TOP"/test/data/jcs/input/*.json "$corpus/"
clang -g -O1 -Wall -Wextra -Werror -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	-I"$HERE/shim" -I"$TOP/src" "$TOP/src/json_text.c" "$HERE/json_text_fuzz.c" -o "$IDEM_FUZZ/json_text_fuzz"
echo '1..1'
if "$IDEM_FUZZ/json_text_fuzz" -max_total_time="$seconds" -timeout=10 -max_len=4096 -print_final_stats=1 \
	-dict="$HERE/json.dict" -artifact_prefix="$IDEM_FUZZ/" "$corpus" >"$IDEM_FUZZ/json_text.log" 2>&1; then
	runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$IDEM_FUZZ/json_text.log")
	echo "ok 1 - $runs texts in $seconds s"
else
	tail -40 "$IDEM_FUZZ/json_text.log" | sed 's/^/# /'
	echo "not ok 1 - see $IDEM_FUZZ"
fi
