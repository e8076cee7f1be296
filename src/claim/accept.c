/*
 * accept.c
 *	  Work that is accepted now and started later: idem_accept, idem_start,
 *	  idem_start_next.
 *
 * Accepting is the decision table with another meaning of "execute": a record
 * in state accepted, and the caller enqueues.  Starting is the table too, with
 * an accepted record being there for the taking.  Workers that start the next
 * one meet at the lock of the id, for which none waits: one that is refused takes
 * the next.
 *
 * Between the look of idem_start_next at a record and its lock of the id another
 * one may have started it, and even ended it, and committed.  The table must not
 * judge that as it would a caller's own key: where the two are threads of one
 * owner, "its first answer was lost" would let both work under one fence.  So
 * what the table finds is left alone unless it waits for a worker still.
 *
 * An entry that is no use is put aside when it is met, or each call would meet
 * it again: work that a limit has ended is recorded as failed for good, and
 * work whose outcome is unknown goes to the reconcilers.
 */
#include "postgres.h"

#include "claim/claim.h"
#include "stats/stats.h"

/* Records that the work is to be done: the meaning of "execute" for accept. */
static Step
enqueue(Claim *claim, OpenClaimPrior prior)
{
	Record		rec;
	Step		step;

	claim_make_record(claim, prior, &rec);
	rec.state = RECORD_ACCEPTED;
	rec.accepted = true;
	if (claim->delay > 0)
		rec.not_before = clock_after(claim->now, claim->delay);
	/* failed for good from the deadline on, if there is one */
	record_set_retention(&rec, &claim->call, record_deadline(&rec, claim->call.policy));
	if (!claim_write(claim, prior, &rec, &step))
		return step;
	claim->answer.verdict = VERDICT_EXECUTE;
	claim->answer.state = STATE_ACCEPTED;
	claim->answer.advice = ADVICE_RUN;
	claim->answer.attempt = rec.attempt;
	claim->answer.claimed_at = rec.claimed_at;
	claim->answer.retry_after = claim->delay;
	return STEP_ANSWERED;
}

static const ClaimKind kind_accept = {
	.matches_params = true,
	.execute = enqueue,
};

static const ClaimKind kind_start = {
	.binding = BIND_UNLESS_WORKER,
	.attempts = 1,
	.takes_accepted = true,
	.needs_record = true,
	.execute = claim_grant,
};

static const ClaimKind kind_start_next = {
	.attempts = 1,
	.takes_accepted = true,
	.only_accepted = true,
	.execute = claim_grant,
};

/* idem_accept(operation, key, params, principal, fingerprint, delay) */
REQUEST_FUNCTION(idem_accept, "accept")
{
	Claim		claim;
	int64		deadline;

	claim_begin(&claim, fcinfo, &kind_accept, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(3));
	claim_read_params(&claim, fcinfo, 2, 4);
	claim.delay = claim_interval(fcinfo, 5, "delay", &claim.call, 0);
	deadline = claim.call.policy->deadline;
	if (claim.delay > 0 && deadline != NO_LIMIT && claim.delay >= deadline)
		call_refuse(&claim.call, ERRCODE_INVALID_PARAMETER_VALUE,
					"delay is not shorter than the deadline",
					"Give a shorter delay, or raise setting \"deadline\".");
	claim_run(&claim);
	return answer_datum(fcinfo, &claim.answer);
}

/* idem_start(operation, key, lease, principal, owner) */
REQUEST_FUNCTION(idem_start, "start")
{
	Claim		claim;

	claim_begin(&claim, fcinfo, &kind_start, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(3));
	claim.lease = claim_lease(fcinfo, 2, &claim.call);
	claim.owner = claim_owner(fcinfo, 4, &claim.call);
	claim_run(&claim);
	return answer_datum(fcinfo, &claim.answer);
}

/* Moves an entry out of the way; rec is as record_effective_state() left it. */
static void
put_aside(Entries *next, const Call *call, const Work *entry,
		  const Record *rec, EffectiveState effective)
{
	Work		work = *entry;
	Record		ended = *rec;

	switch (effective)
	{
		case EFFECTIVE_UNKNOWN: /* a limit is reached */
			work.queue = QUEUE_LEASED;
			(void) work_update(entry, &work);
			break;
		case EFFECTIVE_FAILED:
		case EFFECTIVE_EXPIRED:
		case EFFECTIVE_FORGOTTEN:
			if (!work_is_open(rec))
				work_forget(entry);
			/* the lock keeps a session that has begun to start it in time */
			else if (open_claim_lock(&rec->id))
			{
				ended.state = RECORD_FAILED;
				if (store_update(&next->store, rec, &ended, false) == ROW_CHANGED)
					counters_add(call->policy->counters, COUNT_FAILED, 1);
				open_claim_unlock(&rec->id);
			}
			break;
		case EFFECTIVE_RUNNING:
			work.due_at = rec->lease_until;
			(void) work_update(entry, &work);
			break;
		default:
			work_forget(entry);
			break;
	}
}

/*
 * Returns whether the caller may start the work of an entry, as far as can be seen
 * without the lock of its id.  What was accepted after the transaction's snapshot is
 * for the next call.
 */
static bool
may_start(Entries *next, const Work *entry, Call *call)
{
	Record		rec;
	EffectiveState effective;

	if (open_claim_find(&entry->id) ||
		!claim_read_entry(&next->store, entry, call, &rec, &effective))
		return false;
	if (rec.accepted && (effective == EFFECTIVE_ACCEPTED || effective == EFFECTIVE_RETRYABLE ||
						 effective == EFFECTIVE_OVERRUN))
		return claim_snapshot_sees(&rec);
	put_aside(next, call, entry, &rec, effective);
	return false;
}

/* Starts the work of an entry; false if another session has it. */
static bool
start_entry(Entries *next, const Work *entry)
{
	Claim		claim = {.kind = &kind_start_next,.lease = next->lease,.owner = next->owner,
	.store = &next->store};

	if (!may_start(next, entry, &claim.call))
		return false;
	request_about(&claim.call);
	claim_decide(&claim);
	if (claim.answer.verdict == VERDICT_EXECUTE)
		answer_put(next->fcinfo, &claim.answer);
	request_next(claim.answer.verdict == VERDICT_EXECUTE);
	return claim.answer.verdict == VERDICT_EXECUTE;
}

/* idem_start_next(operation, max_records, lease, owner): longest due first */
REQUEST_FUNCTION(idem_start_next, "start")
{
	Entries		next = {0};
	Call		call;
	const char *principal;
	TimestampTz now = GetCurrentTimestamp();
	int			most;

	call_begin_operation(&call, ARG_TEXT(0), false);
	most = claim_max_records(fcinfo, 1, "idem_start_next");
	call_require_writable("idem_start_next()");
	claim_refuse_on_worker_node(&call);

	next.lease = claim_lease(fcinfo, 2, &call);
	next.owner = claim_owner(fcinfo, 3, &call);
	principal = access_workers_principal(call.policy, call.who.operation);
	claim_entries_begin(&next, fcinfo, true);
	work_scan_add(next.scan, QUEUE_WAITING, call.who.operation, principal, now);
	if (call.policy->retry_on_lease_expiry)
		work_scan_add(next.scan, QUEUE_STARTED, call.who.operation, principal, now);
	claim_entries_collect(&next, most, NULL, start_entry);
	return (Datum) 0;
}
