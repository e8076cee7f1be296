/*
 * emit.c
 *	  idem_emit: an event into the outbox, in the caller's transaction.
 *
 * README.md tells how an event of a claim is found when it is emitted again.
 *
 * Event and queue entry are written past the executor (rows.c) and nothing is
 * read through a snapshot, so emitting makes no transaction fail that would not
 * have.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"

#include "guc.h"
#include "outbox/outbox.h"

typedef struct Emission
{
	OutboxEvent event;
	const Destination *settings;
	const char *ordering_key;	/* NULL = none */
	const char *step;
	int64		delay;

	/* of its claim, if event.has_operation */
	TimestampTz claimed_at;		/* first; with the id: one life of the record */
	bool		replay;
	bool		fresh;			/* nothing was emitted before this transaction */
} Emission;

/* Reads the record of a claim that is not open in this transaction.  Raises ID001. */
static void
read_record(const Call *call, Record *rec)
{
	Store		store;
	ProbeResult found;

	store_open(&store, false);
	found = store_probe(&store, &call->who, rec);
	store_close(&store);
	if (found != PROBE_ROW)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NO_CLAIM),
				 errmsg("cannot emit: there is no open claim of operation \"%s\" (id %s)",
						call->who.operation, identity_text(&call->who.id)),
				 errhint("The claim was rolled back or released, or never committed. Claim again with the same key.")));
}

/* Reads which attempt of which operation emits.  Raises 22023, 42501, ID001, ID002. */
static void
read_claim(FunctionCallInfo fcinfo, int argno, Emission *emission)
{
	DecodedAnswer decoded;
	Call		call;
	OpenClaim  *open;
	Record		rec;

	claim_handle(fcinfo, argno, "emit for", true, &call, &decoded);
	emission->event.operation_id = call.who.id;
	emission->replay = decoded.verdict == VERDICT_REPLAY;
	open = emission->replay ? NULL : open_claim_find(&call.who.id);

	/* a replay needs the time of the claim: it was told a rounded one */
	if (open)
		rec = open->rec;
	else
		read_record(&call, &rec);
	/* leased, or finished in this transaction, it must still be its owner's */
	if (!emission->replay &&
		(rec.fence != decoded.fence ||
		 (open == NULL && rec.state != RECORD_PROCESSING &&
		  (!TransactionIdIsCurrentTransactionId(rec.xmin) || rec.state == RECORD_RELEASED))))
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NOT_YOURS),
				 errmsg("cannot emit: the claim of operation \"%s\" (id %s) is no longer yours",
						call.who.operation, identity_text(&call.who.id)),
				 errhint("Its lease is over, another owner has it, or its outcome is recorded, as by a reconciler. Roll back and claim again with the same key: the answer says what is known.")));
	emission->claimed_at = rec.claimed_at;
	emission->fresh = open && open->prior != PRIOR_RECORD;
}

/* Refuses an event that is larger, or held back for longer, than its destination allows. */
static void
refuse_beyond_limits(const Emission *emission)
{
	const Destination *settings = emission->settings;
	int64		limit = Min(settings->max_event_bytes, MAX_EVENT_TEXT);

	if (event_exceeds(&emission->event, limit))
		REFUSE_ARGUMENT(errmsg("payload or headers of an event for destination \"%s\" are larger than " INT64_FORMAT " bytes of text",
							   emission->settings->name, limit),
						errhint("Send a reference to what is large, or raise max_event_bytes of the destination."));
	if (settings->deadline != NO_LIMIT && emission->delay > settings->deadline)
		REFUSE_ARGUMENT(errmsg("delay of an event for destination \"%s\" is longer than its deadline",
							   emission->settings->name),
						errhint("The setting deadline of the destination is how long an event may take at most."));
}

/* Returns whether a text is a traceparent: version, trace, parent, flags, and maybe more. */
static bool
is_traceparent(const char *value)
{
	static const int digits[] = {2, 32, 16, 2};

	for (int i = 0; i < lengthof(digits); i++, value++)
	{
		if (strspn(value, "0123456789abcdef") != digits[i])
			return false;
		value += digits[i];
		if (*value != '-')
			return *value == '\0' && i == lengthof(digits) - 1;
	}
	return true;
}

/* Adds the trace context of the session, if well-formed, to headers without one. */
static void
add_trace_context(OutboxEvent *event)
{
	const char *value = guc_trace_context[0] ? guc_trace_context :
	request_header("\"traceparent\"");
	Jsonb	   *headers;

	if (value == NULL || !is_traceparent(value))
		return;
	headers = json_pair("traceparent", value);
	if (event->headers != (Datum) 0)
		headers = json_concatenate(headers, DatumGetJsonbP(event->headers));
	event->headers = JsonbPGetDatum(headers);
}

