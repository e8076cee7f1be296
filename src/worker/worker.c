/*
 * worker.c
 *	  One run in one database: purge in small transactions, and leave.
 *
 * Nothing is held between two batches: no lock, no snapshot, no transaction.  Each asks
 * again, without waiting, whether the run is welcome:
 *
 * - a lock on the database that DROP, ALTER and CREATE DATABASE ... TEMPLATE
 *	 conflict with.  Refused: another session wants the database, the worker leaves,
 *	 and the command, which waits five seconds for others to go, succeeds;
 * - a lock on the extension that DROP and ALTER EXTENSION conflict with, and
 *	 then a second look whether it is still the same extension and of a version
 *	 this library knows;
 * - the table locks of the batch itself (purge.c).
 *
 * So the worker is never what others wait for longer than a batch.
 *
 * It works as the owner of the tables, restricted, under settings of its own:
 * those of the database or of a role (read-only by default, a search_path,
 * time-outs) are made for applications.  Purging again what a crash brought
 * back does no harm, so no commit waits for the disk.
 *
 * Claims that run beside a purge wait for its longest stretch of work, so that is
 * short: a slice of records, and then idempotency.purge_delay.  If the oldest record
 * waits longer and longer past its time, the pauses shrink a little every second, at
 * first down to four times what a slice took, in the end to the same time: half of it
 * is left to others whatever there is to do.  They grow back when nothing is left.
 * The next run goes on at the pace of the last.
 */
#include "postgres.h"

#include <math.h>

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "stats/stats.h"
#include "worker/worker.h"

/* Other databases are waiting for their turn. */
#define LONGEST_RUN_MS 10000

/* Records in one stretch of work. */
#define SLICE 100

/* How often the pace is looked at, and by how much it changes. */
#define PACE_PERIOD USECS_PER_SEC
#define PACE_STEP 1.08
#define MOST_SPEED_UP 1000.0

/* Records that are looked at and left are cheap, but not free. */
#define LOOKS_PER_RECORD 20

/* Versions of the extension whose tables this library knows. */
#define KNOWN_VERSIONS {"1.0"}

typedef struct RunState
{
	int64		until;			/* times are by clock_monotonic() */
	PurgeBatch	batch;
	RunOutcome	outcome;		/* RUN_RUNNING = go on */

	double		speed_up;		/* by which purge_delay is divided */
	int64		paced_at;
	int64		lag;			/* then */
	int64		took;			/* the last batch */
} RunState;

extern PGDLLEXPORT void idempotency_worker_main(Datum arg);

/*
 * Locks a database against being dropped or copied, for this transaction.  False if
 * another session is doing that, or waiting to.
 */
bool
background_lock_database(Oid database)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	return LockAcquire(&tag, RowExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Keeps ends that are ordinary out of the server's log: of this process by
 * SIGTERM, as at every stop of the server, and of a worker whose database is
 * gone or not to be connected to any more.  The postmaster says that it ended.
 */
static void
keep_quiet(ErrorData *error)
{
	if (error->elevel == FATAL &&
		(error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN ||
		 error->sqlerrcode == ERRCODE_UNDEFINED_DATABASE ||
		 error->sqlerrcode == ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE))
		error->output_to_server = false;
}

void
background_begin(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	emit_log_hook = keep_quiet;
	BackgroundWorkerUnblockSignals();
}

/* Sleeps so long, if at all, or until the latch is set; takes in interrupts and settings. */
void
background_rest(long ms, uint32 wait_event)
{
	if (ms > 0)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ms, wait_event);
		ResetLatch(MyLatch);
	}
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

static bool
is_version_known(void)
{
	static const char *const known[] = KNOWN_VERSIONS;
	bool		found = false;

	SPI_connect();
	/* not read-only: with a snapshot taken after the lock */
	SPI_execute("SELECT extversion FROM pg_catalog.pg_extension WHERE extname = '" LIBRARY_NAME "'", false, 1);
	for (int i = 0; SPI_processed > 0 && i < lengthof(known); i++)
		found = found || strcmp(known[i], SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1)) == 0;
	SPI_finish();
	return found;
}

/*
 * Locks the extension against being dropped or updated, for this transaction.  Returns
 * RUN_RUNNING if that worked.
 */
static RunOutcome
lock_extension(void)
{
	Oid			extension = get_extension_oid(LIBRARY_NAME, true);
	LOCKTAG		tag;

	if (!OidIsValid(extension))
		return RUN_NO_EXTENSION;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId, extension, 0);
	if (LockAcquire(&tag, AccessShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return RUN_BUSY;

	/* it may have been dropped, or made again, before we had the lock */
	AcceptInvalidationMessages();
	if (get_extension_oid(LIBRARY_NAME, true) != extension)
		return RUN_BUSY;
	return is_version_known() ? RUN_RUNNING : RUN_NO_EXTENSION;
}

/* Works as the owner of the tables, in a transaction that is open. */
static void
work_as_owner(RunState *run)
{
	Oid			user;
	int			context;
	Relation	rel;

	if (!ConditionalLockRelationOid(catalog_relid(TABLE_RECORD), RowExclusiveLock))
	{
		run->outcome = RUN_BUSY;
		return;
	}
	rel = catalog_open(TABLE_RECORD, NoLock);
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   context | SECURITY_RESTRICTED_OPERATION);
	table_close(rel, NoLock);
	if (!purge_batch(&run->batch))
		run->outcome = RUN_BUSY;
	SetUserIdAndSecContext(user, context);
}

