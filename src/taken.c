/*-------------------------------------------------------------------------
 *
 * taken.c
 *	  What this transaction has taken, in case it is rolled back.
 *
 * The discipline of calls belongs to no transaction (discipline.c), because a
 * call that was made stays made.  Events are sent after the transaction that
 * took them has committed, so what is taken and rolled back was never sent:
 * its places in flight are given back, else a destination with few of them
 * would stand still until they lapse.
 *
 * The notes are in order of nesting level, the deepest last, as in permit.c.
 * Who prepares his transaction keeps the places.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/ilist.h"
#include "utils/memutils.h"

#include "compat.h"
#include "outbox.h"

typedef struct Taken
{
	dlist_node	node;
	char	   *destination;
	Grant		grant;
	int			calls;			/* not reported yet */
	int			level;			/* at which they were taken */
} Taken;

/* Of this transaction; all memory goes with it. */
static dlist_head notes = DLIST_STATIC_INIT(notes);

/*
 * That many calls of a grant are taken.
 */
void
taken_note(const char *destination, const Grant *grant, int calls)
{
	Taken	   *note;

	if (!grant->counted || calls == 0)
		return;
	note = MemoryContextAlloc(TopTransactionContext, sizeof(Taken));
	note->destination = MemoryContextStrdup(TopTransactionContext, destination);
	note->grant = *grant;
	note->calls = calls;
	note->level = GetCurrentTransactionNestLevel();
	dlist_push_tail(&notes, &note->node);
}

/*
 * One that this transaction has taken is reported, which gives its place back.
 */
void
taken_report(const char *destination)
{
	dlist_iter	iter;

	dlist_reverse_foreach(iter, &notes)
	{
		Taken	   *note = dlist_container(Taken, node, iter.cur);

		if (note->calls > 0 && strcmp(note->destination, destination) == 0)
		{
			note->calls--;
			return;
		}
	}
}

/*
 * Give back what was taken at a level or deeper.
 */
static void
give_back(int level)
{
	while (!dlist_is_empty(&notes))
	{
		Taken	   *note = dlist_tail_element(Taken, node, &notes);

		if (note->level < level)
			break;
		discipline_void(note->destination, &note->grant, note->calls);
		dlist_delete(&note->node);
	}
}

static void
taken_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT)
		give_back(0);
	else if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE)
		dlist_init(&notes);
}

static void
taken_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					   SubTransactionId parentSubid, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	dlist_iter	iter;

	if (event == SUBXACT_EVENT_ABORT_SUB)
		give_back(level);
	if (event != SUBXACT_EVENT_COMMIT_SUB)
		return;
	dlist_reverse_foreach(iter, &notes)
	{
		Taken	   *note = dlist_container(Taken, node, iter.cur);

		if (note->level < level)
			break;
		note->level = level - 1;
	}
}

/*
 * Register the callbacks.  Once, at load.
 */
void
taken_init(void)
{
	RegisterXactCallback(taken_xact_callback, NULL);
	RegisterSubXactCallback(taken_subxact_callback, NULL);
}
