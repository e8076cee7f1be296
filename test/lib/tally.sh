# shellcheck shell=bash
# Counting checks, and the one closing line of a run.
#
# CI reads the line "N passed, N failed", alone on a line, and it must come
# once.  A script that is run by another one is therefore given a file in
# IDEM_TALLY: it writes its counts there and closes in other words.

IDEM_PASSED=0
IDEM_FAILED=0

# check WORDS COMMAND...: its line, as in TAP.
check() {
	if "${@:2}" >/dev/null; then echo "ok - $1"; else echo "not ok - $1"; fi
}

# add_result LABEL PASSED FAILED [REASON]: counts them and says so.  Checks that
# did not happen are not good ones: none at all is a failure.
add_result() {
	local label=$1 passed=$2 failed=$3 reason=${4:-}
	if [ $((passed + failed)) -eq 0 ]; then
		failed=1
		reason=${reason:-"no check was run"}
	fi
	IDEM_PASSED=$((IDEM_PASSED + passed))
	IDEM_FAILED=$((IDEM_FAILED + failed))
	say "== $label: $passed of $((passed + failed)) checks good${reason:+ ($reason)}"
}

# add_tally LABEL FILE: the counts that an inner script left.
add_tally() {
	local passed=0 failed=0
	if [ -s "$2" ]; then
		read -r passed failed <"$2"
		add_result "$1" "$passed" "$failed"
	else
		add_result "$1" 0 1 "it ended early"
	fi
}

# Ends the script.
close_tally() {
	if [ -n "${IDEM_TALLY:-}" ]; then
		echo "$IDEM_PASSED $IDEM_FAILED" >"$IDEM_TALLY"
		say "together $IDEM_PASSED of $((IDEM_PASSED + IDEM_FAILED)) checks good"
	else
		echo "$IDEM_PASSED passed, $IDEM_FAILED failed"
	fi
	[ "$IDEM_FAILED" -eq 0 ] || exit 1
	exit 0
}
