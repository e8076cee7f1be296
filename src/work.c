/*-------------------------------------------------------------------------
 *
 * work.c
 *	  The work list: which records are accepted, leased or unknown.
 *
 * A record is the truth; an entry here is a hint where to look, so that nobody
 * has to look through all records.  store.c lets the list follow each change
 * of a record in the same transaction (work_follow), so the two commit or
 * vanish together: no open record is missing.  Whoever acts on an entry locks
 * the id and looks at the record first, so one that is out of date is
 * harmless.
 *
 * Entries are written by whoever changes the record, whose compare and swap
 * comes first, so two of them never meet here; a reconciler that notes its try
 * may meet them.  Nobody waits here for anybody: who finds an entry in other
 * hands leaves it alone.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "idempotency.h"

/* Columns, in the order of the table. */
enum
{
	COL_ID,
	COL_SINCE,
	COL_DUE_AT,
	COL_FENCE,
	COL_TRIES,
	COL_STATE,
	COL_OPERATION,
	N_COLUMNS
};

/*
 * Understand a tuple of the list; work points into it.
 */
static void
work_from_tuple(Relation rel, HeapTuple tuple, Work *work)
{
	Datum		values[N_COLUMNS];
	bool		nulls[N_COLUMNS];

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	work->id = *DatumGetUUIDP(values[COL_ID]);
	work->since = DatumGetTimestampTz(values[COL_SINCE]);
	work->due_at = nulls[COL_DUE_AT] ? NEVER : DatumGetTimestampTz(values[COL_DUE_AT]);
	work->fence = nulls[COL_FENCE] ? 0 : DatumGetInt64(values[COL_FENCE]);
	work->tries = DatumGetInt32(values[COL_TRIES]);
	work->state = DatumGetChar(values[COL_STATE]);
	work->operation = DatumGetTextPP(values[COL_OPERATION]);
	work->tid = tuple->t_self;
}

/*
 * A tuple of the list from an entry.
 */
static HeapTuple
tuple_from_work(Relation rel, const Work *work)
{
	Datum		values[N_COLUMNS];
	bool		nulls[N_COLUMNS] = {false};

	values[COL_ID] = UUIDPGetDatum(&work->id);
	values[COL_SINCE] = TimestampTzGetDatum(work->since);
	values[COL_DUE_AT] = TimestampTzGetDatum(work->due_at);
	nulls[COL_DUE_AT] = work->due_at == NEVER;
	values[COL_FENCE] = Int64GetDatum(work->fence);
	nulls[COL_FENCE] = work->fence == 0;
	values[COL_TRIES] = Int32GetDatum(work->tries);
	values[COL_STATE] = CharGetDatum(work->state);
	values[COL_OPERATION] = PointerGetDatum(work->operation);
	return heap_form_tuple(RelationGetDescr(rel), values, nulls);
}

/*
 * The entry of an id in a list that is open.
 */
static bool
find_in(Relation rel, const pg_uuid_t *id, Work *work)
{
	HeapTuple	tuple;
	TransactionId other;
	RowLook    *look;
	ProbeResult result;

	look = rows_look_begin(rel, compat_primary_key_index(rel), F_UUID_EQ);
	result = rows_look(look, UUIDPGetDatum(id), &tuple, &other);
	rows_look_end(look);
	if (result != PROBE_ROW)
		return false;
	work_from_tuple(rel, tuple, work);
	return true;
}

/*
 * The entry of an id as last committed, or as this transaction made it.
 */
bool
work_find(const pg_uuid_t *id, Work *work)
{
	Relation	rel = catalog_open(TABLE_OPEN_WORK, AccessShareLock);
	bool		found = find_in(rel, id, work);

	table_close(rel, NoLock);
	return found;
}

/*
 * Replace an entry, if nobody has changed it since or is changing it.
 */
RowChange
work_update(const Work *found, const Work *work)
{
	Relation	rel = catalog_open(TABLE_OPEN_WORK, RowExclusiveLock);
	RowChange	change = rows_update(rel, &found->tid,
									 tuple_from_work(rel, work), false);

	table_close(rel, NoLock);
	return change;
}

/*
 * Does a record belong in the list?  An atomic claim that had to write its row
 * early does not: it cannot commit like that.
 */
bool
work_is_open(const Record *rec)
{
	return rec->state == RECORD_ACCEPTED ||
		(rec->state == RECORD_PROCESSING && rec->lease_until != NEVER);
}

/*
 * The entry a record has from now on.  As long as an attempt lasts, what its
 * reconcilers have noted stays; a new attempt starts afresh.
 */
