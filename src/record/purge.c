/*
 * purge.c
 *	  Removing what is forgotten: one bounded batch, for idem_purge() and for
 *	  the worker.
 *
 * Purge removes only what every reader treats as absent already, so it needs
 * no agreement with claims (see store.c); but it decides by the policies as
 * they are, so it stays away while one is being changed (see define.c).
 *
 * One by one
 * ----------
 * Each table is gone through in the order of its blocks, range by range; the
 * index says of most of them that nothing in them is due (forget_ranges.c).  Of
 * the others each row is judged by record_effective_state() as it is now.  What another
 * transaction has written, locked or is changing is left; nothing is waited for.
 *
 * - Nothing is missed: a row that is committed when its range is come to is
 *	 covered by the summary of the range, or the range has none and is read.  What
 *	 comes in behind the place a batch has reached, or moves there by an update, is
 *	 found by the next run, which begins at the first block.
 * - Nothing is starved: a batch gets through at least one range, or removes as
 *	 many as it may; the next one goes on at the block where it stopped, with
 *	 another table.
 *
 * Each table is a subtransaction.  If it fails, it is done once more with each
 * row in one of its own: a row that cannot be understood is noted and stays.  If
 * the table itself is damaged, it is noted and the others are purged.
 *
 * Emptying a segment
 * ------------------
 * Purge truncates a segment if all of it is forgotten.  A backend that acts on
 * what stands in a segment opens it first: with RowExclusiveLock to claim or
 * change, with AccessShareLock to read, kept to the end of the transaction (by
 * a prepared one, too; given back only by a savepoint whose rollback voids the
 * claim, open_claims.c).  Purge asks for AccessExclusiveLock without waiting.  So:
 *
 * - granted, no transaction is between its probe and its end: there is no open
 *	 claim of an id of the segment, not even one that has written nothing, no
 *	 takeover that has decided on a version, no uncommitted row.  What a scan finds
 *	 now is all there is, and the segment is scanned under the lock: each record
 *	 must be forgotten by the same record_effective_state() as for a row by row
 *	 purge, under policies that are locked against change.  Only then it is emptied;
 * - refused, a transaction uses the segment, and rows are deleted one by one.
 *
 * TRUNCATE needs more than that lock: those of the segment's indexes and of its
 * TOAST table, which may be held by themselves (amcheck, VACUUM of a TOAST
 * table), and its rows of the catalogs, which an open GRANT may have changed.  To
 * wait for any of them would make every backend wait that opens the segment.  So
 * the whole is done in a subtransaction in which no wait lasts, and a lock refused
 * there counts like one of the segment.  Nor may the commit wait: where one for a
 * synchronous standby is asked for, nothing is emptied; the worker does not ask
 * for it.
 *
 * A backend that opens the segment meanwhile waits, and the scan ends as soon as
 * one does.  With the lock it accepts the invalidations, so it sees the new file:
 * that its rows are absent is what they read as before.
 *
 * TRUNCATE shows in older snapshots, which matters to readers by SQL alone: a
 * dump, or a person reading a view, whose snapshot is older but whose lock is
 * younger misses forgotten records.  That is why a segment in which a single
 * record is to be kept is not emptied with that one put back: such a dump would
 * miss it.
 *
 * On a standby the replay of the lock conflicts with transactions that have
 * read the segment there, as the replay of a vacuum conflicts with snapshots.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "guc.h"
#include "record/record.h"
#include "stats/stats.h"

/* Fewer blocks are cheaper to delete from than to make a new file for. */
#define WORTH_EMPTYING 32

/* A purge of few records leaves segments alone that have more, at so many a block. */
#define LEAST_ROWS_OF_BLOCK 4

/* How long nothing has ended before the worker empties a segment in use. */
#define QUIET (5 * USECS_PER_SEC)

/* How long to wait for those who are in the way of emptying a segment. */
#define PATIENCE (INT64CONST(3600) * USECS_PER_SEC)

/* Of a module that has something else to purge: events. */
static void (*next_step) (void *batch) = NULL;

bool
purge_note_fault(PurgeBatch *batch, const ErrorData *error)
{
	if (error && batch->failed++ == 0)
		strlcpy(batch->fault, error->message, sizeof(batch->fault));
	return error != NULL;
}

