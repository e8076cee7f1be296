/*
 * server.h
 *	  What the extension builds on PostgreSQL: tables, rows, json, shared memory.
 */
#ifndef IDEMPOTENCY_SERVER_H
#define IDEMPOTENCY_SERVER_H

#include "access/htup.h"
#include "access/sdir.h"
#include "access/skey.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "nodes/pg_list.h"
#include "portability/instr_time.h"
#include "storage/block.h"
#include "storage/itemptr.h"
#include "storage/lwlock.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"
#include "utils/timestamp.h"

#include "idempotency.h"

/*
 * Microseconds of a clock that is never set: durations of waits and pauses are
 * measured by it.  Its origin is the start of the machine, for all processes.
 */
static inline int64
clock_monotonic(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* Returns a time that much later; NO_LIMIT never comes. */
static inline TimestampTz
clock_after(TimestampTz from, int64 microseconds)
{
	return microseconds == NO_LIMIT || from == NEVER ? NEVER : from + microseconds;
}

/* catalog.c */
#define INTERNAL_SCHEMA "idempotency_internal"

#define N_SEGMENTS 32			/* see segment.c: never another number in 1.x */

typedef enum Table
{
	TABLE_RECORD,
	TABLE_SEGMENT,				/* the first of N_SEGMENTS, in a row */
	TABLE_POLICY = TABLE_SEGMENT + N_SEGMENTS,
	TABLE_NORMALISATION,
	TABLE_OPEN_WORK,
	TABLE_DESTINATION,
	TABLE_OUTBOX,
	TABLE_OUTBOX_DUE
} Table;

/* Tables that are not there as a rule. */
typedef enum RareTable
{
	RARE_PLACED_RECORD,			/* see record/place.c */
	RARE_NODE,					/* says which node of a cluster this is */
	N_RARE_TABLES
} RareTable;

/* An index that the script made. */
typedef struct IndexShape
{
	Oid			method;
	int			n;				/* of columns */
	AttrNumber	columns[3];
	const char *definition;		/* %s = the name of the table */
} IndexShape;

extern void catalog_init(void);
extern Oid	catalog_find(const char *name);
extern Oid	catalog_relid(Table table);
extern bool catalog_known_absent[N_RARE_TABLES];
extern Oid	catalog_find_rare(RareTable table);

static inline bool
catalog_has(RareTable table)
{
	return !catalog_known_absent[table] && OidIsValid(catalog_find_rare(table));
}

extern Relation catalog_open(Table table, LOCKMODE lockmode);
extern void catalog_check_placed(Relation rel, Table like);
extern Relation catalog_open_index(Relation rel, const IndexShape *shape);
extern bool catalog_changed(Table table);
extern Datum catalog_call(const char *name, int n, const Oid *types, const Datum *values);

/* rows.c */
typedef enum ProbeResult
{
	PROBE_NOTHING,
	PROBE_ROW,
	PROBE_IN_FLIGHT
} ProbeResult;

typedef enum RowChange
{
	ROW_CHANGED,
	ROW_BUSY,					/* another open transaction is changing it */
	ROW_MISSED					/* no longer there as read: look again */
} RowChange;

/* Which versions a scan of blocks returns. */
typedef enum RowsKind
{
	ROWS_NOW,					/* committed or not, as a scan of an index */
	ROWS_SETTLED,				/* but for what open transactions of others
								 * do, and leaving no hint bits */
	ROWS_NOT_REMOVABLE			/* all that vacuum could not remove */
} RowsKind;

typedef struct RowScan
{
	Relation	rel;
	RowsKind	kind;

	/* of the last row; open transactions of others */
	TransactionId inserter;
	TransactionId changer;

	/* for rows.c */
	ScanDirection direction;
	MemoryContext context;		/* what the scan allocates as it goes */
	TupleTableSlot *slot;
	SnapshotData dirty;
	struct IndexScanDescData *scan; /* NULL = of blocks */
	struct TableScanDescData *blocks;
} RowScan;

/* A primary key kept open between look-ups. */
typedef struct RowProbe
{
	/* of the last look-up: rows_probe() */
	HeapTuple	tuple;
	TransactionId other;

	/*
	 * other has ended the version and inserted no new one: it deletes the
	 * row, or is about to insert one.  A transaction that takes a record over
	 * holds the lock of its id, so a caller that has to know asks for that
	 * before it probes.
	 */
	bool		being_deleted;

	/* for rows.c */
	MemoryContext context;		/* what the scan allocates as it goes */
	Relation	index;
	RegProcedure equal;
	TupleTableSlot *slot;
	SnapshotData dirty;
	struct IndexScanDescData *scan;
} RowProbe;

typedef struct RowWriter RowWriter;

/* A row of a table or of a function's result, filled or read from left to right. */
typedef struct RowValues
{
	int			n;				/* the next column */
	Datum		values[32];
	bool		nulls[32];
} RowValues;

/* Adds a column, NULL if it is not known. */
static inline void
row_add(RowValues *row, bool known, Datum value)
{
	Assert(row->n < lengthof(row->values));
	row->values[row->n] = value;
	row->nulls[row->n++] = !known;
}

/* Adds a time, which is not known if it is before or after all others. */
static inline void
row_add_time(RowValues *row, TimestampTz at)
{
	row_add(row, at != NEVER && at != DT_NOBEGIN, TimestampTzGetDatum(at));
}

/* Returns the next column; zero if it is NULL. */
static inline Datum
row_next(RowValues *row)
{
	Datum		value = row->nulls[row->n] ? (Datum) 0 : row->values[row->n];

	row->n++;
	return value;
}

/* Returns the next column as a text; NULL if it is. */
static inline text *
row_next_text(RowValues *row)
{
	Datum		value = row_next(row);

	return value == (Datum) 0 ? NULL : DatumGetTextPP(value);
}

/* Returns the next column as a time; otherwise if it is NULL. */
static inline TimestampTz
row_next_time(RowValues *row, TimestampTz otherwise)
{
	bool		isnull = row->nulls[row->n];
	Datum		value = row_next(row);

	return isnull ? otherwise : DatumGetTimestampTz(value);
}

extern void row_begin(RowValues *row, TupleDesc desc, HeapTuple tuple, int n);
extern HeapTuple rows_form(TupleDesc desc, int n, Datum *values, bool *nulls);
extern RowProbe *rows_probe_begin(Relation heap, RegProcedure equal, LOCKMODE lockmode);
extern ProbeResult rows_probe(RowProbe *probe, Datum key);
extern void rows_probe_end(RowProbe *probe);
extern RowScan *rows_scan_begin(Relation rel, Relation index, ScanKey keys,
								int n, ScanDirection direction);
extern RowScan *rows_scan_blocks(Relation rel, BlockNumber first,
								 BlockNumber end, RowsKind kind);
extern HeapTuple rows_scan_next(RowScan *scan);
extern void rows_scan_end(RowScan *scan);
extern bool rows_insert(Relation rel, HeapTuple tuple);
extern RowChange rows_update(Relation rel, const ItemPointerData *tid,
							 HeapTuple tuple, bool wait);
extern RowChange rows_delete(Relation rel, const ItemPointerData *tid, bool wait);
extern RowChange rows_lock(Relation rel, const ItemPointerData *tid, bool wait);
extern RowWriter *rows_writer_begin(Relation rel);
extern bool rows_writer_update(RowWriter *many, const ItemPointerData *tid, HeapTuple tuple);
extern void rows_writer_end(RowWriter *many);
extern void row_put(FunctionCallInfo fcinfo, RowValues *row);
extern Datum row_datum(FunctionCallInfo fcinfo, RowValues *row);

/* json.c */
extern void json_push(JsonbParseState **state, const char *name, JsonbValue *value);
extern void json_push_string(JsonbParseState **state, const char *name, const char *value);
extern Jsonb *json_pair(const char *name, const char *value);
extern Jsonb *json_parse(const char *text);
extern Jsonb *json_concatenate(Jsonb *below, Jsonb *above);
extern bool json_find(const Jsonb *object, const char *name, JsonbValue *value);
extern char *json_scalar_text(const JsonbValue *value);
extern bool pointer_valid(const char *string);
extern char *pointer_token(const char **pointer);
extern char *pointer_text(const char *pointer, Jsonb *value);

/* sort.c */
typedef bool (*SortBefore) (const void *a, const void *b);

extern void sort_pointers(const void **items, Size count, SortBefore before);

/* subtransaction.c */
extern ErrorData *subtransaction_try(void (*step) (void *arg), void *arg);

/* The first member of what is to be undone with a nesting level. */
typedef struct UndoEntry
{
	dlist_node	node;
	int			level;
} UndoEntry;

typedef struct UndoList
{
	dlist_head	entries;		/* in order of level */

	/* the entry belongs to the enclosing level now; NULL = nothing to do */
	void		(*kept) (UndoEntry *entry);

	/* the entry is undone, and out of the list */
	void		(*undone) (UndoEntry *entry);
} UndoList;

#define UNDO_LIST(name, kept, undone) \
	{DLIST_STATIC_INIT((name).entries), kept, undone}

extern void undo_register(UndoList *list);
extern void undo_push(UndoList *list, UndoEntry *entry);

/* shmem.c */

/* Parts of the outbox that do not stop each other: see queue_start.c. */
#define OUTBOX_STRIPES 64

/* Locks of our own, in the one tranche we ask for. */
typedef enum SharedLock
{
	LOCK_RUNS,
	LOCK_COUNTERS,
	LOCK_LIMITER,
	LOCK_OUTBOX,				/* and one for each further stripe */
	N_SHARED_LOCKS = LOCK_OUTBOX + OUTBOX_STRIPES
} SharedLock;

/* A piece of shared memory.  Members from table on may be NULL. */
typedef struct SharedPiece
{
	const char *name;
	Size		(*size) (void);
	void		(*attach) (void *memory, bool found);	/* zeros if not found */
	const struct EntryTable *table; /* what it keeps of databases */
	void		(*count_again) (void);
} SharedPiece;

extern void shared_init(const SharedPiece *list, int n);
extern List *shared_databases(void);
extern void shared_forget(const List *databases);
extern void shared_count_again(void);
extern bool shared_available(void);
extern LWLock *shared_lock(SharedLock which);

/* entries.c */

/* 255 bytes of UTF-8, in any encoding of the server. */
#define ENTRY_NAME_MAX 510

/* Begins each entry.  Protected by the table's lock, but for used_at. */
typedef struct SharedEntry
{
	Oid			database;		/* InvalidOid = free */
	uint32		hash;			/* of the name */
	uint32		generation;		/* how often it was given away */
	bool		defined;		/* there are settings for the name */
	int64		used_at;		/* by a clock of the table's owner */
	char		name[ENTRY_NAME_MAX + 1];
} SharedEntry;

typedef struct EntryTable
{
	SharedLock	lock;
	Size		entry_size;
	bool		(*at_rest) (const SharedEntry *entry);	/* the lock is held
														 * exclusively */
	void		(*clear) (SharedEntry *entry);	/* likewise */
	int			n;
	char	   *entries;		/* NULL = the library was not preloaded */
} EntryTable;

extern void entries_attach(EntryTable *table, void *memory, int n);
extern SharedEntry *entries_at(const EntryTable *table, int i);
extern SharedEntry *entries_find(const EntryTable *table, const char *name);
extern SharedEntry *entries_get(const EntryTable *table, const char *name, bool defined);
extern SharedEntry *entries_lock(const EntryTable *table, const char *name, bool defined);
extern void entries_unlock(const EntryTable *table);
extern char *entries_copy(const EntryTable *table);
extern void entries_forget(const EntryTable *table, const List *databases);

#endif							/* IDEMPOTENCY_SERVER_H */
