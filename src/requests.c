/*-------------------------------------------------------------------------
 *
 * requests.c
 *	  The log of requests, on its way to the table: lines in shared memory.
 *
 * A line says who asked for what and what was answered; never params, results
 * or errors' texts.  It is left in shared memory for the worker to write, so
 * it stays when the transaction rolls back, and costs its caller no write.
 *
 * A line belongs to one process at a time, by its status:
 *
 *		FREE -> WRITING		a session, compare and swap
 *		WRITING -> READY	the same session, nothing in between can be raised
 *		READY -> FREE		the worker of the line's database, after the
 *							transaction that wrote it into the table committed;
 *							or the launcher, if no worker will come
 *
 * so there is no lock.  A session looks at a few lines, from where the one
 * before it found one; if none is free it counts a dropped line and goes on.
 * The launcher is woken when half of the lines are taken.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "background.h"
#include "compat.h"
#include "requests.h"

PG_FUNCTION_INFO_V1(idem_stat_request_lines);

enum
{
	LINE_FREE,
	LINE_WRITING,
	LINE_READY
};

/* Lines to look at before giving up. */
#define MOST_LOOKS 16

/* What all texts of a line have together, and the less important ones each. */
#define TEXTS_MAX 1200
#define SMALL_TEXT_MAX 128

typedef enum LineText
{
	TEXT_OPERATION,
	TEXT_KEY,
	TEXT_PRINCIPAL,
	TEXT_RESOURCE,
	TEXT_REQUEST,
	TEXT_APPLICATION,
	N_LINE_TEXTS
} LineText;

struct RequestLine
{
	pg_atomic_uint32 status;
	Oid			database;
	TimestampTz at;
	pg_uuid_t	id;
	const char *what;			/* a constant of the library, which is loaded
								 * before the processes fork */
	int32		pid;
	int32		attempt;
	int			error;			/* SQLSTATE; 0 = answered */
	Verdict		verdict;
	State		state;
	char		texts[TEXTS_MAX];	/* N_LINE_TEXTS, each ended by a zero */
};

typedef struct Ring
{
	pg_atomic_uint32 next;		/* where to look first */
	pg_atomic_uint32 taken;
	pg_atomic_uint64 logged;
	pg_atomic_uint64 dropped;
	Latch	   *launcher;		/* whom to wake; a PGPROC's, so it stays */
	RequestLine lines[FLEXIBLE_ARRAY_MEMBER];
} Ring;

static Ring *ring = NULL;
static uint32 n_lines = 0;

Size
requests_size(void)
{
	return add_size(offsetof(Ring, lines),
					mul_size(guc_request_log_size, sizeof(RequestLine)));
}

/*
 * Shared memory is there; make it ready unless somebody has.
 */
void
requests_attach(void *memory, bool found)
{
	ring = memory;
	n_lines = guc_request_log_size;
	if (found)
		return;
	memset(ring, 0, requests_size());
	pg_atomic_init_u32(&ring->next, 0);
	pg_atomic_init_u32(&ring->taken, 0);
	pg_atomic_init_u64(&ring->logged, 0);
	pg_atomic_init_u64(&ring->dropped, 0);
	for (uint32 i = 0; i < n_lines; i++)
		pg_atomic_init_u32(&ring->lines[i].status, LINE_FREE);
}

/*
 * This process, the launcher, wants to know when the ring fills.
 */
void
requests_wake_me(void)
{
	ring->launcher = MyLatch;
}

/*
 * Is it time to write lines out?
 */
bool
requests_urgent(void)
{
	return pg_atomic_read_u32(&ring->taken) >= n_lines / 2;
}

/*----
 * Lines, written by sessions.
 *----
 */

/*
 * A free line, now being written; NULL, and counted, if there is none.
 */
