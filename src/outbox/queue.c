/*
 * queue.c
 *	  What is to be delivered, and when: the only file that opens outbox_due.
 *
 * README.md tells which rules keep a scan of its two indexes, which takes no
 * snapshot, from missing an entry that matters.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_am.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "outbox/outbox.h"

/* locktag_field4 of the locks of keys; open_claims.c has another one. */
#define KEY_LOCK_CLASS 0x1DE1

#define N_COLUMNS 15

/* The entry points into the tuple. */
static void
entry_from_tuple(Relation rel, HeapTuple tuple, OutboxEntry *entry)
{
	RowValues	row;

	row_begin(&row, RelationGetDescr(rel), tuple, N_COLUMNS);
	memset(entry, 0, sizeof(*entry));
	entry->event_id = *DatumGetUUIDP(row_next(&row));
	entry->due_at = row_next_time(&row, NEVER);
	entry->lease_until = row_next_time(&row, NEVER);
	entry->again_at = row_next_time(&row, NEVER);
	entry->first_at = row_next_time(&row, NEVER);
	entry->dead_at = row_next_time(&row, NEVER);
	entry->place = DatumGetInt64(row_next(&row));
	entry->fence = DatumGetInt64(row_next(&row));
	entry->attempt = DatumGetInt32(row_next(&row));
	entry->alone = DatumGetBool(row_next(&row));
	entry->state = DatumGetChar(row_next(&row));
	entry->destination = row_next_text(&row);
	entry->ordering_key = row_next_text(&row);
	entry->reason = row_next_text(&row);
	entry->error = row_next(&row);
	entry->tuple = tuple;
	entry->tid = tuple->t_self;
	entry->xmin = HeapTupleHeaderGetXmin(tuple->t_data);
}

static HeapTuple
tuple_from_entry(Relation rel, const OutboxEntry *entry)
{
	RowValues	row = {0};

	row_add(&row, true, UUIDPGetDatum(&entry->event_id));
	row_add_time(&row, entry->due_at);
	row_add_time(&row, entry->lease_until);
	row_add_time(&row, entry->again_at);
	row_add_time(&row, entry->first_at);
	row_add_time(&row, entry->dead_at);
	row_add(&row, entry->place != 0, Int64GetDatum(entry->place));
	row_add(&row, true, Int64GetDatum(entry->fence));
	row_add(&row, true, Int32GetDatum(entry->attempt));
	row_add(&row, true, BoolGetDatum(entry->alone));
	row_add(&row, true, CharGetDatum(entry->state));
	row_add(&row, true, PointerGetDatum(entry->destination));
	row_add(&row, entry->ordering_key != NULL, PointerGetDatum(entry->ordering_key));
	row_add(&row, entry->reason != NULL, PointerGetDatum(entry->reason));
	row_add(&row, entry->error != (Datum) 0, entry->error);
	return rows_form(RelationGetDescr(rel), N_COLUMNS, row.values, row.nulls);
}

static const IndexShape by_time = {
	BTREE_AM_OID, 3, {12, 11, 2},
	"outbox_due_at_idx ON idempotency_internal.%s (destination, state, due_at)"
};
static const IndexShape by_key = {
	BTREE_AM_OID, 3, {12, 13, 7},
	"outbox_due_order_idx ON idempotency_internal.%s (destination, ordering_key, place)"
};

/* Opens the queues.  Locks are kept to the end of the transaction. */
void
queue_open(OutboxQueue *queue)
{
	queue->rel = catalog_open(TABLE_OUTBOX_DUE, RowExclusiveLock);
	queue->look = rows_probe_begin(queue->rel, F_UUID_EQ, RowExclusiveLock);
	queue->by_time = catalog_open_index(queue->rel, &by_time);
	queue->by_key = catalog_open_index(queue->rel, &by_key);
	queue->writer = rows_writer_begin(queue->rel);
}

void
queue_close(OutboxQueue *queue)
{
	rows_writer_end(queue->writer);
	index_close(queue->by_key, NoLock);
	index_close(queue->by_time, NoLock);
	rows_probe_end(queue->look);
	table_close(queue->rel, NoLock);
}

/*
 * Finds the entry of an event as it is now: the last committed version, or that
 * of this transaction.  False if there is none, or only one of another open
 * transaction.
 */
bool
queue_find(OutboxQueue *queue, const pg_uuid_t *id, OutboxEntry *entry)
{
	if (rows_probe(queue->look, UUIDPGetDatum(id)) != PROBE_ROW)
		return false;
	entry_from_tuple(queue->rel, queue->look->tuple, entry);
	return true;
}

/* Returns whether an event has an entry, committed or not. */
bool
queue_has(OutboxQueue *queue, const pg_uuid_t *id)
{
	return rows_probe(queue->look, UUIDPGetDatum(id)) != PROBE_NOTHING;
}

