/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  Settings of the extension, in alphabetical order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "background.h"
#include "compat.h"
#include "counters.h"

/*
 * Should answers be counted?  Costs a few nanoseconds each; off to measure
 * that.
 */
bool		guc_counters = true;

/*
 * Which databases the worker visits.  Empty means all of them; naming those
 * that have the extension spares the others a short visit each nap.
 */
char	   *guc_databases = NULL;

/*
 * For how many operations, of all databases together, there is room in the
 * counters.  The others are counted in one row.
 */
int			guc_max_operations = 500;

/*
 * How long the worker stays away from a database after a visit.  Longer costs
 * less where nothing expires; shorter keeps tables with a short retention
 * small.
 */
int			guc_naptime = 60000;

/*
 * Whose keys a call is about when it does not say.  Set per role, per
 * transaction (SET LOCAL) or by the API layer, so that application SQL need
 * not repeat the tenant in every call.
 */
char	   *guc_principal = NULL;

/*
 * How many records one idem_purge() removes when not told.  Smaller keeps the
 * transaction and its locks short; larger costs fewer commits.
 */
int			guc_purge_batch = 1000;

/*
 * How long the worker pauses after each batch, when it is not behind.  Longer
 * spreads the work, zero does it as fast as it can be done.
 */
int			guc_purge_delay = 20;

/*
 * Should the worker work?  Off while something else calls idem_purge(), or
 * while nothing may be written in the background.
 */
bool		guc_worker = true;

/*
 * Is it a list of names?
 */
static bool
check_databases(char **value, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*value);
	List	   *names;

	if (SplitGUCList(copy, ',', &names))
		return true;
	GUC_check_errdetail("List syntax is invalid.");
	return false;
}

/*
 * Define the settings.  Called once, when the library is loaded.
 */
void
guc_init(void)
{
	/* without preload there is no memory to size: accepted, and ignored */
	GucContext	at_start = process_shared_preload_libraries_in_progress ?
	PGC_POSTMASTER : PGC_SIGHUP;

	DefineCustomBoolVariable("idempotency.counters",
							 "Counts answers, shown by idem_stat.",
							 "Needs the library in shared_preload_libraries.",
							 &guc_counters,
							 true,
							 PGC_SUSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("idempotency.databases",
							   "Sets the databases the worker visits.",
							   "Empty means all.",
							   &guc_databases,
							   "",
							   PGC_SIGHUP,
							   GUC_LIST_INPUT,
							   check_databases, NULL, NULL);

	DefineCustomIntVariable("idempotency.max_operations",
							"Sets for how many operations there is room in the counters.",
							NULL,
							&guc_max_operations,
							500,
							1, 100000,
							at_start,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("idempotency.naptime",
							"Sets how long the worker stays away from a database after a visit.",
							NULL,
							&guc_naptime,
							60000,
							1, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomStringVariable("idempotency.principal",
							   "Sets the principal of calls that do not name one.",
							   "Empty means none: such calls are refused.",
							   &guc_principal,
							   "",
							   PGC_USERSET,
							   0,
							   NULL, NULL, NULL);

	DefineCustomIntVariable("idempotency.purge_batch",
							"Sets the number of records one purge transaction removes at most.",
							NULL,
							&guc_purge_batch,
							1000,
							1, INT_MAX,
							PGC_USERSET,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("idempotency.purge_delay",
							"Sets how long the worker pauses after each batch when it is not behind.",
							NULL,
							&guc_purge_delay,
							20,
							0, 10000,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("idempotency.worker",
							 "Lets the worker visit databases and purge them.",
							 "Needs the library in shared_preload_libraries.",
							 &guc_worker,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	MarkGUCPrefixReserved("idempotency");
}
