/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  One visit to one database: purge in small transactions, and leave.
 *
 * Nothing is held between two batches: no lock, no snapshot, no transaction.
 * Each batch asks again, without waiting, whether the visit is welcome:
 *
 * - a lock on the database that DROP, ALTER and CREATE DATABASE ... TEMPLATE
 *	 conflict with.  Refused: somebody wants the database, the worker leaves,
 *	 and the command, which waits five seconds for others to go, succeeds;
 * - a lock on the extension that DROP and ALTER EXTENSION conflict with, and
 *	 then a second look whether it is still the same extension and of a version
 *	 this library knows;
 * - the table locks of the batch itself (purge.c).
 *
 * So the worker is never what others wait for longer than a batch.  A segment
 * that is emptied is a batch of its own; what will soon go with one is left.
 *
 * It works as the owner of the tables, restricted, under settings of its own:
 * those of the database or of a role (read-only by default, a search_path,
 * time-outs) are made for applications.  Purging again what a crash brought
 * back does no harm, so no commit waits for the disk.
 *
 * The pace follows what there is to do.  Claims that run beside a purge wait
 * for its longest stretch of work, so that is short: a slice of records, and
 * then idempotency.purge_delay.  If the slices do not keep up, that is, if the
 * oldest record waits longer and longer past its time, the pauses shrink a
 * little every second, at first down to four times what a slice took, in the
 * end to the same time: half of it is left to others whatever there is to do.
 * They grow back when nothing is left.  The next visit goes on at the pace of
 * the last.
 *
 * As long as the log of requests fills fast the worker stays for it, asleep
 * until the ring is half full: a worker started each time would cost more than
 * the lines it writes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "libpq/pqsignal.h"
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
#include "utils/wait_event.h"

#include "background.h"
#include "compat.h"
#include "requests.h"

/* Others are waiting for their visit too. */
#define LONGEST_VISIT_MS 10000

/* Records in one stretch of work. */
#define SLICE 100

/* How often the pace is looked at, and by how much it changes. */
#define PACE_PERIOD USECS_PER_SEC
#define PACE_STEP 1.08
#define MOST_HASTE 1000.0

/* How often lines of the log are looked for while there is a lot to purge. */
#define FLUSH_PERIOD (100 * INT64CONST(1000))

/* How long to wait for more of them, and for more to purge meanwhile. */
#define LINGER_MS 1000

/* Records that are passed by are cheap, but not free. */
#define LOOKS_PER_RECORD 20

/* Versions of the extension whose tables this library knows. */
#define KNOWN_VERSIONS "{1.0}"

typedef struct Stay
{
	TimestampTz until;
	PurgeBatch	batch;
	TimestampTz purge_due;		/* not before then */
	int			lines;			/* of the log, written by the last flush */
	bool		more_old;		/* lines of the log to remove */
	TimestampTz flush_due;
	void		(*work) (struct Stay *stay);	/* of a transaction */
	VisitOutcome outcome;		/* VISIT_RUNNING = go on */

	double		haste;			/* by which purge_delay is divided */
	TimestampTz paced_at;
	TimestampTz lag;			/* then */
	TimestampTz took;			/* the last batch */
	TimestampTz owed;			/* pause not yet made, in microseconds */
} Stay;

extern PGDLLEXPORT void idempotency_worker_main(Datum arg);

/*
 * Lock a database against being dropped or copied, for this transaction and
 * without waiting.  False if somebody is doing that, or waiting to.
 */
