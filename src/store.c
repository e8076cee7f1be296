/*-------------------------------------------------------------------------
 *
 * store.c
 *	  The tables of records: the only file that opens them.
 *
 * Who is first
 * ------------
 * A claim that finds nothing takes the lock of its id (permit.c) without
 * waiting, looks once more, and only then may execute.  Every session that
 * brings a record into being, or takes one over, holds that lock from before
 * its last look until its row is in the index or its transaction has ended.
 * So of two first claims A and B of one id:
 *
 * - A holds the lock: B is refused and answers in_progress;
 * - A has given the lock back early, because its row stands: B gets the lock,
 *	 looks with a dirty snapshot, sees A's uncommitted row, answers in_progress;
 * - A has committed: its row was visible before its lock was released, so B,
 *	 holding the lock, sees the row and replays;
 * - A has rolled back: lock and row went together, B finds nothing and
 *	 executes.
 *
 * There is no instant at which A's claim is neither lock nor row: the row is
 * inserted before the lock is given back, and a lock is given back early only
 * when the row stands at the claim's own nesting level (permit.c).
 *
 * The unique index judges all the same.  Inserts are checked without waiting
 * (UNIQUE_CHECK_PARTIAL): btree tests and inserts under one page lock, so of
 * two rows that met, at least the later one learns of it, removes its own row
 * and reports a conflict instead of waiting for the other.  That can only
 * happen with rows written past the locks: by hand, by COPY, by replication.
 *
 * Who changes a record
 * --------------------
 * An update names the version it was decided on.  heap_update on a tuple that
 * has changed since reports so and does nothing: compare and swap.  A claim
 * never waits for the changer (wait false); finish.c does, then looks again.
 * A purge may delete a forgotten record that is being taken over; the taker
 * inserts instead (permit_write).
 *
 * The table lock is kept to the end of the transaction, so nobody rewrites or
 * drops the table under an open claim.
 *
 * Which table
 * -----------
 * An id has one table for ever (segment.c), so all of the above is about one
 * table and its unique index.  A transaction that needs several takes weak
 * locks on them, which do not conflict with each other, in whatever order.
 *
 * Emptying a segment
 * ------------------
 * Purge truncates a segment if all of it is forgotten.  Whoever acts on what
 * stands in a segment opens it first: with RowExclusiveLock to claim or
 * change, with AccessShareLock to read, kept to the end of the transaction (by
 * a prepared one, too; given back only by a savepoint whose rollback voids the
 * claim, permit.c).  Purge asks for AccessExclusiveLock without waiting.  So:
 *
 * - granted, nobody is between his look and his end: there is no open claim of
 *	 an id of the segment, not even one that has written nothing, no taker who
 *	 has decided on a version, no uncommitted row.  What a look finds now is
 *	 all there is, and it is looked through again under the lock: each record
 *	 must be forgotten by the same life_of() as for a row by row purge, under
 *	 policies that are locked against change (purge.c).  Only then it goes;
 * - refused, somebody is there, and rows are deleted one by one around him.
 *
 * TRUNCATE needs more than that lock: those of the segment's indexes and of its
 * TOAST table, which somebody may hold by themselves (amcheck, VACUUM of a TOAST
 * table), and its rows of the catalogs, which an open GRANT may have changed.  To
 * wait for any of them would make everybody wait who opens the segment.  So
 * the whole is done in a subtransaction in which no wait lasts, and who is in the
 * way there is treated like who is in the segment.  Nor may the commit wait: that
 * for a synchronous standby holds locks, so where one is asked for nothing is
 * emptied; the worker does not ask for it.
 *
 * Whoever opens the segment meanwhile waits, and the search through it ends as
 * soon as somebody does; what remains is the time to make an empty file and to
 * commit.  Getting the lock he takes in the invalidations, so he sees the new
 * file: that its rows are absent is what they read as before.
 *
 * TRUNCATE shows in older snapshots, which matters to readers by SQL alone: a
 * dump, or a person reading a view, whose snapshot is older but whose lock is
 * younger misses forgotten records, and nothing else.  That is why a segment
 * in which a single record is to be kept is not emptied with that one put
 * back: such a dump would miss it.
 *
 * On a standby the replay of the lock conflicts with transactions that have
 * read the segment there, as the replay of a vacuum conflicts with snapshots.
 *
 * No look-up here takes an SSI lock (see rows.c), and inserts check only for
 * those of others on our tables, of which there are none: calls on unrelated
 * keys cannot cause each other a 40001.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/tablecmds.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "background.h"
#include "compat.h"
#include "counters.h"

/* Fewer blocks are cheaper to delete from than to make a new file for. */
#define WORTH_EMPTYING 32

