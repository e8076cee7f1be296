/*-------------------------------------------------------------------------
 *
 * due.c
 *	  What is to be delivered, and when: the only file that opens outbox_due.
 *
 * Two indexes, two rules
 * ----------------------
 * Rows are met on the way through an index, without a snapshot (see rows.c), so
 * a row that gets a new index entry while somebody is on the way can be missed:
 * its new entry stands behind him, its old one is dead when he comes to it.
 * Who only looks for something to do meets it the next time.  Two who look
 * conclude from not meeting a row, and for them whoever writes index entries
 * keeps a rule:
 *
 * - by time (destination, due_at): frontier.c concludes that everything before
 *	 a position is gone.  So a row that is inserted or moved gets a position
 *	 drawn from there, under its lock (due_insert, due_move); and where a lease
 *	 could not be written in place, that is reported (due_lease).
 * - by key (destination, ordering_key, place): due_first_of_key concludes that
 *	 nothing is before a row.  It is asked under the lock of the key; and
 *	 whoever inserts or moves a row that has a key holds that lock while he
 *	 does, so no entry comes into being while somebody is on the way.  A place
 *	 is drawn under the same lock, so a row that is inserted later has a higher
 *	 one.
 *
 * The lock of a key is held for microseconds, never while waiting for anything
 * but a lock of a page or of the frontier, and given back at once.  It is a
 * heavyweight lock of a private class, taken in transactions whose end would
 * release it.
 *
 * One at a time, in order
 * -----------------------
 * Only the first row of a key may be leased.  First means: of all that are in
 * the index, also those whose transaction is still open; dead letters do not
 * count if the destination skips them.  As places only grow, nothing is ever
 * inserted before a leased row, so the first row is also the only one that can
 * be leased.  A dead letter that is redelivered after others went past it gets
 * a new place, at the end.
 *
 * Who changes a row
 * -----------------
 * Takers lock a row without waiting before they change it, and lock the very
 * version they have judged, so of two takers one passes it by.  Owners (ack,
 * nack) and operators wait for each other and look again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "commands/sequence.h"
#include "common/hashfn.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "outbox.h"

/* locktag_field4 of the locks of keys; permit.c has another one. */
#define KEY_LOCK_CLASS 0x1DE1

/* Columns, in the order of the table. */
enum
{
	COL_EVENT_ID,
	COL_DUE_AT,
	COL_LEASE_UNTIL,
	COL_FIRST_AT,
	COL_DEAD_AT,
	COL_PLACE,
	COL_FENCE,
	COL_ATTEMPT,
	COL_STATE,
	COL_DESTINATION,
	COL_ORDERING_KEY,
	COL_REASON,
	COL_ERROR,
	N_COLUMNS
};

/*----
 * Rows.
 *----
 */

/*
 * Understand a tuple.  due points into it.
 */
static void
due_from_tuple(Relation rel, HeapTuple tuple, Due *due)
{
	Datum		values[N_COLUMNS];
	bool		nulls[N_COLUMNS];

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	memset(due, 0, sizeof(*due));
	due->event_id = *DatumGetUUIDP(values[COL_EVENT_ID]);
	due->due_at = rows_time(values, nulls, COL_DUE_AT);
	due->lease_until = rows_time(values, nulls, COL_LEASE_UNTIL);
	due->first_at = rows_time(values, nulls, COL_FIRST_AT);
	due->dead_at = rows_time(values, nulls, COL_DEAD_AT);
	due->place = nulls[COL_PLACE] ? 0 : DatumGetInt64(values[COL_PLACE]);
	due->fence = DatumGetInt64(values[COL_FENCE]);
	due->attempt = DatumGetInt32(values[COL_ATTEMPT]);
	due->state = DatumGetChar(values[COL_STATE]);
	due->destination = DatumGetTextPP(values[COL_DESTINATION]);
	if (!nulls[COL_ORDERING_KEY])
		due->ordering_key = DatumGetTextPP(values[COL_ORDERING_KEY]);
	if (!nulls[COL_REASON])
		due->reason = DatumGetTextPP(values[COL_REASON]);
	due->error = nulls[COL_ERROR] ? (Datum) 0 : values[COL_ERROR];
	due->tid = tuple->t_self;
	due->xmin = HeapTupleHeaderGetXmin(tuple->t_data);
}

