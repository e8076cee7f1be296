/*
 * catalog.c
 *	  Where the tables of the extension are, and whether they are what the script
 *	  made.
 *
 * The executor would honour whatever a table has become: triggers, partitions,
 * another access method, a distributed engine's shell.  The extension writes without it, so
 * anything but the plain heap table of the script would lose records without
 * a word.  A table is therefore checked once after each change of its relcache
 * entry and refused if it differs.
 *
 * The invalidation callback runs at places where catalogs must not be read;
 * it flips flags and nothing else.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"
#include "utils/syscache.h"

#include "server/server.h"

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
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID, INT4OID,
	INT4OID, CHAROID, BOOLOID, TEXTOID, TEXTOID, TEXTOID, BYTEAOID, TEXTOID,
	JSONBOID, JSONBOID
};
static const Oid policy_types[] = {TEXTOID, JSONBOID, JSONBOID};
static const Oid normalisation_types[] = {INT8OID, JSONBOID};
static const Oid destination_types[] = {TEXTOID, JSONBOID};
static const Oid open_work_types[] = {
	UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT4OID, CHAROID, TEXTOID,
	TEXTOID
};

static const Oid outbox_types[] = {
	UUIDOID, TIMESTAMPTZOID, UUIDOID, TEXTOID, TEXTOID, JSONBOID, JSONBOID
};
static const Oid outbox_due_types[] = {
	UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, INT8OID, INT8OID, INT4OID, BOOLOID, CHAROID, TEXTOID, TEXTOID,
	TEXTOID, JSONBOID
};

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
};

/* Forgets what may have changed: everything if relid is InvalidOid. */
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

/* Names the segments, and registers the callback.  Once, at load. */
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

/* Returns the OID of a table.  Raises 55000 if the extension is not there. */
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
					 OidIsValid(get_extension_oid("idempotency", true)) ?
					 errhint("Restore the table from a backup, or drop and create the extension, which forgets all records.") :
					 errhint("Run CREATE EXTENSION idempotency in this database.")));
		table->relid = relid;
	}
	return table->relid;
}

/* Returns the name of a table as it is written in SQL. */
static char *
name_of(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}

/* Returns the version of the extension in this database; NULL without it. */
char *
catalog_extension_version(void)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	char	   *version = NULL;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum(LIBRARY_NAME));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;

		version = TextDatumGetCString(heap_getattr(tuple, Anum_pg_extension_extversion,
												   RelationGetDescr(rel), &isnull));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return version;
}

/*
 * Raises 42809 about a table that is not what the script made; the hint says
 * what undoes the change.  What another version of the script has made must not
 * be undone.
 */
pg_noreturn static void
refuse_shape(Relation rel, const char *what, const char *hint)
{
	char	   *version = catalog_extension_version();

	if (version && strcmp(version, LIBRARY_VERSION) != 0)
		hint = psprintf("The extension is version %s, the library of this session %s. If the extension is older, run ALTER EXTENSION idempotency UPDATE. If the library is, reconnect; a server that preloads it has to be restarted.",
						version, LIBRARY_VERSION);
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("table \"%s\" is not the table the extension made: %s",
					name_of(RelationGetRelid(rel)), what),
			 errdetail("Records would be lost silently in such a table."),
			 errhint("%s", hint)));
}

/* The same; ALTER TABLE undoes it. */
pg_noreturn static void
refuse_altered(Relation rel, const char *what, const char *action)
{
	refuse_shape(rel, what, psprintf("ALTER TABLE %s %s",
									 name_of(RelationGetRelid(rel)), action));
}

pg_noreturn static void
refuse_replaced(Relation rel, const char *what)
{
	refuse_shape(rel, what, "Restore the table from a backup, or drop and create the extension, which forgets all records.");
}

static const char *
key_columns(Relation rel, AttrNumber last)
{
	TupleDesc	desc = RelationGetDescr(rel);
	const char *first = quote_identifier(NameStr(TupleDescAttr(desc, 0)->attname));

	return last ? psprintf("%s, %s", first, quote_identifier(NameStr(TupleDescAttr(desc, last - 1)->attname))) :
		first;
}

/*
 * The unique index that judges: valid, immediate, plain, on column 1 alone or, in
 * the table of a shard, on column 1 and the last.
 */
static void
check_primary_key(Relation rel, AttrNumber last)
{
	Oid			index = compat_primary_key_index(rel);
	HeapTuple	tuple;
	Form_pg_index form;
	bool		good;

	if (!OidIsValid(index))
		refuse_altered(rel, "it has no usable primary key",
					   psprintf("ADD PRIMARY KEY (%s).", key_columns(rel, last)));
	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", index);
	form = (Form_pg_index) GETSTRUCT(tuple);
	good = form->indisvalid && form->indisready && form->indislive &&
		form->indisunique && form->indimmediate &&
		form->indnkeyatts == (last ? 2 : 1) && form->indkey.values[0] == 1 &&
		(!last || form->indkey.values[1] == last);
	ReleaseSysCache(tuple);
	if (!good)
		refuse_altered(rel, last ? "its primary key is not a valid, immediate one on the first column and the last" :
					   "its primary key is not a valid, immediate one on the first column",
					   psprintf("DROP CONSTRAINT %s, ADD PRIMARY KEY (%s).",
								quote_identifier(get_rel_name(index)), key_columns(rel, last)));
}

/*
 * Raises 42809 unless its columns are those of the script.  Columns that were added and dropped
 * again stay behind them, unused (rows_form).
 */
