/*-------------------------------------------------------------------------
 *
 * take.c
 *	  idem_take: events to deliver, leased to the caller.
 *
 * A take walks the queue of a destination in the order of time, from its
 * frontier (frontier.c) to now, and leases what nobody else has.  The walk sees
 * what is true at each step, not at a snapshot; what it decides on a row it
 * decides on one version of it, and it locks that very version, without
 * waiting, before it changes it.  So two takers cannot lease one event, an event
 * that another transaction has in hand is passed by, and what was committed late
 * is met by the next walk, wherever it stands.
 *
 * Events of the own transaction are passed by too: they must not be sent before
 * they are committed.
 *
 * Ordering keys
 * -------------
 * Only the first event of a key is leased (due.c).  The others are in the way
 * of each walk: a few are passed by, from then on they are parked, to a time
 * after that at which the first one will be looked at again.  Whoever makes the
 * first one go away (ack, dead letter, discard) brings the next one back
 * (due_release_next).  He must not miss one that is being parked:
 *
 * - the taker locks the first row, without waiting, before he parks another
 *	 behind it, and keeps the lock to the end of his transaction; so the first
 *	 one goes away after the parking is committed, and the next one is seen as
 *	 parked;
 * - if it is going away already, the lock is refused, and nothing is parked;
 * - a first row whose transaction is open may vanish with it and tell nobody:
 *	 nothing is parked behind it.
 *
 * - what this transaction has done itself to the first row goes with the
 *	 parking if it is rolled back.
 *
 * Nobody is parked behind a dead letter.  A change of skip_dead_head brings
 * nobody back; that is why parking ends by itself, within five minutes.
 *
 * What may be sent
 * ----------------
 * The discipline of the destination (discipline.c) says how much may be sent,
 * and how much of that may be events it has refused before; a take asks before
 * it walks, and says afterwards what it has used.  What came of it is reported
 * by ack and nack.
 *
 * Waiting
 * -------
 * A take that waits holds the snapshot of its statement, which is the executor's
 * and is not used here, and the locks of its tables, so DDL on them waits for it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "claim.h"
#include "compat.h"
#include "outbox.h"

PG_FUNCTION_INFO_V1(idem_take);

/* Rows in the way that are passed by before parking begins. */
#define PASSED_BY 32

/* Rows one take parks at most: it has to end some time. */
#define MAX_PARKED 1000

/*
 * Others are parked until the first row's time, but not longer than that, and
 * a little longer, in microseconds.
 */
#define LONGEST_PARKED (INT64CONST(240) * USECS_PER_SEC)
#define PARKED_LONGER (INT64CONST(60) * USECS_PER_SEC)

/* How often a take begins at the frontier, in microseconds. */
#define REVISIT_EVERY (INT64CONST(1) * USECS_PER_SEC)

/* Columns of idem_event. */
#define N_EVENT_COLUMNS 8

typedef struct Take
{
	ReturnSetInfo *result;
	const char *destination;
	const Destination *settings;
	Grant		grant;			/* what may be sent */
	int32		first_tries;	/* what is, of that */
	int32		retries;
	int32		left;			/* how many more to take */
	int64		lease;
	DueTable	table;
	Events		events;
	Frontier	frontier;
	TimestampTz next_at;		/* when there may be something to take; NEVER
								 * = nobody knows */
	MemoryContext context;		/* of this walk */
	HTAB	   *blocked;		/* keys that are */
	int32		in_the_way;
	int32		parked;
	bool		wrote;
} Take;

/* A key that is blocked, as this walk has found its first row. */
typedef struct Blocked
{
	uint64		hash;
	pg_uuid_t	first;			/* zero = not known, like tid */
	ItemPointerData tid;
	bool		ours;			/* this transaction wrote it */
	bool		settled;		/* committed and not dead, or ours */
	bool		tried;			/* to lock it */
	bool		may_park;		/* that worked */
	TimestampTz until;			/* when it is looked at again */
} Blocked;

/*----
 * Ordering keys.
 *----
 */

static Blocked *
find_blocked(const Take *take, const Due *due)
{
	uint64		hash;

	if (take->blocked == NULL || due->ordering_key == NULL)
		return NULL;
	hash = due_key_hash(due);
	return hash_search(take->blocked, &hash, HASH_FIND, NULL);
}

/*
 * Remember that the key of due is blocked by its first row.
 */
