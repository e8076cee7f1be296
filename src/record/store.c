/*
 * store.c
 *	  The tables of records: the only file that opens them.
 *
 * Who is first
 * ------------
 * A claim takes the lock of its id (open_claims.c) without waiting, before its
 * first probe or when that finds nothing, and only what it then finds under the
 * lock may let it execute.  Every session that brings a record into being, or
 * takes one over, holds that lock from before its last look until its row is in
 * the index or its transaction has ended.  So of two first claims A and B of one
 * id:
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
 * when the row stands at the claim's own nesting level (open_claims.c).
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
 * inserts instead (open_claim_write).
 *
 * The table lock is kept to the end of the transaction, so the table is not
 * rewritten or dropped under an open claim.  An id has one table for ever
 * (segment.c), so all of the above is about one table and its unique index.  A
 * transaction that needs several takes weak locks on them, which do not conflict.
 *
 * No look-up here takes an SSI lock (see rows.c), and inserts check only for
 * those of others on our tables, of which there are none: calls on unrelated
 * keys cannot cause each other a 40001.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_am.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"

#include "record/record.h"

#define N_COLUMNS 21

#define FORGET_AT_COLUMN 6

/* One table, open. */
struct RecordTable
{
	UndoEntry	kept;			/* while it is kept and not in use */
	RecordTable *next;			/* in its store */
	Table		which;
	int64		shard;			/* of placed_record, instead; 0 = none */
	LOCKMODE	lockmode;
	ResourceOwner owner;
	Relation	rel;
	RowProbe   *look;			/* NULL = not looked into yet */
};

/*
 * The table used last is kept open for the next call: a completion mostly follows
 * its claim in the same statement.  Not beyond that statement, and not into one
 * that may be DDL on the table (open_claims.c tells of them), nor beyond the
 * subtransaction or the resource owner that opened it.
 */
static RecordTable *kept = NULL;

static void kept_undone(UndoEntry *entry);
static void kept_merged(UndoEntry *entry);

static UndoList all_kept = UNDO_LIST(all_kept, kept_merged, kept_undone);

static void
close_table(RecordTable *table)
{
	ResourceOwner caller = CurrentResourceOwner;

	CurrentResourceOwner = table->owner;
	if (table->look)
		rows_probe_end(table->look);
	table_close(table->rel, NoLock);
	CurrentResourceOwner = caller;
	pfree(table);
}

void
store_close_kept(void)
{
	if (kept == NULL)
		return;
	dlist_delete(&kept->kept.node);
	close_table(kept);
	kept = NULL;
}

static void
kept_merged(UndoEntry *entry)
{
	store_close_kept();
}

/* The resource owner closes it, and its memory goes with the subtransaction. */
static void
kept_undone(UndoEntry *entry)
{
	kept = NULL;
}

static void
store_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		store_close_kept();
}

/* Registers callbacks.  Once, at load. */
void
store_init(void)
{
	RegisterXactCallback(store_xact_callback, NULL);
	undo_register(&all_kept);
}

/* Gets ready to read records or change them.  Tables are opened when needed, and stay open. */
void
store_open(Store *store, bool for_writing)
{
	memset(store, 0, sizeof(*store));
	store->for_writing = for_writing;
}

/*
 * Returns one of the tables, or that of a shard that is here and is like it, opened if
 * it is not.  Raises 55000 and 42809; waits for DDL on it.
 */
static RecordTable *
open_table(Store *store, Table which, int64 shard)
{
	LOCKMODE	lockmode = store->for_writing ? RowExclusiveLock : AccessShareLock;
	RecordTable *table = store->tables;

	while (table && (table->which != which || table->shard != shard))
		table = table->next;
	if (table)
		return table;
	if (kept && kept->which == which && kept->shard == shard &&
		kept->lockmode == lockmode && kept->owner == CurrentResourceOwner)
	{
		table = kept;
		dlist_delete(&table->kept.node);
		kept = NULL;
	}
	else
	{
		table = MemoryContextAllocZero(CurTransactionContext, sizeof(RecordTable));
		table->which = which;
		table->shard = shard;
		table->lockmode = lockmode;
		table->owner = CurrentResourceOwner;
		table->rel = shard ? place_open(which, shard, lockmode) : catalog_open(which, lockmode);
	}
	table->next = store->tables;
	store->tables = table;
	return table;
}

/* Opens the index that tells what may be due.  Raises 55000. */
Relation
store_forget_index(Relation rel)
{
	static const IndexShape by_forget_at = {
		BRIN_AM_OID, 1, {FORGET_AT_COLUMN},
		"ON idempotency_internal.%s USING brin (forget_at idempotency_internal.forget_at_ops) WITH (pages_per_range = 16)"
	};

	return catalog_open_index(rel, &by_forget_at);
}

TimestampTz
store_forget_at(Relation rel, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, FORGET_AT_COLUMN, RelationGetDescr(rel), &isnull);

	return isnull ? NEVER : DatumGetTimestampTz(value);
}

