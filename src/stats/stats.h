/*
 * stats.h
 *	  What is counted.
 */
#ifndef IDEMPOTENCY_STATS_H
#define IDEMPOTENCY_STATS_H

#include "port/atomics.h"

#include "guc.h"
#include "params/params.h"

/* In the order of the columns of idem_stat_counters(). */
typedef enum Counter
{
	/* answers of claims and their kin */
	COUNT_EXECUTED,				/* for the first time */
	COUNT_EXECUTED_AGAIN,		/* after a failure, a release or an overrun */
	COUNT_HANDED_AGAIN,			/* the same owner asked again */
	COUNT_ACCEPTED,
	COUNT_REPLAYED_SUCCEEDED,
	COUNT_REPLAYED_FAILED,
	COUNT_IN_PROGRESS,
	COUNT_MISMATCH,
	COUNT_UNKNOWN,
	COUNT_EXPIRED,

	/* what owners and operators said */
	COUNT_COMPLETED,
	COUNT_FAILED,				/* for good */
	COUNT_FAILED_RETRYABLE,
	COUNT_UNSURE,
	COUNT_RENEWED,
	COUNT_RELEASED,
	COUNT_CANCELLED,
	COUNT_RESOLVED,
	COUNT_STATUS,				/* idem_status */

	/* trouble */
	COUNT_LEASE_OVERRUN,		/* taken over or finished too late */
	COUNT_STALE_FENCE,			/* refused: no longer yours */
	COUNT_COMMIT_REFUSED,
	COUNT_WAITS,
	COUNT_WAIT_MICROSECONDS,

	COUNT_PURGED,
	N_COUNTERS
} Counter;

/*
 * Where a session counts an operation.  A slot of shared memory is taken when
 * something is counted, not before.
 */
typedef struct Counters Counters;

/* counters.c */
extern EntryTable counters_table;
extern Size counters_size(void);
extern void counters_attach(void *memory, bool found);
extern Counters *counters_of(const char *operation, bool defined);
extern void counters_add(Counters *counters, Counter which, uint64 n);
extern void counters_count_again(void);

#endif							/* IDEMPOTENCY_STATS_H */
