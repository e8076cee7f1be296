/*
 * limiter.c
 *	  How a destination may be called right now, for all sessions together:
 *	  circuit breaker, calls in flight, retry budget.
 *
 * Shared memory has an entry for each destination of each database that was asked
 * about, if the library was preloaded; without, C callers are let through,
 * idem_permit() and idem_report() raise an error.  It belongs to no transaction:
 * what was let go has gone, whether the transaction commits or not.
 *
 * LOCK_LIMITER protects which entry is whose, and is held shared while one is used.
 * What is in it is protected by its spinlock, under which nothing waits, allocates
 * or raises.
 *
 * An entry may be given away (entries.c) at rest: breaker closed, nothing in
 * flight.  A destination that gets none goes without limits, which is counted,
 * except that max_in_flight 0 needs no entry: names made up by a caller must
 * neither fill memory, nor stop calls, nor switch off the limits of others.
 *
 * A call in flight takes a slot until it is reported by any session, its own
 * session ends, or PERMIT_LIFE is over.  Each backend counts the slots it holds, an
 * entry the reports by other backends.  On exit a backend releases what it holds
 * less those: each slot is released exactly once.
 *
 * A leased event takes a slot as long as its lease, whichever backend took it: the
 * session may end while another process sends it, and a process may die whose
 * session stays.  The slot is released when the event is answered for or its take is
 * undone, or lapses with the lease (window.c).
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/spin.h"
#include "utils/builtins.h"

#include "calls/calls.h"

#define MAX_ENTRIES 256

/* How long a call that is not reported counts as being under way. */
#define PERMIT_LIFE (INT64CONST(300) * USECS_PER_SEC)

typedef struct CallCounts
{
	int64		decided[CALL_GIVE_UP + 1];
	int64		succeeded;
	int64		failed;
	int64		retries;
	int64		opened;			/* the breaker */
} CallCounts;

typedef struct Entry
{
	SharedEntry shared;			/* used_at by clock_monotonic() */
	slock_t		lock;			/* protects the rest, and used_at */
	Breaker		breaker;
	Budget		budget;
	Window		leased;			/* slots of leased events */
	Window		in_flight;		/* slots of other calls */
	int64		foreign;		/* of those, reported by other sessions */
	CallCounts	counts;
} Entry;

/* Slots in flight that this session has taken and not released, by entry. */
typedef struct Held
{
	uint32		generation;		/* of the entry then */
	int64		calls;
	int64		taken_at;		/* the last one */
} Held;

/* Calls there was no entry for, of all databases; behind the last entry. */
static pg_atomic_uint64 *unlimited = NULL;
static Held held[MAX_ENTRIES];

static int64
calls_in_flight(Entry *entry, int64 now)
{
	return window_sum(&entry->in_flight, PERMIT_LIFE, now) +
		window_sum(&entry->leased, PERMIT_LIFE, now);
}

/* True if an entry holds nothing that another destination would miss. */
static bool
is_at_rest(const SharedEntry *shared)
{
	Entry	   *entry = (Entry *) shared;

	Assert(LWLockHeldByMeInMode(shared_lock(LOCK_LIMITER), LW_EXCLUSIVE));
	return entry->breaker.state == BREAKER_CLOSED &&
		calls_in_flight(entry, clock_monotonic()) == 0;
}

static void
clear_entry(SharedEntry *shared)
{
	Entry	   *entry = (Entry *) shared;

	Assert(LWLockHeldByMeInMode(shared_lock(LOCK_LIMITER), LW_EXCLUSIVE));
	memset(&entry->breaker, 0, sizeof(Entry) - offsetof(Entry, breaker));
}

EntryTable	limiter_table = {LOCK_LIMITER, sizeof(Entry), is_at_rest, clear_entry, 0, NULL};

Size
limiter_size(void)
{
	return MAX_ENTRIES * sizeof(Entry) + sizeof(pg_atomic_uint64);
}

static Entry *
entry_at(int i)
{
	return (Entry *) entries_at(&limiter_table, i);
}

