/*-------------------------------------------------------------------------
 *
 * events.c
 *	  The events of the outbox: the only file that opens outbox and
 *	  outbox_adopted.
 *
 * An event is inserted by who emits it and never changed.  It is purged when
 * three things are true: its destination's retention is over, nobody has it to
 * deliver, and the operation it was emitted for will not execute again.
 *
 * The second can change: idem_redeliver brings a delivered event back.  Purge
 * and redelivery both lock the event's row first and look at outbox_due under
 * that lock, without a snapshot:
 *
 * - purge has the lock: redelivery waits, then finds the event gone (ID001), or
 *	 still there if the purge rolled back;
 * - redelivery has the lock: purge passes the event by;
 * - redelivery has committed: purge sees the row in outbox_due.
 *
 * The third is what keeps an event's identity.  A later attempt of an operation
 * emits the same events again and has to find those of the attempt before, or
 * it would bring delivered ones back (see ordinals.c).  So they stay as long as
 * the record is accepted, processing, released or retryable; once it has its
 * outcome, or is gone, no attempt follows.  Whoever settles the record while
 * purge looks only makes it wait for the next one.
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
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "outbox.h"

/* Columns, in the order of the table. */
enum
{
	COL_ID,
	COL_CREATED_AT,
	COL_OPERATION_ID,
	COL_FENCE,
	COL_DESTINATION,
	COL_ORDERING_KEY,
	COL_PAYLOAD,
	COL_HEADERS,
	N_COLUMNS
};

/*
 * Open the events for looking, or for inserting too.
 */
void
events_open(Events *events, bool for_writing)
{
	events->rel = catalog_open(TABLE_OUTBOX,
							   for_writing ? RowExclusiveLock : AccessShareLock);
	events->look = rows_look_begin(events->rel,
								   compat_primary_key_index(events->rel), F_UUID_EQ);
}

/*
 * Close them; locks are kept to the end of the transaction.
 */
void
events_close(Events *events)
{
	rows_look_end(events->look);
	table_close(events->rel, NoLock);
}

/*
 * Understand a tuple of the table.  event points into it.
 */
static void
event_from_tuple(Relation rel, HeapTuple tuple, Event *event)
{
	Datum		values[N_COLUMNS];
	bool		nulls[N_COLUMNS];

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	memset(event, 0, sizeof(*event));
	event->id = *DatumGetUUIDP(values[COL_ID]);
	event->created_at = DatumGetTimestampTz(values[COL_CREATED_AT]);
	event->has_operation = !nulls[COL_OPERATION_ID];
	if (event->has_operation)
		event->operation_id = *DatumGetUUIDP(values[COL_OPERATION_ID]);
	if (!nulls[COL_FENCE])
		event->fence = DatumGetInt64(values[COL_FENCE]);
	event->destination = DatumGetTextPP(values[COL_DESTINATION]);
	if (!nulls[COL_ORDERING_KEY])
		event->ordering_key = DatumGetTextPP(values[COL_ORDERING_KEY]);
	event->payload = values[COL_PAYLOAD];
	event->headers = nulls[COL_HEADERS] ? (Datum) 0 : values[COL_HEADERS];
	event->tid = tuple->t_self;
}

/*
 * Look for an event as it is now.  PROBE_ROW fills event in memory of the
 * current context; otherwise only event->changer is set, to the open
 * transaction of PROBE_IN_FLIGHT.
 */
ProbeResult
events_find(Events *events, const pg_uuid_t *id, Event *event)
{
	HeapTuple	tuple;
	TransactionId other;
	ProbeResult result = rows_look(events->look, UUIDPGetDatum(id), &tuple, &other);

	if (result == PROBE_ROW)
		event_from_tuple(events->rel, tuple, event);
	event->changer = other;
	return result;
}

/*
 * Wait for the transaction that events_find has found on the event to end.
 * May raise 40P01 and 55P03 like any wait.
 */
void
events_wait(Events *events, const Event *event)
{
	XactLockTableWait(event->changer, NULL, NULL, XLTW_None);
}

/*
 * Insert an event.  False if there is one of that id from anybody, committed
 * or not.
 */
bool
events_insert(Events *events, const Event *event)
{
	Datum		values[N_COLUMNS];
	bool		nulls[N_COLUMNS] = {false};

	values[COL_ID] = UUIDPGetDatum(&event->id);
	values[COL_CREATED_AT] = TimestampTzGetDatum(event->created_at);
	values[COL_OPERATION_ID] = UUIDPGetDatum(&event->operation_id);
	values[COL_FENCE] = Int64GetDatum(event->fence);
	nulls[COL_OPERATION_ID] = nulls[COL_FENCE] = !event->has_operation;
	values[COL_DESTINATION] = PointerGetDatum(event->destination);
	values[COL_ORDERING_KEY] = PointerGetDatum(event->ordering_key);
	nulls[COL_ORDERING_KEY] = event->ordering_key == NULL;
	values[COL_PAYLOAD] = event->payload;
	values[COL_HEADERS] = event->headers;
	nulls[COL_HEADERS] = event->headers == (Datum) 0;
	return rows_insert(events->rel,
					   heap_form_tuple(RelationGetDescr(events->rel), values, nulls));
}

