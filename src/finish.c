/*-------------------------------------------------------------------------
 *
 * finish.c
 *	  complete, fail, unsure, renew, release: what the owner of a claim says.
 *
 * A claim open in this transaction is finished through its permit.  Any other
 * is a leased one, finished on its record.  Two sessions can meet there: the
 * owner, a stale owner, a taker.  Each decides on a version it has read and
 * replaces that very version (compare and swap), waiting for whoever is
 * changing it, and looks again if it was changed.  So of all who finish under
 * one fence the first wins and the rest see what it recorded, and a stale
 * owner's fence no longer matches, whatever the order.  What is judged is
 * always the last committed version; a snapshot plays no part, so nothing here
 * raises 40001.
 *
 * The same outcome said twice is said once.  In the transaction that recorded
 * it that is harmless.  In a later one it means that the whole transaction is
 * being tried again although it had committed, so if it has written anything
 * it must not commit (permit_mark_repeated).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "compat.h"
#include "counters.h"
#include "requests.h"

PG_FUNCTION_INFO_V1(idem_complete);
PG_FUNCTION_INFO_V1(idem_complete_key);
PG_FUNCTION_INFO_V1(idem_fail);
PG_FUNCTION_INFO_V1(idem_fail_key);
PG_FUNCTION_INFO_V1(idem_release);
PG_FUNCTION_INFO_V1(idem_release_key);
PG_FUNCTION_INFO_V1(idem_renew);
PG_FUNCTION_INFO_V1(idem_renew_key);
PG_FUNCTION_INFO_V1(idem_unsure);
PG_FUNCTION_INFO_V1(idem_unsure_key);

typedef enum Finishing
{
	FINISH_COMPLETE,
	FINISH_FAIL,
	FINISH_UNSURE,
	FINISH_RENEW,
	FINISH_RELEASE
} Finishing;

static const char *const finishing_names[] = {
	"complete", "fail", "mark as unsure", "renew", "release"
};

typedef struct Finish
{
	Call		call;
	Finishing	what;
	int64		fence;
	Datum		outcome;		/* result, error or detail; (Datum) 0 = NULL */
	bool		retryable;
	int64		lease;
	TimestampTz now;
	int32		attempt;		/* of the record, for the log */
} Finish;

/*----
 * Refusals.
 *----
 */

static void
refuse_no_claim(const Finish *finish)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NO_CLAIM),
			 errmsg("cannot %s: there is no open claim of operation \"%s\" (id %s)",
					finishing_names[finish->what], finish->call.who.operation,
					id_text(&finish->call.who.id)),
			 errhint("The claim was rolled back or released, or never committed. Claim again with the same key.")));
}

static void
refuse_not_yours(const Finish *finish)
{
	counters_add(finish->call.policy->counters, COUNT_STALE_FENCE, 1);
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_YOURS),
			 errmsg("cannot %s: the claim of operation \"%s\" (id %s) is no longer yours",
					finishing_names[finish->what], finish->call.who.operation,
					id_text(&finish->call.who.id)),
			 errhint("Its lease is over, another owner has it, or another outcome is recorded. Roll back and ask idem_status().")));
}

/*----
 * What is recorded.
 *----
 */

/*
 * Turn rec, the claim as it stands, into what becomes of it.
 */
static void
apply(const Finish *finish, Record *rec)
{
	const Policy *policy = finish->call.policy;
	TimestampTz now = finish->now;

	if (finish->what == FINISH_RENEW)
	{
		/* a clock set back must not shorten a lease */
		rec->lease_until = Max(rec->lease_until, time_after(now, finish->lease));
		return;
	}
	if (finish->what == FINISH_UNSURE)
	{
		rec->lease_until = Min(rec->lease_until, now);
		rec->error = finish->outcome;
		return;
	}

	rec->finished_at = now;
	rec->lease_until = NEVER;
	rec->result = rec->error = (Datum) 0;
	life_set_retention(rec, &finish->call, now);
	switch (finish->what)
	{
		case FINISH_COMPLETE:
			rec->state = RECORD_SUCCEEDED;
			rec->result = finish->outcome;
			break;
		case FINISH_FAIL:
			rec->error = finish->outcome;
			rec->state = RECORD_FAILED;
			if (finish->retryable && life_tries_left(rec, policy, now))
			{
				rec->state = RECORD_RETRYABLE;
				/* failed for good from the deadline on, if there is one */
				life_set_retention(rec, &finish->call,
								   time_after(rec->claimed_at, policy->deadline));
			}
			break;
		case FINISH_RELEASE:
			rec->state = RECORD_RELEASED;
			rec->expires_at = NEVER;
			break;
		default:
			elog(ERROR, "unexpected finishing %d", finish->what);
	}
}

