/*-------------------------------------------------------------------------
 *
 * discipline.c
 *	  How a destination may be called right now, for all sessions together:
 *	  circuit breaker, calls in flight, retry budget.
 *
 * Shared memory has an entry for each destination of each database that was
 * asked about.  It is there only if the library was preloaded; without, C
 * callers are let through, idem_permit() and idem_report() raise an error.
 * It belongs to no transaction: what was let go has gone, whether the
 * transaction commits or not.  A restart of the server forgets it.
 *
 * LOCK_DISCIPLINE protects which entry is whose.  It is held shared while an
 * entry is used, so that the entry stays what it is; what is in it is
 * protected by its spinlock.  Under that nothing waits, allocates or raises.
 *
 * When there is no free entry, the one at rest (breaker closed, nothing in
 * flight) that was not used for the longest time is given to another
 * destination.  If none is at rest either, a destination goes without
 * discipline, which is counted: names made up by a caller must neither fill
 * memory nor stop calls.
 *
 * A call in flight takes a place until it is reported, by whatever session,
 * its session ends, or PERMIT_LIFE is over.  Each session counts the places it
 * has taken and not given back itself; an entry counts the reports that came
 * from others.  When a session ends it gives back what it still has but for as
 * many as others have reported: so a place is given back once, by whom it
 * may be.
 *
 * An event that is leased (discipline_reserve) takes one as long as its lease
 * does, whoever took it: the session may end while another process sends it,
 * and a process may die whose session stays.  It is given back when the event
 * is acknowledged or given back, or was taken in vain (taken.c); or lapses with
 * the lease (leases.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

#include "background.h"
#include "compat.h"
#include "discipline.h"
#include "settings.h"

#define MAX_ENTRIES 256

typedef struct Entry
{
	/* protected by LOCK_DISCIPLINE */
	Oid			database;		/* InvalidOid = free */
	uint32		hash;			/* of the name */
	uint32		generation;		/* how often it was given away */
	char		name[IDEM_TEXT_MAX * 2 + 1];

	slock_t		lock;			/* protects the rest */
	int64		used_at;
	Breaker		breaker;
	Budget		budget;
	Leases		leased;			/* places of leased events */
	Window		in_flight;		/* places of other calls */
	int64		foreign;		/* of those, reported by others than took them */
	CallCounts	counts;
} Entry;

typedef struct EntryTable
{
	pg_atomic_uint64 undisciplined; /* calls there was no entry for */
	Entry		entries[MAX_ENTRIES];
} EntryTable;

/* Places in flight that this session has taken and not given back. */
typedef struct Held
{
	uint32		generation;		/* of the entry then */
	int64		calls;
	int64		taken_at;		/* the last one */
} Held;

static EntryTable *table = NULL;
static Held *held = NULL;		/* by number of the entry */

Size
discipline_size(void)
{
	return sizeof(EntryTable);
}

/*
 * Shared memory is there; make it ready unless somebody has.
 */
void
discipline_attach(void *memory, bool found)
{
	table = memory;
	if (found)
		return;
	memset(table, 0, sizeof(*table));
	pg_atomic_init_u64(&table->undisciplined, 0);
	for (int i = 0; i < MAX_ENTRIES; i++)
		SpinLockInit(&table->entries[i].lock);
}

/*----
 * Which entry is whose.
 *----
 */

static uint32
hash_of(const char *name)
{
	return hash_bytes((const unsigned char *) name, strlen(name));
}

/*
 * The entry of a destination of this database; NULL if it has none.  The
 * caller holds LOCK_DISCIPLINE.
 */
static Entry *
find(const char *name, uint32 hash)
{
	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		Entry	   *entry = &table->entries[(hash + i) % MAX_ENTRIES];

		if (entry->hash == hash && entry->database == MyDatabaseId &&
			strcmp(entry->name, name) == 0)
			return entry;
	}
	return NULL;
}

/*
 * Calls in flight.
 */
