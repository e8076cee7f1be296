/*-------------------------------------------------------------------------
 *
 * retry.c
 *	  When to try again.
 *
 * Full jitter: uniform between zero and a bound that doubles with each
 * attempt, so that callers that failed together do not come back together.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"

#include "compat.h"
#include "delivery.h"

PG_FUNCTION_INFO_V1(idem_backoff);

/*
 * Uniform in [0, min(cap, base * 2^attempt)] microseconds.  attempt, base and
 * cap are not negative.
 */
int64
backoff_jitter(int32 attempt, int64 base, int64 cap)
{
	int64		bound = cap;

	/* base * 2^attempt <= cap, without the product overflowing */
	if (attempt < 63 && base <= cap >> attempt)
		bound = base << attempt;
	return (int64) pg_prng_uint64_range(&pg_global_prng_state, 0, (uint64) bound);
}

/*
 * When to try again after that many attempts, the last of which has just
 * failed: after a pause with full jitter, or as much later as the destination
 * has asked for (asked, microseconds, 0 = it has not).  since is when the first
 * attempt could have been made.  False if attempts or total time are used up,
 * or would be by then.
 */
bool
retry_again(const Destination *destination, int32 attempts, TimestampTz since,
			int64 asked, TimestampTz now, TimestampTz *again)
{
	int64		pause = backoff_jitter(Max(attempts - 1, 0), destination->base,
									   destination->cap);

	if (destination->max_attempts != NO_LIMIT && attempts >= destination->max_attempts)
		return false;
	*again = time_after(now, Max(pause, asked));
	return destination->deadline == NO_LIMIT ||
		*again <= time_after(since, destination->deadline);
}

/*
 * idem_backoff(attempt, base, cap)
 */
Datum
idem_backoff(PG_FUNCTION_ARGS)
{
	Interval   *span = palloc0(sizeof(Interval));

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2) ||
		PG_GETARG_INT32(0) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("idem_backoff needs an attempt that is not negative, a base and a cap"),
				 errhint("The first retry is attempt 0 or 1, as you count.")));
	span->time = backoff_jitter(PG_GETARG_INT32(0),
								interval_microseconds_of(PG_GETARG_INTERVAL_P(1), "base", "function", "idem_backoff"),
								interval_microseconds_of(PG_GETARG_INTERVAL_P(2), "cap", "function", "idem_backoff"));
	PG_RETURN_INTERVAL_P(span);
}
