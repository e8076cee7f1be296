/*-------------------------------------------------------------------------
 *
 * frontier.c
 *	  How far the queues are empty, and who waits for events.
 *
 * The frontier
 * ------------
 * A queue is an index by time: taken at one end, filled at the other.  What was
 * delivered leaves dead entries at the taken end, and as long as anybody holds
 * an old snapshot vacuum cannot remove them, so that each take would have to
 * walk over all of them, more each second.  Therefore shared memory holds, for
 * each destination, a time before which everything is gone: takers begin there.
 *
 * That is not a high-water mark: it never passes a row that may still be
 * delivered.  A taker moves it up to the first row he met that is not gone,
 * uncommitted and leased ones included, and never past the ceiling.  Why no row
 * can come to stand before it:
 *
 * - every position is drawn here (frontier_draw): now plus the delay, but not
 *	 before the ceiling of the stripe.  From the draw until the index entry
 *	 stands (frontier_drawn) the caller holds the lock of the stripe shared;
 * - the ceiling is raised to now under the lock held exclusively.  So at that
 *	 instant every position that was drawn lower is in the index, and no lower
 *	 one will ever be drawn, even if the clock is set back;
 * - the way through the index begins after that.  It meets every row before the
 *	 ceiling that is not gone, unless one gets another index entry at its old
 *	 position meanwhile.  Only a lease that does not fit into its page does
 *	 that; it is reported (frontier_moved) after the entry is there and before
 *	 the transaction can commit.  If the count has changed at the end of the way,
 *	 nothing is concluded.  If the report came before the count was read at the
 *	 beginning, so did the entry, and it was met;
 * - gone means deleted by a transaction that has committed, or inserted by one
 *	 that has not: neither comes back.  A row that the own transaction has
 *	 deleted or moved looks gone too, and comes back with a ROLLBACK.  So every
 *	 session notes the first position it has removed anything from in its
 *	 transaction (frontier_removed), before it does, and does not pass it.
 *
 * Where takes go on
 * -----------------
 * Leased rows are not gone, and one relay that is slow keeps the frontier where
 * its first event stands.  So that not each take walks from there over what
 * others have in hand and what is gone behind it, the one who took all he wanted
 * leaves a note where he stopped, and the next one begins there.  The note says
 * nothing about what is before it: whoever does not find all he wants begins
 * again at the frontier, and so does everybody once a second and when a lease
 * ends (revisit_at).
 *
 * Who writes rows past us (a data-only restore, replication) may put them
 * behind the frontier.  So it is only a hint: every few minutes one taker begins
 * at the very beginning and puts it back if he finds something.  A crash makes
 * shared memory anew, and with it the frontier.
 *
 * Waiting
 * -------
 * A transaction that has emitted wakes the takers of the stripe after it is
 * seen as committed.  A wake-up can be missed: by COMMIT PREPARED, which is not
 * ours to see, or where the library is not preloaded.  So nobody sleeps long
 * without looking himself.
 *
 * A stripe is shared by all destinations with the same hash: they share the
 * ceiling, which is only time, and wake each other for nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "outbox.h"

/* Destinations of one stripe that have a frontier; the others go without. */
#define HINTS_PER_STRIPE 8

/* How often one taker begins at the very beginning, in microseconds. */
#define DEEP_EVERY INT64CONST(300000000)

/* How often the ceiling is raised at most: it takes a lock exclusively. */
#define RAISE_EVERY INT64CONST(20000)

/* How long to sleep before looking oneself, in microseconds. */
#define LONGEST_SLEEP INT64CONST(1000000)
#define SHORTEST_NAP INT64CONST(5000)
#define LONGEST_NAP INT64CONST(250000)

typedef struct Hint
{
	Oid			database;		/* InvalidOid = free */
	Oid			queue;			/* the table: another one after DROP EXTENSION */
	char		destination[IDEM_TEXT_MAX * 4 + 1];
	TimestampTz start;
	TimestampTz resume;			/* where the last take stopped */
	TimestampTz revisit_at;		/* until when that is good for */
	TimestampTz deep_at;		/* last begun at the very beginning */
	TimestampTz used_at;
} Hint;

