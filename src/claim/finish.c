/*
 * finish.c
 *	  complete, fail, unsure, renew, release: what the owner of a claim says.
 *
 * A claim open in this transaction is finished through its entry among the open
 * claims.  Any other is a leased one, finished on its record.  Two sessions can
 * meet there: the owner, a stale owner, a taker.  Each decides on a version it
 * has read and replaces that very version (compare and swap), waiting for the
 * transaction that is changing it, and probes again if it was changed.  So of
 * all that finish under one fence the first wins and the rest see what it
 * recorded, and a stale owner's fence no longer matches, whatever the order.
 * What is judged is always the last committed version; a snapshot plays no part,
 * so nothing here raises 40001.
 *
 * The same outcome said twice is said once.  In the transaction that recorded
 * it that is harmless.  In a later one it means that the whole transaction is
 * being tried again although it had committed, so if it has written anything
 * it must not commit (open_claim_mark_repeated).
 */
#include "postgres.h"

#include "access/transam.h"

#include "claim/claim.h"
#include "stats/stats.h"

typedef enum Finishing
{
	FINISH_COMPLETE,
	FINISH_FAIL,
	FINISH_UNSURE,
	FINISH_RENEW,
	FINISH_RELEASE
} Finishing;

static const struct
{
	const char *verb;			/* for messages */
	const char *done;			/* the same as a participle; NULL = never
								 * repeated */
	Counter		counter;
	State		state;			/* for the log */

	/* numbers of the arguments after a claim; 0 = not taken */
	int			outcome;
	int			retryable;
	int			retry_after;
	int			lease;
	int			principal;		/* after operation, key and fence */
}			finishings[] = {

	[FINISH_COMPLETE] = {"complete", "completed", COUNT_COMPLETED, STATE_SUCCEEDED,
	.outcome = 1,.principal = 4},
	[FINISH_FAIL] = {"fail", "recorded as failed", COUNT_FAILED, STATE_FAILED,
	.outcome = 1,.retryable = 2,.retry_after = 3,.principal = 5},
	[FINISH_UNSURE] = {"mark as unsure", NULL, COUNT_UNSURE, STATE_UNKNOWN,
	.outcome = 1,.principal = 4},
	[FINISH_RENEW] = {"renew", NULL, COUNT_RENEWED, STATE_PROCESSING,
	.lease = 1,.principal = 4},
	[FINISH_RELEASE] = {"release", "released", COUNT_RELEASED, STATE_ABSENT,
	.retry_after = 1,.principal = 3},
};

typedef struct Finish
{
	Call		call;
	Finishing	what;
	int64		fence;
	Datum		outcome;		/* result, error or detail; (Datum) 0 = NULL */
	Datum		stored;			/* what is kept of it */
	bool		cut_to_fit;		/* the outcome, if it was too large */
	bool		retryable;
	int64		retry_after;	/* NO_LIMIT = not given */
	int64		lease;
	TimestampTz now;
} Finish;

pg_noreturn static void
refuse_no_claim(const Finish *finish)
{
	call_refuse(&finish->call, ERRCODE_IDEM_NO_CLAIM, "there is no open claim",
				"The claim was rolled back or released, was never committed, or is another principal's than the one given here or in idempotency.principal. Claim again with the same key.");
}

pg_noreturn static void
refuse_not_yours(const Finish *finish)
{
	counters_add(finish->call.policy->counters, COUNT_STALE_FENCE, 1);
	call_refuse(&finish->call, ERRCODE_IDEM_NOT_YOURS, "the claim is no longer yours",
				"Its lease is over, another owner has it, or another outcome is recorded, as by a reconciler. Roll back and claim again with the same key: the answer says what is known.");
}

/*
 * Returns when the key may execute again; DT_NOBEGIN = at once.  Accepted work that is
 * released has a pace even where none is given.
 */
static TimestampTz
not_before(const Finish *finish, const Record *rec)
{
	int64		pause = finish->retry_after;

	if (pause == NO_LIMIT)
		pause = finish->what == FINISH_RELEASE && rec->accepted ?
			finish->call.policy->retry_after : 0;
	return pause > 0 ? clock_after(finish->now, pause) : DT_NOBEGIN;
}

