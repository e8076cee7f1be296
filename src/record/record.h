/*
 * record.h
 *	  Records: their state, their tables, the work list, open claims, purge.
 */
#ifndef IDEMPOTENCY_RECORD_H
#define IDEMPOTENCY_RECORD_H

#include "settings/settings.h"

#define FAULT_TEXT_MAX 256

/* As stored.  unknown and expired are computed when read: record_state.c. */
#define RECORD_ACCEPTED		'a'
#define RECORD_PROCESSING	'p'
#define RECORD_SUCCEEDED	's'
#define RECORD_FAILED		'f'
#define RECORD_RETRYABLE	't' /* failed, may be tried again */
#define RECORD_CANCELLED	'c' /* failed for good, matches every fingerprint */
#define RECORD_RELEASED		'r'

typedef struct Record
{
	pg_uuid_t	id;
	char		state;
	bool		has_fingerprint;
	uint8		fingerprint[IDEM_DIGEST_LEN];
	int64		normalisation;	/* version the fingerprint was made under */
	int64		fence;
	int32		attempt;
	int32		releases;		/* attempts that do not count: nothing was
								 * done */
	bool		accepted;		/* by idem_accept: idem_start_next hands it
								 * out */
	TimestampTz claimed_at;		/* first claim or accept */
	TimestampTz finished_at;
	TimestampTz lease_until;	/* NEVER while processing: an atomic claim */
	TimestampTz expires_at;
	TimestampTz forget_at;
	TimestampTz not_before;		/* not executable before; DT_NOBEGIN = at once */
	TimestampTz reopened_at;	/* by idem_reopen; DT_NOBEGIN = never */
	text	   *principal;
	text	   *operation;
	text	   *key;
	text	   *owner;			/* NULL = none */
	Datum		result;			/* jsonb; (Datum) 0 = none */
	Datum		error;

	/* where and how it was found; not stored */
	ItemPointerData tid;
	TransactionId xmin;			/* the transaction that wrote this version */
	TransactionId changer;		/* another open transaction changing it */
	bool		being_deleted;	/* which deletes it: a purge */

	/* of a retryable failure that is being written: when to hand it out */
	TimestampTz due_at;
} Record;

typedef enum State
{
	STATE_ABSENT,
	STATE_UNCONFIRMED,
	STATE_ACCEPTED,
	STATE_PROCESSING,
	STATE_SUCCEEDED,
	STATE_FAILED,
	STATE_UNKNOWN,
	STATE_EXPIRED
} State;

/* place.c */

/*
 * A shard of placed_record and the one of placed_work beside it, and whether they are
 * here: a row of idempotency_internal.lock_shards().
 */
typedef struct Place
{
	int64		record;
	int64		work;
	int64		here;
} Place;

extern void place_init(void);
extern bool place_on_worker_node(void);
extern Place place_of(const char *principal);
extern List *place_here(void);
extern Relation place_open(Table like, int64 shard, LOCKMODE lockmode);
extern HeapTuple place_form(Relation rel, RowValues *row, const text *principal);

/*
 * Are records in shards of a cluster?  Those who go on to write "record" ask again once
 * they have its lock.
 */
static inline bool
place_used(void)
{
	return catalog_has(RARE_PLACED_RECORD);
}

/* segment.c */
extern Table segment_of(const pg_uuid_t *id);
extern TimestampTz segment_closes_at(Table segment, TimestampTz now);

/* store.c */

/* The tables of records: TABLE_RECORD and the segments. */
#define N_RECORD_TABLES (1 + N_SEGMENTS)

typedef struct RecordTable RecordTable;

/* The records, for looking and, if so asked, for writing. */
typedef struct Store
{
	bool		for_writing;
	RecordTable *tables;		/* that are open */
	List	   *here;			/* all shards that are here; NIL = not asked */
} Store;

extern void store_init(void);
extern void store_close_kept(void);
extern void store_open(Store *store, bool for_writing);
extern void store_close(Store *store);
extern ProbeResult store_probe(Store *store, const Identity *who, Record *rec);
extern ProbeResult store_probe_id(Store *store, const pg_uuid_t *id,
								  const text *principal, Record *rec);
