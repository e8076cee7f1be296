/*-------------------------------------------------------------------------
 *
 * emit.c
 *	  idem_emit: an event into the outbox, in the caller's transaction.
 *
 * Without a claim an event is simply a new one.  With a claim it is the next
 * event of an operation, and emitting it again must find it, not add another:
 *
 * - a replay returns the id and touches nothing;
 * - a later attempt, after one that died when it had committed some of its
 *	 events, finds those by their ids.  It adopts them: they are its own from
 *	 then on, delivered or not.  One that goes to another destination or under
 *	 another ordering key is not what is being emitted now; it is adopted too,
 *	 and passed by, so that neither is lost;
 * - of two transactions that emit the same ordinal at once, the later waits for
 *	 the end of the first, then finds the event there or not.  That is so too
 *	 for a stale owner's transaction that began before its lease was over: it
 *	 can add no second event to the new owner's.
 *
 * Whose claim it is is judged when the event is emitted.  A transaction that
 * also finishes the claim is judged there once more, and its events go with it.
 *
 * An event's row, then the one that says it is due.  Both are written past the
 * executor (rows.c) and nothing is read through a snapshot, so emitting makes
 * no transaction fail that would not have.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "compat.h"
#include "outbox.h"

PG_FUNCTION_INFO_V1(idem_emit);

typedef struct Emission
{
	Event		event;
	const char *destination;
	int64		delay;
	bool		has_origin;
	Origin		origin;
} Emission;

/*
 * The claim is not one under which events can be emitted.
 */
static void
refuse_not_yours(const Call *call)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_YOURS),
			 errmsg("cannot emit: the claim of operation \"%s\" (id %s) is no longer yours",
					call->who.operation, id_text(&call->who.id)),
			 errhint("Its lease is over, another owner has it, or its outcome is recorded. Roll back and ask idem_status().")));
}

/*
 * The claim has no permit in this transaction: it is leased, or was finished
 * here.  Raises ID001, ID002.
 */
static TimestampTz
check_record(const Call *call, int64 fence)
{
	Store		store;
	Record		rec;
	ProbeResult found;

	store_open(&store, false);
	found = store_probe(&store, &call->who, &rec);
	store_close(&store);
	if (found != PROBE_ROW)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_NO_CLAIM),
				 errmsg("cannot emit: there is no open claim of operation \"%s\" (id %s)",
						call->who.operation, id_text(&call->who.id)),
				 errhint("The claim was rolled back or released, or never committed. Claim again with the same key.")));
	if (rec.fence != fence ||
		(rec.state != RECORD_PROCESSING &&
		 (!TransactionIdIsCurrentTransactionId(rec.xmin) ||
		  rec.state == RECORD_RELEASED)))
		refuse_not_yours(call);
	return rec.claimed_at;
}

/*
 * Which attempt of which operation emits.  Raises 22023, 42501, ID001, ID002.
 */
static void
read_origin(FunctionCallInfo fcinfo, int argno, Origin *origin)
{
	Handed		handed;
	Call		call;
	Permit	   *permit;

	answer_read(fcinfo, argno, &handed);
	call_begin(&call, fcinfo, BIND_UNLESS_WORKER, handed.operation, handed.key,
			   handed.principal);
	if ((handed.verdict != VERDICT_EXECUTE || !handed.has_fence) &&
		(handed.verdict != VERDICT_REPLAY || !handed.has_claimed_at))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot emit for operation \"%s\" (id %s): the answer is no permit",
						call.who.operation, id_text(&call.who.id)),
				 errhint("Only an answer with verdict execute or replay is one.")));
	if (!handed.has_id || memcmp(&handed.id, &call.who.id, sizeof(handed.id)) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot emit for operation \"%s\" (id %s): the answer has another id",
						call.who.operation, id_text(&call.who.id)),
				 errhint("Hand over the answer of idem_claim() as it came.")));

	origin->operation_id = call.who.id;
	origin->claimed_at = handed.claimed_at;
	if (handed.verdict == VERDICT_REPLAY)
		return;
	origin->fence = handed.fence;
	permit = permit_find(&call.who.id);
	if (permit == NULL || permit->settled_level != 0)
		origin->claimed_at = check_record(&call, handed.fence);
	else if (permit->rec.fence != handed.fence)
		refuse_not_yours(&call);
	else
	{
		origin->claimed_at = permit->rec.claimed_at;
		origin->fresh = permit->prior != PRIOR_RECORD;
	}
}

