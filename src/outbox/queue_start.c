/*
 * queue_start.c
 *	  How far the queues are empty, and which takers wait for events.
 *
 * README.md tells the protocol of the low- and the high-water mark, and why no
 * entry can come to stand before a low-water mark.
 *
 * A stripe is shared by all destinations with the same hash: they share the
 * high-water mark, which is only time, and wake each other for nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"

#include "outbox/outbox.h"

/* Destinations of one stripe that have a low-water mark; the others do without. */
#define MARKS_PER_STRIPE 8

/* How often one taker begins at the very beginning, in microseconds. */
#define DEEP_EVERY INT64CONST(300000000)

/* How often the high-water mark is raised at most: it takes a lock exclusively. */
#define RAISE_EVERY INT64CONST(20000)

/* How long a taker sleeps before it looks itself, in microseconds. */
#define LONGEST_SLEEP INT64CONST(1000000)
#define NAP INT64CONST(50000)	/* without shared memory */

/* The low-water mark of a destination. */
typedef struct LowMark
{
	SharedEntry shared;
	Oid			queue;			/* the table: another one after DROP EXTENSION */
	TimestampTz low;			/* all before it is gone */
	TimestampTz resume;			/* where the last take stopped */
	TimestampTz revisit_at;		/* until when that is good for */
	TimestampTz deep_at;		/* last begun at the very beginning */
} LowMark;

/* The lock of a stripe protects its marks; of the rest see README.md. */
typedef struct Stripe
{
	pg_atomic_uint64 high;		/* high-water mark */
	pg_atomic_uint64 moves;
	pg_atomic_uint64 raised_at; /* when a taker last raised it */
	pg_atomic_uint32 waiters;
	ConditionVariable wake;
	LowMark		marks[MARKS_PER_STRIPE];
} Stripe;

static Stripe *stripes = NULL;
static EntryTable marks[OUTBOX_STRIPES];

/* Stripes to wake when this transaction commits. */
static uint64 to_wake = 0;

/* The first due time this transaction has removed an entry from, of any destination. */
static TimestampTz first_removed = NEVER;

/* The stripe this session waits for; -1 = none. */
static int	waiting = -1;

StaticAssertDecl(OUTBOX_STRIPES <= 64, "to_wake has a bit for each stripe");

Size
queue_start_size(void)
{
	return mul_size(OUTBOX_STRIPES, sizeof(Stripe));
}

/* Any mark may make room: the one that was not used for the longest time does. */
static bool
may_go(const SharedEntry *shared)
{
	return true;
}

static void
clear_mark(SharedEntry *shared)
{
	LowMark    *mark = (LowMark *) shared;

	mark->low = mark->resume = mark->revisit_at = DT_NOBEGIN;
	mark->deep_at = GetCurrentTimestamp();
}

/* Attaches to shared memory; the first to do so makes it ready. */
void
queue_start_attach(void *memory, bool found)
{
	stripes = memory;
	for (int i = 0; i < OUTBOX_STRIPES; i++)
	{
		marks[i].lock = LOCK_OUTBOX + i;
		marks[i].entry_size = sizeof(LowMark);
		marks[i].at_rest = may_go;
		marks[i].clear = clear_mark;
		entries_attach(&marks[i], stripes[i].marks, MARKS_PER_STRIPE);
		if (found)
			continue;
		pg_atomic_init_u64(&stripes[i].high, 0);
		pg_atomic_init_u64(&stripes[i].moves, 0);
		pg_atomic_init_u64(&stripes[i].raised_at, 0);
		pg_atomic_init_u32(&stripes[i].waiters, 0);
		ConditionVariableInit(&stripes[i].wake);
	}
}

static int
stripe_of(const char *destination)
{
	return hash_bytes_extended((const unsigned char *) destination,
							   strlen(destination), MyDatabaseId) % OUTBOX_STRIPES;
}

static LWLock *
lock_of(int stripe)
{
	return shared_lock(LOCK_OUTBOX + stripe);
}

static LowMark *
find_mark(int stripe, const char *destination)
{
	return (LowMark *) entries_find(&marks[stripe], destination);
}

/* Times are stored as they are, and grow from 2000 on: never negative. */
static TimestampTz
high_of(int stripe)
{
	return (TimestampTz) pg_atomic_read_u64(&stripes[stripe].high);
}

