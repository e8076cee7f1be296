/*
 * node.c
 *	  Whether this is a worker node of a sharded cluster.
 *
 * A sharding extension (Citus) runs sessions on several nodes, each with tables
 * of its own for us: one key would execute once per node.  So claims are made on
 * the coordinator only, unless the records are distributed too (record/place.c).
 * The extension says which node this is in a table of one row; where it is not
 * installed there is no such table, and that is all that is looked up, once, until
 * the catalogs change.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_namespace.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "server/server.h"

#define NODE_TABLE	"pg_dist_local_group"
#define NODE_COLUMN "groupid"	/* 0 = the coordinator */

/* It is known that there is no such table. */
static bool known_alone = false;

static void
node_syscache_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	known_alone = false;
}

/* Registers the callback.  Once, at load. */
void
node_init(void)
{
	CacheRegisterSyscacheCallback(RELNAMENSP, node_syscache_callback, (Datum) 0);
}

static int32
node_number(Oid relid)
{
	Relation	rel = table_open(relid, AccessShareLock);
	AttrNumber	column = get_attnum(relid, NODE_COLUMN);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple = systable_getnext(scan);
	int32		number = 0;
	bool		isnull = true;
	Datum		value = (Datum) 0;

	if (HeapTupleIsValid(tuple) && column != InvalidAttrNumber)
		value = heap_getattr(tuple, column, RelationGetDescr(rel), &isnull);
	if (!isnull)
		number = DatumGetInt32(value);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return number;
}

/* Returns whether this is a node on which no claim may be made. */
bool
node_is_worker(void)
{
	Oid			relid;

	if (known_alone)
		return false;
	/* first: an invalidation that comes in with the look-up resets it */
	known_alone = true;
	relid = get_relname_relid(NODE_TABLE, PG_CATALOG_NAMESPACE);
	if (!OidIsValid(relid))
		return false;
	known_alone = false;
	return node_number(relid) != 0;
}
