/*-------------------------------------------------------------------------
 *
 * shared.c
 *	  The extension's shared memory: who has a piece of it, and the locks.
 *
 * There is any only if the library is in shared_preload_libraries.  Pieces are
 * handed out once, at server start, to the rooms listed in pieces; each knows
 * what protects its own.  After a crash the postmaster makes all of it anew.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"

#include "background.h"
#include "compat.h"
#include "counters.h"
#include "outbox.h"
#include "requests.h"

#define TRANCHE "idempotency"

typedef struct Piece
{
	const char *name;
	Size		(*size) (void);
	void		(*attach) (void *memory, bool found);
} Piece;

static const Piece pieces[] = {
	{"idempotency counters", counters_size, counters_attach},
	{"idempotency discipline", discipline_size, discipline_attach},
	{"idempotency outbox", frontier_size, frontier_attach},
	{"idempotency requests", requests_size, requests_attach},
	{"idempotency visits", visits_size, visits_attach},
};

static LWLockPadded *locks = NULL;
static shmem_request_hook_type previous_request = NULL;
static shmem_startup_hook_type previous_startup = NULL;

/*
 * Is there shared memory, that is, was the library preloaded?
 */
bool
shared_available(void)
{
	return locks != NULL;
}

/*
 * A lock of ours.  Only if shared memory is available.
 */
LWLock *
shared_lock(SharedLock which)
{
	return &locks[which].lock;
}

/*
 * Ask for the memory.
 */
static void
shared_request(void)
{
	if (previous_request)
		previous_request();
	for (int i = 0; i < lengthof(pieces); i++)
		RequestAddinShmemSpace(pieces[i].size());
	RequestNamedLWLockTranche(TRANCHE, N_SHARED_LOCKS);
}

/*
 * Attach to it; who comes first makes it ready.
 */
static void
shared_startup(void)
{
	if (previous_startup)
		previous_startup();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	for (int i = 0; i < lengthof(pieces); i++)
	{
		bool		found;
		void	   *memory = ShmemInitStruct(pieces[i].name, pieces[i].size(), &found);

		pieces[i].attach(memory, found);
	}
	locks = GetNamedLWLockTranche(TRANCHE);
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Hook in.  Called at load; does nothing unless the server is starting.
 */
void
shared_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	previous_request = shmem_request_hook;
	shmem_request_hook = shared_request;
	previous_startup = shmem_startup_hook;
	shmem_startup_hook = shared_startup;
}
