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
 * only asked, in SQL, which shard that is and where it is.
 *
 * A shard that moves
 * ------------------
 * A move or a split copies the rows of the shards of a tenant, those of its tables
 * and ours alike, to another node.  At its end it takes the locks of their
 * metadata, exclusively and on all nodes, copies what has changed meanwhile, enters
 * the new placement, and commits.  A call asks for the shard of the principal,
 * takes the lock of its metadata in share mode, to the end of the transaction, asks
 * again, and reads the placement with a snapshot taken after that.  So:
 *
 * - the call was granted the lock before the move: the move waits for its
 *	 transaction, and copies what it has written;
 * - the move was granted it before the call: when the call is granted the lock,
 *	 the move has ended.  If it has committed, its locks went after its changes
 *	 could be seen, so the snapshot shows the new placement; if it was a split, the
 *	 second question has another answer.
 *
 * In no case is a row read or written that is no longer the principal's.  The
 * snapshot of the transaction would not do: at REPEATABLE READ it may be older than
 * the move, which would then take place between the tenant's rows, which Citus routes
 * by the present, and the record.  Nor does a table that is still there prove
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
 * The shard of a principal is asked for once a transaction.  What was found is valid
 * as long as the lock is held, and a rollback to a savepoint releases a lock taken
 * after it: then it is forgotten, too.
 *
 * From one table to the other
 * ---------------------------
 * idem_distribute() locks all tables of records against everything while it moves
 * their rows.  A call that has found no placed_record, and then waited for a table,
 * looks again when it has the table's lock, which takes in what was committed
 * meanwhile (store.c, work_list.c).  So neither a call nor the worker ever writes
 * "record" once its rows have gone.
 *
 * An installation without a cluster pays for one flag, which is set when there was
 * no placed_record, and reset by any change of the catalog that may have made one.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "record/record.h"

/* Tables of Citus; what is asked of it is in the questions below. */
#define NODE_TABLE "pg_dist_local_group"
#define SHARD_TABLE "pg_dist_shard"

/* Is there known to be no placed_record? */
bool		place_known_unused = false;

/* Its OID, InvalidOid = to be looked up. */
static Oid	placed_record = InvalidOid;

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

static void
place_syscache_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	place_known_unused = false;
	placed_record = InvalidOid;
}

/* Registers callbacks.  Once, at load. */
void
place_init(void)
{
	CacheRegisterSyscacheCallback(RELNAMENSP, place_syscache_callback, (Datum) 0);
	undo_register(&all_found);
}

static Oid
relid_of(const char *name)
{
	Oid			namespace = get_namespace_oid(INTERNAL_SCHEMA, true);

	return OidIsValid(namespace) ? get_relname_relid(name, namespace) : InvalidOid;
}

/*
 * Returns whether records are in placed_record, when that is not known.  The callers
 * that go on to write "record" ask again once they have its lock.
 */
bool
place_look(void)
{
	if (OidIsValid(placed_record))
		return true;
	/* first: an invalidation that comes in with the look-up resets it */
	place_known_unused = true;
	placed_record = relid_of("placed_record");
	if (OidIsValid(placed_record))
		place_known_unused = false;
	return OidIsValid(placed_record);
}

/*----
 * What is asked.
 *----
 */

typedef struct Question
{
	const char *sql;			/* %s = the type of the principal */
	int			nargs;
	Oid			argtypes[3];
	Oid			type;			/* the plan is for */
	SPIPlanPtr	plan;			/* NULL = none yet */
} Question;

#define IS_HERE(shard) \
	"EXISTS (SELECT FROM pg_catalog.pg_dist_placement p, pg_catalog." NODE_TABLE " g" \
	" WHERE p.shardid OPERATOR(pg_catalog.=) " shard \
	" AND p.shardstate OPERATOR(pg_catalog.=) 1" \
	" AND p.groupid OPERATOR(pg_catalog.=) g.groupid)"

/* The shard of principal $1 in table $2, whether it is here, and then its lock. */
static Question shard_of = {
	.sql = "SELECT q.shard, " IS_HERE("q.shard") ","
	" pg_catalog.lock_shard_metadata(5, ARRAY[q.shard])"
	" FROM (SELECT pg_catalog.get_shard_id_for_distribution_column(d.logicalrelid, $1::%s)"
	" FROM pg_catalog.pg_dist_partition d"
	" WHERE d.logicalrelid OPERATOR(pg_catalog.=) $2::pg_catalog.regclass OFFSET 0) AS q (shard)",
	.nargs = 2,.argtypes = {TEXTOID, OIDOID}
};