/*
 * The table of an id or, on a cluster, of a principal, which is given in one form
 * or the other; NULL on a cluster if it is not.  While this waited for a table,
 * idem_distribute() may have moved its rows.
 */
static RecordTable *
table_of(Store *store, const pg_uuid_t *id, const char *principal, const text *or_text)
{
	RecordTable *table = NULL;

	if (!place_used())
		table = open_table(store, segment_of(id), 0);
	if (!place_used())
		return table;
	if (principal == NULL && or_text == NULL)
		return NULL;
	return open_table(store, TABLE_RECORD, place_of(principal ? principal : text_to_cstring(or_text)).record);
}

static RecordTable *
table_of_record(Store *store, const Record *rec)
{
	return table_of(store, &rec->id, NULL, rec->principal);
}

/* Closes what is open, but for what is kept; its locks stay. */
void
store_close(Store *store)
{
	RecordTable *table = store->tables;

	while (table)
	{
		RecordTable *next = table->next;

		if (next || table->owner != CurrentResourceOwner)
			close_table(table);
		else
		{
			store_close_kept();
			kept = table;
			undo_push(&all_kept, &table->kept);
		}
		table = next;
	}
	store->tables = NULL;
}

/* Reads a tuple of the table.  rec points into it.  Raises XX001. */
void
store_read(Relation rel, HeapTuple tuple, Record *rec)
{
	RowValues	row;
	bytea	   *fingerprint;

	row_begin(&row, RelationGetDescr(rel), tuple, N_COLUMNS);
	memset(rec, 0, sizeof(*rec));
	rec->id = *DatumGetUUIDP(row_next(&row));
	rec->claimed_at = row_next_time(&row, NEVER);
	rec->finished_at = row_next_time(&row, NEVER);
	rec->lease_until = row_next_time(&row, NEVER);
	rec->expires_at = row_next_time(&row, NEVER);
	rec->forget_at = row_next_time(&row, NEVER);
	rec->not_before = row_next_time(&row, DT_NOBEGIN);
	rec->reopened_at = row_next_time(&row, DT_NOBEGIN);
	rec->fence = DatumGetInt64(row_next(&row));
	rec->normalisation = DatumGetInt64(row_next(&row));
	rec->attempt = DatumGetInt32(row_next(&row));
	rec->releases = DatumGetInt32(row_next(&row));
	rec->state = DatumGetChar(row_next(&row));
	rec->accepted = DatumGetBool(row_next(&row));
	rec->principal = row_next_text(&row);
	rec->operation = row_next_text(&row);
	rec->key = row_next_text(&row);
	fingerprint = row_next_text(&row);
	if (fingerprint)
	{
		if (VARSIZE_ANY_EXHDR(fingerprint) != IDEM_DIGEST_LEN)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("fingerprint of record %s has the wrong length",
							identity_text(&rec->id)),
					 errhint("It was changed by hand. Restore it from a backup, or delete it from table \"%s.%s\": the key may then execute again.",
							 get_namespace_name(RelationGetNamespace(rel)),
							 RelationGetRelationName(rel))));
		rec->has_fingerprint = true;
		memcpy(rec->fingerprint, VARDATA_ANY(fingerprint), IDEM_DIGEST_LEN);
	}
	rec->owner = row_next_text(&row);
	rec->result = row_next(&row);
	rec->error = row_next(&row);
	rec->tid = tuple->t_self;
	rec->xmin = HeapTupleHeaderGetXmin(tuple->t_data);
}

static HeapTuple
tuple_from_record(Relation rel, const Record *rec)
{
	RowValues	row = {0};
	union
	{
		struct varlena header;
		char		bytes[VARHDRSZ + IDEM_DIGEST_LEN];
	}			fingerprint;

	SET_VARSIZE(&fingerprint, VARHDRSZ + IDEM_DIGEST_LEN);
	memcpy(VARDATA(&fingerprint), rec->fingerprint, IDEM_DIGEST_LEN);

	row_add(&row, true, UUIDPGetDatum(&rec->id));
	row_add_time(&row, rec->claimed_at);
	row_add_time(&row, rec->finished_at);
	row_add_time(&row, rec->lease_until);
	row_add_time(&row, rec->expires_at);
	row_add_time(&row, rec->forget_at);
	row_add_time(&row, rec->not_before);
	row_add_time(&row, rec->reopened_at);
	row_add(&row, true, Int64GetDatum(rec->fence));
	row_add(&row, rec->normalisation != 0, Int64GetDatum(rec->normalisation));
	row_add(&row, true, Int32GetDatum(rec->attempt));
	row_add(&row, true, Int32GetDatum(rec->releases));
	row_add(&row, true, CharGetDatum(rec->state));
	row_add(&row, true, BoolGetDatum(rec->accepted));
	row_add(&row, true, PointerGetDatum(rec->principal));
	row_add(&row, true, PointerGetDatum(rec->operation));
	row_add(&row, true, PointerGetDatum(rec->key));
	row_add(&row, rec->has_fingerprint, PointerGetDatum(&fingerprint));
	row_add(&row, rec->owner != NULL, PointerGetDatum(rec->owner));
	row_add(&row, rec->result != (Datum) 0, rec->result);
	row_add(&row, rec->error != (Datum) 0, rec->error);
	Assert(row.n == N_COLUMNS);
	return place_form(rel, &row, rec->principal);
}

