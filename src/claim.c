/*-------------------------------------------------------------------------
 *
 * claim.c
 *	  idem_claim: who executes.
 *
 * decision_table below is the table of the contract (SPEC section 4), row by
 * row, first fit wins.  Each row is two functions: what is found, and what is
 * answered.  A row that grants may find that it cannot yet: then it either
 * asks for another look (it has just taken the lock of the id, and what it saw
 * before that does not count), or answers in_progress like the first row.
 *
 * A bounded wait is a short sleep and another look, holding nothing.  Waiting
 * for a lock instead would obey lock_timeout, and could make the other session
 * the victim of a deadlock check.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "claim.h"
#include "compat.h"
#include "counters.h"
#include "requests.h"

#define NAP_MS 2L

PG_FUNCTION_INFO_V1(idem_claim);

typedef struct DecisionRow
{
	bool		(*found) (Claim *claim);
	Step		(*act) (Claim *claim);
} DecisionRow;

/*----
 * What is compared.
 *----
 */

/*
 * Hash the params of a claim.  Raises 22032, saying whose params they are,
 * and 54001.
 */
static void
hash_params(Claim *claim, const Normalisation *normalisation)
{
	MemoryContext context = CurrentMemoryContext;
	const Identity *who = &claim->call.who;

	PG_TRY();
	{
		canonical_fingerprint(claim->params, normalisation, 0, claim->fingerprint);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (edata->sqlerrcode != ERRCODE_INVALID_JSON_TEXT)
			PG_RE_THROW();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_JSON_TEXT),
				 errmsg("params of operation \"%s\" (id %s) cannot be canonicalised",
						who->operation, id_text(&who->id)),
				 edata->detail ? errdetail_internal("%s", edata->detail) : 0,
				 edata->hint ? errhint("%s", edata->hint) : 0));
	}
	PG_END_TRY();
}

/*
 * The claim's fingerprint under a version of the normalisation settings.
 */
static void
fingerprint_under(Claim *claim, int64 version)
{
	const Policy *policy = claim->call.policy;
	const char *operation = claim->call.who.operation;
	const Normalisation *normalisation = policy->normalisation;

	if (claim->params == NULL || claim->fingerprint_version == version)
		return;
	if (version != policy->normalisation_version)
		normalisation = policy_normalisation_version(version, operation);
	hash_params(claim, normalisation);
	claim->fingerprint_version = version;
}

/*
 * Are the params those of the record, under the settings it was hashed with?
 */
static bool
same_params(Claim *claim)
{
	const Record *rec = &claim->rec;

	if (rec->state == RECORD_CANCELLED)
		return true;
	if (rec->has_fingerprint != claim->has_fingerprint)
		return false;
	if (!rec->has_fingerprint)
		return true;
	fingerprint_under(claim, rec->normalisation);
	return memcmp(rec->fingerprint, claim->fingerprint, IDEM_DIGEST_LEN) == 0;
}

static bool
same_owner(const Claim *claim)
{
	const text *stored = claim->rec.owner;
	const text *given = claim->owner;

	return stored && given &&
		VARSIZE_ANY_EXHDR(stored) == VARSIZE_ANY_EXHDR(given) &&
		memcmp(VARDATA_ANY(stored), VARDATA_ANY(given),
			   VARSIZE_ANY_EXHDR(given)) == 0;
}

/*----
 * Parts of answers.
 *----
 */

static void
answer_with(Claim *claim, Verdict verdict, State state, Advice advice)
{
	claim->answer.verdict = verdict;
	claim->answer.state = state;
	claim->answer.advice = advice;
}

/*
 * Say of the record what any claimant may know.
 */
static void
tell_record(Claim *claim)
{
	Answer	   *answer = &claim->answer;
	const Record *rec = &claim->rec;

	answer->attempt = rec->attempt;
	answer->claimed_at = rec->claimed_at;
	answer->finished_at = rec->finished_at;
	answer->lease_until = rec->lease_until;
	answer->expires_at = rec->expires_at;
	answer->forget_at = rec->forget_at;
}

static void
tell_retry_after(Claim *claim, TimestampTz lease_until)
{
	claim->answer.retry_after = life_retry_after(claim->call.policy,
												 lease_until, claim->now);
}

/*
 * Another open transaction is in the way.
 */
