/*
 * runs.c
 *	  What is known of the worker's runs, by database.
 *
 * In shared memory, so that a launcher that had to start again knows when to go
 * where, and so that people can see it.  All of it is under LOCK_RUNS, held for a few
 * instructions, never while anything can be raised.
 *
 * Databases for which there is no room any more share one entry more, which has
 * the one that is being visited, as there is one worker at a time.  What it says
 * of the others the launcher keeps aside, in memory of its own: they are visited
 * like all, but idem_stat_worker does not show when, and a launcher that starts
 * again begins anew with them.
 */
#include "postgres.h"

#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "guc.h"
#include "worker/worker.h"

/* After this many failures in a row the pause does not grow any more. */
#define MAX_DOUBLINGS 6

/* The one that is shared. */
#define SHARED_RUN MAX_RUNS

static WorkerRun *runs = NULL;

/* What the launcher has put aside, by database. */
static HTAB *aside = NULL;

Size
runs_size(void)
{
	return mul_size(MAX_RUNS + 1, sizeof(WorkerRun));
}

void
runs_attach(void *memory, bool found)
{
	runs = memory;
}

/* Puts the shared entry aside.  If there is no memory, it is forgotten. */
static void
set_aside(const WorkerRun *run)
{
	WorkerRun  *kept = aside ? hash_search(aside, &run->database, HASH_ENTER_NULL, NULL) : NULL;

	if (kept)
		*kept = *run;
}

/* Sets an entry to what was put aside of a database, or to nothing. */
static void
bring_back(WorkerRun *run, Oid database)
{
	WorkerRun  *kept = aside ? hash_search(aside, &database, HASH_FIND, NULL) : NULL;

	memset(run, 0, sizeof(WorkerRun));
	run->database = database;
	if (kept)
	{
		*run = *kept;
		(void) hash_search(aside, &database, HASH_REMOVE, NULL);
	}
}

/*
 * Returns the entry of a database, made if need be, with LOCK_RUNS held until
 * runs_release().
 */
WorkerRun *
runs_acquire(Oid database)
{
	WorkerRun  *room = NULL;

	LWLockAcquire(shared_lock(LOCK_RUNS), LW_EXCLUSIVE);
	for (int i = 0; i <= MAX_RUNS; i++)
	{
		if (runs[i].database == database)
			return &runs[i];
		if (room == NULL && (i == SHARED_RUN || !OidIsValid(runs[i].database)))
			room = &runs[i];
	}
	if (OidIsValid(room->database))
		set_aside(room);
	bring_back(room, database);
	return room;
}

void
runs_release(void)
{
	LWLockRelease(shared_lock(LOCK_RUNS));
}

/* Forgets databases that are not in that list of OIDs.  For the launcher. */
void
runs_forget_all_but(const List *databases)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(WorkerRun),.hcxt = TopMemoryContext};
	HASH_SEQ_STATUS scan;
	WorkerRun  *kept;

	LWLockAcquire(shared_lock(LOCK_RUNS), LW_EXCLUSIVE);
	for (int i = 0; i <= MAX_RUNS; i++)
	{
		if (!list_member_oid(databases, runs[i].database))
			runs[i].database = InvalidOid;
	}
	runs_release();
	if (aside == NULL)
		aside = hash_create("idempotency runs", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	hash_seq_init(&scan, aside);
	while ((kept = hash_seq_search(&scan)) != NULL)
	{
		if (!list_member_oid(databases, kept->database))
			(void) hash_search(aside, &kept->database, HASH_REMOVE, NULL);
	}
}

/* Returns when it is due: at once if work was left undone, after a growing pause if it failed. */
static int64
due_at(const WorkerRun *run)
{
	int			doublings = Min(run->faults_in_row, MAX_DOUBLINGS);

	if (run->outcome == RUN_NEVER || run->outcome == RUN_UNFINISHED)
		return 0;
	return run->rests_from + (((int64) guc_naptime * 1000) << doublings);
}

bool
runs_is_due(Oid database)
{
	bool		due = due_at(runs_acquire(database)) <= clock_monotonic();

	runs_release();
	return due;
}

/* Returns when the launcher has to look again: after one nap at the latest. */
int64
runs_next_due(void)
{
	int64		next = clock_monotonic() + (int64) guc_naptime * 1000;
	HASH_SEQ_STATUS scan;
	WorkerRun  *kept;

	LWLockAcquire(shared_lock(LOCK_RUNS), LW_SHARED);
	for (int i = 0; i <= MAX_RUNS; i++)
	{
		if (OidIsValid(runs[i].database))
			next = Min(next, due_at(&runs[i]));
	}
	runs_release();
	if (aside)
	{
		hash_seq_init(&scan, aside);
		while ((kept = hash_seq_search(&scan)) != NULL)
			next = Min(next, due_at(kept));
	}
	return next;
}

/* A worker is there, or, without pid, will be. */
void
runs_begin(Oid database, int pid)
{
	WorkerRun  *run = runs_acquire(database);

	run->outcome = RUN_RUNNING;
	run->pid = pid;
	run->started_at = GetCurrentTimestamp();
	run->purged = run->failed = 0;
	if (pid != 0)
		run->runs++;
	runs_release();
}

