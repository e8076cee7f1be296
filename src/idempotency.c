/*
 * idempotency.c
 *	  The module: loaded by the first call of a session.
 */
#include "postgres.h"

#include "guc.h"
#include "record/record.h"
#include "stats/stats.h"
#include "worker/worker.h"
#ifdef WITH_CALLS
#include "calls/calls.h"
#endif
#ifdef WITH_OUTBOX
#include "outbox/outbox.h"
#endif

COMPAT_MODULE_MAGIC(LIBRARY_NAME, LIBRARY_VERSION ".0");

extern PGDLLEXPORT void _PG_init(void);

static const SharedPiece pieces[] = {
	{"idempotency counters", counters_size, counters_attach, &counters_table, counters_count_again},
#ifdef WITH_CALLS
	{"idempotency limiter", limiter_size, limiter_attach, &limiter_table, limiter_count_again},
#endif
#ifdef WITH_OUTBOX
	{"idempotency outbox", queue_start_size, queue_start_attach, NULL, NULL},
#endif
	{"idempotency worker", runs_size, runs_attach, NULL, NULL},
};

void
_PG_init(void)
{
	guc_init();
	catalog_init();
	place_init();
	store_init();
	open_claim_init();
#ifdef WITH_OUTBOX
	outbox_init();
#endif
	shared_init(pieces, lengthof(pieces));
	launcher_init();
}