static Step
answer_in_flight(Claim *claim, int32 holder)
{
	answer_with(claim, VERDICT_IN_PROGRESS, STATE_PROCESSING, ADVICE_RETRY_SAME_KEY);
	tell_retry_after(claim, NEVER);
	claim->answer.holder = holder;
	return STEP_BUSY;
}

/*
 * The open transaction that is writing the record is in the way, unless it has
 * ended since.
 */
static Step
answer_changer(Claim *claim)
{
	int32		holder;

	if (!permit_holder_of_xid(claim->rec.changer, &holder))
		return STEP_LOOK_AGAIN;
	return answer_in_flight(claim, holder);
}

/*----
 * Granting.
 *----
 */

/*
 * Nobody else may be deciding about this id while we do.  True if so; else
 * *step is what to do instead.
 */
static bool
alone(Claim *claim, Step *step)
{
	const pg_uuid_t *id = &claim->call.who.id;
	int32		holder;

	if (TransactionIdIsValid(claim->rec.changer))
	{
		*step = answer_changer(claim);
		return false;
	}
	if (claim->locked)
		return true;
	if (permit_lock(id))
	{
		claim->locked = true;
		*step = STEP_LOOK_AGAIN;
	}
	else if (permit_holder(id, &holder))
		*step = answer_in_flight(claim, holder);
	else
		*step = STEP_LOOK_AGAIN;
	return false;
}

/*
 * Can the transaction see what was committed together with a version of a
 * record?  Not if its snapshot is older.
 */
bool
claim_snapshot_sees(const Record *rec)
{
	return !IsolationUsesXactSnapshot() ||
		TransactionIdIsCurrentTransactionId(rec->xmin) ||
		!XidInMVCCSnapshot(rec->xmin, GetTransactionSnapshot());
}

/*
 * Raise 40001 if the record was changed after the transaction's snapshot: the
 * new attempt could not see what the old one wrote.
 */
static void
check_snapshot(const Claim *claim)
{
	if (claim_snapshot_sees(&claim->rec))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access: the last attempt of operation \"%s\" (id %s) ended after this transaction's snapshot",
					claim->call.who.operation, id_text(&claim->call.who.id)),
			 errhint("Roll back and run the transaction again.")));
}

/*
 * A number larger than any handed out before: for the record, by the previous
 * one; for a record that was forgotten, by the clock.  A previous one from the
 * future concerns its own record only, or other keys' fences would run ahead
 * in this session, and fall back in the next.
 */