/* So that a purge of few records need not look into every segment. */
#define LEAST_ROWS_OF_BLOCK 4

/* Index entries to look at before it is left open when a segment is over. */
#define MOST_LOOKS 10000

/* How long nothing has ended before the worker empties a segment in use. */
#define QUIET (5 * USECS_PER_SEC)

/* How long to wait for those who are in the way of emptying a segment. */
#define PATIENCE (INT64CONST(3600) * USECS_PER_SEC)

/* Columns, in the order of the table. */
enum
{
	COL_ID,
	COL_CLAIMED_AT,
	COL_FINISHED_AT,
	COL_LEASE_UNTIL,
	COL_EXPIRES_AT,
	COL_FORGET_AT,
	COL_FENCE,
	COL_NORMALISATION,
	COL_ATTEMPT,
	COL_STATE,
	COL_PRINCIPAL,
	COL_OPERATION,
	COL_KEY,
	COL_FINGERPRINT,
	COL_OWNER,
	COL_RESULT,
	COL_ERROR,
	N_COLUMNS
};

/*
 * Get ready to read records, or to claim and change them.  Tables are opened
 * as they are needed, and stay open.
 */
void
store_open(Store *store, bool for_writing)
{
	memset(store, 0, sizeof(*store));
	store->for_writing = for_writing;
	store->context = CurrentMemoryContext;
}

/*
 * One of the tables, opened if it is not.  Raises 55000 and 42809; waits for
 * DDL on it.
 */
static RecordTable *
open_table(Store *store, Table which)
{
	RecordTable *table = &store->tables[which - TABLE_RECORD];
	MemoryContext caller;

	if (table->rel)
		return table;
	caller = MemoryContextSwitchTo(store->context);
	table->rel = catalog_open(which, store->for_writing ? RowExclusiveLock :
							  AccessShareLock);
	table->look = rows_look_begin(table->rel,
								  compat_primary_key_index(table->rel), F_UUID_EQ);
	MemoryContextSwitchTo(caller);
	return table;
}

/*
 * The table of an id.
 */
static RecordTable *
table_of(Store *store, const pg_uuid_t *id)
{
	return open_table(store, segment_of(id));
}

/*
 * Close what is open; locks are kept to the end of the transaction.
 */
void
store_close(Store *store)
{
	for (int i = 0; i < N_RECORD_TABLES; i++)
	{
		RecordTable *table = &store->tables[i];

		if (table->rel == NULL)
			continue;
		rows_look_end(table->look);
		table_close(table->rel, NoLock);
	}
}

/*
 * Understand a tuple of the table.  rec points into it.
 */
static void
record_from_tuple(Relation rel, HeapTuple tuple, Record *rec)
{
	Datum		values[N_COLUMNS];
	bool		nulls[N_COLUMNS];

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	memset(rec, 0, sizeof(*rec));
	rec->id = *DatumGetUUIDP(values[COL_ID]);
	rec->claimed_at = DatumGetTimestampTz(values[COL_CLAIMED_AT]);
	rec->finished_at = rows_time(values, nulls, COL_FINISHED_AT);
	rec->lease_until = rows_time(values, nulls, COL_LEASE_UNTIL);
	rec->expires_at = rows_time(values, nulls, COL_EXPIRES_AT);
	rec->forget_at = rows_time(values, nulls, COL_FORGET_AT);
	rec->fence = DatumGetInt64(values[COL_FENCE]);
	if (!nulls[COL_NORMALISATION])
		rec->normalisation = DatumGetInt64(values[COL_NORMALISATION]);
	rec->attempt = DatumGetInt32(values[COL_ATTEMPT]);
	rec->state = DatumGetChar(values[COL_STATE]);
	rec->principal = DatumGetTextPP(values[COL_PRINCIPAL]);
	rec->operation = DatumGetTextPP(values[COL_OPERATION]);
	rec->key = DatumGetTextPP(values[COL_KEY]);
	if (!nulls[COL_FINGERPRINT])
	{
		bytea	   *fingerprint = DatumGetByteaPP(values[COL_FINGERPRINT]);

		if (VARSIZE_ANY_EXHDR(fingerprint) != IDEM_DIGEST_LEN)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("fingerprint of record %s has the wrong length",
							id_text(&rec->id))));
		rec->has_fingerprint = true;
		memcpy(rec->fingerprint, VARDATA_ANY(fingerprint), IDEM_DIGEST_LEN);
	}
	if (!nulls[COL_OWNER])
		rec->owner = DatumGetTextPP(values[COL_OWNER]);
	rec->result = nulls[COL_RESULT] ? (Datum) 0 : values[COL_RESULT];
	rec->error = nulls[COL_ERROR] ? (Datum) 0 : values[COL_ERROR];
	rec->tid = tuple->t_self;
	rec->xmin = HeapTupleHeaderGetXmin(tuple->t_data);
}

