/*-------------------------------------------------------------------------
 *
 * resolve.c
 *	  What is not known, and what must not happen: idem_reconcile,
 *	  idem_resolve, idem_cancel, idem_redact.
 *
 * One reconciler at a time
 * ------------------------
 * A reconciler takes the lock of the id without waiting, looks at the record,
 * and notes in the work list its own fence, its try, and when the next one may
 * come.  The note is what others see once it is committed; the lock, kept to
 * the end of the transaction, is what they see before that.  Its fence is
 * larger than the owner's and is accepted by idem_resolve alone: the record
 * still belongs to its owner, who may complete it until somebody resolves it.
 *
 * Resolving and completing are both compare and swap on the record, so one of
 * them wins and the other is told ID002.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "claim.h"
#include "compat.h"
#include "counters.h"
#include "requests.h"

PG_FUNCTION_INFO_V1(idem_cancel);
PG_FUNCTION_INFO_V1(idem_reconcile);
PG_FUNCTION_INFO_V1(idem_redact);
PG_FUNCTION_INFO_V1(idem_resolve);

/* Pause after a reconciler's first try, and the longest. */
#define PAUSE_BASE (5 * USECS_PER_SEC)
#define PAUSE_CAP (INT64CONST(3600) * USECS_PER_SEC)

/* Locks one call of idem_reconcile may keep. */
#define MOST_AT_ONCE 256

/*----
 * Cancel.
 *----
 */

/*
 * What a cancelled key answers.
 */
static Datum
cancelled_json(const text *reason)
{
	JsonbParseState *state = NULL;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_push_string(&state, "cancelled", reason ? text_to_cstring(reason) : NULL);
	return JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL)));
}

/*
 * Record the cancellation: the meaning of "execute" for cancel.  It answers
 * like a recorded failure, also the first time.
 */
static Step
record_cancelled(Claim *claim, PermitPrior prior)
{
	Answer	   *answer = &claim->answer;
	Record		rec;
	Step		step;

	claim_make_record(claim, prior, &rec);
	rec.state = RECORD_CANCELLED;
	rec.error = cancelled_json(claim->reason);
	rec.finished_at = claim->now;
	life_set_retention(&rec, &claim->call, claim->now);
	if (!claim_write(claim, prior, &rec, &step))
		return step;
	counters_add(claim->call.policy->counters, COUNT_CANCELLED, 1);
	status_of_record(&claim->call, &rec, answer);
	answer->verdict = VERDICT_REPLAY;
	answer->state = STATE_FAILED;
	answer->advice = ADVICE_NEW_KEY;
	answer->error = rec.error;
	answer->retry_after = 0;
	return STEP_ANSWERED;
}

static const ClaimKind kind_cancel = {
	.verb = "cancel",
	.attempts = 0,
	.takes_accepted = true,
	.withdraws = true,
	.execute = record_cancelled,
};

static Datum
serve_cancel(PG_FUNCTION_ARGS)
{
	Claim		claim;

	claim_begin(&claim, fcinfo, &kind_cancel, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(2));
	claim.reason = ARG_TEXT(3);
	claim_run(&claim);
	return answer_datum(fcinfo, &claim.answer);
}

/*
 * idem_cancel(operation, key, principal, reason)
 */
Datum
idem_cancel(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "cancel", serve_cancel);
}

/*----
 * Reconcile.
 *----
 */

/* One call of idem_reconcile. */
typedef struct Reconcile
{
	FunctionCallInfo fcinfo;
	Store		store;
	int64		lease;
	List	   *due;			/* of Work */
} Reconcile;

static bool
collect(const Work *work, void *arg)
{
	Reconcile  *reconcile = arg;
	Work	   *copy = palloc(sizeof(Work));

	*copy = *work;
	reconcile->due = lappend(reconcile->due, copy);
	return true;
}

static int
oldest_first(const ListCell *a, const ListCell *b)
{
	const Work *left = lfirst(a);
	const Work *right = lfirst(b);

	if (left->due_at != right->due_at)
		return left->due_at < right->due_at ? -1 : 1;
	return memcmp(&left->id, &right->id, UUID_LEN);
}

/*
 * Note the try of a reconciler.  Another one may come when its lease and a
 * pause are over; none any more after the policy's number of tries.
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
		work.due_at = time_after(time_after(now, lease),
								 backoff_jitter(work.tries, PAUSE_BASE, PAUSE_CAP));
	return work_update(found, &work) == ROW_CHANGED;
}

static void
put_unknown(FunctionCallInfo fcinfo, const Call *call, const Record *rec,
			int64 fence)
{
	Answer		answer;

	answer_init(&answer, &call->who);
	answer.verdict = VERDICT_UNKNOWN;
	answer.state = STATE_UNKNOWN;
	answer.advice = ADVICE_RECONCILE;
	answer.fence = fence;
	answer.attempt = rec->attempt;
	answer.error = rec->error;
	answer.claimed_at = rec->claimed_at;
	answer.lease_until = rec->lease_until;
	answer_put(fcinfo, &answer);
	request_about(call);
	request_answered(call, &answer);
	request_next(true);
}

/*
 * Hand one record out, if it is unknown and nobody else has it.
 */
