/*
 * claim.c
 *	  idem_claim: which caller executes.
 *
 * decision_table below is the table of docs/contract.md, row by row, first fit
 * wins.  An act that grants may find that it cannot yet: then it either asks for
 * another probe (it has just taken the lock of the id, and what was found before
 * that does not count), or answers in_progress like the first row.
 *
 * Either order of lock and probe is right, as long as the last probe comes under
 * the lock: a claim that executes saves a probe by taking the lock first, any
 * other saves the lock by probing first.  So it is taken first in a session whose
 * last claim has executed.  That others find it taken for the length of a probe
 * is no more than they find of a claim that is rolled back at once.
 *
 * A bounded wait is a short sleep and another probe, holding nothing.  Waiting
 * for a lock instead would obey lock_timeout, and could make the other session
 * the victim of a deadlock check.  It is measured by the monotonic clock: the
 * server's time may be set while a claim waits.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "claim/claim.h"
#include "guc.h"
#include "stats/stats.h"

#define NAP_MS 2L

/* A set of effective states. */
#define IF(state) (1 << EFFECTIVE_##state)
#define IF_ABSENT (IF(FORGOTTEN) | IF(RELEASED))
#define IF_ANY (-1)

typedef struct DecisionRow
{
	int			found;			/* states of what is found for the key */
	bool		(*condition) (Claim *claim);	/* NULL = none */
	Verdict		verdict;
	Step		(*act) (Claim *claim);	/* the rest of the answer; the verdict
										 * too if it cannot execute yet */
} DecisionRow;

/* Hashes the params of a claim.  Raises 22032, saying whose they are, and 54001. */
static void
hash_params(Claim *claim, const Normalisation *normalisation)
{
	MemoryContext context = CurrentMemoryContext;
	const Identity *who = &claim->call.who;

	PG_TRY();
	{
		canonical_fingerprint(claim->params, normalisation, claim->fingerprint);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		if (edata->sqlerrcode == ERRCODE_INVALID_JSON_TEXT)
			edata->message = psprintf("params of operation \"%s\" (id %s) cannot be canonicalised",
									  who->operation, identity_text(&who->id));
		ReThrowError(edata);
	}
	PG_END_TRY();
}

/* Makes the fingerprint anew if it was made under other normalisation settings. */
static void
fingerprint_under(Claim *claim, int64 version)
{
	const Policy *policy = claim->call.policy;

	if (claim->params == NULL || claim->fingerprint_version == version)
		return;
	hash_params(claim, version == policy->normalisation_version ? policy->normalisation :
				policy_normalisation_version(version, claim->call.who.operation));
	claim->fingerprint_version = version;
}

/* Returns whether params matter and differ, under the settings the record was hashed with. */
static bool
other_params(Claim *claim)
{
	const Record *rec = &claim->rec;

	if (!claim->kind->matches_params || rec->state == RECORD_CANCELLED)
		return false;
	if (!rec->has_fingerprint || !claim->has_fingerprint)
		return rec->has_fingerprint != claim->has_fingerprint;
	fingerprint_under(claim, rec->normalisation);
	return memcmp(rec->fingerprint, claim->fingerprint, IDEM_DIGEST_LEN) != 0;
}

static bool
equal_texts(const text *stored, const text *given)
{
	return stored && given &&
		VARSIZE_ANY_EXHDR(stored) == VARSIZE_ANY_EXHDR(given) &&
		memcmp(VARDATA_ANY(stored), VARDATA_ANY(given),
			   VARSIZE_ANY_EXHDR(given)) == 0;
}

static bool
same_owner(Claim *claim)
{
	return equal_texts(claim->rec.owner, claim->owner);
}

/* Another open transaction is in the way. */
static Step
answer_in_flight(Claim *claim, int32 holder)
{
	claim->answer.verdict = VERDICT_IN_PROGRESS;
	answer_tell_holder(&claim->answer, claim->call.policy, holder);
	return STEP_BUSY;
}

/* The transaction that is writing the record is in the way, unless it has ended. */
static Step
answer_changer(Claim *claim)
{
	int32		holder;

	if (!open_claim_holder_of_xid(claim->rec.changer, &holder))
		return STEP_PROBE_AGAIN;
	return answer_in_flight(claim, holder);
}

