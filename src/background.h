/*-------------------------------------------------------------------------
 *
 * background.h
 *	  What the processes in the background share with each other and with
 *	  those who watch them: shared memory, purging, visits to databases.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_BACKGROUND_H
#define IDEMPOTENCY_BACKGROUND_H

#include "storage/lockdefs.h"
#include "storage/lwlock.h"

#include "idempotency.h"

#define LIBRARY_NAME "idempotency"

/* shared.c */

/* Parts of the outbox that do not stop each other: see frontier.c. */
#define OUTBOX_STRIPES 64

/* Locks of our own, in the one tranche we ask for. */
typedef enum SharedLock
{
	LOCK_VISITS,
	LOCK_COUNTERS,
	LOCK_DISCIPLINE,
	LOCK_OUTBOX,				/* and one for each further stripe */
	N_SHARED_LOCKS = LOCK_OUTBOX + OUTBOX_STRIPES
} SharedLock;

extern void shared_init(void);
extern bool shared_available(void);
extern LWLock *shared_lock(SharedLock which);

/*----
 * Purging.
 *----
 */
#define FAULT_TEXT_MAX 256

/* One batch of a purge: what is asked for, then what came of it. */
struct PurgeBatch
{
	int64		max_records;	/* to remove one by one */
	int64		max_looks;		/* records to look at; 0 = no limit */
	int64		max_emptied;	/* to remove with all of a segment */
	bool		lazy;			/* leave what will soon go with a segment */
	bool		careful;		/* what fails is left, not raised */

	/* where to go on, from one batch to the next */
	int			next_segment;	/* to see whether it can be emptied */
	int			next_table;
	bool		done[N_RECORD_TABLES];
	TimestampTz reached[N_RECORD_TABLES];	/* by forget_at */

	/* the same for events; "" = the first destination */
	char		destination[IDEM_TEXT_MAX * 4 + 1];
	TimestampTz destination_from;

	int64		removed;
	int64		failed;
	bool		at_end;			/* looked at all there are */
	TimestampTz from;			/* how far it came in all that are not done */
	char		fault[FAULT_TEXT_MAX];	/* of the first that failed */
};

/* purge.c */
extern void purge_begin(PurgeBatch *batch);
extern void purge_again(PurgeBatch *batch);
extern bool purge_batch(PurgeBatch *batch);
extern bool purge_note_fault(PurgeBatch *batch, const ErrorData *error);

/*----
 * Visits.
 *----
 */
typedef enum VisitOutcome
{
	VISIT_NEVER,				/* not been there yet */
	VISIT_RUNNING,
	VISIT_DONE,
	VISIT_UNFINISHED,			/* there is more to do */
	VISIT_NO_EXTENSION,
	VISIT_BUSY,					/* somebody wanted database or extension */
	VISIT_FAILED
} VisitOutcome;

/* What is known of a database.  Protected by LOCK_VISITS. */
typedef struct Visit
{
	Oid			database;		/* InvalidOid = free */
	char		name[NAMEDATALEN];
	VisitOutcome outcome;
	int			pid;			/* of the worker that is there; 0 = none */
	TimestampTz started_at;		/* of the last visit */
	TimestampTz ended_at;
	int32		faults_in_row;	/* visits that failed since one did not */
	int64		visits;
	int64		purged;			/* in the last visit */
	int64		purged_total;
	int64		failed;			/* records left in the last visit */
	double		haste;			/* of the purge, when it was last seen */
	TimestampTz purged_until;	/* forget_at of the last record looked at */
	TimestampTz fault_at;
	char		fault[FAULT_TEXT_MAX];	/* the last one; "" = none */
} Visit;

#define MAX_VISITS 256

/* visits.c */
extern Size visits_size(void);
extern void visits_attach(void *memory, bool found);
extern void visits_forget_all_but(const List *databases);
extern bool visits_enter(Oid database, const char *name);
extern bool visits_is_due(Oid database, TimestampTz now);
extern TimestampTz visits_next_due(TimestampTz now);
extern void visits_begin(Oid database, int pid);
extern double visits_haste(Oid database);
extern void visits_progress(Oid database, const PurgeBatch *batch,
							double haste);
extern bool visits_fault(Oid database, const char *fault);
extern void visits_end(Oid database, VisitOutcome outcome);
extern void visits_end_if_running(Oid database);

/* discipline.c */
extern Size discipline_size(void);
extern void discipline_attach(void *memory, bool found);
extern List *discipline_databases(void);
extern void discipline_forget(const List *databases);

/* launcher.c */
extern void launcher_init(void);

/* worker.c */
extern bool background_lock_database(Oid database);

/* guc.c */
extern char *guc_databases;
extern int	guc_naptime;
extern int	guc_purge_delay;
extern bool guc_worker;

#endif							/* IDEMPOTENCY_BACKGROUND_H */