static bool
hand_out(Reconcile *reconcile, const Work *entry)
{
	Call		call = {0};
	Record		rec;
	Work		work;
	int64		fence;

	switch (store_probe_id(&reconcile->store, &entry->id, &rec))
	{
		case PROBE_ROW:
			break;
		case PROBE_NOTHING:
			work_forget(entry);
			return false;
		case PROBE_IN_FLIGHT:
			return false;
	}
	if (!TransactionIdIsValid(rec.changer) && !work_is_open(&rec))
	{
		work_forget(entry);
		return false;
	}
	identity_of_record(&call.who, &rec);
	call.policy = policy_get(call.who.operation);
	if (!policy_permits(call.policy, &call.who, BIND_WORKER) ||
		life_of(&rec, &call, GetCurrentTimestamp()) != LIFE_UNKNOWN ||
		!permit_lock(&entry->id))
		return false;

	/* look again under the lock, and keep it if it is ours to hand out */
	if (store_probe(&reconcile->store, &call.who, &rec) == PROBE_ROW &&
		!TransactionIdIsValid(rec.changer) &&
		life_of(&rec, &call, GetCurrentTimestamp()) == LIFE_UNKNOWN &&
		work_find(&entry->id, &work) &&
		work.due_at <= GetCurrentTimestamp() &&
		note_try(&work, &rec, call.policy, reconcile->lease, &fence))
	{
		put_unknown(reconcile->fcinfo, &call, &rec, fence);
		return true;
	}
	permit_unlock(&entry->id);
	return false;
}

/*
 * The time a reconciler has for its try, argument 2.  Raises 22023.
 */
static int64
reconcile_lease(FunctionCallInfo fcinfo, const char *operation)
{
	int64		lease = 0;

	if (!PG_ARGISNULL(2))
		lease = interval_microseconds_of(PG_GETARG_INTERVAL_P(2), "lease",
										 "operation", operation ? operation : "*");
	if (lease == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lease of idem_reconcile must be longer than zero"),
				 errhint("Pass how long nobody else is to get the records.")));
	return lease;
}

static Datum
serve_reconcile(PG_FUNCTION_ARGS)
{
	Reconcile	reconcile = {.fcinfo = fcinfo};
	Call		call = {0};
	ListCell   *lc;
	int			left;

	if (!PG_ARGISNULL(0))
		call_begin_operation(&call, PG_GETARG_TEXT_PP(0));
	if (PG_ARGISNULL(1) || PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_records of idem_reconcile must be greater than zero"),
				 errhint("Pass how many records to hand out at most.")));
	refuse_unless_writable("idem_reconcile()");
	reconcile.lease = reconcile_lease(fcinfo, call.who.operation);

	InitMaterializedSRF(fcinfo, 0);
	store_open(&reconcile.store, true);
	work_visit(call.who.operation, RECORD_PROCESSING, GetCurrentTimestamp(),
			   collect, &reconcile);
	list_sort(reconcile.due, oldest_first);
	left = Min(PG_GETARG_INT32(1), MOST_AT_ONCE);
	foreach(lc, reconcile.due)
	{
		CHECK_FOR_INTERRUPTS();
		if (hand_out(&reconcile, lfirst(lc)) && --left == 0)
			break;
	}
	store_close(&reconcile.store);
	return (Datum) 0;
}

/*
 * idem_reconcile(operation, max_records, lease)
 */
Datum
idem_reconcile(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "reconcile", serve_reconcile);
}

/*----
 * Resolve.
 *----
 */

typedef enum Outcome
{
	OUTCOME_SUCCEEDED,
	OUTCOME_FAILED,
	OUTCOME_NOT_EXECUTED
} Outcome;

/*
 * Raises 22023 for an outcome there is not.
 */
static Outcome
outcome_of(FunctionCallInfo fcinfo, int argno, const Identity *who)
{
	static const char *const names[] = {"succeeded", "failed", "not_executed"};
	char	   *name = PG_ARGISNULL(argno) ? "" :
	text_to_cstring(PG_GETARG_TEXT_PP(argno));

	for (int i = 0; i < lengthof(names); i++)
	{
		if (strcmp(name, names[i]) == 0)
			return (Outcome) i;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("cannot resolve operation \"%s\" (id %s): there is no such outcome",
					who->operation, id_text(&who->id)),
			 errhint("The outcomes are succeeded, failed and not_executed.")));
	return OUTCOME_FAILED;
}