/* Shards of placed_record ($1), and those of placed_work ($2) beside them. */
#define SHARDS \
	"SELECT r.shardid, w.shardid FROM pg_catalog.pg_dist_shard r" \
	" JOIN pg_catalog.pg_dist_shard w ON w.shardminvalue OPERATOR(pg_catalog.=) r.shardminvalue" \
	" WHERE r.logicalrelid OPERATOR(pg_catalog.=) $1::pg_catalog.regclass" \
	" AND w.logicalrelid OPERATOR(pg_catalog.=) $2::pg_catalog.regclass"

/* Those that are here. */
static Question shards_here = {
	.sql = SHARDS " AND " IS_HERE("r.shardid") " ORDER BY r.shardid",
	.nargs = 2,.argtypes = {OIDOID, OIDOID}
};

/* The same, if shard $3 is one of them. */
static Question shard_is_here = {
	.sql = SHARDS " AND r.shardid OPERATOR(pg_catalog.=) $3 AND " IS_HERE("$3"),
	.nargs = 3,.argtypes = {OIDOID, OIDOID, INT8OID}
};

/* The locks of shards $1. */
static Question locks_of = {
	.sql = "SELECT pg_catalog.lock_shard_metadata(5, $1)",
	.nargs = 1,.argtypes = {INT8ARRAYOID}
};

/* Citus lets the owner of the tables ask. */
typedef struct Asking
{
	Oid			type;			/* of the principal */
	Datum		record;			/* OIDs of the tables */
	Datum		work;
	Oid			user;			/* the caller */
	int			context;
} Asking;

/* Raises 55000: the tables are no part of a cluster. */
pg_noreturn static void
refuse_alone(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s.placed_record\" is not distributed", INTERNAL_SCHEMA),
			 errdetail("Records are in it, and only Citus knows on which node each of them is. A dump of a coordinator that was restored has it as an ordinary table."),
			 errhint("To use them on one server, or before idem_distribute() on a new cluster, run SELECT %s.gather_placed().", INTERNAL_SCHEMA)));
}

/*
 * Becomes the owner of the tables, and connects.  Raises 55000 where there is no
 * Citus.  An error on the way undoes it with its transaction.
 */
static void
asking_begin(Asking *asking)
{
	Relation	rel;
	TupleDesc	desc;

	/* a change of the catalog since may have been of another table */
	(void) place_look();
	rel = table_open(placed_record, AccessShareLock);
	desc = RelationGetDescr(rel);
	asking->type = TupleDescAttr(desc, desc->natts - 1)->atttypid;
	asking->record = ObjectIdGetDatum(RelationGetRelid(rel));
	asking->work = ObjectIdGetDatum(relid_of("placed_work"));
	if (!OidIsValid(get_relname_relid(NODE_TABLE, PG_CATALOG_NAMESPACE)))
		refuse_alone();
	GetUserIdAndSecContext(&asking->user, &asking->context);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   asking->context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	table_close(rel, NoLock);
	SPI_connect();
}

static void
asking_end(const Asking *asking)
{
	SPI_finish();
	SetUserIdAndSecContext(asking->user, asking->context);
}

/* Asks, with a snapshot of this moment.  The answer is in SPI_tuptable. */
static void
ask(const Asking *asking, Question *question, Datum *values)
{
	int			result PG_USED_FOR_ASSERTS_ONLY;

	if (question->plan && question->type != asking->type)
	{
		SPI_freeplan(question->plan);
		question->plan = NULL;
	}
	if (question->plan == NULL)
	{
		char	   *sql = psprintf(question->sql, format_type_be_qualified(asking->type));
		SPIPlanPtr	plan = SPI_prepare(sql, question->nargs, question->argtypes);

		result = SPI_keepplan(plan);
		Assert(result == 0);
		question->plan = plan;
		question->type = asking->type;
	}
	PushActiveSnapshot(GetLatestSnapshot());
	result = SPI_execute_plan(question->plan, values, NULL, true, 0);
	Assert(result == SPI_OK_SELECT);
	PopActiveSnapshot();
}

/* Returns a column of a row of the answer; 0 for null. */
static Datum
answered_column(uint64 row, int column)
{
	bool		isnull;

	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, &isnull);
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
		LockRelationOid(get_relname_relid(SHARD_TABLE, PG_CATALOG_NAMESPACE), ShareLock);
}

/*----
 * One principal.
 *----
 */