/*
 * Makes sure that no other transaction decides about this id meanwhile.  Returns true
 * if so; else *step is what to do instead.
 */
static bool
alone(Claim *claim, Step *step)
{
	const pg_uuid_t *id = &claim->call.who.id;
	int32		holder;

	*step = STEP_PROBE_AGAIN;
	if (TransactionIdIsValid(claim->rec.changer))
		*step = answer_changer(claim);
	else if (claim->locked)
		return true;
	else if (open_claim_lock(id))
		claim->locked = true;
	else if (open_claim_holder(id, &holder))
		*step = answer_in_flight(claim, holder);
	return false;
}

/* Returns whether the transaction's snapshot sees what was committed with a record. */
bool
claim_snapshot_sees(const Record *rec)
{
	return !IsolationUsesXactSnapshot() ||
		TransactionIdIsCurrentTransactionId(rec->xmin) ||
		!XidInMVCCSnapshot(rec->xmin, GetTransactionSnapshot());
}

/*
 * Returns a number larger than any handed out before: for the record, by the
 * previous one; for one that was forgotten, by the clock.  A previous one from
 * the future concerns its own record only, or other keys' would fall back later.
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

/* Makes *rec of the claim, afresh or from the record it takes over. */
void
claim_make_record(Claim *claim, OpenClaimPrior prior, Record *rec)
{
	const Identity *who = &claim->call.who;
	const Policy *policy = claim->call.policy;

	Assert(!TransactionIdIsValid(claim->rec.changer));
	if (prior == PRIOR_RECORD)
		*rec = claim->rec;
	else
	{
		memset(rec, 0, sizeof(*rec));
		rec->id = who->id;
		rec->claimed_at = claim->now;
		rec->reopened_at = DT_NOBEGIN;
		rec->principal = cstring_to_text(who->principal);
		rec->operation = cstring_to_text(who->operation);
		rec->key = cstring_to_text(who->key);
	}
	if (claim->kind->matches_params)
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
		clock_after(GetCurrentTimestamp(), claim->lease);
	rec->finished_at = rec->expires_at = rec->forget_at = NEVER;
	rec->not_before = DT_NOBEGIN;
	rec->result = rec->error = (Datum) 0;
}

/*
 * Writes what a claim comes to.  The caller must hold the lock of the id.  False
 * if another transaction was first or has the row locked: *step is what to do.
 */
bool
claim_write(Claim *claim, OpenClaimPrior prior, const Record *rec, Step *step)
{
	RowChange	change = ROW_CHANGED;

	Assert(claim->locked);
	if (prior != PRIOR_NOTHING)
		change = store_update(claim->store, &claim->rec, rec, false);
	else if (!store_insert(claim->store, rec))
		change = ROW_MISSED;

	if (change == ROW_BUSY)
		*step = answer_in_flight(claim, NO_HOLDER);
	else if (change == ROW_MISSED)
		*step = STEP_PROBE_AGAIN;
	return change == ROW_CHANGED;
}

/* Tells the owner of a record what it may do, with its fence. */
static Step
answer_owner(Claim *claim, const Record *rec)
{
	Answer	   *answer = &claim->answer;

	answer->verdict = VERDICT_EXECUTE;
	answer->state = STATE_PROCESSING;
	answer->advice = ADVICE_RUN;
	answer->attempt = rec->attempt;
	answer->fence = rec->fence;
	answer->claimed_at = rec->claimed_at;
	answer->lease_until = rec->lease_until;
	return STEP_ANSWERED;
}

/* Lets the caller execute: the meaning of "execute" for claim and start. */
Step
claim_grant(Claim *claim, OpenClaimPrior prior)
{
	bool		write_now = claim->lease > 0 || !open_claim_has_room();
	Record		rec;
	Step		step;

	Assert(open_claim_find(&claim->call.who.id) == NULL);
	claim_make_record(claim, prior, &rec);
	if (write_now && !claim_write(claim, prior, &rec, &step))
		return step;
	if (claim->lease == 0)
	{
		open_claim_begin(&rec, prior, &claim->rec, write_now);
		claim->locked = false;
	}
	return answer_owner(claim, &rec);
}

