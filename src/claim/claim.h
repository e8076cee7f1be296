/*
 * claim.h
 *	  Answers, and the calls that decide about a key: idem_claim and its kin.
 */
#ifndef IDEMPOTENCY_CLAIM_H
#define IDEMPOTENCY_CLAIM_H

#include "record/record.h"

/* The values of enums are indexes into the labels of answer.c. */
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

/* An idem_answer handed back to us as an argument; NULL and 0 = SQL NULL. */
typedef struct DecodedAnswer
{
	Verdict		verdict;
	State		state;			/* STATE_EXPIRED + 1 = SQL NULL */
	bool		retryable;		/* advice is to retry with the same key */
	const pg_uuid_t *id;
	text	   *principal;
	text	   *operation;
	text	   *key;
	int64		fence;
	Datum		result;
	Datum		error;
} DecodedAnswer;

/* answer.c */
extern void answer_init(Answer *answer, const Identity *who);
extern void answer_tell_holder(Answer *answer, const Policy *policy, int32 holder);
extern void answer_own_claim(Answer *answer, const Identity *who, const Policy *policy,
							 const OpenClaim *open);
extern void answer_tell_record(Answer *answer, const Policy *policy,
							   const Record *rec, EffectiveState effective,
							   TimestampTz now);
extern Datum answer_datum(FunctionCallInfo fcinfo, const Answer *answer);
extern void answer_put(FunctionCallInfo fcinfo, const Answer *answer);
extern void answer_log(const Call *call, const Answer *answer);
extern void answer_decode(FunctionCallInfo fcinfo, int argno, DecodedAnswer *decoded);

typedef enum Step
{
	STEP_ANSWERED,
	STEP_PROBE_AGAIN,
	STEP_BUSY					/* answered, but the answer may change soon */
} Step;

typedef struct Claim Claim;

/* How a call differs from the decision table of idem_claim. */
typedef struct ClaimKind
{
	Binding		binding;		/* by principal_setting */
	int			attempts;		/* how many an execution adds */
	bool		matches_params; /* other params are a mismatch */
	bool		takes_accepted; /* an accepted record may be executed */
	bool		needs_record;	/* nothing on record is ID001 */
	bool		only_accepted;	/* what is not accepted any more is left alone */
	bool		needs_outcome;	/* anything undecided is worth waiting for */
	bool		withdraws;		/* is no request to execute: need not see what
								 * the last attempt wrote, waits for no time
								 * to come, takes over no lease */

	/* what "execute" means; the lock of the id is held */
	Step		(*execute) (Claim *claim, OpenClaimPrior prior);
} ClaimKind;

struct Claim
{
	const ClaimKind *kind;
	Call		call;
	int64		lease;			/* 0 = atomic */
	int64		wait;
	text	   *owner;			/* NULL = none */
	Datum		reason;			/* of a cancellation: jsonb, the error it
								 * leaves */
	int64		delay;			/* of accepted work */

	Jsonb	   *params;			/* NULL = SQL NULL */
	bool		has_fingerprint;
	uint8		fingerprint[IDEM_DIGEST_LEN];
	int64		fingerprint_version;	/* normalisation it was made under */

	Store	   *store;			/* the record table, open */
	bool		locked;			/* we hold the lock of the id */
	TimestampTz now;
	ProbeResult found;
	Record		rec;			/* if found is PROBE_ROW */
	EffectiveState effective;	/* EFFECTIVE_FORGOTTEN if nothing is found */
	Answer		answer;
};

extern void claim_begin(Claim *claim, FunctionCallInfo fcinfo,
						const ClaimKind *kind, text *operation, text *key,
						text *principal);
extern void claim_handle(FunctionCallInfo fcinfo, int argno, const char *verb,
						 bool or_replay, Call *call, DecodedAnswer *decoded);
extern void claim_refuse_on_worker_node(const Call *call);
extern void claim_read_params(Claim *claim, FunctionCallInfo fcinfo, int argno,
							  int fingerprint);
extern void claim_run(Claim *claim);
extern void claim_decide(Claim *claim);
extern Step claim_grant(Claim *claim, OpenClaimPrior prior);
extern bool claim_snapshot_sees(const Record *rec);
extern void claim_make_record(Claim *claim, OpenClaimPrior prior, Record *rec);
extern bool claim_write(Claim *claim, OpenClaimPrior prior, const Record *rec,
						Step *step);
extern int64 claim_interval(FunctionCallInfo fcinfo, int argno,
							const char *what, const Call *call,
							int64 otherwise);
extern text *claim_owner(FunctionCallInfo fcinfo, int argno, const Call *call);
extern int64 claim_lease(FunctionCallInfo fcinfo, int argno, const Call *call);
extern void claim_check_lease(const Call *call, int64 lease);
extern int64 claim_next_fence(int64 previous);

/* finish.c */
extern void finish_claim(const Call *call, int64 fence, bool succeeded,
						 Datum outcome);

/* reconcile.c */

/* A call that answers with records of the work list. */
typedef struct Entries
{
	FunctionCallInfo fcinfo;
	Store		store;
	WorkScan   *scan;
	int64		lease;			/* of those it hands out */
	text	   *owner;			/* of those it starts; NULL = none */
	bool		is_monitor;		/* lists whatever there is */
	Binding		binding;		/* of others, by principal_setting */
} Entries;

extern int	claim_max_records(FunctionCallInfo fcinfo, int n, const char *function);
extern void claim_entries_begin(Entries *entries, FunctionCallInfo fcinfo,
								bool for_writing);
extern void claim_entries_collect(Entries *entries, int most, MemoryContext context,
								  bool (*hand_out) (Entries *entries, const Work *entry));
extern bool claim_read_entry(Store *store, const Work *entry, Call *call,
							 Record *rec, EffectiveState *effective);

/* status.c */
extern void status_of_record(const Call *call, Record *rec,
							 Answer *answer);

#endif							/* IDEMPOTENCY_CLAIM_H */
