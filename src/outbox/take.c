/*
 * take.c
 *	  idem_take: events to deliver, leased to the caller.
 *
 * README.md tells the protocol.
 *
 * A take chooses entries and locks them as it scans, and writes their leases at
 * the end, when it knows whether there is more than one.
 *
 * What is taken and rolled back was never sent, so what it took of the call
 * limiter, which belongs to no transaction, is given back.  PREPARE TRANSACTION
 * keeps it.
 *
 * A take that waits holds the snapshot of its statement, which is the executor's
 * and is not used here, and the locks of its tables, so DDL on them waits for it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "outbox/outbox.h"

/* Entries behind the first of their key that are skipped before deferring begins. */
#define MAX_SKIPPED 32

/* Entries that one take defers or gives up at most: it has to end some time. */
#define MAX_MOVED 1000

/*
 * Others are deferred until the first entry's time or LONGEST_DEFERRED from now,
 * whichever comes first, and DEFERRED_LONGER beyond that; in microseconds.
 */
#define LONGEST_DEFERRED (INT64CONST(240) * USECS_PER_SEC)
#define DEFERRED_LONGER (INT64CONST(60) * USECS_PER_SEC)

/* How often a take begins at the low-water mark, in microseconds. */
#define REVISIT_EVERY (INT64CONST(1) * USECS_PER_SEC)

/* The entries of one state, and the next of them. */
typedef struct Source
{
	RowScan    *scan;
	OutboxEntry entry;			/* due NEVER if there is none that is due */
} Source;

static const char source_states[] = {QUEUED, QUEUE_WAITS, QUEUE_BEHIND};

#define N_SOURCES lengthof(source_states)

typedef struct Take
{
	FunctionCallInfo fcinfo;
	const char *destination;
	const Destination *settings;
	int32		wanted;
	int32		per_key;
	int64		lease;
	bool		wrote;

	/* of one scan: begins with zeros */
	HTAB	   *keys;			/* that are blocked */
	CallGrant	grant;			/* what may be sent */
	OutboxQueue queue;
	OutboxEvents events;
	OutboxStart start;
	TimestampTz next_at;		/* when there may be something to take */
	TimestampTz first_left;		/* due time of the first entry not gone */
	MemoryContext context;		/* of what it keeps */
	MemoryContext row_context;
	List	   *chosen;			/* OutboxEntry, locked and to be leased */
	bool		chose_suspect;	/* one whose lease was not answered: it comes
								 * alone */
	int32		retries;		/* chosen */
	int32		skipped;
	int32		moved;			/* deferred or given up */
} Take;

/* A key that is blocked by its first entry. */
typedef struct Blocked
{
	uint64		hash;
	pg_uuid_t	first;			/* zero = not known, like tid */
	ItemPointerData tid;
	int64		chosen_place;	/* of the last entry chosen; 0 = none */
	bool		committed;		/* and not dead, nor found busy */
	bool		locked;
	TimestampTz until;			/* when it is looked at again */
} Blocked;

/* Returns when an entry that is not dead can be taken, as far as is known. */
static TimestampTz
free_at(const OutboxEntry *entry, TimestampTz now)
{
	if (queue_is_leased(entry, now))
		return entry->lease_until;
	return entry->lease_until != NEVER ? entry->again_at : entry->due_at;
}

static Blocked *
find_blocked(const Take *take, const OutboxEntry *entry)
{
	uint64		hash;

	if (take->keys == NULL || entry->ordering_key == NULL)
		return NULL;
	hash = queue_key_hash(entry);
	return hash_search(take->keys, &hash, HASH_FIND, NULL);
}

