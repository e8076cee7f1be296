/*-------------------------------------------------------------------------
 *
 * idempotency.h
 *	  The types that travel between the rooms, and what each room offers.
 *
 * A value flows one way: SQL call -> claim.c / finish.c / status.c ->
 * (policy, identity, fingerprint) -> store.c -> answer.  Nothing below calls
 * up.  src/README.md is the map.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_H
#define IDEMPOTENCY_H

#include "access/htup.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "storage/lock.h"
#include "utils/jsonb.h"
#include "utils/relcache.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "canonical.h"

/* An argument of type text; NULL for SQL NULL. */
#define ARG_TEXT(n) (PG_ARGISNULL(n) ? NULL : PG_GETARG_TEXT_PP(n))

/*----
 * SQLSTATEs of our own.
 *----
 */
#define ERRCODE_IDEM_NO_CLAIM		MAKE_SQLSTATE('I','D','0','0','1')
#define ERRCODE_IDEM_NOT_YOURS		MAKE_SQLSTATE('I','D','0','0','2')
#define ERRCODE_IDEM_LEFT_OPEN		MAKE_SQLSTATE('I','D','0','0','3')
#define ERRCODE_IDEM_RESULT_TOO_LARGE MAKE_SQLSTATE('I','D','0','0','4')
#define ERRCODE_IDEM_IN_PROGRESS	MAKE_SQLSTATE('I','D','0','1','0')
#define ERRCODE_IDEM_MISMATCH		MAKE_SQLSTATE('I','D','0','1','1')
#define ERRCODE_IDEM_UNKNOWN		MAKE_SQLSTATE('I','D','0','1','2')
#define ERRCODE_IDEM_EXPIRED		MAKE_SQLSTATE('I','D','0','1','3')
#define ERRCODE_IDEM_FAILED			MAKE_SQLSTATE('I','D','0','1','4')
#define ERRCODE_IDEM_ID_COLLISION	MAKE_SQLSTATE('I','D','0','9','9')

/* A time that does not come: stored as NULL, compares later than any other. */
#define NEVER DT_NOEND

/*----
 * Answers.  Enum values are indexes into the label arrays of answer.c.
 *----
 */
typedef enum Verdict
{
	VERDICT_EXECUTE,
	VERDICT_REPLAY,
	VERDICT_IN_PROGRESS,
	VERDICT_MISMATCH,
	VERDICT_UNKNOWN,
	VERDICT_EXPIRED,
	VERDICT_NONE				/* SQL NULL: a status query decides nothing */
} Verdict;

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

typedef enum Advice
{
	ADVICE_RUN,
	ADVICE_USE_RESULT,
	ADVICE_RETRY_SAME_KEY,
	ADVICE_NEW_KEY,
	ADVICE_RECONCILE
} Advice;

#define NO_HOLDER	(-1)		/* SQL NULL */
#define NO_ATTEMPT	(-1)		/* SQL NULL */

typedef struct Answer
{
	Verdict		verdict;
	State		state;
	Advice		advice;
	const Identity *who;
	int64		fence;			/* 0 = SQL NULL */
	int32		attempt;
	Datum		result;			/* jsonb; (Datum) 0 = SQL NULL */
	Datum		error;			/* jsonb; (Datum) 0 = SQL NULL */
	int64		retry_after;	/* microseconds; 0 = SQL NULL */
	int32		holder;
	TimestampTz claimed_at;		/* NEVER = SQL NULL, likewise below */
	TimestampTz finished_at;
	TimestampTz lease_until;
	TimestampTz expires_at;
	TimestampTz forget_at;
} Answer;

/* An idem_answer handed back to us as an argument. */
typedef struct Handed
{
	Verdict		verdict;
	State		state;
	bool		has_state;
	bool		has_id;
	pg_uuid_t	id;
	text	   *principal;		/* NULL = SQL NULL, likewise below */
	text	   *operation;
	text	   *key;
	bool		has_fence;
	int64		fence;
	bool		has_claimed_at;
	TimestampTz claimed_at;
	Datum		result;
	Datum		error;
} Handed;

/* answer.c */
extern void answer_init(Answer *answer, const Identity *who);
extern Datum answer_datum(FunctionCallInfo fcinfo, const Answer *answer);
extern void answer_put(FunctionCallInfo fcinfo, const Answer *answer);
extern const char *answer_verdict_label(Verdict verdict);
extern const char *answer_state_label(State state);
extern void answer_read(FunctionCallInfo fcinfo, int argno, Handed *handed);

/*----
 * Policy.
 *----
 */