bool
queue_is_leased(const OutboxEntry *entry, TimestampTz now)
{
	return entry->lease_until != NEVER && entry->lease_until > now;
}

/* Returns whether it was leased for a retry: README.md, "An entry". */
bool
queue_lease_is_retry(const OutboxEntry *leased)
{
	return leased->state == QUEUE_WAITS && leased->attempt > 1;
}

/*
 * Returns the ordering key of an entry as a number.  Two keys with the same one
 * are only mistaken for each other where that makes one wait for the next scan.
 */
uint64
queue_key_hash(const OutboxEntry *entry)
{
	uint64		hash = hash_bytes_extended((unsigned char *) VARDATA_ANY(entry->destination),
										   VARSIZE_ANY_EXHDR(entry->destination), 0);

	return hash_bytes_extended((unsigned char *) VARDATA_ANY(entry->ordering_key),
							   VARSIZE_ANY_EXHDR(entry->ordering_key), hash);
}

/* Sets *tag to the lock of the ordering key of an entry.  False if it has none. */
static bool
key_tag(LOCKTAG *tag, const OutboxEntry *entry)
{
	uint64		hash;

	if (entry->ordering_key == NULL)
		return false;
	hash = queue_key_hash(entry);
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (hash >> 32), (uint32) hash,
						 KEY_LOCK_CLASS);
	return true;
}

/* Takes the lock of the key of an entry, if any.  False only without wait, if others have it. */
bool
queue_key_lock(const OutboxEntry *entry, bool wait)
{
	LOCKTAG		tag;

	return !key_tag(&tag, entry) ||
		LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

void
queue_key_unlock(const OutboxEntry *entry)
{
	LOCKTAG		tag;

	if (key_tag(&tag, entry))
		LockRelease(&tag, ExclusiveLock, false);
}

#ifdef USE_ASSERT_CHECKING
static bool
key_is_locked(const OutboxEntry *entry)
{
	LOCKTAG		tag;

	return !key_tag(&tag, entry) || compat_lock_held(&tag, ExclusiveLock);
}
#endif

/* Begins at the entries of a destination and state from a due time on, in their order. */
RowScan *
queue_scan_begin(OutboxQueue *queue, const char *destination, char state,
				 TimestampTz from)
{
	ScanKeyData keys[3];
	int			n = state == QUEUE_DEAD ? 2 : 3;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(destination));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_CHAREQ, CharGetDatum(state));
	ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(from));
	return rows_scan_begin(queue->rel, queue->by_time, keys, n, ForwardScanDirection);
}

/*
 * Begins at the entries of the key of an entry after a place, in order or backwards.
 * The caller must hold the lock of the key.
 */
RowScan *
queue_scan_key(OutboxQueue *queue, const OutboxEntry *of, int64 above,
			   ScanDirection direction)
{
	ScanKeyData keys[3];

	Assert(key_is_locked(of));
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(of->destination));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(of->ordering_key));
	ScanKeyInit(&keys[2], 3, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(above));
	return rows_scan_begin(queue->rel, queue->by_key, keys, lengthof(keys), direction);
}

/*
 * Fetches the next entry that is not gone, in memory of the current context.
 * Of one that is being changed there may be several versions.
 */
bool
queue_scan_next(RowScan *scan, OutboxEntry *entry)
{
	HeapTuple	tuple = rows_scan_next(scan);

	if (tuple == NULL)
		return false;
	entry_from_tuple(scan->rel, tuple, entry);
	entry->in_flight = TransactionIdIsValid(scan->inserter);
	entry->changer = scan->changer;
	return true;
}

/*
 * Finds the first entry of the key of an entry, dead letters left out if so
 * asked.  False if there is none.  The caller must hold the lock of the key.
 */
bool
queue_first_of_key(OutboxQueue *queue, const OutboxEntry *of, bool skip_dead,
				   OutboxEntry *first)
{
	RowScan    *scan = queue_scan_key(queue, of, 0, ForwardScanDirection);
	bool		found;

	do
		found = queue_scan_next(scan, first);
	while (found && skip_dead && first->state == QUEUE_DEAD &&
		   !TransactionIdIsValid(first->changer) && !first->in_flight);
	rows_scan_end(scan);
	return found;
}

/*
 * Returns a place after all others of a key, made as a fence is, so that it
 * needs no counter that a standby or a logical replica would have to be given.
 * The caller must hold the lock of the key.
 */
static int64
next_place(OutboxQueue *queue, const OutboxEntry *entry)
{
	int64		place = claim_next_fence(0);
	RowScan    *scan = queue_scan_key(queue, entry, place - 1, BackwardScanDirection);
	OutboxEntry last;

	/* there is one only if the clock was set back, or has not moved */
	if (queue_scan_next(scan, &last))
		place = claim_next_fence(last.place);
	rows_scan_end(scan);
	return place;
}