/*
 * The clock was set back: begins anew from there, and lets no scan that is under
 * way conclude anything.  The caller must hold the lock exclusively.
 */
static void
go_back(int which, TimestampTz now)
{
	Stripe	   *stripe = &stripes[which];

	Assert(LWLockHeldByMeInMode(lock_of(which), LW_EXCLUSIVE));
	pg_atomic_fetch_add_u64(&stripe->moves, 1);
	pg_atomic_write_u64(&stripe->high, now);
	for (int i = 0; i < MARKS_PER_STRIPE; i++)
	{
		LowMark    *mark = &stripe->marks[i];

		mark->low = Min(mark->low, now);
		mark->revisit_at = DT_NOBEGIN;
	}
}

/*
 * Assigns the due time of an entry that is due after a delay in microseconds.
 * The caller writes it, index entries included, and calls
 * queue_start_assigned(); it must wait for no other transaction in between.
 */
TimestampTz
queue_start_assign(const char *destination, int64 delay)
{
	TimestampTz now;
	int			stripe;

	if (stripes == NULL)
		return clock_after(GetCurrentTimestamp(), delay);
	stripe = stripe_of(destination);
	LWLockAcquire(lock_of(stripe), LW_SHARED);
	now = GetCurrentTimestamp();
	if (now < high_of(stripe))
	{
		LWLockRelease(lock_of(stripe));
		LWLockAcquire(lock_of(stripe), LW_EXCLUSIVE);
		now = GetCurrentTimestamp();
		if (now < high_of(stripe))
			go_back(stripe, now);
	}
	return clock_after(now, delay);
}

void
queue_start_assigned(const char *destination)
{
	if (stripes)
		LWLockRelease(lock_of(stripe_of(destination)));
}

/* An entry has got another index entry at its old due time. */
void
queue_start_moved(const char *destination)
{
	if (stripes)
		pg_atomic_fetch_add_u64(&stripes[stripe_of(destination)].moves, 1);
}

/*
 * This transaction is about to take an entry away from its due time.  A ROLLBACK TO
 * SAVEPOINT need not take that back: what is noted only holds low-water marks.
 */
void
queue_start_removed(TimestampTz due_at)
{
	first_removed = Min(first_removed, due_at);
}

/* Reads a mark, unless it is NULL or of another table.  The caller must hold the lock. */
static void
read_mark(OutboxStart *start, LowMark *mark)
{
	Assert(LWLockHeldByMe(lock_of(start->stripe)));
	if (mark == NULL || mark->queue != start->queue)
		return;
	start->mark = mark;
	start->generation = mark->shared.generation;
	start->low = mark->low;
	start->revisit_at = mark->revisit_at;
	start->resume = start->now < mark->revisit_at ?
		Max(mark->low, mark->resume) : mark->low;
}

/*
 * Raises the high-water mark, and reads where to begin.  The caller must hold
 * the lock exclusively.
 */
static void
raise_high(OutboxStart *start, const char *destination)
{
	Stripe	   *stripe = &stripes[start->stripe];
	LowMark    *mark = (LowMark *) entries_get(&marks[start->stripe], destination, false);

	Assert(LWLockHeldByMeInMode(lock_of(start->stripe), LW_EXCLUSIVE));
	Assert(mark != NULL);		/* any other may go */
	start->high = Max(start->now, high_of(start->stripe));
	pg_atomic_write_u64(&stripe->high, start->high);
	pg_atomic_write_u64(&stripe->raised_at, start->now);
	start->moves = pg_atomic_read_u64(&stripe->moves);
	if (mark->queue != start->queue)
		clear_mark(&mark->shared);
	mark->queue = start->queue;
	mark->shared.used_at = start->now;
	start->may_raise = true;
	read_mark(start, mark);
	if (start->now < mark->deep_at || start->now - mark->deep_at >= DEEP_EVERY)
	{
		mark->deep_at = start->now;
		start->low = start->resume = DT_NOBEGIN;
	}
}