static HeapTuple
tuple_from_due(Relation rel, const Due *due)
{
	Datum		values[N_COLUMNS];
	bool		nulls[N_COLUMNS] = {false};

	values[COL_EVENT_ID] = UUIDPGetDatum(&due->event_id);
	rows_set_time(values, nulls, COL_DUE_AT, due->due_at);
	rows_set_time(values, nulls, COL_LEASE_UNTIL, due->lease_until);
	rows_set_time(values, nulls, COL_FIRST_AT, due->first_at);
	rows_set_time(values, nulls, COL_DEAD_AT, due->dead_at);
	values[COL_PLACE] = Int64GetDatum(due->place);
	nulls[COL_PLACE] = due->place == 0;
	values[COL_FENCE] = Int64GetDatum(due->fence);
	values[COL_ATTEMPT] = Int32GetDatum(due->attempt);
	values[COL_STATE] = CharGetDatum(due->state);
	values[COL_DESTINATION] = PointerGetDatum(due->destination);
	values[COL_ORDERING_KEY] = PointerGetDatum(due->ordering_key);
	nulls[COL_ORDERING_KEY] = due->ordering_key == NULL;
	values[COL_REASON] = PointerGetDatum(due->reason);
	nulls[COL_REASON] = due->reason == NULL;
	values[COL_ERROR] = due->error;
	nulls[COL_ERROR] = due->error == (Datum) 0;
	return heap_form_tuple(RelationGetDescr(rel), values, nulls);
}

/*
 * Open the table.  Locks are kept to the end of the transaction.
 */
void
due_open(DueTable *table, bool for_writing)
{
	static const AttrNumber by_time[] = {COL_DESTINATION + 1, COL_DUE_AT + 1};
	static const AttrNumber by_key[] = {COL_DESTINATION + 1, COL_ORDERING_KEY + 1, COL_PLACE + 1};

	table->rel = catalog_open(TABLE_OUTBOX_DUE,
							  for_writing ? RowExclusiveLock : AccessShareLock);
	table->look = rows_look_begin(table->rel,
								  compat_primary_key_index(table->rel), F_UUID_EQ);
	table->by_time = catalog_open_index(table->rel, by_time, lengthof(by_time),
										"outbox_due_at_idx ON idempotency_internal.outbox_due (destination, due_at)");
	table->by_key = catalog_open_index(table->rel, by_key, lengthof(by_key),
									   "outbox_due_order_idx ON idempotency_internal.outbox_due (destination, ordering_key, place)");
	table->writer = for_writing ? rows_writer_begin(table->rel) : NULL;
}

void
due_close(DueTable *table)
{
	if (table->writer)
		rows_writer_end(table->writer);
	index_close(table->by_key, NoLock);
	index_close(table->by_time, NoLock);
	rows_look_end(table->look);
	table_close(table->rel, NoLock);
}

/*
 * The row of an event as it is now: the last committed version, or our own.
 * False if there is none, or only one of another open transaction.
 */
bool
due_find(DueTable *table, const pg_uuid_t *id, Due *due)
{
	HeapTuple	tuple;
	TransactionId other;

	if (rows_look(table->look, UUIDPGetDatum(id), &tuple, &other) != PROBE_ROW)
		return false;
	due_from_tuple(table->rel, tuple, due);
	due->changer = other;
	return true;
}

/*
 * Has the event a row, committed or not, from anybody?
 */
bool
due_exists(DueTable *table, const pg_uuid_t *id)
{
	HeapTuple	tuple;
	TransactionId other;

	return rows_look(table->look, UUIDPGetDatum(id), &tuple, &other) != PROBE_NOTHING;
}

/*
 * Is it in somebody's hands?
 */
bool
due_is_leased(const Due *due, TimestampTz now)
{
	return due->lease_until != NEVER && due->lease_until > now;
}

/*----
 * The lock of a key.
 *----
 */

/*
 * The ordering key of a row as a number.  Two keys with the same one are only
 * mistaken for each other where that makes one wait for the next look.
 */