static Blocked *
add_blocked(Take *take, const Due *due, const Due *first)
{
	uint64		hash = due_key_hash(due);
	Blocked    *blocked;
	bool		found;

	if (take->blocked == NULL)
	{
		HASHCTL		ctl = {
			.keysize = sizeof(uint64),
			.entrysize = sizeof(Blocked),
			.hcxt = take->context
		};

		take->blocked = hash_create("idempotency blocked keys", 64, &ctl,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	blocked = hash_search(take->blocked, &hash, HASH_ENTER, &found);
	if (found)
		return blocked;
	memset(&blocked->first, 0, sizeof(Blocked) - offsetof(Blocked, first));
	if (first == NULL)
		return blocked;
	blocked->first = first->event_id;
	blocked->tid = first->tid;
	blocked->ours = TransactionIdIsCurrentTransactionId(first->xmin);
	blocked->settled = !first->in_flight && first->state != DUE_DEAD;
	blocked->until = due_is_leased(first, take->frontier.now) ?
		first->lease_until : first->due_at;
	return blocked;
}

/*
 * What is known of a key whose first row this walk has leased, or found to be
 * something else by now.
 */
static void
revise_blocked(Take *take, const Due *due, bool leased)
{
	Blocked    *blocked = find_blocked(take, due);

	if (blocked == NULL)
		return;
	if (leased)
	{
		blocked->ours = blocked->settled = true;
		blocked->until = due->lease_until;
	}
	else
		(void) hash_search(take->blocked, &blocked->hash, HASH_REMOVE, NULL);
}

/*
 * May rows be parked behind the first one of their key?  It has to stay until
 * that is committed: it is ours, or we lock it.
 */
static bool
may_park(Take *take, Blocked *blocked)
{
	if (!blocked->tried && blocked->settled)
	{
		blocked->may_park = blocked->ours ||
			rows_writer_lock(take->table.writer, &blocked->tid, false) == ROW_CHANGED;
		take->wrote |= blocked->may_park;
	}
	blocked->tried = true;
	return blocked->may_park;
}

/*
 * Put a row out of the way until its key is looked at again.
 */
static void
park(Take *take, Blocked *blocked, Due *due)
{
	int64		until_then = blocked->until - take->frontier.now;

	if (++take->in_the_way <= PASSED_BY || take->parked >= MAX_PARKED ||
		!may_park(take, blocked) ||
		due_lock(&take->table, due, false) != ROW_CHANGED)
		return;
	due->state = DUE_PARKED;
	due_move(&take->table, due,
			 Min(Max(until_then, 0), LONGEST_PARKED) + PARKED_LONGER);
	take->parked++;
	take->wrote = true;
}

/*
 * Is a row the first of its key?  Then the lock of the key is held.
 */
static bool
is_first(Take *take, Due *due)
{
	Blocked    *blocked = find_blocked(take, due);
	Due			first;
	bool		found;

	if (blocked == NULL || memcmp(&blocked->first, &due->event_id, UUID_LEN) == 0)
	{
		if (!due_key_lock(due, false))
		{
			add_blocked(take, due, NULL);
			return false;
		}
		found = due_first_of_key(&take->table, due, take->settings->skip_dead_head, &first);
		if (found && memcmp(&first.event_id, &due->event_id, UUID_LEN) == 0)
			return true;
		due_key_unlock(due);
		blocked = add_blocked(take, due, found ? &first : NULL);
	}
	park(take, blocked, due);
	return false;
}

/*----
 * One event.
 *----
 */

/*
 * Hand an event to the caller.  Raises XX001 if it is not there.
 */
static void
put_event(Take *take, const Due *due)
{
	Datum		values[N_EVENT_COLUMNS];
	bool		nulls[N_EVENT_COLUMNS] = {false};
	Event		event;

	if (events_find(&take->events, &due->event_id, &event) != PROBE_ROW)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("event %s for destination \"%s\" is in the queue but not in the outbox",
						id_text(&due->event_id), take->destination)));
	values[0] = UUIDPGetDatum(&event.id);
	values[1] = PointerGetDatum(event.destination);
	values[2] = event.payload;
	values[3] = event.headers;
	nulls[3] = event.headers == (Datum) 0;
	values[4] = PointerGetDatum(event.ordering_key);
	nulls[4] = event.ordering_key == NULL;
	values[5] = Int32GetDatum(due->attempt);
	values[6] = Int64GetDatum(due->fence);
	values[7] = TimestampTzGetDatum(event.created_at);
	tuplestore_putvalues(take->result->setResult, take->result->setDesc, values, nulls);
}

