/*
 * forget_ranges.c
 *	  Which blocks of a table of records may hold something to forget: its BRIN
 *	  index on forget_at.
 *
 * An index entry for each record would cost each claim a descent, a page to
 * dirty and a WAL record.  Records are written in about the order in which they
 * are forgotten, so one summary for a range of blocks says nearly as much.  An
 * insert into a range without a summary costs nothing; one into a range that
 * has one (space that vacuum freed) would raise the latest time each time, so
 * the operator class of the index notes it RANGE_SLACK later than it is and is
 * left alone until that is passed.
 *
 * A summary never misses a row.  It is made by PostgreSQL's own
 * brin_summarize_range: a placeholder collects what is inserted meanwhile, and
 * the scan of the range counts rows that are not committed yet.  From then on
 * each insert widens it before it ends.  So a row that is committed is covered
 * by the summary of its range, or the range has none and has to be read.
 *
 * A summary never shrinks, however.  A range whose rows have been purged, and
 * whose space new rows use, would look old for ever.  So purge, which has read
 * a range and found nothing to remove, makes a new summary of it; but only if
 * that would say something else.  PostgreSQL counts every version that vacuum
 * could not remove yet, so that is asked first: as long as an old snapshot
 * keeps dead rows, the range is read again by each purge, and nothing is written.
 *
 * The new summary takes the place of the old one, by way of a placeholder, as
 * brin_summarize_range makes its own: each step is a compare and swap, and what an
 * insert has put into the placeholder is in the new summary.  To take the old one
 * away first, by brin_desummarize_range, is not safe beside inserts: it locks the
 * map of the ranges before the page of the summary, an insert whose summary grows
 * and moves to another page locks them the other way round, and a
 * deadlock of page locks is never resolved.
 *
 * Summaries are made of whole ranges only: the last one of a growing table is
 * where new rows are appended.
 *
 * brin_summarize_range takes ShareUpdateExclusiveLock, of which VACUUM, ANALYZE
 * and other purges need one.  It is asked for without waiting, and given back
 * at once.  Refused, the range is read as it is, and the next purge asks again.
 */
#include "postgres.h"

#include "access/brin_internal.h"
#include "access/brin_pageops.h"
#include "access/brin_revmap.h"
#include "access/brin_tuple.h"
#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "record/record.h"

/* After reading so many, it is left open when a table that is not over will be. */
#define MOST_BLOCKS_READ 1000

/* How often at most inserts that follow each other change a summary. */
#define RANGE_SLACK USECS_PER_SEC

struct ForgetRanges
{
	Relation	rel;
	Relation	index;
	BrinRevmap *revmap;
	BrinDesc   *desc;
	BrinMemTuple *summary;		/* the one read last */
	BlockNumber blocks_per_range;
	BlockNumber n_blocks;
	int64		blocks_read;
};

/* What brin_minmax_add_value does, but for the slack. */
SQL_FUNCTION(idem_forget_range_add)
{
	BrinValues *range = (BrinValues *) PG_GETARG_POINTER(1);
	TimestampTz forget_at = PG_GETARG_TIMESTAMPTZ(2);
	bool		earlier = range->bv_allnulls ||
	forget_at < DatumGetTimestampTz(range->bv_values[0]);
	bool		later = range->bv_allnulls ||
	forget_at > DatumGetTimestampTz(range->bv_values[1]);

	if (earlier)
		range->bv_values[0] = TimestampTzGetDatum(forget_at);
	if (later)
		range->bv_values[1] = TimestampTzGetDatum(clock_after(forget_at, RANGE_SLACK));
	range->bv_allnulls = false;
	PG_RETURN_BOOL(earlier || later);
}

/*
 * Opens the index.  The caller must hold a lock on rel until
 * forget_ranges_close().  Raises 55000.
 */
ForgetRanges *
forget_ranges_open(Relation rel)
{
	ForgetRanges *ranges = palloc0(sizeof(ForgetRanges));

	ranges->rel = rel;
	ranges->index = store_forget_index(rel);
	ranges->desc = brin_build_desc(ranges->index);
	if (ranges->desc->bd_info[0]->oi_nstored != 2)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" has not the operator class forget_at_ops",
						RelationGetRelationName(ranges->index))));
	ranges->revmap = compat_brin_revmap(ranges->index, &ranges->blocks_per_range);
	ranges->n_blocks = RelationGetNumberOfBlocks(rel);
	return ranges;
}

/*
 * Closes it, and gives its lock back: what empties the segment needs that.  Returns
 * how many blocks have been read to learn what is in them.
 */
int64
forget_ranges_close(ForgetRanges *ranges)
{
	int64		blocks_read = ranges->blocks_read;

	brinRevmapTerminate(ranges->revmap);
	brin_free_desc(ranges->desc);
	index_close(ranges->index, AccessShareLock);
	pfree(ranges);
	return blocks_read;
}

