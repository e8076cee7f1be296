/*-------------------------------------------------------------------------
 *
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
 *				  another breaker_cooldown.  A probe nobody reports frees its
 *				  place after breaker_cooldown.
 *
 * A report does not say which call it is of, so in the half-open state the
 * first to come decides.  If it is a late one of a call from before, a breaker
 * closes or stays open on slightly old news; the next reports correct it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "discipline.h"
#include "settings.h"

/* A share of fewer calls says little: one failure of one is not an outage. */
#define MIN_CALLS 5

static void
close_breaker(Breaker *breaker)
{
	memset(breaker, 0, sizeof(*breaker));
}

static void
open_breaker(Breaker *breaker, int64 now)
{
	breaker->state = BREAKER_OPEN;
	breaker->opened_at = now;
	breaker->probe_until = 0;
}

/*
 * Take in what settings and clock have done to it.
 */
static void
catch_up(Breaker *breaker, const Destination *destination, int64 now)
{
	if (destination->breaker_failures == NO_LIMIT)
	{
		if (breaker->state != BREAKER_CLOSED)
			close_breaker(breaker);
	}
	else if (breaker->state == BREAKER_OPEN &&
			 now - breaker->opened_at >= destination->breaker_cooldown)
		breaker->state = BREAKER_HALF_OPEN;
}

/*
 * Its state.
 */
BreakerState
breaker_state(Breaker *breaker, const Destination *destination, int64 now)
{
	catch_up(breaker, destination, now);
	return breaker->state;
}

/*
 * How many of the wanted calls, at least one, may be made.  If none, in how
 * many microseconds to ask again.
 */
int
breaker_admit(Breaker *breaker, const Destination *destination, int64 now,
			  int wanted, int64 *retry_after)
{
	catch_up(breaker, destination, now);
	switch (breaker->state)
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

/*
 * The probe is not made after all.
 */
void
breaker_withdraw_probe(Breaker *breaker)
{
	if (breaker->state == BREAKER_HALF_OPEN)
		breaker->probe_until = 0;
}

/*
 * Has too large a share of the calls failed?
 */
static bool
too_many_failed(Breaker *breaker, const Destination *destination, int64 now)
{
	int64		failed = window_sum(&breaker->failed, destination->breaker_window, now);
	int64		calls = failed +
	window_sum(&breaker->succeeded, destination->breaker_window, now);

	return calls >= MIN_CALLS &&
		failed * WHOLE >= calls * destination->breaker_failures;
}

/*
 * Calls have ended.  Returns whether that opened it.
 */
bool
breaker_report(Breaker *breaker, const Destination *destination, int64 now,
			   int64 succeeded, int64 failed)
{
	catch_up(breaker, destination, now);
	switch (breaker->state)
	{
		case BREAKER_CLOSED:
			window_add(&breaker->succeeded, destination->breaker_window, now, succeeded);
			window_add(&breaker->failed, destination->breaker_window, now, failed);
			if (destination->breaker_failures == NO_LIMIT || failed == 0 ||
				!too_many_failed(breaker, destination, now))
				return false;
			break;
		case BREAKER_OPEN:
			return false;
		case BREAKER_HALF_OPEN:
			if (failed > 0)
				break;
			if (succeeded > 0)
				close_breaker(breaker);
			return false;
	}
	open_breaker(breaker, now);
	return true;
}
