/*
 * calls.h
 *	  Calls of destinations: how many may be made.
 */
#ifndef IDEMPOTENCY_CALLS_H
#define IDEMPOTENCY_CALLS_H

#include "settings/settings.h"

/*
 * What may be sent to a destination, for a caller that knows which of its
 * calls are retries: asked for before it chooses, and used after.
 */
typedef struct CallGrant
{
	int			calls;			/* how many may be made, retries included */
	int			retries;		/* how many of them may be retries */
	int64		retry_after;	/* if no call: microseconds until asking again
								 * makes sense */

	/* for limiter.c */
	bool		counted;		/* there is an entry */
	bool		probe;			/* it is the probe of a half-open breaker */
	int64		until;			/* when the leases end, by clock_monotonic() */
} CallGrant;

/* Calls that have ended, of one grant or of limiter_ask(). */
typedef struct CallsEnded
{
	int			succeeded;
	int			failed;
	int			first_tries;	/* that were not made after all */
	int			retries;		/* likewise */
	bool		probe;			/* what was not made may have been the probe */
	int64		until;			/* when their leases end, by
								 * clock_monotonic(); 0 = of limiter_ask() */
} CallsEnded;

/* limiter.c */
typedef enum CallDecision
{
	CALL_GO,
	CALL_WAIT,
	CALL_GIVE_UP
} CallDecision;

extern EntryTable limiter_table;

extern Size limiter_size(void);
extern void limiter_attach(void *memory, bool found);
extern void limiter_count_again(void);
extern CallDecision limiter_ask(const Destination *destination, bool is_retry,
								int64 *retry_after);
extern void limiter_reserve(const Destination *destination, int wanted,
							int64 lease, CallGrant *grant);
extern void limiter_use(const Destination *destination, const CallGrant *grant,
						int first_tries, int retries);
extern void limiter_end(const Destination *destination, const CallsEnded *ended);

/* window.c */
#define WINDOW_STEPS 61

/*
 * Zeros are an empty window.  A user passes the same width every time; another
 * width empties it.
 */
typedef struct Window
{
	int64		width;			/* microseconds that a number counts, at most */
	int64		newest;			/* of the steps that are over */
	int64		ending[WINDOW_STEPS];	/* sums of what counts until step n
										 * begins, at n % WINDOW_STEPS */
} Window;

extern int64 window_sum(Window *window, int64 width, int64 now);
extern void window_add(Window *window, int64 width, int64 now, int64 until, int64 number);
extern int64 window_take(Window *window, int64 width, int64 now, int64 until, int64 number);

/* breaker.c */
typedef enum BreakerState
{
	BREAKER_CLOSED,				/* all calls are let through */
	BREAKER_OPEN,				/* none is */
	BREAKER_HALF_OPEN			/* one at a time is, to see */
} BreakerState;

typedef struct Breaker
{
	BreakerState state;
	int64		opened_at;
	int64		probe_until;	/* a probe is under way until then; 0 = none */
	Window		succeeded;
	Window		failed;
} Breaker;

extern BreakerState breaker_state(Breaker *breaker,
								  const Destination *destination, int64 now);
extern int	breaker_admit(Breaker *breaker, const Destination *destination,
						  int64 now, int wanted, int64 *retry_after);
extern void breaker_withdraw_probe(Breaker *breaker);
extern bool breaker_report(Breaker *breaker, const Destination *destination,
						   int64 now, int64 succeeded, int64 failed);

/* retry_budget.c */
typedef struct Budget
{
	Window		laid_in;		/* by first tries, in millionths of a token */
	Window		retries;		/* each took a token */
} Budget;

extern int64 budget_left(Budget *budget, const Destination *destination, int64 now);
extern int	budget_take(Budget *budget, const Destination *destination,
						int64 now, int wanted, bool probe);
extern void budget_give_back(Budget *budget, const Destination *destination,
							 int64 now, int retries);
extern void budget_first_tries(Budget *budget, const Destination *destination,
							   int64 now, int number);

#endif							/* IDEMPOTENCY_CALLS_H */