int64
claim_next_fence(int64 previous)
{
	static int64 last = 0;
	int64		now = GetCurrentTimestamp() +
	(int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;

	/* two claims may be made within one microsecond */
	last = Max(last + 1, now);
	return Max(previous + 1, last);
}

/*
 * The claim as a record, starting afresh or from the one it takes over.
 */
void
claim_make_record(Claim *claim, PermitPrior prior, Record *rec)
{
	const Identity *who = &claim->call.who;
	const Policy *policy = claim->call.policy;

	if (prior == PRIOR_RECORD)
		*rec = claim->rec;
	else
	{
		memset(rec, 0, sizeof(*rec));
		rec->id = who->id;
		rec->claimed_at = claim->now;
		rec->principal = cstring_to_text(who->principal);
		rec->operation = cstring_to_text(who->operation);
		rec->key = cstring_to_text(who->key);
	}
	if (claim->kind->matches_params || prior != PRIOR_RECORD)
	{
		fingerprint_under(claim, policy->normalisation_version);
		rec->has_fingerprint = claim->has_fingerprint;
		memcpy(rec->fingerprint, claim->fingerprint, IDEM_DIGEST_LEN);
		rec->normalisation = claim->fingerprint_version;
	}
	rec->state = RECORD_PROCESSING;
	rec->attempt += claim->kind->attempts;
	rec->fence = claim_next_fence(prior == PRIOR_NOTHING ? 0 : claim->rec.fence);
	rec->owner = claim->owner;
	rec->lease_until = claim->lease == 0 ? NEVER :
		time_after(GetCurrentTimestamp(), claim->lease);
	rec->finished_at = rec->expires_at = rec->forget_at = NEVER;
	rec->result = rec->error = (Datum) 0;
}

/*
 * Write what a claim comes to.  True if it stands; else *step is what to do
 * instead: somebody was there first, or has the row locked.
 */
bool
claim_write(Claim *claim, PermitPrior prior, const Record *rec, Step *step)
{
	RowChange	change = ROW_CHANGED;

	if (prior != PRIOR_NOTHING)
		change = store_update(claim->store, &claim->rec, rec, false);
	else if (!store_insert(claim->store, rec))
		change = ROW_MISSED;

	if (change == ROW_BUSY)
		*step = answer_in_flight(claim, NO_HOLDER);
	else if (change == ROW_MISSED)
		*step = STEP_LOOK_AGAIN;
	return change == ROW_CHANGED;
}

/*
 * Let the caller execute: the meaning of "execute" for claim and start.
 */
Step
claim_grant(Claim *claim, PermitPrior prior)
{
	bool		write_now = claim->lease > 0 || !permit_room();
	Record		rec;
	Step		step;

	claim_make_record(claim, prior, &rec);
	if (write_now && !claim_write(claim, prior, &rec, &step))
		return step;
	if (claim->lease == 0)
	{
		permit_open(&rec, prior, &claim->rec, write_now);
		claim->locked = false;
	}

	answer_with(claim, VERDICT_EXECUTE, STATE_PROCESSING, ADVICE_RUN);
	claim->answer.attempt = rec.attempt;
	claim->answer.fence = rec.fence;
	claim->answer.claimed_at = rec.claimed_at;
	claim->answer.lease_until = rec.lease_until;
	return STEP_ANSWERED;
}

/*
 * The table says execute: if nobody else is deciding about the id, do.
 */
static Step
grant(Claim *claim, PermitPrior prior)
{
	Step		step;

	if (!alone(claim, &step))
		return step;
	/* what is forgotten is as good as purged: nothing to see */
	if (prior == PRIOR_RECORD && claim->kind->sees_past)
		check_snapshot(claim);
	return claim->kind->execute(claim, prior);
}

/*----
 * The rows.
 *----
 */

static bool
found_record(const Claim *claim, Life life)
{
	return claim->found == PROBE_ROW && claim->life == life;
}

static bool
found_uncommitted_claim(Claim *claim)
{
	return claim->found == PROBE_IN_FLIGHT;
}

/*
 * Was it in the list of accepted work, and is not accepted any more?
 */
static bool
found_no_longer_accepted(Claim *claim)
{
	return claim->kind->only_accepted && !found_record(claim, LIFE_ACCEPTED);
}

static bool
found_nothing(Claim *claim)
{
	return claim->found == PROBE_NOTHING ||
		found_record(claim, LIFE_RELEASED) ||
		found_record(claim, LIFE_FORGOTTEN);
}

static bool
found_nothing_and_late(Claim *claim)
{
	return found_nothing(claim) && life_key_is_late(&claim->call, claim->now);
}

static bool
found_expired(Claim *claim)
{
	return found_record(claim, LIFE_EXPIRED);
}

static bool
found_other_params(Claim *claim)
{
	return claim->kind->matches_params && !same_params(claim);
}

static bool
found_succeeded(Claim *claim)
{
	return found_record(claim, LIFE_SUCCEEDED);
}

static bool
found_failed(Claim *claim)
{
	return found_record(claim, LIFE_FAILED);
}

static bool
found_retryable(Claim *claim)
{
	return found_record(claim, LIFE_RETRYABLE);
}

static bool
found_accepted(Claim *claim)
{
	return found_record(claim, LIFE_ACCEPTED);
}

static bool
found_own_running(Claim *claim)
{
	return found_record(claim, LIFE_RUNNING) && same_owner(claim);
}

static bool
found_running(Claim *claim)
{
	return found_record(claim, LIFE_RUNNING);
}

static bool
found_overrun(Claim *claim)
{
	return found_record(claim, LIFE_OVERRUN) && claim->kind->takes_overrun;
}

static bool
found_unknown(Claim *claim)
{
	return found_record(claim, LIFE_UNKNOWN) || found_record(claim, LIFE_OVERRUN);
}

/*
 * Raise ID001: there is nothing to start.
 */
static void
refuse_nothing(const Claim *claim)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NO_CLAIM),
			 errmsg("cannot %s operation \"%s\" (id %s): nothing is on record",
					claim->kind->verb, claim->call.who.operation,
					id_text(&claim->call.who.id)),
			 errhint("Accept it first, or claim it.")));
}

