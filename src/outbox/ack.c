/*
 * ack.c
 *	  idem_ack, idem_nack: what came of an event that was taken; idem_redeliver,
 *	  idem_discard: what an operator makes of it.
 *
 * An event is its taker's as long as the entry has its fence and the lease
 * runs.  Afterwards it is due again, and whatever the taker says is refused
 * (ID002), whether or not another one has it by then: it cannot know, so it must
 * not rely on it.  Sessions that answer for one event meet as in finish.c: each
 * decides on a version it has read and changes that very version, waiting for
 * the session that is changing it, and looks again if it was changed.
 *
 * An event that is acknowledged leaves the queue, and with it goes the memory
 * of its fence: a second ack is refused like one that is too late.  Either way
 * there is nothing left to do.
 *
 * Redelivery and purge lock the event's row first: see README.md.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "outbox/outbox.h"

/* As text, and as stored. */
#define MAX_ERROR_BYTES (1024 * 1024)

/* The lease that the caller says it has. */
typedef struct Hold
{
	pg_uuid_t	event_id;
	int64		fence;
} Hold;

static void
refuse_not_held(const char *verb, const Hold *hold)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_YOURS),
			 errmsg("cannot %s event %s: it is no longer yours", verb,
					identity_text(&hold->event_id)),
			 errhint("It was acknowledged already, or its lease is over and it is delivered again. There is nothing left to do.")));
}

/* Returns the settings of a destination.  Raises 42501 unless the caller may use it. */
static const Destination *
settings_of(const text *destination)
{
	const Destination *settings = destination_get(text_to_cstring(destination));

	destination_check_role(settings);
	return settings;
}

/*
 * Finds the entry of an event that is leased to the caller, and the settings of
 * its destination.  NULL if it is not.
 */
static const Destination *
find_held(OutboxQueue *queue, const Hold *hold, OutboxEntry *entry)
{
	CHECK_FOR_INTERRUPTS();
	if (!queue_find(queue, &hold->event_id, entry) || entry->fence != hold->fence ||
		entry->state == QUEUE_DEAD || !queue_is_leased(entry, GetCurrentTimestamp()))
		return NULL;
	return settings_of(entry->destination);
}

/* Reads event id and fence, arguments 0 and 1.  Raises 22023. */
static void
read_hold(FunctionCallInfo fcinfo, const char *function, Hold *hold)
{
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		REFUSE_ARGUMENT(errmsg("event_id and fence of %s must not be null", function),
						errhint("Hand over both as idem_take() gave them."));
	hold->event_id = *PG_GETARG_UUID_P(0);
	hold->fence = PG_GETARG_INT64(1);
}

/* Reports what came of the call that a lease stands for. */
static void
report_end(const Destination *settings, const OutboxEntry *leased, CallsEnded *ended)
{
	if (TransactionIdIsCurrentTransactionId(leased->xmin))
		take_answered(settings->name, queue_lease_is_retry(leased));
	ended->until = clock_monotonic() + (leased->lease_until - GetCurrentTimestamp());
	limiter_end(settings, ended);
}

/* Acknowledges one event.  False if it is not held. */
static bool
ack(OutboxQueue *queue, const Hold *hold)
{
	CallsEnded	ended = {.succeeded = 1};
	const Destination *settings;
	OutboxEntry entry;

	do
	{
		settings = find_held(queue, hold, &entry);
		if (settings == NULL)
			return false;
	} while (queue_delete(queue, &entry) != ROW_CHANGED);
	queue_release_next(queue, &entry, settings->skip_dead_head);
	report_end(settings, &entry, &ended);
	return true;
}

/* Acknowledges events.  Returns how many of them were held. */
static int32
acknowledge(const char *function, const Hold *holds, int n)
{
	int32		acknowledged = 0;
	OutboxQueue queue;

	call_require_writable(function);
	queue_open(&queue);
	for (int i = 0; i < n; i++)
		acknowledged += ack(&queue, &holds[i]);
	queue_close(&queue);
	return acknowledged;
}

/* idem_ack(event_id, fence) */
SQL_FUNCTION(idem_ack)
{
	Hold		hold;

	read_hold(fcinfo, "idem_ack", &hold);
	if (acknowledge("idem_ack()", &hold, 1) == 0)
		refuse_not_held("acknowledge", &hold);
	PG_RETURN_VOID();
}

static int
compare_holds(const void *a, const void *b)
{
	return memcmp(&((const Hold *) a)->event_id, &((const Hold *) b)->event_id, UUID_LEN);
}

