/*
 * record_state.c
 *	  What a stored record means now.
 *
 * Purge may remove exactly what reads as forgotten here: no answer changes by it.
 *
 * Deadlines are judged by the server's real clock: now() stands still in a
 * transaction, and a lease must not.
 */
#include "postgres.h"

#include "common/pg_prng.h"

#include "record/record.h"

/* The longest pause between two tries, unless a single one is longer. */
#define LONGEST_PAUSE (INT64CONST(3600) * USECS_PER_SEC)

/* Returns how many attempts count: those that failed, overran or ended unsure. */
static int64
attempts_counted(const Record *rec)
{
	return rec->attempt - rec->releases;
}

/*
 * Returns when no further attempt may begin, or NEVER.  Counts from the first claim or
 * accept, or from the last time an admin reopened the record.
 */
TimestampTz
record_deadline(const Record *rec, const Policy *policy)
{
	return clock_after(Max(rec->claimed_at, rec->reopened_at), policy->deadline);
}

/* Returns whether another attempt may follow the last one, which has ended. */
bool
record_tries_left(const Record *rec, const Policy *policy, TimestampTz now)
{
	if (policy->max_attempts != NO_LIMIT &&
		attempts_counted(rec) >= policy->max_attempts)
		return false;
	return record_deadline(rec, policy) > now;
}

/* Does the operation judge this key by the time it carries? */
static bool
is_timed(const Call *call)
{
	return (call->policy->key_format == KEY_UUIDV7 ||
			call->policy->key_format == KEY_ULID) && call->who.key_has_time;
}

/*
 * Is a key of which nothing is on record provably late: could it have been
 * recorded and forgotten?  Judged by the shortest time keys of its age have
 * ever been remembered, so that a longer retention defined later does not
 * make what has been purged look new.
 */
bool
record_key_is_late(const Call *call, TimestampTz now)
{
	const Policy *policy = call->policy;
	TimestampTz key_time = call->who.key_time;

	if (!is_timed(call))
		return false;
	if (clock_after(key_time, settings_horizon(policy)) <= now)
		return true;
	for (int i = 0; i < policy->n_horizons; i++)
	{
		if (policy->horizons[i].until >= key_time &&
			clock_after(key_time, policy->horizons[i].length) <= now)
			return true;
	}
	return false;
}

/*
 * Is a record that was to be forgotten at its forget_at forgotten?  One whose
 * key carries its time only if the key is provably late by now: from then on
 * it answers the same whether purge has been there or not.
 */
static bool
is_forgotten(const Record *rec, const Call *call, TimestampTz now)
{
	return rec->forget_at <= now &&
		(!is_timed(call) || record_key_is_late(call, now));
}

static EffectiveState
effective_state_of_outcome(const Record *rec, const Call *call, TimestampTz now,
						   EffectiveState recorded)
{
	if (is_forgotten(rec, call, now))
		return EFFECTIVE_FORGOTTEN;
	if (rec->expires_at <= now)
		return EFFECTIVE_EXPIRED;
	return recorded;
}

/* Returns the error of a record that a limit has ended while no attempt was under way. */
static Datum
limit_error(bool by_deadline)
{
	return JsonbPGetDatum(json_pair("limit", by_deadline ? "deadline" : "max_attempts"));
}

/*
 * Turns a record that waits for its next attempt into the failure that a limit
 * has made of it, recorded when that was reached.
 */
static void
fail_by_limit(Record *rec, const Call *call, TimestampTz now)
{
	TimestampTz deadline = record_deadline(rec, call->policy);

	if (deadline <= now)
		rec->finished_at = deadline;
	else if (rec->finished_at == NEVER)
		rec->finished_at = rec->claimed_at;
	rec->error = limit_error(deadline <= now);
	record_set_retention(rec, call, rec->finished_at);
}

/*
 * What the record of a call's key means at that time.  A failure that turns
 * out to be one for good gets the end of its retention here, if it has none.
 */