static int64
in_flight(Entry *entry, int64 now)
{
	return window_sum(&entry->in_flight, PERMIT_LIFE, now) +
		leases_sum(&entry->leased, now);
}

/*
 * May the entry be given to another destination?  The caller holds
 * LOCK_DISCIPLINE exclusively, so nobody uses it.
 */
static bool
is_at_rest(Entry *entry, int64 now)
{
	return entry->breaker.state == BREAKER_CLOSED && in_flight(entry, now) == 0;
}

/*
 * A free entry, else the one at rest that was not used for the longest time;
 * NULL if there is none.  The caller holds LOCK_DISCIPLINE exclusively.
 */
static Entry *
choose(uint32 hash)
{
	int64		now = window_clock();
	Entry	   *chosen = NULL;

	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		Entry	   *entry = &table->entries[(hash + i) % MAX_ENTRIES];

		if (!OidIsValid(entry->database))
			return entry;
		if (is_at_rest(entry, now) &&
			(chosen == NULL || entry->used_at < chosen->used_at))
			chosen = entry;
	}
	return chosen;
}

/*
 * Give a destination of this database an entry; NULL if there is none to give.
 * The caller holds LOCK_DISCIPLINE exclusively.
 */
static Entry *
make(const char *name, uint32 hash)
{
	Entry	   *chosen = choose(hash);

	if (chosen == NULL)
		return NULL;
	memset(&chosen->breaker, 0, sizeof(chosen->breaker));
	memset(&chosen->budget, 0, sizeof(chosen->budget));
	memset(&chosen->leased, 0, sizeof(chosen->leased));
	memset(&chosen->in_flight, 0, sizeof(chosen->in_flight));
	memset(&chosen->counts, 0, sizeof(chosen->counts));
	chosen->foreign = 0;
	chosen->generation++;
	chosen->hash = hash;
	strlcpy(chosen->name, name, sizeof(chosen->name));
	chosen->database = MyDatabaseId;
	return chosen;
}

/*
 * Get hold of the entry of a destination, made if need be, with
 * LOCK_DISCIPLINE and its own lock held until release().  NULL, and nothing
 * held, if there is none.
 */
static Entry *
acquire(const Destination *destination, int64 now)
{
	const char *name = destination->name;
	uint32		hash = hash_of(name);
	Entry	   *entry = NULL;

	if (table == NULL)
		return NULL;
	if (strlen(name) < sizeof(entry->name))
	{
		LWLockAcquire(shared_lock(LOCK_DISCIPLINE), LW_SHARED);
		entry = find(name, hash);
		if (entry == NULL)
		{
			LWLockRelease(shared_lock(LOCK_DISCIPLINE));
			LWLockAcquire(shared_lock(LOCK_DISCIPLINE), LW_EXCLUSIVE);
			entry = find(name, hash);
			if (entry == NULL)
				entry = make(name, hash);
		}
		if (entry == NULL)
			LWLockRelease(shared_lock(LOCK_DISCIPLINE));
	}
	if (entry == NULL)
	{
		pg_atomic_fetch_add_u64(&table->undisciplined, 1);
		return NULL;
	}
	SpinLockAcquire(&entry->lock);
	entry->used_at = now;
	return entry;
}

static void
release(Entry *entry)
{
	SpinLockRelease(&entry->lock);
	LWLockRelease(shared_lock(LOCK_DISCIPLINE));
}

/*
 * The databases that have entries, as a list of OIDs.
 */
List *
discipline_databases(void)
{
	List	   *databases = NIL;

	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		Oid			database = table->entries[i].database;

		if (OidIsValid(database))
			databases = list_append_unique_oid(databases, database);
	}
	return databases;
}

/*
 * Take back the entries of databases that are gone.
 */
void
discipline_forget(const List *databases)
{
	LWLockAcquire(shared_lock(LOCK_DISCIPLINE), LW_EXCLUSIVE);
	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		if (list_member_oid(databases, table->entries[i].database))
			table->entries[i].database = InvalidOid;
	}
	LWLockRelease(shared_lock(LOCK_DISCIPLINE));
}