typedef enum KeyFormat
{
	KEY_ANY,
	KEY_UUID,
	KEY_UUIDV7,
	KEY_ULID
} KeyFormat;

#define NO_LIMIT	(-1)		/* JSON null in a setting */

/* What the sum of retention and guard was until a time. */
typedef struct Horizon
{
	TimestampTz until;
	int64		length;			/* NO_LIMIT = for ever */
} Horizon;

/* The settings of one operation; intervals in microseconds. */
typedef struct Policy
{
	int64		retention;		/* NO_LIMIT = for ever */
	int64		guard;
	int64		lease;			/* 0 = atomic */
	int64		deadline;		/* NO_LIMIT = none */
	int64		wait;
	int64		retry_after;
	int64		clock_skew;
	int64		max_attempts;	/* NO_LIMIT = none */
	int64		reconcile_attempts;
	int64		max_params_bytes;
	int64		max_result_bytes;
	bool		retry_on_lease_expiry;
	bool		require_params;
	bool		log_requests;
	KeyFormat	key_format;
	char	   *role;			/* NULL = anyone with EXECUTE */
	char	   *principal_setting;	/* NULL = unbound */
	char	   *resource_pointer;
	Normalisation *normalisation;	/* NULL = none */
	int64		normalisation_version;	/* 0 = none */
	Jsonb	   *settings;		/* all of it, as idem_policy shows it */
	int			n_horizons;		/* that were in force before */
	Horizon    *horizons;
	struct CounterSet *counters;	/* NULL = nothing is counted */
} Policy;

/* What every call about one key starts from. */
typedef struct Call
{
	Identity	who;
	const Policy *policy;
} Call;

/* settings.c */
extern Jsonb *settings_effective(Jsonb *everyone, Jsonb *own);
extern Policy *settings_parse(Jsonb *effective, const char *operation);
extern void settings_check_names(Jsonb *given, const char *operation);
extern Jsonb *settings_normalisation(Jsonb *effective);
extern int64 settings_normalisation_version(Jsonb *normalisation);

/* kinds.c */
extern int64 interval_microseconds(const Interval *span, const char *what,
								   const Identity *who);
extern int64 interval_microseconds_of(const Interval *span, const char *what,
									  const char *kind, const char *name);

/* json.c */
extern void json_push(JsonbParseState **state, const char *name,
					  JsonbValue *value);
extern void json_push_string(JsonbParseState **state, const char *name,
							 const char *value);
extern void json_push_integer(JsonbParseState **state, const char *name,
							  int64 value, bool is_null);
extern Jsonb *json_concatenate(Jsonb *below, Jsonb *above);
extern bool json_exceeds(Jsonb *value, int64 max_bytes);

/* The operation whose settings are the defaults of all. */
#define EVERY_OPERATION "*"

/* policy.c */
extern const Policy *policy_get(const char *operation);
extern const Normalisation *policy_normalisation(const char *operation);
extern const Normalisation *policy_normalisation_version(int64 version,
														 const char *operation);
extern Datum policy_shown(const char *operation);
extern char *principal_resolve(text *principal, const char *operation);

/*
 * How a setting principal_setting binds the caller of a function.  Whoever
 * works for all principals is bound only where a session has been told whose
 * it is.
 */
typedef enum Binding
{
	BIND_CALLER,				/* to one principal, or to none at all */
	BIND_WORKER,				/* to one principal if it is told which */
	BIND_UNLESS_WORKER			/* as the caller is the one or the other */
} Binding;

extern void call_begin(Call *call, FunctionCallInfo fcinfo, Binding binding,
					   text *operation, text *key, text *principal);
extern void call_begin_operation(Call *call, text *operation);
extern void call_check_key(const Call *call);
extern void refuse_unless_writable(const char *function);
extern void call_refuse_unless_writable(const char *verb, const Identity *who);
extern void call_check_size(const Call *call, Datum outcome, const char *what);
extern bool policy_permits(const Policy *policy, const Identity *who,
						   Binding binding);

/*----
 * Records.
 *----
 */

/* As stored.  unknown and expired are computed when read: life.c. */
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
	TimestampTz claimed_at;		/* first claim; the deadline counts from it */
	TimestampTz finished_at;
	TimestampTz lease_until;	/* NEVER while processing: an atomic claim */
	TimestampTz expires_at;
	TimestampTz forget_at;
	text	   *principal;
	text	   *operation;
	text	   *key;
	text	   *owner;			/* NULL = none */
	Datum		result;			/* jsonb; (Datum) 0 = none */
	Datum		error;

	/* where and how it was found; not stored */
	ItemPointerData tid;
	TransactionId xmin;			/* who wrote this version */
	TransactionId changer;		/* another open transaction changing it */
} Record;