/*----
 * Events that an attempt found emitted by an earlier one.
 *----
 */

/* Columns of outbox_adopted. */
enum
{
	ADOPTED_ID,
	ADOPTED_FENCE,
	N_ADOPTED
};

/*
 * The entry of an event, or NULL.  Waits for a transaction that is writing it,
 * which is one of the same operation.
 */
static HeapTuple
find_adopted(Relation rel, const pg_uuid_t *id)
{
	RowLook    *look = rows_look_begin(rel, compat_primary_key_index(rel), F_UUID_EQ);
	HeapTuple	tuple;
	TransactionId other;
	ProbeResult result;

	while ((result = rows_look(look, UUIDPGetDatum(id), &tuple, &other)) != PROBE_NOTHING &&
		   TransactionIdIsValid(other))
		XactLockTableWait(other, NULL, NULL, XLTW_None);
	rows_look_end(look);
	return result == PROBE_ROW ? tuple : NULL;
}

static int64
fence_of_adopted(Relation rel, HeapTuple tuple)
{
	bool		isnull;

	return DatumGetInt64(heap_getattr(tuple, ADOPTED_FENCE + 1, RelationGetDescr(rel),
									  &isnull));
}

/*
 * Has the attempt of that fence adopted the event already?
 */
bool
events_adopted(const pg_uuid_t *id, int64 fence)
{
	Relation	rel = catalog_open(TABLE_OUTBOX_ADOPTED, AccessShareLock);
	HeapTuple	tuple = find_adopted(rel, id);
	bool		adopted = tuple && fence_of_adopted(rel, tuple) == fence;

	table_close(rel, NoLock);
	return adopted;
}

/*
 * Let the attempt of that fence adopt an event.
 */
void
events_adopt(const pg_uuid_t *id, int64 fence)
{
	Relation	rel = catalog_open(TABLE_OUTBOX_ADOPTED, RowExclusiveLock);
	bool		done = false;

	while (!done)
	{
		HeapTuple	found = find_adopted(rel, id);
		Datum		values[N_ADOPTED];
		bool		nulls[N_ADOPTED] = {false};
		HeapTuple	tuple;

		CHECK_FOR_INTERRUPTS();
		values[ADOPTED_ID] = UUIDPGetDatum(id);
		values[ADOPTED_FENCE] = Int64GetDatum(fence);
		tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
		done = found ? rows_update(rel, &found->t_self, tuple, true) == ROW_CHANGED :
			rows_insert(rel, tuple);
	}
	table_close(rel, NoLock);
}

/*
 * Forget who adopted an event that goes.
 */
static void
forget_adopted(const pg_uuid_t *id)
{
	Relation	rel = catalog_open(TABLE_OUTBOX_ADOPTED, RowExclusiveLock);
	HeapTuple	tuple = find_adopted(rel, id);

	if (tuple)
		(void) rows_delete(rel, &tuple->t_self, true);
	table_close(rel, NoLock);
}

/*----
 * Purge.
 *----
 */
typedef struct EventPurge
{
	PurgeBatch *batch;
	Events		events;
	Relation	by_time;
	DueTable	due;
	Store		store;
	int64		looks;
} EventPurge;

/*
 * May an attempt of the operation still emit the event again?
 */
static bool
may_be_emitted_again(EventPurge *purge, const Event *event)
{
	ProbeResult result;
	Record		rec;

	if (!event->has_operation)
		return false;
	result = store_probe_id(&purge->store, &event->operation_id, &rec);
	return result == PROBE_IN_FLIGHT ||
		(result == PROBE_ROW && rec.state != RECORD_SUCCEEDED &&
		 rec.state != RECORD_FAILED && rec.state != RECORD_CANCELLED);
}

/*
 * Remove an event unless somebody needs it.
 */
static bool
purge_event(EventPurge *purge, TupleTableSlot *slot)
{
	Event		event;

	event_from_tuple(purge->events.rel, ExecCopySlotHeapTuple(slot), &event);
	if (due_exists(&purge->due, &event.id) ||
		may_be_emitted_again(purge, &event) ||
		rows_lock(purge->events.rel, &event.tid, false) != ROW_CHANGED ||
		due_exists(&purge->due, &event.id) ||
		rows_delete(purge->events.rel, &event.tid, false) != ROW_CHANGED)
		return false;
	if (event.has_operation)
		forget_adopted(&event.id);
	return true;
}

/*
 * Begin to walk the events of a destination from a time on, or, with time
 * NEVER, those of all destinations after it.
 */
