/*-------------------------------------------------------------------------
 *
 * ordinals.c
 *	  Events of an operation, counted: the first is 0, on every attempt.
 *
 * The id of an event is made from its operation's id, when that was first
 * claimed, and its ordinal (identity.c).  The time sets one life of a record
 * apart from the next: a key that is executed anew after retention and guard
 * emits new events, whatever is left of the old ones.
 *
 * An attempt counts on through all its transactions.  What it has used is in
 * the outbox under its fence, or, if an earlier attempt had emitted the same
 * before it died, in outbox_adopted; and without gaps, because the next one is
 * always the first that is not used.  So where it stands is found by halving,
 * once for each transaction, and then remembered here: emitting many events
 * costs the same for each.
 *
 * Two transactions of one attempt that emit at the same time wait for each
 * other at the ordinal both want (emit.c).
 *
 * ROLLBACK TO SAVEPOINT takes events back, so it gives back ordinals: before
 * a count changes for the first time at a nesting level, its value is noted.
 * Notes are in order of level, the deepest last, as in permit.c.
 *
 * A replay counts too, from 0 in each transaction, and uses nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "compat.h"
#include "outbox.h"

#define UNKNOWN_ORDINAL (-1)

typedef struct CountKey
{
	pg_uuid_t	operation_id;
	TimestampTz claimed_at;
	int64		fence;
} CountKey;

typedef struct Count
{
	CountKey	key;
	int32		next;
	int			level;			/* at which next last changed */
} Count;

typedef struct Note
{
	dlist_node	node;
	Count	   *count;
	int32		next;			/* what both were before */
	int			level;
	int			at;				/* the level it was noted at */
} Note;

/* Of this transaction; all memory goes with it. */
static HTAB *counts = NULL;
static dlist_head notes = DLIST_STATIC_INIT(notes);

/*
 * The id of an event.
 */
void
ordinals_id(const Origin *origin, int32 ordinal, pg_uuid_t *id)
{
	identity_of_event(&origin->operation_id, origin->claimed_at, ordinal, id);
}

/*
 * The count of an attempt.
 */
static Count *
count_of(const Origin *origin)
{
	CountKey	key;
	Count	   *count;
	bool		found;

	if (counts == NULL)
	{
		HASHCTL		ctl = {
			.keysize = sizeof(CountKey),
			.entrysize = sizeof(Count),
			.hcxt = TopTransactionContext
		};

		counts = hash_create("idempotency ordinals", 16, &ctl,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	memset(&key, 0, sizeof(key));
	key.operation_id = origin->operation_id;
	key.claimed_at = origin->claimed_at;
	key.fence = origin->fence;
	count = hash_search(counts, &key, HASH_ENTER, &found);
	if (!found)
	{
		count->next = UNKNOWN_ORDINAL;
		count->level = 1;
	}
	return count;
}

/*
 * Change a count, so that it is undone with the current nesting level.
 */
static void
change(Count *count, int32 next)
{
	int			level = GetCurrentTransactionNestLevel();

	if (count->level < level)
	{
		Note	   *note = MemoryContextAlloc(TopTransactionContext, sizeof(Note));

		note->count = count;
		note->next = count->next;
		note->level = count->level;
		note->at = level;
		dlist_push_tail(&notes, &note->node);
		count->level = level;
	}
	count->next = next;
}

/*
 * Has the attempt used that ordinal?  Waits for a transaction that is emitting
 * an event with it.
 */
static bool
is_used(const Origin *origin, Events *events, int32 ordinal)
{
	pg_uuid_t	id;
	Event		event;
	ProbeResult found;

	ordinals_id(origin, ordinal, &id);
	while ((found = events_find(events, &id, &event)) == PROBE_IN_FLIGHT)
		events_wait(events, &event);
	return found == PROBE_ROW &&
		(event.fence == origin->fence || events_adopted(&id, origin->fence));
}

/*
 * The first ordinal the attempt has not used.
 */
static int32
find_next(const Origin *origin, Events *events)
{
	int32		used = -1;
	int32		unused = 0;

	while (is_used(origin, events, unused))
	{
		used = unused;
		unused = Min(unused, PG_INT32_MAX / 2 - 1) * 2 + 1;
	}
	while (unused - used > 1)
	{
		int32		middle = used + (unused - used) / 2;

		if (is_used(origin, events, middle))
			used = middle;
		else
			unused = middle;
	}
	return unused;
}

/*
 * The ordinal of the next event of an attempt.  The caller says when he has
 * used it.
 */
int32
ordinals_next(const Origin *origin, Events *events)
{
	Count	   *count = count_of(origin);

	if (count->next == UNKNOWN_ORDINAL)
		change(count, origin->fence == 0 || origin->fresh ? 0 :
			   find_next(origin, events));
	return count->next;
}

/*
 * The ordinal that ordinals_next gave is used.
 */
void
ordinals_used(const Origin *origin)
{
	Count	   *count = count_of(origin);

	change(count, count->next + 1);
}

/*----
 * The end of transactions and subtransactions.
 *----
 */

static void
ordinals_xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		event != XACT_EVENT_PREPARE)
		return;
	counts = NULL;
	dlist_init(&notes);
}

/*
 * Level is rolled back: what was noted at it holds again.
 */
static void
level_aborts(int level)
{
	while (!dlist_is_empty(&notes))
	{
		Note	   *note = dlist_tail_element(Note, node, &notes);

		if (note->at < level)
			break;
		note->count->next = note->next;
		note->count->level = note->level;
		dlist_delete(&note->node);
		pfree(note);
	}
}

/*
 * Level ends well: its notes belong to the level below, unless that has its
 * own of the same count, or needs none.
 */
static void
level_commits(int level)
{
	dlist_node *node = dlist_is_empty(&notes) ? NULL : dlist_tail_node(&notes);

	while (node)
	{
		Note	   *note = dlist_container(Note, node, node);

		if (note->at < level)
			break;
		node = dlist_has_prev(&notes, node) ? dlist_prev_node(&notes, node) : NULL;
		note->count->level = note->at = level - 1;
		if (note->level < level - 1)
			continue;
		dlist_delete(&note->node);
		pfree(note);
	}
}

static void
ordinals_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
						  SubTransactionId parentSubid, void *arg)
{
	if (dlist_is_empty(&notes))
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		level_commits(GetCurrentTransactionNestLevel());
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		level_aborts(GetCurrentTransactionNestLevel());
}

/*
 * Register the callbacks.  Once, at load.
 */
void
ordinals_init(void)
{
	RegisterXactCallback(ordinals_xact_callback, NULL);
	RegisterSubXactCallback(ordinals_subxact_callback, NULL);
}
