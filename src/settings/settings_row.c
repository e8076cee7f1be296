/*
 * settings_row.c
 *	  Rows of the tables of settings, and what they mean, kept for the session.
 *
 * They are read and written like the record table (rows.c): what counts is what
 * was committed last, whatever the transaction's snapshot, so that settings are
 * part of no snapshot, reading them makes no transactions conflict, and defining
 * at REPEATABLE READ neither misses a change nor raises 40001.
 *
 * A change sends a relcache invalidation for the table when it commits; every
 * look-up takes in invalidations first, so that it acts on the next call of every
 * session.  But a value is used while other code runs: a claim holds its policy
 * while it waits, while idem_run() runs the caller's function, and while a row with
 * hundreds of calls is computed.  Each of them may take in an invalidation or
 * fill the cache.  Therefore a value lives to the end of the transaction, at
 * least: what is outdated before goes to the transaction's memory, and what a
 * full cache has no room for to the caller's.  The price: a transaction that
 * defines and looks up again and again keeps some 60 kB for each turn.
 *
 * With IDEMPOTENCY_DISCARD_SETTINGS defined every look-up empties the cache;
 * see test/README.md.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "settings/settings.h"

/* Name, settings, and the horizons of an operation. */
#define MOST_COLUMNS 3

/* Returns the row with that key in the first column; NULL if there is none. */
static HeapTuple
find_row(Relation rel, RegProcedure equal, Datum key)
{
	RowProbe   *probe = rows_probe_begin(rel, equal, AccessShareLock);
	HeapTuple	tuple = rows_probe(probe, key) == PROBE_ROW ? probe->tuple : NULL;

	rows_probe_end(probe);
	return tuple;
}

/* Returns a copy of the next column; NULL if it is. */
static Jsonb *
copy_next_json(RowValues *values)
{
	Datum		value = row_next(values);

	return value == (Datum) 0 ? NULL : DatumGetJsonbPCopy(value);
}

/* Takes a row as it is stored; settings and horizons are copies. */
static void
take_row(Relation rel, const SettingsKind *kind, HeapTuple tuple, SettingsRow *row)
{
	RowValues	values;

	row_begin(&values, RelationGetDescr(rel), tuple, kind->columns);
	row->name = text_to_cstring(row_next_text(&values));
	row->settings = copy_next_json(&values);
	row->horizons = kind->columns > 2 ? copy_next_json(&values) : NULL;
	row->stored = true;
	row->tid = tuple->t_self;
}

/* Raises XX001 if a row, changed by hand, is not of its form. */
void
settings_row_check(const SettingsKind *kind, const SettingsRow *row)
{
	bool		good = row->settings && JB_ROOT_IS_OBJECT(row->settings);

	if (kind->columns > 2 &&
		(row->horizons == NULL || !JB_ROOT_IS_ARRAY(row->horizons) || JB_ROOT_IS_SCALAR(row->horizons)))
		good = false;
	if (!good)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("stored settings of %s \"%s\" are not of their form", kind->noun, row->name),
				 errhint("Settings are changed with idem_define() and idem_destination_define() only.")));
}

/* Returns what is stored for a name, or an empty row.  Raises XX001. */
SettingsRow *
settings_row_read(const SettingsKind *kind, const char *name)
{
	SettingsRow *row = palloc0(sizeof(SettingsRow));
	Relation	rel = catalog_open(kind->table, AccessShareLock);
	HeapTuple	tuple = find_row(rel, F_TEXTEQ, CStringGetTextDatum(name));

	if (tuple)
	{
		take_row(rel, kind, tuple, row);
		settings_row_check(kind, row);
	}
	else
	{
		row->name = pstrdup(name);
		row->settings = json_parse("{}");
		row->horizons = json_parse("[]");
	}
	table_close(rel, NoLock);
	return row;
}

/* Returns all rows of a table, unchecked. */
List *
settings_row_all(Relation rel, const SettingsKind *kind)
{
	RowScan    *scan = rows_scan_blocks(rel, 0, RelationGetNumberOfBlocks(rel), ROWS_NOW);
	List	   *rows = NIL;
	HeapTuple	tuple;

	while ((tuple = rows_scan_next(scan)) != NULL)
	{
		SettingsRow *row = palloc0(sizeof(SettingsRow));

		take_row(rel, kind, tuple, row);
		rows = lappend(rows, row);
	}
	rows_scan_end(scan);
	return rows;
}

