/*
 * launcher.c
 *	  Which database next: one worker at a time, autovacuum's way.
 *
 * The launcher is connected to no database, so none of CREATE, DROP and ALTER
 * DATABASE ever finds it in the way.  Each nap it lists the databases and
 * sends one short-lived worker after the other to those that are due, waiting
 * for each to leave.  After a short visit it rests as long as that took, so that
 * half of a processor is left to others where one database is always due.  It
 * takes interrupts at every wake: since PostgreSQL 15 DROP DATABASE waits until
 * every process has.
 *
 * If the launcher fails it is started again some seconds later, and finds in shared
 * memory what it knew (runs.c).  On a standby it is not started; promotion
 * starts it.
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
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"

#include "guc.h"
#include "worker/worker.h"

#define RESTART_SECONDS 5

/* A longer visit is followed by no longer a rest. */
#define LONGEST_REST_MS 100

typedef struct Database
{
	Oid			oid;
	char	   *name;
} Database;

extern PGDLLEXPORT void idempotency_launcher_main(Datum arg);

/* Returns whether a worker can go there, and idempotency.databases is empty or names it. */
static bool
is_visitable(const FormData_pg_database * form)
{
	List	   *names;
	ListCell   *lc;

	if (!form->datallowconn || form->datistemplate ||
		form->datconnlimit == DATCONNLIMIT_INVALID_DB ||
		!SplitGUCList(pstrdup(guc_databases), ',', &names))
		return false;
	foreach(lc, names)
	{
		if (strcmp(lfirst(lc), NameStr(form->datname)) == 0)
			return true;
	}
	return names == NIL;
}

/* Returns the databases to visit, and in *all the OIDs of all there are. */
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
 * Returns the databases to visit, and remembers these and no others.  Which ones
 * shared memory keeps something of is asked first: one that is made after the list
 * was read is not to be forgotten.
 */
static List *
take_stock(void)
{
	List	   *in_use = shared_databases();
	List	   *all = NIL;
	List	   *databases = list_databases(&all);
	List	   *visited = NIL;
	ListCell   *lc;

	foreach(lc, databases)
		visited = lappend_oid(visited, ((Database *) lfirst(lc))->oid);
	runs_forget_all_but(visited);
	foreach(lc, databases)
	{
		const Database *database = lfirst(lc);

		strlcpy(runs_acquire(database->oid)->name, database->name, NAMEDATALEN);
		runs_release();
	}
	shared_forget(list_difference_oid(in_use, all));
	return databases;
}

/*
 * Returns whether a database is about to be dropped, renamed or copied: a worker sent
 * there would wait for that, and perhaps find it gone.
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

static void
describe(BackgroundWorker *worker, const char *type, const char *function)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	strlcpy(worker->bgw_library_name, LIBRARY_NAME, sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, function, sizeof(worker->bgw_function_name));
	strlcpy(worker->bgw_name, type, sizeof(worker->bgw_name));
	strlcpy(worker->bgw_type, type, sizeof(worker->bgw_type));
}

static void
run_worker(const Database *database)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	describe(&worker, "idempotency worker", "idempotency_worker_main");
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	snprintf(worker.bgw_name, sizeof(worker.bgw_name),
			 "idempotency worker for database %u", database->oid);
	strlcpy(worker.bgw_extra, database->name, sizeof(worker.bgw_extra));
	worker.bgw_main_arg = ObjectIdGetDatum(database->oid);
	worker.bgw_notify_pid = MyProcPid;

	runs_begin(database->oid, 0);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		if (runs_fault(database->oid, "no background worker slot was free"))
			ereport(LOG,
					(errmsg("idempotency found no free background worker slot to visit database \"%s\"",
							database->name),
					 errhint("It is tried again. If that does not help, increase max_worker_processes.")));
		runs_end(database->oid, RUN_FAILED);
		return;
	}
	if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
		proc_exit(1);
	runs_end_if_running(database->oid);
}

static void
run_all_due(void)
{
	static uint32 wait_event = 0;
	List	   *databases = take_stock();
	ListCell   *lc;

	foreach(lc, databases)
	{
		const Database *database = lfirst(lc);
		int64		start = clock_monotonic();

		CHECK_FOR_INTERRUPTS();
		if (!runs_is_due(database->oid))
			continue;
		if (is_being_changed(database->oid))
			runs_end(database->oid, RUN_BUSY);
		else
			run_worker(database);
		background_rest(Min((clock_monotonic() - start) / 1000, LONGEST_REST_MS),
						compat_wait_event(&wait_event, "IdempotencyLauncherMain"));
	}
}

static void
nap(void)
{
	static uint32 wait_event = 0;
	int64		now = clock_monotonic();
	int64		until = guc_worker ? runs_next_due() : now + (int64) guc_naptime * 1000;

	background_rest(Max((until - now) / 1000, 1),
					compat_wait_event(&wait_event, "IdempotencyLauncherMain"));
}

void
idempotency_launcher_main(Datum arg)
{
	MemoryContext round;

	/* there is nothing to cancel but the rounds themselves */
	pqsignal(SIGINT, SIG_IGN);
	background_begin();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("idempotency launcher");

	round = AllocSetContextCreate(TopMemoryContext, "idempotency round",
								  ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		MemoryContextSwitchTo(round);
		if (guc_worker)
			run_all_due();
		MemoryContextSwitchTo(TopMemoryContext);
		MemoryContextReset(round);
		nap();
	}
}

/* At load. */
void
launcher_init(void)
{
	BackgroundWorker worker;

	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;
	describe(&worker, "idempotency launcher", "idempotency_launcher_main");
	worker.bgw_restart_time = RESTART_SECONDS;
	RegisterBackgroundWorker(&worker);
}
