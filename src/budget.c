/*-------------------------------------------------------------------------
 *
 * budget.c
 *	  The retry budget of a destination: how much of what is sent there may be
 *	  retries.
 *
 * Each first try lays in retry_budget of a token, each retry takes one.  The
 * bucket starts empty, so that 100 first tries at 0.1 allow exactly 10 retries;
 * in millionths, so that they add up.  Tokens not taken lapse after
 * budget_width(), so that a long quiet time does not buy a storm.  When no
 * retry was sent for that long, one is let go without a token: a destination
 * with little traffic has hardly one ever, and would never see a retry.
 *
 * Who knows which of its calls are retries, as the outbox does, reserves tokens
 * before it chooses what to send, and says afterwards what it has used; first
 * tries are never refused.
 *
 * idem_permit() does not know.  It sees somebody ask, and learns from the
 * report, when the call has been made, whether it was a retry.  Two things
 * follow.
 *
 * 1. A token is kept for everybody who asks, as long as there are some; one
 *	  who turns out to be a first try hands it back.  Else, many who ask at the
 *	  same moment would all be let go with the same last token.
 *
 * 2. When they are used up, the one who asks may be a first try, which must go,
 *	  or a retry, which must not.  A failure reported announces one who
 *	  will come back.  So who asks then is taken for one of those and refused,
 *	  and the announcement is spent, since a refused caller gives up; when none
 *	  is left, who asks is taken for a first try.  So there are as many refusals
 *	  as failures that the budget does not cover.  Who is refused need not be
 *	  the one who failed; what reaches the destination is never more than the
 *	  budget allows.
 *
 *	  Callers may retry without having reported the failure.  Retries that took
 *	  a token and that no announcement explains are counted; where they are the
 *	  most, announcements say nothing, and whoever asks is refused until the
 *	  budget fills or the retries are too long ago to count.
 *
 * All of this is counted when it is said, outside any transaction: a ROLLBACK
 * gives nothing back, because the call was made.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "discipline.h"
#include "settings.h"

/* Tokens and retries count at least that long, also where windows are short. */
#define SHORTEST_WIDTH (INT64CONST(30) * USECS_PER_SEC)

/*
 * How long tokens and retries count.
 */
static int64
budget_width(const Destination *destination)
{
	return Max(destination->breaker_window, SHORTEST_WIDTH);
}

/*
 * How long a caller that failed may take to come back.
 */
static int64
announced_width(const Destination *destination)
{
	return Max(destination->cap, SHORTEST_WIDTH);
}

/*
 * Tokens that are not kept for somebody, in millionths; below zero where they
 * lapsed while they were.
 */
int64
budget_left(Budget *budget, const Destination *destination, int64 now)
{
	return window_sum(&budget->tokens, budget_width(destination), now) -
		window_sum(&budget->reserved, PERMIT_LIFE, now) * WHOLE;
}

/*
 * Was no retry sent for so long that one is let go in any case?
 */
static bool
none_sent(Budget *budget, const Destination *destination, int64 now)
{
	return destination->retry_budget > 0 &&
		window_sum(&budget->retries, budget_width(destination), now) == 0;
}

/*
 * For how many more retries there is a token, or one without.
 */
static int64
retries_left(Budget *budget, const Destination *destination, int64 now)
{
	int64		left = budget_left(budget, destination, now);

	if (left >= WHOLE)
		return left / WHOLE;
	return none_sent(budget, destination, now) &&
		window_sum(&budget->reserved, PERMIT_LIFE, now) == 0 ? 1 : 0;
}

/*
 * Is somebody who asks while no token is left taken for a retry?
 */
static bool
taken_for_retry(Budget *budget, const Destination *destination, int64 now)
{
	int64		width = budget_width(destination);

	if (window_take(&budget->announced, announced_width(destination), now, 1) > 0)
		return true;
	return window_sum(&budget->unannounced, width, now) * 2 >
		window_sum(&budget->retries, width, now);
}

/*
 * May one go who does not say whether it is a retry?  One that goes in any case
 * is counted as a call under way.
 */
bool
budget_admit(Budget *budget, const Destination *destination, int64 now,
			 bool in_any_case)
{
	if (destination->retry_budget == NO_LIMIT)
		return true;
	if (budget_left(budget, destination, now) >= WHOLE)
	{
		window_add(&budget->reserved, PERMIT_LIFE, now, 1);
		return true;
	}
	if (!in_any_case && !none_sent(budget, destination, now) &&
		taken_for_retry(budget, destination, now))
		return false;
	window_add(&budget->unreserved, PERMIT_LIFE, now, 1);
	return true;
}

/*
 * A call under way has ended.  Which of the two kinds it was, nobody knows: it
 * is taken for one that it fits.  Returns whether a token was kept for it.
 */
static bool
end_call(Budget *budget, int64 now, bool is_retry)
{
	Window	   *likely = is_retry ? &budget->reserved : &budget->unreserved;
	Window	   *other = is_retry ? &budget->unreserved : &budget->reserved;
	bool		found = window_take(likely, PERMIT_LIFE, now, 1) > 0;

	if (!found)
		return window_take(other, PERMIT_LIFE, now, 1) > 0 && other == &budget->reserved;
	return likely == &budget->reserved;
}

/*
 * A call let go by budget_admit() has been made.
 */
void
budget_report(Budget *budget, const Destination *destination, int64 now,
			  bool succeeded, bool is_retry)
{
	int64		width = budget_width(destination);
	bool		covered = end_call(budget, now, is_retry);
	bool		explained;

	if (destination->retry_budget == NO_LIMIT)
		return;
	if (!is_retry)
	{
		window_add(&budget->tokens, width, now, destination->retry_budget);
		if (!succeeded)
			window_add(&budget->announced, announced_width(destination), now, 1);
		return;
	}

	/* one that failed again will come back again */
	explained = window_take(&budget->announced, announced_width(destination), now, 1) > 0;
	if (explained && !succeeded)
		window_add(&budget->announced, announced_width(destination), now, 1);
	if (window_take(&budget->tokens, width, now, WHOLE) > 0)
		covered = true;
	window_add(&budget->retries, width, now, 1);
	if (covered && !explained)
		window_add(&budget->unannounced, width, now, 1);
}

/*
 * Keep tokens for up to that many retries.  Returns for how many.
 */
int
budget_reserve(Budget *budget, const Destination *destination, int64 now,
			   int wanted)
{
	int64		reserved = wanted;

	if (destination->retry_budget == NO_LIMIT)
		return wanted;
	reserved = Min(reserved, retries_left(budget, destination, now));
	window_add(&budget->reserved, PERMIT_LIFE, now, reserved);
	return (int) reserved;
}

/*
 * What of it was used; the rest is given back.
 */
void
budget_use(Budget *budget, const Destination *destination, int64 now,
		   int reserved, int first_tries, int retries)
{
	int64		width = budget_width(destination);

	if (destination->retry_budget == NO_LIMIT)
		return;
	window_take(&budget->reserved, PERMIT_LIFE, now, reserved);
	window_take(&budget->tokens, width, now, retries * WHOLE);
	window_add(&budget->retries, width, now, retries);
	window_add(&budget->tokens, width, now, first_tries * destination->retry_budget);
}