/* Notes a fault.  True if it is news: one that comes with every run is reported once. */
bool
runs_fault(Oid database, const char *fault)
{
	int			length = pg_mbcliplen(fault, strlen(fault), FAULT_TEXT_MAX - 1);
	WorkerRun  *run = runs_acquire(database);
	bool		news = strncmp(run->fault, fault, length) != 0 || run->fault[length] != '\0';

	memset(run->fault, 0, sizeof(run->fault));
	memcpy(run->fault, fault, length);
	run->fault_at = GetCurrentTimestamp();
	runs_release();
	return news;
}

/* The caller must hold LOCK_RUNS. */
static void
end(WorkerRun *run, RunOutcome outcome)
{
	Assert(LWLockHeldByMe(shared_lock(LOCK_RUNS)));
	run->outcome = outcome;
	run->pid = 0;
	run->ended_at = GetCurrentTimestamp();
	run->rests_from = clock_monotonic();
	if (outcome == RUN_FAILED)
		run->faults_in_row++;
	else if (outcome != RUN_BUSY)
	{
		run->faults_in_row = 0;
		/* a fault that came again in this run stays */
		if (run->fault_at < run->started_at)
			run->fault[0] = '\0';
	}
}

void
runs_end(Oid database, RunOutcome outcome)
{
	end(runs_acquire(database), outcome);
	runs_release();
}

/* There is no worker any more; if it did not say so itself, it was ended. */
void
runs_end_if_running(Oid database)
{
	WorkerRun  *run = runs_acquire(database);

	if (run->outcome == RUN_RUNNING)
	{
		strlcpy(run->fault, "the worker was ended before it was done",
				sizeof(run->fault));
		run->fault_at = GetCurrentTimestamp();
		end(run, RUN_FAILED);
	}
	runs_release();
}

static void
add_time(RowValues *row, TimestampTz time)
{
	row_add_time(row, time == 0 ? NEVER : time);
}

/*
 * Written in a database of perhaps another encoding: where it is nothing in that of
 * this one, what is not ASCII shows as question marks.
 */
static Datum
foreign_text(const char *stored)
{
	char	   *shown = pstrdup(stored);

	if (!pg_verifymbstr(shown, strlen(shown), true))
	{
		for (char *c = shown; *c != '\0'; c++)
		{
			if (IS_HIGHBIT_SET(*c))
				*c = '?';
		}
	}
	return CStringGetTextDatum(shown);
}

static void
put_run(FunctionCallInfo fcinfo, const WorkerRun *run)
{
	static const char *const outcome_names[] = {
		[RUN_NEVER] = "not visited yet",
		[RUN_RUNNING] = "running",
		[RUN_DONE] = "done",
		[RUN_UNFINISHED] = "unfinished",
		[RUN_NO_EXTENSION] = "no extension",
		[RUN_BUSY] = "busy",
		[RUN_FAILED] = "failed",
	};
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next = now + Max(due_at(run) - clock_monotonic(), 0);
	bool		running = run->outcome == RUN_RUNNING;
	Interval	duration = {0};
	RowValues	row = {0};

	/* a clock set back must not show */
	duration.time = Max((running ? now : run->ended_at) - run->started_at, 0);
	row_add(&row, true, foreign_text(run->name));
	row_add(&row, true, CStringGetTextDatum(outcome_names[run->outcome]));
	row_add(&row, run->pid != 0, Int32GetDatum(run->pid));
	add_time(&row, run->started_at);
	add_time(&row, running ? 0 : run->ended_at);
	row_add(&row, run->started_at != 0, IntervalPGetDatum(&duration));
	add_time(&row, running ? 0 : next);
	row_add(&row, true, Int64GetDatum(run->runs));
	row_add(&row, true, Int64GetDatum(run->purged));
	row_add(&row, true, Int64GetDatum(run->purged_total));
	row_add(&row, true, Int64GetDatum(run->failed));
	add_time(&row, run->purged_until);
	row_add(&row, true, Int32GetDatum(run->faults_in_row));
	add_time(&row, run->fault[0] ? run->fault_at : 0);
	row_add(&row, run->fault[0] != '\0', foreign_text(run->fault));
	row_put(fcinfo, &row);
}

/* idem_stat_visits(): what is known of each database; nothing without preload. */
SQL_FUNCTION(idem_stat_visits)
{
	WorkerRun  *copy;

	InitMaterializedSRF(fcinfo, 0);
	if (!shared_available())
		return (Datum) 0;
	copy = palloc(runs_size());
	LWLockAcquire(shared_lock(LOCK_RUNS), LW_SHARED);
	memcpy(copy, runs, runs_size());
	runs_release();
	for (int i = 0; i < SHARED_RUN; i++)
	{
		if (OidIsValid(copy[i].database))
			put_run(fcinfo, &copy[i]);
	}
	return (Datum) 0;
}