/*----
 * Places in flight.
 *----
 */

/*
 * Give back what this session holds.  Called when it ends.
 */
static void
give_back_all(int code, Datum arg)
{
	int64		now = window_clock();

	LWLockAcquire(shared_lock(LOCK_DISCIPLINE), LW_SHARED);
	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		Entry	   *entry = &table->entries[i];
		int64		by_others;

		if (held[i].calls == 0 || held[i].generation != entry->generation ||
			now - held[i].taken_at >= PERMIT_LIFE)
			continue;
		SpinLockAcquire(&entry->lock);
		by_others = Min(entry->foreign, held[i].calls);
		entry->foreign -= by_others;
		window_take(&entry->in_flight, PERMIT_LIFE, now, held[i].calls - by_others);
		SpinLockRelease(&entry->lock);
		held[i].calls = 0;
	}
	LWLockRelease(shared_lock(LOCK_DISCIPLINE));
}

/*
 * Get ready to count what this session holds.  To be called before a lock is
 * taken: it may raise.
 */
static void
prepare_to_hold(void)
{
	if (table == NULL || held != NULL)
		return;
	held = MemoryContextAllocZero(TopMemoryContext, MAX_ENTRIES * sizeof(Held));
	before_shmem_exit(give_back_all, (Datum) 0);
}

/*
 * What this session holds of an entry, whose lock the caller holds.
 */
static Held *
held_of(const Entry *entry, int64 now)
{
	Held	   *mine = &held[entry - table->entries];

	if (mine->generation != entry->generation || now - mine->taken_at >= PERMIT_LIFE)
	{
		mine->generation = entry->generation;
		mine->calls = 0;
	}
	return mine;
}

static void
take_places(Entry *entry, int64 now, int calls)
{
	Held	   *mine = held_of(entry, now);

	window_add(&entry->in_flight, PERMIT_LIFE, now, calls);
	mine->calls += calls;
	mine->taken_at = now;
}

static void
give_places_back(Entry *entry, int64 now, int calls)
{
	Held	   *mine = held_of(entry, now);
	int64		freed = window_take(&entry->in_flight, PERMIT_LIFE, now, calls);
	int64		own = Min(mine->calls, freed);

	mine->calls -= own;
	entry->foreign += freed - own;
}

/*
 * How many of the wanted calls there is room for.
 */
static int
room(Entry *entry, const Destination *destination, int64 now, int wanted)
{
	if (destination->max_in_flight == NO_LIMIT)
		return wanted;
	return (int) Max(Min(wanted, destination->max_in_flight - in_flight(entry, now)), 0);
}

/*----
 * Asking and reporting.
 *----
 */

/*
 * How many of the wanted calls breaker and limit let through.  If none,
 * *retry_after is in how many microseconds to ask again, 0 where that depends
 * on when others are done.
 */
static int
admit(Entry *entry, const Destination *destination, int64 now, int wanted,
	  int64 *retry_after)
{
	int			calls = room(entry, destination, now, wanted);

	*retry_after = 0;
	if (calls > 0)
		calls = breaker_admit(&entry->breaker, destination, now, calls, retry_after);
	return calls;
}

/*
 * Is what admit() let through a probe?  It goes whatever is left of the retry
 * budget: without it the breaker stays open.
 */
static bool
is_probe(const Entry *entry)
{
	return entry->breaker.state == BREAKER_HALF_OPEN;
}

/*
 * In how many microseconds to ask again: not before at_least, if that is
 * known, and not all at once.
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
 * Ask for one call, not saying whether it is a retry.  Without an entry it is
 * let go.
 */
