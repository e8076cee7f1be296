/*-------------------------------------------------------------------------
 *
 * counters.h
 *	  What is counted, for each operation of each database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_COUNTERS_H
#define IDEMPOTENCY_COUNTERS_H

#include "port/atomics.h"
#include "utils/timestamp.h"

#include "claim.h"

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

typedef struct CounterSet
{
	Oid			database;		/* InvalidOid = free, or the overflow */
	uint32		hash;			/* of the operation */
	TimestampTz since;
	char		operation[IDEM_TEXT_MAX * 2 + 1];
	pg_atomic_uint64 counts[N_COUNTERS];
} CounterSet;

/* guc.c */
extern bool guc_counters;
extern int	guc_max_operations;

/* counters.c */
extern Size counters_size(void);
extern void counters_attach(void *memory, bool found);
extern CounterSet *counters_of(const char *operation);
extern List *counters_databases(void);
extern void counters_forget(const List *databases);
extern void counters_claim(const Claim *claim);

/*
 * Count.  set is NULL where there is no shared memory.
 */
static inline void
counters_add(CounterSet *set, Counter which, uint64 n)
{
	if (set && guc_counters)
		pg_atomic_fetch_add_u64(&set->counts[which], n);
}

#endif							/* IDEMPOTENCY_COUNTERS_H */
