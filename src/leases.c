/*-------------------------------------------------------------------------
 *
 * leases.c
 *	  Leases under way: each counts until it ends.
 *
 * Ends are kept in steps, so a lease counts up to one step longer than it is,
 * and at most PERMIT_LIFE.  Nothing here waits, allocates or raises, and all
 * takes the same short time, so that it can be done under a spinlock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "discipline.h"

/*
 * The step at whose beginning a lease that ends then counts no longer.
 */
static int64
step_of(int64 until, int64 now)
{
	return Max(Min(until, now + PERMIT_LIFE), now) / LEASE_STEP + 1;
}

/*
 * Forget what is over.
 */
static void
slide(Leases *leases, int64 now)
{
	int64		step = now / LEASE_STEP;

	if (step - leases->step >= LEASE_STEPS)
	{
		memset(leases->ending, 0, sizeof(leases->ending));
		leases->step = step;
	}
	/* now may have been read before another process slid it */
	while (leases->step < step)
		leases->ending[++leases->step % LEASE_STEPS] = 0;
}

/*
 * How many there are.
 */
int64
leases_sum(Leases *leases, int64 now)
{
	int64		sum = 0;

	slide(leases, now);
	for (int i = 0; i < LEASE_STEPS; i++)
		sum += leases->ending[i];
	return sum;
}

/*
 * Let that many count until then.
 */
void
leases_add(Leases *leases, int64 until, int64 now, int64 number)
{
	slide(leases, now);
	leases->ending[step_of(until, Max(now, leases->step * LEASE_STEP)) % LEASE_STEPS] += number;
}

/*
 * Take away as many as there are of a number of leases, those first that end
 * nearest to that time: who says when a lease ends has read another clock.
 */
void
leases_take(Leases *leases, int64 until, int64 now, int64 number)
{
	int64		first;
	int64		nearest;

	slide(leases, now);
	first = leases->step + 1;
	nearest = Max(step_of(until, now), first);
	for (int i = 0; i < 2 * LEASE_STEPS && number > 0; i++)
	{
		int64		step = i % 2 ? nearest - (i + 1) / 2 : nearest + i / 2;
		int64	   *ending = &leases->ending[step % LEASE_STEPS];
		int64		taken;

		if (step < first || step >= first + LEASE_STEPS)
			continue;
		taken = Min(*ending, number);
		*ending -= taken;
		number -= taken;
	}
}
