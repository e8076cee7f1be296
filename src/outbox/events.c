/*
 * events.c
 *	  The events of the outbox: the only file that opens their table.
 *
 * An event is inserted by idem_emit and changed only by idem_redact_event.
 * README.md tells when it is purged, and how purge and redelivery meet.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "outbox/outbox.h"

#define N_COLUMNS 7

/* Returns the argument event_id of a function.  Raises 22023. */
pg_uuid_t
event_id_argument(FunctionCallInfo fcinfo, const char *function)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("event_id of %s must not be null", function)));
	return *PG_GETARG_UUID_P(0);
}

void
events_open(OutboxEvents *events, bool for_writing)
{
	LOCKMODE	lockmode = for_writing ? RowExclusiveLock : AccessShareLock;

	events->rel = catalog_open(TABLE_OUTBOX, lockmode);
	events->look = rows_probe_begin(events->rel, F_UUID_EQ, lockmode);
}

/* Locks are kept to the end of the transaction. */
void
events_close(OutboxEvents *events)
{
	rows_probe_end(events->look);
	table_close(events->rel, NoLock);
}

/* The event points into the tuple. */
static void
event_from_tuple(Relation rel, HeapTuple tuple, OutboxEvent *event)
{
	RowValues	row;
	pg_uuid_t  *operation_id;

	row_begin(&row, RelationGetDescr(rel), tuple, N_COLUMNS);
	memset(event, 0, sizeof(*event));
	event->id = *DatumGetUUIDP(row_next(&row));
	event->created_at = row_next_time(&row, NEVER);
	operation_id = DatumGetUUIDP(row_next(&row));
	event->has_operation = operation_id != NULL;
	if (operation_id)
		event->operation_id = *operation_id;
	event->destination = row_next_text(&row);
	event->ordering_key = row_next_text(&row);
	event->payload = row_next(&row);
	event->headers = row_next(&row);
	event->tid = tuple->t_self;
	event->ours = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)) ||
		(!(tuple->t_data->t_infomask & (HEAP_XMAX_INVALID | HEAP_XMAX_IS_MULTI)) &&
		 TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(tuple->t_data)));
}

/*
 * Looks for an event as it is now.  PROBE_ROW fills event in memory of the
 * current context; otherwise only event->changer is set, to the open
 * transaction of PROBE_IN_FLIGHT.
 */
ProbeResult
events_find(OutboxEvents *events, const pg_uuid_t *id, OutboxEvent *event)
{
	ProbeResult result = rows_probe(events->look, UUIDPGetDatum(id));

	if (result == PROBE_ROW)
		event_from_tuple(events->rel, events->look->tuple, event);
	event->changer = events->look->other;
	return result;
}

/* Locks the row of an event that is committed.  Raises ID001 if there is none. */
void
events_lock(OutboxEvents *events, const pg_uuid_t *id, OutboxEvent *event)
{
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (events_find(events, id, event) != PROBE_ROW)
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_NO_CLAIM),
					 errmsg("there is no event %s", identity_text(id)),
					 errhint("It was never committed, or it was delivered and purged after the retention of its destination.")));
	} while (rows_lock(events->rel, &event->tid, true) != ROW_CHANGED);
}

/* Returns whether the text of payload or headers is longer than that. */
bool
event_exceeds(const OutboxEvent *event, int64 max_bytes)
{
	return json_exceeds(DatumGetJsonbP(event->payload), max_bytes) ||
		(event->headers != (Datum) 0 &&
		 json_exceeds(DatumGetJsonbP(event->headers), max_bytes));
}

static HeapTuple
tuple_from_event(Relation rel, const OutboxEvent *event)
{
	RowValues	row = {0};

	row_add(&row, true, UUIDPGetDatum(&event->id));
	row_add_time(&row, event->created_at);
	row_add(&row, event->has_operation, UUIDPGetDatum(&event->operation_id));
	row_add(&row, true, PointerGetDatum(event->destination));
	row_add(&row, event->ordering_key != NULL, PointerGetDatum(event->ordering_key));
	row_add(&row, true, event->payload);
	row_add(&row, event->headers != (Datum) 0, event->headers);
	return rows_form(RelationGetDescr(rel), N_COLUMNS, row.values, row.nulls);
}

/* Inserts an event.  False if there is one of that id, committed or not. */
bool
events_insert(OutboxEvents *events, const OutboxEvent *event)
{
	return rows_insert(events->rel, tuple_from_event(events->rel, event));
}

/* idem_redact_event(event_id) */
SQL_FUNCTION(idem_redact_event)
{
	pg_uuid_t	id = event_id_argument(fcinfo, "idem_redact_event");
	OutboxEvents events;
	OutboxQueue queue;
	OutboxEvent event;
	OutboxEntry entry;

	call_require_writable("idem_redact_event()");
	events_open(&events, true);
	queue_open(&queue);
	do
	{
		events_lock(&events, &id, &event);
		destination_check_role(destination_get(text_to_cstring(event.destination)));
		event.payload = DirectFunctionCall1(jsonb_in, CStringGetDatum("null"));
		event.headers = (Datum) 0;
	} while (rows_update(events.rel, &event.tid, tuple_from_event(events.rel, &event),
						 true) != ROW_CHANGED);

	/* what the destination said of it may quote it */
	while (queue_find(&queue, &id, &entry) && entry.error != (Datum) 0)
	{
		CHECK_FOR_INTERRUPTS();
		entry.error = (Datum) 0;
		if (rows_lock(queue.rel, &entry.tid, true) == ROW_CHANGED)
		{
			queue_update(&queue, &entry);
			break;
		}
	}
	queue_close(&queue);
	events_close(&events);
	PG_RETURN_VOID();
}

