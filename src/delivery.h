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
	int64		deadline;		/* NO_LIMIT = none; from the first emission */
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
extern const Destination *destination_get(const char *name);

#endif							/* IDEMPOTENCY_DELIVERY_H */
