/*-------------------------------------------------------------------------
 *
 * outbox.h
 *	  Events to deliver: what the rooms of the outbox share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_OUTBOX_H
#define IDEMPOTENCY_OUTBOX_H

#include "background.h"
#include "delivery.h"

/*----
 * events.c: the events themselves.
 *----
 */
typedef struct Event
{
	pg_uuid_t	id;
	TimestampTz created_at;
	bool		has_operation;
	pg_uuid_t	operation_id;
	int64		fence;			/* it was emitted under */
	text	   *destination;
	text	   *ordering_key;	/* NULL = none */
	Datum		payload;		/* jsonb */
	Datum		headers;		/* jsonb; (Datum) 0 = none */

	/* where it was found; not stored */
	ItemPointerData tid;
	TransactionId changer;		/* another open transaction on it */
} Event;

typedef struct Events
{
	Relation	rel;
	RowLook    *look;
} Events;

extern void events_open(Events *events, bool for_writing);
extern void events_close(Events *events);
extern ProbeResult events_find(Events *events, const pg_uuid_t *id, Event *event);
extern bool events_insert(Events *events, const Event *event);
extern void events_purge(PurgeBatch *batch);
extern void events_wait(Events *events, const Event *event);
extern bool events_adopted(const pg_uuid_t *id, int64 fence);
extern void events_adopt(const pg_uuid_t *id, int64 fence);

/*----
 * due.c: which of them are to be delivered, and when.
 *----
 */
#define DUE_WAITING	'w'			/* for its time, or for the end of its lease */
#define DUE_PARKED	'p'			/* behind another one of its ordering key */
#define DUE_DEAD	'd'			/* a dead letter */

/* Why an event is a dead letter. */
#define DEAD_REFUSED	"not retryable"
#define DEAD_ATTEMPTS	"max_attempts"
#define DEAD_DEADLINE	"deadline"

typedef struct Due
{
	pg_uuid_t	event_id;
	TimestampTz due_at;			/* NEVER = dead */
	TimestampTz lease_until;	/* NEVER = not leased, like first_at */
	TimestampTz first_at;		/* first taken; the deadline counts from it */
	TimestampTz dead_at;
	int64		place;			/* in the order of its key; 0 = has no key */
	int64		fence;			/* of the last take; 0 = none yet */
	int32		attempt;		/* how often it was taken */
	char		state;
	text	   *destination;
	text	   *ordering_key;	/* NULL = none */
	text	   *reason;			/* why it is dead; NULL = it is not */
	Datum		error;			/* the last one, jsonb; (Datum) 0 = none */
	bool		queue_again;	/* due_move: at the end of its key; not stored */

	/* where and how it was found; not stored */
	ItemPointerData tid;
	TransactionId xmin;			/* who wrote this version */
	bool		in_flight;		/* that one is another, open transaction */
	TransactionId changer;		/* another open transaction changing it */
} Due;

typedef struct DueTable
{
	Relation	rel;
	RowLook    *look;
	Relation	by_time;
	Relation	by_key;
	RowWriter  *writer;			/* NULL = read only */
} DueTable;

typedef struct DueScan DueScan;

extern void due_open(DueTable *table, bool for_writing);
extern void due_close(DueTable *table);
extern bool due_find(DueTable *table, const pg_uuid_t *id, Due *due);
extern bool due_exists(DueTable *table, const pg_uuid_t *id);
extern void due_enqueue(const Event *event, int64 delay);
extern RowChange due_lock(DueTable *table, const Due *found, bool wait);
extern void due_lease(DueTable *table, Due *due);
extern void due_move(DueTable *table, Due *due, int64 delay);
extern void due_bury(DueTable *table, Due *due, const char *reason);
extern void due_release_next(DueTable *table, const Due *gone, bool skip_dead);
extern RowChange due_delete(DueTable *table, const Due *found);
extern DueScan *due_scan_begin(DueTable *table, const char *destination,
							   TimestampTz from);
extern bool due_scan_next(DueScan *scan, Due *due);
extern void due_scan_end(DueScan *scan);
extern bool due_is_leased(const Due *due, TimestampTz now);
extern bool due_first_of_key(DueTable *table, const Due *of, bool skip_dead,
							 Due *first);
extern uint64 due_key_hash(const Due *due);
extern bool due_key_lock(const Due *due, bool wait);
extern void due_key_unlock(const Due *due);

/*----
 * ordinals.c: events of an operation, counted.
 *----
 */
typedef struct Origin
{
	pg_uuid_t	operation_id;
	TimestampTz claimed_at;		/* with it: one life of the record */
	int64		fence;			/* 0 = a replay */
	bool		fresh;			/* nothing was emitted before this transaction */
} Origin;

extern void ordinals_init(void);
extern int32 ordinals_next(const Origin *origin, Events *events);
extern void ordinals_used(const Origin *origin);
extern void ordinals_id(const Origin *origin, int32 ordinal, pg_uuid_t *id);

/*----
 * taken.c: what this transaction has taken, in case it is rolled back.
 *----
 */
extern void taken_init(void);
extern void taken_note(const char *destination, const Grant *grant, int calls);
extern void taken_report(const char *destination);

/*----
 * frontier.c: how far the queues are empty, and who waits for events.
 *----
 */
typedef struct Frontier
{
	int			stripe;
	int			hint;			/* -1 = none */
	Oid			queue;
	TimestampTz start;			/* all before it is gone */
	TimestampTz resume;			/* where the last take stopped */
	TimestampTz revisit_at;		/* until when that is good for */
	TimestampTz now;			/* what is due by now is due */
	TimestampTz ceiling;		/* all drawn before it is in the index */
	bool		may_advance;
	uint64		moves;
} Frontier;

extern Size frontier_size(void);
extern void frontier_attach(void *memory, bool found);
extern void frontier_init(void);
extern TimestampTz frontier_draw(const char *destination, int64 delay);
extern void frontier_drawn(const char *destination);
extern void frontier_moved(const char *destination);
extern void frontier_removed(const char *destination, TimestampTz position);
extern void frontier_begin(Frontier *frontier, const char *destination, Oid queue);
extern void frontier_advance(const Frontier *frontier, const char *destination,
							 TimestampTz first_left);
extern void frontier_stopped(const Frontier *frontier, const char *destination,
							 TimestampTz position, TimestampTz revisit_at);
extern void frontier_wake_at_commit(const char *destination);
extern void frontier_wait_begin(const char *destination);
extern void frontier_wait(int64 microseconds);
extern void frontier_wait_end(void);

#endif							/* IDEMPOTENCY_OUTBOX_H */