/*
 * Puts an event into the queue that is not there, to be due after a delay in
 * microseconds.  The caller has written its row in this transaction, or has it
 * locked.  Raises XX001 if it is there.
 */
void
queue_add(const OutboxEvent *event, int64 delay)
{
	const char *destination = text_to_cstring(event->destination);
	OutboxQueue queue = {.rel = catalog_open(TABLE_OUTBOX_DUE, RowExclusiveLock)};
	OutboxEntry entry = {
		.event_id = event->id,
		.lease_until = NEVER,
		.again_at = NEVER,
		.first_at = NEVER,
		.dead_at = NEVER,
		.state = delay > 0 ? QUEUE_WAITS : QUEUED,
		.destination = event->destination,
		.ordering_key = event->ordering_key
	};
	bool		inserted;

	(void) queue_key_lock(&entry, true);
	if (entry.ordering_key)
	{
		queue.by_key = catalog_open_index(queue.rel, &by_key);
		entry.place = next_place(&queue, &entry);
		index_close(queue.by_key, NoLock);
	}
	entry.due_at = queue_start_assign(destination, delay);
	inserted = rows_insert(queue.rel, tuple_from_entry(queue.rel, &entry));
	queue_start_assigned(destination);
	queue_key_unlock(&entry);
	table_close(queue.rel, NoLock);
	if (!inserted)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("event %s for destination \"%s\" is already in the queue",
						identity_text(&event->id), destination),
				 errhint("Remove its row from idempotency_internal.outbox_due, then emit it again.")));
	queue_start_wake_at_commit(destination);
}

/*
 * Writes an entry of which place and due time stay, or the latter is NEVER.  The
 * caller must have the row locked, and not hold the lock of the key.
 */
void
queue_update(OutboxQueue *queue, OutboxEntry *entry)
{
	(void) queue_key_lock(entry, true);
	if (rows_writer_update(queue->writer, &entry->tid, tuple_from_entry(queue->rel, entry)))
		queue_start_moved(text_to_cstring(entry->destination));
	queue_key_unlock(entry);
}

/*
 * Lets an entry be due after a delay in microseconds, in a state.  The caller
 * must have the row locked.
 */
void
queue_reschedule(OutboxQueue *queue, OutboxEntry *entry, char state, int64 delay,
				 bool to_end_of_key)
{
	const char *destination = text_to_cstring(entry->destination);

	entry->state = state;
	(void) queue_key_lock(entry, true);
	if (to_end_of_key && entry->ordering_key)
		entry->place = next_place(queue, entry);
	queue_start_removed(entry->due_at);
	entry->due_at = queue_start_assign(destination, delay);
	(void) rows_writer_update(queue->writer, &entry->tid,
							  tuple_from_entry(queue->rel, entry));
	queue_start_assigned(destination);
	queue_key_unlock(entry);
}

/* Makes an entry a dead letter.  The caller must have the row locked. */
void
queue_move_to_dead(OutboxQueue *queue, OutboxEntry *entry, const char *reason)
{
	entry->state = QUEUE_DEAD;
	entry->reason = cstring_to_text(reason);
	entry->dead_at = GetCurrentTimestamp();
	entry->lease_until = entry->again_at = NEVER;
	queue_start_removed(entry->due_at);
	entry->due_at = NEVER;
	queue_update(queue, entry);
}

/* Removes an entry as it was found.  Waits for others that have it locked. */
RowChange
queue_delete(OutboxQueue *queue, const OutboxEntry *found)
{
	queue_start_removed(found->due_at);
	return rows_delete(queue->rel, &found->tid, true);
}

/*
 * An entry of a key is gone, or does not hold it back any more: lets the next
 * one be due at once if it was deferred behind it.  The caller must have changed
 * the entry in this transaction, and have waited for all that had it locked to
 * defer others behind it, so those are seen here.
 */
void
queue_release_next(OutboxQueue *queue, const OutboxEntry *gone, bool skip_dead)
{
	OutboxEntry next;
	bool		found;

	if (gone->ordering_key == NULL)
		return;
	queue_start_wake_at_commit(text_to_cstring(gone->destination));
	do
	{
		CHECK_FOR_INTERRUPTS();
		(void) queue_key_lock(gone, true);
		found = queue_first_of_key(queue, gone, skip_dead, &next);
		queue_key_unlock(gone);
		if (!found || next.state != QUEUE_BEHIND || next.in_flight)
			return;
	} while (rows_lock(queue->rel, &next.tid, true) != ROW_CHANGED);
	queue_reschedule(queue, &next, QUEUED, 0, false);
}