/*
 * Why an event is not to be tried again; NULL if it is.  One that was never
 * tried always is.
 */
static const char *
used_up(const Take *take, const Due *due)
{
	const Destination *settings = take->settings;

	if (due->attempt == 0)
		return NULL;
	if (settings->max_attempts != NO_LIMIT && due->attempt >= settings->max_attempts)
		return DEAD_ATTEMPTS;
	if (settings->deadline != NO_LIMIT &&
		time_after(due->first_at, settings->deadline) <= take->frontier.now)
		return DEAD_DEADLINE;
	return NULL;
}

/*
 * Is it tried again because the destination did not take it?  One whose taker
 * was not heard of again says nothing about the destination.
 */
static bool
is_retry(const Due *due)
{
	return due->attempt > 0 && due->lease_until == NEVER;
}

/*
 * Lease a row that is locked, and whose key is if it has one.
 */
static void
lease_row(Take *take, Due *due)
{
	TimestampTz now = take->frontier.now;

	if (is_retry(due))
		take->retries++;
	else
		take->first_tries++;
	due->fence = claim_next_fence(due->fence);
	due->attempt++;
	due->state = DUE_WAITING;
	if (due->first_at == NEVER)
		due->first_at = now;
	due->lease_until = time_after(now, take->lease);
	due_lease(&take->table, due);
	put_event(take, due);
	take->wrote = true;
}

/*
 * How many events this walk has taken.
 */
static int
taken(const Take *take)
{
	return take->first_tries + take->retries;
}

/*
 * Does this walk go on?
 */
static bool
wants_more(const Take *take)
{
	return taken(take) < take->grant.calls && take->parked < MAX_PARKED;
}

/*
 * A row whose time has come: lease it, or pass it by.
 */
static void
consider(Take *take, Due *due)
{
	const char *reason = used_up(take, due);
	bool		leased = false;

	if (due->in_flight || TransactionIdIsValid(due->changer) ||
		TransactionIdIsCurrentTransactionId(due->xmin))
		return;
	if (due_is_leased(due, take->frontier.now))
	{
		take->next_at = Min(take->next_at, due->lease_until);
		return;
	}
	if (is_retry(due) && take->retries >= take->grant.retries && reason == NULL)
		return;
	if (due->ordering_key && !is_first(take, due))
		return;
	if (due_lock(&take->table, due, false) == ROW_CHANGED)
	{
		take->wrote = true;
		leased = reason == NULL;
		if (leased)
			lease_row(take, due);
		else
			due_bury(&take->table, due, reason);
	}
	if (due->ordering_key)
	{
		due_key_unlock(due);
		revise_blocked(take, due, leased);
	}
	if (due->state == DUE_DEAD)
		due_release_next(&take->table, due, take->settings->skip_dead_head);
}

/*----
 * The walk.
 *----
 */

/*
 * Walk through the queue from a position on, to now or until there is enough.
 * Returns the position of the first row that is not gone, NEVER if there was
 * none; *stopped is that of the last one.
 */
static TimestampTz
walk_from(Take *take, TimestampTz from, TimestampTz *stopped)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "idempotency take",
												  ALLOCSET_DEFAULT_SIZES);
	DueScan    *scan = due_scan_begin(&take->table, take->destination, from);
	TimestampTz first_left = NEVER;
	Due			due;

	take->context = caller;
	while (wants_more(take))
	{
		bool		more;

		MemoryContextSwitchTo(context);
		MemoryContextReset(context);
		more = due_scan_next(scan, &due);
		if (more && first_left == NEVER)
			first_left = due.due_at;
		if (more && due.due_at > take->frontier.now)
		{
			take->next_at = Min(take->next_at, due.due_at);
			more = false;
		}
		if (more)
		{
			*stopped = due.due_at;
			consider(take, &due);
		}
		MemoryContextSwitchTo(caller);
		if (!more)
			break;
	}
	due_scan_end(scan);
	MemoryContextDelete(context);
	return first_left;
}

/*
 * Walk from where the last take stopped, and if that does not give enough, from
 * the frontier.
 */