/* Lets another step follow in each batch, once there are no more records. */
void
purge_register(void (*step) (void *batch))
{
	next_step = step;
}

/* Records of one operation that are removed. */
typedef struct Tally
{
	char	   *operation;
	int64		number;
} Tally;

static void
tally(PurgeBatch *batch, const char *operation)
{
	Tally	   *entry;
	ListCell   *lc;

	batch->removed++;
	foreach(lc, batch->tallies)
	{
		entry = lfirst(lc);
		if (strcmp(entry->operation, operation) == 0)
		{
			entry->number++;
			return;
		}
	}
	entry = palloc(sizeof(Tally));
	entry->operation = pstrdup(operation);
	entry->number = 1;
	batch->tallies = lappend(batch->tallies, entry);
}

typedef struct PurgeStep
{
	PurgeBatch *batch;
	Table		which;
	int64		shard;			/* instead of a table */
	Relation	rel;
	HeapTuple	tuple;
	const char *operation;		/* of the record removed; NULL = none was */
} PurgeStep;

/*
 * Does part of a batch in a subtransaction and, if that fails, once more row by row
 * (careful).  If that fails as well, only the fault is left of it.
 */
static bool
attempt(void (*part) (void *arg), void *arg, PurgeBatch *batch)
{
	PurgeBatch	asked = *batch;
	ErrorData  *error = subtransaction_try(part, arg);

	if (error)
	{
		*batch = asked;
		batch->careful = true;
		error = subtransaction_try(part, arg);
		batch->careful = false;
	}
	if (error)
		*batch = asked;
	return !purge_note_fault(batch, error);
}

bool
purge_has_room(const PurgeBatch *batch)
{
	return batch->removed < batch->max_records &&
		(batch->max_looks == 0 || batch->looks < batch->max_looks);
}

/* Returns the operation of a record that is forgotten; else NULL. */
static const char *
operation_if_forgotten(Relation rel, HeapTuple tuple, Record *rec)
{
	Call		call;

	store_read(rel, tuple, rec);
	identity_of_record(&call.who, rec);
	call.policy = policy_get(call.who.operation);
	return record_effective_state(rec, &call, GetCurrentTimestamp()) == EFFECTIVE_FORGOTTEN ?
		call.who.operation : NULL;
}

/*----
 * One by one.
 *----
 */

/* Removes the record in step->tuple if it is forgotten and not being changed. */
static void
purge_row(void *arg)
{
	PurgeStep  *step = arg;
	Record		rec;
	const char *operation = operation_if_forgotten(step->rel, step->tuple, &rec);

	step->operation = NULL;
	if (operation && rows_delete(step->rel, &rec.tid, false) == ROW_CHANGED)
	{
		/* accepted work that a limit has ended is in the list still */
		work_follow(&rec, NULL);
		step->operation = operation;
	}
}

/* Goes through what is left of a range, as far as the batch has room. */
static void
purge_range(PurgeStep *step, ForgetRanges *ranges, const ForgetRange *range,
			TimestampTz now)
{
	PurgeBatch *batch = step->batch;
	BlockNumber *next = &batch->next_block[step->which - TABLE_RECORD];
	bool		due = *next > range->first;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "idempotency purge",
												  ALLOCSET_DEFAULT_SIZES);
	RowScan    *scan = rows_scan_blocks(step->rel, *next, range->end, ROWS_NOW);

	*next = range->end;
	for (;;)
	{
		TimestampTz forget_at;

		MemoryContextReset(context);
		MemoryContextSwitchTo(context);
		step->tuple = rows_scan_next(scan);
		if (step->tuple == NULL)
			break;
		batch->looks++;
		forget_at = store_forget_at(step->rel, step->tuple);
		if (forget_at > now)
			continue;
		due = true;
		if (TransactionIdIsValid(scan->inserter) || TransactionIdIsValid(scan->changer))
			continue;
		if (!batch->careful)
			purge_row(step);
		else if (purge_note_fault(batch, subtransaction_try(purge_row, step)))
			continue;
		if (step->operation == NULL)
			continue;
		MemoryContextSwitchTo(caller);
		tally(batch, step->operation);
		batch->from = Min(batch->from, forget_at);
		if (batch->removed >= batch->max_records)
		{
			*next = ItemPointerGetBlockNumber(&step->tuple->t_self);
			break;
		}
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	rows_scan_end(scan);
	if (!due)
		forget_ranges_renew(ranges, range, now);
}

