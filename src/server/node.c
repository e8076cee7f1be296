/*
 * node.c
 *	  Whether this is a worker node of a sharded cluster.
 *
 * A sharding extension (Citus) runs sessions on several nodes, each with tables
 * of its own for us: one key would execute once per node.  So claims are made on
 * the coordinator only, unless the records are distributed too (record/place.c).
 * The extension says which node this is in a table of one row.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "server/server.h"

#define NODE_COLUMN "groupid"	/* 0 = the coordinator */

/* Returns whether this is a node on which no claim may be made. */
bool
node_is_worker(void)
{
	Relation	rel;
	AttrNumber	column;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		isnull = true;
	Datum		number = (Datum) 0;

	if (!catalog_has(RARE_NODE))
		return false;
	rel = table_open(catalog_find_rare(RARE_NODE), AccessShareLock);
	column = get_attnum(RelationGetRelid(rel), NODE_COLUMN);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple) && column != InvalidAttrNumber)
		number = heap_getattr(tuple, column, RelationGetDescr(rel), &isnull);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return !isnull && DatumGetInt32(number) != 0;
}
