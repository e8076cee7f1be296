# shellcheck shell=bash
# What the story of test/demo/run is told with: asking the shop's database,
# sessions that stay open, and the table that is checked while it is printed.
set -euo pipefail

# --- asking -------------------------------------------------------------------

shop_psql() { cluster_psql demo -d shop -U shop -qAt -v VERBOSITY=verbose "$@"; }
owner_psql() { cluster_psql demo -d shop -qAt -v ON_ERROR_STOP=1 "$@"; }

# ask SQL, ask_as ROLE SQL: what an application sees, in SAW.
ask() { ask_as shop "$1"; }
ask_as() { SAW=$(shop_psql -U "$1" -c "$2" 2>&1 | plain_words) || true; }

# pay ARGUMENT...: what the client of test/demo/pay says, in SAW.
pay() {
	local status=0
	{ "$DEMO/pay" "$@" >"$STAGE/paid"; } 2>/dev/null || status=$?
	SAW=$(cat "$STAGE/paid")
	[ "$status" -eq 0 ] || SAW="${SAW:-nothing} (exit status $status)"
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
	printf '\n%s. %s\n\n' "$1" "$2"
	sed 's/^/   /'
	echo
}

# shown SQL [WHO]: the SQL about to be run.
shown() { sed -e "s/\t/    /g" -e "1s/^/   ${2:-sql}> /" -e "2,\$s/^/   ${2:-sql}. /" <<<"$1"; }

head_of_table() {
	echo
	line "caller" "what it saw" "orders" "payments" "outside"
	line "$(dashes 24)" "$(dashes 44)" "$(dashes 6)" "$(dashes 8)" "$(dashes 7)"
}

dashes() { printf '%*s' "$1" '' | tr ' ' -; }

line() { printf '   %-24s %-44s %6s %8s %7s\n' "$@"; }

# row CALLER KEY EXPECTED...: a line of the table.  SAW is what the caller saw;
# the numbers are asked for now: committed orders and payments of that basket,
# and charges in the provider's book.  EXPECTED is what the story says: a pattern
# for SAW, and the three numbers.
row() {
	local caller=$1 key=$2 counts
	shift 2
	counts=$(committed_rows "$key")
	set -- "$@" "${counts% *}" "${counts#* }" "$("$DEMO/provider" charges "$key")"
	line "$caller" "$(fitting "$SAW" 44)" "${@:5}"
	check "what \"$caller\" saw of $key" "$SAW" "$1"
	check "orders of $key" "$5" "$2"
	check "payments of $key" "$6" "$3"
	check "charges for $key" "$7" "$4"
}

committed_rows() {
	owner_psql -F ' ' -v key="$1" <<-'END'
		SELECT (SELECT count(*) FROM orders WHERE basket = :'key'),
		       (SELECT count(*) FROM payments WHERE basket = :'key');
	END
}

head_of_records() {
	echo
	record_line "caller" "what it saw" "record" "attempt" "payments" "charges"
	record_line "$(dashes 24)" "$(dashes 33)" "$(dashes 9)" "$(dashes 7)" "$(dashes 8)" "$(dashes 7)"
}

record_line() { printf '   %-24s %-33s %-9s %7s %8s %7s\n' "$@"; }

# record CALLER KEY EXPECTED...: as row; the numbers are the state and the attempt
# on record for the payment of that basket, committed payments, and charges in the
# provider's book.
record() {
	local caller=$1 key=$2 state attempt payments
	shift 2
	read -r state attempt payments < <(owner_psql -F ' ' -P null=- -v operation="pay_by_$PROVIDER" -v key="$key" <<-'END'
		SELECT state, attempt, (SELECT count(*) FROM payments WHERE basket = :'key')
		FROM idem_status(:'operation', :'key', 'shop');
	END
	)
	set -- "$@" "$state" "$attempt" "$payments" "$("$DEMO/provider" charges "$key")"
	record_line "$caller" "$(fitting "$SAW" 33)" "${@:6}"
	check "what \"$caller\" saw of $key" "$SAW" "$1"
	check "state of $key" "$6" "$2"
	check "attempt of $key" "$7" "$3"
	check "payments of $key" "$8" "$4"
	check "charges for $key" "$9" "$5"
}

# book_says KEY REQUESTS CHARGES
book_says() {
	local requests charges
	requests=$("$DEMO/provider" requests "$1")
	charges=$("$DEMO/provider" charges "$1")
	printf '   In the book of the provider, %s: requests %s, charges %s\n' "$1" "$requests" "$charges"
	check "requests for $1" "$requests" "$2"
	check "charges for $1" "$charges" "$3"
}

fitting() {
	if [ "${#1}" -le "$2" ]; then
		echo "$1"
	else
		echo "${1:0:$2-3}..."
	fi
}

# check WHAT GOT PATTERN
check() {
	CHECKED=$((CHECKED + 1))
	# shellcheck disable=SC2053
	[[ $2 != $3 ]] || return 0
	WRONG=$((WRONG + 1))
	echo "!! $1: the story says \"$3\", but it is \"$2\""
}