/* Returns whether a segment, with its TOAST table, is large enough to be emptied. */
static bool
is_worth_emptying(Relation rel)
{
	int64		blocks = RelationGetNumberOfBlocks(rel);

	if (blocks > 0 && blocks < WORTH_EMPTYING &&
		OidIsValid(rel->rd_rel->reltoastrelid))
	{
		Relation	toast = table_open(rel->rd_rel->reltoastrelid, AccessShareLock);

		blocks += RelationGetNumberOfBlocks(toast);
		table_close(toast, AccessShareLock);
	}
	return blocks >= WORTH_EMPTYING;
}

/*
 * Returns whether a segment will be emptied as a whole, so soon that its rows are
 * better left for that.  It is closed, and the wait that is left is not longer
 * than the one since, so what is stored for nothing stays in proportion.  If it
 * is overdue, a lock is in the way; it is waited for a while, and that of a vacuum,
 * which ends by itself, as long as it takes.
 */
static bool
is_worth_waiting(Relation rel, ForgetRanges *ranges, Table which, TimestampTz now)
{
	TimestampTz closes_at = segment_closes_at(which, now);
	TimestampTz due;

	if (closes_at > now || !is_worth_emptying(rel))
		return false;
	due = forget_ranges_over(ranges, now);
	if (due == NEVER || due == DT_NOBEGIN)
		return false;
	if (due > now)
		return due - now <= now - closes_at;
	if (now - due < PATIENCE || !ConditionalLockRelation(rel, ShareUpdateExclusiveLock))
		return true;
	UnlockRelation(rel, ShareUpdateExclusiveLock);
	return false;
}

static void
purge_relation(PurgeStep *step)
{
	PurgeBatch *batch = step->batch;
	int			at = step->which - TABLE_RECORD;
	TimestampTz now = GetCurrentTimestamp();
	ForgetRanges *ranges;
	ForgetRange range;

	/* most segments are empty: their indexes need not be opened */
	if (RelationGetNumberOfBlocks(step->rel) == 0)
		return;
	ranges = forget_ranges_open(step->rel);
	if (step->which == TABLE_RECORD || !batch->lazy || batch->next_block[at] > 0 ||
		!is_worth_waiting(step->rel, ranges, step->which, now))
	{
		do
		{
			CHECK_FOR_INTERRUPTS();
			batch->looks++;
			batch->done[at] = !forget_ranges_get(ranges, batch->next_block[at], &range);
			if (batch->done[at])
				break;
			forget_ranges_complete(ranges, &range);
			if (range.earliest > now)
				batch->next_block[at] = range.end;
			else
				purge_range(step, ranges, &range, now);
		} while (purge_has_room(batch));
	}
	batch->looks += forget_ranges_close(ranges);
}

/* Removes records of one table.  One that is being emptied or changed is left alone. */
static void
purge_table(void *arg)
{
	PurgeStep  *step = arg;

	step->batch->done[step->which - TABLE_RECORD] = true;
	if (step->which != TABLE_RECORD &&
		!ConditionalLockRelationOid(catalog_relid(step->which), RowExclusiveLock))
		return;
	step->rel = catalog_open(step->which, RowExclusiveLock);
	/* idem_distribute() may have had the lock before */
	if (!place_used())
		purge_relation(step);
	table_close(step->rel, NoLock);
}

static void
purge_tables(PurgeBatch *batch)
{
	int			first = batch->next_table;

	batch->at_end = true;
	for (int i = 0; i < N_RECORD_TABLES; i++)
	{
		int			at = (first + i) % N_RECORD_TABLES;
		PurgeStep	step = {.batch = batch,.which = TABLE_RECORD + at};

		if (!batch->done[at] && purge_has_room(batch))
		{
			if (!attempt(purge_table, &step, batch))
				batch->done[at] = true;
			batch->next_table = (at + 1) % N_RECORD_TABLES;
		}
		batch->at_end = batch->at_end && batch->done[at];
	}
}

/*----
 * Shards of a cluster.
 *----
 */

