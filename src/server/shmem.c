/*
 * shmem.c
 *	  The extension's shared memory: who has a piece of it, and the locks.
 *
 * There is any only if the library is in shared_preload_libraries.  Pieces are
 * handed out once, at server start, to those listed in idempotency.c; each
 * knows what protects its own.  After a crash the postmaster makes all of it
 * anew.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "server/server.h"

#define TRANCHE "idempotency"

static const SharedPiece *pieces = NULL;
static int	n_pieces = 0;
static LWLockPadded *locks = NULL;
static shmem_request_hook_type previous_request = NULL;
static shmem_startup_hook_type previous_startup = NULL;

bool
shared_available(void)
{
	return locks != NULL;
}

/* Returns a lock of ours.  Only if shared memory is available. */
LWLock *
shared_lock(SharedLock which)
{
	return &locks[which].lock;
}

static void
shared_request(void)
{
	if (previous_request)
		previous_request();
	for (int i = 0; i < n_pieces; i++)
		RequestAddinShmemSpace(pieces[i].size());
	RequestNamedLWLockTranche(TRANCHE, N_SHARED_LOCKS);
}

/* Attach to it; who comes first makes it ready, of zeros. */
static void
shared_startup(void)
{
	if (previous_startup)
		previous_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < n_pieces; i++)
	{
		bool		found;
		Size		size = pieces[i].size();
		void	   *memory = ShmemInitStruct(pieces[i].name, size, &found);

		if (!found)
			memset(memory, 0, size);
		pieces[i].attach(memory, found);
	}
	locks = GetNamedLWLockTranche(TRANCHE);
	LWLockRelease(AddinShmemInitLock);
}

/* Returns the databases that pieces keep something of, as a list of OIDs. */
List *
shared_databases(void)
{
	List	   *databases = NIL;

	for (int i = 0; i < n_pieces; i++)
	{
		const EntryTable *table = pieces[i].table;

		for (int j = 0; table && j < table->n; j++)
			databases = list_append_unique_oid(databases, entries_at(table, j)->database);
	}
	return databases;
}

void
shared_forget(const List *databases)
{
	for (int i = 0; i < n_pieces; i++)
	{
		if (pieces[i].table)
			entries_forget(pieces[i].table, databases);
	}
}

void
shared_count_again(void)
{
	for (int i = 0; i < n_pieces; i++)
	{
		if (pieces[i].count_again)
			pieces[i].count_again();
	}
}

/* Hooks in.  Called at load; does nothing unless the server is starting. */
void
shared_init(const SharedPiece *list, int n)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	pieces = list;
	n_pieces = n;
	previous_request = shmem_request_hook;
	shmem_request_hook = shared_request;
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = shared_startup;
}
