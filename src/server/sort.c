/*
 * sort.c
 *	  A merge sort of pointers: n log n whatever they point to.
 *
 * The server's qsort can be driven to n squared by an input made for it, and
 * what is sorted here is made by callers.
 */
#include "postgres.h"

#include "server/server.h"
#include "miscadmin.h"

/* Runs of this many are sorted by insertion. */
#define RUN 8

/* items[begin..end) */
static void
sort_run(const void **items, Size begin, Size end, SortBefore before)
{
	for (Size i = begin + 1; i < end; i++)
	{
		const void *item = items[i];
		Size		at = i;

		for (; at > begin && before(item, items[at - 1]); at--)
			items[at] = items[at - 1];
		items[at] = item;
	}
}

/* Merges from[begin..middle) and from[middle..end) into to[begin..end). */
static void
merge_runs(const void **from, const void **to, Size begin, Size middle,
		   Size end, SortBefore before)
{
	Size		left = begin;
	Size		right = middle;

	for (Size at = begin; at < end; at++)
	{
		CHECK_FOR_INTERRUPTS();
		if (left < middle &&
			(right >= end || !before(from[right], from[left])))
			to[at] = from[left++];
		else
			to[at] = from[right++];
	}
}

/*
 * Sorts count pointers; equal items keep their order.  Answers interrupts.
 * Raises what before raises, and out of memory.
 */
void
sort_pointers(const void **items, Size count, SortBefore before)
{
	const void **from = items;
	const void **to;
	const void **room;

	for (Size begin = 0; begin < count; begin += RUN)
		sort_run(items, begin, Min(begin + RUN, count), before);
	if (count <= RUN)
		return;
	room = to = palloc(count * sizeof(void *));
	for (Size width = RUN; width < count; width *= 2)
	{
		const void **merged = to;

		for (Size begin = 0; begin < count; begin += 2 * width)
			merge_runs(from, to, begin, Min(begin + width, count),
					   Min(begin + 2 * width, count), before);
		to = from;
		from = merged;
	}
	if (from != items)
		memcpy(items, from, count * sizeof(void *));
	pfree(room);
}
