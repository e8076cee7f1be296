/*
 * request_log.c
 *	  One line of the server's log for each request of an operation whose
 *	  setting log_requests is on.
 *
 * A SQL function that is a request is defined with REQUEST_FUNCTION and runs
 * inside request_serve(), which writes the line when the function ends: with
 * the answer, or with the SQLSTATE of the error it ends with, wherever that is
 * raised.  On the way the function reports the key as far as it is known
 * (request_about) and the answer (request_answered).
 *
 * Whether a line is written depends on the operation's settings, so these are
 * looked up before anything else about a request is checked.  While an error is
 * handled nothing can be looked up: what the line needs is copied here before.
 *
 * A function that works on many keys writes a line for each key it answers,
 * and one if it raises.  A function called by idem_run makes requests of its
 * own, inside: each remembers the one around it.
 *
 * The line goes to the server's log only, never to the client, and holds
 * neither params nor results nor the texts of errors.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/datetime.h"
#include "utils/guc.h"
#include "utils/json.h"

#include "guc.h"
#include "settings/settings.h"

/* Longest text that a client or a stored value chooses, in bytes. */
#define TEXT_MAX 128

#define JSON_SPACE " \t\r\n"

/* The request in hand.  Its texts live as long as the call's memory. */
typedef struct Request
{
	struct Request *outer;		/* called the function that made this one */
	const char *call;
	bool		wanted;			/* the operation's log is on */
	Identity	who;			/* if wanted; as far as it is known */
	bool		answered;

	/* if answered; NULL for what does not apply */
	const char *verdict;
	const char *state;
	int32		attempt;		/* negative = none */
	const char *resource;		/* by setting resource_pointer */
	const char *error_class;	/* by setting error_pointer */
} Request;

static Request *in_hand = NULL;

/* Appends a member, cut to max bytes; nothing for NULL or an empty text. */
static void
append_text(StringInfo line, const char *name, const char *value, int max)
{
	int			length = value ? (int) strlen(value) : 0;

	if (length == 0)
		return;
	if (length > max)
		value = pnstrdup(value, pg_mbcliplen(value, length, max));
	appendStringInfo(line, ", \"%s\": ", name);
	escape_json(line, value);
}

/*
 * Returns the value of a header, its name given in quotation marks, in PostgREST's
 * request.headers, which should be an object of strings; NULL if there is none.
 * It is searched, not parsed, because this must not fail.
 */
const char *
request_header(const char *name)
{
	const char *at = GetConfigOption("request.headers", true, false);

	while (at && (at = strstr(at, name)) != NULL)
	{
		at += strlen(name);
		at += strspn(at, JSON_SPACE);
		if (*at != ':')
			continue;			/* it was a value */
		at++;
		at += strspn(at, JSON_SPACE);
		return *at == '"' ? pnstrdup(at + 1, strcspn(at + 1, "\"\\")) : NULL;
	}
	return NULL;
}

/* Writes the line of a request: refused with that SQLSTATE, or 0 = answered. */
static void
write_line(const Request *request, int sqlstate)
{
	static const pg_uuid_t no_id;
	const Identity *who = &request->who;
	char		at[MAXDATELEN + 1];
	StringInfoData line;

	initStringInfo(&line);
	JsonEncodeDateTime(at, TimestampTzGetDatum(GetCurrentTimestamp()), TIMESTAMPTZOID, NULL);
	appendStringInfo(&line, "{\"at\": \"%s\"", at);
	if (memcmp(&who->id, &no_id, sizeof(no_id)) != 0)
		append_text(&line, "id", identity_text(&who->id), TEXT_MAX);
	append_text(&line, "principal", who->principal, IDEM_TEXT_MAX * 2);
	append_text(&line, "operation", who->operation, IDEM_TEXT_MAX * 2);
	append_text(&line, "key", who->key, IDEM_TEXT_MAX * 2);
	append_text(&line, "call", request->call, TEXT_MAX);
	if (sqlstate != 0)
		append_text(&line, "error", unpack_sql_state(sqlstate), TEXT_MAX);
	else
	{
		append_text(&line, "verdict", request->verdict, TEXT_MAX);
		append_text(&line, "state", request->state, TEXT_MAX);
		if (request->attempt >= 0)
			appendStringInfo(&line, ", \"attempt\": %d", request->attempt);
		append_text(&line, "resource", request->resource, TEXT_MAX);
		append_text(&line, "error_class", request->error_class, TEXT_MAX);
	}
	append_text(&line, "request", guc_request_id[0] ? guc_request_id : request_header("\"x-request-id\""),
				TEXT_MAX);
	append_text(&line, "application_name", application_name, TEXT_MAX);
	appendStringInfo(&line, ", \"pid\": %d}", MyProcPid);
	ereport(LOG_SERVER_ONLY,
			(errmsg_internal("idempotency request: %s", line.data),
			 errhidestmt(true), errhidecontext(true)));
	pfree(line.data);
}

/* Runs the body of a request; call is its name in the log. */
Datum
request_serve(FunctionCallInfo fcinfo, const char *call, PGFunction body)
{
	Request		request = {.outer = in_hand,.call = call};
	Datum		result;

	in_hand = &request;
	PG_TRY();
	{
		result = body(fcinfo);
	}
	PG_CATCH();
	{
		in_hand = request.outer;
		if (request.wanted)
			write_line(&request, geterrcode());
		PG_RE_THROW();
	}
	PG_END_TRY();
	in_hand = request.outer;
	if (request.wanted && request.answered)
		write_line(&request, 0);
	return result;
}

/* Returns what the request in hand is called, which says what it is to do. */
const char *
request_verb(void)
{
	return in_hand ? in_hand->call : NULL;
}

/* The request is about that key; while members are NULL and the id zero, the operation. */
void
request_about(const Call *call)
{
	if (in_hand == NULL)
		return;
	in_hand->wanted = call->policy->log_requests;
	in_hand->answered = false;
	if (in_hand->wanted)
		in_hand->who = call->who;
}

static const char *
text_at(const char *pointer, Datum value)
{
	return pointer && value != (Datum) 0 ? pointer_text(pointer, DatumGetJsonbP(value)) : NULL;
}

/* Takes the answer, with verdict NULL for that of an earlier one. */
void
request_answered(const Call *call, const char *verdict, const char *state, int32 attempt,
				 Datum result, Datum error)
{
	if (in_hand == NULL || !in_hand->wanted)
		return;
	if (verdict || !in_hand->answered)
		in_hand->verdict = verdict;
	in_hand->who = call->who;
	in_hand->state = state;
	in_hand->attempt = attempt;
	in_hand->resource = text_at(call->policy->resource_pointer, result);
	in_hand->error_class = text_at(call->policy->error_pointer, error);
	in_hand->answered = true;
}

/* A function on many keys turns to the next, its last answer logged or dropped. */
void
request_next(bool logged)
{
	if (in_hand == NULL || !in_hand->wanted)
		return;
	if (logged && in_hand->answered)
		write_line(in_hand, 0);
	in_hand->answered = false;
	in_hand->who.key = in_hand->who.principal = NULL;
	memset(&in_hand->who.id, 0, sizeof(in_hand->who.id));
}
