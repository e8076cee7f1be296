/*
 * reconcile.c
 *	  What is not finished, not known, or not to stay as it is: idem_list,
 *	  idem_reconcile, idem_resolve, idem_expire_lease, idem_reopen,
 *	  idem_cancel, idem_redact.
 *
 * A reconciler takes the lock of the id without waiting, looks at the record,
 * and notes in the work list its own fence, its try, and when the next one may
 * come.  The note is what others see once it is committed; the lock, kept to
 * the end of the transaction, is what they see before that.  Its fence is
 * larger than the owner's and is accepted by idem_resolve alone: the record
 * still belongs to its owner, which may complete it until it is resolved.
 *
 * idem_resolve, idem_expire_lease and idem_reopen replace the version they have
 * judged, by compare and swap, waiting for a transaction that is changing it,
 * and judge again if it was changed.  Completing does the same (finish.c), so
 * one of them wins and the other is told ID002.  Where the key may execute
 * again, or may be taken over, afterwards, the record gets a new fence, so the
 * former owner is stale from then on, whatever it says.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "claim/claim.h"
#include "guc.h"
#include "stats/stats.h"

/* Pause after a reconciler's first try; it doubles with each further one. */
#define FIRST_PAUSE (5 * USECS_PER_SEC)

/* Locks one call of idem_reconcile may keep. */
#define MOST_AT_ONCE 256

/* Returns argument n as a number of records.  Raises 22023 below 1. */
int
claim_max_records(FunctionCallInfo fcinfo, int n, const char *function)
{
	if (PG_ARGISNULL(n) || PG_GETARG_INT32(n) < 1)
		REFUSE_ARGUMENT(errmsg("max_records of %s must be greater than zero", function),
						errhint("Pass how many records to return at most."));
	return PG_GETARG_INT32(n);
}

/* Begins to answer with the records of entries. */
void
claim_entries_begin(Entries *entries, FunctionCallInfo fcinfo, bool for_writing)
{
	entries->fcinfo = fcinfo;
	InitMaterializedSRF(fcinfo, 0);
	store_open(&entries->store, for_writing);
	entries->scan = work_scan_begin();
}

/*
 * Calls hand_out for the entries of the scan until that many are handed out, and
 * ends.  Memory of an entry is freed after it if there is a context for it.
 */
void
claim_entries_collect(Entries *entries, int most, MemoryContext context,
					  bool (*hand_out) (Entries *entries, const Work *entry))
{
	MemoryContext caller = CurrentMemoryContext;
	const Work *entry;

	while (most > 0 && (entry = work_scan_next(entries->scan)) != NULL)
	{
		if (context)
			MemoryContextSwitchTo(context);
		most -= hand_out(entries, entry);
		MemoryContextSwitchTo(caller);
		if (context)
			MemoryContextReset(context);
	}
	work_scan_end(entries->scan);
	store_close(&entries->store);
}

/*
 * Reads the record of an entry.  Returns false if it may not be handed out: it is
 * gone, another transaction is at it, or the caller may not use it.
 */
bool
claim_read_entry(Store *store, const Work *entry, Call *call, Record *rec,
				 EffectiveState *effective)
{
	ProbeResult found = store_probe_id(store, &entry->id, entry->principal, rec);

	if (found == PROBE_NOTHING)
		work_forget(entry);
	if (found != PROBE_ROW)
		return false;
	identity_of_record(&call->who, rec);
	call->policy = policy_get(call->who.operation);
	call->verb = request_verb();
	if (TransactionIdIsValid(rec->changer) ||
		!access_permits(call->policy, &call->who, BIND_WORKER))
		return false;
	*effective = record_effective_state(rec, call, GetCurrentTimestamp());
	return true;
}

/* Puts an entry's record into the result, if it is still open and may be seen. */
static bool
put_entry(Entries *listing, const Work *work)
{
	Call		call = {0};
	Record		rec;
	Answer		answer;

	call.who.operation = text_to_cstring(work->operation);
	call.who.principal = text_to_cstring(work->principal);
	call.policy = policy_get(call.who.operation);
	if (!listing->is_monitor &&
		!access_permits(call.policy, &call.who, listing->binding))
		return false;
	if (store_probe_id(&listing->store, &work->id, work->principal, &rec) != PROBE_ROW)
		return false;
	identity_of_record(&call.who, &rec);
	status_of_record(&call, &rec, &answer);
	if (answer.state != STATE_ACCEPTED && answer.state != STATE_PROCESSING &&
		answer.state != STATE_UNKNOWN &&
		!(answer.state == STATE_FAILED && answer.advice == ADVICE_RETRY_SAME_KEY))
		return false;
	answer_put(listing->fcinfo, &answer);
	return true;
}

