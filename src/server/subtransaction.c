/*
 * subtransaction.c
 *	  A step that may fail without what is around it failing, and what is to be
 *	  undone with the subtransaction it was done in.
 *
 * An undo list has its entries in order of the nesting level they belong to:
 * they are added at the current level, and when a level ends well its entries
 * go to the enclosing one, whose number is one less.  So the end of a level
 * touches only the tail of the list that belongs to it.  At the end of the
 * transaction what is left is undone if it is rolled back, and else forgotten.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/resowner.h"

#include "server/server.h"

#define MOST_UNDO_LISTS 8

/* In the order they are told of levels that end well; the reverse for undoing. */
static UndoList *undo_lists[MOST_UNDO_LISTS];
static int	n_undo_lists = 0;

/*
 * Does a step in a subtransaction.  Returns NULL, or the error that undid it, in memory
 * of the current context; what an operator does (cancel, terminate) is raised again.
 * The step must leave nothing open that is to be closed outside.
 */
ErrorData *
subtransaction_try(void (*step) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		step(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error && ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
		ReThrowError(error);
	return error;
}

/* Adds an entry at the current nesting level. */
void
undo_push(UndoList *list, UndoEntry *entry)
{
	entry->level = GetCurrentTransactionNestLevel();
	Assert(dlist_is_empty(&list->entries) ||
		   dlist_tail_element(UndoEntry, node, &list->entries)->level <= entry->level);
	dlist_push_tail(&list->entries, &entry->node);
}

/* Undoes what was added at a nesting level or deeper, the latest first. */
static void
undo_level(UndoList *list, int level)
{
	while (!dlist_is_empty(&list->entries))
	{
		UndoEntry  *entry = dlist_tail_element(UndoEntry, node, &list->entries);

		if (entry->level < level)
			break;
		dlist_delete(&entry->node);
		list->undone(entry);
	}
}

/* A level ends well: its entries belong to the enclosing one. */
static void
keep_level(UndoList *list, int level)
{
	dlist_node *node = dlist_is_empty(&list->entries) ? NULL :
	dlist_tail_node(&list->entries);

	while (node)
	{
		UndoEntry  *entry = dlist_container(UndoEntry, node, node);

		if (entry->level < level)
			break;
		node = dlist_has_prev(&list->entries, node) ?
			dlist_prev_node(&list->entries, node) : NULL;
		entry->level = level - 1;
		if (list->kept)
			list->kept(entry);
	}
}

static void
undo_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
					  SubTransactionId parentSubid, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (int i = 0; i < n_undo_lists; i++)
			keep_level(undo_lists[i], level);
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		for (int i = n_undo_lists - 1; i >= 0; i--)
			undo_level(undo_lists[i], level);
	}
}

static void
undo_xact_callback(XactEvent event, void *arg)
{
	for (int i = n_undo_lists - 1; i >= 0; i--)
	{
		if (event == XACT_EVENT_ABORT)
			undo_level(undo_lists[i], 0);
		else if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE)
			dlist_init(&undo_lists[i]->entries);
	}
}

/* Once for each list, at load. */
void
undo_register(UndoList *list)
{
	Assert(n_undo_lists < MOST_UNDO_LISTS);
	if (n_undo_lists == 0)
	{
		RegisterSubXactCallback(undo_subxact_callback, NULL);
		RegisterXactCallback(undo_xact_callback, NULL);
	}
	undo_lists[n_undo_lists++] = list;
}