/* The lock of a stripe protects its hints; of the rest see above. */
typedef struct Stripe
{
	pg_atomic_uint64 ceiling;
	pg_atomic_uint64 moves;
	pg_atomic_uint64 raised_at; /* when a taker last raised the ceiling */
	pg_atomic_uint32 waiters;
	ConditionVariable wake;
	Hint		hints[HINTS_PER_STRIPE];
} Stripe;

static Stripe *stripes = NULL;

/* Stripes to wake when this transaction commits. */
static uint64 to_wake = 0;

/* The first position this transaction has removed a row from, by stripe. */
static TimestampTz removed[OUTBOX_STRIPES];
static bool any_removed = true; /* or the array is not made ready yet */

/* The stripe this session waits for; -1 = none. */
static int	waiting = -1;
static int64 nap = SHORTEST_NAP;

StaticAssertDecl(OUTBOX_STRIPES <= 64, "to_wake has a bit for each stripe");

Size
frontier_size(void)
{
	return mul_size(OUTBOX_STRIPES, sizeof(Stripe));
}

/*
 * Shared memory is there; make it ready unless somebody has.
 */
void
frontier_attach(void *memory, bool found)
{
	stripes = memory;
	if (found)
		return;
	memset(stripes, 0, frontier_size());
	for (int i = 0; i < OUTBOX_STRIPES; i++)
	{
		pg_atomic_init_u64(&stripes[i].ceiling, 0);
		pg_atomic_init_u64(&stripes[i].moves, 0);
		pg_atomic_init_u64(&stripes[i].raised_at, 0);
		pg_atomic_init_u32(&stripes[i].waiters, 0);
		ConditionVariableInit(&stripes[i].wake);
	}
}

/*
 * The stripe of a destination of this database.
 */
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

/*
 * Times are stored as they are, and grow from 2000 on: never negative.
 */
static TimestampTz
ceiling_of(int stripe)
{
	return (TimestampTz) pg_atomic_read_u64(&stripes[stripe].ceiling);
}

/*----
 * Drawing positions.
 *----
 */

/*
 * Draw the position of a row that is due after a delay in microseconds.  The
 * caller writes it, index entries included, and calls frontier_drawn(); he
 * waits for no other transaction in between.
 */
TimestampTz
frontier_draw(const char *destination, int64 delay)
{
	TimestampTz now = GetCurrentTimestamp();

	if (stripes)
	{
		int			stripe = stripe_of(destination);

		LWLockAcquire(lock_of(stripe), LW_SHARED);
		now = Max(now, ceiling_of(stripe));
	}
	return time_after(now, delay);
}

void
frontier_drawn(const char *destination)
{
	if (stripes)
		LWLockRelease(lock_of(stripe_of(destination)));
}

/*
 * A row has got another index entry at its old position.
 */
void
frontier_moved(const char *destination)
{
	if (stripes)
		pg_atomic_fetch_add_u64(&stripes[stripe_of(destination)].moves, 1);
}

/*
 * This transaction is about to take a row away from its position.  A ROLLBACK
 * TO SAVEPOINT need not take that back: what is noted only holds the frontier.
 */
void
frontier_removed(const char *destination, TimestampTz position)
{
	int			stripe;

	if (stripes == NULL)
		return;
	stripe = stripe_of(destination);
	removed[stripe] = Min(removed[stripe], position);
	any_removed = true;
}

/*
 * What this transaction has removed is gone for all, or is back.
 */
static void
forget_removed(void)
{
	if (!any_removed)
		return;
	for (int i = 0; i < OUTBOX_STRIPES; i++)
		removed[i] = NEVER;
	any_removed = false;
}

/*----
 * The frontier.
 *----
 */