static void
make_work(const Record *before, const Record *after, const Work *found,
		  Work *work)
{
	memset(work, 0, sizeof(*work));
	work->id = after->id;
	work->state = after->state;
	work->since = after->claimed_at;
	work->due_at = after->state == RECORD_ACCEPTED ? after->claimed_at :
		after->lease_until;
	work->operation = after->operation;
	if (before && found && found->tries > 0 && before->fence == after->fence)
	{
		work->tries = found->tries;
		work->fence = found->fence;
		work->due_at = found->due_at;
	}
}

/*
 * Let the list follow a change of a record: from before, NULL if it is new, to
 * after.  The caller has just made the change.
 *
 * Normally there is an entry exactly if the record was listed before, but one
 * left behind is taken over.  A reconciler that has noted its try and not
 * committed is not waited for: whoever finishes the record must not hang on
 * it.  Then the entry stays as it is, at worst out of date, and goes when it is
 * next looked at (work_forget).
 */
void
work_follow(const Record *before, const Record *after)
{
	bool		wanted = work_is_open(after);
	RowChange	change = ROW_MISSED;
	Relation	rel;
	Work		found;
	Work		work;

	if (!wanted && !(before && work_is_open(before)))
		return;
	rel = catalog_open(TABLE_OPEN_WORK, RowExclusiveLock);
	while (change == ROW_MISSED)
	{
		bool		there = find_in(rel, &after->id, &found);

		CHECK_FOR_INTERRUPTS();
		make_work(before, after, there ? &found : NULL, &work);
		if (there && wanted)
			change = rows_update(rel, &found.tid, tuple_from_work(rel, &work), false);
		else if (there)
			change = rows_delete(rel, &found.tid, false);
		else if (!wanted || rows_insert(rel, tuple_from_work(rel, &work)))
			change = ROW_CHANGED;
	}
	table_close(rel, NoLock);
}

/*
 * Remove an entry whose record needs none any more, unless somebody is at it.
 */
void
work_forget(const Work *found)
{
	Relation	rel = catalog_open(TABLE_OPEN_WORK, RowExclusiveLock);

	(void) rows_delete(rel, &found->tid, false);
	table_close(rel, NoLock);
}

/*
 * The index the list is walked by.
 */
static Relation
open_due_index(Relation rel)
{
	static const AttrNumber columns[] = {COL_STATE + 1, COL_OPERATION + 1, COL_DUE_AT + 1};

	return catalog_open_index(rel, columns, lengthof(columns),
							  "open_work_due_at_idx ON idempotency_internal.open_work (state, operation, due_at)");
}

/*
 * Show the visitor each entry of that state whose time has come by due, those
 * due longest first within an operation; of all operations if operation is
 * NULL.  It says whether to go on.  Entries others are changing are left out.
 */
void
work_visit(const char *operation, char state, TimestampTz due,
		   WorkVisitor visitor, void *arg)
{
	Relation	rel = catalog_open(TABLE_OPEN_WORK, AccessShareLock);
	Relation	index = open_due_index(rel);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	int			nkeys = 0;
	bool		go_on = true;
	SnapshotData dirty;
	ScanKeyData keys[3];
	IndexScanDesc scan;

	ScanKeyInit(&keys[nkeys++], 1, BTEqualStrategyNumber, F_CHAREQ,
				CharGetDatum(state));
	if (operation)
		ScanKeyInit(&keys[nkeys++], 2, BTEqualStrategyNumber, F_TEXTEQ,
					CStringGetTextDatum(operation));
	ScanKeyInit(&keys[nkeys++], 3, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(due));
	InitDirtySnapshot(dirty);
	scan = compat_index_beginscan(rel, index, &dirty, nkeys, 0);
	index_rescan(scan, keys, nkeys, NULL, 0);
	while (go_on && index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		Work		work;

		CHECK_FOR_INTERRUPTS();
		if (TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax))
			continue;
		work_from_tuple(rel, ExecCopySlotHeapTuple(slot), &work);
		go_on = visitor(&work, arg);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

/*
 * Show the visitor every entry, in no order.
 */
void
work_visit_all(WorkVisitor visitor, void *arg)
{
	Relation	rel = catalog_open(TABLE_OPEN_WORK, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	bool		go_on = true;
	SnapshotData dirty;
	TableScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = table_beginscan(rel, &dirty, 0, NULL);
	while (go_on && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		Work		work;

		CHECK_FOR_INTERRUPTS();
		if (TransactionIdIsValid(dirty.xmin))
			continue;
		work_from_tuple(rel, ExecCopySlotHeapTuple(slot), &work);
		go_on = visitor(&work, arg);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
}