/* Notes that the key of an entry is blocked by its first one, if that is known. */
static Blocked *
add_blocked(Take *take, const OutboxEntry *entry, const OutboxEntry *first)
{
	uint64		hash = queue_key_hash(entry);
	Blocked    *blocked;
	bool		found;

	if (take->keys == NULL)
	{
		HASHCTL		ctl = {
			.keysize = sizeof(uint64),
			.entrysize = sizeof(Blocked),
			.hcxt = take->context
		};

		take->keys = hash_create("idempotency blocked keys", 64, &ctl,
								 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	blocked = hash_search(take->keys, &hash, HASH_ENTER, &found);
	if (found)
		return blocked;
	memset(&blocked->first, 0, sizeof(Blocked) - offsetof(Blocked, first));
	if (first)
	{
		blocked->first = first->event_id;
		blocked->tid = first->tid;
		blocked->committed = !first->in_flight && first->state != QUEUE_DEAD;
		blocked->until = free_at(first, take->start.now);
	}
	return blocked;
}

/*
 * Returns whether entries may be deferred behind the first one of their key.  That has
 * to stay until this is committed: it is locked.
 */
static bool
may_defer(Take *take, Blocked *blocked)
{
	if (blocked->committed && !blocked->locked)
	{
		blocked->locked = rows_lock(take->queue.rel, &blocked->tid, false) == ROW_CHANGED;
		blocked->committed = blocked->locked;
		take->wrote |= blocked->locked;
	}
	return blocked->locked;
}

/* Skips an entry, or defers it until its key is looked at again. */
static void
skip_or_defer(Take *take, Blocked *blocked, OutboxEntry *entry)
{
	int64		until_then = blocked->until - take->start.now;

	if (++take->skipped <= MAX_SKIPPED || take->moved >= MAX_MOVED ||
		!may_defer(take, blocked) ||
		rows_lock(take->queue.rel, &entry->tid, false) != ROW_CHANGED)
		return;
	queue_reschedule(&take->queue, entry, QUEUE_BEHIND,
					 Min(Max(until_then, 0), LONGEST_DEFERRED) + DEFERRED_LONGER, false);
	take->moved++;
	take->wrote = true;
}

/* Returns whether an entry is the first of its key, or has none; then holds the lock of the key. */
static bool
is_first_of_key(Take *take, OutboxEntry *entry)
{
	Blocked    *blocked = find_blocked(take, entry);
	OutboxEntry first;
	bool		found;

	if (entry->ordering_key == NULL)
		return true;
	if (blocked && blocked->chosen_place >= entry->place)
		return false;
	if (blocked == NULL || memcmp(&blocked->first, &entry->event_id, UUID_LEN) == 0)
	{
		if (!queue_key_lock(entry, false))
		{
			add_blocked(take, entry, NULL);
			return false;
		}
		found = queue_first_of_key(&take->queue, entry, take->settings->skip_dead_head,
								   &first);
		if (found && memcmp(&first.event_id, &entry->event_id, UUID_LEN) == 0)
			return true;
		queue_key_unlock(entry);
		blocked = add_blocked(take, entry, found ? &first : NULL);
	}
	skip_or_defer(take, blocked, entry);
	return false;
}

/* Returns whether the last lease of an entry, if it is over, was not answered. */
static bool
is_unanswered(const OutboxEntry *entry)
{
	return entry->lease_until != NEVER;
}

/*
 * Returns whether an entry is tried again because the destination did not take it.  A
 * lease that was not answered says nothing about the destination.
 */
static bool
is_retry(const OutboxEntry *entry)
{
	return entry->attempt > 0 && entry->state == QUEUE_WAITS && !is_unanswered(entry);
}

/*
 * Returns why an entry is not to be tried again; NULL if it is.  One that was
 * never tried always is, and so is one whose lease may have run out because of
 * another event of its batch.
 */
static const char *
used_up(const Take *take, const OutboxEntry *entry)
{
	const Destination *settings = take->settings;

	if (entry->attempt == 0 || (is_unanswered(entry) && !entry->alone))
		return NULL;
	if (settings->max_attempts != NO_LIMIT && entry->attempt >= settings->max_attempts)
		return DEAD_ATTEMPTS;
	if (settings->deadline != NO_LIMIT &&
		clock_after(entry->first_at, settings->deadline) <= take->start.now)
		return DEAD_DEADLINE;
	return NULL;
}

static void
put_event(Take *take, const OutboxEntry *entry, const OutboxEvent *event)
{
	RowValues	row = {0};

	row_add(&row, true, UUIDPGetDatum(&event->id));
	row_add(&row, true, PointerGetDatum(event->destination));
	row_add(&row, true, event->payload);
	row_add(&row, event->headers != (Datum) 0, event->headers);
	row_add(&row, event->ordering_key != NULL, PointerGetDatum(event->ordering_key));
	row_add(&row, true, Int32GetDatum(entry->attempt));
	row_add(&row, true, Int64GetDatum(entry->fence));
	row_add(&row, true, TimestampTzGetDatum(event->created_at));
	row_put(take->fcinfo, &row);
}

/* Adds an entry to those chosen.  Its tuple stays with it. */
static OutboxEntry *
keep_entry(Take *take, OutboxEntry *entry)
{
	MemoryContext caller = MemoryContextSwitchTo(take->context);
	OutboxEntry *kept = palloc(sizeof(OutboxEntry));

	*kept = *entry;
	entry->tuple = NULL;
	take->chosen = lappend(take->chosen, kept);
	MemoryContextSwitchTo(caller);
	return kept;
}

/* Why an entry goes whose event does not exist, and one stays whose may not. */
static const char event_lost[] = "event is gone";
static const char event_in_flight[] = "event is being written";

/* Chooses an entry that is locked.  Returns NULL, or why it cannot be. */
static const char *
choose_entry(Take *take, OutboxEntry *found)
{
	const char *reason = used_up(take, found);
	TimestampTz now = take->start.now;
	ProbeResult result;
	OutboxEntry *entry;
	OutboxEvent event;

	if (reason)
		return reason;
	result = events_find(&take->events, &found->event_id, &event);
	/* put back by hand, and not yet committed */
	if (result == PROBE_IN_FLIGHT)
		return event_in_flight;
	if (result == PROBE_NOTHING)
	{
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("event %s of destination \"%s\" is in the queue but not in the outbox",
						identity_text(&found->event_id), take->destination),
				 errhint("Its row was deleted by hand. It leaves the queue.")));
		return event_lost;
	}
	if (event_exceeds(&event, MAX_EVENT_TEXT))
		return DEAD_TOO_LARGE;

	entry = keep_entry(take, found);
	if (is_retry(found))
		take->retries++;
	take->chose_suspect = is_unanswered(found);
	if (!is_unanswered(found) || found->alone)
		entry->attempt++;
	entry->fence = claim_next_fence(entry->fence);
	if (entry->first_at == NEVER)
		entry->first_at = now;
	entry->lease_until = clock_after(now, take->lease);
	entry->again_at = clock_after(entry->lease_until,
								  backoff_jitter(Max(entry->attempt - 1, 0),
												 take->settings->base, take->settings->cap));
	put_event(take, entry, &event);
	return NULL;
}