/*
 * Executes, unless another transaction decides about the id.  Raises 40001 if the
 * new attempt could not see what the last one wrote.
 */
static Step
grant(Claim *claim, OpenClaimPrior prior)
{
	const Identity *who = &claim->call.who;
	Step		step;

	if (!alone(claim, &step))
		return step;
	Assert(claim->locked && open_claim_lock_held(&who->id));
	Assert((prior == PRIOR_NOTHING) == (claim->found == PROBE_NOTHING));
	/* what is forgotten is as good as purged: nothing to see */
	if (prior == PRIOR_RECORD && !claim->kind->withdraws && !claim_snapshot_sees(&claim->rec))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access: the last attempt of operation \"%s\" (id %s) ended after this transaction's snapshot",
						who->operation, identity_text(&who->id)),
				 errhint("Roll back and run the transaction again.")));
	return claim->kind->execute(claim, prior);
}

/* Returns whether another session has had what was in the list of accepted work. */
static bool
no_longer_accepted(Claim *claim)
{
	return claim->kind->only_accepted &&
		!(claim->found == PROBE_ROW && claim->rec.accepted &&
		  (claim->effective == EFFECTIVE_ACCEPTED ||
		   claim->effective == EFFECTIVE_RETRYABLE ||
		   claim->effective == EFFECTIVE_OVERRUN));
}

static bool
key_is_late(Claim *claim)
{
	return record_key_is_late(&claim->call, claim->now);
}

/* To withdraw it is never too early. */
static bool
is_early(Claim *claim)
{
	return !claim->kind->withdraws &&
		record_is_early(&claim->rec, claim->effective, claim->now);
}

static bool
is_early_but_on_record(Claim *claim)
{
	return is_early(claim) && !claim->kind->needs_record;
}

static bool
is_to_execute(Claim *claim)
{
	return !claim->kind->withdraws;
}

/* Says what is on record, as idem_status says it. */
static Step
act_tell(Claim *claim)
{
	answer_tell_record(&claim->answer, claim->call.policy, &claim->rec,
					   claim->effective, claim->now);
	return STEP_ANSWERED;
}

/*
 * alone() where nothing is on record: only now does the form of the key matter,
 * as one on record or held is answered from that, whatever the settings are now.
 * Raises 22023.
 */
static bool
alone_with_new_key(Claim *claim, Step *step)
{
	if (!alone(claim, step))
		return false;
	if (claim->effective != EFFECTIVE_RELEASED)
		call_check_key(&claim->call);
	return true;
}

static Step
act_nothing(Claim *claim)
{
	Step		step;

	if (!alone_with_new_key(claim, &step))
		return step;
	if (claim->kind->needs_record)
		call_refuse(&claim->call, ERRCODE_IDEM_NO_CLAIM, "nothing is on record",
					"Accept it first, or claim it.");
	if (claim->found == PROBE_NOTHING)
		return grant(claim, PRIOR_NOTHING);
	return grant(claim, claim->effective == EFFECTIVE_RELEASED ?
				 PRIOR_RECORD : PRIOR_FORGOTTEN);
}

/* Another session has it, or had it: it is not this caller's any more. */
static Step
act_leave_alone(Claim *claim)
{
	claim->answer.state = STATE_PROCESSING;
	claim->answer.advice = ADVICE_RETRY_SAME_KEY;
	return STEP_ANSWERED;
}

static Step
act_late(Claim *claim)
{
	Step		step;

	if (!alone_with_new_key(claim, &step))
		return step;
	claim->answer.state = STATE_EXPIRED;
	claim->answer.advice = ADVICE_RECONCILE;
	return STEP_ANSWERED;
}

/* The stored state, but never what came of other params. */
static Step
act_mismatch(Claim *claim)
{
	act_tell(claim);
	claim->answer.advice = ADVICE_NEW_KEY;
	claim->answer.result = claim->answer.error = (Datum) 0;
	claim->answer.retry_after = 0;
	return STEP_ANSWERED;
}