/* Turns rec, the claim as it stands, into what becomes of it. */
static void
apply_finish(const Finish *finish, Record *rec)
{
	TimestampTz now = finish->now;

	switch (finish->what)
	{
		case FINISH_COMPLETE:
			record_finish(rec, &finish->call, RECORD_SUCCEEDED, finish->stored, now);
			break;
		case FINISH_FAIL:
			record_finish(rec, &finish->call, RECORD_FAILED, finish->stored, now);
			if (finish->retryable)
				record_fail_retryable(rec, &finish->call, not_before(finish, rec), now);
			break;
		case FINISH_UNSURE:
			rec->lease_until = Min(rec->lease_until, now);
			rec->error = finish->stored;
			break;
		case FINISH_RENEW:
			/* a clock set back must not shorten a lease */
			rec->lease_until = Max(rec->lease_until, clock_after(now, finish->lease));
			break;
		case FINISH_RELEASE:
			rec->releases++;
			rec->not_before = not_before(finish, rec);
			record_put_back(rec, &finish->call, now);
			break;
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

/* Returns whether the record says under this fence what is being said again. */
static bool
is_repetition(const Finish *finish, const Record *rec)
{
	if (rec->fence != finish->fence)
		return false;
	switch (finish->what)
	{
		case FINISH_COMPLETE:
			return rec->state == RECORD_SUCCEEDED &&
				same_json(rec->result, finish->stored);
		case FINISH_FAIL:
			return (rec->state == RECORD_FAILED ||
					(rec->state == RECORD_RETRYABLE && finish->retryable)) &&
				same_json(rec->error, finish->stored);
		case FINISH_RELEASE:
			return rec->state == RECORD_RELEASED || rec->state == RECORD_ACCEPTED;
		case FINISH_UNSURE:
		case FINISH_RENEW:
			break;
	}
	return false;
}

static void
count_finish(const Finish *finish, const Record *rec)
{
	counters_add(finish->call.policy->counters,
				 rec->state == RECORD_RETRYABLE ? COUNT_FAILED_RETRYABLE :
				 finishings[finish->what].counter, 1);
}

/* Finishes a claim open in this transaction; sets *rec to what is recorded.  Raises ID002. */
static void
finish_open_claim(Finish *finish, OpenClaim *open, Record *rec)
{
	const Identity *who = &finish->call.who;
	Store		store;
	bool		no_trace;
	bool		done;

	*rec = open->rec;
	if (rec->fence != finish->fence)
		refuse_not_yours(finish);
	if (finish->what == FINISH_RENEW)
		call_refuse(&finish->call, ERRCODE_INVALID_PARAMETER_VALUE, "it was claimed without a lease",
					"An atomic claim lasts as long as its transaction.");
	no_trace = finish->what == FINISH_RELEASE && not_before(finish, rec) == DT_NOBEGIN;
	store_open(&store, true);
	if (no_trace && open->prior == PRIOR_NOTHING)
		done = open_claim_withdraw(open, &store, who);
	else if (no_trace && open->prior == PRIOR_FORGOTTEN && !open->written)
		done = true;
	else
	{
		apply_finish(finish, rec);
		done = open_claim_write(open, &store, who, rec);
	}
	store_close(&store);
	if (!done)
		refuse_not_yours(finish);
	open_claim_finish(open);
	count_finish(finish, rec);
}

/* The record is not open under the fence: a repetition, or refused. */
static void
finish_closed(const Finish *finish, const Record *rec)
{
	if ((rec->state == RECORD_ACCEPTED && rec->attempt == 0) ||
		rec->forget_at <= finish->now)
		refuse_no_claim(finish);
	if (!is_repetition(finish, rec))
		refuse_not_yours(finish);
	if (open_claim_may_be_earlier(rec->xmin))
		open_claim_mark_repeated(&finish->call.who, finishings[finish->what].done);
}

/* Finishes a claim on its record, leased or finished before.  Raises ID001, ID002. */
static void
finish_record(Finish *finish, Record *rec)
{
	Store		store;
	Record		found;

	store_open(&store, true);
	for (;;)
	{
		finish->now = GetCurrentTimestamp();
		if (store_probe(&store, &finish->call.who, &found) != PROBE_ROW)
			refuse_no_claim(finish);
		*rec = found;
		if (found.state != RECORD_PROCESSING || found.fence != finish->fence)
		{
			finish_closed(finish, &found);
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
		apply_finish(finish, rec);
		if (store_update(&store, &found, rec, true) == ROW_CHANGED)
		{
			count_finish(finish, rec);
			if (found.lease_until <= finish->now)
				counters_add(finish->call.policy->counters, COUNT_LEASE_OVERRUN, 1);
			break;
		}
	}
	store_close(&store);
}

/* Does what the owner says; *rec has no result that is not kept.  Raises ID001, ID002, ID004. */
static void
finish_run(Finish *finish, Record *rec)
{
	bool		completed = finish->what == FINISH_COMPLETE;
	Answer		answer = {.verdict = VERDICT_NONE,.state = finishings[finish->what].state};
	OpenClaim  *open;

	call_refuse_unless_writable(&finish->call);
	if (!completed || finish->call.policy->store_result)
		finish->stored = finish->outcome;
	if (!finish->cut_to_fit)
		call_check_size(&finish->call, finish->stored, completed ? "result" : "error");
	finish->now = GetCurrentTimestamp();
	open = open_claim_find(&finish->call.who.id);
	if (open)
		finish_open_claim(finish, open, rec);
	else
		finish_record(finish, rec);
	answer.attempt = rec->attempt;
	answer.result = completed ? finish->outcome : (Datum) 0;
	answer.error = completed ? (Datum) 0 : finish->outcome;
	answer_log(&finish->call, &answer);
}

/* Finishes a claim made by the same call; an error has been cut to fit.  Raises ID004. */
void
finish_claim(const Call *call, int64 fence, bool succeeded, Datum outcome)
{
	Finish		finish = {.call = *call,.fence = fence,.outcome = outcome,
	.retry_after = NO_LIMIT,.cut_to_fit = !succeeded};
	Record		rec;

	/* what was done since the claim may have changed the settings */
	finish.call.policy = policy_get(call->who.operation);
	finish.what = succeeded ? FINISH_COMPLETE : FINISH_FAIL;
	finish.call.verb = finishings[finish.what].verb;
	finish_run(&finish, &rec);
}

/*
 * Returns the number of an argument, given its number after a claim.  Where
 * operation, key and fence stand for the claim, the principal is among them.
 */
static int
argument(Finishing what, bool by_key, int n)
{
	if (n == 0 || !by_key)
		return n;
	return n + 2 < finishings[what].principal ? n + 2 : n + 3;
}

/* Finds out which claim is meant, and under which fence.  Raises 22023, 42501. */
static void
read_handle(FunctionCallInfo fcinfo, bool by_key, Finish *finish)
{
	Call	   *call = &finish->call;
	DecodedAnswer decoded;

	if (!by_key)
	{
		claim_handle(fcinfo, 0, finishings[finish->what].verb, false, call, &decoded);
		finish->fence = decoded.fence;
		return;
	}
	call_begin(call, fcinfo, BIND_UNLESS_WORKER, ARG_TEXT(0), ARG_TEXT(1),
			   ARG_TEXT(finishings[finish->what].principal), NULL);
	if (PG_ARGISNULL(2))
		call_refuse(&finish->call, ERRCODE_INVALID_PARAMETER_VALUE, "fence must not be null", "The fence is in the answer of idem_claim().");
	finish->fence = PG_GETARG_INT64(2);
}

/* Serves a function of the owner. */
static Datum
finish_serve(FunctionCallInfo fcinfo, Finishing what, bool by_key)
{
	int			outcome = argument(what, by_key, finishings[what].outcome);
	int			retryable = argument(what, by_key, finishings[what].retryable);
	int			retry_after = argument(what, by_key, finishings[what].retry_after);
	int			lease = argument(what, by_key, finishings[what].lease);
	Finish		finish = {.what = what,.retry_after = NO_LIMIT};
	Record		rec;

	read_handle(fcinfo, by_key, &finish);
	if (outcome > 0 && !PG_ARGISNULL(outcome))
		finish.outcome = JsonbPGetDatum(PG_GETARG_JSONB_P(outcome));
	if (retryable > 0 && !PG_ARGISNULL(retryable))
		finish.retryable = PG_GETARG_BOOL(retryable);
	if (retry_after > 0)
		finish.retry_after = claim_interval(fcinfo, retry_after, "retry_after", &finish.call, NO_LIMIT);
	if (lease > 0)
	{
		finish.lease = claim_interval(fcinfo, lease, "lease", &finish.call, 0);
		if (finish.lease == 0)
			call_refuse(&finish.call, ERRCODE_INVALID_PARAMETER_VALUE, "lease must be longer than zero",
						"Give the time the work may still take, or call idem_release() if it is given up.");
		claim_check_lease(&finish.call, finish.lease);
	}
	finish_run(&finish, &rec);
	if (what == FINISH_RENEW)
		PG_RETURN_TIMESTAMPTZ(rec.lease_until);
	if (what == FINISH_COMPLETE && finish.outcome == (Datum) 0)
		PG_RETURN_NULL();
	return what == FINISH_COMPLETE ? finish.outcome : (Datum) 0;
}

/* Defines the two functions with which an owner says that: of a claim, and by key. */
#define FINISH_FUNCTIONS(name, what) \
	REQUEST_FUNCTION(name, finishings[what].verb) \
	{ \
		return finish_serve(fcinfo, what, false); \
	} \
	REQUEST_FUNCTION(name##_key, finishings[what].verb) \
	{ \
		return finish_serve(fcinfo, what, true); \
	} \
	extern Datum name(PG_FUNCTION_ARGS)

FINISH_FUNCTIONS(idem_complete, FINISH_COMPLETE);
FINISH_FUNCTIONS(idem_fail, FINISH_FAIL);
FINISH_FUNCTIONS(idem_unsure, FINISH_UNSURE);
FINISH_FUNCTIONS(idem_renew, FINISH_RENEW);
FINISH_FUNCTIONS(idem_release, FINISH_RELEASE);
