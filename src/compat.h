/*
 * compat.h
 *	  Everything that differs between PostgreSQL 15, 16, 17 and 18.
 *
 * The only file of the tree that looks at PG_VERSION_NUM.  Where a newer
 * server only renamed something, the newest name is the visible one; where a
 * call changed its form, it is wrapped under a name of ours.  Entries are in
 * alphabetical order.
 */
#ifndef IDEMPOTENCY_COMPAT_H
#define IDEMPOTENCY_COMPAT_H

#include "access/brin_revmap.h"
#include "access/brin_tuple.h"
#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "common/jsonapi.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/sinvaladt.h"
#include "utils/acl.h"
#include "utils/guc.h"
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

/* 17: a BRIN index is read without a snapshot */
static inline BrinRevmap *
compat_brin_revmap(Relation index, BlockNumber *blocks_per_range)
{
#if PG_VERSION_NUM >= 170000
	return brinRevmapInitialize(index, blocks_per_range);
#else
	return brinRevmapInitialize(index, blocks_per_range, NULL);
#endif
}

static inline BrinTuple *
compat_brin_tuple(BrinRevmap *revmap, BlockNumber block, Buffer *buffer,
				  OffsetNumber *offset, Size *size)
{
#if PG_VERSION_NUM >= 170000
	return brinGetTupleForHeapBlock(revmap, block, buffer, offset, size,
									BUFFER_LOCK_SHARE);
#else
	return brinGetTupleForHeapBlock(revmap, block, buffer, offset, size,
									BUFFER_LOCK_SHARE, NULL);
#endif
}

/* 16: one check of privileges for all kinds of objects */
static inline bool
compat_may_use_schema(Oid schema)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(NamespaceRelationId, schema, GetUserId(),
						   ACL_USAGE) == ACLCHECK_OK;
#else
	return pg_namespace_aclcheck(schema, GetUserId(), ACL_USAGE) == ACLCHECK_OK;
#endif
}

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

/* 16: an update may need entries in summarizing indexes only.  Waits for others. */
static inline TM_Result
compat_heap_update(Relation rel, ItemPointer tid, HeapTuple tuple, CommandId cid,
				   bool *insert_indexes, bool *only_summarizing)
{
	TM_FailureData tmfd;
	LockTupleMode lockmode;
#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes which;
	TM_Result	result = heap_update(rel, tid, tuple, cid, InvalidSnapshot, true,
									 &tmfd, &lockmode, &which);

	*insert_indexes = which != TU_None;
	*only_summarizing = which == TU_Summarizing;
#else
	TM_Result	result = heap_update(rel, tid, tuple, cid, InvalidSnapshot, true,
									 &tmfd, &lockmode);

	*insert_indexes = !HeapTupleIsHeapOnly(tuple);
	*only_summarizing = false;
#endif
	return result;
}

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

/* 17: an index may keep something between inserts */
static inline void
compat_index_insert_cleanup(Relation index, struct IndexInfo *info)
{
#if PG_VERSION_NUM >= 170000
	index_insert_cleanup(index, info);
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

/* 17: a lexer of JSON is made or made ready again */
static inline JsonLexContext *
compat_json_lexer(const char *json, int len)
{
#if PG_VERSION_NUM >= 170000
	return makeJsonLexContextCstringLen(NULL, json, len, GetDatabaseEncoding(),
										true);
#else
	return makeJsonLexContextCstringLen(unconstify(char *, json), len,
										GetDatabaseEncoding(), true);
#endif
}

/* 16: actions of the JSON parser say whether to go on */
#if PG_VERSION_NUM >= 160000
typedef JsonParseErrorType CompatJsonResult;
#define COMPAT_JSON_RETURN() return JSON_SUCCESS
#else
typedef void CompatJsonResult;
#define COMPAT_JSON_RETURN() return
#endif

/* 16: a character it cannot translate is a result, not an error it raises */
#if PG_VERSION_NUM >= 160000
#define COMPAT_JSON_UNTRANSLATABLE JSON_UNICODE_UNTRANSLATABLE
#else
#define COMPAT_JSON_UNTRANSLATABLE JSON_UNICODE_HIGH_ESCAPE
#endif

/* 17: also asks for stronger modes */
static inline bool
compat_lock_held(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
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
