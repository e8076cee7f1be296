/*
 * place.c
 *	  Records on a sharded cluster: the shard that has a principal's, and whether
 *	  it is here.
 *
 * Where Citus spreads an application over servers by tenant, a record has to
 * commit with the tenant's rows and move with them.  idem_distribute() makes two
 * tables for that, placed_record and placed_work: the columns of "record" and
 * "open_work" and one more, the principal, by which they are distributed beside
 * the tenant's tables.  Where they exist, every record is in them.  Rows are found
 * and written in the table of the shard itself, as in any of our tables; Citus is
 * only asked which shard that is and where it is.
 *
 * A shard that moves
 * ------------------
 * A move or a split copies the shards of a tenant, ours among them, to another node.
 * At its end it takes the locks of their metadata, exclusively and on all nodes,
 * copies what has changed meanwhile, enters the new placement, and commits.  A call
 * asks for the shard of the principal, takes the lock of its metadata in share mode,
 * to the end of the transaction, asks again, and reads the placement with a snapshot
 * taken after that.  So:
 *
 * - the call was granted the lock before the move: the move waits for its
 *	 transaction, and copies what it has written;
 * - the move was granted it before the call: when the call is granted the lock,
 *	 the move has ended.  If it has committed, its locks went after its changes
 *	 could be seen, so the snapshot shows the new placement; if it was a split, the
 *	 second question has another answer.
 *
 * In no case is a row read or written that is no longer the principal's.  The
 * snapshot of the transaction would not do: at REPEATABLE READ it may be older
 * than the move, which would then take place between the tenant's rows, which Citus
 * routes by the present, and the record.  Nor does a table that is still there prove
 * anything: Citus drops that of a moved shard some time later.
 *
 * Citus names the lock of a shard by its number in the order of ranges.  A split
 * renames the locks of all shards behind it, and those that are held keep the old
 * names: the next move of such a shard would wait for no call.  So before it asks
 * again, a call locks pg_dist_shard against changes, to the end of the transaction:
 * a split of any shard waits, at its end, for all calls on the nodes.  It is not
 * locked while the call waits the first time, because what it waits for may be a
 * split; where it still does, in a transaction that calls for two principals, one of
 * the two is ended as a deadlock.
 *
 * What is not here is refused: with 40001 if it has been moved away while the call
 * was on its way (the placement was here before the lock was granted, or the table
 * has not been dropped yet), because the same call comes to the right node next
 * time; otherwise with 55000, because calls are sent to the wrong node.
 *
 * What was found is valid as long as the lock is held; a rollback to a savepoint
 * that releases it forgets it, too.
 *
 * Without idem_distribute() each node has records of its own: one key would execute
 * once on each, so claims are made on the coordinator only.
 *
 * From one table to the other
 * ---------------------------
 * idem_distribute() locks all tables of records against everything while it moves
 * their rows.  A call that has found no placed_record, and then waited for a table,
 * looks again when it has the table's lock, which takes in what was committed
 * meanwhile (store.c, work_list.c).  So "record" is never written once its rows
 * have gone.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "record/record.h"

/* A principal's place, found at a nesting level. */
typedef struct FoundPlace
{
	UndoEntry	entry;
	char	   *principal;
	Place		place;
} FoundPlace;

static void found_undone(UndoEntry *entry);

static UndoList all_found = UNDO_LIST(all_found, NULL, found_undone);

/* The context of those is that of the transaction. */
static void
found_undone(UndoEntry *entry)
{
	pfree(dlist_container(FoundPlace, entry.node, &entry->node));
}

/* Once, at load. */
void
place_init(void)
{
	undo_register(&all_found);
}

/* Returns whether this is a node on which no claim may be made. */
bool
place_on_worker_node(void)
{
	Relation	rel;
	AttrNumber	column;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		isnull = true;
	Datum		number = (Datum) 0;

	if (place_used() || !catalog_has(RARE_NODE))
		return false;
	rel = table_open(catalog_find_rare(RARE_NODE), AccessShareLock);
	column = get_attnum(RelationGetRelid(rel), "groupid");
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple) && column != InvalidAttrNumber)
		number = heap_getattr(tuple, column, RelationGetDescr(rel), &isnull);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return !isnull && DatumGetInt32(number) != 0;	/* 0 = the coordinator */
}

/*
 * Asks for the shard of a principal, or for those that are here if it is NULL, with
 * a snapshot of this moment, and takes their locks, when moves and splits that are
 * about to end have ended.  Returns a Place for each.  Raises 55000 where the tables
 * are no part of a cluster.
 */
static ArrayType *
lock_shards(const char *principal)
{
	Oid			types[] = {TEXTOID, BOOLOID};
	Datum		values[] = {CStringGetTextDatum(principal ? principal : ""),
	BoolGetDatum(principal == NULL)};

	return DatumGetArrayTypeP(catalog_call("lock_shards", 2, types, values));
}

