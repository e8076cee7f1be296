/*
 * open_claims.c
 *	  Claims open in this transaction: their locks, and the refusal to commit
 *	  without an outcome.
 *
 * In flight is a lock
 * -------------------
 * A claim holds the lock of its id: a private class of advisory lock keys, so
 * no pg_advisory_lock can meet it.  It goes away with the transaction, also by
 * ROLLBACK TO SAVEPOINT, also by a crash; PREPARE TRANSACTION keeps it; and its
 * holder is known.  No session ever waits for such a lock, so it cannot be part of a
 * deadlock.  Of two ids whose last 64 bits are the same, a claim of one would only be
 * answered in_progress while the other is held.
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
 * ones at once and needs no lock for them: the dirty probe of others sees the row.
 *
 * Nothing commits half-done
 * -------------------------
 * COMMIT and PREPARE are refused from the pre-commit callback while a claim
 * is open, or when a completion was repeated that another transaction had
 * made and this one has a transaction id, that is, has written something.
 * SET CONSTRAINTS ALL IMMEDIATE, with which a test that rolls back asks for the
 * checks of COMMIT, is refused likewise.
 *
 * Callbacks run last-registered first.  postgres_fdw registers its own when a
 * session first uses a foreign server and commits the remote transaction from
 * it, so ours has to stand in front: it is moved there with the first open
 * claim of a transaction and, while there is one, whenever a statement ends,
 * since the foreign server may be used after the claim.
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/transam.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "record/record.h"
#include "stats/stats.h"

/* locktag_field4 of these locks; PostgreSQL's own functions use 1 and 2. */
#define LOCK_CLASS 0x1DE0

/*
 * Claims of one transaction in flight as a lock.  Half of the default
 * max_locks_per_transaction, so that all sessions can do it at once.
 */
#define MAX_LOCKS 32

typedef struct OpenClaimEntry
{
	pg_uuid_t	id;
	OpenClaim  *open;
	char		status;
} OpenClaimEntry;

/* An id is a digest: half of it, past the time of the key, is hash enough. */
static inline uint32
hash_id(pg_uuid_t id)
{
	uint32		hash;

	memcpy(&hash, &id.data[10], sizeof(hash));
	return hash;
}

#define SH_PREFIX claims
#define SH_ELEMENT_TYPE OpenClaimEntry
#define SH_KEY_TYPE pg_uuid_t
#define SH_KEY id
#define SH_HASH_KEY(tb, key) hash_id(key)
#define SH_EQUAL(tb, a, b) (memcmp(&(a), &(b), UUID_LEN) == 0)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* Kept between transactions, but empty. */
static claims_hash * claims = NULL;

static int	n_open = 0;			/* not finished */
static int	n_locked = 0;		/* hold their lock */

/* The first outcome repeated from an earlier transaction. */
static struct
{
	UndoEntry	entry;			/* level 0 = none */
	const char *done;			/* how, as a participle */
	char	   *operation;
	pg_uuid_t	id;
}			repeated;

/* This transaction has rewritten an outcome that an earlier one had recorded. */
static bool rewritten = false;

static void opened_undone(UndoEntry *entry);
static void finished_kept(UndoEntry *entry);
static void finished_undone(UndoEntry *entry);
static void repeated_undone(UndoEntry *entry);

/*
 * All open claims, by the level they were made at, and those whose completion may still
 * be rolled back alone, by that of it.
 */
static UndoList all_opened = UNDO_LIST(all_opened, NULL, opened_undone);
static UndoList all_finished = UNDO_LIST(all_finished, finished_kept, finished_undone);
static UndoList all_repeated = UNDO_LIST(all_repeated, NULL, repeated_undone);

/* There is something to check or forget at the end of this transaction. */
static bool watching = false;

static ExecutorEnd_hook_type previous_executor_end = NULL;
static ProcessUtility_hook_type previous_process_utility = NULL;