static void
list_shards(void *arg)
{
	*(List **) arg = place_here();
}

static void
purge_shard(void *arg)
{
	PurgeStep  *step = arg;
	PurgeBatch *batch = step->batch;

	if (step->shard != batch->next_shard)
		batch->next_block[0] = 0;
	batch->next_shard = step->shard;
	step->rel = place_open(TABLE_RECORD, step->shard, RowExclusiveLock);
	purge_relation(step);
	table_close(step->rel, NoLock);
}

/*
 * Removes a batch from the shards that are here, one shard after the other, from one
 * batch to the next.  Nothing if a move is about to end: it is not waited for.
 */
static void
purge_shards(PurgeBatch *batch)
{
	int			settings = NewGUCNestLevel();
	List	   *places = NIL;
	ErrorData  *error;
	ListCell   *lc;

	(void) set_config_option("lock_timeout", "100ms", PGC_SUSET, PGC_S_OVERRIDE,
							 GUC_ACTION_SAVE, true, 0, false);
	error = subtransaction_try(list_shards, &places);
	AtEOXact_GUC(true, settings);
	if (error && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	batch->at_end = true;
	if (error)
		return;
	foreach(lc, places)
	{
		PurgeStep	step = {.batch = batch,.which = TABLE_RECORD,
		.shard = ((Place *) lfirst(lc))->record};

		if (step.shard < batch->next_shard)
			continue;
		batch->done[0] = true;
		(void) attempt(purge_shard, &step, batch);
		batch->at_end = batch->done[0] && purge_has_room(batch);
		if (batch->done[0])
		{
			batch->next_shard = step.shard + 1;
			batch->next_block[0] = 0;
		}
		if (!batch->at_end)
			return;
	}
	batch->next_shard = 0;
}

/*----
 * Whole segments.
 *----
 */

/*
 * Returns whether all records of a segment are forgotten, and not more than the
 * batch may remove; counts them.  The caller must hold AccessExclusiveLock; false,
 * too, as soon as another backend waits for it.
 */
static bool
all_forgotten(Relation rel, PurgeBatch *batch)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "idempotency segment",
												  ALLOCSET_DEFAULT_SIZES);
	RowScan    *scan = rows_scan_blocks(rel, 0, RelationGetNumberOfBlocks(rel), ROWS_SETTLED);
	BlockNumber block = InvalidBlockNumber;
	bool		good = true;

	while (good)
	{
		const char *operation;
		HeapTuple	tuple;
		Record		rec;

		MemoryContextReset(context);
		MemoryContextSwitchTo(context);
		tuple = rows_scan_next(scan);
		if (tuple == NULL)
			break;
		if (block != ItemPointerGetBlockNumber(&tuple->t_self) &&
			LockHasWaitersRelation(rel, AccessExclusiveLock))
			good = false;
		block = ItemPointerGetBlockNumber(&tuple->t_self);
		operation = good ? operation_if_forgotten(rel, tuple, &rec) : NULL;
		good = operation != NULL && batch->removed < batch->max_emptied;
		MemoryContextSwitchTo(caller);
		if (good)
			tally(batch, operation);
	}
	MemoryContextSwitchTo(caller);
	rows_scan_end(scan);
	MemoryContextDelete(context);
	return good;
}

/*
 * Returns whether it looks as if a segment could be emptied now, and as if that
 * were worth it.  The worker leaves the segment of the present alone unless
 * nothing has come in for a while.  The segment is locked for the look only.
 */
static bool
looks_over(Table which, const PurgeBatch *batch)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		closed = segment_closes_at(which, now) <= now;
	TimestampTz due = NEVER;
	Relation	rel;

	if (!ConditionalLockRelationOid(catalog_relid(which), AccessShareLock))
		return false;
	rel = catalog_open(which, NoLock);
	if (is_worth_emptying(rel) &&
		RelationGetNumberOfBlocks(rel) <= batch->max_emptied / LEAST_ROWS_OF_BLOCK)
	{
		ForgetRanges *ranges = forget_ranges_open(rel);

		due = forget_ranges_over(ranges, now);
		(void) forget_ranges_close(ranges);
	}
	table_close(rel, AccessShareLock);
	if (due == DT_NOBEGIN)
		return closed && batch->lazy;	/* dead rows only: nothing to count */
	return due <= now && (closed || !batch->lazy || now - due >= QUIET);
}