/*
 * idem_list(principal, operation, max_records)
 *
 * Readers of the view of unresolved records (monitors, workers, admins) see all
 * principals if none is named.  Readers of the view of records (monitors, admins)
 * see there what is listed here, so no setting binds them; but superusers may
 * read everything.
 */
SQL_FUNCTION(idem_list)
{
	int			most = claim_max_records(fcinfo, 2, "idem_list");
	bool		sees_all = access_may_read(fcinfo, "idem_unresolved");
	char	   *principal = NULL;
	Entries		listing = {0};
	Call		call = {0};

	listing.is_monitor = access_may_read(fcinfo, "idem_record") && !superuser();
	listing.binding = sees_all ? BIND_WORKER : BIND_CALLER;
	if (!PG_ARGISNULL(1))
		call_begin_operation(&call, PG_GETARG_TEXT_PP(1), listing.is_monitor);
	if (!PG_ARGISNULL(0) || guc_principal[0] != '\0' || !sees_all)
		principal = access_principal(ARG_TEXT(0), call.who.operation ?
									 call.who.operation : EVERY_NAME);

	claim_entries_begin(&listing, fcinfo, false);
	work_scan_add(listing.scan, 0, call.who.operation, principal, NEVER);
	claim_entries_collect(&listing, most,
						  AllocSetContextCreate(CurrentMemoryContext, "idempotency list",
												ALLOCSET_DEFAULT_SIZES),
						  put_entry);
	return (Datum) 0;
}

/* The meaning of "execute" for cancel, which answers like a recorded failure. */
static Step
record_cancelled(Claim *claim, OpenClaimPrior prior)
{
	Record		rec;
	Step		step;

	claim_make_record(claim, prior, &rec);
	record_finish(&rec, &claim->call, RECORD_CANCELLED, claim->reason, claim->now);
	if (!claim_write(claim, prior, &rec, &step))
		return step;
	counters_add(claim->call.policy->counters, COUNT_CANCELLED, 1);
	claim->answer.verdict = VERDICT_REPLAY;
	answer_tell_record(&claim->answer, claim->call.policy, &rec, EFFECTIVE_FAILED, claim->now);
	return STEP_ANSWERED;
}

static const ClaimKind kind_cancel = {
	.attempts = 0,
	.takes_accepted = true,
	.withdraws = true,
	.execute = record_cancelled,
};

/* idem_cancel(operation, key, principal, reason) */
REQUEST_FUNCTION(idem_cancel, "cancel")
{
	Claim		claim;

	claim_begin(&claim, fcinfo, &kind_cancel, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(2));
	claim.reason = JsonbPGetDatum(json_pair("cancelled", PG_ARGISNULL(3) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(3))));
	call_check_size(&claim.call, claim.reason, "reason");
	claim_run(&claim);
	return answer_datum(fcinfo, &claim.answer);
}

/*
 * Notes the try of a reconciler.  Another one may come when its lease and a pause
 * are over, unless the policy's number of tries is used up.
 */
static bool
note_try(const Work *found, const Record *rec, const Policy *policy,
		 int64 lease, int64 *fence)
{
	Work		work = *found;
	TimestampTz now = GetCurrentTimestamp();

	work.tries++;
	work.fence = *fence = claim_next_fence(Max(rec->fence, found->fence));
	work.due_at = NEVER;
	if (work.tries < policy->reconcile_attempts)
		work.due_at = clock_after(clock_after(now, lease),
								  (int64) (record_pause(FIRST_PAUSE, work.tries) *
										   pg_prng_double(&pg_global_prng_state)));
	return work_update(found, &work) == ROW_CHANGED;
}

