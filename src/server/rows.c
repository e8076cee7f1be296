/*
 * rows.c
 *	  Rows of the tables of the extension, found and written without a query plan.
 *
 * Finding
 * -------
 * A row is looked up by a unique index as it is now, committed or not.
 * A dirty snapshot shows rows not yet committed beside the last committed
 * ones, says whose they are, and takes no SSI locks: a look-up can neither
 * miss what a transaction snapshot is too old for nor cause a 40001.
 *
 * The price is that the look-up is not one instant.  A row that is moved to
 * another index entry and committed while the scan stands between the two may
 * show none of its versions, or both, or only the new one as uncommitted.  They
 * are told apart from the truth:
 *
 * - two committed versions of one key cannot exist at an instant, so the scan is
 *	 repeated;
 * - so it is if there is nothing but a version of a transaction that has ended
 *	 since;
 * - no version at all although the index had entries for the key may be such a
 *	 move, so the scan is repeated until it meets the very entries of the scan
 *	 before.  A move puts a new entry into the index: if none came in between,
 *	 nothing moved, and the entries are of rows that are gone.
 *
 * Writing is what the executor does for SQL: all indexes are maintained, by
 * insert_entries(), which costs less, or ExecInsertIndexTuples if one of them is
 * not plain; and a command ends with CommandCounterIncrement, so that the next
 * look-up sees it.  catalog.c has refused tables with triggers, partitions or
 * another access method; callers refuse read-only transactions, recovery and
 * parallel mode.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "server/server.h"

typedef struct ProbePass
{
	uint64		entries;		/* digest of the index entries for the key; 0
								 * = there were none */
	int			committed;		/* versions committed, or of this transaction */
	HeapTuple	tuple;			/* the last of those */
	TransactionId other;		/* an open transaction of others on the key */
	bool		written;		/* a version that it has inserted is there */
} ProbePass;

/*
 * One pass over the versions of a key, by a scan that stands before the first;
 * dirty is its snapshot.  A tuple is copied into context.
 */
static void
probe_pass(IndexScanDesc scan, SnapshotData *dirty, TupleTableSlot *slot,
		   MemoryContext context, ProbePass *seen)
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
		{
			seen->other = dirty->xmin;
			seen->written = true;
		}
		else
		{
			MemoryContext old = MemoryContextSwitchTo(context);

			seen->tuple = ExecCopySlotHeapTuple(slot);
			MemoryContextSwitchTo(old);
			seen->committed++;
			if (TransactionIdIsValid(dirty->xmax))
				seen->other = dirty->xmax;
		}
	}
}

/* Returns a tuple of n columns; those added and dropped behind them are null. */
HeapTuple
rows_form(TupleDesc desc, int n, Datum *values, bool *nulls)
{
	Datum	   *all_values;
	bool	   *all_nulls;

	if (desc->natts == n)
		return heap_form_tuple(desc, values, nulls);
	all_values = palloc0(desc->natts * sizeof(Datum));
	all_nulls = palloc(desc->natts * sizeof(bool));
	memset(all_nulls, true, desc->natts * sizeof(bool));
	memcpy(all_values, values, n * sizeof(Datum));
	memcpy(all_nulls, nulls, n * sizeof(bool));
	return heap_form_tuple(desc, all_values, all_nulls);
}

/* Begins to read the first n columns of a tuple. */
void
row_begin(RowValues *row, TupleDesc desc, HeapTuple tuple, int n)
{
	Assert(n <= lengthof(row->values));
	row->n = 0;
	if (desc->natts == n)
		heap_deform_tuple(tuple, desc, row->values, row->nulls);
	else
		for (int i = 0; i < n; i++)
			row->values[i] = heap_getattr(tuple, i + 1, desc, &row->nulls[i]);
}

/*
 * Gets ready to look rows up by the first column of the primary key, compared by
 * the function equal.  The caller must hold lockmode on heap until rows_probe_end().
 */