CallDecision
discipline_ask(const Destination *destination, int64 *retry_after)
{
	int64		now = window_clock();
	CallDecision decision = CALL_GO;
	Entry	   *entry;

	prepare_to_hold();
	entry = acquire(destination, now);
	if (entry == NULL)
		return CALL_GO;
	if (admit(entry, destination, now, 1, retry_after) == 0)
		decision = CALL_WAIT;
	else if (budget_admit(&entry->budget, destination, now, is_probe(entry)))
		take_places(entry, now, 1);
	else
		decision = CALL_GIVE_UP;
	entry->counts.decided[decision]++;
	release(entry);
	if (decision == CALL_WAIT)
		*retry_after = spread(destination, *retry_after);
	return decision;
}

/*
 * Report calls: to breaker and counts.  The caller holds the entry.
 */
static void
end_calls(Entry *entry, const Destination *destination, int64 now,
		  int succeeded, int failed)
{
	entry->counts.succeeded += succeeded;
	entry->counts.failed += failed;
	if (breaker_report(&entry->breaker, destination, now, succeeded, failed))
		entry->counts.opened++;
}

/*
 * Report one call that discipline_ask() has let go.
 */
void
discipline_tell(const Destination *destination, bool succeeded, bool is_retry)
{
	int64		now = window_clock();
	Entry	   *entry;

	prepare_to_hold();
	entry = acquire(destination, now);
	if (entry == NULL)
		return;
	budget_report(&entry->budget, destination, now, succeeded, is_retry);
	give_places_back(entry, now, 1);
	end_calls(entry, destination, now, succeeded ? 1 : 0, succeeded ? 0 : 1);
	if (is_retry)
		entry->counts.retries++;
	release(entry);
}

/*
 * Ask for up to that many calls, at least one, of which any number may be
 * retries, under a lease in microseconds, and reserve what is granted until
 * discipline_use().  Without shared memory or an entry all are granted.
 */
void
discipline_reserve(const Destination *destination, int wanted, int64 lease,
				   Grant *grant)
{
	int64		now = window_clock();
	Entry	   *entry;

	*grant = (Grant)
	{
		.calls = wanted,.retries = wanted,.until = now + lease
	};
	entry = acquire(destination, now);
	if (entry == NULL)
		return;
	grant->counted = true;
	grant->calls = admit(entry, destination, now, wanted, &grant->retry_after);
	if (grant->calls == 0)
		entry->counts.decided[CALL_WAIT]++;
	else
		leases_add(&entry->leased, grant->until, now, grant->calls);
	grant->probe = grant->calls > 0 && is_probe(entry);
	if (grant->calls > 0 && !grant->probe)
		grant->tokens = budget_reserve(&entry->budget, destination, now, grant->calls);
	grant->retries = grant->probe ? grant->calls : grant->tokens;
	release(entry);
	if (grant->calls == 0)
		grant->retry_after = spread(destination, grant->retry_after);
}

/*
 * Give back that many calls of a grant, which are not made after all.  The
 * caller holds the entry.
 */
static void
end_in_vain(Entry *entry, int64 now, const Grant *grant, int calls)
{
	leases_take(&entry->leased, grant->until, now, calls);
	if (calls > 0 && grant->probe)
		breaker_withdraw_probe(&entry->breaker);
}

/*
 * Say how many calls of which kind are made of what was granted, and give back
 * the rest.
 */
void
discipline_use(const Destination *destination, const Grant *grant,
			   int first_tries, int retries)
{
	int64		now = window_clock();
	int			unused = grant->calls - first_tries - retries;
	Entry	   *entry;

	Assert(unused >= 0 && retries <= grant->retries);
	if (!grant->counted || grant->calls == 0)
		return;
	entry = acquire(destination, now);
	if (entry == NULL)
		return;
	end_in_vain(entry, now, grant, unused);
	budget_use(&entry->budget, destination, now, grant->tokens, first_tries, retries);
	entry->counts.decided[CALL_GO] += first_tries + retries;
	entry->counts.retries += retries;
	release(entry);
}

/*
 * That many calls that discipline_use() was told of are not made after all.
 * May be called when a transaction is aborted: raises nothing.
 */
