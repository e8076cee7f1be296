/*-------------------------------------------------------------------------
 *
 * permit.c
 *	  Claims open in this transaction: their locks, and the refusal to commit
 *	  without an outcome.
 *
 * In flight is a lock
 * -------------------
 * A claim holds the lock of its id: a private class of advisory lock keys, so
 * no pg_advisory_lock can meet it.  The lock manager gives us for nothing what
 * a table of claims would have to be built for: it goes away with the
 * transaction, also by ROLLBACK TO SAVEPOINT, also by a crash; PREPARE
 * TRANSACTION keeps it; and it says who holds it.  Nobody ever waits for such
 * a lock, so it cannot be part of a deadlock.
 *
 * 62 bits of the id make the lock key.  Two ids with the same ones would only
 * make one caller wait for the other's transaction.
 *
 * The lock is taken and given back under the resource owner of the current
 * subtransaction, not of the portal: it has to live as long as the claim.
 * When the row that replaces it stands at the claim's own nesting level, it
 * is given back early, and a transaction with very many claims does not fill
 * the lock table.  A row written in a deeper savepoint may still vanish with
 * it, so then the lock stays until that savepoint is released:
 *
 *		claim at level 1, completion at level 2
 *		  RELEASE of level 2   -> completion at level 1 = the claim's: give back
 *		  ROLLBACK of level 2  -> the claim is open again, and still locked
 *
 * A transaction that holds MAX_LOCKS claims open writes the rows of further
 * ones at once and needs no lock for them; an uncommitted row is seen by the
 * dirty look-up of others just as well.
 *
 * Nothing commits half-done
 * -------------------------
 * COMMIT and PREPARE are refused from the pre-commit callback while a permit
 * is open, or when a completion was repeated that another transaction had
 * made and this one has a transaction id, that is, has written something.
 *
 * Callbacks run last-registered first.  postgres_fdw registers its own when a
 * session first uses a foreign server and commits the remote transaction from
 * it, so ours has to stand in front: it is moved there when the first permit
 * of a transaction opens and, while one is open, whenever a statement ends,
 * since the foreign server may be used after the claim.
 *
 * The lists
 * ---------
 * Permits are appended at the current nesting level, and when a level ends its
 * permits go to the one below or vanish; so both lists are always in order of
 * level, and ending a level touches only the tail that belongs to it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "counters.h"

/* locktag_field4 of our locks; PostgreSQL's own functions use 1 and 2. */
#define LOCK_CLASS 0x1DE0

/*
 * Claims of one transaction in flight as a lock.  Half of the default
 * max_locks_per_transaction, so that all sessions can do it at once.
 */
#define MAX_LOCKS 32

typedef struct PermitEntry
{
	pg_uuid_t	id;
	Permit	   *permit;
	char		status;
} PermitEntry;

/* An id is a digest: half of it, past the time of the key, is hash enough. */
static inline uint32
hash_id(pg_uuid_t id)
{
	uint32		hash;

	memcpy(&hash, &id.data[10], sizeof(hash));
	return hash;
}

#define SH_PREFIX permits
#define SH_ELEMENT_TYPE PermitEntry
#define SH_KEY_TYPE pg_uuid_t
#define SH_KEY id
#define SH_HASH_KEY(tb, key) hash_id(key)
#define SH_EQUAL(tb, a, b) (memcmp(&(a), &(b), UUID_LEN) == 0)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* Permits of this transaction by id; kept between transactions, but empty. */
static permits_hash * permits = NULL;

/* All of them, and those whose completion may still be rolled back alone. */
static dlist_head opened = DLIST_STATIC_INIT(opened);
static dlist_head settled = DLIST_STATIC_INIT(settled);

static int	n_open = 0;			/* not settled */
static int	n_locked = 0;		/* hold their lock */

/* The first completion repeated from an earlier transaction. */
static struct
{
	int			level;			/* 0 = none */
	char	   *operation;
	pg_uuid_t	id;
}			repeated;

