/*-------------------------------------------------------------------------
 *
 * delivery.h
 *	  What leaves the database: destinations, and the discipline with which
 *	  they are called.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_DELIVERY_H
#define IDEMPOTENCY_DELIVERY_H

#include "idempotency.h"

/* The destination whose settings are the defaults of all. */
#define EVERY_DESTINATION "*"

/* The settings of a destination; intervals in microseconds. */
typedef struct Destination
{
	const char *name;
	int64		base;			/* of the back-off */
	int64		cap;
	int64		max_attempts;	/* NO_LIMIT = none */
	int64		deadline;		/* NO_LIMIT = none; from the first take */
	int64		retry_budget;	/* share, in millionths of a first try;
								 * NO_LIMIT = none */
	int64		breaker_failures;	/* share, in millionths of all calls;
									 * NO_LIMIT = never opens */
	int64		breaker_window;
	int64		breaker_cooldown;
	int64		max_in_flight;	/* NO_LIMIT = none */
	int64		retention;		/* of delivered events; NO_LIMIT = for ever */
	bool		skip_dead_head; /* a dead letter frees its ordering key */
	Jsonb	   *settings;		/* all of it, as shown */
} Destination;

/* destination.c */
extern char *destination_name(text *value);
extern char *destination_called(text *value);
extern const Destination *destination_get(const char *name);

/*----
 * The discipline with which a destination is called.
 *----
 */

/*
 * What may be sent to a destination, for a caller that knows which of its
 * calls are retries: asked for before it chooses, and used after.
 */
typedef struct Grant
{
	int			calls;			/* how many may be made, retries included */
	int			retries;		/* how many of them may be retries */
	int64		retry_after;	/* if no call: microseconds until asking again
								 * makes sense */

	/* for discipline.c */
	bool		counted;		/* there is an entry */
	bool		probe;			/* it is the probe of a half-open breaker */
	int64		until;			/* when the leases end, by window_clock() */
	int			tokens;			/* kept for retries */
} Grant;

/* discipline.c */
extern void discipline_reserve(const Destination *destination, int wanted,
							   int64 lease, Grant *grant);
extern void discipline_use(const Destination *destination, const Grant *grant,
						   int first_tries, int retries);
extern void discipline_void(const char *destination, const Grant *grant, int calls);
extern void discipline_report(const Destination *destination, int succeeded,
							  int failed, int64 lease_left);

/* retry.c */
extern bool retry_again(const Destination *destination, int32 attempts,
						TimestampTz since, int64 asked, TimestampTz now,
						TimestampTz *again);

#endif							/* IDEMPOTENCY_DELIVERY_H */