static void
set_column(Datum *values, bool *nulls, int column, Datum value, bool present)
{
	values[column] = value;
	nulls[column] = !present;
}

/*
 * A tuple of the table from a record.
 */
static HeapTuple
tuple_from_record(Relation rel, const Record *rec)
{
	Datum		values[N_COLUMNS];
	bool		nulls[N_COLUMNS];
	union
	{
		struct varlena header;
		char		bytes[VARHDRSZ + IDEM_DIGEST_LEN];
	}			fingerprint;

	SET_VARSIZE(&fingerprint, VARHDRSZ + IDEM_DIGEST_LEN);
	memcpy(VARDATA(&fingerprint), rec->fingerprint, IDEM_DIGEST_LEN);

	set_column(values, nulls, COL_ID, UUIDPGetDatum(&rec->id), true);
	rows_set_time(values, nulls, COL_CLAIMED_AT, rec->claimed_at);
	rows_set_time(values, nulls, COL_FINISHED_AT, rec->finished_at);
	rows_set_time(values, nulls, COL_LEASE_UNTIL, rec->lease_until);
	rows_set_time(values, nulls, COL_EXPIRES_AT, rec->expires_at);
	rows_set_time(values, nulls, COL_FORGET_AT, rec->forget_at);
	set_column(values, nulls, COL_FENCE, Int64GetDatum(rec->fence), true);
	set_column(values, nulls, COL_NORMALISATION,
			   Int64GetDatum(rec->normalisation), rec->normalisation != 0);
	set_column(values, nulls, COL_ATTEMPT, Int32GetDatum(rec->attempt), true);
	set_column(values, nulls, COL_STATE, CharGetDatum(rec->state), true);
	set_column(values, nulls, COL_PRINCIPAL, PointerGetDatum(rec->principal), true);
	set_column(values, nulls, COL_OPERATION, PointerGetDatum(rec->operation), true);
	set_column(values, nulls, COL_KEY, PointerGetDatum(rec->key), true);
	set_column(values, nulls, COL_FINGERPRINT, PointerGetDatum(&fingerprint),
			   rec->has_fingerprint);
	set_column(values, nulls, COL_OWNER, PointerGetDatum(rec->owner),
			   rec->owner != NULL);
	set_column(values, nulls, COL_RESULT, rec->result, rec->result != (Datum) 0);
	set_column(values, nulls, COL_ERROR, rec->error, rec->error != (Datum) 0);
	return heap_form_tuple(RelationGetDescr(rel), values, nulls);
}

static bool
same_text(const text *stored, const char *given)
{
	size_t		len = strlen(given);

	return VARSIZE_ANY_EXHDR(stored) == len &&
		memcmp(VARDATA_ANY(stored), given, len) == 0;
}

/*
 * Raise ID099 unless the record is the one of these texts: a digest collision
 * is an error, never somebody else's answer.
 */
static void
check_texts(const Record *rec, const Identity *who)
{
	if (same_text(rec->principal, who->principal) &&
		same_text(rec->operation, who->operation) &&
		same_text(rec->key, who->key))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_ID_COLLISION),
			 errmsg("a different key has the same id as this one of operation \"%s\" (id %s)",
					who->operation, id_text(&who->id)),
			 errhint("Use another key for this intent.")));
}

/*
 * Look for the record of an id as it is now.  PROBE_ROW fills rec in memory of
 * the current context; otherwise only rec->changer is set, to the open
 * transaction of PROBE_IN_FLIGHT.
 */
