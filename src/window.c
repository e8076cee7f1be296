/*-------------------------------------------------------------------------
 *
 * window.c
 *	  Numbers that count for a while.
 *
 * The window slides in steps of a tenth of its width: a number counts for nine
 * to ten tenths of it.  Nothing here waits, allocates or raises, and all takes
 * the same short time, so that it can be done under a spinlock.
 *
 * The clock is one that cannot be set and that all processes of the machine
 * share: what is in shared memory does not outlive it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "portability/instr_time.h"

#include "compat.h"
#include "window.h"

/*
 * Microseconds since some moment before the server's start.
 */
int64
window_clock(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/*
 * Forget what counts no longer.
 */
static void
slide(Window *window, int64 width, int64 now)
{
	int64		slot = now / Max(width / WINDOW_SLOTS, 1);

	if (window->width != width || slot - window->slot >= WINDOW_SLOTS)
	{
		memset(window->sums, 0, sizeof(window->sums));
		window->width = width;
		window->slot = slot;
	}
	/* now may have been read before another process slid it */
	while (window->slot < slot)
		window->sums[++window->slot % WINDOW_SLOTS] = 0;
}

/*
 * What counts now, together.
 */
int64
window_sum(Window *window, int64 width, int64 now)
{
	int64		sum = 0;

	slide(window, width, now);
	for (int i = 0; i < WINDOW_SLOTS; i++)
		sum += window->sums[i];
	return sum;
}

/*
 * Let a number count from now on.
 */
void
window_add(Window *window, int64 width, int64 now, int64 number)
{
	slide(window, width, now);
	window->sums[window->slot % WINDOW_SLOTS] += number;
}

/*
 * Take as much as there is of a number away, first from what would count for
 * the shortest time.  Returns how much that was.
 */
int64
window_take(Window *window, int64 width, int64 now, int64 number)
{
	int64		left = number;

	slide(window, width, now);
	for (int i = 1; i <= WINDOW_SLOTS && left > 0; i++)
	{
		int64	   *sum = &window->sums[(window->slot + i) % WINDOW_SLOTS];
		int64		taken = Min(*sum, left);

		*sum -= taken;
		left -= taken;
	}
	return number - left;
}