static bool
same_json(Datum a, Datum b)
{
	if (a == (Datum) 0 || b == (Datum) 0)
		return a == b;
	return compareJsonbContainers(&DatumGetJsonbP(a)->root,
								  &DatumGetJsonbP(b)->root) == 0;
}

/*
 * Does the record say under this fence what is being said again?
 */
static bool
is_repetition(const Finish *finish, const Record *rec)
{
	if (rec->fence != finish->fence)
		return false;
	switch (finish->what)
	{
		case FINISH_COMPLETE:
			return rec->state == RECORD_SUCCEEDED &&
				same_json(rec->result, finish->outcome);
		case FINISH_FAIL:
			if (rec->state != RECORD_FAILED && rec->state != RECORD_RETRYABLE)
				return false;
			if (rec->state == RECORD_RETRYABLE && !finish->retryable)
				return false;
			return same_json(rec->error, finish->outcome);
		case FINISH_RELEASE:
			return rec->state == RECORD_RELEASED;
		case FINISH_UNSURE:
		case FINISH_RENEW:
			return false;
	}
	return false;
}

/*
 * What the owner said is recorded: count it.
 */
static void
observe(const Finish *finish, const Record *rec)
{
	static const Counter by_name[] = {
		[FINISH_COMPLETE] = COUNT_COMPLETED,
		[FINISH_FAIL] = COUNT_FAILED,
		[FINISH_UNSURE] = COUNT_UNSURE,
		[FINISH_RENEW] = COUNT_RENEWED,
		[FINISH_RELEASE] = COUNT_RELEASED,
	};

	counters_add(finish->call.policy->counters,
				 rec->state == RECORD_RETRYABLE ? COUNT_FAILED_RETRYABLE :
				 by_name[finish->what], 1);
}

/*----
 * The two ways.
 *----
 */

/*
 * Finish a claim open in this transaction.  Raises ID002, ID004.
 */
static void
finish_permit(Finish *finish, Permit *permit)
{
	const Identity *who = &finish->call.who;
	Store		store;
	Record		rec = permit->rec;
	bool		done;

	if (permit->rec.fence != finish->fence)
		refuse_not_yours(finish);
	if (finish->what == FINISH_RENEW)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot renew: operation \"%s\" (id %s) was claimed without a lease",
						who->operation, id_text(&who->id)),
				 errhint("An atomic claim lasts as long as its transaction.")));
	store_open(&store, true);
	if (finish->what == FINISH_RELEASE && permit->prior == PRIOR_NOTHING)
		done = permit_withdraw(permit, &store, who);
	else if (finish->what == FINISH_RELEASE && permit->prior == PRIOR_FORGOTTEN &&
			 !permit->written)
		done = true;
	else
	{
		apply(finish, &rec);
		done = permit_write(permit, &store, who, &rec);
	}
	store_close(&store);
	if (!done)
		refuse_not_yours(finish);
	permit_settle(permit);
	finish->attempt = rec.attempt;
	observe(finish, &rec);
}

/*
 * The record is not open under the fence: a repetition, or refused.
 */
static void
finish_closed(const Finish *finish, const Record *rec)
{
	if ((rec->state == RECORD_ACCEPTED && rec->attempt == 0) ||
		rec->forget_at <= finish->now)
		refuse_no_claim(finish);
	if (!is_repetition(finish, rec))
		refuse_not_yours(finish);
	if (!TransactionIdIsCurrentTransactionId(rec->xmin))
		permit_mark_repeated(&finish->call.who);
}

/*
 * Finish a claim on its record: leased, or finished before.  Returns the end
 * of its lease.  Raises ID001, ID002.
 */
static TimestampTz
finish_record(Finish *finish)
{
	Store		store;
	Record		found;
	Record		rec;

	store_open(&store, true);
	for (;;)
	{
		finish->now = GetCurrentTimestamp();
		if (store_probe(&store, &finish->call.who, &found) != PROBE_ROW)
			refuse_no_claim(finish);

		if (found.state != RECORD_PROCESSING || found.fence != finish->fence)
		{
			finish_closed(finish, &found);
			rec = found;
			break;
		}

		/* not by trying to update: that would take a transaction id */
		if (TransactionIdIsValid(found.changer))
		{
			store_wait(&store, &found);
			continue;
		}
		if (finish->what == FINISH_RENEW && found.lease_until <= finish->now)
			refuse_not_yours(finish);
		rec = found;
		apply(finish, &rec);
		if (store_update(&store, &found, &rec, true) == ROW_CHANGED)
		{
			observe(finish, &rec);
			if (found.lease_until <= finish->now)
				counters_add(finish->call.policy->counters, COUNT_LEASE_OVERRUN, 1);
			break;
		}
	}
	store_close(&store);
	finish->attempt = rec.attempt;
	return rec.lease_until;
}