EffectiveState
record_effective_state(Record *rec, const Call *call, TimestampTz now)
{
	const Policy *policy = call->policy;

	switch (rec->state)
	{
		case RECORD_SUCCEEDED:
			return effective_state_of_outcome(rec, call, now, EFFECTIVE_SUCCEEDED);
		case RECORD_FAILED:
		case RECORD_CANCELLED:
			return effective_state_of_outcome(rec, call, now, EFFECTIVE_FAILED);
		case RECORD_RETRYABLE:
			if (record_tries_left(rec, policy, now))
				return EFFECTIVE_RETRYABLE;
			if (rec->forget_at == NEVER)
				record_set_retention(rec, call, rec->finished_at);
			return effective_state_of_outcome(rec, call, now, EFFECTIVE_FAILED);
		case RECORD_RELEASED:
			if (is_forgotten(rec, call, now))
				return EFFECTIVE_FORGOTTEN;
			/* FALLTHROUGH */
		case RECORD_ACCEPTED:
			if (record_tries_left(rec, policy, now))
				return rec->state == RECORD_RELEASED ? EFFECTIVE_RELEASED : EFFECTIVE_ACCEPTED;
			fail_by_limit(rec, call, now);
			return effective_state_of_outcome(rec, call, now, EFFECTIVE_FAILED);
		case RECORD_PROCESSING:
			if (rec->lease_until > now)
				return EFFECTIVE_RUNNING;
			if (policy->retry_on_lease_expiry && record_tries_left(rec, policy, now))
				return EFFECTIVE_OVERRUN;
			return EFFECTIVE_UNKNOWN;
	}
	elog(ERROR, "unexpected state \"%c\" of record %s", rec->state,
		 identity_text(&rec->id));
	return EFFECTIVE_UNKNOWN;
}

static const struct
{
	const char *name;			/* for people */
	State		shown;
}			effective_states[] = {
	[EFFECTIVE_FORGOTTEN] = {"forgotten", STATE_ABSENT},
	[EFFECTIVE_RELEASED] = {"released", STATE_ABSENT},
	[EFFECTIVE_EXPIRED] = {"expired", STATE_EXPIRED},
	[EFFECTIVE_SUCCEEDED] = {"succeeded", STATE_SUCCEEDED},
	[EFFECTIVE_FAILED] = {"failed", STATE_FAILED},
	[EFFECTIVE_RETRYABLE] = {"retryable", STATE_FAILED},
	[EFFECTIVE_ACCEPTED] = {"accepted", STATE_ACCEPTED},
	[EFFECTIVE_RUNNING] = {"running", STATE_PROCESSING},
	[EFFECTIVE_OVERRUN] = {"overrun", STATE_UNKNOWN},
	[EFFECTIVE_UNKNOWN] = {"unknown", STATE_UNKNOWN},
};

const char *
record_effective_name(EffectiveState effective)
{
	return effective_states[effective].name;
}

/*
 * A failure that may be retried is shown as failed, a lease that is over as unknown: the
 * claim that changes either is yet to come.
 */
State
record_shown_state(EffectiveState effective)
{
	return effective_states[effective].shown;
}

/*
 * Set how long an outcome recorded at that time is replayed and remembered.
 * The time of a key that carries one counts if it is later: a key that has
 * been forgotten must be provably late from then on.
 */
void
record_set_retention(Record *rec, const Call *call, TimestampTz recorded)
{
	const Policy *policy = call->policy;
	TimestampTz from = recorded;

	rec->expires_at = clock_after(recorded, policy->retention);
	if (is_timed(call))
		from = Max(from, call->who.key_time);
	rec->forget_at = clock_after(from, settings_horizon(policy));
}

