/*-------------------------------------------------------------------------
 *
 * window.h
 *	  Numbers that count for a while: a sum over a sliding window of time.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_WINDOW_H
#define IDEMPOTENCY_WINDOW_H

#define WINDOW_SLOTS 10

/*
 * Zeros are an empty window.  Whoever uses one says the same width every time;
 * another width empties it.
 */
typedef struct Window
{
	int64		width;			/* microseconds that a number counts, at most */
	int64		slot;			/* number of the newest slot since boot */
	int64		sums[WINDOW_SLOTS]; /* of slot n at n % WINDOW_SLOTS */
} Window;

extern int64 window_clock(void);
extern int64 window_sum(Window *window, int64 width, int64 now);
extern void window_add(Window *window, int64 width, int64 now, int64 number);
extern int64 window_take(Window *window, int64 width, int64 now, int64 number);

#endif							/* IDEMPOTENCY_WINDOW_H */
