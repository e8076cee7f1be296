/*-------------------------------------------------------------------------
 *
 * counters.c
 *	  How often what was answered: counters in shared memory, one set for each
 *	  operation of a database.
 *
 * Counting is one atomic addition through a pointer that the policy of the
 * operation carries, so it takes no lock, cannot fail, and stays when the
 * transaction rolls back: what is counted are answers, not outcomes.
 *
 * LOCK_COUNTERS protects which set belongs to whom, not the counts.  A set
 * once handed out stays where it is as long as its database exists, because
 * sessions keep pointers to it; sets of dropped databases are taken back,
 * since a database that is gone has no sessions.
 *
 * Set 0 takes what there is no room for, whatever operation and database.
 *
 * A reset stores zeros while others add.  An addition that is under way goes
 * to the time before or after; a count never goes backwards for any other
 * reason.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/builtins.h"

#include "background.h"
#include "compat.h"
#include "counters.h"
#include "discipline.h"

PG_FUNCTION_INFO_V1(idem_stat_counters);
PG_FUNCTION_INFO_V1(idem_stat_reset);

static CounterSet *sets = NULL;
static int	n_sets = 0;

Size
counters_size(void)
{
	return mul_size(add_size(guc_max_operations, 1), sizeof(CounterSet));
}

static void
set_zero(CounterSet *set)
{
	set->since = GetCurrentTimestamp();
	for (int i = 0; i < N_COUNTERS; i++)
		pg_atomic_write_u64(&set->counts[i], 0);
}

/*
 * Shared memory is there; make it ready unless somebody has.
 */
void
counters_attach(void *memory, bool found)
{
	sets = memory;
	n_sets = guc_max_operations + 1;
	if (found)
		return;
	memset(sets, 0, counters_size());
	for (int i = 0; i < n_sets; i++)
	{
		for (int j = 0; j < N_COUNTERS; j++)
			pg_atomic_init_u64(&sets[i].counts[j], 0);
		set_zero(&sets[i]);
	}
}

/*
 * The set of an operation of this database, or NULL.  The caller holds the
 * lock.
 */
static CounterSet *
find(const char *operation, uint32 hash)
{
	for (int i = 1; i < n_sets; i++)
	{
		if (sets[i].hash == hash && sets[i].database == MyDatabaseId &&
			strcmp(sets[i].operation, operation) == 0)
			return &sets[i];
	}
	return NULL;
}

/*
 * Make a set for an operation of this database; the overflow if there is no
 * room.  The caller holds the lock exclusively.
 */
static CounterSet *
make(const char *operation, uint32 hash)
{
	for (int i = 1; i < n_sets; i++)
	{
		if (OidIsValid(sets[i].database))
			continue;
		set_zero(&sets[i]);
		sets[i].hash = hash;
		strlcpy(sets[i].operation, operation, sizeof(sets[i].operation));
		sets[i].database = MyDatabaseId;
		return &sets[i];
	}
	return &sets[0];
}

/*
 * Where to count an operation of this database; NULL without shared memory.
 */
CounterSet *
counters_of(const char *operation)
{
	uint32		hash = hash_bytes((const unsigned char *) operation, strlen(operation));
	CounterSet *set;

	if (!shared_available())
		return NULL;
	if (strlen(operation) >= sizeof(set->operation))
		return &sets[0];
	LWLockAcquire(shared_lock(LOCK_COUNTERS), LW_SHARED);
	set = find(operation, hash);
	LWLockRelease(shared_lock(LOCK_COUNTERS));
	if (set)
		return set;

	LWLockAcquire(shared_lock(LOCK_COUNTERS), LW_EXCLUSIVE);
	set = find(operation, hash);
	if (set == NULL)
		set = make(operation, hash);
	LWLockRelease(shared_lock(LOCK_COUNTERS));
	return set;
}

/*
 * The databases that have sets, as a list of OIDs.
 */
List *
counters_databases(void)
{
	List	   *databases = NIL;

	for (int i = 1; i < n_sets; i++)
	{
		Oid			database = sets[i].database;

		if (OidIsValid(database))
			databases = list_append_unique_oid(databases, database);
	}
	return databases;
}

/*
 * Take back the sets of databases that are gone.
 */
