/*-------------------------------------------------------------------------
 *
 * requests.h
 *	  The log of requests.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_REQUESTS_H
#define IDEMPOTENCY_REQUESTS_H

#include "claim.h"

/* guc.c */
extern char *guc_request_id;
extern int	guc_request_log_retention;
extern int	guc_request_log_size;

/* requests.c */
extern Size requests_size(void);
extern void requests_attach(void *memory, bool found);
extern void requests_wake_me(void);
extern bool requests_urgent(void);
extern void requests_discard(const List *kept_databases);
extern void requests_discard_own(void);
extern void requests_log_answer(const Call *call, const char *what,
								const Answer *answer);
extern void requests_log_error(const Call *call, const char *what);

/* flush.c */
extern bool requests_flush(void);

/* What flush.c takes from the ring. */
typedef struct RequestLine RequestLine;

extern int	requests_collect(RequestLine **lines, int most);
extern void requests_release(RequestLine **lines, int n);
extern void requests_values(const RequestLine *line, Datum *values, bool *nulls);

#define N_REQUEST_COLUMNS 14

/*
 * Is the operation's log on?  What there is to say costs something to make.
 */
static inline bool
requests_wanted(const Call *call)
{
	return call->policy->log_requests;
}

#endif							/* IDEMPOTENCY_REQUESTS_H */