static void open_claim_xact_callback(XactEvent event, void *arg);

static void
set_locktag(LOCKTAG *tag, const pg_uuid_t *id)
{
	uint32		high;
	uint32		low;

	memcpy(&high, &id->data[8], sizeof(high));
	memcpy(&low, &id->data[12], sizeof(low));
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, pg_ntoh32(high), pg_ntoh32(low), LOCK_CLASS);
}

bool
open_claim_lock_held(const pg_uuid_t *id)
{
	LOCKTAG		tag;

	set_locktag(&tag, id);
	return compat_lock_held(&tag, ExclusiveLock);
}

/* Takes the lock of an id for this subtransaction.  False if another session has it. */
bool
open_claim_lock(const pg_uuid_t *id)
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

static void
unlock_from(const pg_uuid_t *id, ResourceOwner owner)
{
	ResourceOwner caller = CurrentResourceOwner;
	LOCKTAG		tag;

	set_locktag(&tag, id);
	Assert(compat_lock_held(&tag, ExclusiveLock));
	CurrentResourceOwner = owner;
	LockRelease(&tag, ExclusiveLock, false);
	CurrentResourceOwner = caller;
}

/* Releases a lock taken by open_claim_lock at the current nesting level. */
void
open_claim_unlock(const pg_uuid_t *id)
{
	unlock_from(id, CurTransactionResourceOwner);
}

/*
 * Returns whether another session holds the lock of an id.  *holder is then its pid, or
 * 0 if it is a prepared transaction.
 */
bool
open_claim_holder(const pg_uuid_t *id, int32 *holder)
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
 * Returns whether a transaction or subtransaction is still open.  *holder is then the
 * pid of its session, 0 if it is prepared.  Not for use on a standby.
 */
bool
open_claim_holder_of_xid(TransactionId xid, int32 *holder)
{
	*holder = BackendXidGetPid(SubTransGetTopmostTransaction(xid));
	return *holder > 0 || TransactionIdIsInProgress(xid);
}

bool
open_claim_has_room(void)
{
	return n_locked < MAX_LOCKS;
}

/* Stays in front of the callbacks of foreign servers. */
static void
move_to_front(void)
{
	if (!watching)
		return;
	UnregisterXactCallback(open_claim_xact_callback, NULL);
	RegisterXactCallback(open_claim_xact_callback, NULL);
}

static void
watch(void)
{
	if (watching)
		return;
	watching = true;
	move_to_front();
}

/*
 * Opens the claim rec at the current nesting level.  found is the record it
 * takes over, if any.  The caller must hold the lock of the id and hands it
 * over; when written, rec is in the table and the lock is given back.
 */
void
open_claim_begin(const Record *rec, OpenClaimPrior prior, const Record *found,
				 bool written)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	OpenClaim  *open = palloc0(sizeof(OpenClaim));
	OpenClaimEntry *entry;
	bool		exists;

	Assert(open_claim_lock_held(&rec->id));
	Assert(rec->state == RECORD_PROCESSING && rec->lease_until == NEVER);
	Assert(prior == PRIOR_NOTHING || found != NULL);
	open->rec = *rec;
	open->rec.principal = DatumGetTextPCopy(PointerGetDatum(rec->principal));
	open->rec.operation = DatumGetTextPCopy(PointerGetDatum(rec->operation));
	open->rec.key = DatumGetTextPCopy(PointerGetDatum(rec->key));
	if (rec->owner)
		open->rec.owner = DatumGetTextPCopy(PointerGetDatum(rec->owner));
	MemoryContextSwitchTo(old);

	open->prior = prior;
	if (prior != PRIOR_NOTHING)
	{
		open->prior_fence = found->fence;
		open->prior_state = found->state;
	}
	open->written = written;

	if (claims == NULL)
		claims = claims_create(TopMemoryContext, 16, NULL);
	watch();
	entry = claims_insert(claims, rec->id, &exists);
	/* claimed again after a release that a savepoint may still undo */
	open->previous = exists ? entry->open : NULL;
	Assert(open->previous == NULL || !open_claim_is_open(open->previous));
	entry->open = open;
	undo_push(&all_opened, &open->opened);
	n_open++;
	if (written)
		open_claim_unlock(&rec->id);
	else
		n_locked++;
}

