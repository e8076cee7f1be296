/*
 * guc.c
 *	  Settings of the extension, in alphabetical order, and why one is changed.
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "compat.h"
#include "guc.h"

/* On where each key always comes to the same node: each has records of its own. */
bool		guc_allow_on_worker_nodes;

/* Off to measure what counting costs: a few nanoseconds each. */
bool		guc_counters;

/* Naming those that have the extension spares the others a visit each nap. */
char	   *guc_databases;

/* Of all databases together; what has no room is counted in one row. */
int			guc_max_operations;

/* Longer costs less where nothing expires, shorter keeps tables small. */
int			guc_naptime;

/* Set per role, per transaction or by the API layer: the tenant of all calls. */
char	   *guc_principal;

/* Smaller keeps a transaction and its locks short, larger costs fewer commits. */
int			guc_purge_batch;

/* Longer spreads the work, zero does it as fast as it can be done. */
int			guc_purge_delay;

/* So that lines of the request log can be found from an API's own log. */
char	   *guc_request_id;

/* So that a delivery can be followed from the request that caused it. */
char	   *guc_trace_context;

/* Off while something else calls idem_purge(), or nothing may be written. */
bool		guc_worker;

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

#define NEEDS_PRELOAD "Needs the library in shared_preload_libraries."

/* Defines the settings.  Once, at load. */
void
guc_init(void)
{
	/* without preload there is no memory to size: accepted, and ignored */
	GucContext	at_start = process_shared_preload_libraries_in_progress ?
	PGC_POSTMASTER : PGC_SIGHUP;

	DefineCustomBoolVariable("idempotency.allow_on_worker_nodes",
							 "Lets keys be claimed on a worker node of a sharded cluster.",
							 "Each node has records of its own: only where each key always comes to the same node.",
							 &guc_allow_on_worker_nodes, false, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idempotency.counters", "Counts answers, shown by idem_stat.",
							 NEEDS_PRELOAD, &guc_counters, true, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("idempotency.databases", "Sets the databases the worker visits.",
							   "Empty means all.", &guc_databases, "", PGC_SIGHUP,
							   GUC_LIST_INPUT, check_databases, NULL, NULL);
	DefineCustomIntVariable("idempotency.max_operations",
							"Sets for how many operations there is room in the counters.", NEEDS_PRELOAD,
							&guc_max_operations, 500, 1, 100000, at_start, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.naptime",
							"Sets how long the worker stays away from a database after a visit.", NULL,
							&guc_naptime, 60000, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomStringVariable("idempotency.principal",
							   "Sets the principal of calls that do not name one.",
							   "Empty means none: such calls are refused.",
							   &guc_principal, "", PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.purge_batch",
							"Sets the number of records one purge transaction deletes at most.",
							"A segment of which all is over is emptied at once, however large.",
							&guc_purge_batch, 1000, 1, INT_MAX, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.purge_delay",
							"Sets how long the worker pauses after each batch when it is not behind.", NULL,
							&guc_purge_delay, 20, 0, 10000, PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomStringVariable("idempotency.request_id",
							   "Sets the id of the request, for the request log.",
							   "Empty means the header x-request-id in setting request.headers, if there is one.",
							   &guc_request_id, "", PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("idempotency.trace_context",
							   "Sets the W3C trace context (traceparent) put into the headers of events.",
							   "Empty means the header traceparent in setting request.headers, if there is one.",
							   &guc_trace_context, "", PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("idempotency.worker", "Lets the worker visit databases and purge them.",
							 NEEDS_PRELOAD, &guc_worker, true, PGC_SIGHUP, 0, NULL, NULL, NULL);

	MarkGUCPrefixReserved("idempotency");
}