/* Attaches to shared memory; the first to do so makes it ready. */
void
limiter_attach(void *memory, bool found)
{
	entries_attach(&limiter_table, memory, MAX_ENTRIES);
	unlimited = (pg_atomic_uint64 *) entries_at(&limiter_table, MAX_ENTRIES);
	if (found)
		return;
	pg_atomic_init_u64(unlimited, 0);
	for (int i = 0; i < MAX_ENTRIES; i++)
		SpinLockInit(&entry_at(i)->lock);
}

/*
 * Returns the entry of a destination, made if need be, with the table's lock
 * and its own held until entry_release().  NULL, and nothing held, if there is none.
 */
static Entry *
entry_acquire(const Destination *destination, int64 now)
{
	Entry	   *entry;

	if (limiter_table.entries == NULL)
		return NULL;
	entry = (Entry *) entries_lock(&limiter_table, destination->name, destination->defined);
	if (entry == NULL)
	{
		pg_atomic_fetch_add_u64(unlimited, 1);
		return NULL;
	}
	SpinLockAcquire(&entry->lock);
	entry->shared.used_at = now;
	return entry;
}

static void
entry_release(Entry *entry)
{
	SpinLockRelease(&entry->lock);
	entries_unlock(&limiter_table);
}

/* Releases what this session holds.  Called when it ends. */
static void
release_all_slots(int code, Datum arg)
{
	int64		now = clock_monotonic();

	LWLockAcquire(shared_lock(LOCK_LIMITER), LW_SHARED);
	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		Entry	   *entry = entry_at(i);
		int64		by_others;

		if (held[i].calls == 0 || held[i].generation != entry->shared.generation ||
			now - held[i].taken_at >= PERMIT_LIFE)
			continue;
		SpinLockAcquire(&entry->lock);
		by_others = Min(entry->foreign, held[i].calls);
		entry->foreign -= by_others;
		(void) window_take(&entry->in_flight, PERMIT_LIFE, now, now, held[i].calls - by_others);
		SpinLockRelease(&entry->lock);
		held[i].calls = 0;
	}
	LWLockRelease(shared_lock(LOCK_LIMITER));
}

/*
 * Has this session release its slots when it ends.  Must be called before a
 * lock is taken: it may raise.
 */
static void
prepare_slots(void)
{
	static bool prepared = false;

	if (prepared || limiter_table.entries == NULL)
		return;
	before_shmem_exit(release_all_slots, (Datum) 0);
	prepared = true;
}

/* Returns what this session holds of an entry.  The caller must hold the entry. */
static Held *
held_of(const Entry *entry, int64 now)
{
	Held	   *mine = &held[entry - entry_at(0)];

	Assert(LWLockHeldByMe(shared_lock(LOCK_LIMITER)));
	if (mine->generation != entry->shared.generation || now - mine->taken_at >= PERMIT_LIFE)
	{
		mine->generation = entry->shared.generation;
		mine->calls = 0;
	}
	return mine;
}

/* Takes slots for calls of this session, or until their leases end if that is given. */
static void
take_slots(Entry *entry, int64 now, int64 until, int calls)
{
	Held	   *mine;

	if (until > 0)
	{
		window_add(&entry->leased, PERMIT_LIFE, now, until, calls);
		return;
	}
	mine = held_of(entry, now);
	window_add(&entry->in_flight, PERMIT_LIFE, now, now + PERMIT_LIFE, calls);
	mine->calls += calls;
	mine->taken_at = now;
}

static void
release_slots(Entry *entry, int64 now, int64 until, int calls)
{
	Held	   *mine;
	int64		freed;
	int64		own;

	if (until > 0)
	{
		(void) window_take(&entry->leased, PERMIT_LIFE, now, until, calls);
		return;
	}
	mine = held_of(entry, now);
	freed = window_take(&entry->in_flight, PERMIT_LIFE, now, now, calls);
	own = Min(mine->calls, freed);
	mine->calls -= own;
	entry->foreign += freed - own;
}

/*
 * Reserves up to that many calls, of which up to that many may be retries, for
 * as long as grant->until says.  Returns the entry, still held.  Without one all
 * are granted, but none where max_in_flight is 0, for which no entry is needed.
 */