/* Returns the open claim of an id, or NULL.  Only the latest of an id can be open. */
OpenClaim *
open_claim_find(const pg_uuid_t *id)
{
	OpenClaimEntry *entry;

	if (n_open == 0)
		return NULL;
	entry = claims_lookup(claims, *id);
	return entry && open_claim_is_open(entry->open) ? entry->open : NULL;
}

/* Forgets a claim that is in no list any more. */
static void
forget(OpenClaim *open)
{
	OpenClaimEntry *entry;

	Assert(n_open >= 0 && n_locked >= 0);
	if (open_claim_is_open(open))
		n_open--;
	if (!open->written)
		n_locked--;
	entry = claims_lookup(claims, open->rec.id);
	Assert(entry != NULL);
	if (entry->open == open && open->previous == NULL)
		claims_delete(claims, open->rec.id);
	else
	{
		OpenClaim **link = &entry->open;

		while (*link != open)
			link = &(*link)->previous;
		*link = open->previous;
	}
	pfree(open->rec.principal);
	pfree(open->rec.operation);
	pfree(open->rec.key);
	if (open->rec.owner)
		pfree(open->rec.owner);
	pfree(open);
}

/*
 * Ends a claim at the current nesting level, at which the row of its outcome
 * stands, or its own has been withdrawn.
 */
void
open_claim_finish(OpenClaim *open)
{
	int			level = GetCurrentTransactionNestLevel();

	Assert(open_claim_is_open(open));
	Assert(open->opened.level <= level);
	if (level > open->opened.level)
	{
		n_open--;
		undo_push(&all_finished, &open->finished);
		return;
	}
	if (!open->written)
		open_claim_unlock(&open->rec.id);
	dlist_delete(&open->opened.node);
	forget(open);
}

/* Returns whether that version is the one the claim stands on. */
static bool
is_as_claimed(const OpenClaim *open, const Record *found)
{
	if (open->written)
		return found->fence == open->rec.fence &&
			found->state == RECORD_PROCESSING;
	return found->fence == open->prior_fence &&
		found->state == open->prior_state;
}

/*
 * Returns whether purge may have removed the record the claim stands on.  Not one that
 * was processing: if that is gone, its owner has finished it.
 */
static bool
may_be_purged(const OpenClaim *open)
{
	return !open->written &&
		(open->prior == PRIOR_FORGOTTEN ||
		 open->prior_state == RECORD_ACCEPTED ||
		 open->prior_state == RECORD_RELEASED ||
		 open->prior_state == RECORD_RETRYABLE);
}

/*
 * Writes what became of a claim.  Waits for a transaction that is changing the
 * same record.  False if the record is no longer the one claimed: its former
 * owner, or a writer past the locks, was first.
 */
bool
open_claim_write(const OpenClaim *open, Store *store, const Identity *who,
				 const Record *rec)
{
	Assert(open_claim_is_open(open));
	Assert(open->written || open_claim_lock_held(&open->rec.id));
	Assert(memcmp(&rec->id, &open->rec.id, UUID_LEN) == 0);
	if (open->prior == PRIOR_NOTHING && !open->written)
		return store_insert(store, rec);
	for (;;)
	{
		Record		found;
		ProbeResult result = store_probe(store, who, &found);

		/* purge did what all readers saw already */
		if (result == PROBE_NOTHING && may_be_purged(open))
			return store_insert(store, rec);
		if (result != PROBE_ROW || !is_as_claimed(open, &found))
			return false;
		if (store_update(store, &found, rec, true) == ROW_CHANGED)
			return true;
	}
}