RowProbe *
rows_probe_begin(Relation heap, RegProcedure equal, LOCKMODE lockmode)
{
	RowProbe   *probe = palloc(sizeof(RowProbe));

	probe->context = CurrentMemoryContext;
	probe->index = index_open(compat_primary_key_index(heap), lockmode);
	probe->equal = equal;
	probe->slot = table_slot_create(heap, NULL);
	InitDirtySnapshot(probe->dirty);
	probe->scan = compat_index_beginscan(heap, probe->index, &probe->dirty, 1, 0);
	return probe;
}

/*
 * PROBE_ROW: probe->tuple is a copy, made in the current memory context, of the
 * last committed version, or that of this transaction; probe->other is valid if
 * another open transaction is changing it.  PROBE_IN_FLIGHT: there are only versions
 * of another open transaction, probe->other.  Nothing stays pinned.
 */
ProbeResult
rows_probe(RowProbe *probe, Datum key)
{
	MemoryContext caller = MemoryContextSwitchTo(probe->context);
	uint64		entries = 0;
	ScanKeyData skey;
	ProbePass	seen;

	ScanKeyInit(&skey, 1, BTEqualStrategyNumber, probe->equal, key);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		index_rescan(probe->scan, &skey, 1, NULL, 0);
		probe_pass(probe->scan, &probe->dirty, probe->slot, caller, &seen);
		if (seen.committed > 1 || (seen.committed == 0 &&
								   TransactionIdIsValid(seen.other) &&
								   !TransactionIdIsInProgress(seen.other)))
			continue;
		if (seen.committed == 1 || TransactionIdIsValid(seen.other) ||
			seen.entries == entries)
			break;
		entries = seen.entries;
	}
	ExecClearTuple(probe->slot);
	table_index_fetch_reset(probe->scan->xs_heapfetch);
	MemoryContextSwitchTo(caller);

	probe->tuple = seen.tuple;
	probe->other = seen.other;
	probe->being_deleted = TransactionIdIsValid(seen.other) && !seen.written;
	if (seen.committed == 1)
		return PROBE_ROW;
	return TransactionIdIsValid(seen.other) ? PROBE_IN_FLIGHT : PROBE_NOTHING;
}

/* The lock on the index is kept to the end of the transaction. */
void
rows_probe_end(RowProbe *probe)
{
	index_endscan(probe->scan);
	ExecDropSingleTupleTableSlot(probe->slot);
	index_close(probe->index, NoLock);
	pfree(probe);
}

static RowScan *
new_scan(Relation rel)
{
	RowScan    *scan = palloc0(sizeof(RowScan));

	scan->rel = rel;
	scan->context = CurrentMemoryContext;
	scan->slot = table_slot_create(rel, NULL);
	InitDirtySnapshot(scan->dirty);
	return scan;
}

/*
 * Begins a scan of an index, as the rows are at each step.  A row that gets a new
 * index entry meanwhile may be missed: a caller that concludes something from not
 * meeting a row needs a rule that excludes this, as outbox/README.md has.  The
 * caller must hold locks on both relations until rows_scan_end().
 */
RowScan *
rows_scan_begin(Relation rel, Relation index, ScanKey keys, int n,
				ScanDirection direction)
{
	RowScan    *scan = new_scan(rel);

	scan->direction = direction;
	scan->scan = compat_index_beginscan(rel, index, &scan->dirty, n, 0);
	index_rescan(scan->scan, keys, n, NULL, 0);
	return scan;
}

/* Begins a scan of blocks before end.  The caller must hold a lock on rel until rows_scan_end(). */
RowScan *
rows_scan_blocks(Relation rel, BlockNumber first, BlockNumber end, RowsKind kind)
{
	RowScan    *scan = new_scan(rel);
	ItemPointerData from;
	ItemPointerData to;

	if (kind == ROWS_NOT_REMOVABLE)
		InitNonVacuumableSnapshot(scan->dirty, GlobalVisTestFor(rel));
	scan->kind = kind;
	scan->direction = ForwardScanDirection;
	ItemPointerSet(&from, first, FirstOffsetNumber);
	ItemPointerSet(&to, end - 1, MaxOffsetNumber);
	scan->blocks = table_beginscan_tidrange(rel, kind == ROWS_SETTLED ? SnapshotAny : &scan->dirty,
											&from, &to);
	return scan;
}