/* It failed or was released, and may execute again, but not yet. */
static Step
act_early(Claim *claim)
{
	if (claim->effective == EFFECTIVE_RETRYABLE)
		act_tell(claim);
	else
	{
		act_leave_alone(claim);
		claim->answer.retry_after = claim->rec.not_before - claim->now;
	}
	return claim->kind->needs_outcome ? STEP_BUSY : STEP_ANSWERED;
}

static Step
act_take_over(Claim *claim)
{
	return grant(claim, PRIOR_RECORD);
}

/* Says what is on record that may change soon: none waits for itself. */
static Step
tell_undecided(Claim *claim, bool worth_waiting)
{
	act_tell(claim);
	if (!TransactionIdIsCurrentTransactionId(claim->rec.xmin))
		return worth_waiting ? STEP_BUSY : STEP_ANSWERED;
	claim->answer.holder = MyProcPid;
	return STEP_ANSWERED;
}

/* Accepted, unless another transaction has just started it. */
static Step
act_accepted(Claim *claim)
{
	int32		holder;

	if (claim->kind->takes_accepted && !is_early(claim))
		return grant(claim, PRIOR_RECORD);
	if (TransactionIdIsValid(claim->rec.changer))
		return answer_changer(claim);
	if (!claim->locked && open_claim_holder(&claim->call.who.id, &holder))
		return answer_in_flight(claim, holder);
	return tell_undecided(claim, claim->kind->needs_outcome);
}

/* The first answer was lost: give it again. */
static Step
act_own_running(Claim *claim)
{
	if (TransactionIdIsValid(claim->rec.changer))
		return answer_changer(claim);
	return answer_owner(claim, &claim->rec);
}

static Step
act_running(Claim *claim)
{
	return tell_undecided(claim, true);
}

static Step
act_unknown(Claim *claim)
{
	Step		step = tell_undecided(claim, claim->kind->needs_outcome);

	claim->answer.advice = ADVICE_RECONCILE;
	claim->answer.holder = NO_HOLDER;
	return step;
}

static const DecisionRow decision_table[] = {
	/* what is found for the key, and what is answered */
	{IF(IN_FLIGHT), NULL, VERDICT_IN_PROGRESS, answer_changer},
	/* of idem_start_next only */
	{IF_ANY, no_longer_accepted, VERDICT_IN_PROGRESS, act_leave_alone},
	{IF_ABSENT, key_is_late, VERDICT_EXPIRED, act_late},
	{IF(RELEASED), is_early_but_on_record, VERDICT_IN_PROGRESS, act_early},
	{IF_ABSENT, NULL, VERDICT_EXECUTE, act_nothing},
	{IF(EXPIRED), NULL, VERDICT_EXPIRED, act_tell},
	{IF_ANY, other_params, VERDICT_MISMATCH, act_mismatch},
	{IF(SUCCEEDED), NULL, VERDICT_REPLAY, act_tell},
	{IF(FAILED), NULL, VERDICT_REPLAY, act_tell},
	{IF(RETRYABLE), is_early, VERDICT_IN_PROGRESS, act_early},
	/* attempt + 1 */
	{IF(RETRYABLE), NULL, VERDICT_EXECUTE, act_take_over},
	{IF(ACCEPTED), NULL, VERDICT_IN_PROGRESS, act_accepted},
	/* the same attempt */
	{IF(RUNNING), same_owner, VERDICT_EXECUTE, act_own_running},
	{IF(RUNNING), NULL, VERDICT_IN_PROGRESS, act_running},
	/* attempt + 1 */
	{IF(OVERRUN), is_to_execute, VERDICT_EXECUTE, act_take_over},
	{IF(UNKNOWN) | IF(OVERRUN), NULL, VERDICT_UNKNOWN, act_unknown},
};

/* Probes for the record as it is now, and answers. */
static Step
decide(Claim *claim)
{
	claim->now = GetCurrentTimestamp();
	claim->found = store_probe(claim->store, &claim->call.who, &claim->rec);
	if (claim->found == PROBE_ROW)
		claim->effective = record_effective_state(&claim->rec, &claim->call, claim->now);
	else
		claim->effective = claim->found == PROBE_NOTHING ? EFFECTIVE_FORGOTTEN : EFFECTIVE_IN_FLIGHT;
	answer_init(&claim->answer, &claim->call.who);
	for (int i = 0; i < lengthof(decision_table); i++)
	{
		const DecisionRow *row = &decision_table[i];

		if ((row->found & (1 << claim->effective)) == 0 ||
			(row->condition && !row->condition(claim)))
			continue;
		claim->answer.verdict = row->verdict;
		return row->act(claim);
	}
	elog(ERROR, "no decision for record %s", identity_text(&claim->call.who.id));
	return STEP_ANSWERED;
}