/*
 * Say that it is done.
 */
static void
answer_done(const Finish *finish)
{
	static const State states[] = {
		[FINISH_COMPLETE] = STATE_SUCCEEDED,
		[FINISH_FAIL] = STATE_FAILED,
		[FINISH_UNSURE] = STATE_UNKNOWN,
		[FINISH_RENEW] = STATE_PROCESSING,
		[FINISH_RELEASE] = STATE_ABSENT,
	};
	Answer		answer = {
		.verdict = VERDICT_NONE,
		.state = states[finish->what],
		.attempt = finish->attempt,
		.result = finish->what == FINISH_COMPLETE ? finish->outcome : (Datum) 0,
	};

	request_answered(&finish->call, &answer);
}

/*
 * Do what the owner says.  Returns the end of the lease, for renew.
 */
static TimestampTz
finish_run(Finish *finish)
{
	TimestampTz lease_until = NEVER;
	Permit	   *permit;

	call_refuse_unless_writable(finishing_names[finish->what],
								&finish->call.who);
	call_check_size(&finish->call, finish->outcome,
					finish->what == FINISH_COMPLETE ? "result" : "error");
	finish->now = GetCurrentTimestamp();
	permit = permit_find(&finish->call.who.id);
	if (permit && permit->settled_level == 0)
		finish_permit(finish, permit);
	else
		lease_until = finish_record(finish);
	answer_done(finish);
	return lease_until;
}

/*
 * Finish a claim made by the same call.  Raises ID004.
 */
void
finish_claim(const Call *call, int64 fence, bool succeeded, Datum outcome)
{
	Finish		finish = {.call = *call,.fence = fence,.outcome = outcome};

	/* what was done since the claim may have let go of the policy */
	finish.call.policy = policy_get(call->who.operation);
	finish.what = succeeded ? FINISH_COMPLETE : FINISH_FAIL;
	(void) finish_run(&finish);
}

/*----
 * SQL functions.
 *----
 */

/*
 * A claim handed over as idem_answer.  Raises 22023 unless its verdict is
 * execute.
 */
static void
finish_by_answer(FunctionCallInfo fcinfo, Finishing what, Finish *finish)
{
	Handed		handed;

	answer_read(fcinfo, 0, &handed);
	memset(finish, 0, sizeof(*finish));
	finish->what = what;
	call_begin(&finish->call, fcinfo, BIND_UNLESS_WORKER, handed.operation,
			   handed.key, handed.principal);
	if (handed.verdict != VERDICT_EXECUTE || !handed.has_fence)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot %s operation \"%s\" (id %s): the answer is no permit",
						finishing_names[what], finish->call.who.operation,
						id_text(&finish->call.who.id)),
				 errhint("Only an answer with verdict execute and a fence is one.")));
	if (!handed.has_id ||
		memcmp(&handed.id, &finish->call.who.id, sizeof(handed.id)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot %s operation \"%s\" (id %s): the answer has another id",
						finishing_names[what], finish->call.who.operation,
						id_text(&finish->call.who.id)),
				 errhint("Hand over the answer of idem_claim() as it came.")));
	finish->fence = handed.fence;
}

/*
 * A claim named by operation, key and fence (arguments 0 to 2), the principal
 * being argument principal_arg.  Raises 22023.
 */
static void
finish_by_key(FunctionCallInfo fcinfo, Finishing what, int principal_arg,
			  Finish *finish)
{
	memset(finish, 0, sizeof(*finish));
	finish->what = what;
	call_begin(&finish->call, fcinfo, BIND_UNLESS_WORKER, ARG_TEXT(0),
			   ARG_TEXT(1), ARG_TEXT(principal_arg));
	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot %s operation \"%s\" (id %s): fence must not be null",
						finishing_names[what], finish->call.who.operation,
						id_text(&finish->call.who.id)),
				 errhint("The fence is in the answer of idem_claim().")));
	finish->fence = PG_GETARG_INT64(2);
}

/*
 * Argument n as the outcome.
 */
static void
set_outcome(FunctionCallInfo fcinfo, int n, Finish *finish)
{
	if (!PG_ARGISNULL(n))
		finish->outcome = JsonbPGetDatum(PG_GETARG_JSONB_P(n));
}