/* Begins a scan of the queue of a destination. */
void
queue_start_begin(OutboxStart *start, const char *destination, Oid queue)
{
	TimestampTz raised_at;
	int			stripe;

	memset(start, 0, sizeof(*start));
	start->queue = queue;
	start->low = start->resume = DT_NOBEGIN;
	start->now = GetCurrentTimestamp();
	if (stripes == NULL)
		return;
	start->stripe = stripe = stripe_of(destination);

	/* emitters hold it shared: do not stop them for each take */
	raised_at = (TimestampTz) pg_atomic_read_u64(&stripes[stripe].raised_at);
	if (start->now < raised_at || start->now - raised_at >= RAISE_EVERY)
	{
		LWLockAcquire(lock_of(stripe), LW_EXCLUSIVE);
		raise_high(start, destination);
	}
	else
	{
		LWLockAcquire(lock_of(stripe), LW_SHARED);
		read_mark(start, find_mark(stripe, destination));
	}
	LWLockRelease(lock_of(stripe));
}

/*
 * A scan is done.  first_left is the due time of the first entry met that is not
 * gone, NEVER if there was none; with start->may_raise it began at the low-water
 * mark, which is raised.  It stopped at position because it had all it wanted,
 * and the next take may go on there until revisit_at.
 */
void
queue_start_end(const OutboxStart *start, TimestampTz first_left,
				TimestampTz position, TimestampTz revisit_at)
{
	LowMark    *mark = start->mark;

	if (mark == NULL)
		return;
	LWLockAcquire(lock_of(start->stripe), LW_EXCLUSIVE);
	if (mark->shared.generation == start->generation && mark->queue == start->queue)
	{
		if (start->may_raise &&
			pg_atomic_read_u64(&stripes[start->stripe].moves) == start->moves)
			mark->low = Min(Min(first_left, start->high), first_removed);
		mark->resume = position;
		mark->revisit_at = revisit_at;
	}
	LWLockRelease(lock_of(start->stripe));
}

/*
 * What was taken is rolled back: the next take begins at the low-water mark.
 * Raises nothing.
 */
void
queue_start_rewind(const char *destination)
{
	LowMark    *mark;
	int			stripe;

	if (stripes == NULL)
		return;
	stripe = stripe_of(destination);
	LWLockAcquire(lock_of(stripe), LW_EXCLUSIVE);
	mark = find_mark(stripe, destination);
	if (mark)
		mark->revisit_at = DT_NOBEGIN;
	LWLockRelease(lock_of(stripe));
}

static void
queue_start_xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		event != XACT_EVENT_PREPARE)
		return;
	queue_start_wait_end();
	first_removed = NEVER;		/* it is gone for all, or is back */
	for (int i = 0; to_wake != 0; i++, to_wake >>= 1)
	{
		if ((to_wake & 1) == 0 || event != XACT_EVENT_COMMIT)
			continue;
		pg_memory_barrier();
		if (pg_atomic_read_u32(&stripes[i].waiters) > 0)
			ConditionVariableBroadcast(&stripes[i].wake);
	}
}

void
queue_start_init(void)
{
	RegisterXactCallback(queue_start_xact_callback, NULL);
}

/* This transaction has put something into the queue of a destination. */
void
queue_start_wake_at_commit(const char *destination)
{
	if (stripes)
		to_wake |= UINT64CONST(1) << stripe_of(destination);
}

/* From now on no wake-up is missed.  The caller must look once more before it waits. */
void
queue_start_wait_begin(const char *destination)
{
	queue_start_wait_end();
	if (stripes == NULL)
		return;
	waiting = stripe_of(destination);
	pg_atomic_fetch_add_u32(&stripes[waiting].waiters, 1);
	ConditionVariablePrepareToSleep(&stripes[waiting].wake);
}

/* Sleeps until woken, at most that long, and never long: the caller looks itself. */
void
queue_start_wait(int64 microseconds)
{
	static uint32 wait_event = 0;
	uint32		event = compat_wait_event(&wait_event, "IdempotencyTake");
	long		ms = Max(1, Min(microseconds, stripes ? LONGEST_SLEEP : NAP) / 1000);

	if (stripes)
	{
		(void) ConditionVariableTimedSleep(&stripes[waiting].wake, ms, event);
		return;
	}
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Ends waiting.  Also called at the end of each transaction, in case it ended in a wait. */
void
queue_start_wait_end(void)
{
	if (waiting < 0)
		return;
	ConditionVariableCancelSleep();
	pg_atomic_fetch_sub_u32(&stripes[waiting].waiters, 1);
	waiting = -1;
}