/*
 * Empties a segment if all of it is forgotten and it is not in use.  May raise
 * 55P03 after a moment, and what a record that cannot be understood raises.
 */
static void
empty_segment(void *arg)
{
	PurgeStep  *step = arg;
	PurgeBatch *batch = step->batch;
	Oid			relid = catalog_relid(step->which);
	Oid			type = REGCLASSOID;
	Datum		segment = ObjectIdGetDatum(relid);
	Relation	rel;
	bool		over;

	if (!looks_over(step->which, batch) ||
		!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return;
	/* an outer query of ours may be reading it */
	rel = catalog_open(step->which, NoLock);
	over = rel->rd_refcnt == 1 && all_forgotten(rel, batch) &&
		(batch->removed > 0 || batch->lazy);
	table_close(rel, NoLock);
	if (!over)
	{
		UnlockRelationOid(relid, AccessExclusiveLock);
		return;
	}
	(void) catalog_call("truncate_segment", 1, &type, &segment);
	batch->emptied = true;
}

/*
 * Empties the next segment of which that is possible; false if there is none.  What
 * raises is passed: it is found again row by row, and noted then.
 */
static bool
empty_next_segment(PurgeBatch *batch)
{
	if (SyncRepRequested() && SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0')
		batch->next_segment = N_SEGMENTS;
	while (batch->next_segment < N_SEGMENTS)
	{
		PurgeStep	step = {.batch = batch,.which = TABLE_SEGMENT + batch->next_segment++};
		PurgeBatch	asked = *batch;

		CHECK_FOR_INTERRUPTS();
		if (subtransaction_try(empty_segment, &step) == NULL && batch->emptied)
			return true;
		*batch = asked;
	}
	return false;
}

/*
 * Removes one batch of forgotten records, or of delivered events past their
 * retention, without waiting for others.  What empties a segment does nothing else,
 * because the segment is locked to the end of the transaction.  False if another
 * transaction is changing settings.
 */
bool
purge_batch(PurgeBatch *batch)
{
	TimestampTz from = batch->from;
	ListCell   *lc;

	batch->removed = batch->failed = batch->looks = 0;
	batch->at_end = batch->careful = batch->emptied = false;
	batch->tallies = NIL;
	batch->from = NEVER;
	if (!ConditionalLockRelationOid(catalog_relid(TABLE_POLICY), ShareLock))
		return false;
	if (place_used())
		purge_shards(batch);
	else if (!empty_next_segment(batch))
		purge_tables(batch);
	if (batch->from == NEVER)
		batch->from = from;
	foreach(lc, batch->tallies)
		counters_add(policy_get(((Tally *) lfirst(lc))->operation)->counters,
					 COUNT_PURGED, ((Tally *) lfirst(lc))->number);
	if (batch->at_end && batch->removed < batch->max_records && next_step)
	{
		/*
		 * else looks at all records might leave none for events, in every
		 * batch
		 */
		batch->looks = 0;
		(void) attempt(next_step, batch, batch);
	}
	return true;
}

/* idem_purge(max_records).  In a transaction of its own, so its locks are bounded. */
SQL_FUNCTION(idem_purge)
{
	PurgeBatch	batch = {.from = DT_NOBEGIN};

	batch.max_records = PG_ARGISNULL(0) ? guc_purge_batch : PG_GETARG_INT64(0);
	batch.max_emptied = PG_ARGISNULL(0) ? PG_INT64_MAX : batch.max_records;
	if (batch.max_records <= 0)
		REFUSE_ARGUMENT(errmsg("max_records of idem_purge must be greater than zero"),
						errhint("Pass nothing for the setting idempotency.purge_batch."));
	call_require_writable("idem_purge()");
	PreventInTransactionBlock(true, "idem_purge()");

	if (!purge_batch(&batch))
		ereport(NOTICE,
				(errmsg("nothing was purged: settings are being changed by another transaction")));
	if (batch.failed > 0)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("left " INT64_FORMAT " records, or tables of them, that cannot be purged; the first: %s",
						batch.failed, batch.fault),
				 errhint("They are tried again with every purge.")));
	PG_RETURN_INT64(batch.removed);
}
