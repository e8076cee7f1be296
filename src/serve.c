/*-------------------------------------------------------------------------
 *
 * serve.c
 *	  A request, from its call to its one line in the log.
 *
 * Every SQL function that is a request runs inside request_serve(), which
 * writes the line when the function ends: with what was answered, or with the
 * SQLSTATE of the error it ends with.  So nothing that can be raised on the way
 * goes unlogged, and nothing is logged twice, however many rooms a request
 * passes through.  On its way it says here whose key it is about, as soon as it
 * knows (request_about), and what the answer is (request_answered).
 *
 * Whether there is a line to write is the operation's setting log_requests; so
 * the policy is looked up before anything else about a request is judged.
 * While an error is being handled nothing can be looked up any more: what the
 * line needs was copied here before.
 *
 * Functions that work for many keys write a line for each that is answered,
 * and one if they raise.
 *
 * A function that idem_run calls makes requests of its own, inside: each
 * remembers the one around it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/guc.h"

#include "compat.h"
#include "requests.h"

#define JSON_SPACE " \t\r\n"

/* The request in hand.  Its texts live as long as the call's memory. */
typedef struct Request
{
	struct Request *outer;		/* that called a function which made this one */
	const char *what;
	bool		wanted;			/* the operation's log is on */
	Identity	who;			/* if wanted; as far as it is known */
	bool		answered;		/* then there are the members below */
	Verdict		verdict;
	State		state;
	int32		attempt;
	const char *resource;
} Request;

static Request *in_hand = NULL;

/*
 * PostgREST's headers; NULL if the session has none.
 */
static const char *
request_headers(void)
{
	static int	known_settings = 0;
	static bool missing = false;
	const char *headers;

	if (!compat_settings_grew(&known_settings) && missing)
		return NULL;
	headers = GetConfigOption("request.headers", true, false);
	missing = headers == NULL;
	return headers;
}

/*
 * Where the value of the header x-request-id begins; NULL if there is none that
 * is a string.
 */
static const char *
request_id_header(const char *headers)
{
	static const char name[] = "\"x-request-id\"";
	const char *at = headers;

	while (at && (at = strstr(at, name)) != NULL)
	{
		at += strlen(name);
		at += strspn(at, JSON_SPACE);
		if (*at != ':')
			continue;			/* it was a value */
		at++;
		at += strspn(at, JSON_SPACE);
		return *at == '"' ? at + 1 : NULL;
	}
	return NULL;
}

/*
 * The request's id: as the session says, else from the headers, a JSON object
 * of strings: good enough a look for a log, and it cannot fail.
 */
static void
set_request_id(Line *line)
{
	const char *value;

	if (guc_request_id[0])
	{
		line_set_text(line, TEXT_REQUEST, guc_request_id);
		return;
	}
	value = request_id_header(request_headers());
	line_set_text_length(line, TEXT_REQUEST, value,
						 value ? (int) strcspn(value, "\"\\") : 0);
}

/*
 * Write the line of a request: refused with that SQLSTATE, or 0 = answered.
 * Raises nothing and looks nothing up.
 */
static void
write_line(const Request *request, int error)
{
	Line		line;
	bool		answered = error == 0;

	line.head.at = GetCurrentTimestamp();
	line.head.id = request->who.id;
	line.head.pid = MyProcPid;
	line.head.attempt = answered ? request->attempt : NO_ATTEMPT;
	line.head.error = error;
	line.head.verdict = answered && request->verdict != VERDICT_NONE ?
		request->verdict + 1 : 0;
	line.head.state = answered ? request->state + 1 : 0;
	line_set_text(&line, TEXT_OPERATION, request->who.operation);
	line_set_text(&line, TEXT_KEY, request->who.key);
	line_set_text(&line, TEXT_PRINCIPAL, request->who.principal);
	line_set_text(&line, TEXT_CALL, request->what);
	line_set_text(&line, TEXT_RESOURCE, answered ? request->resource : NULL);
	set_request_id(&line);
	line_set_text(&line, TEXT_APPLICATION, application_name);
	requests_put(&line);
}

/*
 * Run a SQL function that is a request; what is its name in the log.
 */
Datum
request_serve(FunctionCallInfo fcinfo, const char *what, PGFunction body)
{
	Request		request;
	Datum		result;

	if (!requests_available())
		return body(fcinfo);
	request.outer = in_hand;
	request.what = what;
	request.wanted = request.answered = false;
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

/*
 * The request is about that key; or, as long as members are NULL and the id
 * zero, about something of the operation.  The policy must be known.
 */
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

/*
 * That is the answer, unless another comes after it: a verdict stands until
 * there is another.  answer may lack what does not apply.
 */
void
request_answered(const Call *call, const Answer *answer)
{
	const char *pointer = call->policy->resource_pointer;

	if (in_hand == NULL || !in_hand->wanted)
		return;
	in_hand->who = call->who;
	if (!in_hand->answered || answer->verdict != VERDICT_NONE)
		in_hand->verdict = answer->verdict;
	in_hand->state = answer->state;
	in_hand->attempt = answer->attempt;
	in_hand->resource = pointer && answer->result != (Datum) 0 ?
		pointer_text(pointer, DatumGetJsonbP(answer->result)) : NULL;
	in_hand->answered = true;
}

/*
 * A function for many keys turns to the next.  The last one's answer is worth
 * a line, or it was of no interest.
 */
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
