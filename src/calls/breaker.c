/*
 * breaker.c
 *	  The circuit breaker of a destination.
 *
 *	  closed      counts calls.  When at least MIN_CALLS of the last
 *				  breaker_window are known and the share breaker_failures of
 *				  them failed, it opens.
 *	  open        lets nothing through for breaker_cooldown, then is half open.
 *				  Calls that were under way and come back now say nothing: they
 *				  began before.
 *	  half open   lets one call through, the probe.  A success closes it, and
 *				  it forgets what it had counted; a failure opens it again, for
 *				  another breaker_cooldown.  A probe that is not reported frees
 *				  its slot after breaker_cooldown.
 *
 * A report does not say which call it is of, so in the half-open state the
 * first to come decides.  If it is a late one of a call from before, a breaker
 * closes or stays open on slightly old news; the next reports correct it.
 */
#include "postgres.h"

#include "calls/calls.h"

/* A share of fewer calls says little: one failure of one is not an outage. */
#define MIN_CALLS 5

/* Returns the state, up to date with settings and clock. */
BreakerState
breaker_state(Breaker *breaker, const Destination *destination, int64 now)
{
	if (destination->breaker_failures == NO_LIMIT)
	{
		if (breaker->state != BREAKER_CLOSED)
			memset(breaker, 0, sizeof(*breaker));
	}
	else if (breaker->state == BREAKER_OPEN &&
			 now - breaker->opened_at >= destination->breaker_cooldown)
		breaker->state = BREAKER_HALF_OPEN;
	return breaker->state;
}

/*
 * Returns how many of the wanted calls, at least one, may be made.  If none,
 * *retry_after is in how many microseconds to ask again.
 */
int
breaker_admit(Breaker *breaker, const Destination *destination, int64 now,
			  int wanted, int64 *retry_after)
{
	switch (breaker_state(breaker, destination, now))
	{
		case BREAKER_CLOSED:
			return wanted;
		case BREAKER_OPEN:
			*retry_after = breaker->opened_at + destination->breaker_cooldown - now;
			return 0;
		case BREAKER_HALF_OPEN:
			break;
	}
	if (now < breaker->probe_until)
	{
		*retry_after = breaker->probe_until - now;
		return 0;
	}
	breaker->probe_until = now + destination->breaker_cooldown;
	return 1;
}

void
breaker_withdraw_probe(Breaker *breaker)
{
	if (breaker->state == BREAKER_HALF_OPEN)
		breaker->probe_until = 0;
}

/* Takes in calls that have ended.  True if that opened the breaker. */
bool
breaker_report(Breaker *breaker, const Destination *destination, int64 now,
			   int64 succeeded, int64 failed)
{
	int64		width = destination->breaker_window;
	int64		all_failed;
	int64		calls;

	switch (breaker_state(breaker, destination, now))
	{
		case BREAKER_CLOSED:
			window_add(&breaker->succeeded, width, now, now + width, succeeded);
			window_add(&breaker->failed, width, now, now + width, failed);
			if (destination->breaker_failures == NO_LIMIT || failed == 0)
				return false;
			all_failed = window_sum(&breaker->failed, width, now);
			calls = window_sum(&breaker->succeeded, width, now) + all_failed;
			if (calls < MIN_CALLS || all_failed * WHOLE < calls * destination->breaker_failures)
				return false;
			break;
		case BREAKER_OPEN:
			return false;
		case BREAKER_HALF_OPEN:
			if (failed > 0)
				break;
			if (succeeded > 0)
				memset(breaker, 0, sizeof(*breaker));
			return false;
	}
	breaker->state = BREAKER_OPEN;
	breaker->opened_at = now;
	breaker->probe_until = 0;
	return true;
}