/* Turns rec into one with a final outcome, a result or an error. */
void
record_finish(Record *rec, const Call *call, char state, Datum outcome, TimestampTz now)
{
	Assert(state == RECORD_SUCCEEDED || state == RECORD_FAILED || state == RECORD_CANCELLED);
	rec->state = state;
	rec->result = state == RECORD_SUCCEEDED ? outcome : (Datum) 0;
	rec->error = state == RECORD_SUCCEEDED ? (Datum) 0 : outcome;
	rec->finished_at = now;
	rec->lease_until = NEVER;
	record_set_retention(rec, call, now);
}

/* Returns the first pause, doubled with each further try, up to an hour. */
int64
record_pause(int64 first, int64 tries)
{
	int64		pause = first;

	for (int64 i = 1; i < tries && pause < LONGEST_PAUSE; i++)
		pause = Min(pause * 2, LONGEST_PAUSE);
	return pause;
}

/*
 * Turns rec, whose attempt is over, into a failure that may be retried, not
 * before that time (DT_NOBEGIN: at once); or, if no further attempt is left,
 * into one for good.  Accepted work for which no time is given is handed out
 * again after the policy's retry_after, doubled with each attempt that counts.
 */
void
record_fail_retryable(Record *rec, const Call *call, TimestampTz not_before,
					  TimestampTz now)
{
	const Policy *policy = call->policy;

	if (!record_tries_left(rec, policy, now))
	{
		rec->state = RECORD_FAILED;
		record_set_retention(rec, call, now);
		return;
	}
	rec->state = RECORD_RETRYABLE;
	rec->not_before = not_before;
	rec->due_at = not_before != DT_NOBEGIN ? not_before :
		clock_after(now, record_pause(policy->retry_after, attempts_counted(rec)));
	/* failed for good from the deadline on, if there is one */
	record_set_retention(rec, call, record_deadline(rec, policy));
}

/*
 * Turns rec, whose attempt has done nothing, into one that may execute again:
 * accepted work is accepted again, anything else released; or, if a limit is
 * reached, into a failure for good.  The caller has set not_before.
 */
void
record_put_back(Record *rec, const Call *call, TimestampTz now)
{
	TimestampTz deadline = record_deadline(rec, call->policy);

	rec->lease_until = NEVER;
	rec->finished_at = now;
	rec->result = rec->error = (Datum) 0;
	if (!record_tries_left(rec, call->policy, now))
	{
		rec->state = RECORD_FAILED;
		rec->error = limit_error(deadline <= now);
		record_set_retention(rec, call, now);
	}
	else if (rec->accepted)
	{
		rec->state = RECORD_ACCEPTED;
		rec->finished_at = NEVER;
		record_set_retention(rec, call, deadline);
	}
	else
	{
		rec->state = RECORD_RELEASED;
		record_set_retention(rec, call, deadline == NEVER ? now : deadline);
		rec->expires_at = NEVER;
	}
}

/* Returns whether a record could be executed if it were not too early. */
bool
record_is_early(const Record *rec, EffectiveState effective, TimestampTz now)
{
	return rec->not_before > now &&
		(effective == EFFECTIVE_RELEASED || effective == EFFECTIVE_RETRYABLE || effective == EFFECTIVE_ACCEPTED);
}

/*
 * Returns when to ask again about what has no time of its own: the policy's
 * time, jittered so that callers do not come back together, never zero.
 */
int64
record_retry_pause(const Policy *policy)
{
	double		factor = 0.5 + pg_prng_double(&pg_global_prng_state);

	return Max((int64) (policy->retry_after * factor), 1);
}

/*
 * Returns the same for a record: what is left before it may be executed, or at
 * most what is left of its lease.
 */
int64
record_retry_after(const Policy *policy, const Record *rec,
				   EffectiveState effective, TimestampTz now)
{
	int64		pause;

	if (record_is_early(rec, effective, now))
		return rec->not_before - now;
	pause = record_retry_pause(policy);
	if (effective == EFFECTIVE_RUNNING && rec->lease_until != NEVER)
		pause = Min(pause, rec->lease_until - now);
	return Max(pause, 1);
}