bool
background_lock_database(Oid database)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0);
	return LockAcquire(&tag, RowExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Does this library know the version of the extension in this database?
 */
static bool
is_version_known(void)
{
	static SPIPlanPtr plan = NULL;
	bool		known;

	SPI_connect();
	if (plan == NULL)
	{
		plan = SPI_prepare("SELECT 1 FROM pg_catalog.pg_extension"
						   " WHERE extname OPERATOR(pg_catalog.=) '" LIBRARY_NAME "'"
						   " AND extversion OPERATOR(pg_catalog.=) ANY ('" KNOWN_VERSIONS "')",
						   0, NULL);
		if (plan == NULL || SPI_keepplan(plan) != 0)
			elog(ERROR, "could not prepare to read the version of the extension");
	}
	if (SPI_execute_plan(plan, NULL, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the version of the extension");
	known = SPI_processed == 1;
	SPI_finish();
	return known;
}

/*
 * Lock the extension against being dropped or updated, for this transaction
 * and without waiting.  VISIT_RUNNING if that worked.
 */
static VisitOutcome
lock_extension(void)
{
	Oid			extension = get_extension_oid(LIBRARY_NAME, true);
	LOCKTAG		tag;

	if (!OidIsValid(extension))
		return VISIT_NO_EXTENSION;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId, extension, 0);
	if (LockAcquire(&tag, AccessShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return VISIT_BUSY;

	/* it may have been dropped, or made again, before we had the lock */
	AcceptInvalidationMessages();
	if (get_extension_oid(LIBRARY_NAME, true) != extension)
		return VISIT_BUSY;
	return is_version_known() ? VISIT_RUNNING : VISIT_NO_EXTENSION;
}

/*
 * Write out the log of requests, and remove what is old of it.
 */
static void
flush_requests(Stay *stay)
{
	stay->lines = requests_flush();
	if (stay->more_old)
		stay->more_old = requests_expire();
}

/*
 * Purge a batch.
 */
static void
purge(Stay *stay)
{
	if (!purge_batch(&stay->batch))
		stay->outcome = VISIT_BUSY;
}

/*
 * Do what is to be done, in a transaction that is open, as the owner of the
 * tables.
 */
static void
work_as_owner(Stay *stay)
{
	Oid			user;
	int			context;
	Relation	rel;

	if (!ConditionalLockRelationOid(catalog_relid(TABLE_RECORD), RowExclusiveLock))
	{
		stay->outcome = VISIT_BUSY;
		return;
	}
	rel = catalog_open(TABLE_RECORD, NoLock);
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   context | SECURITY_RESTRICTED_OPERATION);
	table_close(rel, NoLock);
	stay->work(stay);
	SetUserIdAndSecContext(user, context);
}

/*
 * One transaction: ask whether we are welcome, and work.
 */
static void
batch_transaction(Stay *stay)
{
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	pgstat_report_activity(STATE_RUNNING, "idempotency: purging");
	if (!background_lock_database(MyDatabaseId))
		stay->outcome = VISIT_BUSY;
	else
		stay->outcome = lock_extension();
	if (stay->outcome == VISIT_RUNNING)
		work_as_owner(stay);
	else if (stay->outcome == VISIT_NO_EXTENSION)
		requests_discard_own();
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * Do a step of the visit.  Returns NULL, or the error it ended with, in memory
 * of the current context; no transaction is open then.
 */
static ErrorData *
try_to(void (*step) (Stay *stay), Stay *stay)
{
	MemoryContext caller = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		step(stay);
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

/*
 * The visit ends with an error.
 */
static void
fail(Stay *stay, const ErrorData *error)
{
	stay->outcome = VISIT_FAILED;
	if (visits_fault(MyDatabaseId, error->message))
		ereport(LOG,
				(errcode(error->sqlerrcode),
				 errmsg("idempotency could not do its work in database \"%s\": %s",
						MyBgworkerEntry->bgw_extra, error->message),
				 errhint("It is tried again; idem_stat_worker shows when.")));
}

/*
 * Say once that records were left because they fail.
 */
static void
report_failed_records(const PurgeBatch *batch)
{
	if (batch->failed == 0 || !visits_fault(MyDatabaseId, batch->fault))
		return;
	ereport(LOG,
			(errmsg("idempotency left " INT64_FORMAT " records, or tables of them, in database \"%s\" that cannot be purged; the first: %s",
					batch->failed, MyBgworkerEntry->bgw_extra, batch->fault),
			 errhint("They are tried again with every visit.")));
}

/*
 * Write out lines of the log, if it is time.  Should that fail, the purge goes
 * on; lines that cannot be written are kept as long as there is room for those
 * of others: all databases share the ring, and the launcher sends a worker at
 * once when it is half full.
 */
static void
run_flush(Stay *stay)
{
	ErrorData  *error;
	TimestampTz now = GetCurrentTimestamp();

	if (now < stay->flush_due && !requests_urgent())
		return;
	stay->flush_due = now + FLUSH_PERIOD;
	stay->work = flush_requests;
	stay->lines = 0;
	error = try_to(batch_transaction, stay);
	if (error == NULL)
		return;
	fail(stay, error);
	stay->more_old = false;
	if (requests_urgent())
		requests_discard_own();
	if (ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_OPERATOR_INTERVENTION)
		stay->outcome = VISIT_RUNNING;
}

static void
ask_for_batch(Stay *stay)
{
	PurgeBatch *batch = &stay->batch;

	if (batch->at_end)
		purge_again(batch);
	batch->lazy = true;
	batch->max_emptied = PG_INT64_MAX;
	batch->max_records = Min(guc_purge_batch, SLICE);
	batch->max_looks = batch->max_records * LOOKS_PER_RECORD;
	batch->careful = false;
	batch->removed = batch->failed = 0;
	batch->at_end = false;
}

/*
 * One batch, if it is time: if it fails, once more record by record, leaving
 * those that fail.
 */
static void
run_batch(Stay *stay)
{
	TimestampTz start = GetCurrentTimestamp();
	PurgeBatch	asked;
	ErrorData  *error;

	if (start < stay->purge_due)
		return;
	ask_for_batch(stay);
	asked = stay->batch;
	stay->work = purge;
	error = try_to(batch_transaction, stay);
	if (error && ERRCODE_TO_CATEGORY(error->sqlerrcode) != ERRCODE_OPERATOR_INTERVENTION)
	{
		stay->batch = asked;
		stay->batch.careful = true;
		error = try_to(batch_transaction, stay);
	}
	if (error)
		fail(stay, error);
	if (stay->outcome != VISIT_RUNNING)
		return;
	stay->took = GetCurrentTimestamp() - start;
	if (stay->batch.at_end)
		stay->purge_due = start + LINGER_MS * INT64CONST(1000);
	visits_progress(MyDatabaseId, &stay->batch, stay->haste);
	report_failed_records(&stay->batch);
}

/*
 * Is it time to leave?  As long as there is more to do, or the log fills fast,
 * only for others that wait for their visit.
 */
static void
think_of_leaving(Stay *stay)
{
	bool		more = !stay->batch.at_end || stay->more_old;
	bool		over = GetCurrentTimestamp() >= stay->until;

	if (more)
		stay->outcome = over ? VISIT_UNFINISHED : VISIT_RUNNING;
	else if (over || !requests_are_many(stay->lines))
		stay->outcome = VISIT_DONE;
}

/*
 * Look at the pace, from how late the last batch was.
 */
static void
set_pace(Stay *stay)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz lag = 0;

	if (!stay->batch.at_end && stay->batch.from != DT_NOBEGIN)
		lag = now - stay->batch.from;

	if (stay->batch.at_end)
		stay->haste = Max(stay->haste / PACE_STEP, 1.0);
	else if (stay->paced_at == 0)
		stay->paced_at = now;
	else if (now < stay->paced_at + PACE_PERIOD)
		return;
	else if (lag >= stay->lag)
		stay->haste = Min(stay->haste * PACE_STEP, MOST_HASTE);
	stay->paced_at = now;
	stay->lag = lag;
}

/*
 * Pause between batches.  What a latch cannot measure is owed to the next
 * pause, and what it slept too long is taken from it.
 */
static void
pause_a_while(Stay *stay)
{
	static uint32 wait_event = 0;
	TimestampTz start = GetCurrentTimestamp();

	if (stay->batch.at_end && !stay->more_old)
		stay->owed = LINGER_MS * INT64CONST(1000);
	else if (guc_purge_delay == 0)
		stay->owed = 0;
	else
		stay->owed += Max((TimestampTz) (guc_purge_delay * 1000 / stay->haste),
						  (TimestampTz) (Max(4 - stay->haste / 10, 1) * stay->took));

	if (stay->owed >= 1000)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 stay->owed / 1000,
						 compat_wait_event(&wait_event, "IdempotencyPurgeDelay"));
		ResetLatch(MyLatch);
		stay->owed = Max(stay->owed - (GetCurrentTimestamp() - start), -stay->took);
	}
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Work until there is nothing left, time is up, or we are not welcome.
 */
static VisitOutcome
stay_and_work(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "idempotency visit",
												  ALLOCSET_DEFAULT_SIZES);
	Stay		stay = {
		.until = GetCurrentTimestamp() + LONGEST_VISIT_MS * INT64CONST(1000),
		.more_old = true,
		.outcome = VISIT_RUNNING,
		.haste = visits_haste(MyDatabaseId),
	};

	purge_begin(&stay.batch);
	for (;;)
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		run_flush(&stay);
		if (stay.outcome == VISIT_RUNNING)
			run_batch(&stay);
		MemoryContextReset(context);
		if (stay.outcome == VISIT_RUNNING)
			think_of_leaving(&stay);
		if (stay.outcome != VISIT_RUNNING)
			return stay.outcome;
		set_pace(&stay);
		error = try_to(pause_a_while, &stay);
		if (error)
			fail(&stay, error);
		if (stay.outcome != VISIT_RUNNING || !guc_worker)
			return stay.outcome == VISIT_RUNNING ? VISIT_UNFINISHED : stay.outcome;
	}
}

/*
 * Settings that databases and roles may have set for applications.
 */
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

/*
 * A worker process; the argument is the database.  Leaves with 0, which the
 * postmaster takes for done, whatever came of it.
 */
void
idempotency_worker_main(Datum arg)
{
	Oid			database = DatumGetObjectId(arg);

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	set_own_settings();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
	pgstat_report_appname("idempotency worker");
	requests_wake_me();
	visits_begin(database, MyProcPid);
	visits_end(database, stay_and_work());
	proc_exit(0);
}