/* Reads the arguments.  Raises 22023, 42501. */
static void
read_arguments(FunctionCallInfo fcinfo, Emission *emission)
{
	OutboxEvent *event = &emission->event;

	memset(emission, 0, sizeof(*emission));
	emission->settings = destination_get(destination_called(ARG_TEXT(0)));
	destination_check_role(emission->settings);
	if (PG_ARGISNULL(1))
		REFUSE_ARGUMENT(errmsg("payload of an event for destination \"%s\" must not be null",
							   emission->settings->name),
						errhint("Pass JSON null ('null'::jsonb) for an event without a payload."));
	event->destination = PG_GETARG_TEXT_PP(0);
	event->payload = PG_GETARG_DATUM(1);
	if (!PG_ARGISNULL(2))
	{
		event->ordering_key = PG_GETARG_TEXT_PP(2);
		emission->ordering_key = text_to_cstring(event->ordering_key);
		identity_check_text(emission->ordering_key, "ordering_key");
	}
	if (!PG_ARGISNULL(4))
	{
		event->headers = PG_GETARG_DATUM(4);
		if (!JB_ROOT_IS_OBJECT(DatumGetJsonbP(event->headers)))
			REFUSE_ARGUMENT(errmsg("headers of an event for destination \"%s\" must be an object",
								   emission->settings->name),
							errhint("For example '{\"type\": \"OrderPlaced\"}'."));
	}
	if (!PG_ARGISNULL(5))
		emission->delay = setting_microseconds(PG_GETARG_INTERVAL_P(5), "delay",
											   "function", "idem_emit", NULL);
	refuse_beyond_limits(emission);
	add_trace_context(event);
	event->has_operation = !PG_ARGISNULL(3);
	emission->step = PG_ARGISNULL(6) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(6));
	if (emission->step[0] != '\0' && !event->has_operation)
		REFUSE_ARGUMENT(errmsg("an event for destination \"%s\" has a step but no claim",
							   emission->settings->name),
						errhint("A step tells events of one claim apart. Pass the answer of idem_claim() as claim."));
}

/* Inserts and queues the event.  Returns false if there is one of its id. */
static bool
insert_event(Emission *emission, OutboxEvents *events)
{
	if (!events_insert(events, &emission->event))
		return false;
	if (!emission->settings->relay_from_log)
		queue_add(&emission->event, emission->delay);
	return true;
}

/* Emits an event of an operation, or finds it emitted.  Raises 22023. */
static void
emit_of_operation(Emission *emission, OutboxEvents *events)
{
	bool		fresh = emission->fresh;

	for (;;)
	{
		OutboxEvent found;

		CHECK_FOR_INTERRUPTS();
		if (fresh || events_find(events, &emission->event.id, &found) == PROBE_NOTHING)
		{
			if (insert_event(emission, events))
				return;
			fresh = false;
		}
		else if (TransactionIdIsValid(found.changer))
			XactLockTableWait(found.changer, NULL, NULL, XLTW_None);
		else if (found.ours)
			REFUSE_ARGUMENT(errmsg("event %s of operation %s for destination \"%s\" is emitted twice in this transaction",
								   identity_text(&emission->event.id),
								   identity_text(&emission->event.operation_id), emission->settings->name),
							errhint("Name the step: pass another step for each event of a claim with the same destination and ordering key."));
		else if (rows_lock(events->rel, &found.tid, true) == ROW_CHANGED)
			return;
	}
}

/* idem_emit(destination, payload, ordering_key, claim, headers, delay, step) */
SQL_FUNCTION(idem_emit)
{
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));
	Emission	emission;
	OutboxEvent *event = &emission.event;
	OutboxEvents events;

	read_arguments(fcinfo, &emission);
	if (event->has_operation)
	{
		read_claim(fcinfo, 3, &emission);
		identity_of_event(&event->operation_id, emission.claimed_at,
						  emission.settings->name, emission.ordering_key,
						  emission.step, &event->id);
	}
	else
		identity_new(&event->id);

	if (!emission.replay)
	{
		call_require_writable("idem_emit()");
		event->created_at = GetCurrentTimestamp();
		events_open(&events, true);
		if (event->has_operation)
			emit_of_operation(&emission, &events);
		else if (!insert_event(&emission, &events))
			ereport(ERROR,
					(errcode(ERRCODE_UNIQUE_VIOLATION),
					 errmsg("there is an event %s already", identity_text(&event->id)),
					 errhint("Its row was inserted by hand. Emit again: each event gets a new id.")));
		events_close(&events);
	}
	*id = event->id;
	PG_RETURN_UUID_P(id);
}