ProbeResult
store_probe_id(Store *store, const pg_uuid_t *id, Record *rec)
{
	RecordTable *table = table_of(store, id);
	HeapTuple	tuple;
	TransactionId other;
	ProbeResult result = rows_look(table->look, UUIDPGetDatum(id), &tuple,
								   &other);

	if (result == PROBE_ROW)
		record_from_tuple(table->rel, tuple, rec);
	rec->changer = other;
	return result;
}

/*
 * The same for an identity, whose texts are compared.  Raises ID099.
 */
ProbeResult
store_probe(Store *store, const Identity *who, Record *rec)
{
	ProbeResult result = store_probe_id(store, &who->id, rec);

	if (result == PROBE_ROW)
		check_texts(rec, who);
	return result;
}

/*
 * Wait for the transaction that is changing the record to end.  May raise
 * 40P01 and 55P03 like any wait.
 */
void
store_wait(Store *store, const Record *rec)
{
	ItemPointerData tid = rec->tid;

	XactLockTableWait(rec->changer, table_of(store, &rec->id)->rel, &tid,
					  XLTW_Update);
}

/*
 * Whose record it is.
 */
void
identity_of_record(Identity *who, const Record *rec)
{
	who->principal = text_to_cstring(rec->principal);
	who->operation = text_to_cstring(rec->operation);
	who->key = text_to_cstring(rec->key);
	who->id = rec->id;
	identity_read_key_time(who);
}

/*
 * Insert a record.  False if the unique index already has a row of that id
 * from anybody, committed or not; nothing is inserted then.  The caller holds
 * the lock of the id.
 */
bool
store_insert(Store *store, const Record *rec)
{
	Relation	rel = table_of(store, &rec->id)->rel;

	if (!rows_insert(rel, tuple_from_record(rel, rec)))
		return false;
	work_follow(NULL, rec);
	return true;
}

/*
 * Replace the version found by rec.  With wait, waits for another transaction
 * that is changing it.
 */
RowChange
store_update(Store *store, const Record *found, const Record *rec, bool wait)
{
	Relation	rel = table_of(store, &found->id)->rel;
	RowChange	change = rows_update(rel, &found->tid,
									 tuple_from_record(rel, rec), wait);

	if (change == ROW_CHANGED)
		work_follow(found, rec);
	return change;
}

/*
 * Delete the version found, which is not in the work list; waits like
 * store_update.
 */
RowChange
store_delete(Store *store, const Record *found, bool wait)
{
	return rows_delete(table_of(store, &found->id)->rel, &found->tid, wait);
}

/*
 * The index purge walks.
 */
static Relation
open_forget_index(Relation rel)
{
	static const AttrNumber columns[] = {COL_FORGET_AT + 1};

	return catalog_open_index(rel, columns, lengthof(columns),
							  psprintf("ON idempotency_internal.%s (forget_at NULLS FIRST)",
									   RelationGetRelationName(rel)));
}

/*
 * Remove the record in the slot if every reader treats it as absent already,
 * and nobody changes it.
 */
static bool
purge_tuple(Relation rel, TupleTableSlot *slot, TimestampTz now)
{
	Record		rec;
	Call		call;

	record_from_tuple(rel, ExecCopySlotHeapTuple(slot), &rec);
	identity_of_record(&call.who, &rec);
	call.policy = policy_get(call.who.operation);
	if (life_of(&rec, &call, now) != LIFE_FORGOTTEN ||
		rows_delete(rel, &rec.tid, false) != ROW_CHANGED)
		return false;
	counters_add(call.policy->counters, COUNT_PURGED, 1);
	return true;
}

typedef struct TupleStep
{
	Relation	rel;
	TupleTableSlot *slot;
	TimestampTz now;
	bool		removed;
} TupleStep;

static void
purge_tuple_step(void *arg)
{
	TupleStep  *step = arg;

	step->removed = purge_tuple(step->rel, step->slot, step->now);
}

/*
 * The same in a subtransaction: if it raises, the record stays and the batch
 * takes note.
 */
static bool
purge_tuple_carefully(Relation rel, TupleTableSlot *slot, TimestampTz now,
					  PurgeBatch *batch)
{
	TupleStep	step = {rel, slot, now, false};

	return !purge_note_fault(batch, subtransaction_try(purge_tuple_step, &step)) && step.removed;
}

