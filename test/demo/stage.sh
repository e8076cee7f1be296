# shellcheck shell=bash
# What the story of test/demo/run is told with: asking the shop's database,
# sessions that stay open, and the table that is checked while it is printed.
set -euo pipefail

# --- asking -------------------------------------------------------------------

shop_psql() { cluster_psql demo -d shop -U shop -qAt -F ', ' -v VERBOSITY=verbose "$@"; }
owner_psql() { cluster_psql demo -d shop -qAt -v ON_ERROR_STOP=1 "$@"; }

# ask SQL, ask_as ROLE SQL: what an application sees, in SAW.
ask() { ask_as shop "$1"; }
ask_as() { SAW=$(shop_psql -U "$1" -c "$2" 2>&1 | plain_words) || true; }

# pay ARGUMENT...: what the client of test/demo/pay says, in SAW.
pay() {
	local status=0
	{ "$DEMO/pay" "$@" >"$STAGE/paid"; } 2>/dev/null || status=$?
	SAW=$(cat "$STAGE/paid")
	killed_or_not "$status"
}

# killed_or_not STATUS: of a client that was to print something; 137 is SIGKILL.
killed_or_not() {
	case $1 in
		0) ;;
		137) SAW=${SAW:-nothing}", killed" ;;
		*) SAW="${SAW:-nothing}, exit status $1" ;;
	esac
}

# An error as "SQLSTATE message", without operation and id, which the story has
# said; the rest as it is.
plain_words() {
	sed -E -e '/^(DETAIL|HINT|CONTEXT|LOCATION|PL\/pgSQL)\b/d' \
		-e 's/^ERROR: +([0-9A-Z]{5}): /\1 /' \
		-e 's/ of operation "[^"]*" \(id [0-9a-f-]*\)//' \
		-e 's/operation "[^"]*" \(id [0-9a-f-]*\) has no result: //' \
		-e 's/^\{"order": ([0-9]+), "total": ([0-9.]+)\}$/order \1, total \2/'
}

# --- sessions that stay open --------------------------------------------------

declare -A SESSION_IN SESSION_PID

session_open() {
	local in=$STAGE/$1.in fd
	mkfifo "$in"
	shop_psql <"$in" >>"$STAGE/$1.out" 2>&1 &
	SESSION_PID[$1]=$!
	exec {fd}>"$in"
	rm "$in"
	SESSION_IN[$1]=$fd
}

# session_tell NAME SQL; session_hear NAME: sends; waits for the answer, in SAW.
session_tell() { printf '%s\n\\echo -- heard\n' "$2" >&"${SESSION_IN[$1]}"; }

session_hear() {
	local out=$STAGE/$1.out
	until_true grep -qx -e '-- heard' "$out"
	SAW=$(grep -vx -e '-- heard' "$out" | plain_words) || true
	: >"$out"
}

session_ask() { session_tell "$1" "$2"; session_hear "$1"; }

session_close() {
	local fd=${SESSION_IN[$1]}
	echo '\q' >&"$fd" || true
	exec {fd}>&-
	wait "${SESSION_PID[$1]}" || true
	rm -f "$STAGE/$1.out"
}

backend_of() {
	session_ask "$1" "SELECT pg_backend_pid();"
	echo "$SAW"
}

# until_true COMMAND...: looks again until it succeeds, for 20 s at most.
until_true() {
	local tries
	for ((tries = 0; tries < 400; tries++)); do
		"$@" >/dev/null 2>&1 && return 0
		sleep 0.05
	done
	die "waited in vain for: $*"
}

# until_answer SQL ANSWER
until_answer() { until_true answers "$@"; }
answers() { [ "$(owner_psql -c "$1")" = "$2" ]; }

# --- telling ------------------------------------------------------------------

CHECKED=0
WRONG=0

# chapter NUMBER TITLE: what follows is its text, on stdin.
chapter() {
	printf '\n%s. %s\n' "$1" "$2"
	sed 's/^/ /'
	echo
}

# shown SQL [WHO]: the SQL about to be run.
shown() { sed -e "s/\t/    /g" -e "1s/^/ ${2:-sql}> /" -e "2,\$s/^/ ${2:-sql}. /" <<<"$1"; }

# A line has 80 columns at most: who, what that one should see, and what it sees, each
# with the three numbers.
head_of_table() {
	echo
	line "who" "should see" "o p c" "sees" "o p c"
}

line() { printf ' %-17s %-23s %-6s %-23s %s\n' "$@"; }

# row WHO KEY EXPECTED NUMBERS: a line of the table.  SAW is what that one saw,
# EXPECTED a pattern for it, or several with " or " between them.  NUMBERS are
# counted now: committed orders and payments of that basket, and charges in the
# provider's book.
row() {
	local who=$1 key=$2 expected=$3 numbers=$4 counted
	counted="$(committed_rows "$key") $("$DEMO/provider" charges "$key")"
	compared "$who" "$expected" "$numbers" "$counted" "of $key"
}

# total WHO EXPECTED NUMBERS: of all baskets.
total() {
	local counted
	counted=$(owner_psql -F ' ' -c 'SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM payments)')
	compared "$1" "$2" "$3" "$counted $(cat "$BOOKS"/*.charges | wc -l)" "in all"
}

compared() {
	local who=$1 expected=$2 numbers=$3 counted=$4 of=$5
	line "$who" "$expected" "$numbers" "$(fitting "$SAW" 23)" "$counted"
	check "what \"$who\" sees $of" "$SAW" "$expected"
	check "orders, payments, charges $of" "$counted" "$numbers"
}

committed_rows() {
	owner_psql -F ' ' -v key="$1" <<-'END'
		SELECT (SELECT count(*) FROM orders WHERE basket = :'key'),
		       (SELECT count(*) FROM payments WHERE basket = :'key');
	END
}

# record KEY STATE ATTEMPT: what is on record for the payment of that basket.
record() {
	local on_record
	on_record=$(owner_psql -F ' ' -P null=- -v operation="pay_by_$PROVIDER" -v key="$1" <<-'END'
		SELECT state, attempt FROM idem_status(:'operation', :'key', 'shop');
	END
	)
	check "state and attempt of $1" "$on_record" "$2 $3"
}

fitting() {
	if [ "${#1}" -le "$2" ]; then
		echo "$1"
	else
		echo "${1:0:$2-2}.."
	fi
}

# check WHAT GOT EXPECTED
check() {
	CHECKED=$((CHECKED + 1))
	! matches "$2" "$3" || return 0
	WRONG=$((WRONG + 1))
	echo "!! $1: the story says \"$3\", but it is \"$2\""
}

matches() {
	local got=$1 patterns=$2
	while [[ $patterns == *" or "* ]]; do
		# shellcheck disable=SC2053
		[[ $got != ${patterns%% or *} ]] || return 0
		patterns=${patterns#* or }
	done
	# shellcheck disable=SC2053
	[[ $got == $patterns ]]
}