static bool
wants_more(const Take *take)
{
	return list_length(take->chosen) < take->grant.calls && !take->chose_suspect &&
		take->moved < MAX_MOVED;
}

/* Returns whether no other transaction has an entry, as far as its version tells. */
static bool
is_free(const OutboxEntry *entry)
{
	return !entry->in_flight && !TransactionIdIsValid(entry->changer) &&
		!TransactionIdIsCurrentTransactionId(entry->xmin);
}

/* Makes an entry that is locked a dead letter, or removes it if its event is lost. */
static void
give_up(Take *take, OutboxEntry *entry, const char *reason)
{
	Blocked    *blocked = find_blocked(take, entry);

	take->moved++;
	if (reason == event_lost)
		(void) queue_delete(&take->queue, entry);
	else
		queue_move_to_dead(&take->queue, entry, reason);
	if (blocked)
		(void) hash_search(take->keys, &blocked->hash, HASH_REMOVE, NULL);
	queue_release_next(&take->queue, entry, take->settings->skip_dead_head);
}

/*
 * Chooses more entries of the key of the last one chosen, in order, up to
 * per_key.  Returns the place of the last.  The caller must hold the lock of the
 * key.
 */
static int64
choose_behind(Take *take, const OutboxEntry *head)
{
	RowScan    *scan = queue_scan_key(&take->queue, head, head->place, ForwardScanDirection);
	int64		place = head->place;
	const char *reason;
	OutboxEntry next;

	for (int n = 1; n < take->per_key && wants_more(take);)
	{
		MemoryContext caller = MemoryContextSwitchTo(take->context);
		bool		found = queue_scan_next(scan, &next);

		MemoryContextSwitchTo(caller);
		if (!found)
			break;
		if (is_free(&next) && next.state == QUEUE_DEAD && take->settings->skip_dead_head)
			continue;
		if (!is_free(&next) || next.attempt > 0 || is_unanswered(&next) ||
			next.state == QUEUE_DEAD ||
			(next.state == QUEUE_WAITS && next.due_at > take->start.now) ||
			rows_lock(take->queue.rel, &next.tid, false) != ROW_CHANGED)
			break;
		reason = choose_entry(take, &next);
		if (reason == event_in_flight)
			break;
		if (reason)
			give_up(take, &next, reason);
		else
		{
			place = next.place;
			n++;
		}
	}
	rows_scan_end(scan);
	return place;
}