static Entry *
reserve(const Destination *destination, int64 now, int wanted, int retries,
		CallGrant *grant)
{
	Entry	   *entry = entry_acquire(destination, now);

	grant->counted = entry != NULL;
	if (entry == NULL)
	{
		grant->calls = destination->max_in_flight == 0 ? 0 : wanted;
		grant->retries = Min(grant->calls, retries);
		return NULL;
	}
	if (destination->max_in_flight != NO_LIMIT)
		wanted = Max(Min(wanted, destination->max_in_flight - calls_in_flight(entry, now)), 0);
	grant->calls = wanted == 0 ? 0 :
		breaker_admit(&entry->breaker, destination, now, wanted, &grant->retry_after);
	grant->probe = grant->calls > 0 && entry->breaker.state == BREAKER_HALF_OPEN;
	grant->retries = budget_take(&entry->budget, destination, now,
								 Min(grant->calls, retries), grant->probe);
	take_slots(entry, now, grant->until, grant->calls);
	if (grant->calls == 0)
		entry->counts.decided[CALL_WAIT]++;
	return entry;
}

/* Notes which calls are made of a grant; gives back the rest.  The caller must hold entry. */
static void
use(Entry *entry, const Destination *destination, int64 now, const CallGrant *grant,
	int first_tries, int retries)
{
	int			unused = grant->calls - first_tries - retries;

	Assert(LWLockHeldByMe(shared_lock(LOCK_LIMITER)));
	Assert(unused >= 0 && retries <= grant->retries);
	release_slots(entry, now, grant->until, unused);
	if (unused > 0 && grant->probe)
		breaker_withdraw_probe(&entry->breaker);
	budget_give_back(&entry->budget, destination, now, grant->retries - retries);
	budget_first_tries(&entry->budget, destination, now, first_tries);
	entry->counts.decided[CALL_GO] += first_tries + retries;
	entry->counts.retries += retries;
}

/*
 * Returns in how many microseconds to ask again: not before at_least, if that
 * is known and does not depend on when others are done, and spread, so that not
 * all ask at once.
 */
static int64
spread(const Destination *destination, int64 at_least)
{
	double		some = pg_prng_double(&pg_global_prng_state);

	if (at_least > 0)
		return at_least + 1 + (int64) (some * (at_least / 10));
	return Max((int64) ((0.5 + some) * destination->base), USECS_PER_SEC / 1000);
}

/*
 * Asks for one call.  On CALL_WAIT *retry_after is in how many microseconds to
 * ask again.
 */
CallDecision
limiter_ask(const Destination *destination, bool is_retry, int64 *retry_after)
{
	int64		now = clock_monotonic();
	int			retries = is_retry ? 1 : 0;
	CallGrant	grant = {0};
	CallDecision decision = CALL_GO;
	Entry	   *entry;

	prepare_slots();
	entry = reserve(destination, now, 1, retries, &grant);
	if (grant.calls == 0)
		decision = CALL_WAIT;
	else if (grant.retries < retries)
		decision = CALL_GIVE_UP;
	if (entry)
	{
		use(entry, destination, now, &grant, decision == CALL_GO && !is_retry,
			decision == CALL_GO && is_retry);
		if (decision == CALL_GIVE_UP)
			entry->counts.decided[decision]++;
		entry_release(entry);
	}
	if (decision == CALL_WAIT)
		*retry_after = spread(destination, grant.retry_after);
	return decision;
}

/*
 * Asks for up to that many calls, at least one, of which any number may be
 * retries, under a lease in microseconds, and reserves what is granted until
 * limiter_use().
 */
void
limiter_reserve(const Destination *destination, int wanted, int64 lease,
				CallGrant *grant)
{
	int64		now = clock_monotonic();
	Entry	   *entry;

	*grant = (CallGrant)
	{
		.until = now + lease
	};
	entry = reserve(destination, now, wanted, wanted, grant);
	if (entry)
		entry_release(entry);
	if (grant->calls == 0)
		grant->retry_after = spread(destination, grant->retry_after);
}

/* Says how many calls of which kind are made of what limiter_reserve() granted. */
void
limiter_use(const Destination *destination, const CallGrant *grant,
			int first_tries, int retries)
{
	int64		now = clock_monotonic();
	Entry	   *entry;

	if (!grant->counted || grant->calls == 0)
		return;
	entry = entry_acquire(destination, now);
	if (entry == NULL)
		return;
	use(entry, destination, now, grant, first_tries, retries);
	entry_release(entry);
}