/* Does the end of this transaction concern us? */
static bool watching = false;

static ExecutorEnd_hook_type previous_executor_end = NULL;
static ProcessUtility_hook_type previous_process_utility = NULL;

static void permit_xact_callback(XactEvent event, void *arg);

/*----
 * The lock of an id.
 *----
 */

static void
set_locktag(LOCKTAG *tag, const pg_uuid_t *id)
{
	uint32		high;
	uint32		low;

	memcpy(&high, &id->data[8], sizeof(high));
	memcpy(&low, &id->data[12], sizeof(low));
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, high, low, LOCK_CLASS);
}

/*
 * Is that the lock of an id of this database?  half is then bytes 8 to 15 of
 * the id.
 */
bool
permit_lock_is_ours(const LOCKTAG *tag, uint8 *half)
{
	if (tag->locktag_type != LOCKTAG_ADVISORY ||
		tag->locktag_field4 != LOCK_CLASS ||
		tag->locktag_field1 != MyDatabaseId)
		return false;
	memcpy(&half[0], &tag->locktag_field2, 4);
	memcpy(&half[4], &tag->locktag_field3, 4);
	return true;
}

/*
 * Take the lock of an id for this subtransaction, without waiting.  False if
 * another session has it.
 */
bool
permit_lock(const pg_uuid_t *id)
{
	ResourceOwner caller = CurrentResourceOwner;
	LOCKTAG		tag;
	LockAcquireResult result;

	set_locktag(&tag, id);
	CurrentResourceOwner = CurTransactionResourceOwner;
	result = LockAcquire(&tag, ExclusiveLock, false, true);
	CurrentResourceOwner = caller;
	return result != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Give back a lock that belongs to that resource owner.
 */
static void
unlock_from(const pg_uuid_t *id, ResourceOwner owner)
{
	ResourceOwner caller = CurrentResourceOwner;
	LOCKTAG		tag;

	set_locktag(&tag, id);
	CurrentResourceOwner = owner;
	LockRelease(&tag, ExclusiveLock, false);
	CurrentResourceOwner = caller;
}

/*
 * Give back a lock taken by permit_lock at the current nesting level.
 */
void
permit_unlock(const pg_uuid_t *id)
{
	unlock_from(id, CurTransactionResourceOwner);
}

/*
 * Does another session hold the lock of an id?  *holder is then its pid, or 0
 * if it is a prepared transaction.
 */
bool
permit_holder(const pg_uuid_t *id, int32 *holder)
{
	LOCKTAG		tag;

	set_locktag(&tag, id);
	*holder = 0;

	/*
	 * A transaction without a session is a prepared one, or one that ended
	 * since; only the former still holds the lock at a second look.
	 */
	for (int look = 0; look < 2 && *holder == 0; look++)
	{
		VirtualTransactionId *vxids;
		int			count;

		vxids = GetLockConflicts(&tag, ExclusiveLock, &count);
		if (count == 0)
			return false;
		*holder = compat_pid_of_vxid(vxids[0]);
	}
	return true;
}

/*
 * Is that transaction or subtransaction still open?  *holder is then the pid
 * of its session, 0 if it is prepared.  Not for use on a standby.
 */
bool
permit_holder_of_xid(TransactionId xid, int32 *holder)
{
	*holder = BackendXidGetPid(SubTransGetTopmostTransaction(xid));
	return *holder > 0 || TransactionIdIsInProgress(xid);
}

/*----
 * The permits.
 *----
 */

/*
 * May this transaction hold another claim as a lock?
 */
bool
permit_room(void)
{
	return n_locked < MAX_LOCKS;
}

/*
 * From now on the end of the transaction concerns us.
 */
static void
watch(void)
{
	if (watching)
		return;
	UnregisterXactCallback(permit_xact_callback, NULL);
	RegisterXactCallback(permit_xact_callback, NULL);
	watching = true;
}

static text *
copy_text(const text *value)
{
	text	   *copy;

	if (value == NULL)
		return NULL;
	copy = palloc(VARSIZE_ANY(value));
	memcpy(copy, value, VARSIZE_ANY(value));
	return copy;
}

/*
 * Open a permit for the claim rec at the current nesting level.  found is the
 * record it takes over, if any.  The caller holds the lock of the id and hands
 * it over; when written, rec is in the table and the lock is given back.
 */
void
permit_open(const Record *rec, PermitPrior prior, const Record *found,
			bool written)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	Permit	   *permit = palloc0(sizeof(Permit));
	PermitEntry *entry;
	bool		exists;

	permit->rec = *rec;
	permit->rec.principal = copy_text(rec->principal);
	permit->rec.operation = copy_text(rec->operation);
	permit->rec.key = copy_text(rec->key);
	permit->rec.owner = copy_text(rec->owner);
	MemoryContextSwitchTo(old);

	permit->prior = prior;
	if (prior != PRIOR_NOTHING)
	{
		permit->prior_fence = found->fence;
		permit->prior_state = found->state;
	}
	permit->written = written;
	permit->level = GetCurrentTransactionNestLevel();

	if (permits == NULL)
		permits = permits_create(TopMemoryContext, 16, NULL);
	watch();
	entry = permits_insert(permits, rec->id, &exists);
	/* claimed again after a release that a savepoint may still undo */
	permit->previous = exists ? entry->permit : NULL;
	entry->permit = permit;
	dlist_push_tail(&opened, &permit->opened_node);
	n_open++;
	if (written)
		permit_unlock(&rec->id);
	else
		n_locked++;
}