static void
walk(Take *take)
{
	Frontier   *frontier = &take->frontier;
	TimestampTz stopped = DT_NOBEGIN;
	TimestampTz revisit_at;

	frontier_begin(frontier, take->destination, RelationGetRelid(take->table.rel));
	revisit_at = frontier->revisit_at;
	if (frontier->resume > frontier->start)
		(void) walk_from(take, frontier->resume, &stopped);
	if (frontier->resume == frontier->start || wants_more(take))
	{
		TimestampTz first_left;

		take->next_at = NEVER;
		first_left = walk_from(take, frontier->start, &stopped);
		frontier_advance(frontier, take->destination, first_left);
		revisit_at = time_after(frontier->now, REVISIT_EVERY);
	}
	if (wants_more(take))
		stopped = DT_NOBEGIN;
	revisit_at = Min(revisit_at, time_after(frontier->now, take->lease));
	frontier_stopped(frontier, take->destination, stopped, Min(revisit_at, take->next_at));
}

/*
 * Walk, and say what is sent of what may be sent: nothing if it fails.
 */
static void
walk_within_grant(Take *take)
{
	PG_TRY();
	{
		due_open(&take->table, true);
		events_open(&take->events, false);
		walk(take);
		events_close(&take->events);
		due_close(&take->table);
		taken_note(take->destination, &take->grant, taken(take));
	}
	PG_CATCH();
	{
		discipline_use(take->settings, &take->grant, 0, 0);
		PG_RE_THROW();
	}
	PG_END_TRY();
	discipline_use(take->settings, &take->grant, take->first_tries, take->retries);
}

/*
 * Take what there is, and what may be sent.
 */
static void
take_once(Take *take)
{
	take->settings = destination_get(take->destination);
	take->next_at = NEVER;
	take->blocked = NULL;
	take->in_the_way = take->parked = 0;
	take->first_tries = take->retries = 0;
	discipline_reserve(take->settings, take->left, take->lease, &take->grant);
	if (take->grant.calls > 0)
		walk_within_grant(take);
	else
		take->next_at = time_after(GetCurrentTimestamp(), take->grant.retry_after);
}

/*
 * Take, waiting until there is something, the deadline has come, or the walk
 * has written something that should not stay uncommitted.
 */
static void
take_or_wait(Take *take, TimestampTz deadline)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "idempotency takes",
												  ALLOCSET_DEFAULT_SIZES);
	bool		waits = deadline > GetCurrentTimestamp();

	if (waits)
		frontier_wait_begin(take->destination);
	for (;;)
	{
		TimestampTz now;

		MemoryContextSwitchTo(context);
		MemoryContextReset(context);
		take_once(take);
		MemoryContextSwitchTo(caller);
		now = GetCurrentTimestamp();
		if (take->wrote || now >= deadline)
			break;
		frontier_wait(Min(deadline, take->next_at) - now);
		CHECK_FOR_INTERRUPTS();
	}
	if (waits)
		frontier_wait_end();
	MemoryContextDelete(context);
}

/*
 * An interval argument in microseconds.  Raises 22023.
 */
static int64
interval_argument(FunctionCallInfo fcinfo, int n, const char *what)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of idem_take must not be null", what)));
	return interval_microseconds_of(PG_GETARG_INTERVAL_P(n), what, "function", "idem_take");
}

/*
 * idem_take(destination, max_events, lease, wait)
 */
Datum
idem_take(PG_FUNCTION_ARGS)
{
	Take		take = {0};
	int64		wait;

	take.destination = destination_called(ARG_TEXT(0));
	if (PG_ARGISNULL(1) || PG_GETARG_INT32(1) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_events of idem_take must be greater than zero"),
				 errhint("It is how many events are leased at most.")));
	take.left = PG_GETARG_INT32(1);
	take.lease = interval_argument(fcinfo, 2, "lease");
	if (take.lease == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("lease of idem_take must be longer than zero"),
				 errhint("Give the time that sending and acknowledging all of the events may take.")));
	wait = interval_argument(fcinfo, 3, "wait");
	refuse_unless_writable("idem_take()");

	InitMaterializedSRF(fcinfo, 0);
	take.result = (ReturnSetInfo *) fcinfo->resultinfo;
	if (take.result->setDesc->natts != N_EVENT_COLUMNS)
		elog(ERROR, "unexpected number of columns of idem_event");
	take_or_wait(&take, time_after(GetCurrentTimestamp(), wait));
	return (Datum) 0;
}
