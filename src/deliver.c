/*-------------------------------------------------------------------------
 *
 * deliver.c
 *	  idem_ack, idem_nack: what came of an event that was taken; idem_redeliver
 *	  and idem_discard: what an operator makes of it.
 *
 * An event is its taker's as long as the row has his fence and the lease runs.
 * Afterwards it is due again, and whatever he says is refused (ID002), whether
 * or not another one has it by then: he cannot know, so he must not rely on it.
 * Sessions that say something of one event meet as in finish.c: each decides
 * on a version it has read and changes that very version, waiting for whoever
 * is changing it, and looks again if it was changed.
 *
 * An event that is acknowledged leaves the queue, and with it goes the memory
 * of its fence: a second ack is refused like one that is too late.  Either way
 * there is nothing left to do.
 *
 * Redelivery and purge lock the event's row first: see events.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "compat.h"
#include "outbox.h"

PG_FUNCTION_INFO_V1(idem_ack);
PG_FUNCTION_INFO_V1(idem_ack_many);
PG_FUNCTION_INFO_V1(idem_discard);
PG_FUNCTION_INFO_V1(idem_nack);
PG_FUNCTION_INFO_V1(idem_redeliver);

/* As text, and as stored. */
#define MAX_ERROR_BYTES (1024 * 1024)

/* Whose event it is said to be. */
typedef struct Hold
{
	pg_uuid_t	event_id;
	int64		fence;
} Hold;

static void
refuse_not_yours(const char *verb, const Hold *hold)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_YOURS),
			 errmsg("cannot %s event %s: it is no longer yours", verb,
					id_text(&hold->event_id)),
			 errhint("It was acknowledged already, or its lease is over and it is delivered again. There is nothing left to do.")));
}

/*
 * Is the row in the hands of who says so?
 */
static bool
is_held(const Due *due, const Hold *hold)
{
	return due->fence == hold->fence && due->state == DUE_WAITING &&
		due_is_leased(due, GetCurrentTimestamp());
}

/*
 * Event id and fence, arguments 0 and 1.  Raises 22023.
 */
static void
read_hold(FunctionCallInfo fcinfo, const char *function, Hold *hold)
{
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("event_id and fence of %s must not be null", function),
				 errhint("Hand over both as idem_take() gave them.")));
	hold->event_id = *PG_GETARG_UUID_P(0);
	hold->fence = PG_GETARG_INT64(1);
}

/*
 * Report to the discipline of the destination what came of an event; leased is
 * its row as it was found.
 */
static void
report(const Destination *settings, const Due *leased, bool succeeded)
{
	if (TransactionIdIsCurrentTransactionId(leased->xmin))
		taken_report(settings->name);
	discipline_report(settings, succeeded ? 1 : 0, succeeded ? 0 : 1,
					  leased->lease_until - GetCurrentTimestamp());
}

/*----
 * Delivered.
 *----
 */

/*
 * Acknowledge one event.  False if it is not held.
 */
static bool
ack(DueTable *table, const Hold *hold)
{
	const Destination *settings;
	Due			due;

	do
	{
		CHECK_FOR_INTERRUPTS();
		if (!due_find(table, &hold->event_id, &due) || !is_held(&due, hold))
			return false;
	} while (due_delete(table, &due) != ROW_CHANGED);
	settings = destination_get(text_to_cstring(due.destination));
	due_release_next(table, &due, settings->skip_dead_head);
	report(settings, &due, true);
	return true;
}

/*
 * idem_ack(event_id, fence)
 */
Datum
idem_ack(PG_FUNCTION_ARGS)
{
	DueTable	table;
	Hold		hold;
	bool		done;

	read_hold(fcinfo, "idem_ack", &hold);
	refuse_unless_writable("idem_ack()");
	due_open(&table, true);
	done = ack(&table, &hold);
	due_close(&table);
	if (!done)
		refuse_not_yours("acknowledge", &hold);
	PG_RETURN_VOID();
}

static int
compare_holds(const void *a, const void *b)
{
	return memcmp(&((const Hold *) a)->event_id, &((const Hold *) b)->event_id, UUID_LEN);
}