/*
 * Returns whether a version is there, not counting open transactions of others.  Leaves
 * no hint bits: they make pages dirty, which the WAL has to take in if they have checksums.
 */
static bool
is_settled(HeapTupleHeader tuple)
{
	TransactionId xid = HeapTupleHeaderGetRawXmin(tuple);

	if (!HeapTupleHeaderXminCommitted(tuple) &&
		(HeapTupleHeaderXminInvalid(tuple) ||
		 !(TransactionIdIsCurrentTransactionId(xid) || TransactionIdDidCommit(xid))))
		return false;
	if ((tuple->t_infomask & HEAP_XMAX_INVALID) ||
		HEAP_XMAX_IS_LOCKED_ONLY(tuple->t_infomask))
		return true;
	if (tuple->t_infomask & HEAP_XMAX_COMMITTED)
		return false;
	xid = HeapTupleHeaderGetUpdateXid(tuple);
	return !TransactionIdIsCurrentTransactionId(xid) && !TransactionIdDidCommit(xid);
}

/* Moves a scan to its next version.  False at the end. */
static bool
scan_step(RowScan *scan)
{
	Buffer		buffer;
	bool		good;

	if (scan->scan)
		return index_getnext_slot(scan->scan, scan->direction, scan->slot);
	for (;;)
	{
		if (!table_scan_getnextslot_tidrange(scan->blocks, scan->direction, scan->slot))
			return false;
		if (scan->kind != ROWS_SETTLED)
			return true;
		CHECK_FOR_INTERRUPTS();
		buffer = ((BufferHeapTupleTableSlot *) scan->slot)->buffer;
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		good = is_settled(ExecFetchSlotHeapTuple(scan->slot, false, NULL)->t_data);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		if (good)
			return true;
	}
}

/*
 * Returns a copy, in the current memory context, of the next row that is not
 * gone; NULL at the end.  Of a row that is being changed there may be several
 * versions.  Sets scan->inserter and scan->changer.
 */
HeapTuple
rows_scan_next(RowScan *scan)
{
	MemoryContext caller = MemoryContextSwitchTo(scan->context);
	bool		found = scan_step(scan);

	MemoryContextSwitchTo(caller);
	CHECK_FOR_INTERRUPTS();
	if (!found)
		return NULL;
	scan->inserter = scan->dirty.xmin;
	scan->changer = scan->dirty.xmax;
	return ExecCopySlotHeapTuple(scan->slot);
}

void
rows_scan_end(RowScan *scan)
{
	if (scan->scan)
		index_endscan(scan->scan);
	else
		table_endscan(scan->blocks);
	ExecDropSingleTupleTableSlot(scan->slot);
	pfree(scan);
}

struct RowWriter
{
	Relation	rel;
	List	   *indexes;
	EState	   *estate;			/* NULL = the executor is not needed */
	ResultRelInfo *rri;
	TupleTableSlot *slot;
};

/*
 * Opens the indexes of a table.  The executor is needed if one of them is of another
 * kind than those of the script, has an expression or a predicate, or is unique beside
 * the primary key.
 */
static void
open_writer(RowWriter *writer, Relation rel)
{
	List	   *oids = RelationGetIndexList(rel);
	bool		plain = true;
	ListCell   *lc;

	writer->rel = rel;
	writer->indexes = NIL;
	writer->estate = NULL;
	foreach(lc, oids)
	{
		Relation	index = index_open(lfirst_oid(lc), RowExclusiveLock);
		Form_pg_index form = index->rd_index;

		writer->indexes = lappend(writer->indexes, index);
		plain = plain && form->indisready && !form->indisexclusion &&
			(index->rd_rel->relam == BTREE_AM_OID || index->rd_rel->relam == BRIN_AM_OID) &&
			(!form->indisunique || form->indexrelid == compat_primary_key_index(rel)) &&
			heap_attisnull(index->rd_indextuple, Anum_pg_index_indexprs, NULL) &&
			heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
	}
	list_free(oids);
	if (plain)
		return;
	writer->estate = CreateExecutorState();
	writer->rri = makeNode(ResultRelInfo);
	InitResultRelInfo(writer->rri, rel, 0, NULL, 0);
	ExecOpenIndices(writer->rri, false);
	writer->slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);
}

