/*
 * once.c
 *	  idem_once and idem_once_many: claim and completion in one write.
 *
 * "Seen before" may only be said of what cannot be undone any more: committed,
 * or done earlier in this very transaction.  Anything still undecided is
 * waited for as long as the policy allows, and then 55P03 says that nothing
 * can be said yet.
 *
 * A batch takes its keys in order of their ids, the same order for all sessions.
 * One that waits for a key holds only smaller ones, so two batches, each the
 * only one of its transaction, cannot wait for each other.  Each key's row
 * stands before the next key is probed for and its lock is given back, so a
 * batch of any size holds one lock at a time.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "claim/claim.h"
#include "stats/stats.h"

/* Records the outcome at once: the meaning of "execute" for once. */
static Step
record_done(Claim *claim, OpenClaimPrior prior)
{
	Record		rec;
	Step		step;

	claim_make_record(claim, prior, &rec);
	record_finish(&rec, &claim->call, RECORD_SUCCEEDED, (Datum) 0, claim->now);
	if (!claim_write(claim, prior, &rec, &step))
		return step;
	counters_add(claim->call.policy->counters, COUNT_COMPLETED, 1);
	claim->answer.verdict = VERDICT_EXECUTE;
	claim->answer.state = STATE_SUCCEEDED;
	claim->answer.attempt = rec.attempt;
	return STEP_ANSWERED;
}

static const ClaimKind kind_once = {
	.attempts = 1,
	.needs_outcome = true,
	.execute = record_done,
};

/* Returns whether a claim that has been run saw its key first.  Raises ID013, 55P03. */
static bool
seen_first(const Claim *claim)
{
	const Identity *who = &claim->call.who;

	if (claim->answer.verdict == VERDICT_EXPIRED)
		call_refuse(&claim->call, ERRCODE_IDEM_EXPIRED, "its outcome is no longer kept",
					"Reconcile: look for what the operation did in your own tables.");
	if (claim->answer.verdict != VERDICT_EXECUTE && claim->answer.verdict != VERDICT_REPLAY)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("key of operation \"%s\" (id %s) is held or undecided",
						who->operation, identity_text(&who->id)),
				 errhint("Try again later, or raise setting \"wait\" of the operation.")));
	return claim->answer.verdict == VERDICT_EXECUTE;
}

/* idem_once(operation, key, principal) */
REQUEST_FUNCTION(idem_once, "do once")
{
	Claim		claim;

	claim_begin(&claim, fcinfo, &kind_once, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(2));
	claim_run(&claim);
	PG_RETURN_BOOL(seen_first(&claim));
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

/* Returns the keys of a batch.  Raises 22023 if it is NULL or one of them is. */
static Datum *
batch_keys(FunctionCallInfo fcinfo, int *n)
{
	Datum	   *keys;
	bool	   *nulls;

	if (PG_ARGISNULL(1))
		REFUSE_ARGUMENT(errmsg("keys of idem_once_many must not be null"),
						errhint("Pass an array; an empty one is fine."));
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false,
					  TYPALIGN_INT, &keys, &nulls, n);
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			REFUSE_ARGUMENT(errmsg("key %d of idem_once_many must not be null", i + 1),
							errhint("Every event needs an id of its own."));
	}
	return keys;
}

/* Takes a batch in order of ids; first[i] is whether key i was seen first. */
static void
take_batch(Claim *claim, Datum *keys, const BatchKey *order, int n, bool *first)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency batch",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);

	for (int i = 0; i < n; i++)
	{
		int			position = order[i].position;

		CHECK_FOR_INTERRUPTS();
		Assert(i == 0 || compare_batch_keys(&order[i - 1], &order[i]) < 0);
		/* the same key again: seen by the one before */
		if (i > 0 && memcmp(&order[i].id, &order[i - 1].id, UUID_LEN) == 0)
			continue;
		claim->call.who.key = TextDatumGetCString(keys[position]);
		identity_derive(&claim->call.who, &order[i].id);
		request_about(&claim->call);
		claim_run(claim);
		first[position] = seen_first(claim);
		request_next(true);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}

/* idem_once_many(operation, keys, principal) */
REQUEST_FUNCTION(idem_once_many, "do once")
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			n;
	Datum	   *keys;
	BatchKey   *order;
	bool	   *first;
	Claim		claim;

	call_begin_operation(&claim.call, ARG_TEXT(0), false);
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
		identity_derive(&claim.call.who, NULL);
		order[i].id = claim.call.who.id;
		order[i].position = i;
	}
	qsort(order, n, sizeof(BatchKey), compare_batch_keys);
	take_batch(&claim, keys, order, n, first);
	for (int i = 0; i < n; i++)
	{
		bool		isnull = false;

		if (first[i])
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &keys[i], &isnull);
	}
	return (Datum) 0;
}