/* Raises 40001 or 55000 about a shard that is not here. */
pg_noreturn static void
refuse_elsewhere(const char *principal, int64 shard, bool was_here)
{
	if (was_here || OidIsValid(relid_of(psprintf("placed_record_" INT64_FORMAT, shard))))
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

/*
 * Asks for a principal's shard, and takes its lock, when a move or split that is
 * about to end has ended.  Returns the shard; *here is set if it was here before.
 */
static int64
lock_shard_of(const Asking *asking, const char *principal, bool *here)
{
	Datum		values[2] = {CStringGetTextDatum(principal), asking->record};

	ask(asking, &shard_of, values);
	if (SPI_processed == 0)
		refuse_alone();
	*here = *here || DatumGetBool(answered_column(0, 2));
	return DatumGetInt64(answered_column(0, 1));
}

/* Finds and locks a principal's shard.  Raises 40001 and 55000. */
static Place
find_place(const char *principal)
{
	Asking		asking;
	Datum		values[3];
	int64		shard;
	bool		was_here = false;
	Place		place;

	asking_begin(&asking);
	/* waits before shards are held, so that a split can end */
	(void) lock_shard_of(&asking, principal, &was_here);
	hold_shards();
	shard = lock_shard_of(&asking, principal, &was_here);
	values[0] = asking.record;
	values[1] = asking.work;
	values[2] = Int64GetDatum(shard);
	ask(&asking, &shard_is_here, values);
	if (SPI_processed != 1)
		refuse_elsewhere(principal, shard, was_here);
	place.record = DatumGetInt64(answered_column(0, 1));
	place.work = DatumGetInt64(answered_column(0, 2));
	asking_end(&asking);
	return place;
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

/*----
 * All that are here.
 *----
 */

/*
 * Returns the shards that were here, in order, and takes their locks, when moves and
 * splits that are about to end have ended.
 */
static List *
lock_here(const Asking *asking, MemoryContext context)
{
	Datum		values[2] = {asking->record, asking->work};
	List	   *places = NIL;
	Datum	   *shards;
	Datum		locks;
	MemoryContext caller;

	ask(asking, &shards_here, values);
	shards = palloc(SPI_processed * sizeof(Datum));
	caller = MemoryContextSwitchTo(context);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Place	   *place = palloc(sizeof(Place));

		place->record = DatumGetInt64(answered_column(i, 1));
		place->work = DatumGetInt64(answered_column(i, 2));
		shards[i] = Int64GetDatum(place->record);
		places = lappend(places, place);
	}
	MemoryContextSwitchTo(caller);
	locks = PointerGetDatum(construct_array(shards, list_length(places), INT8OID,
											sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	/* Citus refuses to lock none */
	if (places != NIL)
		ask(asking, &locks_of, &locks);
	return places;
}

static bool
same_places(const List *a, const List *b)
{
	bool		same = list_length(a) == list_length(b);

	for (int i = 0; same && i < list_length(a); i++)
		same = ((Place *) list_nth(a, i))->record == ((Place *) list_nth(b, i))->record;
	return same;
}

/*
 * Returns all shards that are here, which stay here until the transaction ends: a
 * list of Place, by number.  The caller must have found place_used().  Waits for
 * moves that are about to end.  Raises 55000.
 */
List *
place_here(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *places = NIL;
	List	   *before;
	Asking		asking;

	asking_begin(&asking);
	/* as find_place() does */
	(void) lock_here(&asking, context);
	hold_shards();
	do
	{
		CHECK_FOR_INTERRUPTS();
		before = places;
		places = lock_here(&asking, context);
	} while (!same_places(before, places));
	asking_end(&asking);
	return places;
}

/*----
 * The tables of shards.
 *----
 */

/*
 * Opens the table of a shard that is like TABLE_RECORD or TABLE_OPEN_WORK, checked.
 * The caller must hold the shard's lock.  Raises 55000 and 42809.
 */
Relation
place_open(Table like, int64 shard, LOCKMODE lockmode)
{
	char	   *name = psprintf("%s_" INT64_FORMAT,
								like == TABLE_RECORD ? "placed_record" : "placed_work", shard);
	Oid			relid = relid_of(name);
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

	if (!place_known_unused && desc->natts > row->n && !TupleDescAttr(desc, row->n)->attisdropped)
	{
		column = TupleDescAttr(desc, row->n);
		getTypeInputInfo(column->atttypid, &input, &param);
		row_add(row, true, OidInputFunctionCall(input, text_to_cstring(principal), param, column->atttypmod));
	}
	return rows_form(RelationGetDescr(rel), row->n, row->values, row->nulls);
}