static void
batch_transaction(RunState *run)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, "idempotency: purging");
	if (!background_lock_database(MyDatabaseId))
		run->outcome = RUN_BUSY;
	else
		run->outcome = lock_extension();
	if (run->outcome == RUN_RUNNING)
		work_as_owner(run);
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* Does a step.  Returns NULL, or the error in the current context, without a transaction. */
static ErrorData *
try_to(void (*step) (RunState *run), RunState *run)
{
	MemoryContext caller = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		step(run);
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);
	return error;
}

static void
run_fail(RunState *run, const ErrorData *error)
{
	run->outcome = RUN_FAILED;
	if (runs_fault(MyDatabaseId, error->message))
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("idempotency could not do its work in database \"%s\": %s",
						MyBgworkerEntry->bgw_extra, error->message),
				 errhint("It is tried again; idem_stat_worker shows when.")));
}

static void
report_failed_records(const PurgeBatch *batch)
{
	if (batch->failed == 0 || !runs_fault(MyDatabaseId, batch->fault))
		return;
	ereport(LOG,
			(errmsg("idempotency left " INT64_FORMAT " records, or tables of them, in database \"%s\" that cannot be purged; the first: %s",
					batch->failed, MyBgworkerEntry->bgw_extra, batch->fault),
			 errhint("They are tried again with every visit.")));
}

static void
set_pace(RunState *run)
{
	int64		now = clock_monotonic();
	int64		lag = 0;

	if (!run->batch.at_end && run->batch.from != DT_NOBEGIN)
		lag = GetCurrentTimestamp() - run->batch.from;

	if (run->batch.at_end)
		run->speed_up = Max(run->speed_up / PACE_STEP, 1.0);
	else if (run->paced_at == 0)
		run->paced_at = now;
	else if (now < run->paced_at + PACE_PERIOD)
		return;
	else if (lag >= run->lag)
		run->speed_up = Min(run->speed_up * PACE_STEP, MOST_SPEED_UP);
	run->paced_at = now;
	run->lag = lag;
}

static void
run_batch(RunState *run)
{
	int64		start = clock_monotonic();
	WorkerRun  *known;
	ErrorData  *error;

	run->batch.lazy = true;
	run->batch.max_emptied = PG_INT64_MAX;
	run->batch.max_records = Min(guc_purge_batch, SLICE);
	run->batch.max_looks = run->batch.max_records * LOOKS_PER_RECORD;
	error = try_to(batch_transaction, run);
	if (error)
		run_fail(run, error);
	if (run->outcome != RUN_RUNNING)
		return;
	run->took = clock_monotonic() - start;
	set_pace(run);
	known = runs_acquire(MyDatabaseId);
	known->purged += run->batch.removed;
	known->purged_total += run->batch.removed;
	known->failed += run->batch.failed;
	known->purged_until = run->batch.from;
	known->speed_up = run->speed_up;
	runs_release();
	report_failed_records(&run->batch);
}

/* Pauses between batches, if that is not switched off, for milliseconds rounded up. */
static void
pause_a_while(RunState *run)
{
	static uint32 wait_event = 0;
	double		us = Max(guc_purge_delay * 1000 / run->speed_up,
						 Max(4 - run->speed_up / 10, 1) * run->took);

	background_rest(guc_purge_delay == 0 ? 0 : (long) ceil(us / 1000),
					compat_wait_event(&wait_event, "IdempotencyPurgeDelay"));
}

static RunOutcome
run_to_end(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "idempotency run",
												  ALLOCSET_DEFAULT_SIZES);
	RunState	run = {
		.until = clock_monotonic() + LONGEST_RUN_MS * INT64CONST(1000),
		.outcome = RUN_RUNNING,
		.batch.from = DT_NOBEGIN,
	};

	run.speed_up = runs_acquire(MyDatabaseId)->speed_up;
	runs_release();
	run.speed_up = Max(run.speed_up, 1.0);
	while (run.outcome == RUN_RUNNING)
	{
		ErrorData  *error = NULL;

		MemoryContextSwitchTo(context);
		run_batch(&run);
		MemoryContextReset(context);
		if (run.outcome != RUN_RUNNING)
			break;
		if (run.batch.at_end)
			run.outcome = RUN_DONE;
		else if (clock_monotonic() >= run.until)
			run.outcome = RUN_UNFINISHED;
		else if ((error = try_to(pause_a_while, &run)) != NULL)
			run_fail(&run, error);
		else if (!guc_worker)
			run.outcome = RUN_UNFINISHED;
	}
	return run.outcome;
}

/* Settings that databases and roles may have set for applications. */
static void
set_own_settings(void)
{
	static const char *const own[][2] = {
		{"search_path", ""},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"lock_timeout", "100ms"},
		{"statement_timeout", "0"},
		{"synchronous_commit", "off"},
	};

	for (int i = 0; i < lengthof(own); i++)
		SetConfigOption(own[i][0], own[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

/* Leaves with 0, which the postmaster takes for done, whatever came of it. */
void
idempotency_worker_main(Datum arg)
{
	Oid			database = DatumGetObjectId(arg);

	background_begin();
	set_own_settings();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	pgstat_report_appname("idempotency worker");
	runs_begin(database, MyProcPid);
	runs_end(database, run_to_end());
	proc_exit(0);
}
