/*
 * outbox.h
 *	  Events to deliver: README.md in this folder tells the protocol.
 */
#ifndef IDEMPOTENCY_OUTBOX_H
#define IDEMPOTENCY_OUTBOX_H

#include "claim/claim.h"
#include "calls/calls.h"

/* events.c */
typedef struct OutboxEvent
{
	pg_uuid_t	id;
	TimestampTz created_at;
	bool		has_operation;
	pg_uuid_t	operation_id;
	text	   *destination;
	text	   *ordering_key;	/* NULL = none */
	Datum		payload;		/* jsonb */
	Datum		headers;		/* jsonb; (Datum) 0 = none */

	/* where it was found; not stored */
	ItemPointerData tid;
	TransactionId changer;		/* another open transaction on it */
	bool		ours;			/* this transaction has inserted or locked it */
} OutboxEvent;

typedef struct OutboxEvents
{
	Relation	rel;
	RowProbe   *look;
} OutboxEvents;

/* Text that a taker can receive, whatever encoding it is converted to. */
#define MAX_EVENT_TEXT (INT64CONST(256) * 1024 * 1024)

extern pg_uuid_t event_id_argument(FunctionCallInfo fcinfo, const char *function);
extern void events_open(OutboxEvents *events, bool for_writing);
extern void events_close(OutboxEvents *events);
extern ProbeResult events_find(OutboxEvents *events, const pg_uuid_t *id,
							   OutboxEvent *event);
extern void events_lock(OutboxEvents *events, const pg_uuid_t *id, OutboxEvent *event);
extern bool events_insert(OutboxEvents *events, const OutboxEvent *event);
extern bool event_exceeds(const OutboxEvent *event, int64 max_bytes);
extern void outbox_init(void);

/* queue.c */
#define QUEUED			'q'		/* due by being there; due_at is its position */
#define QUEUE_WAITS		'w'		/* until due_at */
#define QUEUE_BEHIND	'b'		/* another one of its key; until due_at at
								 * most */
#define QUEUE_DEAD		'd'		/* a dead letter */

/* Why an event is a dead letter. */
#define DEAD_REFUSED	"not retryable"
#define DEAD_ATTEMPTS	"max_attempts"
#define DEAD_DEADLINE	"deadline"
#define DEAD_TOO_LARGE	"too large to receive"

/* An event in the queue. */
typedef struct OutboxEntry
{
	pg_uuid_t	event_id;
	TimestampTz due_at;			/* NEVER = dead */
	TimestampTz lease_until;	/* NEVER = not leased, likewise the next four */
	TimestampTz again_at;		/* due again if the lease is not answered */
	TimestampTz first_at;		/* first taken; the deadline counts from it */
	TimestampTz dead_at;
	int64		place;			/* in the order of its key; 0 = has no key */
	int64		fence;			/* of the last take; 0 = none yet */
	int32		attempt;
	bool		alone;			/* the last take gave nothing else */
	char		state;
	text	   *destination;
	text	   *ordering_key;	/* NULL = none */
	text	   *reason;			/* why it is dead; NULL = it is not */
	Datum		error;			/* the last one, jsonb; (Datum) 0 = none */

	/* where and how it was found; not stored */
	HeapTuple	tuple;			/* that it points into */
	ItemPointerData tid;
	TransactionId xmin;			/* of the transaction that wrote this version */
	bool		in_flight;		/* that one is another, open transaction */
	TransactionId changer;		/* another open transaction changing it */
} OutboxEntry;

typedef struct OutboxQueue
{
	Relation	rel;
	RowProbe   *look;
	Relation	by_time;
	Relation	by_key;
	RowWriter  *writer;
} OutboxQueue;

extern void queue_open(OutboxQueue *queue);
extern void queue_close(OutboxQueue *queue);
extern bool queue_find(OutboxQueue *queue, const pg_uuid_t *id, OutboxEntry *entry);
extern bool queue_has(OutboxQueue *queue, const pg_uuid_t *id);
extern void queue_add(const OutboxEvent *event, int64 delay);
extern void queue_update(OutboxQueue *queue, OutboxEntry *entry);
extern void queue_reschedule(OutboxQueue *queue, OutboxEntry *entry, char state,
							 int64 delay, bool to_end_of_key);
extern void queue_move_to_dead(OutboxQueue *queue, OutboxEntry *entry,
							   const char *reason);
extern void queue_release_next(OutboxQueue *queue, const OutboxEntry *gone,
							   bool skip_dead);
extern RowChange queue_delete(OutboxQueue *queue, const OutboxEntry *found);
extern RowScan *queue_scan_begin(OutboxQueue *queue, const char *destination,
								 char state, TimestampTz from);
extern RowScan *queue_scan_key(OutboxQueue *queue, const OutboxEntry *of,
							   int64 above, ScanDirection direction);
extern bool queue_scan_next(RowScan *scan, OutboxEntry *entry);
extern bool queue_first_of_key(OutboxQueue *queue, const OutboxEntry *of,
							   bool skip_dead, OutboxEntry *first);
extern bool queue_is_leased(const OutboxEntry *entry, TimestampTz now);
extern bool queue_lease_is_retry(const OutboxEntry *leased);
extern uint64 queue_key_hash(const OutboxEntry *entry);
extern bool queue_key_lock(const OutboxEntry *entry, bool wait);
extern void queue_key_unlock(const OutboxEntry *entry);

/* take.c */
extern void take_init(void);
extern void take_answered(const char *destination, bool was_retry);

/* queue_start.c */

/* Where a scan of the queue of a destination starts. */
typedef struct OutboxStart
{
	int			stripe;
	struct LowMark *mark;		/* of the destination; NULL = none */
	uint32		generation;		/* of the mark then */
	Oid			queue;
	TimestampTz low;			/* all before it is gone */
	TimestampTz resume;			/* where the last take stopped */
	TimestampTz revisit_at;		/* until when that is good for */
	TimestampTz now;			/* by the clock */
	TimestampTz high;			/* all assigned before it is in the index */
	bool		may_raise;		/* the low-water mark */
	uint64		moves;
} OutboxStart;

extern Size queue_start_size(void);
extern void queue_start_attach(void *memory, bool found);
extern void queue_start_init(void);
extern TimestampTz queue_start_assign(const char *destination, int64 delay);
extern void queue_start_assigned(const char *destination);
extern void queue_start_moved(const char *destination);
extern void queue_start_removed(TimestampTz due_at);
extern void queue_start_begin(OutboxStart *start, const char *destination, Oid queue);
extern void queue_start_end(const OutboxStart *start, TimestampTz first_left,
							TimestampTz position, TimestampTz revisit_at);
extern void queue_start_rewind(const char *destination);
extern void queue_start_wake_at_commit(const char *destination);
extern void queue_start_wait_begin(const char *destination);
extern void queue_start_wait(int64 microseconds);
extern void queue_start_wait_end(void);

#endif							/* IDEMPOTENCY_OUTBOX_H */
