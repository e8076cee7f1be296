/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  The log of requests, from shared memory into its table, by the worker.
 *
 * Lines are given back only after the transaction that wrote them committed:
 * if it fails they stay and are written by the next visit.  The worker calls
 * this once in each batch, so what was collected before and is not given back
 * by now has been committed, or the process would have left.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"

#include "background.h"
#include "compat.h"
#include "requests.h"

/* Lines in one transaction. */
#define FLUSH_BATCH 1000

static RequestLine *collected[FLUSH_BATCH];
static int	n_collected = 0;

/*
 * At the end of the transaction: give the lines back if they are written.
 */
static void
flush_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT)
		requests_release(collected, n_collected);
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		n_collected = 0;
}

/*
 * Write one line.  SPI is connected.
 */
static void
write_line(const RequestLine *line)
{
	static Oid	types[N_REQUEST_COLUMNS] = {
		TIMESTAMPTZOID, UUIDOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID,
		TEXTOID, TEXTOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, INT4OID
	};
	static SPIPlanPtr plan = NULL;
	Datum		values[N_REQUEST_COLUMNS];
	char		nulls[N_REQUEST_COLUMNS];

	if (plan == NULL)
	{
		plan = SPI_prepare("INSERT INTO idempotency_internal.request_log"
						   " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
						   N_REQUEST_COLUMNS, types);
		if (plan == NULL || SPI_keepplan(plan) != 0)
			elog(ERROR, "could not prepare to write the request log");
	}
	requests_values(line, values, nulls);
	if (SPI_execute_plan(plan, values, nulls, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not write the request log");
}

/*
 * Remove lines whose time is over.  SPI is connected.  True if there are more.
 */
static bool
remove_old_lines(void)
{
	Oid			types[2] = {INT4OID, INT4OID};
	Datum		values[2] = {
		Int32GetDatum(guc_request_log_retention), Int32GetDatum(FLUSH_BATCH)
	};

	if (SPI_execute_with_args("DELETE FROM idempotency_internal.request_log WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
							  "SELECT ctid FROM idempotency_internal.request_log"
							  " WHERE at OPERATOR(pg_catalog.<)"
							  " (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.make_interval(mins => $1))"
							  " ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED))",
							  2, types, values, NULL, false, 0) != SPI_OK_DELETE)
		elog(ERROR, "could not remove old lines of the request log");
	return SPI_processed == FLUSH_BATCH;
}

/*
 * Write lines of this database that are waiting, and remove old ones, in the
 * current transaction.  True if there are more.
 */
bool
requests_flush(void)
{
	static bool registered = false;
	bool		more;

	if (!registered)
		RegisterXactCallback(flush_xact_callback, NULL);
	registered = true;
	n_collected = requests_collect(collected, FLUSH_BATCH);
	SPI_connect();
	for (int i = 0; i < n_collected; i++)
		write_line(collected[i]);
	more = remove_old_lines();
	SPI_finish();
	return more || n_collected == FLUSH_BATCH;
}