/* rows.c */
typedef enum ProbeResult
{
	PROBE_NOTHING,
	PROBE_ROW,
	PROBE_IN_FLIGHT
} ProbeResult;

typedef enum RowChange
{
	ROW_CHANGED,
	ROW_BUSY,					/* another open transaction is changing it */
	ROW_MISSED					/* no longer there as read: look again */
} RowChange;

typedef struct RowLook RowLook;
typedef struct RowWriter RowWriter;

/*
 * A time in a row, which is NULL if it never comes.
 */
static inline TimestampTz
rows_time(const Datum *values, const bool *nulls, int column)
{
	return nulls[column] ? NEVER : DatumGetTimestampTz(values[column]);
}

static inline void
rows_set_time(Datum *values, bool *nulls, int column, TimestampTz time)
{
	values[column] = TimestampTzGetDatum(time);
	nulls[column] = time == NEVER;
}

extern RowLook *rows_look_begin(Relation heap, Oid index_oid,
								RegProcedure equal);
extern ProbeResult rows_look(RowLook *look, Datum key, HeapTuple *tuple,
							 TransactionId *other);
extern void rows_look_end(RowLook *look);
extern bool rows_insert(Relation rel, HeapTuple tuple);
extern RowChange rows_update(Relation rel, const ItemPointerData *tid,
							 HeapTuple tuple, bool wait);
extern RowChange rows_delete(Relation rel, const ItemPointerData *tid,
							 bool wait);
extern RowChange rows_lock(Relation rel, const ItemPointerData *tid, bool wait);
extern RowWriter *rows_writer_begin(Relation rel);
extern RowChange rows_writer_lock(RowWriter *many, const ItemPointerData *tid,
								  bool wait);
extern bool rows_writer_update(RowWriter *many, const ItemPointerData *tid,
							   HeapTuple tuple);
extern void rows_writer_end(RowWriter *many);

/* catalog.c */
#define N_SEGMENTS 32			/* see segment.c: never another number in 1.x */

typedef enum Table
{
	TABLE_RECORD,
	TABLE_SEGMENT,				/* the first of N_SEGMENTS, in a row */
	TABLE_POLICY = TABLE_SEGMENT + N_SEGMENTS,
	TABLE_NORMALISATION,
	TABLE_OPEN_WORK,
	TABLE_DESTINATION,
	TABLE_OUTBOX,
	TABLE_OUTBOX_DUE,
	TABLE_OUTBOX_ADOPTED
} Table;

extern void catalog_init(void);
extern Oid	catalog_relid(Table table);
extern Relation catalog_open(Table table, LOCKMODE lockmode);
extern Relation catalog_open_index(Relation rel, const AttrNumber *columns,
								   int n, const char *definition);
extern Oid	catalog_sequence(const char *name);
extern bool catalog_changed(Table table);

/* stored.c */
extern HeapTuple stored_row(Table table, RegProcedure equal, Datum key,
							Relation *rel);
extern void stored_refuse(Relation rel);
extern Jsonb *stored_jsonb(HeapTuple tuple, int column, Relation rel,
						   bool array);

/* segment.c */
extern Table segment_of(const pg_uuid_t *id);
extern TimestampTz segment_closes_at(Table segment, TimestampTz now);

/* store.c */

/* The tables of records: TABLE_RECORD and the segments. */
#define N_RECORD_TABLES (1 + N_SEGMENTS)

/* One of them, open. */
typedef struct RecordTable
{
	Relation	rel;			/* NULL = not open */
	RowLook    *look;
} RecordTable;

/* The records, for looking and, if so asked, for writing. */
typedef struct Store
{
	bool		for_writing;
	MemoryContext context;		/* of what is opened */
	RecordTable tables[N_RECORD_TABLES];
} Store;

extern void store_open(Store *store, bool for_writing);
extern void store_close(Store *store);
extern ProbeResult store_probe(Store *store, const Identity *who, Record *rec);
extern ProbeResult store_probe_id(Store *store, const pg_uuid_t *id,
								  Record *rec);
extern void store_wait(Store *store, const Record *rec);
extern void identity_of_record(Identity *who, const Record *rec);
extern bool store_insert(Store *store, const Record *rec);
extern RowChange store_update(Store *store, const Record *found,
							  const Record *rec, bool wait);
extern RowChange store_delete(Store *store, const Record *found, bool wait);
extern bool store_needs_normalisation(Store *store, int64 version);

typedef struct PurgeBatch PurgeBatch;	/* background.h */

extern bool store_empty_segment(PurgeBatch *batch);
extern void store_purge(Store *store, PurgeBatch *batch);

