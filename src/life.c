/*-------------------------------------------------------------------------
 *
 * life.c
 *	  What a stored record means now.
 *
 * The record is the truth; clock, policy and purge only interpret it.
 * "unknown" and "expired" are computed here each time a record is read, so no
 * sweeper has to run for an answer to be right, and purge may remove exactly
 * what reads as forgotten without anybody being able to tell.
 *
 * Deadlines are judged by the server's real clock: now() stands still in a
 * transaction, and a lease must not.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"

#include "compat.h"
#include "idempotency.h"

/*
 * A time that much later; NO_LIMIT never comes.
 */
TimestampTz
time_after(TimestampTz from, int64 microseconds)
{
	if (microseconds == NO_LIMIT || from == NEVER)
		return NEVER;
	return from + microseconds;
}

/*
 * May a failed or overrun attempt be followed by another one?
 */
bool
life_tries_left(const Record *rec, const Policy *policy, TimestampTz now)
{
	if (policy->max_attempts != NO_LIMIT && rec->attempt >= policy->max_attempts)
		return false;
	return time_after(rec->claimed_at, policy->deadline) > now;
}

/*
 * Does the operation judge this key by the time it carries?
 */
static bool
is_timed(const Call *call)
{
	return (call->policy->key_format == KEY_UUIDV7 ||
			call->policy->key_format == KEY_ULID) && call->who.key_has_time;
}

/*
 * How long an operation remembers a key now.
 */
int64
life_horizon(const Policy *policy)
{
	return policy->retention == NO_LIMIT ? NO_LIMIT :
		policy->retention + policy->guard;
}

/*
 * Is a key of which nothing is on record provably late: could it have been
 * recorded and forgotten?  Judged by the shortest time keys of its age have
 * ever been remembered, so that a longer retention defined later does not
 * make what has been purged look new.
 */
bool
life_key_is_late(const Call *call, TimestampTz now)
{
	const Policy *policy = call->policy;
	TimestampTz key_time = call->who.key_time;

	if (!is_timed(call))
		return false;
	if (time_after(key_time, life_horizon(policy)) <= now)
		return true;
	for (int i = 0; i < policy->n_horizons; i++)
	{
		if (policy->horizons[i].until >= key_time &&
			time_after(key_time, policy->horizons[i].length) <= now)
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
		(!is_timed(call) || life_key_is_late(call, now));
}

/*
 * Life of a record whose outcome is final.
 */
static Life
life_of_outcome(const Record *rec, const Call *call, TimestampTz now,
				Life recorded)
{
	if (is_forgotten(rec, call, now))
		return LIFE_FORGOTTEN;
	if (rec->expires_at <= now)
		return LIFE_EXPIRED;
	return recorded;
}

/*
 * What the record of a call's key means at that time.  A failure that turns
 * out to be one for good gets the end of its retention here, if it has none.
 */
Life
life_of(Record *rec, const Call *call, TimestampTz now)
{
	const Policy *policy = call->policy;

	switch (rec->state)
	{
		case RECORD_SUCCEEDED:
			return life_of_outcome(rec, call, now, LIFE_SUCCEEDED);
		case RECORD_FAILED:
		case RECORD_CANCELLED:
			return life_of_outcome(rec, call, now, LIFE_FAILED);
		case RECORD_RETRYABLE:
			if (life_tries_left(rec, policy, now))
				return LIFE_RETRYABLE;
			if (rec->forget_at == NEVER)
				life_set_retention(rec, call, rec->finished_at);
			return life_of_outcome(rec, call, now, LIFE_FAILED);
		case RECORD_RELEASED:
			return is_forgotten(rec, call, now) ? LIFE_FORGOTTEN : LIFE_RELEASED;
		case RECORD_ACCEPTED:
			return LIFE_ACCEPTED;
		case RECORD_PROCESSING:
			if (rec->lease_until > now)
				return LIFE_RUNNING;
			if (policy->retry_on_lease_expiry && life_tries_left(rec, policy, now))
				return LIFE_OVERRUN;
			return LIFE_UNKNOWN;
	}
	elog(ERROR, "unexpected state \"%c\" of record %s", rec->state,
		 id_text(&rec->id));
	return LIFE_UNKNOWN;
}

/*
 * The state a life is shown as.  A failure that may be retried is shown as
 * failed, a lease that is over as unknown: the claim that changes either is
 * yet to come.
 */
State
life_state(Life life)
{
	static const State states[] = {
		[LIFE_FORGOTTEN] = STATE_ABSENT,
		[LIFE_RELEASED] = STATE_ABSENT,
		[LIFE_EXPIRED] = STATE_EXPIRED,
		[LIFE_SUCCEEDED] = STATE_SUCCEEDED,
		[LIFE_FAILED] = STATE_FAILED,
		[LIFE_RETRYABLE] = STATE_FAILED,
		[LIFE_ACCEPTED] = STATE_ACCEPTED,
		[LIFE_RUNNING] = STATE_PROCESSING,
		[LIFE_OVERRUN] = STATE_UNKNOWN,
		[LIFE_UNKNOWN] = STATE_UNKNOWN,
	};

	return states[life];
}

/*
 * Set how long an outcome recorded at that time is replayed and remembered.
 * The time of a key that carries one counts if it is later: a key that has
 * been forgotten must be provably late from then on.
 */
void
life_set_retention(Record *rec, const Call *call, TimestampTz recorded)
{
	const Policy *policy = call->policy;
	TimestampTz from = recorded;

	rec->expires_at = time_after(recorded, policy->retention);
	if (is_timed(call))
		from = Max(from, call->who.key_time);
	rec->forget_at = time_after(from, life_horizon(policy));
}

/*
 * When to ask again: the policy's time, jittered so that callers do not come
 * back together, but not beyond the end of the lease and never zero.
 */
int64
life_retry_after(const Policy *policy, TimestampTz lease_until, TimestampTz now)
{
	double		factor = 0.5 + pg_prng_double(&pg_global_prng_state);
	int64		after = (int64) (policy->retry_after * factor);

	if (lease_until != NEVER && lease_until - now < after)
		after = lease_until - now;
	return Max(after, 1);
}
