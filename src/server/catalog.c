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

#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "utils/builtins.h"
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

static const struct
{
	const char *schema;
	const char *name;
}			rare_tables[] = {
	[RARE_PLACED_RECORD] = {INTERNAL_SCHEMA, "placed_record"},
	[RARE_NODE] = {"pg_catalog", "pg_dist_local_group"},
};

/* Not there, as long as no table changes. */
bool		catalog_known_absent[N_RARE_TABLES];

/* Forgets what may have changed: everything if relid is InvalidOid. */
static void
catalog_relcache_callback(Datum arg, Oid relid)
{
	memset(catalog_known_absent, false, sizeof(catalog_known_absent));
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

/* Once, at load. */
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

static Oid
find_table(const char *schema, const char *name)
{
	Oid			namespace = get_namespace_oid(schema, true);

	return OidIsValid(namespace) ? get_relname_relid(name, namespace) : InvalidOid;
}

/* Returns the OID of a table of our schema; InvalidOid if there is none of that name. */
Oid
catalog_find(const char *name)
{
	return find_table(INTERNAL_SCHEMA, name);
}

/* Returns the OID of a table that is mostly not there: catalog_has() notes that. */
Oid
catalog_find_rare(RareTable which)
{
	Oid			relid;

	/* first: an invalidation that comes in with the look-up resets it */
	catalog_known_absent[which] = true;
	relid = find_table(rare_tables[which].schema, rare_tables[which].name);
	if (OidIsValid(relid))
		catalog_known_absent[which] = false;
	return relid;
}

/* Returns the OID of a table.  Raises 55000 if the extension is not there. */
Oid
catalog_relid(Table which)
{
	KnownTable *table = &tables[which];

	if (!OidIsValid(table->relid))
	{
		Oid			relid = catalog_find(table->name);

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

/*
 * Calls an SQL function of the extension that its users may not call, with n arguments
 * none of them null, and a snapshot of this moment.  One that is STABLE sees all that is
 * committed, at every isolation level.  Raises what the function raises.
 */
Datum
catalog_call(const char *name, int n, const Oid *types, const Datum *values)
{
	Oid			function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
										   PointerGetDatum(buildoidvector(types, n)),
										   ObjectIdGetDatum(get_namespace_oid(INTERNAL_SCHEMA, false)));
	Datum		result;

	LOCAL_FCINFO(fcinfo, 3);
	FmgrInfo	finfo;

	if (!OidIsValid(function))
		elog(ERROR, "function \"%s.%s\" is missing", INTERNAL_SCHEMA, name);
	Assert(n <= 3);
	fmgr_info(function, &finfo);
	InitFunctionCallInfoData(*fcinfo, &finfo, n, InvalidOid, NULL, NULL);
	for (int i = 0; i < n; i++)
	{
		fcinfo->args[i].value = values[i];
		fcinfo->args[i].isnull = false;
	}
	/* a parallel query has its snapshot, and can take no other */
	PushActiveSnapshot(IsInParallelMode() ? GetActiveSnapshot() : GetLatestSnapshot());
	result = FunctionCallInvoke(fcinfo);
	PopActiveSnapshot();
	return result;
}

/*
 * Returns whether the unique index that judges is valid, immediate, plain, on column 1
 * alone or, for a shard, on columns 1 and last.
 */
static bool
has_primary_key(Relation rel, AttrNumber last)
{
	Oid			index = compat_primary_key_index(rel);
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	bool		good;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_index) GETSTRUCT(tuple);
	good = form->indisvalid && form->indisready && form->indislive &&
		form->indisunique && form->indimmediate &&
		form->indnkeyatts == (last ? 2 : 1) && form->indkey.values[0] == 1 &&
		(!last || form->indkey.values[1] == last);
	ReleaseSysCache(tuple);
	return good;
}

/* Returns whether the columns are the script's, dropped ones behind them aside (rows_form). */
static bool
has_columns(TupleDesc desc, const KnownTable *table, int n)
{
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(desc, i);

		if (column->attisdropped != (i >= n) ||
			(i < table->natts && column->atttypid != table->types[i]))
			return false;
	}
	return desc->natts >= n;
}

/*
 * Raises 42809 unless rel is the plain heap table of the script; with last, that of
 * a shard, which has one column more.  The hint says what undoes the change.  Triggers
 * that exist count, not relhastriggers, which outlives the last of them.
 */
static void
check_shape(Relation rel, const KnownTable *table, AttrNumber last)
{
	Oid			types[] = {REGCLASSOID, OIDARRAYOID, BOOLOID};
	Datum		values[] = {ObjectIdGetDatum(RelationGetRelid(rel)), (Datum) 0, BoolGetDatum(last != 0)};
	Datum		columns[MaxHeapAttributeNumber];

	if (rel->rd_rel->relkind == RELKIND_RELATION &&
		rel->rd_rel->relam == HEAP_TABLE_AM_OID &&
		rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT &&
		(rel->trigdesc == NULL || rel->trigdesc->numtriggers == 0) &&
		!rel->rd_rel->relispartition &&
		(!rel->rd_rel->relhassubclass ||
		 find_inheritance_children(RelationGetRelid(rel), NoLock) == NIL) &&
		has_columns(RelationGetDescr(rel), table, last ? last : table->natts) &&
		has_primary_key(rel, last))
		return;
	for (int i = 0; i < table->natts; i++)
		columns[i] = ObjectIdGetDatum(table->types[i]);
	values[1] = PointerGetDatum(construct_array(columns, table->natts, OIDOID, sizeof(Oid), true, TYPALIGN_INT));
	(void) catalog_call("refuse_table", 3, types, values);
	elog(ERROR, "table \"%s\" was being changed", RelationGetRelationName(rel));
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
 * The index of rel on exactly those columns, with entries for all rows.  Its lock is
 * the caller's to keep.  Raises 55000, with the definition in the hint.
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
 * May a table have changed since this was last asked?  Takes in what other sessions
 * have committed first, so that a change acts on the next call.
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
