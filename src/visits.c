/*-------------------------------------------------------------------------
 *
 * visits.c
 *	  What is known of the databases that workers visit.
 *
 * Kept in shared memory, so that a launcher that had to start again knows when
 * to go where, and so that people can see it.  Launcher and worker write, each
 * its own members; all under LOCK_VISITS, held for a few instructions, never
 * while anything can be raised.
 *
 * A database for which there is no room any more is visited like the others;
 * only nothing is remembered of it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "background.h"
#include "compat.h"

PG_FUNCTION_INFO_V1(idem_stat_visits);

/* After this many failures in a row the pause does not grow any more. */
#define MAX_DOUBLINGS 6

static Visit *visits = NULL;

Size
visits_size(void)
{
	return mul_size(MAX_VISITS, sizeof(Visit));
}

/*
 * Shared memory is there; make it ready unless somebody has.
 */
void
visits_attach(void *memory, bool found)
{
	visits = memory;
	if (!found)
		memset(visits, 0, visits_size());
}

/*
 * The entry of a database, or a free one for InvalidOid; NULL if there is
 * none.  The caller holds the lock.
 */
static Visit *
find(Oid database)
{
	for (int i = 0; i < MAX_VISITS; i++)
	{
		if (visits[i].database == database)
			return &visits[i];
	}
	return NULL;
}

/*
 * The entry of a database, locked; NULL, and not locked, if there is none.
 */
static Visit *
find_locked(Oid database)
{
	Visit	   *visit;

	LWLockAcquire(shared_lock(LOCK_VISITS), LW_EXCLUSIVE);
	visit = find(database);
	if (visit == NULL)
		LWLockRelease(shared_lock(LOCK_VISITS));
	return visit;
}

static void
unlock(void)
{
	LWLockRelease(shared_lock(LOCK_VISITS));
}

/*
 * Forget databases that are not in that list of OIDs.
 */
void
visits_forget_all_but(const List *databases)
{
	LWLockAcquire(shared_lock(LOCK_VISITS), LW_EXCLUSIVE);
	for (int i = 0; i < MAX_VISITS; i++)
	{
		if (OidIsValid(visits[i].database) &&
			!list_member_oid(databases, visits[i].database))
			memset(&visits[i], 0, sizeof(Visit));
	}
	unlock();
}

/*
 * There is a database of that name.  False if it cannot be remembered.
 */
bool
visits_enter(Oid database, const char *name)
{
	Visit	   *visit;

	LWLockAcquire(shared_lock(LOCK_VISITS), LW_EXCLUSIVE);
	visit = find(database);
	if (visit == NULL)
		visit = find(InvalidOid);
	if (visit)
	{
		visit->database = database;
		strlcpy(visit->name, name, sizeof(visit->name));
	}
	unlock();
	return visit != NULL;
}

/*
 * When a database is to be visited again: at once if the last visit left work
 * undone, after a growing pause if it failed.  The caller holds the lock.
 */
static TimestampTz
due_at(const Visit *visit)
{
	int			doublings = Min(visit->faults_in_row, MAX_DOUBLINGS);

	if (visit->outcome == VISIT_NEVER || visit->outcome == VISIT_UNFINISHED)
		return 0;
	return visit->ended_at + (((int64) guc_naptime * 1000) << doublings);
}

/*
 * Is it time?  Always for a database that is not remembered.
 */
bool
visits_is_due(Oid database, TimestampTz now)
{
	Visit	   *visit = find_locked(database);
	bool		due;

	if (visit == NULL)
		return true;

	/* a clock set back must not stop the visits */
	due = due_at(visit) <= now || visit->ended_at > now;
	unlock();
	return due;
}

/*
 * When the launcher has to look again, from one nap after now at the latest.
 */
TimestampTz
visits_next_due(TimestampTz now)
{
	TimestampTz next = now + (int64) guc_naptime * 1000;

	LWLockAcquire(shared_lock(LOCK_VISITS), LW_SHARED);
	for (int i = 0; i < MAX_VISITS; i++)
	{
		if (OidIsValid(visits[i].database))
			next = Min(next, due_at(&visits[i]));
	}
	unlock();
	return next;
}

/*
 * A worker is there, or, without pid, will be.
 */
void
visits_begin(Oid database, int pid)
{
	Visit	   *visit = find_locked(database);

	if (visit == NULL)
		return;
	visit->outcome = VISIT_RUNNING;
	visit->pid = pid;
	visit->started_at = GetCurrentTimestamp();
	visit->purged = 0;
	visit->failed = 0;
	if (pid != 0)
		visit->visits++;
	unlock();
}

/*
 * How hasty the last visit had to be at its end; 1 if it had not.
 */
double
visits_haste(Oid database)
{
	Visit	   *visit = find_locked(database);
	double		haste;

	if (visit == NULL)
		return 1.0;
	haste = Max(visit->haste, 1.0);
	unlock();
	return haste;
}

/*
 * The worker has done that batch.
 */
void
visits_progress(Oid database, const PurgeBatch *batch, double haste)
{
	Visit	   *visit = find_locked(database);

	if (visit == NULL)
		return;
	visit->purged += batch->removed;
	visit->purged_total += batch->removed;
	visit->failed += batch->failed;
	visit->purged_until = batch->from;
	visit->haste = haste;
	unlock();
}