/* work.c */

/* An entry of the work list: a record that is accepted, leased or unknown. */
typedef struct Work
{
	pg_uuid_t	id;
	char		state;			/* RECORD_ACCEPTED or RECORD_PROCESSING */
	TimestampTz since;			/* accepted or claimed */
	TimestampTz due_at;			/* when there is something to do; NEVER = for
								 * a person only */
	int64		fence;			/* of the last reconciler; 0 = none yet */
	int32		tries;			/* of reconcilers */
	text	   *operation;

	/* where it was found; not stored */
	ItemPointerData tid;
} Work;

typedef bool (*WorkVisitor) (const Work *work, void *arg);

extern void work_follow(const Record *before, const Record *after);
extern bool work_is_open(const Record *rec);
extern void work_forget(const Work *found);
extern bool work_find(const pg_uuid_t *id, Work *work);
extern RowChange work_update(const Work *found, const Work *work);
extern void work_visit(const char *operation, char state, TimestampTz due,
					   WorkVisitor visitor, void *arg);

extern void work_visit_all(WorkVisitor visitor, void *arg);

/* subtransaction.c */
extern ErrorData *subtransaction_try(void (*step) (void *arg), void *arg);

/* life.c */
typedef enum Life
{
	LIFE_FORGOTTEN,				/* past retention and guard */
	LIFE_RELEASED,
	LIFE_EXPIRED,				/* past retention, inside guard */
	LIFE_SUCCEEDED,
	LIFE_FAILED,
	LIFE_RETRYABLE,
	LIFE_ACCEPTED,
	LIFE_RUNNING,
	LIFE_OVERRUN,				/* lease over, policy lets a claim take over */
	LIFE_UNKNOWN
} Life;

extern Life life_of(Record *rec, const Call *call, TimestampTz now);
extern int64 life_horizon(const Policy *policy);
extern State life_state(Life life);
extern bool life_tries_left(const Record *rec, const Policy *policy,
							TimestampTz now);
extern void life_set_retention(Record *rec, const Call *call,
							   TimestampTz recorded);
extern bool life_key_is_late(const Call *call, TimestampTz now);
extern TimestampTz time_after(TimestampTz from, int64 microseconds);
extern int64 life_retry_after(const Policy *policy, TimestampTz lease_until,
							  TimestampTz now);

/* permit.c */
typedef enum PermitPrior
{
	PRIOR_NOTHING,				/* nothing was on record */
	PRIOR_FORGOTTEN,			/* a record purge may remove at any time */
	PRIOR_RECORD				/* a record this claim takes over */
} PermitPrior;

typedef struct Permit
{
	dlist_node	opened_node;	/* in the list of all permits, by level */
	dlist_node	settled_node;	/* in that of those settled deeper, by level */
	struct Permit *previous;	/* of the same id, settled deeper */
	Record		rec;			/* as claimed */
	PermitPrior prior;
	int64		prior_fence;	/* of the record taken over */
	char		prior_state;
	bool		written;		/* rec is in the table; else the lock is held */
	int			level;			/* nesting level of the claim */
	int			settled_level;	/* nesting level of its completion; 0 = open */
} Permit;

extern void permit_init(void);
extern bool permit_lock(const pg_uuid_t *id);
extern bool permit_lock_is_ours(const LOCKTAG *tag, uint8 *half);
extern void permit_unlock(const pg_uuid_t *id);
extern bool permit_holder(const pg_uuid_t *id, int32 *holder);
extern bool permit_holder_of_xid(TransactionId xid, int32 *holder);
extern bool permit_room(void);
extern void permit_open(const Record *rec, PermitPrior prior,
						const Record *found, bool written);
extern Permit *permit_find(const pg_uuid_t *id);
extern bool permit_write(const Permit *permit, Store *store,
						 const Identity *who, const Record *rec);
extern bool permit_withdraw(const Permit *permit, Store *store,
							const Identity *who);
extern void permit_settle(Permit *permit);
extern void permit_mark_repeated(const Identity *who);

/* finish.c */
extern void finish_claim(const Call *call, int64 fence, bool succeeded,
						 Datum outcome);

/* status.c */
extern void status_of_record(const Call *call, Record *rec,
							 Answer *answer);

/* pointer.c */
extern char *pointer_text(const char *pointer, Jsonb *value);

/* retry.c */
extern int64 backoff_jitter(int32 attempt, int64 base, int64 cap);

/* guc.c */
extern char *guc_principal;
extern int	guc_purge_batch;
extern void guc_init(void);

#endif							/* IDEMPOTENCY_H */