static void
put_unknown(Entries *reconcile, const Call *call, const Record *rec,
			int64 fence)
{
	Answer		answer;

	answer_init(&answer, &call->who);
	answer.verdict = VERDICT_UNKNOWN;
	answer_tell_record(&answer, call->policy, rec, EFFECTIVE_UNKNOWN, GetCurrentTimestamp());
	answer.fence = fence;
	answer_put(reconcile->fcinfo, &answer);
	request_about(call);
	answer_log(call, &answer);
	request_next(true);
}

/*
 * The record of a due entry is not unknown: corrects the entry.  A lease that
 * is over and may be taken over by policy is looked at again after the time a
 * reconciler asks for, in case the policy changes, and not by each call.
 */
static void
correct_entry(Entries *reconcile, const Work *entry, const Record *rec,
			  EffectiveState effective)
{
	Work		work = *entry;

	if (effective == EFFECTIVE_OVERRUN && rec->accepted)
		work.queue = QUEUE_STARTED;
	else if (effective == EFFECTIVE_RUNNING)
		work.due_at = rec->lease_until;
	else
		work.due_at = clock_after(GetCurrentTimestamp(), reconcile->lease);
	if (work_is_open(rec))
		(void) work_update(entry, &work);
	else
		work_forget(entry);
}

/* Hands a record out; false if it is not unknown, or another session has it. */
static bool
hand_out(Entries *reconcile, const Work *entry)
{
	Call		call = {0};
	Record		rec;
	Work		work;
	EffectiveState effective;
	int64		fence;

	if (!claim_read_entry(&reconcile->store, entry, &call, &rec, &effective))
		return false;
	if (effective != EFFECTIVE_UNKNOWN)
	{
		if (entry->queue == QUEUE_LEASED || effective != EFFECTIVE_OVERRUN)
			correct_entry(reconcile, entry, &rec, effective);
		return false;
	}
	if (!open_claim_lock(&entry->id))
		return false;

	/* probe again under the lock, and keep it if it is ours to hand out */
	if (store_probe(&reconcile->store, &call.who, &rec) == PROBE_ROW &&
		!TransactionIdIsValid(rec.changer) &&
		record_effective_state(&rec, &call, GetCurrentTimestamp()) == EFFECTIVE_UNKNOWN &&
		work_find(&rec, &work) &&
		work.due_at <= GetCurrentTimestamp() &&
		note_try(&work, &rec, call.policy, reconcile->lease, &fence))
	{
		put_unknown(reconcile, &call, &rec, fence);
		return true;
	}
	open_claim_unlock(&entry->id);
	return false;
}

/* Adds to a scan what is due of one operation, or of all the caller may use. */
static void
add_due(WorkScan *scan, char queue, const char *only)
{
	TimestampTz now = GetCurrentTimestamp();
	const char *operation = only ? only : work_next_operation(queue, NULL);

	for (; operation; operation = only ? NULL : work_next_operation(queue, operation))
	{
		const Policy *policy = policy_get(operation);

		if (access_has_role(policy->role))
			work_scan_add(scan, queue, operation,
						  access_workers_principal(policy, operation), now);
	}
}

/* idem_reconcile(operation, max_records, lease) */
REQUEST_FUNCTION(idem_reconcile, "reconcile")
{
	Entries		reconcile = {0};
	Call		call = {.who.operation = EVERY_NAME,.verb = "reconcile"};
	const char *only;
	int			most;

	if (!PG_ARGISNULL(0))
		call_begin_operation(&call, PG_GETARG_TEXT_PP(0), false);
	else
		call.policy = policy_get(EVERY_NAME);
	only = PG_ARGISNULL(0) ? NULL : call.who.operation;
	most = Min(claim_max_records(fcinfo, 1, "idem_reconcile"), MOST_AT_ONCE);
	call_require_writable("idem_reconcile()");
	reconcile.lease = claim_interval(fcinfo, 2, "lease", &call, 0);
	if (reconcile.lease == 0)
		REFUSE_ARGUMENT(errmsg("lease of idem_reconcile must be longer than zero"),
						errhint("Pass how long the records are to be kept from other reconcilers."));
	claim_check_lease(&call, reconcile.lease);

	claim_entries_begin(&reconcile, fcinfo, true);
	add_due(reconcile.scan, QUEUE_LEASED, only);
	add_due(reconcile.scan, QUEUE_STARTED, only);
	claim_entries_collect(&reconcile, most, NULL, hand_out);
	return (Datum) 0;
}