/*
 * The hint of a destination, made if there is room or an old one nobody has
 * used for longest; -1 if its name is too long.  The caller holds the lock
 * exclusively.  A hint that starts afresh starts at the very beginning.
 */
static int
hint_of(Stripe *stripe, const char *destination, Oid queue, bool make)
{
	int			oldest = 0;
	Hint	   *hint;

	for (int i = 0; i < HINTS_PER_STRIPE; i++)
	{
		hint = &stripe->hints[i];
		if (hint->database == MyDatabaseId && hint->queue == queue &&
			strcmp(hint->destination, destination) == 0)
			return i;
		if (hint->used_at < stripe->hints[oldest].used_at)
			oldest = i;
	}
	if (!make || strlen(destination) >= sizeof(hint->destination))
		return -1;
	hint = &stripe->hints[oldest];
	hint->database = MyDatabaseId;
	hint->queue = queue;
	strcpy(hint->destination, destination);
	hint->start = hint->resume = DT_NOBEGIN;
	hint->revisit_at = DT_NOBEGIN;
	hint->deep_at = GetCurrentTimestamp();
	return oldest;
}

/*
 * See where to begin.  The caller holds the lock.
 */
static void
read_hint(Frontier *frontier, const Hint *hint)
{
	frontier->start = hint->start;
	frontier->revisit_at = hint->revisit_at;
	frontier->resume = frontier->now < hint->revisit_at ?
		Max(hint->start, hint->resume) : hint->start;
}

/*
 * Raise the ceiling, and see where to begin.  The caller holds the lock
 * exclusively.
 */
static void
raise_ceiling(Frontier *frontier, const char *destination)
{
	Stripe	   *stripe = &stripes[frontier->stripe];
	Hint	   *hint;

	frontier->now = Max(frontier->now, ceiling_of(frontier->stripe));
	frontier->ceiling = frontier->now;
	pg_atomic_write_u64(&stripe->ceiling, frontier->ceiling);
	pg_atomic_write_u64(&stripe->raised_at, GetCurrentTimestamp());
	frontier->moves = pg_atomic_read_u64(&stripe->moves);
	frontier->hint = hint_of(stripe, destination, frontier->queue, true);
	if (frontier->hint < 0)
		return;
	hint = &stripe->hints[frontier->hint];
	hint->used_at = frontier->now;
	if (frontier->now - hint->deep_at >= DEEP_EVERY)
		hint->deep_at = frontier->now;
	else
		read_hint(frontier, hint);
	frontier->may_advance = true;
}

/*
 * Begin a way through the queue of a destination.
 */
void
frontier_begin(Frontier *frontier, const char *destination, Oid queue)
{
	int			stripe = stripes ? stripe_of(destination) : -1;
	TimestampTz raised_at;

	memset(frontier, 0, sizeof(*frontier));
	frontier->stripe = stripe;
	frontier->queue = queue;
	frontier->hint = -1;
	frontier->start = frontier->resume = DT_NOBEGIN;
	frontier->now = GetCurrentTimestamp();
	if (stripe < 0)
		return;

	/* who emits holds it shared: do not stop them for each take */
	raised_at = (TimestampTz) pg_atomic_read_u64(&stripes[stripe].raised_at);
	if (frontier->now < raised_at || frontier->now - raised_at >= RAISE_EVERY)
	{
		LWLockAcquire(lock_of(stripe), LW_EXCLUSIVE);
		raise_ceiling(frontier, destination);
	}
	else
	{
		LWLockAcquire(lock_of(stripe), LW_SHARED);
		frontier->now = Max(frontier->now, ceiling_of(stripe));
		frontier->hint = hint_of(&stripes[stripe], destination, queue, false);
		if (frontier->hint >= 0)
			read_hint(frontier, &stripes[stripe].hints[frontier->hint]);
	}
	LWLockRelease(lock_of(stripe));
}

/*
 * The hint a way began with, if it is still of that destination; NULL
 * otherwise.  The caller holds the lock exclusively.
 */
