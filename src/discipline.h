/*-------------------------------------------------------------------------
 *
 * discipline.h
 *	  The parts of the discipline with which a destination is called: when it
 *	  is left alone, and how much of the calls may be retries.
 *
 * Both live in shared memory.  The caller holds the lock of the destination's
 * entry (discipline.c) around each call here; now is window_clock().
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_DISCIPLINE_H
#define IDEMPOTENCY_DISCIPLINE_H

#include "delivery.h"
#include "window.h"

/* How long a call that is not reported counts as being under way. */
#define PERMIT_LIFE (INT64CONST(300) * USECS_PER_SEC)

/* leases.c */
#define LEASE_STEP (INT64CONST(5) * USECS_PER_SEC)
#define LEASE_STEPS (PERMIT_LIFE / LEASE_STEP + 1)

/* Zeros are no leases. */
typedef struct Leases
{
	int64		step;			/* the newest that is over */
	int64		ending[LEASE_STEPS];	/* before step n, at n % LEASE_STEPS */
} Leases;

extern int64 leases_sum(Leases *leases, int64 now);
extern void leases_add(Leases *leases, int64 until, int64 now, int64 number);
extern void leases_take(Leases *leases, int64 until, int64 now, int64 number);

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

/* budget.c */
typedef struct Budget
{
	Window		tokens;			/* millionths of a retry not yet taken */
	Window		retries;		/* that took one */
	Window		announced;		/* failures whose caller is to come back */
	Window		unannounced;	/* retries that none of those explains */
	Window		reserved;		/* calls under way for which one is kept */
	Window		unreserved;		/* other calls under way */
} Budget;

extern bool budget_admit(Budget *budget, const Destination *destination,
						 int64 now, bool in_any_case);
extern void budget_report(Budget *budget, const Destination *destination,
						  int64 now, bool succeeded, bool is_retry);
extern int	budget_reserve(Budget *budget, const Destination *destination,
						   int64 now, int wanted);
extern void budget_use(Budget *budget, const Destination *destination,
					   int64 now, int reserved, int first_tries, int retries);
extern int64 budget_left(Budget *budget, const Destination *destination,
						 int64 now);

/* discipline.c */
typedef enum CallDecision
{
	CALL_GO,
	CALL_WAIT,
	CALL_GIVE_UP
} CallDecision;

#define N_CALL_DECISIONS (CALL_GIVE_UP + 1)

/* Since the entry was made, or counting began again. */
typedef struct CallCounts
{
	int64		decided[N_CALL_DECISIONS];
	int64		succeeded;
	int64		failed;
	int64		retries;
	int64		opened;			/* the breaker */
} CallCounts;

/* What an entry shows. */
typedef struct CallState
{
	BreakerState breaker;
	int64		breaker_succeeded;	/* in its window */
	int64		breaker_failed;
	int64		in_flight;
	int64		retries_left;	/* millionths; NO_LIMIT = no limit */
	CallCounts	counts;
} CallState;

extern CallDecision discipline_ask(const Destination *destination,
								   int64 *retry_after);
extern void discipline_tell(const Destination *destination, bool succeeded,
							bool is_retry);
extern List *discipline_names(void);
extern bool discipline_state(const Destination *destination, CallState *state);
extern int64 discipline_overflow(void);
extern void discipline_count_again(void);

#endif							/* IDEMPOTENCY_DISCIPLINE_H */