void
discipline_void(const char *destination, const Grant *grant, int calls)
{
	int64		now = window_clock();
	Entry	   *entry;

	LWLockAcquire(shared_lock(LOCK_DISCIPLINE), LW_SHARED);
	entry = find(destination, hash_of(destination));
	if (entry)
	{
		SpinLockAcquire(&entry->lock);
		end_in_vain(entry, now, grant, calls);
		SpinLockRelease(&entry->lock);
	}
	LWLockRelease(shared_lock(LOCK_DISCIPLINE));
}

/*
 * Report calls that discipline_use() was told of, and that their leases had
 * that many microseconds left.
 */
void
discipline_report(const Destination *destination, int succeeded, int failed,
				  int64 lease_left)
{
	int64		now = window_clock();
	Entry	   *entry = acquire(destination, now);

	if (entry == NULL)
		return;
	leases_take(&entry->leased, now + lease_left, now, succeeded + failed);
	end_calls(entry, destination, now, succeeded, failed);
	release(entry);
}

/*----
 * For people.
 *----
 */

/*
 * Names of the destinations of this database that have an entry.
 */
List *
discipline_names(void)
{
	List	   *names = NIL;
	char	   *copy;

	if (table == NULL)
		return NIL;

	/* under the lock nothing must raise, so there is no room made there */
	copy = palloc(MAX_ENTRIES * sizeof(table->entries[0].name));
	LWLockAcquire(shared_lock(LOCK_DISCIPLINE), LW_SHARED);
	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		char	   *name = copy + i * sizeof(table->entries[0].name);

		name[0] = '\0';
		if (table->entries[i].database == MyDatabaseId)
			strcpy(name, table->entries[i].name);
	}
	LWLockRelease(shared_lock(LOCK_DISCIPLINE));
	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		char	   *name = copy + i * sizeof(table->entries[0].name);

		if (name[0] != '\0')
			names = lappend(names, name);
	}
	return names;
}

/*
 * The state of a destination; false if it has no entry.
 */
bool
discipline_state(const Destination *destination, CallState *state)
{
	const char *name = destination->name;
	int64		now = window_clock();
	Entry	   *entry;

	LWLockAcquire(shared_lock(LOCK_DISCIPLINE), LW_SHARED);
	entry = find(name, hash_of(name));
	if (entry)
	{
		SpinLockAcquire(&entry->lock);
		state->breaker = breaker_state(&entry->breaker, destination, now);
		state->breaker_succeeded = window_sum(&entry->breaker.succeeded,
											  destination->breaker_window, now);
		state->breaker_failed = window_sum(&entry->breaker.failed,
										   destination->breaker_window, now);
		state->in_flight = in_flight(entry, now);
		state->retries_left = budget_left(&entry->budget, destination, now);
		state->counts = entry->counts;
		SpinLockRelease(&entry->lock);
	}
	LWLockRelease(shared_lock(LOCK_DISCIPLINE));
	return entry != NULL;
}

/*
 * How many calls, of all databases, there was no entry for.
 */
int64
discipline_overflow(void)
{
	return table ? (int64) pg_atomic_read_u64(&table->undisciplined) : 0;
}

/*
 * Let the counts of this database, and of the overflow, start again from zero.
 * The discipline itself goes on.
 */
void
discipline_count_again(void)
{
	LWLockAcquire(shared_lock(LOCK_DISCIPLINE), LW_SHARED);
	for (int i = 0; i < MAX_ENTRIES; i++)
	{
		Entry	   *entry = &table->entries[i];

		if (entry->database != MyDatabaseId)
			continue;
		SpinLockAcquire(&entry->lock);
		memset(&entry->counts, 0, sizeof(entry->counts));
		SpinLockRelease(&entry->lock);
	}
	pg_atomic_write_u64(&table->undisciplined, 0);
	LWLockRelease(shared_lock(LOCK_DISCIPLINE));
}