/* Removes the row of a claim that is given up.  False as open_claim_write. */
bool
open_claim_withdraw(const OpenClaim *open, Store *store, const Identity *who)
{
	Record		found;

	Assert(open_claim_is_open(open));
	Assert(open->prior == PRIOR_NOTHING);
	if (!open->written)
		return true;
	return store_probe(store, who, &found) == PROBE_ROW &&
		is_as_claimed(open, &found) &&
		store_delete(store, &found, true) == ROW_CHANGED;
}

/*
 * Notes that a completion made by an earlier transaction was repeated in
 * this one.  One is enough: if this is not the first, the first stands at the
 * same level or an enclosing one and outlives it.
 */
void
open_claim_mark_repeated(const Identity *who, const char *done)
{
	if (repeated.entry.level != 0)
		return;
	watch();
	undo_push(&all_repeated, &repeated.entry);
	repeated.done = done;
	repeated.operation = MemoryContextStrdup(TopTransactionContext,
											 who->operation);
	repeated.id = who->id;
}

/* Notes that a row of this transaction may from now on say what an earlier one did. */
void
open_claim_mark_rewritten(void)
{
	watch();
	rewritten = true;
}

/* Returns whether the outcome in a version may be that of an earlier transaction. */
bool
open_claim_may_be_earlier(TransactionId xmin)
{
	return rewritten || !TransactionIdIsCurrentTransactionId(xmin);
}

/*----
 * The end of transactions and subtransactions.
 *----
 */

/* Forgets everything; the memory goes with the transaction. */
static void
forget_all(void)
{
	if (claims && claims->members > 0)
	{
		/* a large table would have to be cleared at each later use */
		if (claims->size > 1024)
		{
			claims_destroy(claims);
			claims = NULL;
		}
		else
			claims_reset(claims);
	}
	dlist_init(&all_opened.entries);
	dlist_init(&all_finished.entries);
	dlist_init(&all_repeated.entries);
	n_open = n_locked = 0;
	repeated.entry.level = 0;
	rewritten = false;
	watching = false;
}

List *
open_claim_list(void)
{
	List	   *list = NIL;
	dlist_iter	iter;

	if (n_open == 0)
		return NIL;
	dlist_foreach(iter, &all_opened.entries)
	{
		OpenClaim  *open = dlist_container(OpenClaim, opened.node, iter.cur);

		if (open_claim_is_open(open))
			list = lappend(list, open);
	}
	Assert(list_length(list) == n_open);
	return list;
}

/*
 * Raises ID003 if a claim is left open: names the first, counts the rest.  Before the
 * end, one whose call is still under way, that is idem_run, is not left open.
 */
static void
refuse_open_claims(const char *what, bool at_end)
{
	List	   *open = open_claim_list();
	const OpenClaim *first;
	ListCell   *lc;

	foreach(lc, open)
	{
		if (!at_end && ((OpenClaim *) lfirst(lc))->call_finishes)
			open = foreach_delete_current(open, lc);
	}
	if (open == NIL)
		return;
	first = linitial(open);
	counters_add(counters_of(text_to_cstring(first->rec.operation), false),
				 COUNT_COMMIT_REFUSED, 1);
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_LEFT_OPEN),
			 list_length(open) == 1 ?
			 errmsg("%s refused: the claim of operation \"%s\" (id %s) is left open",
					what, text_to_cstring(first->rec.operation),
					identity_text(&first->rec.id)) :
			 errmsg("%s refused: the claim of operation \"%s\" (id %s) and %d more are left open",
					what, text_to_cstring(first->rec.operation),
					identity_text(&first->rec.id), list_length(open) - 1),
			 errhint("Call idem_complete, idem_fail or idem_release in the transaction of the claim. "
					 "If each call is a transaction of its own, use idem_run, or claim with a lease.")));
}

/*
 * Raises ID002 if a completion was repeated and the transaction has written:
 * it is the second try of one that has committed.
 */
