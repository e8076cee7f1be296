/*
 * Preloaded into a server, makes its clock one that a test sets: microseconds read
 * from the file named by SET_CLOCK are added to the time of day.  The monotonic
 * clock stays what it is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static int64_t
microseconds_set(void)
{
	static const volatile int64_t *set;

	if (set == NULL)
	{
		const char *name = getenv("SET_CLOCK");
		int			fd = name ? open(name, O_RDONLY) : -1;
		void	   *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
		static const int64_t none = 0;

		set = map == MAP_FAILED ? &none : map;
	}
	return *set;
}

/* The time of day with that added, for a clock that counts parts_per_second. */
static void
add_set(time_t *seconds, long *parts, long parts_per_second)
{
	int64_t		set = microseconds_set();
	int64_t		sum = *parts + set % 1000000 * (parts_per_second / 1000000);
	int			carry = sum < 0 ? -1 : sum / parts_per_second;

	*seconds += set / 1000000 + carry;
	*parts = sum - carry * (int64_t) parts_per_second;
}

int
gettimeofday(struct timeval *tv, void *tz)
{
	static int	(*real) (struct timeval *, void *);
	int			result;

	if (real == NULL)
		real = (int (*) (struct timeval *, void *)) dlsym(RTLD_NEXT, "gettimeofday");
	result = real(tv, tz);
	add_set(&tv->tv_sec, &tv->tv_usec, 1000000);
	return result;
}

int
clock_gettime(clockid_t clock, struct timespec *ts)
{
	static int	(*real) (clockid_t, struct timespec *);
	int			result;

	if (real == NULL)
		real = (int (*) (clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
	result = real(clock, ts);
	if (clock == CLOCK_REALTIME)
		add_set(&ts->tv_sec, &ts->tv_nsec, 1000000000);
	return result;
}
