/*-------------------------------------------------------------------------
 *
 * purge.c
 *	  One bounded batch of forgotten records, for idem_purge() and for the
 *	  worker: a whole segment, or rows one by one.
 *
 * Purge removes only what every reader treats as absent already, so it needs
 * no agreement with claims (see store.c); but it decides by the policies as
 * they are, so it stays away while one is being changed (see define.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"

#include "background.h"
#include "compat.h"
#include "outbox.h"

PG_FUNCTION_INFO_V1(idem_purge);

/*
 * Forget old versions of normalisation settings that no record was hashed
 * under.  Looking through the records is work, so each version is looked for
 * once a day at most, and only when there is nothing else to purge.
 */
static void
purge_normalisations(Store *store)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1];
	SPITupleTable *due;
	uint64		n;
	bool		isnull;

	SPI_connect();
	if (SPI_execute("SELECT version FROM idempotency_internal.normalisation"
					" WHERE check_after OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()",
					false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not look for old normalisation settings");
	due = SPI_tuptable;
	n = SPI_processed;
	for (uint64 i = 0; i < n; i++)
	{
		values[0] = SPI_getbinval(due->vals[i], due->tupdesc, 1, &isnull);
		if (store_needs_normalisation(store, DatumGetInt64(values[0])))
			SPI_execute_with_args("UPDATE idempotency_internal.normalisation"
								  " SET check_after = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 day'"
								  " WHERE version OPERATOR(pg_catalog.=) $1",
								  1, types, values, NULL, false, 0);
		else
			SPI_execute_with_args("DELETE FROM idempotency_internal.normalisation"
								  " WHERE version OPERATOR(pg_catalog.=) $1 AND check_after IS NOT NULL",
								  1, types, values, NULL, false, 0);
	}
	SPI_finish();
}

/*
 * Get ready for the first batch of all records.
 */
void
purge_begin(PurgeBatch *batch)
{
	memset(batch, 0, sizeof(*batch));
	batch->from = DT_NOBEGIN;
	for (int i = 0; i < N_RECORD_TABLES; i++)
		batch->reached[i] = DT_NOBEGIN;
}

/*
 * Get ready to look at all records once more, from where the last time ended.
 */
void
purge_again(PurgeBatch *batch)
{
	batch->next_segment = 0;
	memset(batch->done, 0, sizeof(batch->done));
}

/*
 * Something was left because it fails; the batch takes note of it, if it
 * failed.
 */
bool
purge_note_fault(PurgeBatch *batch, const ErrorData *error)
{
	if (error && batch->failed++ == 0)
		strlcpy(batch->fault, error->message, sizeof(batch->fault));
	return error != NULL;
}

static void
events_step(void *arg)
{
	events_purge(arg);
}

/*
 * Events are purged too.  A careful batch goes on without them if their tables
 * are out of order.
 */
static void
purge_events(PurgeBatch *batch)
{
	int64		removed = batch->removed;

	if (!batch->careful)
		events_purge(batch);
	else if (purge_note_fault(batch, subtransaction_try(events_step, batch)))
		batch->removed = removed;
}

/*
 * Remove one batch of forgotten records, or of delivered events past their
 * retention, in the current transaction, without waiting for anybody.  What
 * empties a segment does nothing else, because the segment is locked to the end
 * of the transaction.  Once none is left, looks for old normalisation settings,
 * unless a table that is out of order may have records that need them.  False
 * if nothing was done because another transaction is changing settings.  Raises
 * what a record that cannot be understood raises, unless the batch is careful.
 */
bool
purge_batch(PurgeBatch *batch)
{
	Store		store;

	if (!ConditionalLockRelationOid(catalog_relid(TABLE_POLICY), ShareLock))
		return false;
	if (store_empty_segment(batch))
		return true;
	store_open(&store, true);
	store_purge(&store, batch);
	if (batch->at_end && batch->removed < batch->max_records)
		purge_events(batch);
	if (batch->removed == 0 && batch->at_end && !batch->careful)
		purge_normalisations(&store);
	store_close(&store);
	return true;
}

typedef struct PurgeStep
{
	PurgeBatch *batch;
	bool		done;
} PurgeStep;

static void
purge_step(void *arg)
{
	PurgeStep  *step = arg;

	step->done = purge_batch(step->batch);
}

/*
 * One batch, and if it fails, once more record by record, leaving those that
 * fail: one that is broken must not keep the others.  False as purge_batch().
 */
static bool
purge_batch_or_rest(PurgeBatch *batch)
{
	PurgeBatch	asked = *batch;
	PurgeStep	step = {batch, false};

	if (subtransaction_try(purge_step, &step) == NULL)
		return step.done;
	*batch = asked;
	batch->careful = true;
	step.done = purge_batch(batch);
	if (batch->failed > 0)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("left " INT64_FORMAT " records, or tables of them, that cannot be purged; the first: %s",
						batch->failed, batch->fault),
				 errhint("They are tried again with every purge.")));
	return step.done;
}

/*
 * idem_purge(max_records).  A transaction of its own, so that what it locks
 * and holds back is bounded by the batch.
 */
Datum
idem_purge(PG_FUNCTION_ARGS)
{
	PurgeBatch	batch;

	purge_begin(&batch);
	batch.max_records = PG_ARGISNULL(0) ? guc_purge_batch : PG_GETARG_INT64(0);
	batch.max_emptied = PG_ARGISNULL(0) ? PG_INT64_MAX : batch.max_records;
	if (batch.max_records <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_records of idem_purge must be greater than zero"),
				 errhint("Pass nothing for the setting idempotency.purge_batch.")));
	refuse_unless_writable("idem_purge()");
	PreventInTransactionBlock(true, "idem_purge()");

	if (!purge_batch_or_rest(&batch))
		ereport(NOTICE,
				(errmsg("nothing was purged: settings are being changed by another transaction")));
	PG_RETURN_INT64(batch.removed);
}
