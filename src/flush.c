/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  The log of requests, from shared memory into its table, by the worker.
 *
 * A row of the table is a page full of packed lines, with the time of the first
 * and the last: a row for each line would cost the server as much as the claim
 * it tells of.  Lines are given back only after the transaction that wrote them
 * committed: if it fails they stay and are written by the next visit.  The
 * worker calls this once in a transaction, so what was collected before and is
 * not given back by now has been committed, or the process would have left.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "background.h"
#include "compat.h"
#include "requests.h"

/* Lines in one transaction. */
#define MOST_LINES 8192

/* Bytes of lines in a row: the row fills a page and is never moved out. */
#define PAGE_LINES (MaxHeapTupleSize - 64)

/* Rows to remove in one transaction. */
#define EXPIRE_BATCH 100

static uint32 collected[MOST_LINES];
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

/* Rows of the table, by column. */
typedef struct Rows
{
	int			n;
	Datum		first_at[MOST_LINES];
	Datum		last_at[MOST_LINES];
	Datum		lines[MOST_LINES];
	Datum		packed[MOST_LINES];
} Rows;

/*
 * Make a row of the lines from the given one on, as many as fit on a page.
 * Returns the next line.
 */
static int
add_row(Rows *rows, int from)
{
	bytea	   *packed = palloc(VARHDRSZ + PAGE_LINES);
	Size		used = 0;
	TimestampTz first_at = DT_NOEND;
	TimestampTz last_at = DT_NOBEGIN;
	int			i;

	for (i = from; i < n_collected; i++)
	{
		LineHead	head;
		const char *line = requests_at(collected[i], &head);

		if (used + head.length > PAGE_LINES)
			break;
		memcpy(VARDATA(packed) + used, line, head.length);
		used += head.length;
		first_at = Min(first_at, head.at);
		last_at = Max(last_at, head.at);
	}
	SET_VARSIZE(packed, VARHDRSZ + used);
	rows->first_at[rows->n] = TimestampTzGetDatum(first_at);
	rows->last_at[rows->n] = TimestampTzGetDatum(last_at);
	rows->lines[rows->n] = Int32GetDatum(i - from);
	rows->packed[rows->n++] = PointerGetDatum(packed);
	return i;
}

/*
 * Run a statement that was prepared once for the life of the process.  SPI is
 * connected.
 */
static void
execute(SPIPlanPtr *plan, const char *statement, int n, Oid *types,
		Datum *values, int expected)
{
	if (*plan == NULL)
	{
		*plan = SPI_prepare(statement, n, types);
		if (*plan == NULL || SPI_keepplan(*plan) != 0)
			elog(ERROR, "could not prepare \"%s\"", statement);
	}
	if (SPI_execute_plan(*plan, values, NULL, false, 0) != expected)
		elog(ERROR, "could not execute \"%s\"", statement);
}

/*
 * Write the lines collected.  SPI is connected.
 */
static void
write_lines(void)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {TIMESTAMPTZARRAYOID, TIMESTAMPTZARRAYOID, INT4ARRAYOID, BYTEAARRAYOID};
	Rows	   *rows = palloc(sizeof(Rows));
	Datum		values[lengthof(types)];

	rows->n = 0;
	for (int i = 0; i < n_collected;)
		i = add_row(rows, i);
	values[0] = PointerGetDatum(construct_array(rows->first_at, rows->n, TIMESTAMPTZOID,
												sizeof(TimestampTz), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	values[1] = PointerGetDatum(construct_array(rows->last_at, rows->n, TIMESTAMPTZOID,
												sizeof(TimestampTz), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	values[2] = PointerGetDatum(construct_array(rows->lines, rows->n, INT4OID,
												sizeof(int32), true, TYPALIGN_INT));
	values[3] = PointerGetDatum(construct_array(rows->packed, rows->n, BYTEAOID,
												-1, false, TYPALIGN_INT));
	execute(&plan,
			"INSERT INTO idempotency_internal.request_log (first_at, last_at, lines, packed)"
			" SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2),"
			" pg_catalog.unnest($3), pg_catalog.unnest($4))",
			lengthof(types), types, values, SPI_OK_INSERT);
}

/*
 * Write lines of this database that are waiting, in the current transaction.
 * Returns how many.
 */
int
requests_flush(void)
{
	static bool registered = false;

	if (!registered)
		RegisterXactCallback(flush_xact_callback, NULL);
	registered = true;
	n_collected = requests_collect(collected, MOST_LINES);
	if (n_collected > 0)
	{
		SPI_connect();
		write_lines();
		SPI_finish();
	}
	return n_collected;
}

/*
 * Remove rows of which the time of every line is over, in the current
 * transaction.  True if there may be more.
 */
bool
requests_expire(void)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[] = {INT4OID, INT4OID};
	Datum		values[] = {
		Int32GetDatum(guc_request_log_retention), Int32GetDatum(EXPIRE_BATCH)
	};
	bool		more;

	SPI_connect();
	execute(&plan,
			"DELETE FROM idempotency_internal.request_log WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
			"SELECT ctid FROM idempotency_internal.request_log"
			" WHERE last_at OPERATOR(pg_catalog.<)"
			" (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.make_interval(mins => $1))"
			" ORDER BY last_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
			lengthof(types), types, values, SPI_OK_DELETE);
	more = SPI_processed == EXPIRE_BATCH;
	SPI_finish();
	return more;
}