/* Sleeps a moment, not longer than what is left of the wait. */
static void
sleep_briefly(int64 left)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 left < NAP_MS * 1000 ? 1L : NAP_MS, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

/* Counts and logs the answer of a claim or its kin. */
static void
count_and_log(const Claim *claim)
{
	static const Counter by_verdict[] = {
		[VERDICT_EXECUTE] = COUNT_EXECUTED,
		[VERDICT_REPLAY] = COUNT_REPLAYED_SUCCEEDED,
		[VERDICT_IN_PROGRESS] = COUNT_IN_PROGRESS,
		[VERDICT_MISMATCH] = COUNT_MISMATCH,
		[VERDICT_UNKNOWN] = COUNT_UNKNOWN,
		[VERDICT_EXPIRED] = COUNT_EXPIRED,
	};
	struct Counters *counters = claim->call.policy->counters;
	Verdict		verdict = claim->answer.verdict;
	Counter		counter = by_verdict[verdict];

	answer_log(&claim->call, &claim->answer);
	if (claim->kind->withdraws)
		return;
	if (verdict == VERDICT_EXECUTE && claim->answer.state == STATE_ACCEPTED)
		counter = COUNT_ACCEPTED;
	else if (verdict == VERDICT_EXECUTE && claim->effective == EFFECTIVE_RUNNING)
		counter = COUNT_HANDED_AGAIN;
	else if (verdict == VERDICT_EXECUTE &&
			 (claim->effective == EFFECTIVE_RETRYABLE || claim->effective == EFFECTIVE_OVERRUN ||
			  claim->effective == EFFECTIVE_RELEASED))
		counter = COUNT_EXECUTED_AGAIN;
	else if (verdict == VERDICT_REPLAY && claim->answer.state == STATE_FAILED)
		counter = COUNT_REPLAYED_FAILED;
	counters_add(counters, counter, 1);
	if (counter == COUNT_EXECUTED_AGAIN && claim->effective == EFFECTIVE_OVERRUN)
		counters_add(counters, COUNT_LEASE_OVERRUN, 1);
}

/*
 * Decides, waiting for others as long as the claim allows.  The caller must have
 * opened the store for writing.  What the answer points to lives as long as the
 * memory context of the call.
 */
void
claim_decide(Claim *claim)
{
	static bool last_executed = false;
	int64		start = clock_monotonic();
	int64		waited = 0;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = NULL;
	Step		step;

	Assert(claim->store->for_writing);
	Assert(!claim->locked);
	if (last_executed)
		claim->locked = open_claim_lock(&claim->call.who.id);
	for (;;)
	{
		step = decide(claim);
		if (step != STEP_PROBE_AGAIN && claim->locked)
		{
			open_claim_unlock(&claim->call.who.id);
			claim->locked = false;
		}
		if (step == STEP_ANSWERED ||
			(step == STEP_BUSY && waited >= claim->wait))
			break;

		/* from the second probe on, each frees what the one before found */
		if (context == NULL)
			context = AllocSetContextCreate(caller, "idempotency probe",
											ALLOCSET_SMALL_SIZES);
		MemoryContextSwitchTo(context);
		MemoryContextReset(context);
		if (step == STEP_BUSY)
		{
			sleep_briefly(claim->wait - waited);
			waited = clock_monotonic() - start;
		}
		CHECK_FOR_INTERRUPTS();
	}
	MemoryContextSwitchTo(caller);
	Assert(!claim->locked);
	Assert(claim->answer.state != STATE_UNCONFIRMED);
	last_executed = claim->answer.verdict == VERDICT_EXECUTE;
	if (waited > 0)
	{
		counters_add(claim->call.policy->counters, COUNT_WAITS, 1);
		counters_add(claim->call.policy->counters, COUNT_WAIT_MICROSECONDS, waited);
	}
	count_and_log(claim);
}