/*
 * The latest permit of an id, open or settled deeper; NULL if there is none.
 */
Permit *
permit_find(const pg_uuid_t *id)
{
	PermitEntry *entry;

	if (permits == NULL || permits->members == 0)
		return NULL;
	entry = permits_lookup(permits, *id);
	return entry ? entry->permit : NULL;
}

/*
 * Forget a permit.
 */
static void
permit_remove(Permit *permit)
{
	PermitEntry *entry;

	if (permit->settled_level == 0)
		n_open--;
	if (!permit->written)
		n_locked--;
	entry = permits_lookup(permits, permit->rec.id);
	if (entry->permit == permit && permit->previous == NULL)
		permits_delete(permits, permit->rec.id);
	else
	{
		Permit	  **link = &entry->permit;

		while (*link != permit)
			link = &(*link)->previous;
		*link = permit->previous;
	}
	dlist_delete(&permit->opened_node);
	pfree(permit->rec.principal);
	pfree(permit->rec.operation);
	pfree(permit->rec.key);
	if (permit->rec.owner)
		pfree(permit->rec.owner);
	pfree(permit);
}

/*
 * The row that is the outcome stands, or nothing is left to stand, at the
 * current nesting level.
 */
void
permit_settle(Permit *permit)
{
	int			level = GetCurrentTransactionNestLevel();

	if (level == permit->level)
	{
		if (!permit->written)
			permit_unlock(&permit->rec.id);
		permit_remove(permit);
		return;
	}
	n_open--;
	permit->settled_level = level;
	dlist_push_tail(&settled, &permit->settled_node);
}

/*
 * Is that version the one the permit's claim stands on?
 */
static bool
is_as_claimed(const Permit *permit, const Record *found)
{
	if (permit->written)
		return found->fence == permit->rec.fence &&
			found->state == RECORD_PROCESSING;
	return found->fence == permit->prior_fence &&
		found->state == permit->prior_state;
}

/*
 * May purge have removed the record the permit's claim stands on?  Not one
 * that was processing: if that is gone, its owner has finished it.
 */
static bool
may_be_purged(const Permit *permit)
{
	return !permit->written &&
		(permit->prior == PRIOR_FORGOTTEN ||
		 permit->prior_state == RECORD_RELEASED ||
		 permit->prior_state == RECORD_RETRYABLE);
}

