/*
 * worker.h
 *	  The launcher, the worker, and what is known of its runs.
 */
#ifndef IDEMPOTENCY_WORKER_H
#define IDEMPOTENCY_WORKER_H

#include "record/record.h"

typedef enum RunOutcome
{
	RUN_NEVER,					/* not been there yet */
	RUN_RUNNING,
	RUN_DONE,
	RUN_UNFINISHED,				/* there is more to do */
	RUN_NO_EXTENSION,
	RUN_BUSY,					/* another session wants database or extension */
	RUN_FAILED
} RunOutcome;

/* What is known of a database.  Protected by LOCK_RUNS. */
typedef struct WorkerRun
{
	Oid			database;		/* InvalidOid = free */
	char		name[NAMEDATALEN];
	RunOutcome	outcome;
	int			pid;			/* of the worker that is there; 0 = none */
	TimestampTz started_at;		/* of the last run */
	TimestampTz ended_at;
	int64		rests_from;		/* likewise, by clock_monotonic() */
	int32		faults_in_row;	/* runs that failed since one did not */
	int64		runs;
	int64		purged;			/* in the last run */
	int64		purged_total;
	int64		failed;			/* records left in the last run */
	double		speed_up;		/* of the purge, when it was last seen */
	TimestampTz purged_until;	/* least forget_at of those removed last */
	TimestampTz fault_at;
	char		fault[FAULT_TEXT_MAX];	/* the last one; "" = none */
} WorkerRun;

#define MAX_RUNS 256

/* runs.c */
extern Size runs_size(void);
extern void runs_attach(void *memory, bool found);
extern void runs_forget_all_but(const List *databases);
extern WorkerRun *runs_acquire(Oid database);
extern void runs_release(void);
extern bool runs_is_due(Oid database);
extern int64 runs_next_due(void);
extern void runs_begin(Oid database, int pid);
extern bool runs_fault(Oid database, const char *fault);
extern void runs_end(Oid database, RunOutcome outcome);
extern void runs_end_if_running(Oid database);

/* launcher.c */
extern void launcher_init(void);

/* worker.c */
extern void background_begin(void);
extern void background_rest(long ms, uint32 wait_event);
extern bool background_lock_database(Oid database);

#endif							/* IDEMPOTENCY_WORKER_H */