/* Stores a row.  The caller must hold the lock of definitions. */
void
settings_row_write(Relation rel, const SettingsKind *kind, const SettingsRow *row)
{
	Datum		values[MOST_COLUMNS] = {CStringGetTextDatum(row->name),
	JsonbPGetDatum(row->settings), JsonbPGetDatum(row->horizons)};
	bool		nulls[MOST_COLUMNS] = {false};
	HeapTuple	tuple = rows_form(RelationGetDescr(rel), kind->columns, values, nulls);

	Assert(CheckRelationLockedByMe(rel, ShareRowExclusiveLock, true));
	if (row->stored ?
		rows_update(rel, &row->tid, tuple, true) != ROW_CHANGED :
		!rows_insert(rel, tuple))
		elog(ERROR, "settings of %s \"%s\" were changed concurrently", kind->noun, row->name);
}

/* Returns the normalisation settings of a version; NULL if there are none. */
Jsonb *
settings_row_version(int64 version)
{
	Relation	rel = catalog_open(TABLE_NORMALISATION, AccessShareLock);
	HeapTuple	tuple = find_row(rel, F_INT8EQ, Int64GetDatum(version));
	Jsonb	   *settings = NULL;
	RowValues	values;

	if (tuple)
	{
		row_begin(&values, RelationGetDescr(rel), tuple, 2);
		(void) row_next(&values);
		settings = copy_next_json(&values);
	}
	table_close(rel, NoLock);
	return settings;
}

/* Keeps normalisation settings for ever: records may have been hashed under them. */
void
settings_row_keep_version(Jsonb *normalisation)
{
	Relation	rel;
	Datum		values[2] = {Int64GetDatum(settings_normalisation_version(normalisation)),
	JsonbPGetDatum(normalisation)};
	bool		nulls[2] = {false};

	if (normalisation == NULL || settings_row_version(DatumGetInt64(values[0])))
		return;
	rel = catalog_open(TABLE_NORMALISATION, RowExclusiveLock);
	if (!rows_insert(rel, rows_form(RelationGetDescr(rel), lengthof(values), values, nulls)))
		elog(ERROR, "normalisation settings were changed concurrently");
	table_close(rel, NoLock);
}

/* Values kept; a caller that makes names up must not eat memory. */
#define MAX_CACHED 256

typedef struct CacheEntry
{
	char		name[IDEM_TEXT_MAX * 4 + 32];	/* hash key */
	void	   *value;
} CacheEntry;

static void
begin_cache(SettingsCache *cache)
{
	HASHCTL		ctl = {.keysize = sizeof(((CacheEntry *) NULL)->name),.entrysize = sizeof(CacheEntry)};

	cache->context = AllocSetContextCreate(TopMemoryContext, "idempotency settings",
										   ALLOCSET_SMALL_SIZES);
	ctl.hcxt = cache->context;
	cache->entries = hash_create("idempotency settings", 16, &ctl,
								 HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/* Returns a new value, which is cached only when complete: loading may raise. */
static void *
load(const SettingsKind *kind, const char *name)
{
	SettingsCache *cache = kind->cache;
	SettingsRow *everyone = settings_row_read(kind, EVERY_NAME);
	SettingsRow *own = settings_row_read(kind, name);
	Jsonb	   *effective = settings_overlay(kind, everyone->settings, own->settings);

	/* sizes that AllocSetDelete() returns to malloc */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "idempotency settings",
												  0, 2 * 1024, 16 * 1024);
	MemoryContext old = MemoryContextSwitchTo(context);
	void	   *value;

	/* an operation took over everyone's horizons when it was defined */
	if (!own->stored)
		own->horizons = everyone->horizons;
	value = kind->load(DatumGetJsonbPCopy(JsonbPGetDatum(effective)), own);
	MemoryContextSwitchTo(old);
	if (hash_get_num_entries(cache->entries) < MAX_CACHED)
	{
		CacheEntry *entry = hash_search(cache->entries, name, HASH_ENTER, NULL);

		entry->value = value;
		MemoryContextSetParent(context, cache->context);
	}
	return value;
}

/*
 * Returns what the settings of that name mean, valid until the current memory
 * context is reset or the transaction ends.  Raises what loading them raises.
 */
const void *
settings_get(const SettingsKind *kind, const char *name)
{
	SettingsCache *cache = kind->cache;
	TimestampTz transaction = GetCurrentTransactionStartTimestamp();
	bool		outdated = catalog_changed(kind->table);
	CacheEntry *entry;

	Assert(strlen(name) < sizeof(entry->name));
#ifdef IDEMPOTENCY_DISCARD_SETTINGS
	outdated = true;
#endif
	/* what earlier transactions filled it with is in use no more */
	if (cache->context && cache->used_in != transaction &&
		hash_get_num_entries(cache->entries) >= MAX_CACHED)
		outdated = true;
	cache->used_in = transaction;
	if (cache->context && outdated)
	{
		MemoryContextSetParent(cache->context, TopTransactionContext);
		cache->context = NULL;
	}
	if (cache->context == NULL)
		begin_cache(cache);
	entry = hash_search(cache->entries, name, HASH_FIND, NULL);
	return entry ? entry->value : load(kind, name);
}