/*
 * Take the arguments.  Raises 22023.
 */
static void
read_arguments(FunctionCallInfo fcinfo, Emission *emission)
{
	Event	   *event = &emission->event;

	memset(emission, 0, sizeof(*emission));
	emission->destination = destination_called(ARG_TEXT(0));
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload of an event for destination \"%s\" must not be null",
						emission->destination),
				 errhint("Pass JSON null ('null'::jsonb) for an event without a payload.")));
	event->destination = PG_GETARG_TEXT_PP(0);
	event->payload = PG_GETARG_DATUM(1);
	if (!PG_ARGISNULL(2))
	{
		event->ordering_key = PG_GETARG_TEXT_PP(2);
		identity_check_text(text_to_cstring(event->ordering_key), "ordering_key");
	}
	if (!PG_ARGISNULL(4))
	{
		event->headers = PG_GETARG_DATUM(4);
		if (!JB_ROOT_IS_OBJECT(DatumGetJsonbP(event->headers)))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("headers of an event for destination \"%s\" must be an object",
							emission->destination),
					 errhint("For example '{\"type\": \"OrderPlaced\"}'.")));
	}
	if (!PG_ARGISNULL(5))
		emission->delay = interval_microseconds_of(PG_GETARG_INTERVAL_P(5), "delay",
												   "function", "idem_emit");
}

static bool
same_text(const text *a, const text *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/*
 * There is an event of that id.  True if it is the one being emitted, and now
 * this attempt's.
 */
static bool
adopt(const Emission *emission, const Event *found)
{
	const Origin *origin = &emission->origin;

	if (found->fence == origin->fence || events_adopted(&found->id, origin->fence))
		return false;
	events_adopt(&found->id, origin->fence);
	return same_text(found->destination, emission->event.destination) &&
		same_text(found->ordering_key, emission->event.ordering_key);
}

/*
 * Emit the next event of an operation, or find it emitted.
 */
static void
emit_of_operation(Emission *emission, Events *events)
{
	Origin	   *origin = &emission->origin;
	Event	   *event = &emission->event;
	bool		done = false;

	event->has_operation = true;
	event->operation_id = origin->operation_id;
	event->fence = origin->fence;
	while (!done)
	{
		ProbeResult result = PROBE_NOTHING;
		Event		found;

		CHECK_FOR_INTERRUPTS();
		ordinals_id(origin, ordinals_next(origin, events), &event->id);
		if (!origin->fresh)
			result = events_find(events, &event->id, &found);
		if (result != PROBE_NOTHING && TransactionIdIsValid(found.changer))
		{
			events_wait(events, &found);
			continue;
		}
		if (result == PROBE_ROW)
			done = adopt(emission, &found);
		else if (events_insert(events, event))
		{
			due_enqueue(&emission->event, emission->delay);
			frontier_wake_at_commit(emission->destination);
			done = true;
		}
		else
		{
			/* somebody has it: look whose it is */
			origin->fresh = false;
			continue;
		}
		ordinals_used(origin);
	}
}

/*
 * Emit an event that is nobody's but the caller's.
 */
static void
emit_alone(Emission *emission, Events *events)
{
	identity_new(&emission->event.id);
	if (!events_insert(events, &emission->event))
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("there is an event %s already", id_text(&emission->event.id))));
	due_enqueue(&emission->event, emission->delay);
	frontier_wake_at_commit(emission->destination);
}

/*
 * idem_emit(destination, payload, ordering_key, claim, headers, delay)
 */
Datum
idem_emit(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));
	Emission	emission;
	Events		events;

	read_arguments(fcinfo, &emission);
	emission.has_origin = !PG_ARGISNULL(3);
	if (emission.has_origin)
		read_origin(fcinfo, 3, &emission.origin);
	if (emission.has_origin && emission.origin.fence == 0)
	{
		ordinals_id(&emission.origin, ordinals_next(&emission.origin, NULL), id);
		ordinals_used(&emission.origin);
		PG_RETURN_UUID_P(id);
	}

	refuse_unless_writable("idem_emit()");
	emission.event.created_at = GetCurrentTimestamp();
	events_open(&events, true);
	if (emission.has_origin)
		emit_of_operation(&emission, &events);
	else
		emit_alone(&emission, &events);
	events_close(&events);
	*id = emission.event.id;
	PG_RETURN_UUID_P(id);
}