/*
 * The arrays of idem_ack_many, in the order of the ids, so that two sessions
 * that acknowledge the same events cannot wait for each other in a circle.
 * Raises 22023.
 */
static Hold *
read_holds(FunctionCallInfo fcinfo, int *n)
{
	Datum	   *ids;
	Datum	   *fences;
	bool	   *no_id;
	bool	   *no_fence;
	int			n_fences = -1;
	Hold	   *holds;

	*n = 0;
	if (!PG_ARGISNULL(0) && !PG_ARGISNULL(1))
	{
		deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), UUIDOID, UUID_LEN, false,
						  TYPALIGN_CHAR, &ids, &no_id, n);
		deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), INT8OID, sizeof(int64),
						  FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &fences, &no_fence, &n_fences);
	}
	holds = palloc(Max(*n, 1) * sizeof(Hold));
	for (int i = 0; i < *n && *n == n_fences; i++)
	{
		if (no_id[i] || no_fence[i])
			n_fences = -1;
		else
		{
			holds[i].event_id = *DatumGetUUIDP(ids[i]);
			holds[i].fence = DatumGetInt64(fences[i]);
		}
	}
	if (*n != n_fences)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("idem_ack_many needs as many fences as event_ids, none of them null"),
				 errhint("Hand over both as idem_take() gave them.")));
	qsort(holds, *n, sizeof(Hold), compare_holds);
	return holds;
}

/*
 * idem_ack_many(event_ids, fences)
 */
Datum
idem_ack_many(PG_FUNCTION_ARGS)
{
	int32		acknowledged = 0;
	DueTable	table;
	Hold	   *holds;
	int			n;

	holds = read_holds(fcinfo, &n);
	refuse_unless_writable("idem_ack_many()");
	due_open(&table, true);
	for (int i = 0; i < n; i++)
	{
		if (ack(&table, &holds[i]))
			acknowledged++;
	}
	due_close(&table);
	PG_RETURN_INT32(acknowledged);
}

/*----
 * Not delivered.
 *----
 */

typedef struct Refusal
{
	Hold		hold;
	bool		retryable;
	int64		retry_after;	/* 0 = not given */
	Datum		error;
} Refusal;

/*
 * Why an event that was refused is not tried again; NULL if it is, after
 * *delay.
 */
static const char *
judge(const Refusal *refusal, const Due *due, const Destination *settings,
	  int64 *delay)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz again;

	if (!refusal->retryable)
		return DEAD_REFUSED;
	if (retry_again(settings, due->attempt, due->first_at, refusal->retry_after, now,
					&again))
	{
		*delay = again - now;
		return NULL;
	}
	return settings->max_attempts != NO_LIMIT && due->attempt >= settings->max_attempts ?
		DEAD_ATTEMPTS : DEAD_DEADLINE;
}

/*
 * Give one event back.  False if it is not held.
 */
static bool
nack(DueTable *table, const Refusal *refusal)
{
	const Destination *settings;
	const char *reason;
	int64		delay;
	Due			leased;
	Due			due;

	do
	{
		CHECK_FOR_INTERRUPTS();
		if (!due_find(table, &refusal->hold.event_id, &due) ||
			!is_held(&due, &refusal->hold))
			return false;
	} while (due_lock(table, &due, true) != ROW_CHANGED);
	settings = destination_get(text_to_cstring(due.destination));
	leased = due;
	due.error = refusal->error;
	due.lease_until = NEVER;
	reason = judge(refusal, &due, settings, &delay);
	if (reason)
	{
		due_bury(table, &due, reason);
		due_release_next(table, &due, settings->skip_dead_head);
	}
	else
	{
		due_move(table, &due, delay);
		frontier_wake_at_commit(settings->name);
	}

	/* who says that the event is at fault does work */
	report(settings, &leased, !refusal->retryable);
	return true;
}

/*
 * idem_nack(event_id, fence, error, retryable, retry_after)
 */