static void
close_writer(RowWriter *writer)
{
	ListCell   *lc;

	if (writer->estate)
	{
		ExecDropSingleTupleTableSlot(writer->slot);
		ExecCloseIndices(writer->rri);
		FreeExecutorState(writer->estate);
	}
	foreach(lc, writer->indexes)
		index_close(lfirst(lc), NoLock);
	list_free(writer->indexes);
	CommandCounterIncrement();
}

/* Inserts index entries of a row.  False if the primary key has the key of a new row already. */
static bool
insert_entries(const RowWriter *writer, HeapTuple tuple, bool is_new, bool only_summarizing)
{
	Relation	rel = writer->rel;
	Oid			primary = compat_primary_key_index(rel);
	bool		conflict = false;
	ListCell   *lc;

	if (writer->estate)
	{
		ExecStoreHeapTuple(tuple, writer->slot, false);
		compat_insert_index_tuples(writer->rri, writer->slot, writer->estate, is_new, &conflict,
								   is_new ? list_make1_oid(primary) : NIL, only_summarizing);
		ResetPerTupleExprContext(writer->estate);
		ExecClearTuple(writer->slot);
		return !conflict;
	}
	foreach(lc, writer->indexes)
	{
		Relation	index = lfirst(lc);
		Form_pg_index form = index->rd_index;
		IndexUniqueCheck check = RelationGetRelid(index) != primary ? UNIQUE_CHECK_NO :
		is_new ? UNIQUE_CHECK_PARTIAL : UNIQUE_CHECK_YES;
		IndexInfo	info = {.type = T_IndexInfo,.ii_NumIndexAttrs = form->indnatts,
			.ii_NumIndexKeyAttrs = form->indnkeyatts,.ii_Unique = form->indisunique,
		.ii_ReadyForInserts = true,.ii_Context = CurrentMemoryContext};
		Datum		values[INDEX_MAX_KEYS];
		bool		nulls[INDEX_MAX_KEYS];

		if (only_summarizing && index->rd_rel->relam != BRIN_AM_OID)
			continue;
		for (int i = 0; i < form->indnatts; i++)
			values[i] = heap_getattr(tuple, form->indkey.values[i], RelationGetDescr(rel), &nulls[i]);
		if (!index_insert(index, values, nulls, &tuple->t_self, rel, check, false, &info) &&
			check == UNIQUE_CHECK_PARTIAL)
			conflict = true;
		compat_index_insert_cleanup(index, &info);
	}
	return !conflict;
}

/*
 * Insert a row.  False if the primary key already has one with that key from
 * any transaction, committed or not; nothing is inserted then, and there is no
 * wait.  Another unique index raises 23505 as it would for SQL.
 */
bool
rows_insert(Relation rel, HeapTuple tuple)
{
	RowWriter	writer;
	bool		inserted;

	open_writer(&writer, rel);
	heap_insert(rel, tuple, GetCurrentCommandId(true), 0, NULL);
	inserted = insert_entries(&writer, tuple, true, false);
	close_writer(&writer);
	if (!inserted)
	{
		/* take the row back */
		simple_table_tuple_delete(rel, &tuple->t_self, InvalidSnapshot);
		CommandCounterIncrement();
	}
	heap_freetuple(tuple);
	return inserted;
}

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
 * Lock the version at tid, to the end of the transaction, against being
 * changed or locked like that by others.  With wait, waits for those; without,
 * ROW_BUSY.
 */
