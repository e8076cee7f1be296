/*-------------------------------------------------------------------------
 *
 * claim.h
 *	  What the calls that decide about a key share: idem_claim and its kin.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_CLAIM_H
#define IDEMPOTENCY_CLAIM_H

#include "idempotency.h"

typedef enum Step
{
	STEP_ANSWERED,
	STEP_LOOK_AGAIN,
	STEP_BUSY					/* answered, but the answer may change soon */
} Step;

typedef struct Claim Claim;

/* How a call differs from the decision table of idem_claim. */
typedef struct ClaimKind
{
	const char *verb;			/* for messages */
	Binding		binding;		/* by principal_setting */
	int			attempts;		/* how many an execution adds */
	bool		matches_params; /* other params are a mismatch */
	bool		takes_accepted; /* an accepted record may be executed */
	bool		takes_overrun;	/* so may one whose lease is over, by policy */
	bool		sees_past;		/* must see what the last attempt wrote */
	bool		needs_record;	/* nothing on record is ID001 */
	bool		only_accepted;	/* what is not accepted any more is left alone */
	bool		needs_outcome;	/* anything undecided is worth waiting for */
	bool		withdraws;		/* is no request to execute */

	/* what "execute" means; the lock of the id is held */
	Step		(*execute) (Claim *claim, PermitPrior prior);
} ClaimKind;

struct Claim
{
	const ClaimKind *kind;
	Call		call;
	int64		lease;			/* 0 = atomic */
	int64		wait;
	text	   *owner;			/* NULL = none */
	text	   *reason;			/* of a cancellation; NULL = none */

	Jsonb	   *params;			/* NULL = SQL NULL */
	bool		has_fingerprint;
	uint8		fingerprint[IDEM_DIGEST_LEN];
	int64		fingerprint_version;	/* normalisation it was made under */

	Store	   *store;			/* the record table, open */
	bool		locked;			/* we hold the lock of the id */
	TimestampTz now;
	ProbeResult found;
	Record		rec;			/* if found is PROBE_ROW */
	Life		life;			/* likewise */
	Answer		answer;
};

extern void claim_begin(Claim *claim, FunctionCallInfo fcinfo,
						const ClaimKind *kind, text *operation, text *key,
						text *principal);
extern void claim_set_fingerprint(Claim *claim, Jsonb *params, bytea *given);
extern void claim_run(Claim *claim);
extern void claim_decide(Claim *claim);
extern Step claim_grant(Claim *claim, PermitPrior prior);
extern bool claim_snapshot_sees(const Record *rec);
extern void claim_make_record(Claim *claim, PermitPrior prior, Record *rec);
extern bool claim_write(Claim *claim, PermitPrior prior, const Record *rec,
						Step *step);
extern int64 claim_interval(FunctionCallInfo fcinfo, int argno,
							const char *what, const Call *call,
							int64 otherwise);
extern int64 claim_next_fence(int64 previous);

#endif							/* IDEMPOTENCY_CLAIM_H */