/*
 * Begin to walk records by forget_at, from a time on up to now.
 */
static IndexScanDesc
begin_purge_scan(Relation rel, Relation index, SnapshotData *dirty,
				 TimestampTz from, TimestampTz now)
{
	ScanKeyData keys[2];
	IndexScanDesc scan;

	ScanKeyInit(&keys[0], 1, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
				TimestampTzGetDatum(now));
	ScanKeyInit(&keys[1], 1, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(from));
	InitDirtySnapshot(*dirty);
	scan = compat_index_beginscan(rel, index, dirty, lengthof(keys), 0);
	index_rescan(scan, keys, lengthof(keys), NULL, 0);
	return scan;
}

/*
 * Remove forgotten records of a table, oldest first, as many as the batch has
 * room for; those another transaction is working on are left alone.  Going on
 * from where the batch before came to spares walking again over what that one
 * has left behind, dead or alive.  True if all were looked at.
 */
static bool
walk_table(Relation rel, Relation index, PurgeBatch *batch, TimestampTz *reached,
		   int64 *looks)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency purge",
												  ALLOCSET_DEFAULT_SIZES);
	TimestampTz now = GetCurrentTimestamp();
	bool		at_end = false;
	SnapshotData dirty;
	IndexScanDesc scan = begin_purge_scan(rel, index, &dirty, *reached, now);

	while (batch->removed < batch->max_records && *looks > 0)
	{
		MemoryContext old;
		bool		isnull;

		if (!index_getnext_slot(scan, ForwardScanDirection, slot))
		{
			at_end = true;
			break;
		}
		CHECK_FOR_INTERRUPTS();
		(*looks)--;
		*reached = DatumGetTimestampTz(slot_getattr(slot, COL_FORGET_AT + 1, &isnull));
		if (TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax))
			continue;
		old = MemoryContextSwitchTo(context);
		if (batch->careful ?
			purge_tuple_carefully(rel, slot, now, batch) :
			purge_tuple(rel, slot, now))
			batch->removed++;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(context);
	return at_end;
}

/*----
 * Whole segments.
 *----
 */

/*
 * The next row of a scan with a dirty snapshot, if it comes within so many
 * index entries; *looks is then still positive.
 */
static bool
next_within(IndexScanDesc scan, ScanDirection direction, TupleTableSlot *slot,
			int *looks)
{
	for (;;)
	{
		if (!scan->xs_heap_continue &&
			(--*looks <= 0 || index_getnext_tid(scan, direction) == NULL))
			return false;
		CHECK_FOR_INTERRUPTS();
		if (index_fetch_heap(scan, slot))
			return true;
	}
}

/*
 * Which rows of a segment, committed or not, are in the way of emptying it
 * longest: when are all of them to be forgotten?  NEVER if that is not known;
 * DT_NOBEGIN if there is no row at all.
 */
static TimestampTz
segment_due(Relation rel, Relation index)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	int			looks = MOST_LOOKS;
	TimestampTz due = NEVER;
	bool		isnull;
	SnapshotData dirty;
	ScanKeyData key;
	IndexScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = compat_index_beginscan(rel, index, &dirty, 1, 0);
	ScanKeyEntryInitialize(&key, SK_ISNULL | SK_SEARCHNULL, 1, InvalidStrategy,
						   InvalidOid, InvalidOid, InvalidOid, (Datum) 0);
	index_rescan(scan, &key, 1, NULL, 0);
	if (!next_within(scan, ForwardScanDirection, slot, &looks) && looks > 0)
	{
		/* none that is kept for ever: the newest */
		ScanKeyEntryInitialize(&key, SK_ISNULL | SK_SEARCHNOTNULL, 1,
							   InvalidStrategy, InvalidOid, InvalidOid,
							   InvalidOid, (Datum) 0);
		index_rescan(scan, &key, 1, NULL, 0);
		if (next_within(scan, BackwardScanDirection, slot, &looks))
			due = DatumGetTimestampTz(slot_getattr(slot, COL_FORGET_AT + 1, &isnull));
		else if (looks > 0)
			due = DT_NOBEGIN;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return due;
}

/*
 * Is a segment, with what is stored beside its rows, large enough to be
 * emptied as a whole?
 */
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
 * Is a vacuum at work on a table?  It goes away by itself.
 */
