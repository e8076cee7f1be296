/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Everything that differs between PostgreSQL 15, 16, 17 and 18.
 *
 * The only file of the tree that looks at PG_VERSION_NUM.  Where a newer
 * server only renamed something, the newest name is the visible one; where a
 * call changed its form, it is wrapped under a name of ours.  Entries are in
 * alphabetical order.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_COMPAT_H
#define IDEMPOTENCY_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "catalog/pg_database.h"
#include "catalog/pg_proc.h"
#include "common/base64.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/sinvaladt.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "idempotency supports PostgreSQL 15 to 18"
#endif

/* 16: varlena macros moved out of postgres.h */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* 17: procs are found by number (storage/procarray.h) */
#if PG_VERSION_NUM >= 170000
#include "storage/procarray.h"
#endif

/* 18: a module tells its name and version */
#if PG_VERSION_NUM >= 180000
#define COMPAT_MODULE_MAGIC(module, number) \
	PG_MODULE_MAGIC_EXT(.name = module, .version = number)
#else
#define COMPAT_MODULE_MAGIC(module, number) PG_MODULE_MAGIC
#endif

/* 18: base64 is made of bytes, not of characters */
#if PG_VERSION_NUM >= 180000
typedef uint8 CompatByte;
#else
typedef char CompatByte;
#endif

static inline int
compat_base64_decode(const char *text, int len, uint8 *bytes, int room)
{
	return pg_b64_decode(text, len, (CompatByte *) bytes, room);
}

static inline int
compat_base64_encode(const uint8 *bytes, int len, char *text, int room)
{
	return pg_b64_encode((const CompatByte *) bytes, len, text, room);
}

/* 16: one check of privileges for all kinds of objects */
static inline bool
compat_may_execute(Oid func)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(ProcedureRelationId, func, GetUserId(),
						   ACL_EXECUTE) == ACLCHECK_OK;
#else
	return pg_proc_aclcheck(func, GetUserId(), ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

/* 16, and later minors of 15: a database whose making or dropping failed */
#ifndef DATCONNLIMIT_INVALID_DB
#define DATCONNLIMIT_INVALID_DB (-2)
#endif

/* 18: instrumentation argument */
static inline IndexScanDesc
compat_index_beginscan(Relation heap, Relation index, Snapshot snapshot,
					   int nkeys, int norderbys)
{
#if PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, norderbys);
#else
	return index_beginscan(heap, index, snapshot, nkeys, norderbys);
#endif
}

/* 16: only summarizing indexes may need an entry after an update */
static inline List *
compat_insert_index_tuples(ResultRelInfo *rri, TupleTableSlot *slot,
						   EState *estate, bool no_dup_err, bool *conflict,
						   List *arbiters, bool only_summarizing)
{
#if PG_VERSION_NUM >= 160000
	return ExecInsertIndexTuples(rri, slot, estate, false, no_dup_err, conflict,
								 arbiters, only_summarizing);
#else
	return ExecInsertIndexTuples(rri, slot, estate, false, no_dup_err, conflict,
								 arbiters);
#endif
}

/*
 * 17: backends are numbered as procs.  Pid of the session whose transaction
 * that is; 0 if it has none (prepared) or the session has gone on.
 */
static inline int
compat_pid_of_vxid(VirtualTransactionId vxid)
{
#if PG_VERSION_NUM >= 170000
	PGPROC	   *proc = ProcNumberGetProc(vxid.procNumber);

	return proc && proc->vxid.lxid == vxid.localTransactionId ? proc->pid : 0;
#else
	PGPROC	   *proc = BackendIdGetProc(vxid.backendId);

	return proc && proc->lxid == vxid.localTransactionId ? proc->pid : 0;
#endif
}

/* 18: a word in front of a function that does not return */
#if PG_VERSION_NUM < 180000
#define pg_noreturn __attribute__((noreturn))
#endif

/* 18: deferrable primary keys have to be refused by name */
static inline Oid
compat_primary_key_index(Relation rel)
{
#if PG_VERSION_NUM >= 180000
	return RelationGetPrimaryKeyIndex(rel, false);
#else
	return RelationGetPrimaryKeyIndex(rel);
#endif
}

/*
 * 16: settings are found by hash.  Before, to find that there is none of a name
 * is a long search, and their number, which only grows, tells whether it has to
 * be made again.  *known is that number when it was last made.
 */
static inline bool
compat_settings_grew(int *known)
{
#if PG_VERSION_NUM >= 160000
	return true;
#else
	int			before = *known;

	*known = GetNumConfigOptions();
	return *known != before;
#endif
}

/* 16: table_tuple_update tells which indexes need entries */
static inline TM_Result
compat_table_tuple_update(Relation rel, ItemPointer tid, TupleTableSlot *slot,
						  CommandId cid, bool wait, TM_FailureData *tmfd,
						  bool *insert_indexes, bool *only_summarizing)
{
	LockTupleMode lockmode;
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes which;
	TM_Result	result = table_tuple_update(rel, tid, slot, cid,
											InvalidSnapshot, InvalidSnapshot,
											wait, tmfd, &lockmode, &which);

	*insert_indexes = which != TU_None;
	*only_summarizing = which == TU_Summarizing;
	return result;
#else
	*only_summarizing = false;
	return table_tuple_update(rel, tid, slot, cid, InvalidSnapshot,
							  InvalidSnapshot, wait, tmfd, &lockmode,
							  insert_indexes);
#endif
}

/* 17: extensions name their wait events; *cached is 0 at first */
static inline uint32
compat_wait_event(uint32 *cached, const char *name)
{
#if PG_VERSION_NUM >= 170000
	if (*cached == 0)
		*cached = WaitEventExtensionNew(name);
	return *cached;
#else
	return PG_WAIT_EXTENSION;
#endif
}

#endif							/* IDEMPOTENCY_COMPAT_H */
