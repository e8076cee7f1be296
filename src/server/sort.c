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

/* Sorts what stands in both items and room, into items. */
static void
sort_range(const void **items, const void **room, Size count, SortBefore before)
{
	Size		middle = count / 2;
	Size		left = 0;
	Size		right = middle;

	if (count <= RUN)
	{
		for (Size i = 1; i < count; i++)
		{
			const void *item = items[i];
			Size		at = i;

			for (; at > 0 && before(item, items[at - 1]); at--)
				items[at] = items[at - 1];
			items[at] = item;
		}
		return;
	}
	sort_range(room, items, middle, before);
	sort_range(room + middle, items + middle, count - middle, before);
	for (Size at = 0; at < count; at++)
	{
		CHECK_FOR_INTERRUPTS();
		if (left < middle && (right >= count || !before(room[right], room[left])))
			items[at] = room[left++];
		else
			items[at] = room[right++];
	}
}

/*
 * Sorts count pointers; equal items keep their order.  Answers interrupts.
 * Raises what before raises, and out of memory.
 */
void
sort_pointers(const void **items, Size count, SortBefore before)
{
	const void **room = count > RUN ? palloc(count * sizeof(void *)) : NULL;

	if (room)
		memcpy(room, items, count * sizeof(void *));
	sort_range(items, room, count, before);
	if (room)
		pfree(room);
}