void
counters_forget(const List *databases)
{
	LWLockAcquire(shared_lock(LOCK_COUNTERS), LW_EXCLUSIVE);
	for (int i = 1; i < n_sets; i++)
	{
		if (list_member_oid(databases, sets[i].database))
			sets[i].database = InvalidOid;
	}
	LWLockRelease(shared_lock(LOCK_COUNTERS));
}

/*
 * Which kind of execution was granted.
 */
static Counter
counter_of_execute(const Claim *claim)
{
	if (claim->answer.state == STATE_ACCEPTED)
		return COUNT_ACCEPTED;
	if (claim->found != PROBE_ROW)
		return COUNT_EXECUTED;
	switch (claim->life)
	{
		case LIFE_RUNNING:
			return COUNT_HANDED_AGAIN;
		case LIFE_RETRYABLE:
		case LIFE_OVERRUN:
		case LIFE_RELEASED:
			return COUNT_EXECUTED_AGAIN;
		default:
			return COUNT_EXECUTED;
	}
}

/*
 * Count the answer of a claim or its kin.
 */
void
counters_claim(const Claim *claim)
{
	static const Counter by_verdict[] = {
		[VERDICT_EXECUTE] = COUNT_EXECUTED,
		[VERDICT_REPLAY] = COUNT_REPLAYED_SUCCEEDED,
		[VERDICT_IN_PROGRESS] = COUNT_IN_PROGRESS,
		[VERDICT_MISMATCH] = COUNT_MISMATCH,
		[VERDICT_UNKNOWN] = COUNT_UNKNOWN,
		[VERDICT_EXPIRED] = COUNT_EXPIRED,
	};
	CounterSet *set = claim->call.policy->counters;
	Verdict		verdict = claim->answer.verdict;
	Counter		counter = by_verdict[verdict];

	if (set == NULL)
		return;
	if (verdict == VERDICT_EXECUTE)
		counter = counter_of_execute(claim);
	else if (verdict == VERDICT_REPLAY && claim->answer.state == STATE_FAILED)
		counter = COUNT_REPLAYED_FAILED;
	counters_add(set, counter, 1);
	if (counter == COUNT_EXECUTED_AGAIN && claim->life == LIFE_OVERRUN)
		counters_add(set, COUNT_LEASE_OVERRUN, 1);
}

/*----
 * For people.
 *----
 */

/*
 * One row of idem_stat_counters: the operation, since when, and the counts.
 */
static void
put_set(ReturnSetInfo *rsinfo, CounterSet *set)
{
	Datum		values[N_COUNTERS + 2];
	bool		nulls[N_COUNTERS + 2] = {false};

	nulls[0] = set == &sets[0];
	values[0] = nulls[0] ? (Datum) 0 : CStringGetTextDatum(set->operation);
	values[1] = TimestampTzGetDatum(set->since);
	for (int i = 0; i < N_COUNTERS; i++)
		values[i + 2] = Int64GetDatum((int64) pg_atomic_read_u64(&set->counts[i]));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * idem_stat_counters(): the sets of this database, and the overflow if it was
 * ever used.
 */
Datum
idem_stat_counters(PG_FUNCTION_ARGS)
{
	bool		overflowed = false;

	InitMaterializedSRF(fcinfo, 0);
	if (!shared_available())
		return (Datum) 0;
	for (int i = 0; i < N_COUNTERS; i++)
		overflowed = overflowed || pg_atomic_read_u64(&sets[0].counts[i]) > 0;

	/* sets of this database cannot go away: we are here */
	for (int i = 0; i < n_sets; i++)
	{
		if (i == 0 ? overflowed : sets[i].database == MyDatabaseId)
			put_set((ReturnSetInfo *) fcinfo->resultinfo, &sets[i]);
	}
	return (Datum) 0;
}

/*
 * idem_stat_reset(): the counters of this database, those of destinations too,
 * and the overflow, start again from zero.
 */
Datum
idem_stat_reset(PG_FUNCTION_ARGS)
{
	if (!shared_available())
		PG_RETURN_VOID();
	LWLockAcquire(shared_lock(LOCK_COUNTERS), LW_EXCLUSIVE);
	for (int i = 0; i < n_sets; i++)
	{
		if (i == 0 || sets[i].database == MyDatabaseId)
			set_zero(&sets[i]);
	}
	LWLockRelease(shared_lock(LOCK_COUNTERS));
	discipline_count_again();
	PG_RETURN_VOID();
}
