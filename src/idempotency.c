/*-------------------------------------------------------------------------
 *
 * idempotency.c
 *	  The module: loaded by the first call of a session.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "background.h"
#include "compat.h"
#include "outbox.h"

COMPAT_MODULE_MAGIC("idempotency", "1.0.0");

extern PGDLLEXPORT void _PG_init(void);

/*
 * Load-time set-up, a list of each room's own.
 */
void
_PG_init(void)
{
	guc_init();
	catalog_init();
	permit_init();
	ordinals_init();
	frontier_init();
	taken_init();
	shared_init();
	launcher_init();
}
