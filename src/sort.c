/*-------------------------------------------------------------------------
 *
 * sort.c
 *	  Sorting of things known by number, in n log n whatever they are.
 *
 * The server's qsort can be driven to n squared by an input made for it, and
 * what is sorted here is made by callers.  So this is a merge sort; input
 * that is in order already costs one look.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical_parts.h"
#include "miscadmin.h"

/*
 * Is everything in its place?
 */
static bool
in_order(const uint32 *order, uint32 count, const void *items,
		 SortBefore before)
{
	for (uint32 i = 1; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (before(items, order[i], order[i - 1]))
			return false;
	}
	return true;
}

/*
 * Merge from[begin..middle) and from[middle..end) into to[begin..end).
 */
static void
merge(const uint32 *from, uint32 *to, Size begin, Size middle, Size end,
	  const void *items, SortBefore before)
{
	Size		left = begin;
	Size		right = middle;

	for (Size at = begin; at < end; at++)
	{
		CHECK_FOR_INTERRUPTS();
		if (left < middle &&
			(right >= end || !before(items, from[right], from[left])))
			to[at] = from[left++];
		else
			to[at] = from[right++];
	}
}

/*
 * Sort count numbers of items; equal ones keep their order.  Answers
 * interrupts; may raise out of memory, and what before raises.
 */
void
sort_numbers(uint32 *order, uint32 count, const void *items, SortBefore before)
{
	uint32	   *from = order;
	uint32	   *to;
	uint32	   *room;

	if (in_order(order, count, items, before))
		return;
	room = to = MemoryContextAllocHuge(CurrentMemoryContext,
									   count * sizeof(uint32));
	for (Size width = 1; width < count; width *= 2)
	{
		uint32	   *merged = to;

		for (Size begin = 0; begin < count; begin += 2 * width)
			merge(from, to, begin, Min(begin + width, count),
				  Min(begin + 2 * width, count), items, before);
		to = from;
		from = merged;
	}
	if (from != order)
		memcpy(order, from, count * sizeof(uint32));
	pfree(room);
}