static Step
act_nothing(Claim *claim)
{
	if (claim->kind->needs_record)
	{
		Step		step;

		/* somebody else's uncommitted claim would not be nothing */
		if (!alone(claim, &step))
			return step;
		refuse_nothing(claim);
	}
	if (claim->found == PROBE_NOTHING)
		return grant(claim, PRIOR_NOTHING);
	return grant(claim, claim->life == LIFE_RELEASED ?
				 PRIOR_RECORD : PRIOR_FORGOTTEN);
}

/*
 * Somebody else has it, or had it: not this caller's any more.
 */
static Step
act_leave_alone(Claim *claim)
{
	answer_with(claim, VERDICT_IN_PROGRESS, STATE_PROCESSING, ADVICE_RETRY_SAME_KEY);
	return STEP_ANSWERED;
}

static Step
act_late(Claim *claim)
{
	answer_with(claim, VERDICT_EXPIRED, STATE_EXPIRED, ADVICE_RECONCILE);
	return STEP_ANSWERED;
}

static Step
act_expired(Claim *claim)
{
	answer_with(claim, VERDICT_EXPIRED, STATE_EXPIRED, ADVICE_RECONCILE);
	tell_record(claim);
	return STEP_ANSWERED;
}

/*
 * The stored state, as idem_status would tell it.
 */
static Step
act_mismatch(Claim *claim)
{
	answer_with(claim, VERDICT_MISMATCH, life_state(claim->life), ADVICE_NEW_KEY);
	tell_record(claim);
	return STEP_ANSWERED;
}

static Step
act_succeeded(Claim *claim)
{
	answer_with(claim, VERDICT_REPLAY, STATE_SUCCEEDED, ADVICE_USE_RESULT);
	tell_record(claim);
	claim->answer.result = claim->rec.result;
	return STEP_ANSWERED;
}

static Step
act_failed(Claim *claim)
{
	answer_with(claim, VERDICT_REPLAY, STATE_FAILED, ADVICE_NEW_KEY);
	tell_record(claim);
	claim->answer.error = claim->rec.error;
	return STEP_ANSWERED;
}

static Step
act_take_over(Claim *claim)
{
	return grant(claim, PRIOR_RECORD);
}

/*
 * An answer about a record that may change soon: worth waiting, but never for
 * oneself.
 */
static Step
busy_with_record(Claim *claim)
{
	if (!TransactionIdIsCurrentTransactionId(claim->rec.xmin))
		return STEP_BUSY;
	claim->answer.holder = MyProcPid;
	return STEP_ANSWERED;
}

/*
 * Accepted, unless another transaction has just started it.
 */
static Step
act_accepted(Claim *claim)
{
	int32		holder;

	if (claim->kind->takes_accepted)
		return grant(claim, PRIOR_RECORD);
	if (TransactionIdIsValid(claim->rec.changer))
		return answer_changer(claim);
	if (permit_holder(&claim->call.who.id, &holder))
		return answer_in_flight(claim, holder);
	answer_with(claim, VERDICT_IN_PROGRESS, STATE_ACCEPTED, ADVICE_RETRY_SAME_KEY);
	tell_record(claim);
	tell_retry_after(claim, NEVER);
	if (busy_with_record(claim) == STEP_ANSWERED)
		return STEP_ANSWERED;
	return claim->kind->needs_outcome ? STEP_BUSY : STEP_ANSWERED;
}

/*
 * The first answer was lost: give it again.
 */
static Step
act_own_running(Claim *claim)
{
	if (TransactionIdIsValid(claim->rec.changer))
		return answer_changer(claim);
	answer_with(claim, VERDICT_EXECUTE, STATE_PROCESSING, ADVICE_RUN);
	tell_record(claim);
	claim->answer.fence = claim->rec.fence;
	return STEP_ANSWERED;
}

static Step
act_running(Claim *claim)
{
	answer_with(claim, VERDICT_IN_PROGRESS, STATE_PROCESSING, ADVICE_RETRY_SAME_KEY);
	tell_record(claim);
	tell_retry_after(claim, claim->rec.lease_until);
	return busy_with_record(claim);
}