/*
 * Write what became of a permit's claim.  Waits for a transaction that is
 * changing the same record.  False if the record is no longer the one claimed:
 * its former owner, or somebody writing past the locks, was first.
 */
bool
permit_write(const Permit *permit, Store *store, const Identity *who,
			 const Record *rec)
{
	if (permit->prior == PRIOR_NOTHING && !permit->written)
		return store_insert(store, rec);
	for (;;)
	{
		Record		found;
		ProbeResult result = store_probe(store, who, &found);

		/* purge did what everybody saw already */
		if (result == PROBE_NOTHING && may_be_purged(permit))
			return store_insert(store, rec);
		if (result != PROBE_ROW || !is_as_claimed(permit, &found))
			return false;
		if (store_update(store, &found, rec, true) == ROW_CHANGED)
			return true;
	}
}

/*
 * Remove the row of a claim that is given up without a trace.  False as
 * permit_write.
 */
bool
permit_withdraw(const Permit *permit, Store *store, const Identity *who)
{
	Record		found;

	if (!permit->written)
		return true;
	return store_probe(store, who, &found) == PROBE_ROW &&
		is_as_claimed(permit, &found) &&
		store_delete(store, &found, true) == ROW_CHANGED;
}

/*
 * Remember that a completion made by an earlier transaction was repeated in
 * this one.  One is enough: if this is not the first, the first stands at the
 * same or a lower level and outlives it.
 */
void
permit_mark_repeated(const Identity *who)
{
	if (repeated.level != 0)
		return;
	watch();
	repeated.level = GetCurrentTransactionNestLevel();
	repeated.operation = MemoryContextStrdup(TopTransactionContext,
											 who->operation);
	repeated.id = who->id;
}

/*----
 * The end of transactions and subtransactions.
 *----
 */

/*
 * Forget everything; the memory goes with the transaction.
 */
static void
forget_all(void)
{
	if (permits && permits->members > 0)
	{
		/* a large table would have to be cleared at each later use */
		if (permits->size > 1024)
		{
			permits_destroy(permits);
			permits = NULL;
		}
		else
			permits_reset(permits);
	}
	dlist_init(&opened);
	dlist_init(&settled);
	n_open = n_locked = 0;
	repeated.level = 0;
	watching = false;
}

/*
 * Raise ID003 if a claim is open: names the first, counts the rest.
 */
static void
refuse_open_claims(const char *what)
{
	dlist_iter	iter;

	if (n_open == 0)
		return;
	dlist_foreach(iter, &opened)
	{
		Permit	   *permit = dlist_container(Permit, opened_node, iter.cur);

		if (permit->settled_level != 0)
			continue;
		counters_add(counters_of(text_to_cstring(permit->rec.operation)),
					 COUNT_COMMIT_REFUSED, 1);
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_LEFT_OPEN),
				 n_open == 1 ?
				 errmsg("%s refused: the claim of operation \"%s\" (id %s) is left open",
						what, text_to_cstring(permit->rec.operation),
						id_text(&permit->rec.id)) :
				 errmsg("%s refused: the claim of operation \"%s\" (id %s) and %d more are left open",
						what, text_to_cstring(permit->rec.operation),
						id_text(&permit->rec.id), n_open - 1),
				 errhint("Call idem_complete, idem_fail or idem_release in the transaction of the claim. "
						 "If each call is a transaction of its own, use idem_run, or claim with a lease.")));
	}
}

/*
 * Raise ID002 if a completion was repeated and the transaction has written:
 * it is the second try of one that has committed.
 */
static void
refuse_repeated_completion(const char *what)
{
	if (repeated.level == 0 || !TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	counters_add(counters_of(repeated.operation), COUNT_COMMIT_REFUSED, 1);
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_YOURS),
			 errmsg("%s refused: operation \"%s\" (id %s) was already completed by an earlier transaction",
					what, repeated.operation, id_text(&repeated.id)),
			 errhint("The earlier try had committed. Roll back and claim again to get its result.")));
}

/*
 * Before the end: refuse.  At the end: forget.
 */