static RequestLine *
take_line(void)
{
	for (int look = 0; look < MOST_LOOKS; look++)
	{
		uint32		i = pg_atomic_fetch_add_u32(&ring->next, 1) % n_lines;
		uint32		status = LINE_FREE;

		if (pg_atomic_compare_exchange_u32(&ring->lines[i].status, &status,
										   LINE_WRITING))
		{
			Latch	   *launcher = ring->launcher;

			if (pg_atomic_fetch_add_u32(&ring->taken, 1) == n_lines / 2 && launcher)
				SetLatch(launcher);
			return &ring->lines[i];
		}
	}
	pg_atomic_fetch_add_u64(&ring->dropped, 1);
	return NULL;
}

static void
free_line(RequestLine *line)
{
	pg_atomic_fetch_sub_u32(&ring->taken, 1);
	pg_write_barrier();
	pg_atomic_write_u32(&line->status, LINE_FREE);
}

/*
 * Append a text, cut to a length and to what is left; NULL is as good as
 * empty.  Returns the new end.
 */
static char *
put_text(char *to, const char *end, const char *text, int most)
{
	int			room = Min(most, (int) (end - to) - 1);
	int			len = text ? (int) strlen(text) : 0;

	if (len > room)
		len = pg_mbcliplen(text, len, Max(room, 0));
	memcpy(to, text ? text : "", len);
	to[len] = '\0';
	return Min(to + len + 1, unconstify(char *, end) - 1);
}

/*
 * The request's id from PostgREST's headers, a JSON object of strings: good
 * enough a look for a log, and it cannot fail.
 */
static char *
header_request_id(void)
{
	static const char name[] = "\"x-request-id\"";
	const char *at = GetConfigOption("request.headers", true, false);
	size_t		len;

	at = at ? strstr(at, name) : NULL;
	if (at == NULL)
		return NULL;
	at += strlen(name);
	at += strspn(at, " :");
	if (*at != '"')
		return NULL;
	len = strcspn(at + 1, "\"\\");
	return pnstrdup(at + 1, Min(len, SMALL_TEXT_MAX));
}

/*
 * Leave a line, if there is room.
 */
static void
leave_line(const Call *call, const char *what, const Answer *answer, int error,
		   const char *resource)
{
	const char *request = guc_request_id[0] ? guc_request_id : header_request_id();
	TimestampTz now = GetCurrentTimestamp();
	RequestLine *line = take_line();
	char	   *to;
	char	   *end;

	if (line == NULL)
		return;
	line->database = MyDatabaseId;
	line->at = now;
	line->id = call->who.id;
	line->what = what;
	line->pid = MyProcPid;
	line->error = error;
	line->verdict = answer ? answer->verdict : VERDICT_NONE;
	line->state = answer ? answer->state : STATE_ABSENT;
	line->attempt = answer ? answer->attempt : NO_ATTEMPT;
	to = line->texts;
	end = line->texts + TEXTS_MAX;
	to = put_text(to, end, call->who.operation, TEXTS_MAX);
	to = put_text(to, end, call->who.key, TEXTS_MAX);
	to = put_text(to, end, call->who.principal, TEXTS_MAX);
	to = put_text(to, end, resource, SMALL_TEXT_MAX);
	to = put_text(to, end, request, SMALL_TEXT_MAX);
	(void) put_text(to, end, application_name, NAMEDATALEN);
	pg_write_barrier();
	pg_atomic_write_u32(&line->status, LINE_READY);
	pg_atomic_fetch_add_u64(&ring->logged, 1);
}

/*
 * Log an answer.  answer may lack what does not apply.
 */
void
requests_log_answer(const Call *call, const char *what, const Answer *answer)
{
	const char *pointer = call->policy->resource_pointer;

	if (ring && requests_wanted(call))
		leave_line(call, what, answer, 0,
				   pointer && answer->result != (Datum) 0 ?
				   pointer_text(pointer, DatumGetJsonbP(answer->result)) : NULL);
}

/*
 * Log that a call is ending with the error being handled.
 */
void
requests_log_error(const Call *call, const char *what)
{
	if (ring && requests_wanted(call))
		leave_line(call, what, NULL, geterrcode(), NULL);
}