static Step
act_unknown(Claim *claim)
{
	answer_with(claim, VERDICT_UNKNOWN, STATE_UNKNOWN, ADVICE_RECONCILE);
	tell_record(claim);
	claim->answer.error = claim->rec.error;
	if (claim->kind->needs_outcome &&
		!TransactionIdIsCurrentTransactionId(claim->rec.xmin))
		return STEP_BUSY;
	return STEP_ANSWERED;
}

static const DecisionRow decision_table[] = {
	/* what is found for the key				what is answered */
	{found_uncommitted_claim, answer_changer},	/* in_progress */
	{found_no_longer_accepted, act_leave_alone},	/* of idem_start_next only */
	{found_nothing_and_late, act_late}, /* expired */
	{found_nothing, act_nothing},	/* execute */
	{found_expired, act_expired},	/* expired */
	{found_other_params, act_mismatch}, /* mismatch */
	{found_succeeded, act_succeeded},	/* replay */
	{found_failed, act_failed}, /* replay */
	{found_retryable, act_take_over},	/* execute, attempt + 1 */
	{found_accepted, act_accepted}, /* in_progress */
	{found_own_running, act_own_running},	/* execute, same attempt */
	{found_running, act_running},	/* in_progress */
	{found_overrun, act_take_over}, /* execute, attempt + 1 */
	{found_unknown, act_unknown},	/* unknown */
};

/*----
 * The call.
 *----
 */

/*
 * Look at the record as it is now and answer.
 */
static Step
decide(Claim *claim)
{
	claim->now = GetCurrentTimestamp();
	claim->found = store_probe(claim->store, &claim->call.who, &claim->rec);
	if (claim->found == PROBE_ROW)
		claim->life = life_of(&claim->rec, &claim->call, claim->now);
	answer_init(&claim->answer, &claim->call.who);
	for (int i = 0; i < lengthof(decision_table); i++)
	{
		if (decision_table[i].found(claim))
			return decision_table[i].act(claim);
	}
	elog(ERROR, "no decision for record %s", id_text(&claim->call.who.id));
	return STEP_ANSWERED;
}

/*
 * Sleep a moment, not longer than until the deadline.
 */
