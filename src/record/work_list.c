/*
 * work_list.c
 *	  The work list: which records are accepted, leased or unknown.
 *
 * An entry is a hint where to look, so that no function scans all records.
 * store.c lets the list follow each change of a record in the same transaction
 * (work_follow): no open record is missing.  A function that acts on an entry locks
 * the id and looks at the record first, so an entry that is out of date is harmless.
 *
 * Every record that may be executed without its caller asking, or that may
 * become so, has an entry: accepted work while it is accepted, failed and
 * retryable, or started with a lease; and each leased claim.  Which function
 * hands out work whose lease is over is up to the policy of that moment, so
 * such entries have a queue of their own, which both scan.
 *
 * Entries are written by the transaction that changes the record, whose compare
 * and swap comes first, so two of them never meet here; a reconciler that notes
 * its try may meet them.  Nothing here waits: an entry that another transaction
 * is changing is left alone.
 *
 * Scans read by the index that has what is asked for side by side, so a call costs by
 * what it returns, not by what others have open.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_am.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "record/record.h"

#define N_COLUMNS 8

/* Reads a tuple of the list; work points into it. */
static void
work_from_tuple(Relation rel, HeapTuple tuple, Work *work)
{
	RowValues	row;

	row_begin(&row, RelationGetDescr(rel), tuple, N_COLUMNS);
	work->id = *DatumGetUUIDP(row_next(&row));
	work->since = row_next_time(&row, NEVER);
	work->due_at = row_next_time(&row, NEVER);
	work->fence = DatumGetInt64(row_next(&row));
	work->tries = DatumGetInt32(row_next(&row));
	work->queue = DatumGetChar(row_next(&row));
	work->operation = row_next_text(&row);
	work->principal = row_next_text(&row);
	work->tid = tuple->t_self;
}

static HeapTuple
tuple_from_work(Relation rel, const Work *work)
{
	RowValues	row = {0};

	row_add(&row, true, UUIDPGetDatum(&work->id));
	row_add_time(&row, work->since);
	row_add_time(&row, work->due_at);
	row_add(&row, work->fence != 0, Int64GetDatum(work->fence));
	row_add(&row, true, Int32GetDatum(work->tries));
	row_add(&row, true, CharGetDatum(work->queue));
	row_add(&row, true, PointerGetDatum(work->operation));
	row_add(&row, true, PointerGetDatum(work->principal));
	Assert(row.n == N_COLUMNS);
	return place_form(rel, &row, work->principal);
}

/*
 * Opens the list that has the entries of a principal.  While this waited for it,
 * idem_distribute() may have moved its rows.
 */
static Relation
open_list(const text *principal, LOCKMODE lockmode)
{
	Relation	rel;

	if (!place_used())
	{
		rel = catalog_open(TABLE_OPEN_WORK, lockmode);
		if (!place_used())
			return rel;
		table_close(rel, NoLock);
	}
	return place_open(TABLE_OPEN_WORK, place_of(text_to_cstring(principal)).work, lockmode);
}

/* Opens the lists of all that are here; place_used() is asked again likewise. */
static List *
open_lists(void)
{
	List	   *lists = NIL;
	ListCell   *lc;

	if (!place_used())
	{
		lists = list_make1(catalog_open(TABLE_OPEN_WORK, AccessShareLock));
		if (!place_used())
			return lists;
		table_close(linitial(lists), NoLock);
		lists = NIL;
	}
	foreach(lc, place_here())
		lists = lappend(lists, place_open(TABLE_OPEN_WORK, ((Place *) lfirst(lc))->work,
										  AccessShareLock));
	return lists;
}

static bool
find_in(Relation rel, const pg_uuid_t *id, Work *work)
{
	RowProbe   *look = rows_probe_begin(rel, F_UUID_EQ, AccessShareLock);
	bool		found = rows_probe(look, UUIDPGetDatum(id)) == PROBE_ROW;

	if (found)
		work_from_tuple(rel, look->tuple, work);
	rows_probe_end(look);
	return found;
}

bool
work_find(const Record *rec, Work *work)
{
	Relation	rel = open_list(rec->principal, AccessShareLock);
	bool		found = find_in(rel, &rec->id, work);

	table_close(rel, NoLock);
	return found;
}

/* Replaces an entry, unless it has been changed since or is being changed. */
RowChange
work_update(const Work *found, const Work *work)
{
	Relation	rel = open_list(work->principal, RowExclusiveLock);
	RowChange	change = rows_update(rel, &found->tid,
									 tuple_from_work(rel, work), false);

	table_close(rel, NoLock);
	return change;
}

/* Returns whether a record is listed.  An atomic claim written early is not: it cannot commit so. */
bool
work_is_open(const Record *rec)
{
	return rec->state == RECORD_ACCEPTED ||
		(rec->state == RECORD_RETRYABLE && rec->accepted) ||
		(rec->state == RECORD_PROCESSING && rec->lease_until != NEVER);
}

