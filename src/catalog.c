/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  Where our tables are, and whether they are what the script made.
 *
 * The executor would honour whatever a table has become: triggers, partitions,
 * another access method, a distributed engine's shell.  We write by hand, so
 * anything but the plain heap table of the script would lose records without
 * a word.  A table is therefore checked once after each change of its relcache
 * entry and refused if it differs.
 *
 * The invalidation callback runs at places where catalogs must not be read;
 * it flips flags and nothing else.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"
#include "idempotency.h"

#define INTERNAL_SCHEMA "idempotency_internal"

typedef struct KnownTable
{
	const char *name;
	int			natts;
	const Oid  *types;			/* of its columns */
	Oid			relid;			/* InvalidOid = look up again */
	bool		checked;		/* shape found good since the last change */
	bool		same;			/* no change since catalog_changed() */
} KnownTable;

static const Oid record_types[] = {
	UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, INT8OID, INT8OID, INT4OID, CHAROID, TEXTOID, TEXTOID, TEXTOID,
	BYTEAOID, TEXTOID, JSONBOID, JSONBOID
};
static const Oid policy_types[] = {TEXTOID, JSONBOID, JSONBOID};
static const Oid normalisation_types[] = {INT8OID, JSONBOID, TIMESTAMPTZOID};
static const Oid destination_types[] = {TEXTOID, JSONBOID};
static const Oid open_work_types[] = {
	UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT4OID, CHAROID, TEXTOID
};

static const Oid outbox_types[] = {
	UUIDOID, TIMESTAMPTZOID, UUIDOID, INT8OID, TEXTOID, TEXTOID, JSONBOID, JSONBOID
};
static const Oid outbox_due_types[] = {
	UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
	INT8OID, INT8OID, INT4OID, CHAROID, TEXTOID, TEXTOID, TEXTOID, JSONBOID
};
static const Oid outbox_adopted_types[] = {UUIDOID, INT8OID};

/* The segments are filled in by catalog_init(). */
static KnownTable tables[] = {
	[TABLE_RECORD] = {"record", lengthof(record_types), record_types},
	[TABLE_POLICY] = {"policy", lengthof(policy_types), policy_types},
	[TABLE_NORMALISATION] = {"normalisation", lengthof(normalisation_types),
	normalisation_types},
	[TABLE_OPEN_WORK] = {"open_work", lengthof(open_work_types), open_work_types},
	[TABLE_DESTINATION] = {"destination", lengthof(destination_types), destination_types},
	[TABLE_OUTBOX] = {"outbox", lengthof(outbox_types), outbox_types},
	[TABLE_OUTBOX_DUE] = {"outbox_due", lengthof(outbox_due_types), outbox_due_types},
	[TABLE_OUTBOX_ADOPTED] = {"outbox_adopted", lengthof(outbox_adopted_types),
	outbox_adopted_types},
};

/*
 * Relcache invalidation: forget what may have changed.  relid InvalidOid
 * means everything.
 */
static void
catalog_relcache_callback(Datum arg, Oid relid)
{
	for (int i = 0; i < lengthof(tables); i++)
	{
		KnownTable *table = &tables[i];

		if (OidIsValid(relid) && OidIsValid(table->relid) &&
			table->relid != relid)
			continue;
		table->relid = InvalidOid;
		table->checked = false;
		table->same = false;
	}
}

/*
 * Name the segments, and register the callback.  Once, at load.
 */
void
catalog_init(void)
{
	static char names[N_SEGMENTS][sizeof("record_s00")];

	for (int i = 0; i < N_SEGMENTS; i++)
	{
		snprintf(names[i], sizeof(names[i]), "record_s%02d", i);
		tables[TABLE_SEGMENT + i] = tables[TABLE_RECORD];
		tables[TABLE_SEGMENT + i].name = names[i];
	}
	CacheRegisterRelcacheCallback(catalog_relcache_callback, (Datum) 0);
}

/*
 * OID of one of our tables.  Raises 55000 if the extension is not there.
 */
Oid
catalog_relid(Table which)
{
	KnownTable *table = &tables[which];

	if (!OidIsValid(table->relid))
	{
		Oid			namespace = get_namespace_oid(INTERNAL_SCHEMA, true);
		Oid			relid = InvalidOid;

		if (OidIsValid(namespace))
			relid = get_relname_relid(table->name, namespace);
		if (!OidIsValid(relid))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s.%s\" of extension \"idempotency\" does not exist",
							INTERNAL_SCHEMA, table->name),
					 errhint("Run CREATE EXTENSION idempotency in this database.")));
		table->relid = relid;
	}
	return table->relid;
}