static void
permit_xact_callback(XactEvent event, void *arg)
{
	if (!watching)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			refuse_open_claims("COMMIT");
			refuse_repeated_completion("COMMIT");
			break;
		case XACT_EVENT_PRE_PREPARE:
			refuse_open_claims("PREPARE TRANSACTION");
			refuse_repeated_completion("PREPARE TRANSACTION");
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			forget_all();
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

/*
 * Level ends well: what belongs to it belongs to the level below.  The lock
 * of a claim of the level below is by now owned there.
 */
static void
level_commits(int level)
{
	dlist_iter	iter;
	dlist_node *node;

	dlist_reverse_foreach(iter, &opened)
	{
		Permit	   *permit = dlist_container(Permit, opened_node, iter.cur);

		if (permit->level < level)
			break;
		permit->level = level - 1;
	}
	node = dlist_is_empty(&settled) ? NULL : dlist_tail_node(&settled);
	while (node)
	{
		Permit	   *permit = dlist_container(Permit, settled_node, node);

		if (permit->settled_level < level)
			break;
		node = dlist_has_prev(&settled, node) ? dlist_prev_node(&settled, node) : NULL;
		permit->settled_level = level - 1;
		if (permit->level != level - 1)
			continue;
		dlist_delete(&permit->settled_node);
		if (!permit->written)
			unlock_from(&permit->rec.id,
						ResourceOwnerGetParent(CurTransactionResourceOwner));
		permit_remove(permit);
	}
	if (repeated.level >= level)
		repeated.level = level - 1;
}

/*
 * Level is rolled back: its completions did not happen, its claims are void.
 * Their locks go by themselves.
 */
static void
level_aborts(int level)
{
	while (!dlist_is_empty(&settled))
	{
		Permit	   *permit = dlist_tail_element(Permit, settled_node, &settled);

		if (permit->settled_level < level)
			break;
		dlist_delete(&permit->settled_node);
		permit->settled_level = 0;
		n_open++;
	}
	while (!dlist_is_empty(&opened))
	{
		Permit	   *permit = dlist_tail_element(Permit, opened_node, &opened);

		if (permit->level < level)
			break;
		permit_remove(permit);
	}
	if (repeated.level >= level)
		repeated.level = 0;
}

static void
permit_subxact_callback(SubXactEvent event, SubTransactionId mySubid,
						SubTransactionId parentSubid, void *arg)
{
	if (!watching)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		level_commits(GetCurrentTransactionNestLevel());
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		level_aborts(GetCurrentTransactionNestLevel());
}

/*----
 * Staying in front of the callbacks of foreign servers.
 *----
 */

static void
move_to_front(void)
{
	if (!watching)
		return;
	UnregisterXactCallback(permit_xact_callback, NULL);
	RegisterXactCallback(permit_xact_callback, NULL);
}

static void
permit_executor_end(QueryDesc *query_desc)
{
	if (previous_executor_end)
		previous_executor_end(query_desc);
	else
		standard_ExecutorEnd(query_desc);
	move_to_front();
}

static void
permit_process_utility(PlannedStmt *pstmt, const char *query_string,
					   bool read_only_tree, ProcessUtilityContext context,
					   ParamListInfo params, QueryEnvironment *query_env,
					   DestReceiver *dest, QueryCompletion *qc)
{
	if (previous_process_utility)
		previous_process_utility(pstmt, query_string, read_only_tree, context,
								 params, query_env, dest, qc);
	else
		standard_ProcessUtility(pstmt, query_string, read_only_tree, context,
								params, query_env, dest, qc);
	move_to_front();
}

/*
 * Register callbacks and hooks.  Once, at load.
 */
void
permit_init(void)
{
	RegisterXactCallback(permit_xact_callback, NULL);
	RegisterSubXactCallback(permit_subxact_callback, NULL);
	previous_executor_end = ExecutorEnd_hook;
	ExecutorEnd_hook = permit_executor_end;
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = permit_process_utility;
}