/* One call that changes a record whose lock it does not need. */
typedef struct Change
{
	int			missing;		/* SQLSTATE if nothing is on record */

	/*
	 * Turns rec, the record found, into what it becomes; false if nothing is
	 * to be written.  Raises ID002 if it must not.
	 */
	bool		(*apply) (struct Change *change, Record *rec);

	Call		call;
	char		outcome;		/* of idem_resolve */
	Datum		detail;			/* likewise; (Datum) 0 = NULL */
	int64		fence;			/* likewise; 0 = NULL */
	text	   *reason;			/* of idem_reopen; NULL = none */
	Answer		answer;
} Change;

pg_noreturn static void
refuse_change(const Change *change, const char *why)
{
	call_refuse(&change->call, ERRCODE_IDEM_NOT_YOURS, why,
				"Ask idem_status() what is known now.");
}

static void
change_begin(Change *change, FunctionCallInfo fcinfo, text *principal)
{
	call_begin(&change->call, fcinfo, BIND_WORKER, ARG_TEXT(0), ARG_TEXT(1), principal, NULL);
	call_refuse_unless_writable(&change->call);
}

/* Changes the record of a key and answers what is known then.  Raises ID001, ID002. */
static void
change_run(Change *change)
{
	Store		store;
	Record		found;
	Record		rec;

	store_open(&store, true);
	do
	{
		if (store_probe(&store, &change->call.who, &found) != PROBE_ROW)
			call_refuse(&change->call, change->missing, "nothing is on record",
						"Check operation, key and principal.");
		rec = found;
		if (!change->apply(change, &rec))
			break;
	} while (store_update(&store, &found, &rec, true) != ROW_CHANGED);
	store_close(&store);
	status_of_record(&change->call, &rec, &change->answer);
	answer_log(&change->call, &change->answer);
}

/* Returns what an outcome makes of the record.  Raises 22023 for one there is not. */
static char
state_of_outcome(const Call *call, text *outcome)
{
	const char *name = outcome ? text_to_cstring(outcome) : "";

	if (strcmp(name, "succeeded") == 0)
		return RECORD_SUCCEEDED;
	if (strcmp(name, "failed") == 0)
		return RECORD_FAILED;
	if (strcmp(name, "not_executed") != 0)
		call_refuse(call, ERRCODE_INVALID_PARAMETER_VALUE, "there is no such outcome",
					"The outcomes are succeeded, failed and not_executed.");
	return RECORD_RELEASED;
}

/*
 * Turns the record into what was found out about it.  That its attempt has not
 * executed is a decision about a claim, whose limits begin anew if they were
 * reached; accepted work, which is handed out and not asked for, they end.
 */
static bool
apply_outcome(Change *change, Record *rec)
{
	Call	   *call = &change->call;
	TimestampTz now = GetCurrentTimestamp();
	EffectiveState effective = record_effective_state(rec, call, now);
	Work		work;

	if (effective != EFFECTIVE_UNKNOWN && effective != EFFECTIVE_OVERRUN)
		refuse_change(change, "it is not unknown");
	if (change->fence != 0 && (!work_find(rec, &work) || work.fence != change->fence))
	{
		counters_add(call->policy->counters, COUNT_STALE_FENCE, 1);
		refuse_change(change, "another reconciler has it");
	}
	if (change->outcome != RECORD_RELEASED)
	{
		record_finish(rec, call, change->outcome, change->detail, now);
		return true;
	}
	rec->fence = claim_next_fence(rec->fence);
	if (!rec->accepted && !record_tries_left(rec, call->policy, now))
	{
		rec->releases = rec->attempt;
		rec->reopened_at = now;
	}
	record_put_back(rec, call, now);
	return true;
}