extern void store_wait(Store *store, const Record *rec);
extern void identity_of_record(Identity *who, const Record *rec);
extern bool store_insert(Store *store, const Record *rec);
extern RowChange store_update(Store *store, const Record *found,
							  const Record *rec, bool wait);
extern RowChange store_delete(Store *store, const Record *found, bool wait);

extern Relation store_forget_index(Relation rel);
extern TimestampTz store_forget_at(Relation rel, HeapTuple tuple);
extern void store_read(Relation rel, HeapTuple tuple, Record *rec);

/* forget_ranges.c */

/* Neighbouring blocks of a table, and when their rows are to be forgotten. */
typedef struct ForgetRange
{
	BlockNumber first;
	BlockNumber end;			/* the block after the last */
	bool		stored;			/* there is a summary, finished or not */
	bool		known;			/* a finished one */
	TimestampTz earliest;		/* NEVER = no row is; DT_NOBEGIN if unknown */
	TimestampTz latest;			/* NEVER = a row is not, or unknown */
} ForgetRange;

typedef struct ForgetRanges ForgetRanges;

extern ForgetRanges *forget_ranges_open(Relation rel);
extern int64 forget_ranges_close(ForgetRanges *ranges);
extern bool forget_ranges_get(ForgetRanges *ranges, BlockNumber block,
							  ForgetRange *range);
extern void forget_ranges_complete(ForgetRanges *ranges, ForgetRange *range);
extern void forget_ranges_renew(ForgetRanges *ranges, const ForgetRange *range,
								TimestampTz now);
extern TimestampTz forget_ranges_over(ForgetRanges *ranges, TimestampTz now);

/* work_list.c */

/* Queues of the work list: which function hands an entry out when it is due. */
#define QUEUE_WAITING	'w'		/* idem_start_next */
#define QUEUE_STARTED	's'		/* by policy idem_start_next or idem_reconcile */
#define QUEUE_LEASED	'l'		/* idem_reconcile */

/* An entry of the work list: a record that is accepted, leased or unknown. */
typedef struct Work
{
	pg_uuid_t	id;
	char		queue;
	TimestampTz since;			/* first accepted or claimed */
	TimestampTz due_at;			/* when there is something to do; NEVER = for
								 * a person only */
	int64		fence;			/* of the last reconciler; 0 = none yet */
	int32		tries;			/* of reconcilers */
	text	   *operation;
	text	   *principal;

	/* where it was found; not stored */
	ItemPointerData tid;
} Work;

typedef struct WorkScan WorkScan;

extern void work_follow(const Record *before, const Record *after);
extern bool work_is_open(const Record *rec);
extern void work_forget(const Work *found);
extern bool work_find(const Record *rec, Work *work);
extern RowChange work_update(const Work *found, const Work *work);
extern WorkScan *work_scan_begin(void);
extern void work_scan_add(WorkScan *scan, char queue, const char *operation,
						  const char *principal, TimestampTz due);
extern const Work *work_scan_next(WorkScan *scan);
extern void work_scan_end(WorkScan *scan);
extern char *work_next_operation(char queue, const char *after);

/* record_state.c */
typedef enum EffectiveState
{
	EFFECTIVE_FORGOTTEN,		/* past retention and guard, or never there */
	EFFECTIVE_RELEASED,
	EFFECTIVE_EXPIRED,			/* past retention, inside guard */
	EFFECTIVE_SUCCEEDED,
	EFFECTIVE_FAILED,
	EFFECTIVE_RETRYABLE,
	EFFECTIVE_ACCEPTED,
	EFFECTIVE_RUNNING,
	EFFECTIVE_OVERRUN,			/* lease over, policy lets a claim take over */
	EFFECTIVE_UNKNOWN,
	EFFECTIVE_IN_FLIGHT			/* not committed yet: no state of a record */
} EffectiveState;

extern EffectiveState record_effective_state(Record *rec, const Call *call, TimestampTz now);
extern const char *record_effective_name(EffectiveState effective);
extern State record_shown_state(EffectiveState effective);
extern bool record_tries_left(const Record *rec, const Policy *policy,
							  TimestampTz now);
extern TimestampTz record_deadline(const Record *rec, const Policy *policy);
extern void record_set_retention(Record *rec, const Call *call,
								 TimestampTz recorded);
extern void record_finish(Record *rec, const Call *call, char state,
						  Datum outcome, TimestampTz now);