uint64
due_key_hash(const Due *due)
{
	uint64		hash = hash_bytes_extended((unsigned char *) VARDATA_ANY(due->destination),
										   VARSIZE_ANY_EXHDR(due->destination), 0);

	return hash_bytes_extended((unsigned char *) VARDATA_ANY(due->ordering_key),
							   VARSIZE_ANY_EXHDR(due->ordering_key), hash);
}

static void
set_key_tag(LOCKTAG *tag, const Due *due)
{
	uint64		hash = due_key_hash(due);

	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash,
						 KEY_LOCK_CLASS);
}

/*
 * Take the lock of the ordering key of a row.  False only without wait, if
 * another session has it.
 */
bool
due_key_lock(const Due *due, bool wait)
{
	LOCKTAG		tag;

	set_key_tag(&tag, due);
	return LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Give it back.
 */
void
due_key_unlock(const Due *due)
{
	LOCKTAG		tag;

	set_key_tag(&tag, due);
	LockRelease(&tag, ExclusiveLock, false);
}

/*----
 * Changes.
 *----
 */

/*
 * A place after all others of a key.  The caller holds the lock of the key.
 */
static int64
next_place(void)
{
	return nextval_internal(catalog_sequence("outbox_place"), false);
}

/*
 * Put a new row at the end of its key, to be due after a delay in
 * microseconds.  False if the event has a row already, from anybody, committed
 * or not.
 */
static bool
due_insert(Due *due, int64 delay)
{
	const char *destination = text_to_cstring(due->destination);
	Relation	rel = catalog_open(TABLE_OUTBOX_DUE, RowExclusiveLock);
	bool		inserted;

	if (due->ordering_key)
	{
		(void) due_key_lock(due, true);
		due->place = next_place();
	}
	due->due_at = frontier_draw(destination, delay);
	inserted = rows_insert(rel, tuple_from_due(rel, due));
	frontier_drawn(destination);
	if (due->ordering_key)
		due_key_unlock(due);
	table_close(rel, NoLock);
	return inserted;
}

/*
 * Put an event into the queue that is not there.  The caller has written its
 * row in this transaction, or has it locked.  Raises XX001 if it is there.
 */
void
due_enqueue(const Event *event, int64 delay)
{
	Due			due = {
		.event_id = event->id,
		.due_at = NEVER,
		.lease_until = NEVER,
		.first_at = NEVER,
		.dead_at = NEVER,
		.state = DUE_WAITING,
		.destination = event->destination,
		.ordering_key = event->ordering_key
	};

	if (!due_insert(&due, delay))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("event %s for destination \"%s\" is already in the queue",
						id_text(&event->id), text_to_cstring(event->destination))));
}

/*
 * Lock a row as it was found, to change it.
 */
RowChange
due_lock(DueTable *table, const Due *found, bool wait)
{
	return rows_writer_lock(table->writer, &found->tid, wait);
}

/*
 * Write a lease: columns without an index.  The caller has the row locked, and
 * also its key if it has one.
 */
void
due_lease(DueTable *table, Due *due)
{
	if (rows_writer_update(table->writer, &due->tid, tuple_from_due(table->rel, due)))
		frontier_moved(text_to_cstring(due->destination));
}

/*
 * Let a row be due after a delay, under the lock of the frontier and, if it has
 * one, of its key.  The caller has the row locked, not the key.
 */
void
due_move(DueTable *table, Due *due, int64 delay)
{
	const char *destination = text_to_cstring(due->destination);

	if (due->ordering_key)
		(void) due_key_lock(due, true);
	if (due->queue_again)
		due->place = next_place();
	frontier_removed(destination, due->due_at);
	due->due_at = frontier_draw(destination, delay);
	(void) rows_writer_update(table->writer, &due->tid,
							  tuple_from_due(table->rel, due));
	frontier_drawn(destination);
	if (due->ordering_key)
		due_key_unlock(due);
}

/*
 * Make a row a dead letter.  The caller has the row locked, not the key.
 */