/* Raises 0A000 on a worker node of a cluster: it does not have the records of others. */
void
claim_refuse_on_worker_node(const Call *call)
{
	if (guc_allow_on_worker_nodes || !place_on_worker_node())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot %s operation \"%s\" on a worker node of a cluster",
					call->verb, call->who.operation),
			 errdetail("Each node has records of its own: the same key would execute once on each."),
			 errhint("Call it on the coordinator. Where each key always comes to the same node, a superuser may set idempotency.allow_on_worker_nodes.")));
}

/* Starts a call that decides about a key.  Raises 22023, 42501, 25006, 0A000. */
void
claim_begin(Claim *claim, FunctionCallInfo fcinfo, const ClaimKind *kind,
			text *operation, text *key, text *principal)
{
	memset(claim, 0, sizeof(*claim));
	claim->kind = kind;
	call_begin(&claim->call, fcinfo, kind->binding, operation, key, principal, NULL);
	call_refuse_unless_writable(&claim->call);
	claim_refuse_on_worker_node(&claim->call);
	claim->wait = claim->call.policy->wait;
}

/* Returns the id of an answer if a claim of its texts is open under it, or NULL. */
static const pg_uuid_t *
open_id(const DecodedAnswer *decoded)
{
	const OpenClaim *open = decoded->id ? open_claim_find(decoded->id) : NULL;

	return open && equal_texts(open->rec.operation, decoded->operation) &&
		equal_texts(open->rec.key, decoded->key) &&
		equal_texts(open->rec.principal, decoded->principal) ? decoded->id : NULL;
}

/*
 * Decodes an answer handed back as the handle of a claim, or of a replay where that
 * may be, and starts the call it is about.  Raises 22023, 42501.
 */
void
claim_handle(FunctionCallInfo fcinfo, int argno, const char *verb, bool or_replay,
			 Call *call, DecodedAnswer *decoded)
{
	answer_decode(fcinfo, argno, decoded);
	call_begin(call, fcinfo, BIND_UNLESS_WORKER, decoded->operation, decoded->key, decoded->principal,
			   open_id(decoded));
	call->verb = verb;
	if ((decoded->verdict != VERDICT_EXECUTE || decoded->fence == 0) &&
		!(or_replay && decoded->verdict == VERDICT_REPLAY))
		call_refuse(call, ERRCODE_INVALID_PARAMETER_VALUE, "the answer is no claim handle",
					or_replay ? "Only an answer with verdict execute or replay is one." :
					"Only an answer with verdict execute and a fence is one.");
	if (decoded->id == NULL || memcmp(decoded->id, &call->who.id, UUID_LEN) != 0)
		call_refuse(call, ERRCODE_INVALID_PARAMETER_VALUE, "the answer has another id",
					"Hand over the answer of idem_claim() as it came.");
}

/* Decides and answers: in progress if the key is open in this very transaction. */
void
claim_run(Claim *claim)
{
	const OpenClaim *open = open_claim_find(&claim->call.who.id);
	Store		store;

	if (open)
	{
		answer_own_claim(&claim->answer, &claim->call.who, claim->call.policy, open);
		claim->answer.verdict = VERDICT_IN_PROGRESS;
		count_and_log(claim);
		return;
	}
	store_open(&store, true);
	claim->store = &store;
	claim_decide(claim);
	store_close(&store);
}

/*
 * Takes the fingerprint the caller made, or makes it from params: arguments of those
 * numbers, 0 = not taken.  Raises 22023.
 */