static bool
is_being_vacuumed(Relation rel)
{
	if (!ConditionalLockRelation(rel, ShareUpdateExclusiveLock))
		return true;
	UnlockRelation(rel, ShareUpdateExclusiveLock);
	return false;
}

/*
 * Will a segment be emptied as a whole, so soon that its rows are better left
 * for that?  It is closed, and the wait that is left is not longer than the one
 * since, so what is stored for nothing stays in proportion.  If it is overdue,
 * somebody is in the way; wait for them a while, and for a vacuum.
 */
static bool
is_worth_waiting(Relation rel, Relation index, Table which, TimestampTz now)
{
	TimestampTz closes_at = segment_closes_at(which, now);
	TimestampTz due;

	if (closes_at > now || !is_worth_emptying(rel))
		return false;
	due = segment_due(rel, index);
	if (due == NEVER || due == DT_NOBEGIN)
		return false;
	if (due > now)
		return due - now <= now - closes_at;
	return now - due < PATIENCE || is_being_vacuumed(rel);
}

/*
 * Is that version there, if no other open transaction has touched the table?
 * Does not note what it finds out in the row, as a snapshot would: that makes
 * pages dirty, which the WAL has to take in if they have checksums.
 */
static bool
is_settled_version(HeapTupleHeader tuple)
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

/* Records of one operation. */
typedef struct Tally
{
	struct CounterSet *counters;
	int64		number;
} Tally;

static void
tally(List **tallies, struct CounterSet *counters)
{
	Tally	   *entry;
	ListCell   *lc;

	foreach(lc, *tallies)
	{
		entry = lfirst(lc);
		if (entry->counters == counters)
		{
			entry->number++;
			return;
		}
	}
	entry = palloc(sizeof(Tally));
	entry->counters = counters;
	entry->number = 1;
	*tallies = lappend(*tallies, entry);
}

/*
 * Is a record forgotten?  Says whose counters it is to be counted in.
 */
static bool
is_forgotten(Relation rel, HeapTuple tuple, TimestampTz now,
			 struct CounterSet **counters)
{
	Record		rec;
	Call		call;

	record_from_tuple(rel, tuple, &rec);
	identity_of_record(&call.who, &rec);
	call.policy = policy_get(call.who.operation);
	*counters = call.policy->counters;
	return life_of(&rec, &call, now) == LIFE_FORGOTTEN;
}

/*
 * Are all records of a segment forgotten, and not more than most?  Counts
 * them.  The caller holds AccessExclusiveLock; false, too, as soon as anybody
 * waits for it.
 */
static bool
all_forgotten(Relation rel, int64 most, List **tallies, int64 *number)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "idempotency segment",
												  ALLOCSET_DEFAULT_SIZES);
	TableScanDesc scan = table_beginscan(rel, SnapshotAny, 0, NULL);
	TimestampTz now = GetCurrentTimestamp();
	BlockNumber block = InvalidBlockNumber;
	bool		good = true;

	while (good && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
		struct CounterSet *counters;

		CHECK_FOR_INTERRUPTS();
		if (block != ItemPointerGetBlockNumber(&tuple->t_self) &&
			LockHasWaitersRelation(rel, AccessExclusiveLock))
			good = false;
		block = ItemPointerGetBlockNumber(&tuple->t_self);
		if (!good || !is_settled_version(tuple->t_data))
			continue;
		MemoryContextSwitchTo(context);
		good = ++*number <= most && is_forgotten(rel, tuple, now, &counters);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(context);
		if (good)
			tally(tallies, counters);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(context);
	return good;
}

/*
 * TRUNCATE a segment, as its owner, whoever we are.  The caller holds
 * AccessExclusiveLock and has closed it.
 */
static void
truncate_table(char *schema, char *name, Oid owner)
{
	TruncateStmt *stmt = makeNode(TruncateStmt);
	Oid			user;
	int			context;

	stmt->relations = list_make1(makeRangeVar(schema, name, -1));
	((RangeVar *) linitial(stmt->relations))->inh = false;
	stmt->behavior = DROP_RESTRICT;
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(owner, context | SECURITY_RESTRICTED_OPERATION);
	ExecuteTruncate(stmt);
	SetUserIdAndSecContext(user, context);
}

/*
 * Does it look as if a segment could be emptied now, and as if that were worth
 * it?  The worker leaves the segment of the present alone unless nothing has
 * come in for a while.
 */