/* Reads the summary of a range.  Sets no times if there is none, or an unfinished one. */
static void
read_summary(ForgetRanges *ranges, ForgetRange *range)
{
	Buffer		buffer = InvalidBuffer;
	OffsetNumber offset;
	Size		size;
	BrinTuple  *tuple = compat_brin_tuple(ranges->revmap, range->first, &buffer,
										  &offset, &size);

	if (tuple)
	{
		ranges->summary = brin_deform_tuple(ranges->desc, tuple, ranges->summary);
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	}
	if (BufferIsValid(buffer))
		ReleaseBuffer(buffer);
	range->stored = tuple != NULL;
	if (tuple && !ranges->summary->bt_placeholder)
	{
		BrinValues *times = &ranges->summary->bt_columns[0];

		range->known = true;
		range->earliest = times->bv_allnulls ? NEVER :
			DatumGetTimestampTz(times->bv_values[0]);
		range->latest = times->bv_allnulls || times->bv_hasnulls ? NEVER :
			DatumGetTimestampTz(times->bv_values[1]);
	}
}

/* A range without rows: what widen() begins with. */
#define NO_TIMES {.earliest = NEVER, .latest = DT_NOBEGIN}

static void
widen(ForgetRange *times, TimestampTz earliest, TimestampTz latest)
{
	times->earliest = Min(times->earliest, earliest);
	times->latest = Max(times->latest, latest);
}

static void
add_row(Relation index, ItemPointer tid, Datum *values, bool *isnull,
		bool alive, void *times)
{
	TimestampTz forget_at = isnull[0] ? NEVER : DatumGetTimestampTz(values[0]);

	widen(times, forget_at, clock_after(forget_at, RANGE_SLACK));
}

/*
 * Makes a tuple for the index of the times and of the summary it is to replace, or
 * a placeholder if times is NULL.
 */
static BrinTuple *
form_summary(ForgetRanges *ranges, BlockNumber first, ForgetRange *times,
			 BrinTuple *replaced, Size *size)
{
	BrinMemTuple *old;
	BrinMemTuple *new;
	BrinValues *values;

	if (times == NULL)
		return brin_form_placeholder_tuple(ranges->desc, first, size);
	old = brin_deform_tuple(ranges->desc, replaced, NULL);
	values = &old->bt_columns[0];
	if (!values->bv_allnulls)
		widen(times, DatumGetTimestampTz(values->bv_values[0]), DatumGetTimestampTz(values->bv_values[1]));
	if (values->bv_hasnulls || (values->bv_allnulls && !old->bt_empty_range))
		widen(times, NEVER, NEVER);
	new = brin_new_memtuple(ranges->desc);
	values = &new->bt_columns[0];
	new->bt_empty_range = times->latest == DT_NOBEGIN;
	values->bv_allnulls = times->earliest == NEVER;
	values->bv_hasnulls = times->latest == NEVER && !values->bv_allnulls;
	values->bv_values[0] = TimestampTzGetDatum(times->earliest);
	values->bv_values[1] = TimestampTzGetDatum(times->latest);
	return brin_form_tuple(ranges->desc, first, new, size);
}

/* Replaces a summary, unless an insert has changed it meanwhile. */
static bool
swap_summary(ForgetRanges *ranges, BlockNumber first, ForgetRange *times)
{
	Buffer		buffer = InvalidBuffer;
	OffsetNumber offset;
	Size		old_size;
	Size		new_size;
	Size		room = 0;
	BrinTuple  *old = compat_brin_tuple(ranges->revmap, first, &buffer, &offset, &old_size);
	BrinTuple  *new;
	bool		swapped;

	if (old == NULL)
		elog(ERROR, "summary of blocks from %u of index \"%s\" has gone", first,
			 RelationGetRelationName(ranges->index));
	old = brin_copy_tuple(old, old_size, NULL, &room);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
	new = form_summary(ranges, first, times, old, &new_size);
	swapped = brin_doupdate(ranges->index, ranges->blocks_per_range, ranges->revmap,
							first, buffer, offset, old, old_size, new, new_size,
							brin_can_do_samepage_update(buffer, old_size, new_size));
	ReleaseBuffer(buffer);
	return swapped;
}

/* Replaces a summary by a new one.  The caller must hold ShareUpdateExclusiveLock. */
static void
resummarize(ForgetRanges *ranges, const ForgetRange *range)
{
	ForgetRange times = NO_TIMES;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "idempotency summary",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);

	while (!swap_summary(ranges, range->first, NULL))
		CHECK_FOR_INTERRUPTS();
	table_index_build_range_scan(ranges->rel, ranges->index, BuildIndexInfo(ranges->index),
								 false, true, false, range->first,
								 range->end - range->first, add_row, &times, NULL);
	while (!swap_summary(ranges, range->first, &times))
		CHECK_FOR_INTERRUPTS();
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}

/*
 * Makes a summary of a range, instead of the one it has, as the owner of the
 * table.  False if that would have to wait.
 */