void
claim_read_params(Claim *claim, FunctionCallInfo fcinfo, int argno, int fingerprint)
{
	const Policy *policy = claim->call.policy;
	Jsonb	   *params = PG_ARGISNULL(argno) ? NULL : PG_GETARG_JSONB_P(argno);
	bytea	   *given = fingerprint == 0 || PG_ARGISNULL(fingerprint) ? NULL :
	PG_GETARG_BYTEA_PP(fingerprint);

	if (given && params)
		call_refuse(&claim->call, ERRCODE_INVALID_PARAMETER_VALUE,
					"both params and fingerprint are given", "Pass one of them.");
	if (given && VARSIZE_ANY_EXHDR(given) != IDEM_DIGEST_LEN)
		call_refuse(&claim->call, ERRCODE_INVALID_PARAMETER_VALUE,
					psprintf("the fingerprint has %d bytes, not %d",
							 (int) VARSIZE_ANY_EXHDR(given), IDEM_DIGEST_LEN),
					"Pass the SHA-256 of the request.");
	if (given == NULL && params == NULL && policy->require_params)
		call_refuse(&claim->call, ERRCODE_INVALID_PARAMETER_VALUE,
					"there are no params", "The operation's setting \"require_params\" asks for them.");

	if (given)
		memcpy(claim->fingerprint, VARDATA_ANY(given), IDEM_DIGEST_LEN);
	else if (params)
	{
		/* the limit is on what was given, whatever is left of it to hash */
		if (json_exceeds(params, policy->max_params_bytes))
			call_refuse(&claim->call, ERRCODE_INVALID_PARAMETER_VALUE,
						psprintf("the params are larger than " INT64_FORMAT " bytes",
								 policy->max_params_bytes),
						"Pass what decides the outcome only, or raise setting \"max_params_bytes\".");
		claim->params = params;
		hash_params(claim, policy->normalisation);
		claim->fingerprint_version = policy->normalisation_version;
	}
	claim->has_fingerprint = given != NULL || params != NULL;
}

/* Raises 22023 if the lease is longer than the operation allows. */
void
claim_check_lease(const Call *call, int64 lease)
{
	if (call->policy->max_lease != NO_LIMIT && lease > call->policy->max_lease)
		call_refuse(call, ERRCODE_INVALID_PARAMETER_VALUE,
					"the lease is longer than allowed",
					"Give a shorter one and renew it while the work lasts, or raise setting \"max_lease\".");
}

/* Returns an argument as the lease, or what the policy says.  Raises 22023. */
int64
claim_lease(FunctionCallInfo fcinfo, int argno, const Call *call)
{
	int64		lease = claim_interval(fcinfo, argno, "lease", call, call->policy->lease);

	claim_check_lease(call, lease);
	return lease;
}

/* Returns an argument as an interval, otherwise if it is NULL.  Raises 22023. */
int64
claim_interval(FunctionCallInfo fcinfo, int argno, const char *what,
			   const Call *call, int64 otherwise)
{
	if (PG_ARGISNULL(argno))
		return otherwise;
	return setting_microseconds(PG_GETARG_INTERVAL_P(argno), what, "operation",
								call->who.operation, call->who.key ? &call->who.id : NULL);
}

/* Returns the worker's name.  Raises 22023: an empty one, of a variable not set, would be shared. */
text *
claim_owner(FunctionCallInfo fcinfo, int argno, const Call *call)
{
	text	   *owner = ARG_TEXT(argno);
	int			len = owner ? (int) VARSIZE_ANY_EXHDR(owner) : 1;

	if (len == 0 || len > IDEM_TEXT_MAX)
		call_refuse(call, ERRCODE_INVALID_PARAMETER_VALUE,
					len == 0 ? "the owner is empty" : "the owner is too long",
					psprintf("Name each worker with 1 to %d bytes, or pass NULL.", IDEM_TEXT_MAX));
	return owner;
}

static const ClaimKind kind_claim = {
	.attempts = 1,
	.matches_params = true,
	.execute = claim_grant,
};

/* idem_claim(operation, key, params, principal, lease, wait, owner, fingerprint) */
REQUEST_FUNCTION(idem_claim, "claim")
{
	Claim		claim;

	claim_begin(&claim, fcinfo, &kind_claim, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(3));
	claim.lease = claim_lease(fcinfo, 4, &claim.call);
	claim.wait = claim_interval(fcinfo, 5, "wait", &claim.call, claim.wait);
	claim.owner = claim_owner(fcinfo, 6, &claim.call);
	claim_read_params(&claim, fcinfo, 2, 7);
	claim_run(&claim);
	return answer_datum(fcinfo, &claim.answer);
}