/*
 * Returns the arguments of idem_ack_many in the order of the ids, so that two
 * sessions that acknowledge the same events cannot wait for each other in a
 * circle.  Raises 22023.
 */
static Hold *
read_holds(FunctionCallInfo fcinfo, int *n)
{
	ArrayType  *ids = PG_ARGISNULL(0) ? NULL : PG_GETARG_ARRAYTYPE_P(0);
	ArrayType  *fences = PG_ARGISNULL(1) ? NULL : PG_GETARG_ARRAYTYPE_P(1);
	Hold	   *holds;

	*n = ids ? ArrayGetNItems(ARR_NDIM(ids), ARR_DIMS(ids)) : 0;
	if (ids == NULL || fences == NULL || array_contains_nulls(ids) ||
		array_contains_nulls(fences) ||
		*n != ArrayGetNItems(ARR_NDIM(fences), ARR_DIMS(fences)))
		REFUSE_ARGUMENT(errmsg("idem_ack_many needs as many fences as event_ids, none of them null"),
						errhint("Hand over both as idem_take() gave them."));
	holds = palloc(Max(*n, 1) * sizeof(Hold));
	for (int i = 0; i < *n; i++)
	{
		holds[i].event_id = ((pg_uuid_t *) ARR_DATA_PTR(ids))[i];
		holds[i].fence = ((int64 *) ARR_DATA_PTR(fences))[i];
	}
	qsort(holds, *n, sizeof(Hold), compare_holds);
	return holds;
}

/* idem_ack_many(event_ids, fences) */
SQL_FUNCTION(idem_ack_many)
{
	int			n;
	Hold	   *holds = read_holds(fcinfo, &n);

	PG_RETURN_INT32(acknowledge("idem_ack_many()", holds, n));
}

typedef struct Refusal
{
	Hold		hold;
	bool		retryable;
	bool		attempted;		/* false: put back as if it had not been taken */
	int64		retry_after;	/* 0 = not given */
	Datum		error;
} Refusal;

/*
 * Returns why an event that was refused is not tried again; NULL if it is,
 * after *delay.
 */
static const char *
judge(const Refusal *refusal, const OutboxEntry *entry, const Destination *settings,
	  int64 *delay)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz again;

	if (!refusal->retryable)
		return DEAD_REFUSED;
	if (backoff_next(settings, entry->attempt, entry->first_at, refusal->retry_after, now,
					 &again))
	{
		*delay = again - now;
		return NULL;
	}
	return settings->max_attempts != NO_LIMIT && entry->attempt >= settings->max_attempts ?
		DEAD_ATTEMPTS : DEAD_DEADLINE;
}

/* Gives one event back.  False if it is not held. */
static bool
nack(OutboxQueue *queue, const Refusal *refusal)
{
	const Destination *settings;
	const char *reason;
	int64		delay;
	OutboxEntry leased;
	OutboxEntry entry;
	CallsEnded	ended = {.probe = true};

	do
	{
		settings = find_held(queue, &refusal->hold, &entry);
		if (settings == NULL)
			return false;
	} while (rows_lock(queue->rel, &entry.tid, true) != ROW_CHANGED);
	leased = entry;
	entry.error = refusal->error;
	entry.lease_until = entry.again_at = NEVER;
	if (!refusal->attempted)
		entry.attempt--;
	reason = judge(refusal, &entry, settings, &delay);
	if (reason)
	{
		queue_move_to_dead(queue, &entry, reason);
		queue_release_next(queue, &entry, settings->skip_dead_head);
	}
	else
	{
		queue_reschedule(queue, &entry, QUEUE_WAITS, delay, false);
		queue_start_wake_at_commit(settings->name);
	}
	/* a destination that says that the event is at fault does work */
	ended.succeeded = refusal->attempted && !refusal->retryable;
	ended.failed = refusal->attempted && refusal->retryable;
	ended.retries = !refusal->attempted && queue_lease_is_retry(&leased);
	ended.first_tries = !refusal->attempted && !queue_lease_is_retry(&leased);
	report_end(settings, &leased, &ended);
	return true;
}

