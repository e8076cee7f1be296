/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  Settings of the extension, in alphabetical order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "compat.h"
#include "idempotency.h"

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
 * Define the settings.  Called once, when the library is loaded.
 */
void
guc_init(void)
{
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

	MarkGUCPrefixReserved("idempotency");
}
