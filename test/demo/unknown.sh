# shellcheck shell=bash
# The chapter of the story in which nobody knows: three providers that charge
# and are not heard, and a reconciler that finds out what it can.
set -euo pipefail

nobody_knows() {
	chapter 7 "When nobody knows" <<-'END'
		A call can be carried out and its answer lost.  What can be done then depends on
		the provider, so there are three of them here, and four more orders.  A client
		that hears nothing says so, with idem_unsure_key; one that dies says nothing.
	END
	shown "$(cat "$DEMO/pay_unsure.sql")" pay
	echo
	echo "   A reconciler (test/demo/reconcile) is handed what is unknown, one at a time, with a"
	echo "   fence of its own, finds out what it can, and writes that down:"
	echo
	shown "$(cat "$DEMO/reconcile_next.sql")" reconcile
	echo "   ...  the provider is called, in no transaction  ..."
	shown "$(cat "$DEMO/reconcile_succeeded.sql")" reconcile
	ask "SELECT count(create_order(key, params)) FROM request WHERE key IN ('b-07', 'b-08', 'b-09', 'b-10')"
	check "four more orders" "$SAW" 4
	honours_keys
	can_be_asked
	neither
}

honours_keys() {
	local -x PROVIDER=card
	part "card: it honours keys." <<-'END'
		The reconciler makes the call once more.  The key is the same, so the answer is
		the charge that was made the first time.
	END
	head_of_records
	LOST=answer pay b-07 690000 VND
	record "client, no answer" b-07 "execute: unsure, 504 no answer" unknown 1 0 1
	pay b-07 690000 VND
	record "retry" b-07 "unknown" unknown 1 0 1
	reconcile
	record "reconciler" b-07 "b-07: succeeded, ch_1" succeeded 1 1 1
	pay b-07 690000 VND
	record "retry" b-07 "replay: paid, ch_1" succeeded 1 1 1
	echo
	book_says b-07 2 1
}

can_be_asked() {
	local -x PROVIDER=transfer
	local found
	part "transfer: it can be asked about a key." <<-'END'
		It would charge again, so the reconciler only asks.  (Not too early: a request
		still on its way would charge after all.)  One client dies after the charge, the
		request of another is lost before it; the record cannot tell one from the other.
		What was never charged may execute again:
	END
	echo
	shown "$(cat "$DEMO/reconcile_not_executed.sql")" reconcile
	head_of_records
	DIES=1 pay b-08 3999.00 DKK '1 s'
	until_answer "SELECT state FROM idem_status('pay_by_transfer', 'b-08', 'shop')" unknown
	record "client, kill -9" b-08 "nothing (exit status 137)" unknown 1 0 1
	LOST=request pay b-09 290.00 GBP
	record "client, no answer" b-09 "execute: unsure, 504 no answer" unknown 1 0 0
	reconcile
	found=$SAW
	SAW=$(grep b-08 <<<"$found") || true
	record "reconciler" b-08 "b-08: succeeded, ch_4" succeeded 1 1 1
	SAW=$(grep b-09 <<<"$found") || true
	record "reconciler" b-09 "b-09: not_executed" absent - 0 0
	pay b-08 3999.00 DKK
	record "retry" b-08 "replay: paid, ch_4" succeeded 1 1 1
	pay b-09 290.00 GBP
	record "retry" b-09 "execute: paid, ch_5" succeeded 2 1 1
	echo
	book_says b-08 1 1
	book_says b-09 1 1
}

neither() {
	local -x PROVIDER=voucher
	local unresolved="SELECT key, attempt, tries, detail FROM idem_unresolved;"
	part "voucher: neither." <<-'END'
		Nothing can be found out by a program, and calling again could charge twice.
		So nobody calls again: after reconcile_attempts tries (1 here, 20 if nothing is
		said) the record is left to a person.
	END
	echo
	shown "$(grep pay_by_voucher "$DEMO/shop.sql")" owner
	shown "$unresolved" clerk
	head_of_records
	LOST=answer pay b-10 31.250 KWD
	record "client, no answer" b-10 "execute: unsure, 504 no answer" unknown 1 0 1
	ask_as clerk "$unresolved"
	SAW=${SAW:-no rows}
	record "clerk" b-10 "no rows" unknown 1 0 1
	reconcile
	record "reconciler" b-10 "b-10: no way to find out" unknown 1 0 1
	reconcile
	record "reconciler, once more" b-10 "nothing" unknown 1 0 1
	pay b-10 31.250 KWD
	record "retry" b-10 "unknown" unknown 1 0 1
	echo
	book_says b-10 1 1
	ask_as clerk "$unresolved"
	echo "   In idem_unresolved: $SAW"
	check "what is left to a person" "$SAW" 'b-10|1|1|{"provider": "504 no answer"}'
}

# part TITLE: what follows is its text, on stdin.
part() {
	printf '\n   %s\n' "$1"
	sed 's/^/   /'
}

reconcile() {
	SAW=$(PGUSER=clerk "$DEMO/reconcile" 2>&1) || true
	SAW=${SAW:-nothing}
}