static void
refuse_repeated_completion(const char *what)
{
	if (repeated.entry.level == 0 || !TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	counters_add(counters_of(repeated.operation, false), COUNT_COMMIT_REFUSED, 1);
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_NOT_YOURS),
			 errmsg("%s refused: operation \"%s\" (id %s) was already %s by an earlier transaction",
					what, repeated.operation, identity_text(&repeated.id), repeated.done),
			 errhint("The earlier try had committed. Roll back and claim again to learn what is on record.")));
}

static void
open_claim_xact_callback(XactEvent event, void *arg)
{
	const char *what = event == XACT_EVENT_PRE_COMMIT ? "COMMIT" :
	event == XACT_EVENT_PRE_PREPARE ? "PREPARE TRANSACTION" : NULL;

	/* not in a parallel worker, which makes no claims */
	if (!watching)
		return;
	if (what)
	{
		refuse_open_claims(what, true);
		refuse_repeated_completion(what);
	}
	else
		forget_all();
}

/*
 * A completion belongs to the enclosing level now.  If that is the claim's own,
 * its lock, which belongs there too, is given back.
 */
static void
finished_kept(UndoEntry *entry)
{
	OpenClaim  *open = dlist_container(OpenClaim, finished.node, &entry->node);

	if (open->opened.level != entry->level)
		return;
	dlist_delete(&open->finished.node);
	dlist_delete(&open->opened.node);
	if (!open->written)
		unlock_from(&open->rec.id,
					ResourceOwnerGetParent(CurTransactionResourceOwner));
	forget(open);
}

static void
finished_undone(UndoEntry *entry)
{
	entry->level = 0;
	n_open++;
}

/* A claim is void; its lock goes by itself. */
static void
opened_undone(UndoEntry *entry)
{
	forget(dlist_container(OpenClaim, opened.node, &entry->node));
}

static void
repeated_undone(UndoEntry *entry)
{
	entry->level = 0;
}

/* SET CONSTRAINTS ALL IMMEDIATE asks now what COMMIT would ask. */
static bool
asks_for_commit_checks(const Node *statement)
{
	const ConstraintsSetStmt *set = (const ConstraintsSetStmt *) statement;

	return IsA(statement, ConstraintsSetStmt) && set->constraints == NIL &&
		!set->deferred;
}

static void
open_claim_executor_end(QueryDesc *query_desc)
{
	store_close_kept();
	if (previous_executor_end)
		previous_executor_end(query_desc);
	else
		standard_ExecutorEnd(query_desc);
	move_to_front();
}

static void
open_claim_process_utility(PlannedStmt *pstmt, const char *query_string,
						   bool read_only_tree, ProcessUtilityContext context,
						   ParamListInfo params, QueryEnvironment *query_env,
						   DestReceiver *dest, QueryCompletion *qc)
{
	store_close_kept();
	if (previous_process_utility)
		previous_process_utility(pstmt, query_string, read_only_tree, context,
								 params, query_env, dest, qc);
	else
		standard_ProcessUtility(pstmt, query_string, read_only_tree, context,
								params, query_env, dest, qc);
	store_close_kept();
	move_to_front();
	if (watching && asks_for_commit_checks(pstmt->utilityStmt))
	{
		refuse_open_claims("SET CONSTRAINTS ALL IMMEDIATE", false);
		refuse_repeated_completion("SET CONSTRAINTS ALL IMMEDIATE");
	}
}

/* Registers callbacks and hooks.  Once, at load. */
void
open_claim_init(void)
{
	RegisterXactCallback(open_claim_xact_callback, NULL);
	undo_register(&all_opened);
	undo_register(&all_finished);
	undo_register(&all_repeated);
	previous_executor_end = ExecutorEnd_hook;
	ExecutorEnd_hook = open_claim_executor_end;
	previous_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = open_claim_process_utility;
}
