/*
 * window.c
 *	  Numbers that count for a while: calls that were reported, tokens, slots.
 *
 * A window is a ring of sums, one for each step of time, kept by the step in
 * which what they count ends; it slides when it is looked at.  It has
 * WINDOW_STEPS - 1 steps in its width, so a number counts up to one of these
 * longer than it is to, and at most for the width and one.
 *
 * Nothing here waits, allocates or raises, and all takes the same short time,
 * so that it can be done under a spinlock.  now is clock_monotonic(), and may be
 * older than what another process has passed.
 */
#include "postgres.h"

#include "calls/calls.h"

static int64
step_width(const Window *window)
{
	return Max(window->width / (WINDOW_STEPS - 1), 1);
}

/* Empties the steps that are over, all of them if the width is another one. */
static void
slide(Window *window, int64 width, int64 now)
{
	int64		step;

	if (window->width != width)
	{
		memset(window, 0, sizeof(*window));
		window->width = width;
	}
	step = now / step_width(window);
	if (step - window->newest >= WINDOW_STEPS)
	{
		memset(window->ending, 0, sizeof(window->ending));
		window->newest = step;
	}
	while (window->newest < step)
		window->ending[++window->newest % WINDOW_STEPS] = 0;
}

/* Returns the step at whose beginning what counts until then counts no longer. */
static int64
end_step(const Window *window, int64 until)
{
	return Min(Max(until / step_width(window), window->newest) + 1,
			   window->newest + WINDOW_STEPS);
}

int64
window_sum(Window *window, int64 width, int64 now)
{
	int64		sum = 0;

	slide(window, width, now);
	for (int i = 0; i < WINDOW_STEPS; i++)
		sum += window->ending[i];
	return sum;
}

/* Lets a number count until then. */
void
window_add(Window *window, int64 width, int64 now, int64 until, int64 number)
{
	slide(window, width, now);
	window->ending[end_step(window, until) % WINDOW_STEPS] += number;
}

/*
 * Takes away as much as there is of a number, first from what counts until about
 * that time or later: now takes what would count for the shortest time.  Returns
 * how much that was.
 */
int64
window_take(Window *window, int64 width, int64 now, int64 until, int64 number)
{
	int64		left = number;
	int64		step;

	slide(window, width, now);
	/* the clocks by which it was put there and is taken may differ by a step */
	step = Max(end_step(window, until) - 1, window->newest + 1);
	for (int i = 0; i < WINDOW_STEPS && left > 0; i++)
	{
		int64	   *sum = &window->ending[(step + i) % WINDOW_STEPS];
		int64		taken = Min(*sum, left);

		*sum -= taken;
		left -= taken;
	}
	return number - left;
}
