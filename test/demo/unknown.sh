# shellcheck shell=bash
# The chapter of the story in which the outcome is unknown: three providers that
# charge and are not heard, and a reconciler that finds out what it can.
set -euo pipefail

unknown_outcomes() {
	chapter 7 "When the outcome is unknown" <<-'END'
		A call can be carried out and its answer lost.  What can be done then depends
		on the provider.  A client that hears nothing says so, one that dies does not.
		The reconciler (test/demo/reconcile) is handed what is unknown, one at a time,
		finds out what it can, and writes that down as the clerk did.
	END
	shown "$(cat "$DEMO/pay_unsure.sql")" pay
	shown "$(cat "$DEMO/reconcile_next.sql")" rec
	ask "SELECT count(create_order(key, params)) FROM request WHERE key IN ('b-07', 'b-08', 'b-09', 'b-10')"
	check "four more orders" "$SAW" 4
	head_of_table
	honours_keys
	can_be_asked
	neither
}

honours_keys() {
	local -x PROVIDER=card
	part <<-'END'
		card honours keys.  The reconciler makes the call once more: the key is the
		same, so the answer is the charge that was made the first time.
	END
	LOST=answer pay b-07 690000 VND
	row "client, no answer" b-07 "execute: unsure, 504" "1 0 1"
	record b-07 unknown 1
	pay b-07 690000 VND
	row "retry" b-07 "unknown" "1 0 1"
	reconcile
	row "reconciler" b-07 "b-07: succeeded, card_1" "1 1 1"
	record b-07 succeeded 1
	pay b-07 690000 VND
	row "retry" b-07 "replay: paid, card_1" "1 1 1"
	SAW="$("$DEMO/provider" requests b-07) requests"
	row "book of card" b-07 "2 requests" "1 1 1"
}

can_be_asked() {
	local -x PROVIDER=bank
	local found
	part <<-'END'
		bank can be asked about a key.  It would charge again, so the reconciler only
		asks.  (Not too early: a request still on its way would charge after all.)
		b-08: the client dies after the charge.  b-09: the request is lost before it.
		The record cannot tell one from the other; what was not charged executes again.
	END
	DIES=1 pay b-08 3999.00 DKK '1 s'
	row "b-08, client" b-08 "nothing, killed" "1 0 1"
	until_answer "SELECT state FROM idem_status('pay_by_bank', 'b-08', 'shop')" unknown
	LOST=request pay b-09 290.00 GBP
	row "b-09, no answer" b-09 "execute: unsure, 504" "1 0 0"
	record b-09 unknown 1
	reconcile
	found=$SAW
	SAW=$(grep b-08 <<<"$found") || true
	row "reconciler" b-08 "b-08: succeeded, bank_4" "1 1 1"
	record b-08 succeeded 1
	SAW=$(grep b-09 <<<"$found") || true
	row "reconciler" b-09 "b-09: not_executed" "1 0 0"
	record b-09 absent -
	pay b-08 3999.00 DKK
	row "b-08, retry" b-08 "replay: paid, bank_4" "1 1 1"
	pay b-09 290.00 GBP
	row "b-09, retry" b-09 "execute: paid, bank_5" "1 1 1"
	record b-09 succeeded 2
	check "requests for b-08" "$("$DEMO/provider" requests b-08)" 1
	check "requests for b-09" "$("$DEMO/provider" requests b-09)" 1
}

neither() {
	local -x PROVIDER=voucher
	local unresolved="SELECT key, attempt, tries, detail FROM idem_unresolved;"
	part <<-'END'
		voucher does neither.  Calling again could charge twice, so after
		reconcile_attempts tries (1 here, 20 by default) it is left to a person.
	END
	LOST=answer pay b-10 31.250 KWD
	row "client, no answer" b-10 "execute: unsure, 504" "1 0 1"
	reconcile
	row "reconciler" b-10 "b-10: no telling" "1 0 1"
	reconcile
	row "reconciler, again" b-10 "nothing" "1 0 1"
	pay b-10 31.250 KWD
	row "retry" b-10 "unknown" "1 0 1"
	record b-10 unknown 1
	check "requests for b-10" "$("$DEMO/provider" requests b-10)" 1
	ask_as clerk "$unresolved"
	check "what is left to a person" "$SAW" 'b-10, 1, 1, {"provider": "504 no answer"}'
	SAW=${SAW%, \{*}
	row "idem_unresolved" b-10 "b-10, 1, 1" "1 0 1"
}

# What a part is about, on stdin.
part() {
	echo
	sed 's/^/ /'
}

reconcile() {
	SAW=$(PGUSER=clerk "$DEMO/reconcile" 2>&1) || true
	SAW=${SAW:-nothing}
}
