/*-------------------------------------------------------------------------
 *
 * rows.c
 *	  Rows of our tables, found and written without a query plan.
 *
 * Finding
 * -------
 * A row is looked up by a unique index as it is now, whoever is writing it.
 * A dirty snapshot shows rows not yet committed beside the last committed
 * ones, says whose they are, and takes no SSI locks: a look-up can neither
 * miss what a transaction snapshot is too old for nor cause a 40001.
 *
 * The price is that the look-up is not one instant.  A row that is moved to
 * another index entry and committed while the scan stands between the two may
 * show none of its versions, or both, or only the new one as uncommitted.  They
 * are told apart from the truth:
 *
 * - two settled versions of one key cannot exist at an instant, so the scan is
 *	 repeated;
 * - so it is if there is nothing but a version of a transaction that has ended
 *	 since;
 * - no version at all although the index had entries for the key may be such a
 *	 move, so the scan is repeated until it meets the very entries of the scan
 *	 before.  A move puts a new entry into the index: if none came in between,
 *	 nothing moved, and the entries are of rows that are gone.
 *
 * Writing is what the executor does for SQL, by hand: all indexes are
 * maintained through ExecInsertIndexTuples, and a command ends with
 * CommandCounterIncrement, so that the next look-up sees it.  catalog.c has
 * refused tables with triggers, partitions or another access method.
 * Privileges are those of our SQL functions; read-only transactions, recovery
 * and parallel mode are refused by the callers.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "idempotency.h"

typedef struct Sighting
{
	uint64		entries;		/* digest of the index entries for the key; 0
								 * = there were none */
	int			settled;		/* versions committed or our own */
	HeapTuple	tuple;			/* the last of those */
	TransactionId other;		/* an open transaction of others on the key */
} Sighting;

/*
 * One pass over the versions of a key.  The scan must be positioned by the
 * caller; dirty is its snapshot; a tuple is copied into context.
 */
static void
probe_pass(IndexScanDesc scan, SnapshotData *dirty, TupleTableSlot *slot,
		   MemoryContext context, Sighting *seen)
{
	memset(seen, 0, sizeof(*seen));
	for (;;)
	{
		if (!scan->xs_heap_continue)
		{
			ItemPointer tid = index_getnext_tid(scan, ForwardScanDirection);

			if (tid == NULL)
				break;
			seen->entries = seen->entries * UINT64CONST(0x9E3779B97F4A7C15) +
				((uint64) ItemPointerGetBlockNumber(tid) << 16) +
				ItemPointerGetOffsetNumber(tid);
		}
		if (!index_fetch_heap(scan, slot))
			continue;

		if (TransactionIdIsValid(dirty->xmin))
			seen->other = dirty->xmin;
		else
		{
			MemoryContext old = MemoryContextSwitchTo(context);

			seen->tuple = ExecCopySlotHeapTuple(slot);
			MemoryContextSwitchTo(old);
			seen->settled++;
			if (TransactionIdIsValid(dirty->xmax))
				seen->other = dirty->xmax;
		}
	}
}

/* A unique index kept open between look-ups. */
struct RowLook
{
	MemoryContext context;		/* what the scan allocates as it goes */
	Relation	index;
	RegProcedure equal;
	TupleTableSlot *slot;
	SnapshotData dirty;
	IndexScanDesc scan;
};

/*
 * Get ready to look rows up by a unique index on one column, compared by the
 * function equal under collation "C".  The caller holds a lock on heap until
 * rows_look_end().
 */
RowLook *
rows_look_begin(Relation heap, Oid index_oid, RegProcedure equal)
{
	RowLook    *look = palloc(sizeof(RowLook));

	look->context = CurrentMemoryContext;
	look->index = index_open(index_oid, AccessShareLock);
	look->equal = equal;
	look->slot = table_slot_create(heap, NULL);
	InitDirtySnapshot(look->dirty);
	look->scan = compat_index_beginscan(heap, look->index, &look->dirty, 1, 0);
	return look;
}

/*
 * Find the row with this key.
 *
 * PROBE_ROW: *tuple is a copy, made in the current memory context, of the last
 * committed version or our own; *other is valid if another open transaction is
 * changing it.  PROBE_IN_FLIGHT: there are only versions of another open
 * transaction, *other.  Nothing stays pinned.
 */