void
due_bury(DueTable *table, Due *due, const char *reason)
{
	due->state = DUE_DEAD;
	due->reason = cstring_to_text(reason);
	due->dead_at = GetCurrentTimestamp();
	due->lease_until = NEVER;
	frontier_removed(text_to_cstring(due->destination), due->due_at);
	due->due_at = NEVER;
	if (due->ordering_key)
		(void) due_key_lock(due, true);
	(void) rows_writer_update(table->writer, &due->tid,
							  tuple_from_due(table->rel, due));
	if (due->ordering_key)
		due_key_unlock(due);
}

/*
 * Remove a row as it was found.  Waits for others who have it locked.
 */
RowChange
due_delete(DueTable *table, const Due *found)
{
	frontier_removed(text_to_cstring(found->destination), found->due_at);
	return rows_delete(table->rel, &found->tid, true);
}

/*----
 * Ways through the table.
 *----
 */
struct DueScan
{
	MemoryContext context;		/* what the scan allocates as it goes */
	DueTable   *table;
	Relation	index;
	TupleTableSlot *slot;
	SnapshotData dirty;
	IndexScanDesc scan;
};

static DueScan *
scan_begin(DueTable *table, Relation index, ScanKey keys, int n)
{
	DueScan    *scan = palloc(sizeof(DueScan));

	scan->context = CurrentMemoryContext;
	scan->table = table;
	scan->index = index;
	scan->slot = table_slot_create(table->rel, NULL);
	InitDirtySnapshot(scan->dirty);
	scan->scan = compat_index_beginscan(table->rel, index, &scan->dirty, n, 0);
	index_rescan(scan->scan, keys, n, NULL, 0);
	return scan;
}

/*
 * Begin at the rows of a destination that are due from a time on, in the order
 * of their time.
 */
DueScan *
due_scan_begin(DueTable *table, const char *destination, TimestampTz from)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(destination));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(from));
	return scan_begin(table, table->by_time, keys, lengthof(keys));
}

/*
 * The next row that is not gone, in memory of the current context.  Of one that
 * is being changed there may be several versions.
 */
bool
due_scan_next(DueScan *scan, Due *due)
{
	MemoryContext caller = MemoryContextSwitchTo(scan->context);
	bool		found = index_getnext_slot(scan->scan, ForwardScanDirection, scan->slot);

	MemoryContextSwitchTo(caller);
	CHECK_FOR_INTERRUPTS();
	if (!found)
		return false;
	due_from_tuple(scan->table->rel, ExecCopySlotHeapTuple(scan->slot), due);
	due->in_flight = TransactionIdIsValid(scan->dirty.xmin);
	due->changer = scan->dirty.xmax;
	return true;
}

void
due_scan_end(DueScan *scan)
{
	index_endscan(scan->scan);
	ExecDropSingleTupleTableSlot(scan->slot);
	pfree(scan);
}

/*
 * The first row of the key of a row, dead letters left out if so asked.  False
 * if there is none.  The caller holds the lock of the key.
 */
bool
due_first_of_key(DueTable *table, const Due *of, bool skip_dead, Due *first)
{
	ScanKeyData keys[2];
	DueScan    *scan;
	bool		found;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(of->destination));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(of->ordering_key));
	scan = scan_begin(table, table->by_key, keys, lengthof(keys));
	do
		found = due_scan_next(scan, first);
	while (found && skip_dead && first->state == DUE_DEAD &&
		   !TransactionIdIsValid(first->changer) && !first->in_flight);
	due_scan_end(scan);
	return found;
}

/*
 * A row of a key is gone, or does not hold it back any more: let the next one
 * be due at once if it was parked behind it.  The caller has changed the row in
 * this transaction, and had waited for whoever had it locked to park others
 * behind it, so those are seen here.
 */
void
due_release_next(DueTable *table, const Due *gone, bool skip_dead)
{
	Due			next;
	bool		found;

	if (gone->ordering_key == NULL)
		return;
	frontier_wake_at_commit(text_to_cstring(gone->destination));
	do
	{
		CHECK_FOR_INTERRUPTS();
		(void) due_key_lock(gone, true);
		found = due_first_of_key(table, gone, skip_dead, &next);
		due_key_unlock(gone);
		if (!found || next.state != DUE_PARKED || next.in_flight)
			return;
	} while (due_lock(table, &next, true) != ROW_CHANGED);
	next.state = DUE_WAITING;
	due_move(table, &next, 0);
}