Datum
idem_nack(PG_FUNCTION_ARGS)
{
	Refusal		refusal = {.retryable = PG_ARGISNULL(3) || PG_GETARG_BOOL(3)};
	DueTable	table;
	bool		done;

	read_hold(fcinfo, "idem_nack", &refusal.hold);
	if (!PG_ARGISNULL(2))
	{
		refusal.error = PG_GETARG_DATUM(2);
		if (json_exceeds(PG_GETARG_JSONB_P(2), MAX_ERROR_BYTES))
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_RESULT_TOO_LARGE),
					 errmsg("the error of event %s is larger than %d bytes",
							id_text(&refusal.hold.event_id), MAX_ERROR_BYTES),
					 errhint("Nothing has changed. Hand over a shorter one.")));
	}
	if (!PG_ARGISNULL(4))
		refusal.retry_after = interval_microseconds_of(PG_GETARG_INTERVAL_P(4),
													   "retry_after", "function", "idem_nack");
	refuse_unless_writable("idem_nack()");
	due_open(&table, true);
	done = nack(&table, &refusal);
	due_close(&table);
	if (!done)
		refuse_not_yours("give back", &refusal.hold);
	PG_RETURN_VOID();
}

/*----
 * Once more, or never.
 *----
 */

static pg_uuid_t
read_event_id(FunctionCallInfo fcinfo, const char *function)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("event_id of %s must not be null", function)));
	return *PG_GETARG_UUID_P(0);
}

/*
 * Let an event that is in the queue be due now; a dead letter afresh.
 */
static RowChange
hasten(DueTable *table, Due *due)
{
	RowChange	change;

	if (due->state != DUE_DEAD && due_is_leased(due, GetCurrentTimestamp()))
		return ROW_CHANGED;
	change = due_lock(table, due, true);
	if (change != ROW_CHANGED)
		return change;
	if (due->state == DUE_DEAD)
	{
		due->attempt = 0;
		due->first_at = due->dead_at = NEVER;
		due->reason = NULL;
		due->error = (Datum) 0;
		due->queue_again = due->ordering_key &&
			destination_get(text_to_cstring(due->destination))->skip_dead_head;
	}
	due->state = DUE_WAITING;

	/* like one whose taker died: no retry that the budget could hold back */
	due->lease_until = GetCurrentTimestamp();
	due_move(table, due, 0);
	return ROW_CHANGED;
}

/*
 * Lock the row of an event that is committed.  Raises ID001 if there is none.
 */
static void
lock_event(Events *events, const pg_uuid_t *id, Event *event)
{
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (events_find(events, id, event) != PROBE_ROW)
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_NO_CLAIM),
					 errmsg("there is no event %s", id_text(id)),
					 errhint("It was never committed, or it was delivered and purged after the retention of its destination.")));
	} while (rows_lock(events->rel, &event->tid, true) != ROW_CHANGED);
}

/*
 * idem_redeliver(event_id)
 */
Datum
idem_redeliver(PG_FUNCTION_ARGS)
{
	pg_uuid_t	id = read_event_id(fcinfo, "idem_redeliver");
	RowChange	change = ROW_CHANGED;
	Events		events;
	DueTable	table;
	Event		event;
	Due			due;

	refuse_unless_writable("idem_redeliver()");
	events_open(&events, true);
	lock_event(&events, &id, &event);
	due_open(&table, true);
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (due_find(&table, &id, &due))
			change = hasten(&table, &due);
		else
			due_enqueue(&event, 0);
	} while (change != ROW_CHANGED);
	due_close(&table);
	events_close(&events);
	frontier_wake_at_commit(text_to_cstring(event.destination));
	PG_RETURN_VOID();
}

/*
 * idem_discard(event_id)
 */
Datum
idem_discard(PG_FUNCTION_ARGS)
{
	pg_uuid_t	id = read_event_id(fcinfo, "idem_discard");
	DueTable	table;
	Due			due;

	refuse_unless_writable("idem_discard()");
	due_open(&table, true);
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (!due_find(&table, &id, &due) || due.state != DUE_DEAD)
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_NO_CLAIM),
					 errmsg("there is no dead letter of event %s", id_text(&id)),
					 errhint("See the view idem_dead_letter; only what is in it can be discarded.")));
	} while (due_delete(&table, &due) != ROW_CHANGED);
	due_release_next(&table, &due,
					 destination_get(text_to_cstring(due.destination))->skip_dead_head);
	due_close(&table);
	PG_RETURN_VOID();
}
