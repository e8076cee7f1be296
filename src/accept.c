/*-------------------------------------------------------------------------
 *
 * accept.c
 *	  Work that is accepted now and started later: idem_accept, idem_start,
 *	  idem_start_next.
 *
 * Accepting is the decision table with another meaning of "execute": a record
 * in state accepted, and the caller enqueues.  Starting is the table too, with
 * an accepted record being there for the taking; the params were decided when
 * it was accepted.  Workers that start the next one meet at the lock of the
 * id, which nobody waits for: whoever is refused takes the one after.
 *
 * Between the look of idem_start_next at a record and its lock of the id another
 * one may have started it, and even ended it, and committed.  The table must not
 * judge that as it would a caller's own key: where the two are threads of one
 * owner, "its first answer was lost" would let both work under one fence, and
 * "released meanwhile" would be an error about a key nobody asked for.  So what
 * the table finds is left alone unless it is accepted still.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "claim.h"
#include "compat.h"
#include "requests.h"

PG_FUNCTION_INFO_V1(idem_accept);
PG_FUNCTION_INFO_V1(idem_start);
PG_FUNCTION_INFO_V1(idem_start_next);

/*
 * Record that the work is to be done: the meaning of "execute" for accept.
 */
static Step
enqueue(Claim *claim, PermitPrior prior)
{
	Record		rec;
	Step		step;

	claim_make_record(claim, prior, &rec);
	rec.state = RECORD_ACCEPTED;
	if (!claim_write(claim, prior, &rec, &step))
		return step;
	claim->answer.verdict = VERDICT_EXECUTE;
	claim->answer.state = STATE_ACCEPTED;
	claim->answer.advice = ADVICE_RUN;
	claim->answer.attempt = rec.attempt;
	claim->answer.claimed_at = rec.claimed_at;
	return STEP_ANSWERED;
}

static const ClaimKind kind_accept = {
	.verb = "accept",
	.attempts = 0,
	.matches_params = true,
	.takes_overrun = true,
	.sees_past = true,
	.execute = enqueue,
};

static const ClaimKind kind_start = {
	.verb = "start",
	.binding = BIND_UNLESS_WORKER,
	.attempts = 1,
	.takes_accepted = true,
	.takes_overrun = true,
	.sees_past = true,
	.needs_record = true,
	.execute = claim_grant,
};

static const ClaimKind kind_start_next = {
	.verb = "start",
	.attempts = 1,
	.takes_accepted = true,
	.only_accepted = true,
	.sees_past = true,
	.execute = claim_grant,
};

static Datum
serve_accept(PG_FUNCTION_ARGS)
{
	Claim		claim;

	claim_begin(&claim, fcinfo, &kind_accept, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(3));
	claim_set_fingerprint(&claim,
						  PG_ARGISNULL(2) ? NULL : PG_GETARG_JSONB_P(2),
						  PG_ARGISNULL(4) ? NULL : PG_GETARG_BYTEA_PP(4));
	claim_run(&claim);
	return answer_datum(fcinfo, &claim.answer);
}

/*
 * idem_accept(operation, key, params, principal, fingerprint)
 */
Datum
idem_accept(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "accept", serve_accept);
}

static Datum
serve_start(PG_FUNCTION_ARGS)
{
	Claim		claim;

	claim_begin(&claim, fcinfo, &kind_start, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(3));
	claim.lease = claim_interval(fcinfo, 2, "lease", &claim.call,
								 claim.call.policy->lease);
	claim.owner = ARG_TEXT(4);
	claim_run(&claim);
	return answer_datum(fcinfo, &claim.answer);
}

/*
 * idem_start(operation, key, lease, principal, owner)
 */
Datum
idem_start(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "start", serve_start);
}

/* One call of idem_start_next. */
typedef struct StartNext
{
	FunctionCallInfo fcinfo;
	const Policy *policy;
	char	   *operation;
	int64		lease;
	text	   *owner;
	Store		store;
	int			left;			/* how many more to start */
} StartNext;

/*
 * Start one accepted record of the work list, if nobody else has it.  One
 * accepted after the transaction's snapshot is for the next call.
 */
static bool
start_entry(const Work *work, void *arg)
{
	StartNext  *next = arg;
	Claim		claim = {.kind = &kind_start_next};
	Record		rec;

	if (permit_find(&work->id) ||
		store_probe_id(&next->store, &work->id, &rec) != PROBE_ROW ||
		rec.state != RECORD_ACCEPTED ||
		!claim_snapshot_sees(&rec))
		return true;
	claim.call.policy = next->policy;
	identity_of_record(&claim.call.who, &rec);
	if (!policy_permits(next->policy, &claim.call.who, BIND_WORKER))
		return true;
	claim.lease = next->lease;
	claim.owner = next->owner;
	claim.store = &next->store;
	request_about(&claim.call);
	claim_decide(&claim);
	if (claim.answer.verdict == VERDICT_EXECUTE)
	{
		answer_put(next->fcinfo, &claim.answer);
		next->left--;
	}
	request_next(claim.answer.verdict == VERDICT_EXECUTE);
	return next->left > 0;
}

static Datum
serve_start_next(PG_FUNCTION_ARGS)
{
	StartNext	next = {0};
	Call		call = {0};

	call_begin_operation(&call, ARG_TEXT(0));
	if (PG_ARGISNULL(1) || PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_records of idem_start_next for operation \"%s\" must be greater than zero",
						call.who.operation),
				 errhint("Pass how many records to start at most.")));
	refuse_unless_writable("idem_start_next()");

	InitMaterializedSRF(fcinfo, 0);
	next.fcinfo = fcinfo;
	next.policy = call.policy;
	next.operation = call.who.operation;
	next.lease = claim_interval(fcinfo, 2, "lease", &call, call.policy->lease);
	next.owner = ARG_TEXT(3);
	next.left = PG_GETARG_INT32(1);
	store_open(&next.store, true);
	work_visit(next.operation, RECORD_ACCEPTED, GetCurrentTimestamp(),
			   start_entry, &next);
	store_close(&next.store);
	return (Datum) 0;
}

/*
 * idem_start_next(operation, max_records, lease, owner)
 */
Datum
idem_start_next(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "start", serve_start_next);
}