/*
 * Argument n as a new lease.  Raises 22023 unless it is longer than zero.
 */
static void
set_lease(FunctionCallInfo fcinfo, int n, Finish *finish)
{
	if (!PG_ARGISNULL(n))
		finish->lease = interval_microseconds(PG_GETARG_INTERVAL_P(n), "lease",
											  &finish->call.who);
	if (finish->lease == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot renew operation \"%s\" (id %s): lease must be longer than zero",
						finish->call.who.operation,
						id_text(&finish->call.who.id)),
				 errhint("Give the time the work may still take, or call idem_release() if it is given up.")));
}

static Datum
complete(FunctionCallInfo fcinfo, Finish *finish, int outcome_arg)
{
	set_outcome(fcinfo, outcome_arg, finish);
	finish_run(finish);
	if (finish->outcome == (Datum) 0)
		PG_RETURN_NULL();
	return finish->outcome;
}

static Datum
fail(FunctionCallInfo fcinfo, Finish *finish, int outcome_arg)
{
	set_outcome(fcinfo, outcome_arg, finish);
	finish->retryable = !PG_ARGISNULL(outcome_arg + 1) &&
		PG_GETARG_BOOL(outcome_arg + 1);
	finish_run(finish);
	PG_RETURN_VOID();
}

static Datum
unsure(FunctionCallInfo fcinfo, Finish *finish, int outcome_arg)
{
	set_outcome(fcinfo, outcome_arg, finish);
	finish_run(finish);
	PG_RETURN_VOID();
}

static Datum
renew(FunctionCallInfo fcinfo, Finish *finish, int lease_arg)
{
	set_lease(fcinfo, lease_arg, finish);
	PG_RETURN_TIMESTAMPTZ(finish_run(finish));
}

static Datum
serve_complete(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_answer(fcinfo, FINISH_COMPLETE, &finish);
	return complete(fcinfo, &finish, 1);
}

/* idem_complete(claim, result) */
Datum
idem_complete(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "complete", serve_complete);
}

static Datum
serve_complete_key(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_key(fcinfo, FINISH_COMPLETE, 4, &finish);
	return complete(fcinfo, &finish, 3);
}

/* idem_complete_key(operation, key, fence, result, principal) */
Datum
idem_complete_key(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "complete", serve_complete_key);
}

static Datum
serve_fail(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_answer(fcinfo, FINISH_FAIL, &finish);
	return fail(fcinfo, &finish, 1);
}

/* idem_fail(claim, error, retryable) */
Datum
idem_fail(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "fail", serve_fail);
}

static Datum
serve_fail_key(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_key(fcinfo, FINISH_FAIL, 5, &finish);
	return fail(fcinfo, &finish, 3);
}

/* idem_fail_key(operation, key, fence, error, retryable, principal) */
Datum
idem_fail_key(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "fail", serve_fail_key);
}

static Datum
serve_unsure(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_answer(fcinfo, FINISH_UNSURE, &finish);
	return unsure(fcinfo, &finish, 1);
}

/* idem_unsure(claim, detail) */
Datum
idem_unsure(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "mark as unsure", serve_unsure);
}

static Datum
serve_unsure_key(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_key(fcinfo, FINISH_UNSURE, 4, &finish);
	return unsure(fcinfo, &finish, 3);
}

/* idem_unsure_key(operation, key, fence, detail, principal) */
Datum
idem_unsure_key(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "mark as unsure", serve_unsure_key);
}

static Datum
serve_renew(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_answer(fcinfo, FINISH_RENEW, &finish);
	return renew(fcinfo, &finish, 1);
}

/* idem_renew(claim, lease) */
Datum
idem_renew(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "renew", serve_renew);
}

static Datum
serve_renew_key(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_key(fcinfo, FINISH_RENEW, 4, &finish);
	return renew(fcinfo, &finish, 3);
}

/* idem_renew_key(operation, key, fence, lease, principal) */
Datum
idem_renew_key(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "renew", serve_renew_key);
}

static Datum
serve_release(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_answer(fcinfo, FINISH_RELEASE, &finish);
	finish_run(&finish);
	PG_RETURN_VOID();
}

/* idem_release(claim) */
Datum
idem_release(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "release", serve_release);
}

static Datum
serve_release_key(PG_FUNCTION_ARGS)
{
	Finish		finish;

	finish_by_key(fcinfo, FINISH_RELEASE, 3, &finish);
	finish_run(&finish);
	PG_RETURN_VOID();
}

/* idem_release_key(operation, key, fence, principal) */
Datum
idem_release_key(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "release", serve_release_key);
}