static void
refuse_resolve(const Identity *who, const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_YOURS),
			 errmsg("cannot resolve operation \"%s\" (id %s): %s",
					who->operation, id_text(&who->id), why),
			 errhint("Ask idem_status() what is known now.")));
}

/*
 * Raise ID002 unless the record is unknown now and the fence, if one is given,
 * is that of its last reconciler.
 */
static void
check_resolvable(const Call *call, Record *rec, int64 fence)
{
	Life		life = life_of(rec, call, GetCurrentTimestamp());
	Work		work;

	if (life != LIFE_UNKNOWN && life != LIFE_OVERRUN)
		refuse_resolve(&call->who, "it is not unknown");
	if (fence != 0 && (!work_find(&rec->id, &work) || work.fence != fence))
	{
		counters_add(call->policy->counters, COUNT_STALE_FENCE, 1);
		refuse_resolve(&call->who, "another reconciler has it");
	}
}

/*
 * Turn the record into what was found out about it.
 */
static void
apply_outcome(const Call *call, Outcome outcome, Datum detail, Record *rec)
{
	TimestampTz now = GetCurrentTimestamp();

	rec->finished_at = now;
	rec->lease_until = NEVER;
	rec->result = rec->error = (Datum) 0;
	life_set_retention(rec, call, now);
	switch (outcome)
	{
		case OUTCOME_SUCCEEDED:
			rec->state = RECORD_SUCCEEDED;
			rec->result = detail;
			break;
		case OUTCOME_FAILED:
			rec->state = RECORD_FAILED;
			rec->error = detail;
			break;
		case OUTCOME_NOT_EXECUTED:
			rec->state = RECORD_RELEASED;
			rec->expires_at = NEVER;
			break;
	}
}

static Datum
serve_resolve(PG_FUNCTION_ARGS)
{
	Call		call;
	Outcome		outcome;
	Datum		detail = PG_ARGISNULL(3) ? (Datum) 0 :
	JsonbPGetDatum(PG_GETARG_JSONB_P(3));
	int64		fence = PG_ARGISNULL(5) ? 0 : PG_GETARG_INT64(5);
	Store		store;
	Answer		answer;
	Record		found;
	Record		rec;

	call_begin(&call, fcinfo, BIND_WORKER, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(4));
	outcome = outcome_of(fcinfo, 2, &call.who);
	call_refuse_unless_writable("resolve", &call.who);
	call_check_size(&call, detail, outcome == OUTCOME_SUCCEEDED ? "result" : "error");
	if (!PG_ARGISNULL(5) && fence == 0)
		refuse_resolve(&call.who, "another reconciler has it");

	store_open(&store, true);
	do
	{
		if (store_probe(&store, &call.who, &found) != PROBE_ROW)
			refuse_resolve(&call.who, "it is not unknown");
		check_resolvable(&call, &found, fence);
		rec = found;
		apply_outcome(&call, outcome, detail, &rec);
	} while (store_update(&store, &found, &rec, true) != ROW_CHANGED);
	store_close(&store);
	counters_add(call.policy->counters, COUNT_RESOLVED, 1);

	status_of_record(&call, &rec, &answer);
	request_answered(&call, &answer);
	return answer_datum(fcinfo, &answer);
}

/*
 * idem_resolve(operation, key, outcome, detail, principal, fence)
 */
Datum
idem_resolve(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "resolve", serve_resolve);
}

/*----
 * Redact.
 *----
 */

static Datum
serve_redact(PG_FUNCTION_ARGS)
{
	Call		call;
	Store		store;
	Record		found;
	Record		rec;
	Answer		answer;

	call_begin(&call, fcinfo, BIND_WORKER, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(2));
	call_refuse_unless_writable("redact", &call.who);
	store_open(&store, true);
	do
	{
		if (store_probe(&store, &call.who, &found) != PROBE_ROW)
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_NO_CLAIM),
					 errmsg("cannot redact operation \"%s\" (id %s): nothing is on record",
							call.who.operation, id_text(&call.who.id)),
					 errhint("Check operation, key and principal.")));
		rec = found;
		if (found.result == (Datum) 0 && found.error == (Datum) 0)
			break;
		rec.result = rec.error = (Datum) 0;
	} while (store_update(&store, &found, &rec, true) != ROW_CHANGED);
	store_close(&store);

	status_of_record(&call, &rec, &answer);
	request_answered(&call, &answer);
	PG_RETURN_VOID();
}

/*
 * idem_redact(operation, key, principal)
 */
Datum
idem_redact(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "redact", serve_redact);
}