/* idem_nack(event_id, fence, error, retryable, retry_after, attempted) */
SQL_FUNCTION(idem_nack)
{
	Refusal		refusal = {
		.retryable = PG_ARGISNULL(3) || PG_GETARG_BOOL(3),
		.attempted = PG_ARGISNULL(5) || PG_GETARG_BOOL(5)
	};
	OutboxQueue queue;
	bool		done;

	read_hold(fcinfo, "idem_nack", &refusal.hold);
	if (!PG_ARGISNULL(2))
	{
		refusal.error = PG_GETARG_DATUM(2);
		if (json_exceeds(PG_GETARG_JSONB_P(2), MAX_ERROR_BYTES))
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_RESULT_TOO_LARGE),
					 errmsg("the error of event %s is larger than %d bytes",
							identity_text(&refusal.hold.event_id), MAX_ERROR_BYTES),
					 errhint("Nothing has changed. Hand over a shorter one.")));
	}
	if (!PG_ARGISNULL(4))
		refusal.retry_after = setting_microseconds(PG_GETARG_INTERVAL_P(4),
												   "retry_after", "function", "idem_nack", NULL);
	if (!refusal.retryable && !refusal.attempted)
		REFUSE_ARGUMENT(errmsg("event %s cannot be refused for good without having been attempted",
							   identity_text(&refusal.hold.event_id)),
						errhint("Pass retryable => false for an event that was refused, attempted => false for one that was not sent."));
	call_require_writable("idem_nack()");
	queue_open(&queue);
	done = nack(&queue, &refusal);
	queue_close(&queue);
	if (!done)
		refuse_not_held("give back", &refusal.hold);
	PG_RETURN_VOID();
}

/*
 * Lets an event that is in the queue be due now; a dead letter afresh, after
 * those of its key that went past it.  One whose lease was not answered still
 * comes alone.
 */
static RowChange
make_due_now(OutboxQueue *queue, OutboxEntry *entry, const Destination *settings)
{
	bool		dead = entry->state == QUEUE_DEAD;
	bool		to_end_of_key = false;
	RowChange	change;

	if (!dead && queue_is_leased(entry, GetCurrentTimestamp()))
		return ROW_CHANGED;
	change = rows_lock(queue->rel, &entry->tid, true);
	if (change != ROW_CHANGED)
		return change;
	if (!dead && entry->lease_until != NEVER)
	{
		entry->again_at = entry->lease_until;
		queue_update(queue, entry);
		return ROW_CHANGED;
	}
	if (dead)
	{
		entry->attempt = 0;
		entry->first_at = entry->dead_at = NEVER;
		entry->reason = NULL;
		entry->error = (Datum) 0;
		to_end_of_key = settings->skip_dead_head;
	}
	queue_reschedule(queue, entry, QUEUED, 0, to_end_of_key);
	return ROW_CHANGED;
}

/* idem_redeliver(event_id) */
SQL_FUNCTION(idem_redeliver)
{
	pg_uuid_t	id = event_id_argument(fcinfo, "idem_redeliver");
	RowChange	change = ROW_CHANGED;
	const Destination *settings;
	OutboxEvents events;
	OutboxQueue queue;
	OutboxEvent event;
	OutboxEntry entry;

	call_require_writable("idem_redeliver()");
	events_open(&events, true);
	events_lock(&events, &id, &event);
	settings = settings_of(event.destination);
	if (settings->relay_from_log)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("event %s cannot be redelivered: destination \"%s\" is read from the log",
						identity_text(&id), settings->name),
				 errhint("Its setting relay is log. Let the reader of the log begin at an earlier position.")));
	queue_open(&queue);
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (queue_find(&queue, &id, &entry))
			change = make_due_now(&queue, &entry, settings);
		else
			queue_add(&event, 0);
	} while (change != ROW_CHANGED);
	queue_close(&queue);
	events_close(&events);
	queue_start_wake_at_commit(settings->name);
	PG_RETURN_VOID();
}

/* idem_discard(event_id) */
SQL_FUNCTION(idem_discard)
{
	pg_uuid_t	id = event_id_argument(fcinfo, "idem_discard");
	const Destination *settings;
	OutboxQueue queue;
	OutboxEntry entry;

	call_require_writable("idem_discard()");
	queue_open(&queue);
	do
	{
		CHECK_FOR_INTERRUPTS();
		if (!queue_find(&queue, &id, &entry) || entry.state != QUEUE_DEAD)
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_NO_CLAIM),
					 errmsg("there is no dead letter of event %s", identity_text(&id)),
					 errhint("See the view idem_dead_letter; only what is in it can be discarded.")));
		settings = settings_of(entry.destination);
	} while (queue_delete(&queue, &entry) != ROW_CHANGED);
	queue_release_next(&queue, &entry, settings->skip_dead_head);
	queue_close(&queue);
	PG_RETURN_VOID();
}
