/*-------------------------------------------------------------------------
 *
 * store.c
 *	  The record table: the only file that opens it.
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
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "background.h"
#include "compat.h"
#include "counters.h"

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
 * Open the record table for reading, or for claims and changes.
 */
void
store_open(Store *store, bool for_writing)
{
	store->rel = catalog_open(TABLE_RECORD,
							  for_writing ? RowExclusiveLock : AccessShareLock);
	store->look = rows_look_begin(store->rel,
								  compat_primary_key_index(store->rel), F_UUID_EQ);
}

/*
 * Close it; locks are kept to the end of the transaction.
 */
void
store_close(Store *store)
{
	rows_look_end(store->look);
	table_close(store->rel, NoLock);
}

/*
 * A stored time; NULL never comes.
 */
static TimestampTz
column_time(const Datum *values, const bool *nulls, int column)
{
	return nulls[column] ? NEVER : DatumGetTimestampTz(values[column]);
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
	rec->finished_at = column_time(values, nulls, COL_FINISHED_AT);
	rec->lease_until = column_time(values, nulls, COL_LEASE_UNTIL);
	rec->expires_at = column_time(values, nulls, COL_EXPIRES_AT);
	rec->forget_at = column_time(values, nulls, COL_FORGET_AT);
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

static void
set_time(Datum *values, bool *nulls, int column, TimestampTz time)
{
	set_column(values, nulls, column, TimestampTzGetDatum(time), time != NEVER);
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
	set_time(values, nulls, COL_CLAIMED_AT, rec->claimed_at);
	set_time(values, nulls, COL_FINISHED_AT, rec->finished_at);
	set_time(values, nulls, COL_LEASE_UNTIL, rec->lease_until);
	set_time(values, nulls, COL_EXPIRES_AT, rec->expires_at);
	set_time(values, nulls, COL_FORGET_AT, rec->forget_at);
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
	HeapTuple	tuple;
	TransactionId other;
	ProbeResult result = rows_look(store->look, UUIDPGetDatum(id), &tuple,
								   &other);

	if (result == PROBE_ROW)
		record_from_tuple(store->rel, tuple, rec);
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

	XactLockTableWait(rec->changer, store->rel, &tid, XLTW_Update);
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
	if (!rows_insert(store->rel, tuple_from_record(store->rel, rec)))
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
	RowChange	change = rows_update(store->rel, &found->tid,
									 tuple_from_record(store->rel, rec), wait);

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
	return rows_delete(store->rel, &found->tid, wait);
}

/*
 * The index purge walks: on forget_at alone.
 */
static Relation
open_forget_index(Relation rel, LOCKMODE lockmode)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), lockmode);

		if (index->rd_index->indnkeyatts == 1 && index->rd_index->indisvalid &&
			index->rd_index->indkey.values[0] == COL_FORGET_AT + 1 &&
			RelationGetIndexPredicate(index) == NIL)
			return index;
		index_close(index, lockmode);
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the index on \"forget_at\" of the record table is missing"),
			 errhint("Make it again: CREATE INDEX record_forget_at_idx ON idempotency_internal.record (forget_at NULLS FIRST).")));
	return NULL;
}

/*
 * Remove the record in the slot if every reader treats it as absent already,
 * and nobody changes it.
 */
static bool
purge_tuple(Store *store, TupleTableSlot *slot, TimestampTz now)
{
	Record		rec;
	Call		call;

	record_from_tuple(store->rel, ExecCopySlotHeapTuple(slot), &rec);
	identity_of_record(&call.who, &rec);
	call.policy = policy_get(call.who.operation);
	if (life_of(&rec, &call, now) != LIFE_FORGOTTEN ||
		store_delete(store, &rec, false) != ROW_CHANGED)
		return false;
	counters_add(call.policy->counters, COUNT_PURGED, 1);
	return true;
}

/*
 * The same in a subtransaction: if it raises, the record stays and the batch
 * takes note.  What an operator does (cancel, terminate) is raised again.
 */
static bool
purge_tuple_carefully(Store *store, TupleTableSlot *slot, TimestampTz now,
					  PurgeBatch *batch)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool removed = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		removed = purge_tuple(store, slot, now);
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
			ReThrowError(error);
		removed = false;
		if (batch->failed++ == 0)
			strlcpy(batch->fault, error->message, sizeof(batch->fault));
	}
	PG_END_TRY();
	return removed;
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
 * Remove a batch of forgotten records, oldest first; those another transaction
 * is working on are left alone.  Going on from where the batch before came to
 * spares walking again over what that one has left behind, dead or alive.
 */
void
store_purge(Store *store, PurgeBatch *batch)
{
	Relation	rel = store->rel;
	Relation	index = open_forget_index(rel, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency purge",
												  ALLOCSET_DEFAULT_SIZES);
	TimestampTz now = GetCurrentTimestamp();
	int64		looks = 0;
	SnapshotData dirty;
	IndexScanDesc scan = begin_purge_scan(rel, index, &dirty, batch->from, now);

	batch->at_end = false;
	while (batch->removed < batch->max_records &&
		   (batch->max_looks == 0 || looks < batch->max_looks))
	{
		MemoryContext old;
		bool		isnull;

		if (!index_getnext_slot(scan, ForwardScanDirection, slot))
		{
			batch->at_end = true;
			break;
		}
		CHECK_FOR_INTERRUPTS();
		looks++;
		batch->from = DatumGetTimestampTz(slot_getattr(slot, COL_FORGET_AT + 1, &isnull));
		if (TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax))
			continue;
		old = MemoryContextSwitchTo(context);
		if (batch->careful ?
			purge_tuple_carefully(store, slot, now, batch) :
			purge_tuple(store, slot, now))
			batch->removed++;
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	MemoryContextDelete(context);
}

/*
 * Was any record, committed or not, hashed under that version of the
 * normalisation settings?  Reads the whole table.
 */
bool
store_needs_normalisation(Store *store, int64 version)
{
	TupleTableSlot *slot = table_slot_create(store->rel, NULL);
	bool		needed = false;
	SnapshotData dirty;
	TableScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = table_beginscan(store->rel, &dirty, 0, NULL);
	while (!needed && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;
		Datum		value = slot_getattr(slot, COL_NORMALISATION + 1, &isnull);

		CHECK_FOR_INTERRUPTS();
		needed = !isnull && DatumGetInt64(value) == version;
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return needed;
}
