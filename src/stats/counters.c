/*
 * counters.c
 *	  How often what was answered: counters in shared memory, one set for each
 *	  operation of a database.
 *
 * Counting is one atomic addition, so it takes no lock, cannot fail, and stays
 * when the transaction rolls back: what is counted are answers, not outcomes.
 * A set is taken when something is counted the first time (entries.c), so that
 * names for which nothing was ever done take none; a name for which nothing was
 * counted for UNUSED_AFTER makes room for others.
 *
 * LOCK_COUNTERS protects which set belongs to whom, not the counts.  A session
 * keeps a pointer to the set and its generation.  An addition that is under way
 * while the set is given away is counted for its new owner.
 *
 * The overflow takes what there is no room for, whatever operation and database.
 *
 * A reset stores zeros while others add: an addition that is under way goes to the
 * time before or after.
 */
#include "postgres.h"

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "stats/stats.h"

/* How long nothing is counted until a set makes room for another operation. */
#define UNUSED_AFTER (INT64CONST(600) * USECS_PER_SEC)

typedef struct CounterSet
{
	SharedEntry shared;			/* used_at by the time of the statement */
	TimestampTz since;
	pg_atomic_uint64 counts[N_COUNTERS];
} CounterSet;

struct Counters
{
	CounterSet *set;			/* NULL = none yet */
	uint32		generation;		/* of the set then */
	TimestampTz entered_at;
	bool		defined;		/* the operation has settings of its own */
	char		operation[FLEXIBLE_ARRAY_MEMBER];
};

static bool is_unused(const SharedEntry *entry);
static void clear_set(SharedEntry *entry);

EntryTable	counters_table = {LOCK_COUNTERS, sizeof(CounterSet), is_unused, clear_set, 0, NULL};
static CounterSet *overflow = NULL; /* behind the last one */

Size
counters_size(void)
{
	return mul_size(add_size(guc_max_operations, 1), sizeof(CounterSet));
}

static void
set_zero(CounterSet *set)
{
	set->since = GetCurrentTimestamp();
	set->shared.used_at = 0;
	for (int i = 0; i < N_COUNTERS; i++)
		pg_atomic_write_u64(&set->counts[i], 0);
}

static void
clear_set(SharedEntry *entry)
{
	Assert(LWLockHeldByMeInMode(shared_lock(LOCK_COUNTERS), LW_EXCLUSIVE));
	set_zero((CounterSet *) entry);
}

static bool
is_unused(const SharedEntry *entry)
{
	int64		unused = GetCurrentTimestamp() - entry->used_at;

	/* the clock may have been set back */
	return unused > UNUSED_AFTER || unused < -UNUSED_AFTER;
}

void
counters_attach(void *memory, bool found)
{
	entries_attach(&counters_table, memory, guc_max_operations);
	overflow = (CounterSet *) entries_at(&counters_table, counters_table.n);
	if (found)
		return;
	for (int i = 0; i <= counters_table.n; i++)
	{
		CounterSet *set = (CounterSet *) entries_at(&counters_table, i);

		for (int j = 0; j < N_COUNTERS; j++)
			pg_atomic_init_u64(&set->counts[j], 0);
		set_zero(set);
	}
}

/*
 * Returns where to count an operation of this database, allocated in the
 * current memory context; NULL without shared memory.
 */
Counters *
counters_of(const char *operation, bool defined)
{
	Counters   *counters;

	if (!shared_available())
		return NULL;
	counters = palloc0(offsetof(Counters, operation) + strlen(operation) + 1);
	counters->defined = defined;
	strcpy(counters->operation, operation);
	return counters;
}

/* Takes a set for an operation; the overflow if there is no room. */
static void
enter(Counters *counters, TimestampTz now)
{
	SharedEntry *entry = entries_lock(&counters_table, counters->operation, counters->defined);

	counters->set = entry ? (CounterSet *) entry : overflow;
	counters->generation = counters->set->shared.generation;
	counters->entered_at = now;
	counters->set->shared.used_at = now;
	if (entry)
		entries_unlock(&counters_table);
}

void
counters_add(Counters *counters, Counter which, uint64 n)
{
	TimestampTz now;

	if (counters == NULL || !guc_counters)
		return;
	now = GetCurrentStatementStartTimestamp();
	if (counters->set == NULL ||
		counters->set->shared.generation != counters->generation ||
		(counters->set == overflow && now - counters->entered_at > UNUSED_AFTER))
		enter(counters, now);
	counters->set->shared.used_at = now;
	pg_atomic_fetch_add_u64(&counters->set->counts[which], n);
}

static void
put_set(FunctionCallInfo fcinfo, CounterSet *set)
{
	RowValues	row = {0};

	row_add(&row, set != overflow, CStringGetTextDatum(set->shared.name));
	row_add_time(&row, set->since);
	for (int i = 0; i < N_COUNTERS; i++)
		row_add(&row, true, Int64GetDatum((int64) pg_atomic_read_u64(&set->counts[i])));
	row_put(fcinfo, &row);
}

/* The sets of this database, and the overflow if it was ever used. */
SQL_FUNCTION(idem_stat_counters)
{
	bool		overflowed = false;
	CounterSet *copy;

	InitMaterializedSRF(fcinfo, 0);
	if (!shared_available())
		return (Datum) 0;
	for (int i = 0; i < N_COUNTERS; i++)
		overflowed = overflowed || pg_atomic_read_u64(&overflow->counts[i]) > 0;
	if (overflowed)
		put_set(fcinfo, overflow);

	copy = (CounterSet *) entries_copy(&counters_table);
	for (int i = 0; i < counters_table.n; i++)
	{
		if (copy[i].shared.database == MyDatabaseId)
			put_set(fcinfo, &copy[i]);
	}
	return (Datum) 0;
}

/* Counters of this database, and the overflow, start again from zero. */
void
counters_count_again(void)
{
	LWLockAcquire(shared_lock(LOCK_COUNTERS), LW_EXCLUSIVE);
	for (int i = 0; i < counters_table.n; i++)
	{
		if (entries_at(&counters_table, i)->database == MyDatabaseId)
			clear_set(entries_at(&counters_table, i));
	}
	set_zero(overflow);
	LWLockRelease(shared_lock(LOCK_COUNTERS));
}

SQL_FUNCTION(idem_stat_reset)
{
	shared_count_again();
	PG_RETURN_VOID();
}