static void
try_to_choose(Take *take, OutboxEntry *entry)
{
	const char *reason = NULL;
	bool		locked;

	if (!is_first_of_key(take, entry))
		return;
	locked = rows_lock(take->queue.rel, &entry->tid, false) == ROW_CHANGED;
	if (locked)
	{
		take->wrote = true;
		reason = choose_entry(take, entry);
	}
	if (locked && reason == NULL && entry->ordering_key)
	{
		int64		place = choose_behind(take, entry);
		Blocked    *blocked = add_blocked(take, entry, entry);

		blocked->chosen_place = place;
		blocked->locked = true;
		blocked->until = clock_after(take->start.now, take->lease);
	}
	queue_key_unlock(entry);
	if (reason && reason != event_in_flight)
		give_up(take, entry, reason);
}

static void
consider(Take *take, OutboxEntry *entry)
{
	TimestampTz now = take->start.now;

	if (!is_free(entry))
		return;
	if (queue_is_leased(entry, now) ||
		(is_unanswered(entry) && used_up(take, entry) == NULL && free_at(entry, now) > now))
	{
		take->next_at = Min(take->next_at, free_at(entry, now));
		return;
	}
	/* it comes alone */
	if (is_unanswered(entry) && take->chosen != NIL)
		return;
	if (is_retry(entry) && take->retries >= take->grant.retries &&
		used_up(take, entry) == NULL)
		return;
	try_to_choose(take, entry);
}

/* Fetches the next entry of a source that is due. */
static void
fetch(Take *take, Source *source)
{
	OutboxEntry *entry = &source->entry;

	if (entry->tuple)
		heap_freetuple(entry->tuple);
	if (!queue_scan_next(source->scan, entry))
	{
		entry->tuple = NULL;
		entry->due_at = NEVER;
	}
	take->first_left = Min(take->first_left, entry->due_at);
	if (entry->state != QUEUED && entry->due_at > take->start.now)
	{
		take->next_at = Min(take->next_at, entry->due_at);
		entry->due_at = NEVER;
	}
}

static Source *
earliest(Source *sources)
{
	Source	   *first = sources;

	for (int i = 1; i < N_SOURCES; i++)
	{
		if (sources[i].entry.due_at < first->entry.due_at)
			first = &sources[i];
	}
	return first;
}

/*
 * Scans the queue from a due time on, up to another one, until nothing more is
 * due or there is enough.  Returns the due time of the last entry looked at,
 * DT_NOBEGIN if there is not enough.
 */
