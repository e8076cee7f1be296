/*-------------------------------------------------------------------------
 *
 * lines.c
 *	  The packed form of a line of the request log.
 *
 * A session packs a line once, into shared memory; the worker copies it as it
 * is into a row of the table, beside as many others as fit on a page; only who
 * reads the view unpacks it.  So the work of formatting is done for the lines
 * that somebody looks at.
 *
 * The head is in the order of bytes of the machine, like every heap tuple.
 * Codes for verdict and state are those of their enums, which only grow at the
 * end.  What is unpacked is checked: a row that was made by hand must not lead
 * anybody out of it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "compat.h"
#include "requests.h"

PG_FUNCTION_INFO_V1(idem_request_lines);

/*
 * Longest texts, in bytes of the server's encoding.  Of the three that make an
 * identity nothing is cut off: no encoding needs twice the bytes of UTF-8.
 */
static const int text_max[N_LINE_TEXTS] = {
	[TEXT_OPERATION] = IDEM_TEXT_MAX * 2,
	[TEXT_KEY] = IDEM_TEXT_MAX * 2,
	[TEXT_PRINCIPAL] = IDEM_TEXT_MAX * 2,
	[TEXT_CALL] = NAMEDATALEN,
	[TEXT_RESOURCE] = 128,
	[TEXT_REQUEST] = 128,
	[TEXT_APPLICATION] = NAMEDATALEN,
};

/*
 * Set a text of so many bytes, cut if it is too long.
 */
void
line_set_text_length(Line *line, LineText which, const char *value, int length)
{
	if (length > text_max[which])
		length = pg_mbcliplen(value, length, text_max[which]);
	line->texts[which].start = value;
	line->texts[which].length = length;
}

/*
 * Set a text; NULL is as good as empty.
 */
void
line_set_text(Line *line, LineText which, const char *text)
{
	line_set_text_length(line, which, text, text ? (int) strlen(text) : 0);
}

/*
 * All texts are set: how long is it?
 */
void
line_measure(Line *line)
{
	int			length = sizeof(LineHead);

	for (int i = 0; i < N_LINE_TEXTS; i++)
		length += line->texts[i].length + 1;
	line->head.length = length;
}

/*
 * Write the packed form, of head.length bytes.
 */
void
line_write(const Line *line, char *to)
{
	memcpy(to, &line->head, sizeof(LineHead));
	to += sizeof(LineHead);
	for (int i = 0; i < N_LINE_TEXTS; i++)
	{
		memcpy(to, line->texts[i].start ? line->texts[i].start : "",
			   line->texts[i].length);
		to += line->texts[i].length;
		*to++ = '\0';
	}
}

static void
refuse_packed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("a row of the request log of extension \"idempotency\" is not of its form"),
			 errhint("Delete the row: it was changed by hand.")));
}

/*
 * Read the line at from; what follows it begins at the end that is returned.
 * Raises XX001.
 */
static const char *
line_read(const char *from, const char *end, Line *line)
{
	const char *next;

	if (end - from < (int) sizeof(LineHead))
		refuse_packed();
	memcpy(&line->head, from, sizeof(LineHead));
	if (line->head.length > end - from ||
		line->head.verdict > VERDICT_NONE || line->head.state > STATE_EXPIRED + 1)
		refuse_packed();
	next = from + line->head.length;
	from += sizeof(LineHead);
	for (int i = 0; i < N_LINE_TEXTS; i++)
	{
		const char *zero = from < next ? memchr(from, '\0', next - from) : NULL;

		if (zero == NULL)
			refuse_packed();
		line->texts[i].start = from;
		line->texts[i].length = zero - from;
		from = zero + 1;
	}
	if (from != next)
		refuse_packed();
	return next;
}

#define N_COLUMNS 14

static void
set_text(Datum *values, bool *nulls, int column, const char *text, int length)
{
	nulls[column] = length == 0;
	values[column] = length == 0 ? (Datum) 0 :
		PointerGetDatum(cstring_to_text_with_len(text, length));
}

static void
set_label(Datum *values, bool *nulls, int column, const char *label)
{
	set_text(values, nulls, column, label, label ? (int) strlen(label) : 0);
}

/*
 * Put a line into the result.
 */
static void
put_line(ReturnSetInfo *rsinfo, const Line *line)
{
	static const struct
	{
		LineText	which;
		int			column;
	}			places[N_LINE_TEXTS] = {
		{TEXT_PRINCIPAL, 2}, {TEXT_OPERATION, 3}, {TEXT_KEY, 4}, {TEXT_CALL, 5},
		{TEXT_RESOURCE, 10}, {TEXT_REQUEST, 11}, {TEXT_APPLICATION, 12}
	};
	static const pg_uuid_t no_id;
	const LineHead *head = &line->head;
	Datum		values[N_COLUMNS];
	bool		nulls[N_COLUMNS] = {false};

	values[0] = TimestampTzGetDatum(head->at);
	values[1] = UUIDPGetDatum(&head->id);
	nulls[1] = memcmp(&head->id, &no_id, sizeof(no_id)) == 0;
	for (int i = 0; i < N_LINE_TEXTS; i++)
		set_text(values, nulls, places[i].column,
				 line->texts[places[i].which].start,
				 line->texts[places[i].which].length);
	set_label(values, nulls, 6, head->verdict ?
			  answer_verdict_label(head->verdict - 1) : NULL);
	set_label(values, nulls, 7, head->state ?
			  answer_state_label(head->state - 1) : NULL);
	set_label(values, nulls, 8, head->error ?
			  unpack_sql_state(head->error) : NULL);
	values[9] = Int32GetDatum(head->attempt);
	nulls[9] = head->attempt == NO_ATTEMPT;
	values[13] = Int32GetDatum(head->pid);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * request_lines(packed): the lines of a row of the table whose time is not
 * over.  Raises XX001.
 */
Datum
idem_request_lines(PG_FUNCTION_ARGS)
{
	bytea	   *packed = PG_GETARG_BYTEA_PP(0);
	const char *from = VARDATA_ANY(packed);
	const char *end = from + VARSIZE_ANY_EXHDR(packed);
	TimestampTz oldest = GetCurrentTimestamp() -
	(int64) guc_request_log_retention * USECS_PER_MINUTE;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency line",
												  ALLOCSET_SMALL_SIZES);

	InitMaterializedSRF(fcinfo, 0);
	while (from < end)
	{
		MemoryContext caller = MemoryContextSwitchTo(context);
		Line		line;

		from = line_read(from, end, &line);
		if (line.head.at >= oldest)
			put_line((ReturnSetInfo *) fcinfo->resultinfo, &line);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	return (Datum) 0;
}