static void
check_columns(Relation rel, const KnownTable *table, AttrNumber last)
{
	TupleDesc	desc = RelationGetDescr(rel);

	if (last && (last > desc->natts || TupleDescAttr(desc, last - 1)->attisdropped))
		refuse_replaced(rel, "its columns differ");
	for (int i = 0; i < table->natts; i++)
	{
		if (i >= desc->natts || TupleDescAttr(desc, i)->attisdropped ||
			TupleDescAttr(desc, i)->atttypid != table->types[i])
			refuse_replaced(rel, "its columns differ");
	}
	for (int i = Max(table->natts, last); i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);

		if (!column->attisdropped)
			refuse_altered(rel, psprintf("it has a column \"%s\"", NameStr(column->attname)),
						   psprintf("DROP COLUMN %s.",
									quote_identifier(NameStr(column->attname))));
	}
}

/*
 * Raises 42809 if the table has a trigger: what is written without the executor fires none.
 * Those that exist count, not relhastriggers, which outlives the last of them.
 */
static void
check_triggers(Relation rel)
{
	Trigger    *trigger;
	HeapTuple	tuple;
	Form_pg_constraint constraint;

	if (rel->trigdesc == NULL || rel->trigdesc->numtriggers == 0)
		return;
	trigger = &rel->trigdesc->triggers[0];
	if (!trigger->tgisinternal)
		refuse_shape(rel, psprintf("it has a trigger \"%s\"", trigger->tgname),
					 psprintf("DROP TRIGGER %s ON %s.", quote_identifier(trigger->tgname),
							  name_of(RelationGetRelid(rel))));
	tuple = SearchSysCache1(CONSTROID, ObjectIdGetDatum(trigger->tgconstraint));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for constraint %u", trigger->tgconstraint);
	constraint = (Form_pg_constraint) GETSTRUCT(tuple);
	refuse_shape(rel, psprintf("constraint \"%s\" needs triggers on it", NameStr(constraint->conname)),
				 psprintf("ALTER TABLE %s DROP CONSTRAINT %s.", name_of(constraint->conrelid),
						  quote_identifier(NameStr(constraint->conname))));
}

/*
 * Raises 42809 unless rel is the plain heap table of the script; with last, that of
 * a shard, which has one column more.
 */
static void
check_shape(Relation rel, const KnownTable *table, AttrNumber last)
{
	Oid			relid = RelationGetRelid(rel);
	List	   *children;

	if (rel->rd_rel->relkind != RELKIND_RELATION)
		refuse_replaced(rel, "it is not a plain table");
	if (rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		refuse_altered(rel, "it does not use the heap access method",
					   "SET ACCESS METHOD heap.");
	if (rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		refuse_altered(rel, "a crash would empty it", "SET LOGGED.");
	check_triggers(rel);
	if (rel->rd_rel->relispartition)
		refuse_shape(rel, "it is a partition",
					 psprintf("ALTER TABLE %s DETACH PARTITION %s.",
							  name_of(get_partition_parent(relid, true)),
							  name_of(relid)));
	children = rel->rd_rel->relhassubclass ?
		find_inheritance_children(relid, NoLock) : NIL;
	if (children != NIL)
		refuse_shape(rel, "other tables inherit from it",
					 psprintf("ALTER TABLE %s NO INHERIT %s.",
							  name_of(linitial_oid(children)), name_of(relid)));
	check_columns(rel, table, last);
	check_primary_key(rel, last);
}

/* Opens a table, checked.  Raises 55000 or 42809. */
Relation
catalog_open(Table which, LOCKMODE lockmode)
{
	KnownTable *table = &tables[which];
	Relation	rel;

	/* one that was dropped while its lock was waited for is looked up anew */
	while ((rel = try_table_open(catalog_relid(which), lockmode)) == NULL)
		table->relid = InvalidOid;
	if (!table->checked)
	{
		check_shape(rel, table, 0);
		table->checked = true;
	}
	return rel;
}

/*
 * Raises 42809 unless an open table is like one of ours, with a column more for
 * the principal (record/place.c).
 */
void
catalog_check_placed(Relation rel, Table like)
{
	check_shape(rel, &tables[like], tables[like].natts + 1);
}

/*
 * The index of rel of that access method on exactly those columns, with entries
 * for all rows.  Its lock is the caller's to keep.  Raises 55000, with the
 * definition in the hint.
 */
Relation
catalog_open_index(Relation rel, const IndexShape *shape)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Form_pg_index form = index->rd_index;

		if (index->rd_rel->relam == shape->method && form->indnkeyatts == shape->n && form->indisvalid &&
			memcmp(form->indkey.values, shape->columns, shape->n * sizeof(AttrNumber)) == 0 &&
			RelationGetIndexPredicate(index) == NIL)
			return index;
		index_close(index, AccessShareLock);
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("an index of table \"%s.%s\" is missing", INTERNAL_SCHEMA,
					RelationGetRelationName(rel)),
			 errhint("CREATE INDEX %s.", psprintf(shape->definition, RelationGetRelationName(rel)))));
	return NULL;
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

/* idempotency_internal.check_table(name): raises what catalog_open() raises. */
SQL_FUNCTION(idempotency_check_table)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));

	for (int i = 0; i < lengthof(tables); i++)
	{
		if (strcmp(tables[i].name, name) == 0)
			table_close(catalog_open(i, AccessShareLock), AccessShareLock);
	}
	PG_RETURN_VOID();
}

/* idempotency_internal.library_version() */
SQL_FUNCTION(idempotency_library_version)
{
	PG_RETURN_TEXT_P(cstring_to_text(LIBRARY_VERSION));
}