static void
nap(TimestampTz deadline)
{
	long		ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 Max(Min(ms, NAP_MS), 1L), PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * An answer leaves: tell those who watch.
 */
static void
observe(const Claim *claim)
{
	if (!claim->kind->withdraws)
		counters_claim(claim);
	request_answered(&claim->call, &claim->answer);
}

/*
 * It had to wait for others.
 */
static void
observe_wait(const Claim *claim, int64 microseconds)
{
	counters_add(claim->call.policy->counters, COUNT_WAITS, 1);
	counters_add(claim->call.policy->counters, COUNT_WAIT_MICROSECONDS, microseconds);
}

/*
 * Decide, waiting for others as long as the claim allows.  The record table
 * must be open.  What the answer points to lives as long as the memory context
 * of the call.
 */
void
claim_decide(Claim *claim)
{
	TimestampTz start = GetCurrentTimestamp();
	TimestampTz deadline = time_after(start, claim->wait);
	bool		waited = false;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = NULL;
	Step		step;

	for (;;)
	{
		step = decide(claim);
		if (step != STEP_LOOK_AGAIN && claim->locked)
		{
			permit_unlock(&claim->call.who.id);
			claim->locked = false;
		}
		if (step == STEP_ANSWERED ||
			(step == STEP_BUSY && GetCurrentTimestamp() >= deadline))
			break;

		/* from the second look on, each forgets what the one before found */
		if (context == NULL)
			context = AllocSetContextCreate(caller, "idempotency look",
											ALLOCSET_SMALL_SIZES);
		MemoryContextSwitchTo(context);
		MemoryContextReset(context);
		if (step == STEP_BUSY)
		{
			waited = true;
			nap(deadline);
		}
		CHECK_FOR_INTERRUPTS();
	}
	MemoryContextSwitchTo(caller);
	if (waited)
		observe_wait(claim, GetCurrentTimestamp() - start);
	observe(claim);
}

/*
 * The key is already claimed in this very transaction.
 */
static bool
answer_own_claim(Claim *claim)
{
	const Permit *permit = permit_find(&claim->call.who.id);

	if (permit == NULL || permit->settled_level != 0)
		return false;
	claim->now = GetCurrentTimestamp();
	answer_init(&claim->answer, &claim->call.who);
	(void) answer_in_flight(claim, MyProcPid);
	claim->answer.attempt = permit->rec.attempt;
	claim->answer.claimed_at = permit->rec.claimed_at;
	observe(claim);
	return true;
}

/*
 * Start a call that decides about a key.  Raises 22023, 42501, 25006.
 */
void
claim_begin(Claim *claim, FunctionCallInfo fcinfo, const ClaimKind *kind,
			text *operation, text *key, text *principal)
{
	memset(claim, 0, sizeof(*claim));
	claim->kind = kind;
	call_begin(&claim->call, fcinfo, kind->binding, operation, key, principal);
	call_check_key(&claim->call);
	call_refuse_unless_writable(kind->verb, &claim->call.who);
	claim->wait = claim->call.policy->wait;
}

/*
 * Decide and answer, unless the key is open in this very transaction.
 */
void
claim_run(Claim *claim)
{
	Store		store;

	if (answer_own_claim(claim))
		return;
	store_open(&store, true);
	claim->store = &store;
	claim_decide(claim);
	store_close(&store);
}

/*
 * Take the fingerprint the caller made, or make it from params.  Raises 22023.
 */
void
claim_set_fingerprint(Claim *claim, Jsonb *params, bytea *given)
{
	const Identity *who = &claim->call.who;
	const Policy *policy = claim->call.policy;

	if (given && params)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("claim of operation \"%s\" (id %s) has both params and fingerprint",
						who->operation, id_text(&who->id)),
				 errhint("Pass one of them.")));
	if (given && VARSIZE_ANY_EXHDR(given) != IDEM_DIGEST_LEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fingerprint of operation \"%s\" (id %s) has %d bytes, not %d",
						who->operation, id_text(&who->id),
						(int) VARSIZE_ANY_EXHDR(given), IDEM_DIGEST_LEN),
				 errhint("Pass the SHA-256 of the request.")));
	if (given == NULL && params == NULL && policy->require_params)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("claim of operation \"%s\" (id %s) has no params",
						who->operation, id_text(&who->id)),
				 errhint("The operation's setting \"require_params\" asks for them.")));

	if (given)
		memcpy(claim->fingerprint, VARDATA_ANY(given), IDEM_DIGEST_LEN);
	else if (params)
	{
		/* the limit is on what was given, whatever is left of it to hash */
		if (json_exceeds(params, policy->max_params_bytes))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("params of operation \"%s\" (id %s) are larger than " INT64_FORMAT " bytes",
							who->operation, id_text(&who->id),
							policy->max_params_bytes),
					 errhint("Pass what decides the outcome only, or raise setting \"max_params_bytes\".")));
		claim->params = params;
		hash_params(claim, policy->normalisation);
		claim->fingerprint_version = policy->normalisation_version;
	}
	claim->has_fingerprint = given != NULL || params != NULL;
}

/*
 * An interval argument, or what the policy says.  Raises 22023.
 */
int64
claim_interval(FunctionCallInfo fcinfo, int argno, const char *what,
			   const Call *call, int64 otherwise)
{
	if (PG_ARGISNULL(argno))
		return otherwise;
	return interval_microseconds(PG_GETARG_INTERVAL_P(argno), what, &call->who);
}

static const ClaimKind kind_claim = {
	.verb = "claim",
	.attempts = 1,
	.matches_params = true,
	.takes_overrun = true,
	.sees_past = true,
	.execute = claim_grant,
};

static Datum
serve_claim(PG_FUNCTION_ARGS)
{
	Claim		claim;

	claim_begin(&claim, fcinfo, &kind_claim, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(3));
	claim.lease = claim_interval(fcinfo, 4, "lease", &claim.call,
								 claim.call.policy->lease);
	claim.wait = claim_interval(fcinfo, 5, "wait", &claim.call, claim.wait);
	claim.owner = ARG_TEXT(6);
	claim_set_fingerprint(&claim,
						  PG_ARGISNULL(2) ? NULL : PG_GETARG_JSONB_P(2),
						  PG_ARGISNULL(7) ? NULL : PG_GETARG_BYTEA_PP(7));
	claim_run(&claim);
	return answer_datum(fcinfo, &claim.answer);
}

/*
 * idem_claim(operation, key, params, principal, lease, wait, owner,
 * fingerprint): decides who executes.
 */
Datum
idem_claim(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "claim", serve_claim);
}
