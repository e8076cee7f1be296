/*-------------------------------------------------------------------------
 *
 * purge.c
 *	  idem_purge: one bounded batch of forgotten records.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"

#include "compat.h"
#include "idempotency.h"

PG_FUNCTION_INFO_V1(idem_purge);

/*
 * idem_purge(max_records).  A transaction of its own, so that what it locks
 * and holds back is bounded by the batch.
 */
Datum
idem_purge(PG_FUNCTION_ARGS)
{
	int64		max_records = PG_ARGISNULL(0) ? guc_purge_batch : PG_GETARG_INT64(0);
	Relation	rel;
	int64		removed;

	if (max_records <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_records must be greater than zero")));
	PreventCommandDuringRecovery("idem_purge()");
	PreventCommandIfReadOnly("idem_purge()");
	PreventCommandIfParallelMode("idem_purge()");
	PreventInTransactionBlock(true, "idem_purge()");

	rel = store_open(true);
	removed = store_purge(rel, max_records);
	table_close(rel, NoLock);
	PG_RETURN_INT64(removed);
}