static Place *
first_place(ArrayType *places)
{
	return ArrayGetNItems(ARR_NDIM(places), ARR_DIMS(places)) > 0 ? (Place *) ARR_DATA_PTR(places) : NULL;
}

/*
 * Keeps Citus from entering shards, to the end of the transaction: from now on the
 * locks of shards have the same names.
 */
static void
hold_shards(void)
{
	/* on a standby nothing is entered while it is looked at */
	if (!RecoveryInProgress())
		LockRelationOid(get_relname_relid("pg_dist_shard", PG_CATALOG_NAMESPACE), ShareLock);
}

/* Raises 40001 or 55000 about a shard that is not here. */
pg_noreturn static void
refuse_elsewhere(const char *principal, const Place *place, bool was_here)
{
	if (was_here ||
		(place && OidIsValid(catalog_find(psprintf("placed_record_" INT64_FORMAT, place->record)))))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access: the records of principal \"%s\" have been moved to another node",
						principal),
				 errhint("Roll back and run the transaction again.")));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the records of principal \"%s\" are on another node", principal),
			 errhint("Call it in a function that Citus runs on the node of the tenant, its first argument, which it passes on as the principal: SELECT create_distributed_function('f(text, ...)', '$1', colocate_with := 'the tenant''s table', force_delegation := true).")));
}

/* Finds and locks a principal's shard.  Raises 40001 and 55000. */
static Place
find_place(const char *principal)
{
	bool		was_here = false;
	Place	   *place;

	/* waits before shards are held, so that a split can end */
	place = first_place(lock_shards(principal));
	was_here = place && place->here;
	hold_shards();
	place = first_place(lock_shards(principal));
	was_here = was_here || (place && place->here);
	/* where it is, now that nothing moves it */
	place = first_place(lock_shards(principal));
	if (place == NULL || !place->here)
		refuse_elsewhere(principal, place, was_here);
	return *place;
}

/*
 * Returns where the records of a principal are, which stay there until the
 * transaction ends.  The caller must have found place_used().  Raises 40001, 55000,
 * and 22P02 for a principal that is not of the type of the tenant column.
 */
Place
place_of(const char *principal)
{
	FoundPlace *found;
	dlist_iter	iter;

	dlist_foreach(iter, &all_found.entries)
	{
		found = dlist_container(FoundPlace, entry.node, iter.cur);
		if (strcmp(found->principal, principal) == 0)
			return found->place;
	}
	found = MemoryContextAlloc(TopTransactionContext, sizeof(FoundPlace));
	found->principal = MemoryContextStrdup(TopTransactionContext, principal);
	found->place = find_place(principal);
	undo_push(&all_found, &found->entry);
	return found->place;
}

/*
 * Returns all shards that are here, which stay here until the transaction ends: a
 * list of Place, by number.  The caller must have found place_used().  Waits for
 * moves that are about to end.  Raises 55000.
 */
List *
place_here(void)
{
	ArrayType  *before;
	ArrayType  *places;
	List	   *list = NIL;

	/* as find_place() does */
	(void) lock_shards(NULL);
	hold_shards();
	places = lock_shards(NULL);
	do
	{
		CHECK_FOR_INTERRUPTS();
		before = places;
		places = lock_shards(NULL);
	} while (VARSIZE(before) != VARSIZE(places) || memcmp(before, places, VARSIZE(places)) != 0);
	for (int i = 0; i < ArrayGetNItems(ARR_NDIM(places), ARR_DIMS(places)) / 3; i++)
		list = lappend(list, first_place(places) + i);
	return list;
}

/*
 * Opens the table of a shard that is like TABLE_RECORD or TABLE_OPEN_WORK, checked.
 * The caller must hold the shard's lock.  Raises 55000 and 42809.
 */
Relation
place_open(Table like, int64 shard, LOCKMODE lockmode)
{
	char	   *name = psprintf("%s_" INT64_FORMAT,
								like == TABLE_RECORD ? "placed_record" : "placed_work", shard);
	Oid			relid = catalog_find(name);
	Relation	rel;

	Assert(like == TABLE_RECORD || like == TABLE_OPEN_WORK);
	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s.%s\" of a shard does not exist", INTERNAL_SCHEMA, name),
				 errhint("The cluster has a placement of it here: restore this node from a backup.")));
	rel = table_open(relid, lockmode);
	catalog_check_placed(rel, like);
	return rel;
}

/*
 * Returns a tuple of the columns that a table has on one server, and, if it is the
 * table of a shard, of the principal behind them.
 */
HeapTuple
place_form(Relation rel, RowValues *row, const text *principal)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Form_pg_attribute column;
	Oid			input;
	Oid			param;

	if (place_used() && desc->natts > row->n && !TupleDescAttr(desc, row->n)->attisdropped)
	{
		column = TupleDescAttr(desc, row->n);
		getTypeInputInfo(column->atttypid, &input, &param);
		row_add(row, true, OidInputFunctionCall(input, text_to_cstring(principal), param, column->atttypmod));
	}
	return rows_form(RelationGetDescr(rel), row->n, row->values, row->nulls);
}