static IndexScanDesc
begin_walk(EventPurge *purge, const char *destination, TimestampTz from,
		   SnapshotData *dirty)
{
	ScanKeyData keys[2];
	int			n = from == NEVER ? 1 : 2;
	IndexScanDesc scan;

	InitDirtySnapshot(*dirty);
	if (from == NEVER)
		ScanKeyInit(&keys[0], 1, BTGreaterStrategyNumber, F_TEXT_GT,
					CStringGetTextDatum(destination));
	else
	{
		ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
					CStringGetTextDatum(destination));
		ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
					TimestampTzGetDatum(from));
	}
	scan = compat_index_beginscan(purge->events.rel, purge->by_time, dirty, n, 0);
	index_rescan(scan, keys, n, NULL, 0);
	return scan;
}

/*
 * Is the batch large enough?
 */
static bool
is_full(const EventPurge *purge)
{
	const PurgeBatch *batch = purge->batch;

	return batch->removed >= batch->max_records ||
		(batch->max_looks > 0 && purge->looks >= batch->max_looks);
}

/*
 * Purge the destination the batch is at.  False if there is more of it.
 */
static bool
purge_destination(EventPurge *purge)
{
	PurgeBatch *batch = purge->batch;
	int64		retention = destination_get(batch->destination)->retention;
	TimestampTz until = GetCurrentTimestamp() - retention;
	TupleTableSlot *slot;
	IndexScanDesc scan;
	SnapshotData dirty;
	bool		at_end = false;

	if (retention == NO_LIMIT)
		return true;
	slot = table_slot_create(purge->events.rel, NULL);
	scan = begin_walk(purge, batch->destination, batch->destination_from, &dirty);
	while (!at_end && !is_full(purge))
	{
		bool		isnull;
		TimestampTz created_at;

		CHECK_FOR_INTERRUPTS();
		at_end = !index_getnext_slot(scan, ForwardScanDirection, slot);
		if (at_end)
			break;
		created_at = DatumGetTimestampTz(slot_getattr(slot, COL_CREATED_AT + 1, &isnull));
		at_end = created_at >= until;
		if (at_end)
			break;
		purge->looks++;
		batch->destination_from = created_at;
		if (!TransactionIdIsValid(dirty.xmin) && !TransactionIdIsValid(dirty.xmax) &&
			purge_event(purge, slot))
			batch->removed++;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return at_end;
}

typedef struct DestinationStep
{
	EventPurge *purge;
	bool		done;
} DestinationStep;

static void
purge_destination_step(void *arg)
{
	DestinationStep *step = arg;

	step->done = purge_destination(step->purge);
}

/*
 * The same, and if the batch is careful, in a subtransaction: a destination
 * whose settings or events are out of order is passed by.
 */
static bool
purge_destination_or_pass(EventPurge *purge)
{
	PurgeBatch *batch = purge->batch;
	int64		removed = batch->removed;
	DestinationStep step = {purge, true};

	if (!batch->careful)
		return purge_destination(purge);
	if (purge_note_fault(batch, subtransaction_try(purge_destination_step, &step)))
		batch->removed = removed;
	return step.done;
}

/*
 * Go on to the next destination that has events.  False if there is none.
 */
static bool
next_destination(EventPurge *purge)
{
	PurgeBatch *batch = purge->batch;
	TupleTableSlot *slot = table_slot_create(purge->events.rel, NULL);
	SnapshotData dirty;
	IndexScanDesc scan = begin_walk(purge, batch->destination, NEVER, &dirty);
	bool		found = index_getnext_slot(scan, ForwardScanDirection, slot);

	if (found)
	{
		bool		isnull;

		strlcpy(batch->destination,
				TextDatumGetCString(slot_getattr(slot, COL_DESTINATION + 1, &isnull)),
				sizeof(batch->destination));
		batch->destination_from = DT_NOBEGIN;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return found;
}

/*
 * Remove delivered events past the retention of their destination, as many as
 * the batch has room for, destination by destination, going on where the batch
 * before stopped.  batch->at_end becomes false if there are more.
 */
void
events_purge(PurgeBatch *batch)
{
	static const AttrNumber by_time[] = {COL_DESTINATION + 1, COL_CREATED_AT + 1};
	EventPurge	purge = {.batch = batch};

	events_open(&purge.events, true);
	purge.by_time = catalog_open_index(purge.events.rel, by_time, lengthof(by_time),
									   "outbox_created_at_idx ON idempotency_internal.outbox (destination, created_at)");
	due_open(&purge.due, false);
	store_open(&purge.store, false);
	if (batch->destination[0] == '\0' || purge_destination_or_pass(&purge))
	{
		while (!is_full(&purge) && next_destination(&purge))
		{
			if (!purge_destination_or_pass(&purge))
				break;
		}
	}
	batch->at_end = !is_full(&purge);
	if (batch->at_end)
		batch->destination[0] = '\0';
	store_close(&purge.store);
	due_close(&purge.due);
	index_close(purge.by_time, NoLock);
	events_close(&purge.events);
}