typedef struct EventPurge
{
	PurgeBatch *batch;
	OutboxEvents events;
	Relation	by_time;
	OutboxQueue queue;
	Store		store;
} EventPurge;

/* Returns whether an attempt of its operation may still emit the event again. */
static bool
may_be_emitted_again(EventPurge *purge, const OutboxEvent *event)
{
	ProbeResult result;
	Record		rec;

	if (!event->has_operation)
		return false;
	result = store_probe_id(&purge->store, &event->operation_id, NULL, &rec);
	return result == PROBE_IN_FLIGHT ||
		(result == PROBE_ROW && rec.state != RECORD_SUCCEEDED &&
		 rec.state != RECORD_FAILED && rec.state != RECORD_CANCELLED);
}

/* Removes an event unless it may be needed. */
static bool
purge_event(EventPurge *purge, const OutboxEvent *event)
{
	Relation	rel = purge->events.rel;

	return !queue_has(&purge->queue, &event->id) &&
		!may_be_emitted_again(purge, event) &&
		rows_lock(rel, &event->tid, false) == ROW_CHANGED &&
		!queue_has(&purge->queue, &event->id) &&
		rows_delete(rel, &event->tid, false) == ROW_CHANGED;
}

/*
 * Begins at the events of the destination the batch is at, from where that is;
 * with next, at those of all destinations after it.
 */
static RowScan *
begin_scan(EventPurge *purge, bool next)
{
	Datum		destination = CStringGetTextDatum(purge->batch->destination);
	ScanKeyData keys[2];

	if (next)
		ScanKeyInit(&keys[0], 1, BTGreaterStrategyNumber, F_TEXT_GT, destination);
	else
		ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ, destination);
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(purge->batch->destination_from));
	return rows_scan_begin(purge->events.rel, purge->by_time, keys, next ? 1 : 2,
						   ForwardScanDirection);
}

/* Purges the destination the batch is at, as far as the batch has room. */
static void
purge_destination(void *arg)
{
	EventPurge *purge = arg;
	PurgeBatch *batch = purge->batch;
	int64		retention = destination_get(batch->destination)->retention;
	TimestampTz until = GetCurrentTimestamp() - retention;
	HeapTuple	tuple;
	RowScan    *scan;

	if (retention == NO_LIMIT)
		return;
	store_open(&purge->store, false);
	scan = begin_scan(purge, false);
	while (purge_has_room(batch) && (tuple = rows_scan_next(scan)) != NULL)
	{
		OutboxEvent event;

		event_from_tuple(scan->rel, tuple, &event);
		if (event.created_at >= until)
			break;
		batch->looks++;
		batch->destination_from = event.created_at;
		if (!TransactionIdIsValid(scan->inserter) && !TransactionIdIsValid(scan->changer) &&
			purge_event(purge, &event))
			batch->removed++;
		heap_freetuple(tuple);
	}
	rows_scan_end(scan);
	store_close(&purge->store);
}

/* Goes on to the next destination that has events, if there is one. */
static bool
next_destination(EventPurge *purge)
{
	PurgeBatch *batch = purge->batch;
	RowScan    *scan = begin_scan(purge, true);
	HeapTuple	tuple = rows_scan_next(scan);
	OutboxEvent event;

	if (tuple)
	{
		event_from_tuple(scan->rel, tuple, &event);
		strlcpy(batch->destination, text_to_cstring(event.destination),
				sizeof(batch->destination));
		batch->destination_from = DT_NOBEGIN;
	}
	rows_scan_end(scan);
	return tuple != NULL;
}

/*
 * Removes delivered events past the retention of their destination, as many as
 * the batch has room for, destination by destination, going on where the batch
 * before stopped.  A careful batch passes a destination whose settings or events
 * are damaged.  batch->at_end becomes false if there are more.
 */
static void
purge_events(void *arg)
{
	static const IndexShape by_time = {
		BTREE_AM_OID, 2, {4, 2},
		"outbox_created_at_idx ON idempotency_internal.%s (destination, created_at)"
	};
	PurgeBatch *batch = arg;
	EventPurge	purge = {.batch = batch};
	bool		more = batch->destination[0] != '\0';

	events_open(&purge.events, true);
	purge.by_time = catalog_open_index(purge.events.rel, &by_time);
	queue_open(&purge.queue);
	while (purge_has_room(batch) && (more || next_destination(&purge)))
	{
		int64		removed = batch->removed;

		more = false;
		if (!batch->careful)
			purge_destination(&purge);
		else if (purge_note_fault(batch, subtransaction_try(purge_destination, &purge)))
			batch->removed = removed;
	}
	batch->at_end = purge_has_room(batch);
	if (batch->at_end)
		batch->destination[0] = '\0';
	queue_close(&purge.queue);
	index_close(purge.by_time, NoLock);
	events_close(&purge.events);
}

void
outbox_init(void)
{
	purge_register(purge_events);
	queue_start_init();
	take_init();
}