static TimestampTz
scan_range(Take *take, TimestampTz from, TimestampTz to)
{
	MemoryContext caller = CurrentMemoryContext;
	TimestampTz stopped = DT_NOBEGIN;
	Source		sources[N_SOURCES];
	Source	   *source;

	for (int i = 0; i < N_SOURCES; i++)
	{
		sources[i].scan = queue_scan_begin(&take->queue, take->destination,
										   source_states[i], from);
		sources[i].entry.state = source_states[i];
		sources[i].entry.tuple = NULL;
		fetch(take, &sources[i]);
	}
	while (wants_more(take) && (source = earliest(sources))->entry.due_at < to)
	{
		stopped = source->entry.due_at;
		MemoryContextReset(take->row_context);
		MemoryContextSwitchTo(take->row_context);
		consider(take, &source->entry);
		MemoryContextSwitchTo(caller);
		fetch(take, source);
	}
	for (int i = 0; i < N_SOURCES; i++)
		rows_scan_end(sources[i].scan);
	return wants_more(take) ? DT_NOBEGIN : stopped;
}

/*
 * Scans from where the last take stopped, and if that does not give enough, from
 * the low-water mark.
 */
static void
scan(Take *take)
{
	OutboxStart *start = &take->start;
	TimestampTz stopped;
	TimestampTz revisit_at;

	queue_start_begin(start, take->destination, RelationGetRelid(take->queue.rel));
	revisit_at = start->revisit_at;
	take->first_left = NEVER;
	stopped = scan_range(take, start->resume, NEVER);
	if (start->resume == start->low || wants_more(take))
	{
		if (start->resume > start->low)
			stopped = scan_range(take, start->low, start->resume);
		revisit_at = clock_after(start->now, REVISIT_EVERY);
	}
	else
		start->may_raise = false;
	revisit_at = Min(revisit_at, clock_after(start->now, take->lease));
	queue_start_end(start, take->first_left, stopped, Min(revisit_at, take->next_at));
}

static void
lease_chosen(Take *take)
{
	ListCell   *lc;

	foreach(lc, take->chosen)
	{
		OutboxEntry *entry = lfirst(lc);

		entry->alone = list_length(take->chosen) == 1;

		/* README.md, "An entry"; a deferred one stands too far behind */
		if (entry->state == QUEUE_BEHIND ||
			(take->chose_suspect && entry->state == QUEUE_WAITS))
			queue_reschedule(&take->queue, entry, QUEUED, 0, false);
		else
			queue_update(&take->queue, entry);
	}
}

typedef struct TakeNote
{
	UndoEntry	undo;
	Destination settings;		/* name and numbers */
	CallsEnded	in_vain;		/* if it is undone: what is not answered yet */
} TakeNote;

static void undo_take(UndoEntry *entry);

/* All memory goes with the transaction. */
static UndoList notes = UNDO_LIST(notes, NULL, undo_take);

static void
note_taken(const Take *take)
{
	TakeNote   *note;

	if (take->chosen == NIL)
		return;
	note = MemoryContextAlloc(TopTransactionContext, sizeof(TakeNote));
	note->settings = *take->settings;
	note->settings.name = MemoryContextStrdup(TopTransactionContext, take->destination);
	note->in_vain = (CallsEnded)
	{
		.first_tries = list_length(take->chosen) - take->retries,
			.retries = take->retries,
			.probe = take->grant.probe,
			.until = take->grant.until
	};
	if (!take->grant.counted)
		note->in_vain.first_tries = note->in_vain.retries = 0;
	undo_push(&notes, &note->undo);
}

/*
 * An event that this transaction has taken is answered: there is nothing left
 * of it to give back.
 */
void
take_answered(const char *destination, bool was_retry)
{
	dlist_iter	iter;

	dlist_reverse_foreach(iter, &notes.entries)
	{
		TakeNote   *note = dlist_container(TakeNote, undo.node, iter.cur);
		int		   *left = was_retry ? &note->in_vain.retries : &note->in_vain.first_tries;

		if (*left > 0 && strcmp(note->settings.name, destination) == 0)
		{
			(*left)--;
			return;
		}
	}
}

static void
undo_take(UndoEntry *entry)
{
	TakeNote   *note = (TakeNote *) entry;

	if (note->in_vain.first_tries + note->in_vain.retries > 0)
		limiter_end(&note->settings, &note->in_vain);
	queue_start_rewind(note->settings.name);
}

void
take_init(void)
{
	undo_register(&notes);
}