/*
 * Refuse a table that is not what the script made.
 */
static void
refuse_shape(Relation rel, const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("table \"%s.%s\" is not the table the extension made: %s",
					INTERNAL_SCHEMA, RelationGetRelationName(rel), what),
			 errhint("Undo the change; records would be lost silently in such a table.")));
}

/*
 * The unique index that judges: valid, immediate, plain, on column 1 alone.
 */
static void
check_primary_key(Relation rel)
{
	Oid			index = compat_primary_key_index(rel);
	HeapTuple	tuple;
	Form_pg_index form;
	bool		good;

	if (!OidIsValid(index))
		refuse_shape(rel, "it has no usable primary key");
	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", index);
	form = (Form_pg_index) GETSTRUCT(tuple);
	good = form->indisvalid && form->indisready && form->indislive &&
		form->indisunique && form->indimmediate &&
		form->indnkeyatts == 1 && form->indkey.values[0] == 1;
	ReleaseSysCache(tuple);
	if (!good)
		refuse_shape(rel, "its primary key is not a valid, immediate one on the first column");
}

/*
 * Raise 42809 unless rel is the plain heap table of the script.
 */
static void
check_shape(Relation rel, const KnownTable *table)
{
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		refuse_shape(rel, "it is not a plain table");
	if (rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		refuse_shape(rel, "it does not use the heap access method");
	if (rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		refuse_shape(rel, "a crash would empty it");
	if (rel->rd_rel->relhastriggers)
		refuse_shape(rel, "it has triggers");
	if (rel->rd_rel->relispartition || rel->rd_rel->relhassubclass)
		refuse_shape(rel, "it takes part in inheritance or partitioning");
	if (RelationGetNumberOfAttributes(rel) != table->natts)
		refuse_shape(rel, "its columns differ");
	for (int i = 0; i < table->natts; i++)
	{
		if (TupleDescAttr(RelationGetDescr(rel), i)->atttypid != table->types[i])
			refuse_shape(rel, "its columns differ");
	}
	check_primary_key(rel);
}

/*
 * Open one of our tables, checked.  Raises 55000 or 42809.
 */
Relation
catalog_open(Table which, LOCKMODE lockmode)
{
	KnownTable *table = &tables[which];
	Relation	rel = table_open(catalog_relid(which), lockmode);

	if (!table->checked)
	{
		check_shape(rel, table);
		table->checked = true;
	}
	return rel;
}

/*
 * The index of rel on exactly those columns, with entries for all rows.  Its
 * lock is the caller's to keep.  Raises 55000, with the definition in the hint.
 */
Relation
catalog_open_index(Relation rel, const AttrNumber *columns, int n,
				   const char *definition)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Form_pg_index form = index->rd_index;

		if (form->indnkeyatts == n && form->indisvalid &&
			memcmp(form->indkey.values, columns, n * sizeof(AttrNumber)) == 0 &&
			RelationGetIndexPredicate(index) == NIL)
			return index;
		index_close(index, AccessShareLock);
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("an index of table \"%s.%s\" is missing", INTERNAL_SCHEMA,
					RelationGetRelationName(rel)),
			 errhint("Make it again: CREATE INDEX %s.", definition)));
	return NULL;
}

/*
 * OID of a sequence of ours.  Raises 55000 if it is not there.
 */
Oid
catalog_sequence(const char *name)
{
	Oid			relid = get_relname_relid(name, get_namespace_oid(INTERNAL_SCHEMA, false));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sequence \"%s.%s\" of extension \"idempotency\" does not exist",
						INTERNAL_SCHEMA, name),
				 errhint("Run CREATE EXTENSION idempotency in this database.")));
	return relid;
}

/*
 * May a table have changed, and said so by an invalidation, since this was
 * last asked?  Takes in what other sessions have committed first, so that a
 * change acts on the next call.
 */
bool
catalog_changed(Table which)
{
	bool		changed;

	AcceptInvalidationMessages();
	changed = !tables[which].same;
	tables[which].same = true;
	return changed;
}
