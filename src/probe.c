/*-------------------------------------------------------------------------
 *
 * probe.c
 *	  Look one row up by a unique index, as it is now, whoever is writing it.
 *
 * A dirty snapshot shows rows not yet committed beside the last committed
 * ones, says whose they are, and takes no SSI locks: a look-up can neither
 * miss what a transaction snapshot is too old for nor cause a 40001.
 *
 * The price is that the look-up is not one instant.  A row that is moved to
 * another index entry and committed while the scan stands between the two may
 * show none of its versions, or both.  Both are told apart from the truth:
 *
 * - two settled versions of one key cannot exist at an instant, so the scan is
 *	 repeated;
 * - no version at all although the index had entries for the key may be such a
 *	 move, so the scan is repeated once.  It would take a second move within
 *	 the few microseconds of the second scan to be wrong again, and then the
 *	 unique index still refuses the insert that would follow.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "idempotency.h"

typedef struct Sighting
{
	bool		entries;		/* the index had entries for the key */
	int			settled;		/* versions committed or our own */
	HeapTuple	tuple;			/* the last of those */
	TransactionId other;		/* an open transaction of others on the key */
} Sighting;

/*
 * One pass over the versions of a key.  The scan must be positioned by the
 * caller; dirty is its snapshot.
 */
static void
probe_pass(IndexScanDesc scan, SnapshotData *dirty, TupleTableSlot *slot,
		   Sighting *seen)
{
	memset(seen, 0, sizeof(*seen));
	for (;;)
	{
		if (!scan->xs_heap_continue)
		{
			if (index_getnext_tid(scan, ForwardScanDirection) == NULL)
				break;
			seen->entries = true;
		}
		if (!index_fetch_heap(scan, slot))
			continue;

		if (TransactionIdIsValid(dirty->xmin))
			seen->other = dirty->xmin;
		else
		{
			seen->tuple = ExecCopySlotHeapTuple(slot);
			seen->settled++;
			if (TransactionIdIsValid(dirty->xmax))
				seen->other = dirty->xmax;
		}
	}
}

/*
 * Find the row with this key in a unique index on one column, compared by
 * the function equal under collation "C".  The caller holds a lock on heap.
 *
 * PROBE_ROW: *tuple is a copy, made in the current memory context, of the last
 * committed version or our own; *other is valid if another open transaction is
 * changing it.  PROBE_IN_FLIGHT: there are only versions of another open
 * transaction, *other.
 */
ProbeResult
probe_unique(Relation heap, Oid index_oid, RegProcedure equal, Datum key,
			 HeapTuple *tuple, TransactionId *other)
{
	Relation	index = index_open(index_oid, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(heap, NULL);
	bool		repeated = false;
	SnapshotData dirty;
	ScanKeyData skey;
	IndexScanDesc scan;
	Sighting	seen;

	ScanKeyInit(&skey, 1, BTEqualStrategyNumber, equal, key);
	InitDirtySnapshot(dirty);
	scan = compat_index_beginscan(heap, index, &dirty, 1, 0);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		index_rescan(scan, &skey, 1, NULL, 0);
		probe_pass(scan, &dirty, slot, &seen);
		if (seen.settled > 1)
			continue;
		if (seen.settled == 0 && seen.entries && !repeated &&
			!TransactionIdIsValid(seen.other))
		{
			repeated = true;
			continue;
		}
		break;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);

	*tuple = seen.tuple;
	*other = seen.other;
	if (seen.settled == 1)
		return PROBE_ROW;
	return TransactionIdIsValid(seen.other) ? PROBE_IN_FLIGHT : PROBE_NOTHING;
}