static bool
same_text(const text *stored, const char *given)
{
	size_t		len = strlen(given);

	return VARSIZE_ANY_EXHDR(stored) == len &&
		memcmp(VARDATA_ANY(stored), given, len) == 0;
}

/*
 * Raises ID099 unless the record is the one of these texts: a digest collision
 * is an error, never the answer to another key.
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
					who->operation, identity_text(&who->id)),
			 errhint("Use another key for this intent.")));
}

static ProbeResult
probe_table(RecordTable *table, const pg_uuid_t *id, Record *rec)
{
	ProbeResult result;

	if (table->look == NULL)
	{
		MemoryContext caller = MemoryContextSwitchTo(GetMemoryChunkContext(table));

		table->look = rows_probe_begin(table->rel, F_UUID_EQ, table->lockmode);
		MemoryContextSwitchTo(caller);
	}
	result = rows_probe(table->look, UUIDPGetDatum(id));
	if (result == PROBE_ROW)
		store_read(table->rel, table->look->tuple, rec);
	rec->changer = table->look->other;
	rec->being_deleted = table->look->being_deleted;
	return result;
}

static ProbeResult
probe_shards(Store *store, const pg_uuid_t *id, Record *rec)
{
	ProbeResult result = PROBE_NOTHING;
	ListCell   *lc;

	if (store->here == NIL)
	{
		MemoryContext caller = MemoryContextSwitchTo(CurTransactionContext);

		store->here = place_here();
		MemoryContextSwitchTo(caller);
	}
	foreach(lc, store->here)
	{
		result = probe_table(open_table(store, TABLE_RECORD, ((Place *) lfirst(lc))->record), id, rec);
		if (result != PROBE_NOTHING)
			break;
	}
	return result;
}

/*
 * Look for the record of an id as it is now.  PROBE_ROW fills rec in memory of
 * the current context; otherwise only rec->changer is set, to the open
 * transaction of PROBE_IN_FLIGHT.  The principal may be NULL if it is not known:
 * then a record on another node of a cluster is not found.
 */
ProbeResult
store_probe_id(Store *store, const pg_uuid_t *id, const text *principal, Record *rec)
{
	RecordTable *table = table_of(store, id, NULL, principal);

	return table ? probe_table(table, id, rec) : probe_shards(store, id, rec);
}

/* The same for an identity, whose texts are compared.  Raises ID099. */
ProbeResult
store_probe(Store *store, const Identity *who, Record *rec)
{
	ProbeResult result = probe_table(table_of(store, &who->id, who->principal, NULL),
									 &who->id, rec);

	if (result == PROBE_ROW)
		check_texts(rec, who);
	return result;
}

/* Waits for the transaction that is changing the record.  May raise 40P01 and 55P03. */
void
store_wait(Store *store, const Record *rec)
{
	ItemPointerData tid = rec->tid;

	Assert(TransactionIdIsValid(rec->changer));
	Assert(!TransactionIdIsCurrentTransactionId(rec->changer));
	XactLockTableWait(rec->changer, table_of_record(store, rec)->rel, &tid,
					  XLTW_Update);
}

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
 * Inserts a record.  False if the unique index already has a row of that id of any
 * transaction, committed or not; nothing is inserted then.  The caller must hold the
 * lock of the id.
 */
bool
store_insert(Store *store, const Record *rec)
{
	Relation	rel = table_of_record(store, rec)->rel;

	Assert(store->for_writing);
	Assert(open_claim_lock_held(&rec->id));
	if (!rows_insert(rel, tuple_from_record(rel, rec)))
		return false;
	work_follow(NULL, rec);
	return true;
}

/* Replaces the version found.  With wait, waits for another that is changing it. */
RowChange
store_update(Store *store, const Record *found, const Record *rec, bool wait)
{
	Relation	rel = table_of_record(store, found)->rel;
	RowChange	change;

	Assert(store->for_writing);
	Assert(memcmp(&found->id, &rec->id, UUID_LEN) == 0);
	Assert(rec->fence >= found->fence);
	change = rows_update(rel, &found->tid, tuple_from_record(rel, rec), wait);
	if (change == ROW_CHANGED)
		work_follow(found, rec);
	return change;
}

/* Deletes the version found, which is not in the work list; waits like store_update. */
RowChange
store_delete(Store *store, const Record *found, bool wait)
{
	Assert(store->for_writing);
	Assert(!work_is_open(found));
	return rows_delete(table_of_record(store, found)->rel, &found->tid, wait);
}