ProbeResult
rows_look(RowLook *look, Datum key, HeapTuple *tuple, TransactionId *other)
{
	MemoryContext caller = MemoryContextSwitchTo(look->context);
	uint64		entries = 0;
	ScanKeyData skey;
	Sighting	seen;

	ScanKeyInit(&skey, 1, BTEqualStrategyNumber, look->equal, key);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		index_rescan(look->scan, &skey, 1, NULL, 0);
		probe_pass(look->scan, &look->dirty, look->slot, caller, &seen);
		if (seen.settled > 1 || (seen.settled == 0 &&
								 TransactionIdIsValid(seen.other) &&
								 !TransactionIdIsInProgress(seen.other)))
			continue;
		if (seen.settled == 1 || TransactionIdIsValid(seen.other) ||
			seen.entries == entries)
			break;
		entries = seen.entries;
	}
	ExecClearTuple(look->slot);
	table_index_fetch_reset(look->scan->xs_heapfetch);
	MemoryContextSwitchTo(caller);

	*tuple = seen.tuple;
	*other = seen.other;
	if (seen.settled == 1)
		return PROBE_ROW;
	return TransactionIdIsValid(seen.other) ? PROBE_IN_FLIGHT : PROBE_NOTHING;
}

/*
 * Close it; the lock on the index is kept to the end of the transaction.
 */
void
rows_look_end(RowLook *look)
{
	index_endscan(look->scan);
	ExecDropSingleTupleTableSlot(look->slot);
	index_close(look->index, NoLock);
	pfree(look);
}

/* What executor routines want beside the tuple. */
typedef struct Writer
{
	EState	   *estate;
	ResultRelInfo *rri;
	TupleTableSlot *slot;
} Writer;

/*
 * Get ready to write.
 */
static void
writer_open(Writer *writer, Relation rel)
{
	writer->estate = CreateExecutorState();
	writer->rri = makeNode(ResultRelInfo);
	InitResultRelInfo(writer->rri, rel, 0, NULL, 0);
	ExecOpenIndices(writer->rri, false);
	writer->slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
											&TTSOpsHeapTuple);
	writer->slot->tts_tableOid = RelationGetRelid(rel);
}

/*
 * Get ready to write a tuple, which is freed at the end.
 */
static void
writer_begin(Writer *writer, Relation rel, HeapTuple tuple)
{
	writer_open(writer, rel);
	ExecStoreHeapTuple(tuple, writer->slot, true);
}

static void
writer_end(Writer *writer)
{
	ExecDropSingleTupleTableSlot(writer->slot);
	ExecCloseIndices(writer->rri);
	FreeExecutorState(writer->estate);
	CommandCounterIncrement();
}

/*
 * Delete the row this command has just inserted.
 */
static void
take_back(Relation rel, ItemPointer tid)
{
	CommandCounterIncrement();
	simple_table_tuple_delete(rel, tid, InvalidSnapshot);
}

/*
 * Insert a row.  False if the primary key already has one with that key from
 * anybody, committed or not; nothing is inserted then, and nobody is waited
 * for.  Another unique index raises 23505 as it would for SQL.
 */
bool
rows_insert(Relation rel, HeapTuple tuple)
{
	List	   *arbiters = list_make1_oid(compat_primary_key_index(rel));
	bool		conflict = false;
	Writer		writer;

	writer_begin(&writer, rel, tuple);
	table_tuple_insert(rel, writer.slot, GetCurrentCommandId(true), 0, NULL);
	compat_insert_index_tuples(writer.rri, writer.slot, writer.estate, true,
							   &conflict, arbiters, false);
	if (conflict)
		take_back(rel, &writer.slot->tts_tid);
	writer_end(&writer);
	return !conflict;
}

/*
 * What became of an attempt to change a version.
 */
static RowChange
change_of(TM_Result result, Relation rel)
{
	switch (result)
	{
		case TM_Ok:
			return ROW_CHANGED;
		case TM_BeingModified:
		case TM_WouldBlock:
			return ROW_BUSY;
		case TM_Updated:
		case TM_Deleted:
		case TM_Invisible:
			return ROW_MISSED;
		case TM_SelfModified:
			break;
	}
	elog(ERROR, "row of table \"%s\" was changed by this very command",
		 RelationGetRelationName(rel));
	return ROW_MISSED;
}

/*
 * Lock the version at tid against being changed.  The slot is for the tuple.
 */
static RowChange
lock_into(Relation rel, const ItemPointerData *tid, TupleTableSlot *slot,
		  bool wait)
{
	ItemPointerData old = *tid;
	TM_FailureData tmfd;
	RowChange	change;

	change = change_of(table_tuple_lock(rel, &old, InvalidSnapshot, slot,
										GetCurrentCommandId(true),
										LockTupleNoKeyExclusive,
										wait ? LockWaitBlock : LockWaitSkip,
										0, &tmfd),
					   rel);
	ExecClearTuple(slot);
	return change;
}