/* Scans within what was granted, and says what is used of that: nothing if it fails. */
static void
scan_within_grant(Take *take)
{
	PG_TRY();
	{
		queue_open(&take->queue);
		events_open(&take->events, false);
		scan(take);
		lease_chosen(take);
		events_close(&take->events);
		queue_close(&take->queue);
		note_taken(take);
	}
	PG_CATCH();
	{
		limiter_use(take->settings, &take->grant, 0, 0);
		PG_RE_THROW();
	}
	PG_END_TRY();
	limiter_use(take->settings, &take->grant,
				list_length(take->chosen) - take->retries, take->retries);
}

static void
take_once(Take *take)
{
	memset(&take->keys, 0, sizeof(Take) - offsetof(Take, keys));
	take->settings = destination_get(take->destination);
	take->next_at = NEVER;
	take->context = CurrentMemoryContext;
	take->row_context = AllocSetContextCreate(CurrentMemoryContext, "idempotency take row",
											  ALLOCSET_DEFAULT_SIZES);
	limiter_reserve(take->settings, take->wanted, take->lease, &take->grant);
	if (take->grant.calls > 0)
		scan_within_grant(take);
	else
		take->next_at = clock_after(GetCurrentTimestamp(), take->grant.retry_after);
}

/*
 * Takes, waiting until there is something, the wait is over, or the scan has
 * written something that should not stay uncommitted.
 */
static void
take_or_wait(Take *take, int64 wait)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "idempotency takes",
												  ALLOCSET_DEFAULT_SIZES);
	int64		deadline = clock_monotonic() + wait;

	if (wait > 0)
		queue_start_wait_begin(take->destination);
	for (;;)
	{
		int64		left;

		MemoryContextSwitchTo(context);
		MemoryContextReset(context);
		take_once(take);
		MemoryContextSwitchTo(caller);
		left = deadline - clock_monotonic();
		if (take->wrote || left <= 0)
			break;
		if (take->next_at != NEVER)
			left = Min(left, take->next_at - GetCurrentTimestamp());
		queue_start_wait(left);
		CHECK_FOR_INTERRUPTS();
	}
	if (wait > 0)
		queue_start_wait_end();
	MemoryContextDelete(context);
}

/* Returns an interval argument in microseconds.  Raises 22023. */
static int64
interval_argument(FunctionCallInfo fcinfo, int n, const char *what)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of idem_take must not be null", what)));
	return setting_microseconds(PG_GETARG_INTERVAL_P(n), what, "function", "idem_take", NULL);
}

/* Returns an argument that is a number of events.  Raises 22023. */
static int32
number_argument(FunctionCallInfo fcinfo, int n, const char *what)
{
	if (PG_ARGISNULL(n) || PG_GETARG_INT32(n) < 1)
		REFUSE_ARGUMENT(errmsg("%s of idem_take must be greater than zero", what),
						errhint("max_events is how many events are leased at most, per_key how many of one ordering key."));
	return PG_GETARG_INT32(n);
}

/* idem_take(destination, max_events, lease, wait, per_key) */
SQL_FUNCTION(idem_take)
{
	Take		take = {0};
	int64		wait;

	take.destination = destination_called(ARG_TEXT(0));
	take.wanted = number_argument(fcinfo, 1, "max_events");
	take.lease = interval_argument(fcinfo, 2, "lease");
	if (take.lease == 0)
		REFUSE_ARGUMENT(errmsg("lease of idem_take must be longer than zero"),
						errhint("Give the time that sending and acknowledging all of the events may take."));
	wait = interval_argument(fcinfo, 3, "wait");
	take.per_key = number_argument(fcinfo, 4, "per_key");
	destination_check_role(destination_get(take.destination));
	if (destination_get(take.destination)->relay_from_log)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("events of destination \"%s\" are not taken, but read from the log", take.destination),
				 errhint("Its setting relay is log. Let logical decoding deliver its events, or set relay to take.")));
	call_require_writable("idem_take()");

	InitMaterializedSRF(fcinfo, 0);
	take.fcinfo = fcinfo;
	take_or_wait(&take, wait);
	return (Datum) 0;
}
