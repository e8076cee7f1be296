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
#include "utils/array.h"

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
 * The columns of the table: their types, and those of arrays of them.
 */
static const struct
{
	Oid			type;
	Oid			array;
	int16		length;
	bool		by_value;
	char		alignment;
}			columns[N_REQUEST_COLUMNS] = {
#define TEXT_COLUMN {TEXTOID, TEXTARRAYOID, -1, false, TYPALIGN_INT}
#define INT_COLUMN {INT4OID, INT4ARRAYOID, 4, true, TYPALIGN_INT}
	{TIMESTAMPTZOID, TIMESTAMPTZARRAYOID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE},
	{UUIDOID, UUIDARRAYOID, 16, false, TYPALIGN_CHAR},
	TEXT_COLUMN, TEXT_COLUMN, TEXT_COLUMN, TEXT_COLUMN, TEXT_COLUMN,
	TEXT_COLUMN, TEXT_COLUMN, INT_COLUMN, TEXT_COLUMN, TEXT_COLUMN,
	TEXT_COLUMN, INT_COLUMN
};

#define A(n) "pg_catalog.unnest($" #n ")"

/*
 * Write the lines collected, as one array for each column.  SPI is connected.
 */
static void
write_lines(void)
{
	Datum	   *values[N_REQUEST_COLUMNS];
	bool	   *nulls[N_REQUEST_COLUMNS];
	Datum		arrays[N_REQUEST_COLUMNS];
	Oid			types[N_REQUEST_COLUMNS];
	int			lower = 1;

	for (int c = 0; c < N_REQUEST_COLUMNS; c++)
	{
		values[c] = palloc(n_collected * sizeof(Datum));
		nulls[c] = palloc(n_collected * sizeof(bool));
		types[c] = columns[c].array;
	}
	for (int i = 0; i < n_collected; i++)
	{
		Datum		row[N_REQUEST_COLUMNS];
		bool		row_nulls[N_REQUEST_COLUMNS];

		requests_values(collected[i], row, row_nulls);
		for (int c = 0; c < N_REQUEST_COLUMNS; c++)
		{
			values[c][i] = row[c];
			nulls[c][i] = row_nulls[c];
		}
	}
	for (int c = 0; c < N_REQUEST_COLUMNS; c++)
		arrays[c] = PointerGetDatum(construct_md_array(values[c], nulls[c], 1,
													   &n_collected, &lower,
													   columns[c].type, columns[c].length,
													   columns[c].by_value,
													   columns[c].alignment));
	if (SPI_execute_with_args("INSERT INTO idempotency_internal.request_log"
							  " SELECT * FROM ROWS FROM (" A(1) ", " A(2) ", " A(3) ", " A(4) ", " A(5) ", "
							  A(6) ", " A(7) ", " A(8) ", " A(9) ", " A(10) ", " A(11) ", " A(12) ", " A(13) ", " A(14) ")",
							  N_REQUEST_COLUMNS, types, arrays, NULL, false, 0) != SPI_OK_INSERT)
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
	if (n_collected > 0)
		write_lines();
	more = remove_old_lines();
	SPI_finish();
	return more || n_collected == FLUSH_BATCH;
}