/*
 * Lock the version at tid, to the end of the transaction, against being
 * changed or locked like that by others.  With wait, waits for those; without,
 * ROW_BUSY.
 */
RowChange
rows_lock(Relation rel, const ItemPointerData *tid, bool wait)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	RowChange	change = lock_into(rel, tid, slot, wait);

	ExecDropSingleTupleTableSlot(slot);
	return change;
}

static RowChange
lock_row(Relation rel, const ItemPointerData *tid)
{
	return rows_lock(rel, tid, false);
}

/*
 * Replace the version at tid.  With wait, waits for another transaction that
 * is changing it or has it locked; without, ROW_BUSY.
 */
RowChange
rows_update(Relation rel, const ItemPointerData *tid, HeapTuple tuple, bool wait)
{
	ItemPointerData old = *tid;
	bool		insert_indexes;
	bool		only_summarizing;
	RowChange	change;
	TM_FailureData tmfd;
	Writer		writer;

	/* heap_update cannot be told not to wait for a tuple in other hands */
	if (!wait)
	{
		change = lock_row(rel, tid);
		if (change != ROW_CHANGED)
			return change;
	}
	writer_begin(&writer, rel, tuple);
	change = change_of(compat_table_tuple_update(rel, &old, writer.slot,
												 GetCurrentCommandId(true), true,
												 &tmfd, &insert_indexes,
												 &only_summarizing),
					   rel);
	if (change == ROW_CHANGED && insert_indexes)
		compat_insert_index_tuples(writer.rri, writer.slot, writer.estate, false,
								   NULL, NIL, only_summarizing);
	writer_end(&writer);
	return change;
}

static RowChange
delete_row(Relation rel, const ItemPointerData *tid, bool wait)
{
	ItemPointerData old = *tid;
	TM_FailureData tmfd;

	return change_of(table_tuple_delete(rel, &old, GetCurrentCommandId(true),
										InvalidSnapshot, InvalidSnapshot,
										wait, &tmfd, false),
					 rel);
}

/*
 * Delete the version at tid; waits like rows_update.
 */
RowChange
rows_delete(Relation rel, const ItemPointerData *tid, bool wait)
{
	RowChange	change = delete_row(rel, tid, wait);

	/* in our own hands is not in others' */
	if (change == ROW_BUSY && lock_row(rel, tid) == ROW_CHANGED)
		change = delete_row(rel, tid, true);
	CommandCounterIncrement();
	return change;
}

/* For many rows of one table. */
struct RowWriter
{
	Relation	rel;
	Writer		writer;
	TupleTableSlot *locked;
};

/*
 * Get ready to change many rows, each once.  The caller holds a lock on rel
 * until rows_writer_end().
 */
RowWriter *
rows_writer_begin(Relation rel)
{
	RowWriter  *many = palloc(sizeof(RowWriter));

	many->rel = rel;
	writer_open(&many->writer, rel);
	many->locked = table_slot_create(rel, NULL);
	return many;
}

/*
 * rows_lock for one of them.
 */
RowChange
rows_writer_lock(RowWriter *many, const ItemPointerData *tid, bool wait)
{
	return lock_into(many->rel, tid, many->locked, wait);
}

/*
 * Replace the version at tid, which this transaction has locked.  True if the
 * new one has index entries of its own; they are there by now.
 */
bool
rows_writer_update(RowWriter *many, const ItemPointerData *tid, HeapTuple tuple)
{
	ItemPointerData old = *tid;
	Writer	   *writer = &many->writer;
	bool		insert_indexes;
	bool		only_summarizing;
	TM_FailureData tmfd;

	ExecStoreHeapTuple(tuple, writer->slot, true);
	if (change_of(compat_table_tuple_update(many->rel, &old, writer->slot,
											GetCurrentCommandId(true), true,
											&tmfd, &insert_indexes,
											&only_summarizing),
				  many->rel) != ROW_CHANGED)
		elog(ERROR, "a locked row of table \"%s\" was changed by others",
			 RelationGetRelationName(many->rel));
	if (insert_indexes)
		compat_insert_index_tuples(writer->rri, writer->slot, writer->estate,
								   false, NULL, NIL, only_summarizing);
	ResetPerTupleExprContext(writer->estate);
	ExecClearTuple(writer->slot);
	return insert_indexes;
}

/*
 * Done; what was changed can be seen from now on.
 */
void
rows_writer_end(RowWriter *many)
{
	ExecDropSingleTupleTableSlot(many->locked);
	writer_end(&many->writer);
	pfree(many);
}