/*
 * The entry a record has from now on.  As long as an attempt lasts, what its
 * reconcilers have noted stays, and so does the time of a failure; a new
 * attempt starts afresh.
 */
static void
make_work(const Record *before, const Record *after, const Work *found,
		  Work *work)
{
	bool		same_attempt = before && found && before->fence == after->fence;

	memset(work, 0, sizeof(*work));
	work->id = after->id;
	work->since = after->claimed_at;
	work->operation = after->operation;
	work->principal = after->principal;
	work->queue = QUEUE_WAITING;
	switch (after->state)
	{
		case RECORD_PROCESSING:
			work->queue = after->accepted ? QUEUE_STARTED : QUEUE_LEASED;
			work->due_at = after->lease_until;
			if (same_attempt && found->tries > 0)
			{
				work->tries = found->tries;
				work->fence = found->fence;
				work->due_at = found->due_at;
			}
			break;
		case RECORD_RETRYABLE:
			work->due_at = same_attempt && before->state == RECORD_RETRYABLE ?
				found->due_at : after->due_at;
			break;
		default:
			work->due_at = Max(after->claimed_at, after->not_before);
			break;
	}
}

/*
 * Let the list follow a change of a record: from before, NULL if it is new, to
 * after, NULL if it is gone.  The caller has just made the change.
 *
 * Normally there is an entry exactly if the record was listed before, but one
 * left behind is taken over.  A reconciler that has noted its try and not
 * committed is not waited for: finishing the record must not depend on it.
 * Then the entry stays as it is, at worst out of date, and goes when it is
 * next looked at (work_forget).
 */
void
work_follow(const Record *before, const Record *after)
{
	bool		wanted = after && work_is_open(after);
	RowChange	change = ROW_MISSED;
	Relation	rel;
	Work		found;
	Work		work;

	if (!wanted && !(before && work_is_open(before)))
		return;
	rel = open_list(after ? after->principal : before->principal, RowExclusiveLock);
	while (change == ROW_MISSED)
	{
		bool		there = find_in(rel, after ? &after->id : &before->id, &found);

		CHECK_FOR_INTERRUPTS();
		if (wanted)
			make_work(before, after, there ? &found : NULL, &work);
		if (there && wanted)
			change = rows_update(rel, &found.tid, tuple_from_work(rel, &work), false);
		else if (there)
			change = rows_delete(rel, &found.tid, false);
		else if (!wanted || rows_insert(rel, tuple_from_work(rel, &work)))
			change = ROW_CHANGED;
	}
	table_close(rel, NoLock);
}

/* Removes an entry whose record needs none any more, unless it is being changed. */
void
work_forget(const Work *found)
{
	Relation	rel = open_list(found->principal, RowExclusiveLock);

	(void) rows_delete(rel, &found->tid, false);
	table_close(rel, NoLock);
}

/*----
 * Scans.
 *----
 */

static const IndexShape by_due = {
	BTREE_AM_OID, 3, {6, 7, 3},
	"open_work_due_at_idx ON idempotency_internal.%s (queue, operation, due_at)"
};
static const IndexShape by_principal = {
	BTREE_AM_OID, 2, {8, 2},
	"open_work_principal_idx ON idempotency_internal.%s (principal, since)"
};
static const IndexShape by_age = {
	BTREE_AM_OID, 1, {2},
	"open_work_since_idx ON idempotency_internal.%s (since)"
};

/* Entries that stand side by side in one of the indexes. */
typedef struct WorkRange
{
	Relation	index;
	RowScan    *scan;
	MemoryContext context;		/* of current */
	Work	   *current;		/* NULL = at the end */
	Work		work;

	/* what the index does not select */
	char		queue;			/* 0 = any */
	const char *operation;		/* NULL = any */
	TimestampTz due;
} WorkRange;

struct WorkScan
{
	List	   *lists;			/* that are open */
	List	   *all;			/* of them, those of all that are here */
	List	   *ranges;
	WorkRange  *returned;		/* has the entry returned last */
};

WorkScan *
work_scan_begin(void)
{
	return palloc0(sizeof(WorkScan));
}

static bool
is_selected(const WorkRange *range, const Work *work)
{
	return (!range->queue || work->queue == range->queue) &&
		work->due_at <= range->due &&
		(!range->operation ||
		 strcmp(text_to_cstring(work->operation), range->operation) == 0);
}

/*
 * Moves to the next entry of a range.  To be handed out, no other transaction
 * may be writing it; to be shown, it must be committed.
 */
static void
advance(WorkRange *range)
{
	MemoryContext caller = MemoryContextSwitchTo(range->context);
	RowScan    *scan = range->scan;
	HeapTuple	tuple;

	range->current = NULL;
	do
	{
		MemoryContextReset(range->context);
		tuple = rows_scan_next(scan);
		if (tuple == NULL)
			break;
		if (TransactionIdIsValid(scan->inserter) ||
			(range->queue && TransactionIdIsValid(scan->changer)))
			continue;
		work_from_tuple(scan->rel, tuple, &range->work);
		if (is_selected(range, &range->work))
			range->current = &range->work;
	} while (range->current == NULL);
	MemoryContextSwitchTo(caller);
}