extern void record_fail_retryable(Record *rec, const Call *call,
								  TimestampTz not_before, TimestampTz now);
extern void record_put_back(Record *rec, const Call *call, TimestampTz now);
extern int64 record_pause(int64 first, int64 tries);
extern bool record_is_early(const Record *rec, EffectiveState effective, TimestampTz now);
extern bool record_key_is_late(const Call *call, TimestampTz now);
extern int64 record_retry_pause(const Policy *policy);
extern int64 record_retry_after(const Policy *policy, const Record *rec,
								EffectiveState effective, TimestampTz now);

/* open_claims.c */
typedef enum OpenClaimPrior
{
	PRIOR_NOTHING,				/* nothing was on record */
	PRIOR_FORGOTTEN,			/* a record purge may remove at any time */
	PRIOR_RECORD				/* a record this claim takes over */
} OpenClaimPrior;

typedef struct OpenClaim
{
	UndoEntry	opened;			/* at the nesting level of the claim */
	UndoEntry	finished;		/* at that of its completion, if deeper; level
								 * 0 = open */
	struct OpenClaim *previous; /* of the same id, finished deeper */
	Record		rec;			/* as claimed */
	OpenClaimPrior prior;
	int64		prior_fence;	/* of the record taken over */
	char		prior_state;
	bool		written;		/* rec is in the table; else the lock is held */
	bool		call_finishes;	/* the call that claimed will: idem_run */
} OpenClaim;

static inline bool
open_claim_is_open(const OpenClaim *open)
{
	return open->finished.level == 0;
}

extern void open_claim_init(void);
extern bool open_claim_lock(const pg_uuid_t *id);
extern bool open_claim_lock_held(const pg_uuid_t *id);
extern void open_claim_unlock(const pg_uuid_t *id);
extern bool open_claim_holder(const pg_uuid_t *id, int32 *holder);
extern bool open_claim_holder_of_xid(TransactionId xid, int32 *holder);
extern bool open_claim_has_room(void);
extern void open_claim_begin(const Record *rec, OpenClaimPrior prior,
							 const Record *found, bool written);
extern OpenClaim *open_claim_find(const pg_uuid_t *id);
extern List *open_claim_list(void);
extern bool open_claim_write(const OpenClaim *open, Store *store,
							 const Identity *who, const Record *rec);
extern bool open_claim_withdraw(const OpenClaim *open, Store *store,
								const Identity *who);
extern void open_claim_finish(OpenClaim *open);
extern void open_claim_mark_repeated(const Identity *who, const char *done);
extern void open_claim_mark_rewritten(void);
extern bool open_claim_may_be_earlier(TransactionId xmin);

/* One batch of a purge: what is asked for, then what came of it. */
typedef struct PurgeBatch
{
	int64		max_records;	/* to remove one by one */
	int64		max_looks;		/* at rows, blocks and ranges; 0 = no limit */
	int64		max_emptied;	/* to remove with all of a segment */
	bool		lazy;			/* leave what will soon go with a segment */

	/* where to go on, from one batch to the next */
	int			next_segment;	/* to see whether it can be emptied */
	int			next_table;
	int64		next_shard;		/* of placed_record, whose block is the first */
	bool		done[N_RECORD_TABLES];
	BlockNumber next_block[N_RECORD_TABLES];

	/* the same for events; "" = the first destination */
	char		destination[IDEM_TEXT_MAX * 4 + 1];
	TimestampTz destination_from;

	int64		removed;
	int64		failed;
	bool		at_end;			/* looked at all there are */
	TimestampTz from;			/* when the oldest of the last ones removed
								 * was to be forgotten; DT_NOBEGIN = none yet */
	char		fault[FAULT_TEXT_MAX];	/* of the first that failed */

	/* for purge.c and what it calls */
	bool		careful;		/* what fails is left, not raised */
	bool		emptied;		/* a segment */
	int64		looks;
	List	   *tallies;		/* removed, by operation */
} PurgeBatch;

/* purge.c */
extern bool purge_batch(PurgeBatch *batch);
extern void purge_register(void (*step) (void *batch));
extern bool purge_has_room(const PurgeBatch *batch);
extern bool purge_note_fault(PurgeBatch *batch, const ErrorData *error);

#endif							/* IDEMPOTENCY_RECORD_H */
