/*
 * Preloaded into a server, makes its clock one that a test sets: seconds read
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
seconds_set(void)
{
	static const volatile int64_t *seconds;

	if (seconds == NULL)
	{
		const char *name = getenv("SET_CLOCK");
		int			fd = name ? open(name, O_RDONLY) : -1;
		void	   *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
		static const int64_t none = 0;

		seconds = map == MAP_FAILED ? &none : map;
	}
	return *seconds;
}

int
gettimeofday(struct timeval *tv, void *tz)
{
	static int	(*real) (struct timeval *, void *);
	int			result;

	if (real == NULL)
		real = (int (*) (struct timeval *, void *)) dlsym(RTLD_NEXT, "gettimeofday");
	result = real(tv, tz);
	tv->tv_sec += seconds_set();
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
		ts->tv_sec += seconds_set();
	return result;
}