static bool
looks_over(Relation rel, Table which, const PurgeBatch *batch)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		closed = segment_closes_at(which, now) <= now;
	TimestampTz due;
	Relation	index;

	if (!is_worth_emptying(rel) ||
		RelationGetNumberOfBlocks(rel) > batch->max_emptied / LEAST_ROWS_OF_BLOCK)
		return false;
	index = open_forget_index(rel);
	due = segment_due(rel, index);
	index_close(index, AccessShareLock);
	if (due == DT_NOBEGIN)
		return closed && batch->lazy;	/* dead rows only: nothing to count */
	return due <= now && (closed || !batch->lazy || now - due >= QUIET);
}

typedef struct EmptyStep
{
	Table		which;
	const PurgeBatch *batch;
	List	   *tallies;
	int64		number;
	bool		emptied;
} EmptyStep;

/*
 * Empty a segment if all of it is forgotten and nobody is there; in a
 * subtransaction of its own.  May raise 55P03 after a moment, and what a record
 * that cannot be understood raises.
 */
static void
empty_step(void *arg)
{
	EmptyStep  *step = arg;
	Oid			relid = catalog_relid(step->which);
	int			settings = NewGUCNestLevel();
	char	   *schema;
	char	   *name;
	Oid			owner;
	Relation	rel;
	bool		over;

	if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return;
	/* an outer query of ours may be reading it */
	rel = catalog_open(step->which, NoLock);
	over = rel->rd_refcnt == 1 &&
		all_forgotten(rel, step->batch->max_emptied, &step->tallies, &step->number) &&
		(step->number > 0 || step->batch->lazy);
	schema = get_namespace_name(RelationGetNamespace(rel));
	name = pstrdup(RelationGetRelationName(rel));
	owner = rel->rd_rel->relowner;
	table_close(rel, NoLock);
	if (!over)
	{
		UnlockRelationOid(relid, AccessExclusiveLock);
		return;
	}
	(void) set_config_option("lock_timeout", "1ms", PGC_SUSET, PGC_S_OVERRIDE,
							 GUC_ACTION_SAVE, true, 0, false);
	truncate_table(schema, name, owner);
	AtEOXact_GUC(true, settings);
	step->emptied = true;
}

/*
 * Does it look as if a segment could be emptied now?  Locks it for the look
 * only.
 */
static bool
may_be_emptied(Table which, const PurgeBatch *batch)
{
	Oid			relid = catalog_relid(which);
	Relation	rel;
	bool		over;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return false;
	rel = catalog_open(which, NoLock);
	over = looks_over(rel, which, batch);
	table_close(rel, NoLock);
	UnlockRelationOid(relid, AccessShareLock);
	return over;
}

static void
look_step(void *arg)
{
	EmptyStep  *step = arg;

	step->emptied = may_be_emptied(step->which, step->batch);
}

/*
 * Empty a segment if that is possible.  A careful batch passes by what raises:
 * it is found again row by row, and noted then.
 */
static bool
empty_segment(Table which, PurgeBatch *batch)
{
	EmptyStep	step = {.which = which,.batch = batch};
	ErrorData  *error;
	ListCell   *lc;

	if (batch->careful)
	{
		if (subtransaction_try(look_step, &step) != NULL || !step.emptied)
			return false;
	}
	else if (!may_be_emptied(which, batch))
		return false;
	step.emptied = false;
	error = subtransaction_try(empty_step, &step);
	if (error && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE && !batch->careful)
		ReThrowError(error);
	if (error || !step.emptied)
		return false;
	foreach(lc, step.tallies)
		counters_add(((Tally *) lfirst(lc))->counters, COUNT_PURGED,
					 ((Tally *) lfirst(lc))->number);
	batch->removed += step.number;
	return true;
}

/*
 * Empty the next segment of which that is possible, without waiting for
 * anybody.  False if there is none.
 */
