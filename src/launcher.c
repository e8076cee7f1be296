/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  Which database next: one worker at a time, autovacuum's way.
 *
 * The launcher is connected to no database, so none of CREATE, DROP and ALTER
 * DATABASE ever finds it in the way.  Each nap it lists the databases and
 * sends one short-lived worker after the other to those that are due, waiting
 * for each to leave.  It waits on its latch only and takes interrupts at every
 * wake: since PostgreSQL 15 DROP DATABASE waits until every process has.
 *
 * What goes wrong in a database goes wrong in its worker.  If the launcher
 * itself fails it is started again some seconds later, and finds in shared
 * memory what it knew (visits.c).  On a standby it is not started; promotion
 * starts it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"
#include "utils/wait_event.h"

#include "background.h"
#include "compat.h"
#include "counters.h"
#include "requests.h"

#define RESTART_SECONDS 5
#define URGENT_NAP_MS 100

typedef struct Database
{
	Oid			oid;
	char	   *name;
} Database;

extern PGDLLEXPORT void idempotency_launcher_main(Datum arg);

/*----
 * Which databases.
 *----
 */

/*
 * Does setting idempotency.databases name it?  An empty one names all.
 */
static bool
is_chosen(const char *name)
{
	char	   *copy = pstrdup(guc_databases);
	List	   *names;
	ListCell   *lc;
	bool		chosen = false;

	if (!SplitGUCList(copy, ',', &names))
		return false;
	foreach(lc, names)
		chosen = chosen || strcmp(lfirst(lc), name) == 0;
	return names == NIL || chosen;
}

/*
 * Can a worker go there at all?
 */
static bool
is_visitable(const FormData_pg_database * form)
{
	return form->datallowconn && !form->datistemplate &&
		form->datconnlimit != DATCONNLIMIT_INVALID_DB &&
		is_chosen(NameStr(form->datname));
}

/*
 * The databases to visit, and the OIDs of all there are, in memory of the
 * current context.
 */
static List *
list_databases(List **all)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *databases = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old;
		Database   *database;

		old = MemoryContextSwitchTo(caller);
		*all = lappend_oid(*all, form->oid);
		if (is_visitable(form))
		{
			database = palloc(sizeof(Database));
			database->oid = form->oid;
			database->name = pstrdup(NameStr(form->datname));
			databases = lappend(databases, database);
		}
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return databases;
}

/*
 * Remember those databases and no others.
 */
static void
remember(const List *databases)
{
	List	   *oids = NIL;
	ListCell   *lc;

	foreach(lc, databases)
		oids = lappend_oid(oids, ((Database *) lfirst(lc))->oid);
	visits_forget_all_but(oids);
	foreach(lc, databases)
	{
		Database   *database = lfirst(lc);

		(void) visits_enter(database->oid, database->name);
	}
}

/*
 * The databases to visit, remembered.  Those that are gone are forgotten, and
 * lines of the log that no worker will come for are dropped.  Whose shared memory
 * is in use is asked first: a database made after the list was read is in use by
 * sessions that the list does not know of, and is not to be forgotten.
 */
static List *
take_stock(void)
{
	List	   *in_use = list_concat_unique_oid(counters_databases(), discipline_databases());
	List	   *logging = requests_databases();
	List	   *all = NIL;
	List	   *databases = list_databases(&all);
	List	   *gone = list_difference_oid(in_use, all);
	ListCell   *lc;

	remember(databases);
	foreach(lc, databases)
		logging = list_delete_oid(logging, ((Database *) lfirst(lc))->oid);
	requests_discard(logging);
	counters_forget(gone);
	discipline_forget(gone);
	return databases;
}

/*----
 * Visiting.
 *----
 */

/*
 * Is somebody about to drop, rename or copy the database?  A worker sent there
 * now would wait for that, and perhaps find it gone.
 */
static bool
is_being_changed(Oid database)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		free;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	free = background_lock_database(database);
	CommitTransactionCommand();

	/* the end of a transaction leaves us in one that is never emptied */
	MemoryContextSwitchTo(caller);
	return !free;
}

/*
 * Send a worker to a database and wait until it has left.
 */
static void
visit(const Database *database)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, LIBRARY_NAME, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "idempotency_worker_main",
			sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_type, "idempotency worker", sizeof(worker.bgw_type));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name),
			 "idempotency worker for database %u", database->oid);
	strlcpy(worker.bgw_extra, database->name, sizeof(worker.bgw_extra));
	worker.bgw_main_arg = ObjectIdGetDatum(database->oid);
	worker.bgw_notify_pid = MyProcPid;

	visits_begin(database->oid, 0);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		if (visits_fault(database->oid, "no background worker slot was free"))
			ereport(LOG,
					(errmsg("idempotency found no free background worker slot to visit database \"%s\"",
							database->name),
					 errhint("It is tried again. If that does not help, increase max_worker_processes.")));
		visits_end(database->oid, VISIT_FAILED);
		return;
	}
	if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
		proc_exit(1);
	requests_wake_me();
	visits_end_if_running(database->oid);
}

/*
 * One round: visit what is due.
 */
static void
visit_all_due(void)
{
	List	   *databases = take_stock();
	List	   *urgent = requests_urgent() ? requests_databases() : NIL;
	ListCell   *lc;

	foreach(lc, databases)
	{
		const Database *database = lfirst(lc);

		CHECK_FOR_INTERRUPTS();
		if (!list_member_oid(urgent, database->oid) &&
			!visits_is_due(database->oid, GetCurrentTimestamp()))
			continue;
		if (is_being_changed(database->oid))
			visits_end(database->oid, VISIT_BUSY);
		else
			visit(database);
	}
}

/*
 * Sleep until the next visit is due, or somebody wants something.
 */
static void
nap(void)
{
	static uint32 wait_event = 0;
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz until = guc_worker ? visits_next_due(now) :
	now + (int64) guc_naptime * 1000;

	/* what is urgent could not be done just now, or came in meanwhile */
	if (guc_worker && requests_urgent())
		until = Min(until, now + URGENT_NAP_MS * INT64CONST(1000));
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 Max(TimestampDifferenceMilliseconds(now, until), 1L),
					 compat_wait_event(&wait_event, "IdempotencyLauncherMain"));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * The launcher process.
 */
void
idempotency_launcher_main(Datum arg)
{
	MemoryContext round;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	/* there is nothing to cancel but the rounds themselves */
	pqsignal(SIGINT, SIG_IGN);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("idempotency launcher");
	requests_wake_me();

	round = AllocSetContextCreate(TopMemoryContext, "idempotency round",
								  ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		MemoryContextSwitchTo(round);
		if (guc_worker)
			visit_all_due();
		MemoryContextSwitchTo(TopMemoryContext);
		MemoryContextReset(round);
		nap();
	}
}

/*
 * Have the launcher started with the server.  Called at load.
 */
void
launcher_init(void)
{
	BackgroundWorker worker = {0};

	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = RESTART_SECONDS;
	strlcpy(worker.bgw_library_name, LIBRARY_NAME, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "idempotency_launcher_main",
			sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "idempotency launcher", sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, "idempotency launcher", sizeof(worker.bgw_type));
	RegisterBackgroundWorker(&worker);
}