RowChange
rows_lock(Relation rel, const ItemPointerData *tid, bool wait)
{
	HeapTupleData tuple = {.t_self = *tid};
	TM_FailureData tmfd;
	Buffer		buffer;
	TM_Result	result = heap_lock_tuple(rel, &tuple, GetCurrentCommandId(true), LockTupleNoKeyExclusive,
										 wait ? LockWaitBlock : LockWaitSkip, false, &buffer, &tmfd);

	ReleaseBuffer(buffer);
	return change_of(result, rel);
}

/* Replaces the version at tid, and frees tuple.  *indexed: it has index entries. */
static RowChange
replace_row(const RowWriter *writer, const ItemPointerData *tid, HeapTuple tuple, bool *indexed)
{
	ItemPointerData old = *tid;
	bool		only_summarizing;
	RowChange	change = change_of(compat_heap_update(writer->rel, &old, tuple, GetCurrentCommandId(true),
													  indexed, &only_summarizing),
								   writer->rel);

	if (change == ROW_CHANGED && *indexed)
		(void) insert_entries(writer, tuple, false, only_summarizing);
	heap_freetuple(tuple);
	return change;
}

/*
 * Replace the version at tid.  With wait, waits for another transaction that
 * is changing it or has it locked; without, ROW_BUSY.
 */
RowChange
rows_update(Relation rel, const ItemPointerData *tid, HeapTuple tuple, bool wait)
{
	/* heap_update cannot be told not to wait for a tuple others have locked */
	RowChange	change = wait ? ROW_CHANGED : rows_lock(rel, tid, false);
	bool		indexed;
	RowWriter	writer;

	if (change != ROW_CHANGED)
		return change;
	open_writer(&writer, rel);
	change = replace_row(&writer, tid, tuple, &indexed);
	close_writer(&writer);
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

/* Deletes the version at tid; waits like rows_update. */
RowChange
rows_delete(Relation rel, const ItemPointerData *tid, bool wait)
{
	RowChange	change = delete_row(rel, tid, wait);

	/* what this transaction has locked is not busy */
	if (change == ROW_BUSY && rows_lock(rel, tid, false) == ROW_CHANGED)
		change = delete_row(rel, tid, true);
	CommandCounterIncrement();
	return change;
}

/* Gets ready to change many rows, each once.  The caller must hold a lock on rel. */
RowWriter *
rows_writer_begin(Relation rel)
{
	RowWriter  *many = palloc(sizeof(RowWriter));

	open_writer(many, rel);
	return many;
}

/* Replace a version that this transaction has locked.  True if it has new index entries. */
bool
rows_writer_update(RowWriter *many, const ItemPointerData *tid, HeapTuple tuple)
{
	bool		indexed;

	if (replace_row(many, tid, tuple, &indexed) != ROW_CHANGED)
		elog(ERROR, "a locked row of table \"%s\" was changed by others",
			 RelationGetRelationName(many->rel));
	return indexed;
}

void
rows_writer_end(RowWriter *many)
{
	close_writer(many);
	pfree(many);
}

/* Puts one more row, after InitMaterializedSRF(); columns not added are NULL. */
void
row_put(FunctionCallInfo fcinfo, RowValues *row)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TupleDesc	desc = rsinfo->setDesc;

	if (row->n > desc->natts)
		elog(ERROR, "unexpected type of the result");
	/* payloads are large: they are copied once */
	if (row->n == desc->natts)
		tuplestore_putvalues(rsinfo->setResult, desc, row->values, row->nulls);
	else
		tuplestore_puttuple(rsinfo->setResult, rows_form(desc, row->n, row->values, row->nulls));
}

/* Returns it as the value of a function; columns that were not added are NULL. */
Datum
row_datum(FunctionCallInfo fcinfo, RowValues *row)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE || desc->natts < row->n)
		elog(ERROR, "unexpected type of the result");
	return HeapTupleGetDatum(rows_form(BlessTupleDesc(desc), row->n, row->values, row->nulls));
}