bool
store_empty_segment(PurgeBatch *batch)
{
	batch->at_end = false;
	if (SyncRepRequested() && SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0')
		batch->next_segment = N_SEGMENTS;
	while (batch->next_segment < N_SEGMENTS)
	{
		CHECK_FOR_INTERRUPTS();
		if (empty_segment(TABLE_SEGMENT + batch->next_segment++, batch))
			return true;
	}
	return false;
}

/*----
 * All tables.
 *----
 */

/*
 * Remove records of one table one by one.  True if nothing is left to do in
 * it, now or in this visit.
 */
static bool
purge_table(Store *store, Table which, PurgeBatch *batch, int64 *looks)
{
	bool		done = true;
	Relation	index;
	Relation	rel;

	/* somebody empties it, or DDL is going on */
	if (which != TABLE_RECORD &&
		!ConditionalLockRelationOid(catalog_relid(which), RowExclusiveLock))
		return true;
	rel = open_table(store, which)->rel;
	if (RelationGetNumberOfBlocks(rel) == 0)
		return true;
	index = open_forget_index(rel);
	if (which == TABLE_RECORD || !batch->lazy ||
		!is_worth_waiting(rel, index, which, GetCurrentTimestamp()))
		done = walk_table(rel, index, batch, &batch->reached[which - TABLE_RECORD],
						  looks);
	index_close(index, AccessShareLock);
	return done;
}

typedef struct TableStep
{
	Table		which;
	PurgeBatch *batch;
	int64	   *looks;
	bool		done;
} TableStep;

static void
purge_table_step(void *arg)
{
	TableStep  *step = arg;
	Store		store;

	store_open(&store, true);
	step->done = purge_table(&store, step->which, step->batch, step->looks);
	store_close(&store);
}

/*
 * The same in a subtransaction, whose store has this table only: if the table
 * itself is out of order, the others are purged all the same.
 */
static bool
purge_table_carefully(Table which, PurgeBatch *batch, int64 *looks)
{
	TableStep	step = {which, batch, looks, true};
	int64		removed = batch->removed;

	if (purge_note_fault(batch, subtransaction_try(purge_table_step, &step)))
		batch->removed = removed;
	return step.done;
}

/*
 * How far a batch has come: in those tables it has begun and not done, or, if
 * there is none of them, in all.
 */
static TimestampTz
reached_in_all(const PurgeBatch *batch)
{
	TimestampTz least = NEVER;
	TimestampTz most = DT_NOBEGIN;

	for (int i = 0; i < N_RECORD_TABLES; i++)
	{
		if (batch->reached[i] == DT_NOBEGIN)
			continue;
		most = Max(most, batch->reached[i]);
		if (!batch->done[i])
			least = Min(least, batch->reached[i]);
	}
	return least != NEVER ? least : most;
}

/*
 * Remove a batch of forgotten records one by one, table after table; the next
 * batch begins with another table, so that none is kept waiting by a large
 * one.
 */
void
store_purge(Store *store, PurgeBatch *batch)
{
	int64		looks = batch->max_looks > 0 ? batch->max_looks : PG_INT64_MAX;
	int			first = batch->next_table;

	batch->at_end = true;
	for (int i = 0; i < N_RECORD_TABLES; i++)
	{
		int			at = (first + i) % N_RECORD_TABLES;

		if (batch->done[at])
			continue;
		if (batch->removed < batch->max_records && looks > 0)
		{
			batch->done[at] = batch->careful ?
				purge_table_carefully(TABLE_RECORD + at, batch, &looks) :
				purge_table(store, TABLE_RECORD + at, batch, &looks);
			batch->next_table = (at + 1) % N_RECORD_TABLES;
		}
		batch->at_end = batch->at_end && batch->done[at];
	}
	batch->from = reached_in_all(batch);
}

/*
 * Was any record of a table, committed or not, hashed under that version of
 * the normalisation settings?
 */
static bool
has_normalisation(Relation rel, int64 version)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	bool		found = false;
	SnapshotData dirty;
	TableScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = table_beginscan(rel, &dirty, 0, NULL);
	while (!found && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;
		Datum		value = slot_getattr(slot, COL_NORMALISATION + 1, &isnull);

		CHECK_FOR_INTERRUPTS();
		found = !isnull && DatumGetInt64(value) == version;
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return found;
}

/*
 * Was any record hashed under that version?  Reads all tables; a segment that
 * is locked may have one.
 */
bool
store_needs_normalisation(Store *store, int64 version)
{
	for (int i = 0; i < N_RECORD_TABLES; i++)
	{
		Table		which = TABLE_RECORD + i;

		if (which != TABLE_RECORD &&
			!ConditionalLockRelationOid(catalog_relid(which), AccessShareLock))
			return true;
		if (has_normalisation(open_table(store, which)->rel, version))
			return true;
	}
	return false;
}
