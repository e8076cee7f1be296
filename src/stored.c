/*-------------------------------------------------------------------------
 *
 * stored.c
 *	  Rows of the tables of settings, by their key.
 *
 * What counts is what was committed last: see rows.c, through which they are
 * read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "utils/rel.h"

#include "compat.h"
#include "idempotency.h"

/*
 * The row with that key of a table keyed by its first column; NULL if there
 * is none.  *rel is left open for reading the tuple.
 */
HeapTuple
stored_row(Table table, RegProcedure equal, Datum key, Relation *rel)
{
	HeapTuple	tuple;
	TransactionId other;
	RowLook    *look;
	ProbeResult result;

	*rel = catalog_open(table, AccessShareLock);
	look = rows_look_begin(*rel, compat_primary_key_index(*rel), equal);
	result = rows_look(look, key, &tuple, &other);
	rows_look_end(look);
	return result == PROBE_ROW ? tuple : NULL;
}

/*
 * Raise XX001: somebody has edited the tables by hand.
 */
void
stored_refuse(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("table \"%s\" of extension \"idempotency\" has a row that is not of its form",
					RelationGetRelationName(rel)),
			 errhint("Settings are changed with idem_define() and idem_destination_define() only.")));
}

/*
 * The jsonb in a column that is never null, as a copy.  It must be an object
 * or, if so told, an array.  Raises XX001.
 */
Jsonb *
stored_jsonb(HeapTuple tuple, int column, Relation rel, bool array)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, column, RelationGetDescr(rel), &isnull);
	Jsonb	   *json = isnull ? NULL : DatumGetJsonbPCopy(value);

	if (json == NULL ||
		(array ? !JB_ROOT_IS_ARRAY(json) || JB_ROOT_IS_SCALAR(json) :
		 !JB_ROOT_IS_OBJECT(json)))
		stored_refuse(rel);
	return json;
}
