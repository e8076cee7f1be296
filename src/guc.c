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
#include "requests.h"

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
 * How long the worker pauses after each batch, when it keeps up.  Longer
 * spreads the work, zero does it as fast as it can be done.
 */
int			guc_purge_delay = 20;

/*
 * Which request of a client this is, so that lines of the request log can be
 * found from an API's own log.  SET LOCAL by the API layer.
 */
char	   *guc_request_id = NULL;

/*
 * How many minutes lines of the request log are kept, in any unit ('7d').  They are for looking
 * into what happened lately, not for bookkeeping.
 */
int			guc_request_log_retention = 7 * 24 * 60;

/*
 * How many lines of the request log can wait for the worker.  As many as come
 * in until it writes them, which begins when half of the room is taken; more
 * than that are counted and dropped.
 */
int			guc_request_log_size = 16384;

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

/* The value a variable has before is its default. */
static void
define_bool(const char *name, const char *what, const char *more,
			bool *variable, GucContext context)
{
	DefineCustomBoolVariable(name, what, more, variable, *variable, context, 0,
							 NULL, NULL, NULL);
}

static void
define_int(const char *name, const char *what, const char *more, int *variable,
		   int least, int most, GucContext context, int flags)
{
	DefineCustomIntVariable(name, what, more, variable, *variable, least, most,
							context, flags, NULL, NULL, NULL);
}

static void
define_string(const char *name, const char *what, const char *more,
			  char **variable, GucContext context, int flags,
			  GucStringCheckHook check)
{
	DefineCustomStringVariable(name, what, more, variable, "", context, flags,
							   check, NULL, NULL);
}

#define NEEDS_PRELOAD "Needs the library in shared_preload_libraries."

/*
 * Define the settings.  Called once, when the library is loaded.
 */
void
guc_init(void)
{
	/* without preload there is no memory to size: accepted, and ignored */
	GucContext	at_start = process_shared_preload_libraries_in_progress ?
	PGC_POSTMASTER : PGC_SIGHUP;

	define_bool("idempotency.counters", "Counts answers, shown by idem_stat.",
				NEEDS_PRELOAD, &guc_counters, PGC_SUSET);
	define_string("idempotency.databases", "Sets the databases the worker visits.",
				  "Empty means all.", &guc_databases, PGC_SIGHUP,
				  GUC_LIST_INPUT, check_databases);
	define_int("idempotency.max_operations",
			   "Sets for how many operations there is room in the counters.",
			   NEEDS_PRELOAD, &guc_max_operations, 1, 100000, at_start, 0);
	define_int("idempotency.naptime",
			   "Sets how long the worker stays away from a database after a visit.",
			   NULL, &guc_naptime, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS);
	define_string("idempotency.principal",
				  "Sets the principal of calls that do not name one.",
				  "Empty means none: such calls are refused.", &guc_principal,
				  PGC_USERSET, 0, NULL);
	define_int("idempotency.purge_batch",
			   "Sets the number of records one purge transaction deletes at most.",
			   "A segment of which all is over is emptied at once, however large.", &guc_purge_batch, 1, INT_MAX, PGC_USERSET, 0);
	define_int("idempotency.purge_delay",
			   "Sets how long the worker pauses after each batch when it is not behind.",
			   NULL, &guc_purge_delay, 0, 10000, PGC_SIGHUP, GUC_UNIT_MS);
	define_string("idempotency.request_id",
				  "Sets the id of the request, for the request log.",
				  "Empty means the header x-request-id in setting request.headers, if there is one.",
				  &guc_request_id, PGC_USERSET, 0, NULL);
	define_int("idempotency.request_log_retention",
			   "Sets how long lines of the request log are kept.",
			   NULL, &guc_request_log_retention, 0, INT_MAX, PGC_SIGHUP,
			   GUC_UNIT_MIN);
	define_int("idempotency.request_log_size",
			   "Sets how many lines of the request log can wait to be written.",
			   NEEDS_PRELOAD, &guc_request_log_size, 16, 1000000, at_start, 0);
	define_bool("idempotency.worker",
				"Lets the worker visit databases and purge them.",
				NEEDS_PRELOAD, &guc_worker, PGC_SIGHUP);

	MarkGUCPrefixReserved("idempotency");
}