/*----
 * Lines, taken by the worker.
 *----
 */

/*
 * Up to that many ready lines of this database.  Returns how many.
 */
int
requests_collect(RequestLine **lines, int most)
{
	int			n = 0;

	for (uint32 i = 0; ring && i < n_lines && n < most; i++)
	{
		RequestLine *line = &ring->lines[i];

		if (pg_atomic_read_u32(&line->status) != LINE_READY)
			continue;
		pg_read_barrier();
		if (line->database == MyDatabaseId)
			lines[n++] = line;
	}
	return n;
}

/*
 * Those are in the table, committed.
 */
void
requests_release(RequestLine **lines, int n)
{
	for (int i = 0; i < n; i++)
		free_line(lines[i]);
}

static void
drop_line(RequestLine *line)
{
	pg_atomic_fetch_add_u64(&ring->dropped, 1);
	free_line(line);
}

/*
 * Drop the lines that no worker will come for: those of databases not in the
 * list.
 */
void
requests_discard(const List *kept_databases)
{
	for (uint32 i = 0; i < n_lines; i++)
	{
		RequestLine *line = &ring->lines[i];

		if (pg_atomic_read_u32(&line->status) != LINE_READY)
			continue;
		pg_read_barrier();
		if (!list_member_oid(kept_databases, line->database))
			drop_line(line);
	}
}

/*
 * Drop the lines of this database: it has no table for them any more.
 */
void
requests_discard_own(void)
{
	RequestLine *line;

	while (requests_collect(&line, 1) == 1)
		drop_line(line);
}

static void
set_text(Datum *values, bool *nulls, int column, const char *text)
{
	nulls[column] = text == NULL || text[0] == '\0';

	values[column] = CStringGetTextDatum(text ? text : "");
}

/*
 * A line as a row of the table.
 */
void
requests_values(const RequestLine *line, Datum *values, bool *nulls)
{
	const char *texts[N_LINE_TEXTS];
	const char *from = line->texts;

	for (int i = 0; i < N_LINE_TEXTS; i++)
	{
		texts[i] = from;
		from += strlen(from) + 1;
		from = Min(from, line->texts + TEXTS_MAX - 1);
	}
	memset(nulls, false, N_REQUEST_COLUMNS * sizeof(bool));
	values[0] = TimestampTzGetDatum(line->at);
	values[1] = UUIDPGetDatum(&line->id);
	set_text(values, nulls, 2, texts[TEXT_OPERATION]);
	set_text(values, nulls, 3, texts[TEXT_KEY]);
	set_text(values, nulls, 4, texts[TEXT_PRINCIPAL]);
	set_text(values, nulls, 5, line->what);
	set_text(values, nulls, 6, answer_verdict_label(line->verdict));
	set_text(values, nulls, 7, line->error ? NULL : answer_state_label(line->state));
	set_text(values, nulls, 8, line->error ? unpack_sql_state(line->error) : NULL);
	values[9] = Int32GetDatum(line->attempt);
	nulls[9] = line->attempt == NO_ATTEMPT;
	set_text(values, nulls, 10, texts[TEXT_RESOURCE]);
	set_text(values, nulls, 11, texts[TEXT_REQUEST]);
	set_text(values, nulls, 12, texts[TEXT_APPLICATION]);
	values[13] = Int32GetDatum(line->pid);
}

/*
 * idem_stat_request_lines(): size, waiting, logged, dropped; NULL without
 * preload.
 */
Datum
idem_stat_request_lines(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[4];
	bool		nulls[4] = {false};

	if (ring == NULL)
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = Int32GetDatum((int32) n_lines);
	values[1] = Int32GetDatum((int32) pg_atomic_read_u32(&ring->taken));
	values[2] = Int64GetDatum((int64) pg_atomic_read_u64(&ring->logged));
	values[3] = Int64GetDatum((int64) pg_atomic_read_u64(&ring->dropped));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