static bool
summarize(ForgetRanges *ranges, const ForgetRange *range)
{
	Oid			relid = RelationGetRelid(ranges->rel);
	Oid			index = RelationGetRelid(ranges->index);
	Oid			user;
	int			context;

	if (!ConditionalLockRelationOid(relid, ShareUpdateExclusiveLock))
		return false;
	if (!ConditionalLockRelationOid(index, ShareUpdateExclusiveLock))
	{
		UnlockRelationOid(relid, ShareUpdateExclusiveLock);
		return false;
	}
	if (range->stored)
		resummarize(ranges, range);
	else
	{
		brinRevmapTerminate(ranges->revmap);
		GetUserIdAndSecContext(&user, &context);
		SetUserIdAndSecContext(ranges->rel->rd_rel->relowner,
							   context | SECURITY_RESTRICTED_OPERATION);
		DirectFunctionCall2(brin_summarize_range, ObjectIdGetDatum(index),
							Int64GetDatum(range->first));
		SetUserIdAndSecContext(user, context);
		ranges->revmap = compat_brin_revmap(ranges->index, &ranges->blocks_per_range);
	}
	UnlockRelationOid(index, ShareUpdateExclusiveLock);
	UnlockRelationOid(relid, ShareUpdateExclusiveLock);
	ranges->blocks_read += range->end - range->first;
	return true;
}

/*
 * Sets range to the one of a block, and to what its summary says, if it has one.
 * False past the end of the table, as it was when it was opened.
 */
bool
forget_ranges_get(ForgetRanges *ranges, BlockNumber block, ForgetRange *range)
{
	if (block >= ranges->n_blocks)
		return false;
	range->first = block - block % ranges->blocks_per_range;
	range->end = Min(range->first + ranges->blocks_per_range, ranges->n_blocks);
	range->stored = range->known = false;
	range->earliest = DT_NOBEGIN;
	range->latest = NEVER;
	read_summary(ranges, range);
	return true;
}

/* Makes a summary of a range that has none, if it is whole. */
void
forget_ranges_complete(ForgetRanges *ranges, ForgetRange *range)
{
	if (!range->known && range->end - range->first == ranges->blocks_per_range &&
		summarize(ranges, range))
		read_summary(ranges, range);
}

static void
read_range(ForgetRanges *ranges, const ForgetRange *range, RowsKind kind,
		   ForgetRange *exact)
{
	RowScan    *scan = rows_scan_blocks(ranges->rel, range->first, range->end, kind);
	HeapTuple	tuple;

	*exact = (ForgetRange) NO_TIMES;
	while ((tuple = rows_scan_next(scan)) != NULL)
	{
		TimestampTz forget_at = store_forget_at(ranges->rel, tuple);

		widen(exact, forget_at, forget_at);
		heap_freetuple(tuple);
	}
	rows_scan_end(scan);
	ranges->blocks_read += range->end - range->first;
}

/* Returns whether a summary calls a range due, or not yet over, and its rows do not. */
static bool
is_outdated(const ForgetRange *range, const ForgetRange *exact, TimestampTz now)
{
	return (range->earliest <= now && exact->earliest > now) ||
		(range->latest == NEVER && exact->latest != NEVER) ||
		(range->latest > now && clock_after(exact->latest, RANGE_SLACK) <= now);
}

/*
 * Makes a new summary of a range if that would not call it due any more, or over at
 * last, and the old one does.
 */
void
forget_ranges_renew(ForgetRanges *ranges, const ForgetRange *range, TimestampTz now)
{
	ForgetRange new;

	if (!range->known)
		return;
	read_range(ranges, range, ROWS_NOT_REMOVABLE, &new);
	if (is_outdated(range, &new, now))
		(void) summarize(ranges, range);
}

/*
 * Returns when a table is over: when all its rows that are committed are to be
 * forgotten, or a second later.  DT_NOBEGIN if there are none, NEVER if that is not
 * known.
 *
 * Ranges are looked at from the end, where the latest rows stand.  The rows of one
 * are read if it has no summary, or one that says never; and if its summary says
 * later than now, to see whether that is still so, unless another range has been
 * found that is not over.
 */
TimestampTz
forget_ranges_over(ForgetRanges *ranges, TimestampTz now)
{
	TimestampTz over = DT_NOBEGIN;
	ForgetRange range = {.first = ranges->n_blocks};

	while (range.first > 0 && over != NEVER)
	{
		CHECK_FOR_INTERRUPTS();
		(void) forget_ranges_get(ranges, range.first - 1, &range);
		if (range.latest == NEVER || (range.latest > now && over <= now))
		{
			ForgetRange exact;

			if (over > now && ranges->blocks_read > MOST_BLOCKS_READ)
				return NEVER;
			read_range(ranges, &range, ROWS_SETTLED, &exact);
			/* a new summary dirties the pages of these rows: not for nothing */
			if (exact.latest != NEVER && is_outdated(&range, &exact, now))
				forget_ranges_renew(ranges, &range, now);
			range.latest = exact.latest;
		}
		over = Max(over, range.latest);
	}
	return over;
}