static Hint *
same_hint(const Frontier *frontier, const char *destination)
{
	Hint	   *hint = &stripes[frontier->stripe].hints[frontier->hint];

	return hint->database == MyDatabaseId && hint->queue == frontier->queue &&
		strcmp(hint->destination, destination) == 0 ? hint : NULL;
}

/*
 * A way from frontier->start is done: first_left is the position of the first
 * row that is not gone, NEVER if there was none up to now.
 */
void
frontier_advance(const Frontier *frontier, const char *destination,
				 TimestampTz first_left)
{
	Hint	   *hint;

	if (!frontier->may_advance)
		return;
	pg_memory_barrier();
	if (pg_atomic_read_u64(&stripes[frontier->stripe].moves) != frontier->moves)
		return;
	LWLockAcquire(lock_of(frontier->stripe), LW_EXCLUSIVE);
	hint = same_hint(frontier, destination);
	if (hint)
		hint->start = Min(Min(first_left, frontier->ceiling), removed[frontier->stripe]);
	LWLockRelease(lock_of(frontier->stripe));
}

/*
 * The caller stopped at a position because he has all he wants, and the next
 * take may go on there until revisit_at.
 */
void
frontier_stopped(const Frontier *frontier, const char *destination,
				 TimestampTz position, TimestampTz revisit_at)
{
	Hint	   *hint;

	if (frontier->hint < 0)
		return;
	LWLockAcquire(lock_of(frontier->stripe), LW_EXCLUSIVE);
	hint = same_hint(frontier, destination);
	if (hint)
	{
		hint->resume = position;
		hint->revisit_at = revisit_at;
	}
	LWLockRelease(lock_of(frontier->stripe));
}

/*----
 * Waiting for events.
 *----
 */

static void
frontier_xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		event != XACT_EVENT_PREPARE)
		return;
	frontier_wait_end();
	forget_removed();
	for (int i = 0; to_wake != 0; i++, to_wake >>= 1)
	{
		if ((to_wake & 1) == 0 || event != XACT_EVENT_COMMIT)
			continue;
		pg_memory_barrier();
		if (pg_atomic_read_u32(&stripes[i].waiters) > 0)
			ConditionVariableBroadcast(&stripes[i].wake);
	}
}

/*
 * Register the callback.  Once, at load.
 */
void
frontier_init(void)
{
	forget_removed();
	RegisterXactCallback(frontier_xact_callback, NULL);
}

/*
 * This transaction has put something into the queue of a destination.
 */
void
frontier_wake_at_commit(const char *destination)
{
	if (stripes)
		to_wake |= UINT64CONST(1) << stripe_of(destination);
}

/*
 * From now on a wake-up is not missed.  The caller looks once more before he
 * waits.
 */
void
frontier_wait_begin(const char *destination)
{
	frontier_wait_end();
	nap = SHORTEST_NAP;
	if (stripes == NULL)
		return;
	waiting = stripe_of(destination);
	pg_atomic_fetch_add_u32(&stripes[waiting].waiters, 1);
	ConditionVariablePrepareToSleep(&stripes[waiting].wake);
}

/*
 * Sleep until woken, at most that long, and not long in any case: then look.
 */
void
frontier_wait(int64 microseconds)
{
	static uint32 wait_event = 0;
	uint32		event = compat_wait_event(&wait_event, "IdempotencyTake");
	long		ms;

	if (stripes)
	{
		ms = Max(1, Min(microseconds, LONGEST_SLEEP) / 1000);
		(void) ConditionVariableTimedSleep(&stripes[waiting].wake, ms, event);
		return;
	}
	ms = Max(1, Min(microseconds, nap) / 1000);
	nap = Min(nap * 2, LONGEST_NAP);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * No longer waiting.  Also called at the end of each transaction, in case it
 * ended while waiting.
 */
void
frontier_wait_end(void)
{
	if (waiting < 0)
		return;
	ConditionVariableCancelSleep();
	pg_atomic_fetch_sub_u32(&stripes[waiting].waiters, 1);
	waiting = -1;
}
