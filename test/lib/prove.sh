# shellcheck shell=bash
# Programs that print TAP, run by prove: it checks plans and exit codes, which
# a look at the lines would not.
#
#   prove_each LABEL FILE...   runs each, a line of progress each, and tallies
#   run_prove FILE             runs one; its output is TAP, verbose
#   count_checks LOG STATUS    what a log says: good, bad
#
# Call private_server first, and source tally.sh.

# prove_each LABEL FILE...: runs each with run_prove, a line of progress each.
prove_each() {
	local label=$1 passed=0 failed=0 file good bad log started
	shift
	mkdir -p "$IDEM_WORK/log"
	own "$IDEM_WORK/log"
	for file in "$@"; do
		log=$IDEM_WORK/log/$(basename "$file").log
		started=$SECONDS
		printf '%-50s ' "$file" >&2
		if run_prove "$file" >"$log" 2>&1; then bad=0; else bad=1; fi
		read -r good bad < <(count_checks "$log" "$bad")
		say "$good of $((good + bad)) ($((SECONDS - started)) s)"
		[ "$bad" -eq 0 ] || show_failure "$log"
		passed=$((passed + good))
		failed=$((failed + bad))
	done
	add_result "$label" "$passed" "$failed"
}

# count_checks LOG STATUS: how many were good and how many bad.  A program that
# ended badly, or said nothing, has at least one bad check.
count_checks() {
	local good bad=$2 said
	good=$(tap_lines ok "$1")
	said=$(tap_lines 'not ok' "$1")
	[ "$said" -eq 0 ] || bad=$said
	[ $((good + bad)) -gt 0 ] || bad=1
	echo "$good $bad"
}

# A skipped check is not a passed one; those of subtests are indented, and
# counted by the line that closes the subtest.
tap_lines() { grep -E "^$1 [0-9]+" "$2" | grep -vicE '# *skip' || true; }

show_failure() {
	say "-- the end of $1:"
	grep -vE '^ *ok [0-9]+' "$1" | tail -60 >&2 || true
}

run_prove() {
	case $1 in
		*.pl) prove_on_server "$1" ;;
		*.py) IDEM_OBJECTS=$IDEM_BUILD/src prove --verbose --exec python3 "$IDEM_TOP/$1" ;;
		*.mjs) chain_run e2e prove --verbose --exec node "$1" ;;
		*) prove --verbose --exec bash "$IDEM_TOP/$1" ;;
	esac
}

# PostgreSQL::Test::Cluster makes its own clusters.  It keeps those of a test
# that failed, and would stumble over them at the next run.
prove_on_server() {
	local scratch=$IDEM_WORK/tap pgxs
	pgxs=$(pgxs_folder "$IDEM_PG_CONFIG")
	rm -rf "$scratch/tmp_check/t_$(basename "$1" .pl)"_*
	mkdir -p "$scratch"
	own "$scratch"
	(
		cd "$IDEM_BUILD" || exit
		unset PGHOST PGPORT PGUSER PGDATABASE
		as_server env PATH="$IDEM_BIN:$PATH" \
			PG_REGRESS="$pgxs/src/test/regress/pg_regress" \
			TESTDIR="$scratch" TESTDATADIR="$scratch/tmp_check" TESTLOGDIR="$scratch/tmp_check/log" \
			prove --verbose -I "$pgxs/src/test/perl" -I test/perl "$1"
	)
}
