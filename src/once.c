/*-------------------------------------------------------------------------
 *
 * once.c
 *	  idem_once and idem_once_many: claim and completion in one write.
 *
 * "Seen before" may only be said of what cannot be undone any more: committed,
 * or done earlier in this very transaction.  Anything still undecided is
 * waited for as long as the policy allows, and then 55P03 says that nothing
 * can be said yet.
 *
 * A batch takes its keys in order of their ids, the same order for everybody.
 * Whoever waits for a key holds only smaller ones, so two batches, each the
 * only one of its transaction, cannot wait for each other.  Each key's row
 * stands before the next key is looked at and its lock is given back, so a
 * batch of any size holds one lock at a time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "claim.h"
#include "compat.h"
#include "counters.h"
#include "requests.h"

PG_FUNCTION_INFO_V1(idem_once);
PG_FUNCTION_INFO_V1(idem_once_many);

/*
 * Record the outcome at once: the meaning of "execute" for once.
 */
static Step
record_done(Claim *claim, PermitPrior prior)
{
	Record		rec;
	Step		step;

	claim_make_record(claim, prior, &rec);
	rec.state = RECORD_SUCCEEDED;
	rec.finished_at = claim->now;
	life_set_retention(&rec, &claim->call, claim->now);
	if (!claim_write(claim, prior, &rec, &step))
		return step;
	counters_add(claim->call.policy->counters, COUNT_COMPLETED, 1);
	claim->answer.verdict = VERDICT_EXECUTE;
	claim->answer.state = STATE_SUCCEEDED;
	claim->answer.attempt = rec.attempt;
	return STEP_ANSWERED;
}

static const ClaimKind kind_once = {
	.verb = "do once",
	.attempts = 1,
	.takes_overrun = true,
	.sees_past = true,
	.needs_outcome = true,
	.execute = record_done,
};

/*
 * Is the key seen for the first time?  claim has been run.  Raises ID013 and
 * 55P03.
 */
static bool
is_first(const Claim *claim)
{
	const Identity *who = &claim->call.who;

	switch (claim->answer.verdict)
	{
		case VERDICT_EXECUTE:
			return true;
		case VERDICT_REPLAY:
			return false;
		case VERDICT_EXPIRED:
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_EXPIRED),
					 errmsg("key of operation \"%s\" (id %s) is too late: its outcome is no longer kept",
							who->operation, id_text(&who->id)),
					 errhint("Reconcile: look for what the operation did in your own tables.")));
			break;
		default:
			break;
	}
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("key of operation \"%s\" (id %s) is held or undecided",
					who->operation, id_text(&who->id)),
			 errhint("Try again later, or raise setting \"wait\" of the operation.")));
	return false;
}

static Datum
serve_once(PG_FUNCTION_ARGS)
{
	Claim		claim;

	claim_begin(&claim, fcinfo, &kind_once, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(2));
	claim_run(&claim);
	PG_RETURN_BOOL(is_first(&claim));
}

/*
 * idem_once(operation, key, principal)
 */
Datum
idem_once(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "do once", serve_once);
}

/* A key of a batch. */
typedef struct BatchKey
{
	pg_uuid_t	id;
	int			position;		/* in the input */
} BatchKey;

static int
compare_batch_keys(const void *a, const void *b)
{
	const BatchKey *left = a;
	const BatchKey *right = b;
	int			order = memcmp(&left->id, &right->id, UUID_LEN);

	return order != 0 ? order : (left->position > right->position) - (left->position < right->position);
}

/*
 * The keys of a batch.  Raises 22023 if it is NULL or one of them is.
 */
static Datum *
batch_keys(FunctionCallInfo fcinfo, int *n)
{
	Datum	   *keys;
	bool	   *nulls;

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("keys of idem_once_many must not be null"),
				 errhint("Pass an array; an empty one is fine.")));
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false,
					  TYPALIGN_INT, &keys, &nulls, n);
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("key %d of idem_once_many must not be null", i + 1),
					 errhint("Every event needs an id of its own.")));
	}
	return keys;
}

/*
 * Run the batch in order of ids; first[i] is whether key i was seen for the
 * first time.
 */
static void
run_batch(Claim *claim, Datum *keys, const BatchKey *order, int n, bool *first)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency batch",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);

	for (int i = 0; i < n; i++)
	{
		int			position = order[i].position;

		CHECK_FOR_INTERRUPTS();

		/* the same key again: seen by the one before */
		if (i > 0 && memcmp(&order[i].id, &order[i - 1].id, UUID_LEN) == 0)
			continue;
		claim->call.who.key = TextDatumGetCString(keys[position]);
		claim->call.who.id = order[i].id;
		identity_read_key_time(&claim->call.who);
		request_about(&claim->call);
		call_check_key(&claim->call);
		claim_run(claim);
		first[position] = is_first(claim);
		request_next(true);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}

static Datum
serve_once_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			n;
	Datum	   *keys;
	BatchKey   *order;
	bool	   *first;
	Claim		claim;

	call_begin_operation(&claim.call, ARG_TEXT(0));
	keys = batch_keys(fcinfo, &n);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (n == 0)
		return (Datum) 0;
	order = palloc(n * sizeof(BatchKey));
	first = palloc0(n * sizeof(bool));
	claim_begin(&claim, fcinfo, &kind_once, ARG_TEXT(0), DatumGetTextPP(keys[0]), ARG_TEXT(2));
	for (int i = 0; i < n; i++)
	{
		claim.call.who.key = TextDatumGetCString(keys[i]);
		memset(&claim.call.who.id, 0, sizeof(claim.call.who.id));
		request_about(&claim.call);
		identity_derive(&claim.call.who);
		order[i].id = claim.call.who.id;
		order[i].position = i;
	}
	qsort(order, n, sizeof(BatchKey), compare_batch_keys);
	run_batch(&claim, keys, order, n, first);
	for (int i = 0; i < n; i++)
	{
		bool		isnull = false;

		if (first[i])
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &keys[i], &isnull);
	}
	return (Datum) 0;
}

/*
 * idem_once_many(operation, keys, principal)
 */
Datum
idem_once_many(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "do once", serve_once_many);
}