static void
add_range(WorkScan *scan, Relation rel, char queue, const char *operation,
		  const char *principal, TimestampTz due)
{
	const IndexShape *which = principal ? &by_principal : queue ? &by_due : &by_age;
	WorkRange  *range = palloc0(sizeof(WorkRange));
	int			nkeys = 0;
	ScanKeyData keys[3];

	Assert(principal || operation || !queue);
	if (principal)
		ScanKeyInit(&keys[nkeys++], 1, BTEqualStrategyNumber, F_TEXTEQ,
					CStringGetTextDatum(principal));
	else if (queue)
	{
		ScanKeyInit(&keys[nkeys++], 1, BTEqualStrategyNumber, F_CHAREQ,
					CharGetDatum(queue));
		ScanKeyInit(&keys[nkeys++], 2, BTEqualStrategyNumber, F_TEXTEQ,
					CStringGetTextDatum(operation));
		ScanKeyInit(&keys[nkeys++], 3, BTLessEqualStrategyNumber, F_TIMESTAMPTZ_LE,
					TimestampTzGetDatum(due));
	}
	range->queue = queue;
	range->operation = operation;
	range->due = due;
	range->context = AllocSetContextCreate(CurrentMemoryContext,
										   "idempotency work list",
										   ALLOCSET_SMALL_SIZES);
	range->index = catalog_open_index(rel, which);
	range->scan = rows_scan_begin(rel, range->index, keys, nkeys, ForwardScanDirection);
	advance(range);
	scan->ranges = lappend(scan->ranges, range);
}

/*
 * Adds to a scan the entries that are due by a time, of one queue (0: all), one
 * operation (NULL: all) and one principal (NULL: all).  A queue without a
 * principal needs an operation.  What the arguments point to must outlive the
 * scan.
 */
void
work_scan_add(WorkScan *scan, char queue, const char *operation,
			  const char *principal, TimestampTz due)
{
	List	   *lists;
	ListCell   *lc;

	if (principal)
		lists = list_make1(open_list(cstring_to_text(principal), AccessShareLock));
	else if (scan->all == NIL)
		lists = scan->all = open_lists();
	else
		lists = NIL;
	scan->lists = list_concat(scan->lists, lists);
	foreach(lc, principal ? lists : scan->all)
		add_range(scan, lfirst(lc), queue, operation, principal, due);
}

/*
 * Returns the next entry, the one due first if several ranges have one; within
 * a range they come longest due first or, of a principal or of all, oldest
 * first.  NULL at the end.  It is valid until the next call.
 */
const Work *
work_scan_next(WorkScan *scan)
{
	WorkRange  *first = NULL;
	ListCell   *lc;

	if (scan->returned)
		advance(scan->returned);
	foreach(lc, scan->ranges)
	{
		WorkRange  *range = lfirst(lc);

		if (range->current &&
			(first == NULL || range->current->due_at < first->current->due_at))
			first = range;
	}
	scan->returned = first;
	return first ? first->current : NULL;
}

void
work_scan_end(WorkScan *scan)
{
	ListCell   *lc;

	foreach(lc, scan->ranges)
	{
		WorkRange  *range = lfirst(lc);

		rows_scan_end(range->scan);
		MemoryContextDelete(range->context);
		index_close(range->index, NoLock);
	}
	list_free_deep(scan->ranges);
	foreach(lc, scan->lists)
		table_close(lfirst(lc), NoLock);
	pfree(scan);
}

/* Returns the next operation after that (NULL: the first) with entries in a queue, or NULL. */
static char *
next_operation_in(Relation rel, char queue, const char *after)
{
	Relation	index = catalog_open_index(rel, &by_due);
	int			nkeys = 0;
	ScanKeyData keys[2];
	RowScan    *scan;
	HeapTuple	tuple;
	Work		work;

	ScanKeyInit(&keys[nkeys++], 1, BTEqualStrategyNumber, F_CHAREQ, CharGetDatum(queue));
	if (after)
		ScanKeyInit(&keys[nkeys++], 2, BTGreaterStrategyNumber, F_TEXT_GT,
					CStringGetTextDatum(after));
	scan = rows_scan_begin(rel, index, keys, nkeys, ForwardScanDirection);
	tuple = rows_scan_next(scan);
	if (tuple)
		work_from_tuple(rel, tuple, &work);
	rows_scan_end(scan);
	index_close(index, NoLock);
	return tuple ? text_to_cstring(work.operation) : NULL;
}

/* The same in all lists that are here. */
char *
work_next_operation(char queue, const char *after)
{
	List	   *lists = open_lists();
	char	   *next = NULL;
	ListCell   *lc;

	foreach(lc, lists)
	{
		char	   *name = next_operation_in(lfirst(lc), queue, after);

		if (name && (next == NULL || strcmp(name, next) < 0))
			next = name;
		table_close(lfirst(lc), NoLock);
	}
	return next;
}