/*
 * Something went wrong there.  True if it is news, so that one fault that
 * comes again with every visit is reported once.
 */
bool
visits_fault(Oid database, const char *fault)
{
	int			length = pg_mbcliplen(fault, strlen(fault), FAULT_TEXT_MAX - 1);
	Visit	   *visit = find_locked(database);
	bool		news;

	if (visit == NULL)
		return true;
	news = strncmp(visit->fault, fault, length) != 0 || visit->fault[length] != '\0';
	memset(visit->fault, 0, sizeof(visit->fault));
	memcpy(visit->fault, fault, length);
	visit->fault_at = GetCurrentTimestamp();
	unlock();
	return news;
}

/* The caller holds the lock. */
static void
end(Visit *visit, VisitOutcome outcome)
{
	visit->outcome = outcome;
	visit->pid = 0;
	visit->ended_at = GetCurrentTimestamp();
	if (outcome == VISIT_FAILED)
		visit->faults_in_row++;
	else if (outcome != VISIT_BUSY)
	{
		visit->faults_in_row = 0;
		/* a fault that came again in this visit stays */
		if (visit->fault_at < visit->started_at)
			visit->fault[0] = '\0';
	}
}

/*
 * The visit is over.
 */
void
visits_end(Oid database, VisitOutcome outcome)
{
	Visit	   *visit = find_locked(database);

	if (visit == NULL)
		return;
	end(visit, outcome);
	unlock();
}

/*
 * There is no worker any more; if it did not say so itself, it was ended.
 */
void
visits_end_if_running(Oid database)
{
	Visit	   *visit = find_locked(database);

	if (visit == NULL)
		return;
	if (visit->outcome == VISIT_RUNNING)
	{
		strlcpy(visit->fault, "the worker was ended before it was done",
				sizeof(visit->fault));
		visit->fault_at = GetCurrentTimestamp();
		end(visit, VISIT_FAILED);
	}
	unlock();
}

/*----
 * For people.
 *----
 */

static const char *const outcome_names[] = {
	[VISIT_NEVER] = "not visited yet",
	[VISIT_RUNNING] = "running",
	[VISIT_DONE] = "done",
	[VISIT_UNFINISHED] = "unfinished",
	[VISIT_NO_EXTENSION] = "no extension",
	[VISIT_BUSY] = "busy",
	[VISIT_FAILED] = "failed",
};

#define N_VISIT_COLUMNS 15

static void
set_time(Datum *values, bool *nulls, int column, TimestampTz time)
{
	values[column] = TimestampTzGetDatum(time);
	nulls[column] = time == 0 || time == DT_NOBEGIN;
}

static Datum
interval_between(TimestampTz from, TimestampTz to)
{
	Interval   *span = palloc0(sizeof(Interval));

	/* a clock set back must not show */
	span->time = Max(to - from, 0);
	return IntervalPGetDatum(span);
}

/*
 * A text that was written in a database of perhaps another encoding, or was cut
 * off.  Where it is nothing in the encoding of this one, what is not ASCII shows
 * as question marks.
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

/*
 * One row of idem_stat_visits.
 */
static void
put_visit(ReturnSetInfo *rsinfo, const Visit *visit)
{
	Datum		values[N_VISIT_COLUMNS];
	bool		nulls[N_VISIT_COLUMNS] = {false};
	bool		running = visit->outcome == VISIT_RUNNING;
	int			n = 0;

	values[n++] = foreign_text(visit->name);
	values[n++] = CStringGetTextDatum(outcome_names[visit->outcome]);
	nulls[n] = visit->pid == 0;
	values[n++] = Int32GetDatum(visit->pid);
	set_time(values, nulls, n++, visit->started_at);
	set_time(values, nulls, n++, running ? 0 : visit->ended_at);
	nulls[n] = visit->started_at == 0;
	values[n++] = interval_between(visit->started_at, running ? GetCurrentTimestamp() :
								   visit->ended_at);
	set_time(values, nulls, n++, running ? 0 : Max(due_at(visit), visit->ended_at));
	values[n++] = Int64GetDatum(visit->visits);
	values[n++] = Int64GetDatum(visit->purged);
	values[n++] = Int64GetDatum(visit->purged_total);
	values[n++] = Int64GetDatum(visit->failed);
	set_time(values, nulls, n++, visit->purged_until);
	values[n++] = Int32GetDatum(visit->faults_in_row);
	set_time(values, nulls, n++, visit->fault[0] ? visit->fault_at : 0);
	nulls[n] = visit->fault[0] == '\0';
	values[n] = nulls[n] ? (Datum) 0 : foreign_text(visit->fault);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * idem_stat_visits(): what is known of each database; nothing without preload.
 */
Datum
idem_stat_visits(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Visit	   *copy;

	InitMaterializedSRF(fcinfo, 0);
	if (!shared_available())
		return (Datum) 0;
	copy = palloc(visits_size());
	LWLockAcquire(shared_lock(LOCK_VISITS), LW_SHARED);
	memcpy(copy, visits, visits_size());
	unlock();
	for (int i = 0; i < MAX_VISITS; i++)
	{
		if (OidIsValid(copy[i].database))
			put_visit(rsinfo, &copy[i]);
	}
	return (Datum) 0;
}
