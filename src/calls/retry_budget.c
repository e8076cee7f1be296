/*
 * retry_budget.c
 *	  The retry budget of a destination: which share of what is sent there may
 *	  be retries.
 *
 * A token bucket: each first try lays in retry_budget of a token, each retry
 * takes one.  It starts empty, so that 100 first tries at 0.1 allow exactly 10
 * retries; in millionths, so that they add up.  Both count for budget_width()
 * only, so that a long quiet time does not pay for a storm.  Where no retry was
 * sent for that long one goes without a token: a destination with little
 * traffic hardly ever has one, and would never see a retry.
 *
 * Caller and outbox say which of their calls are retries; first tries are
 * never refused.  What is taken is taken when the call is let go, and outside
 * any transaction: a ROLLBACK gives nothing back, because the call was made.  A
 * call that was not made after all is given back by saying so.
 */
#include "postgres.h"

#include "calls/calls.h"

/* First tries and retries count at least that long. */
#define SHORTEST_WIDTH (INT64CONST(30) * USECS_PER_SEC)

static int64
budget_width(const Destination *destination)
{
	return Max(destination->breaker_window, SHORTEST_WIDTH);
}

/*
 * Returns the tokens left, in millionths; below zero where first tries count no longer
 * but retries they paid for do, and after a retry without a token.
 */
int64
budget_left(Budget *budget, const Destination *destination, int64 now)
{
	int64		width = budget_width(destination);

	return window_sum(&budget->laid_in, width, now) -
		window_sum(&budget->retries, width, now) * WHOLE;
}

/*
 * Takes tokens for up to that many retries, for the probe of a breaker whether
 * they are there or not: without it the breaker stays open.  Returns for how
 * many.
 */
int
budget_take(Budget *budget, const Destination *destination, int64 now, int wanted,
			bool probe)
{
	int64		width = budget_width(destination);
	int64		granted = wanted;

	if (destination->retry_budget != NO_LIMIT && !probe)
	{
		granted = Min(granted, Max(budget_left(budget, destination, now), 0) / WHOLE);
		if (granted == 0 && destination->retry_budget > 0 && wanted > 0 &&
			window_sum(&budget->retries, width, now) == 0)
			granted = 1;
	}
	window_add(&budget->retries, width, now, now + width, granted);
	return (int) granted;
}

/* Gives back tokens that budget_take() took, for retries that are not made. */
void
budget_give_back(Budget *budget, const Destination *destination, int64 now, int retries)
{
	(void) window_take(&budget->retries, budget_width(destination), now, now, retries);
}

/* First tries are made; a negative number are not made after all. */
void
budget_first_tries(Budget *budget, const Destination *destination, int64 now, int number)
{
	int64		width = budget_width(destination);
	int64		tokens = number * destination->retry_budget;

	if (destination->retry_budget == NO_LIMIT)
		return;
	if (tokens >= 0)
		window_add(&budget->laid_in, width, now, now + width, tokens);
	else
		(void) window_take(&budget->laid_in, width, now, now, -tokens);
}
