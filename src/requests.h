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

/* serve.c */
extern Datum request_serve(FunctionCallInfo fcinfo, const char *what,
						   PGFunction body);
extern void request_about(const Call *call);
extern void request_answered(const Call *call, const Answer *answer);
extern void request_next(bool logged);

/*----
 * A line, as it is in shared memory and in the table: a head, and texts, each
 * ended by a zero.
 *----
 */
typedef struct LineHead
{
	TimestampTz at;
	pg_uuid_t	id;				/* all zero = none: refused before */
	int32		pid;
	int32		attempt;
	int32		error;			/* SQLSTATE; 0 = answered */
	uint16		length;			/* of head and texts */
	uint8		verdict;		/* 1 + Verdict; 0 = none */
	uint8		state;			/* 1 + State; 0 = none */
} LineHead;

typedef enum LineText
{
	TEXT_OPERATION,
	TEXT_KEY,
	TEXT_PRINCIPAL,
	TEXT_CALL,
	TEXT_RESOURCE,
	TEXT_REQUEST,
	TEXT_APPLICATION,
	N_LINE_TEXTS
} LineText;

typedef struct Line
{
	LineHead	head;
	struct
	{
		const char *start;		/* may be NULL, if length is 0 */
		int			length;
	}			texts[N_LINE_TEXTS];
} Line;

/* lines.c */
extern void line_set_text(Line *line, LineText which, const char *text);
extern void line_set_text_length(Line *line, LineText which, const char *text,
								 int length);
extern void line_measure(Line *line);
extern void line_write(const Line *line, char *to);

/* requests.c */
extern Size requests_size(void);
extern void requests_attach(void *memory, bool found);
extern bool requests_available(void);
extern void requests_wake_me(void);
extern bool requests_urgent(void);
extern bool requests_are_many(int lines);
extern List *requests_databases(void);
extern void requests_put(Line *line);
extern int	requests_collect(uint32 *cells, int most);
extern const char *requests_at(uint32 cell, LineHead *head);
extern void requests_release(const uint32 *cells, int n);
extern void requests_discard(const List *databases);
extern void requests_discard_own(void);

/* flush.c */
extern int	requests_flush(void);
extern bool requests_expire(void);

#endif							/* IDEMPOTENCY_REQUESTS_H */