/*
 * Takes in calls that have ended.  Those that were not made after all say
 * nothing about the destination and give back all they took: slot, token or what
 * they laid in, and the probe.  What was decided stays counted: counts never go
 * back.  Calls under leases may be ended while a transaction is aborted: raises
 * nothing then.
 */
void
limiter_end(const Destination *destination, const CallsEnded *ended)
{
	int64		now = clock_monotonic();
	int			not_made = ended->first_tries + ended->retries;
	int			calls = ended->succeeded + ended->failed + not_made;
	Entry	   *entry;

	if (ended->until == 0)
		prepare_slots();
	entry = entry_acquire(destination, now);
	if (entry == NULL)
		return;
	release_slots(entry, now, ended->until, calls);
	entry->counts.succeeded += ended->succeeded;
	entry->counts.failed += ended->failed;
	if (breaker_report(&entry->breaker, destination, now, ended->succeeded, ended->failed))
		entry->counts.opened++;
	if (not_made > 0 && ended->probe)
		breaker_withdraw_probe(&entry->breaker);
	budget_give_back(&entry->budget, destination, now, ended->retries);
	budget_first_tries(&entry->budget, destination, now, -ended->first_tries);
	entry_release(entry);
}

/* Puts one row of idem_stat_calls(), from a copy of an entry. */
static void
put_limits(FunctionCallInfo fcinfo, Entry *entry)
{
	static const char *const breaker_labels[] = {
		[BREAKER_CLOSED] = "closed",
		[BREAKER_OPEN] = "open",
		[BREAKER_HALF_OPEN] = "half-open",
	};
	const Destination *destination = destination_get(entry->shared.name);
	int64		window = destination->breaker_window;
	int64		now = clock_monotonic();
	CallCounts *counts = &entry->counts;
	RowValues	row = {0};

	row_add(&row, true, CStringGetTextDatum(destination->name));
	row_add(&row, true, CStringGetTextDatum(breaker_labels[breaker_state(&entry->breaker, destination, now)]));
	row_add(&row, true, Int64GetDatum(window_sum(&entry->breaker.succeeded, window, now)));
	row_add(&row, true, Int64GetDatum(window_sum(&entry->breaker.failed, window, now)));
	row_add(&row, true, Int64GetDatum(calls_in_flight(entry, now)));
	row_add(&row, destination->retry_budget != NO_LIMIT,
			NumericGetDatum(int64_div_fast_to_numeric(Max(budget_left(&entry->budget, destination, now), 0), 6)));
	for (int i = 0; i < lengthof(counts->decided); i++)
		row_add(&row, true, Int64GetDatum(counts->decided[i]));
	row_add(&row, true, Int64GetDatum(counts->succeeded));
	row_add(&row, true, Int64GetDatum(counts->failed));
	row_add(&row, true, Int64GetDatum(counts->retries));
	row_add(&row, true, Int64GetDatum(counts->opened));
	row_put(fcinfo, &row);
}

/*
 * idem_stat_calls(): a row for each destination of this database that has an
 * entry, and one for the calls of all databases there was none for.
 */
SQL_FUNCTION(idem_stat_calls)
{
	RowValues	without = {0};
	int64		let_go;
	Entry	   *copy;

	InitMaterializedSRF(fcinfo, 0);
	if (!shared_available())
		return (Datum) 0;
	copy = (Entry *) entries_copy(&limiter_table);
	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		if (copy[i].shared.database == MyDatabaseId)
			put_limits(fcinfo, &copy[i]);
	}
	let_go = (int64) pg_atomic_read_u64(unlimited);
	for (int i = 0; i <= 6; i++)
		row_add(&without, i == 6, Int64GetDatum(let_go));
	if (let_go > 0)
		row_put(fcinfo, &without);
	return (Datum) 0;
}

/*
 * Lets the counts of this database, and of the calls without an entry, start
 * again from zero.  The limits themselves go on.
 */
void
limiter_count_again(void)
{
	LWLockAcquire(shared_lock(LOCK_LIMITER), LW_EXCLUSIVE);
	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		if (entry_at(i)->shared.database == MyDatabaseId)
			memset(&entry_at(i)->counts, 0, sizeof(CallCounts));
	}
	pg_atomic_write_u64(unlimited, 0);
	LWLockRelease(shared_lock(LOCK_LIMITER));
}