/* idem_resolve(operation, key, outcome, detail, principal, fence) */
REQUEST_FUNCTION(idem_resolve, "resolve")
{
	Change		change = {.missing = ERRCODE_IDEM_NOT_YOURS,.apply = apply_outcome};
	bool		succeeded;

	change_begin(&change, fcinfo, ARG_TEXT(4));
	change.outcome = state_of_outcome(&change.call, ARG_TEXT(2));
	succeeded = change.outcome == RECORD_SUCCEEDED;
	if (!PG_ARGISNULL(3) && !(succeeded && !change.call.policy->store_result))
		change.detail = JsonbPGetDatum(PG_GETARG_JSONB_P(3));
	call_check_size(&change.call, change.detail, succeeded ? "result" : "error");
	if (!PG_ARGISNULL(5))
	{
		change.fence = PG_GETARG_INT64(5);
		if (change.fence == 0)
			refuse_change(&change, "another reconciler has it");
	}
	change_run(&change);
	counters_add(change.call.policy->counters, COUNT_RESOLVED, 1);
	return answer_datum(fcinfo, &change.answer);
}

/* Ends a running lease now, as if its time were over. */
static bool
apply_lease_over(Change *change, Record *rec)
{
	TimestampTz now = GetCurrentTimestamp();

	if (rec->state != RECORD_PROCESSING || rec->lease_until == NEVER ||
		record_effective_state(rec, &change->call, now) != EFFECTIVE_RUNNING)
		refuse_change(change, "it has no running lease");
	rec->lease_until = now;
	rec->fence = claim_next_fence(rec->fence);
	return true;
}

/* idem_expire_lease(operation, key, principal) */
REQUEST_FUNCTION(idem_expire_lease, "expire the lease of")
{
	Change		change = {.missing = ERRCODE_IDEM_NO_CLAIM,.apply = apply_lease_over};

	change_begin(&change, fcinfo, ARG_TEXT(2));
	change_run(&change);
	return answer_datum(fcinfo, &change.answer);
}

/* Returns what is kept of the failure that is reopened: why, and the error. */
static Datum
reopened_json(const text *reason, Datum error)
{
	JsonbParseState *state = NULL;
	JsonbValue	value;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_push_string(&state, "reopened", reason ? text_to_cstring(reason) : NULL);
	if (error != (Datum) 0)
	{
		JsonbToJsonbValue(DatumGetJsonbP(error), &value);
		json_push(&state, "error", &value);
	}
	return JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL)));
}

/*
 * Lets a key that has failed for good execute again: it is a failure that may be
 * retried, with its limits begun anew.  One that was cancelled is free for any
 * params, as if released.
 */
static bool
apply_reopened(Change *change, Record *rec)
{
	TimestampTz now = GetCurrentTimestamp();
	EffectiveState effective = record_effective_state(rec, &change->call, now);
	bool		cancelled = rec->state == RECORD_CANCELLED;
	Datum		error;

	if (!(effective == EFFECTIVE_FAILED ||
		  (effective == EFFECTIVE_EXPIRED && rec->state != RECORD_SUCCEEDED)))
		refuse_change(change, "it has not failed for good");
	error = reopened_json(change->reason, rec->error);
	rec->fence = claim_next_fence(rec->fence);
	rec->releases = rec->attempt;
	rec->reopened_at = now;
	rec->not_before = DT_NOBEGIN;
	if (cancelled)
		record_put_back(rec, &change->call, now);
	else
	{
		record_fail_retryable(rec, &change->call, DT_NOBEGIN, now);
		rec->due_at = now;
	}
	rec->error = error;
	return true;
}

/* idem_reopen(operation, key, principal, reason) */
REQUEST_FUNCTION(idem_reopen, "reopen")
{
	Change		change = {.missing = ERRCODE_IDEM_NO_CLAIM,.apply = apply_reopened};

	change_begin(&change, fcinfo, ARG_TEXT(2));
	change.reason = ARG_TEXT(3);
	call_check_size(&change.call, reopened_json(change.reason, (Datum) 0), "reason");
	change_run(&change);
	return answer_datum(fcinfo, &change.answer);
}

static bool
apply_redacted(Change *change, Record *rec)
{
	if (rec->result == (Datum) 0 && rec->error == (Datum) 0)
		return false;
	if (open_claim_may_be_earlier(rec->xmin))
		open_claim_mark_rewritten();
	rec->result = rec->error = (Datum) 0;
	return true;
}

/* idem_redact(operation, key, principal) */
REQUEST_FUNCTION(idem_redact, "redact")
{
	Change		change = {.missing = ERRCODE_IDEM_NO_CLAIM,.apply = apply_redacted};

	change_begin(&change, fcinfo, ARG_TEXT(2));
	change_run(&change);
	PG_RETURN_VOID();
}
