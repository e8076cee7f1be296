/*
 * status.c
 *	  What is known of a key, changing nothing: idem_status, and what
 *	  idem_explain puts into words; and what an answer means to SQL (idem_value).
 *
 * Status asks for a holder first and probes for the record after.  The other way
 * round, a claim could be made, completed and committed between an empty probe
 * and the question for its lock, and a key with an outcome would read as
 * absent.  In this order, a transaction that is not seen as a holder either had
 * not begun when the question was asked, or has its row in place when the record
 * is probed for.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "claim/claim.h"
#include "stats/stats.h"

/* What is seen of a key. */
typedef struct Status
{
	Call		call;
	TimestampTz now;
	bool		held;			/* a transaction holds the id, or changes its
								 * record */
	int32		holder;
	ProbeResult found;
	Record		rec;
	EffectiveState effective;	/* EFFECTIVE_FORGOTTEN if nothing is found */
} Status;

/* Probes.  Returns false if what was seen has changed meanwhile. */
static bool
probe(Status *status, Store *store)
{
	const Identity *who = &status->call.who;
	bool		standby = RecoveryInProgress();

	status->held = !standby && open_claim_holder(&who->id, &status->holder);
	status->found = store_probe(store, who, &status->rec);
	status->now = GetCurrentTimestamp();
	status->effective = status->found != PROBE_ROW ? EFFECTIVE_FORGOTTEN :
		record_effective_state(&status->rec, &status->call, status->now);

	/*
	 * What a standby has replayed but not seen committed is not confirmed.
	 * What is being deleted is forgotten, and reads as it will be afterwards.
	 */
	if (!standby && !status->held && !status->rec.being_deleted &&
		TransactionIdIsValid(status->rec.changer))
	{
		if (!open_claim_holder_of_xid(status->rec.changer, &status->holder))
			return false;
		status->held = true;
	}
	return true;
}

/* Says what was seen. */
static void
tell(const Status *status, Answer *answer)
{
	const Policy *policy = status->call.policy;
	EffectiveState effective = status->effective;

	answer_init(answer, &status->call.who);

	/* a claim or start would execute, were it not for another transaction */
	if (status->held &&
		(effective == EFFECTIVE_FORGOTTEN || effective == EFFECTIVE_RELEASED || effective == EFFECTIVE_RETRYABLE ||
		 effective == EFFECTIVE_OVERRUN || effective == EFFECTIVE_ACCEPTED))
		answer_tell_holder(answer, policy, status->holder);
	else if (effective != EFFECTIVE_FORGOTTEN && effective != EFFECTIVE_RELEASED)
		answer_tell_record(answer, policy, &status->rec, effective, status->now);
	else if (record_key_is_late(&status->call, status->now))
	{
		answer->state = STATE_EXPIRED;
		answer->advice = ADVICE_RECONCILE;
	}
	else
	{
		answer->state = RecoveryInProgress() ? STATE_UNCONFIRMED : STATE_ABSENT;
		answer->advice = ADVICE_RETRY_SAME_KEY;
		answer->retry_after = record_retry_after(policy, &status->rec, effective, status->now);
	}
}

/* Says what is on record, as idem_status says it when no transaction holds it. */
void
status_of_record(const Call *call, Record *rec, Answer *answer)
{
	Status		status = {.call = *call,.now = GetCurrentTimestamp()};

	status.effective = record_effective_state(rec, call, status.now);
	status.rec = *rec;
	tell(&status, answer);
	answer->who = &call->who;
}

/* Probes for the key of the call until what was seen holds together. */
static void
status_look(Status *status)
{
	Store		store;

	store_open(&store, false);
	while (!probe(status, &store))
		CHECK_FOR_INTERRUPTS();
	store_close(&store);
}

/* idem_status(operation, key, principal) */
REQUEST_FUNCTION(idem_status, "ask")
{
	Status		status = {0};
	Answer		answer;
	const OpenClaim *open;

	call_begin(&status.call, fcinfo, BIND_CALLER, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(2), NULL);
	open = open_claim_find(&status.call.who.id);
	if (open)
		answer_own_claim(&answer, &status.call.who, status.call.policy, open);
	else
	{
		status_look(&status);
		tell(&status, &answer);
	}
	counters_add(status.call.policy->counters, COUNT_STATUS, 1);
	answer_log(&status.call, &answer);
	return answer_datum(fcinfo, &answer);
}

/*
 * Adds what is on record; never params, results or errors.  The owner's name would
 * open its lease to others, so it is told to those only that see all principals.
 */
static void
explain_record(RowValues *facts, const Status *status, bool sees_all)
{
	const Record *rec = &status->rec;
	Answer		answer;

	answer_init(&answer, &status->call.who);
	answer_tell_record(&answer, status->call.policy, rec, status->effective, status->now);
	row_add(facts, true, CharGetDatum(rec->state));
	row_add(facts, sees_all && rec->owner, PointerGetDatum(rec->owner));
	row_add(facts, true, BoolGetDatum(rec->has_fingerprint));
	row_add(facts, true, Int32GetDatum(rec->attempt));
	row_add(facts, true, Int32GetDatum(rec->releases));
	row_add_time(facts, answer.claimed_at);
	row_add_time(facts, rec->finished_at);
	row_add_time(facts, rec->lease_until);
	row_add_time(facts, rec->expires_at);
	row_add_time(facts, rec->forget_at);
	row_add_time(facts, rec->not_before);
	row_add_time(facts, record_deadline(rec, status->call.policy));
}

/*
 * idem_explain_key(operation, key, principal): what idem_explain puts into words.
 * Readers of the view of unresolved records see all principals, as there.
 */
SQL_FUNCTION(idem_explain_key)
{
	bool		sees_all = access_may_read(fcinfo, "idem_unresolved");
	Status		status = {0};
	RowValues	facts = {0};
	Work		work = {.due_at = NEVER};
	bool		listed;

	call_begin(&status.call, fcinfo, sees_all ? BIND_NOT : BIND_CALLER,
			   ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(2), NULL);
	status_look(&status);
	if (open_claim_find(&status.call.who.id))
	{
		status.held = true;
		status.holder = MyProcPid;
	}
	listed = status.found == PROBE_ROW && work_find(&status.rec, &work);

	row_add(&facts, true, UUIDPGetDatum(&status.call.who.id));
	row_add(&facts, true, CStringGetTextDatum(record_effective_name(status.effective)));
	row_add(&facts, true, BoolGetDatum(status.found == PROBE_ROW &&
									   record_is_early(&status.rec, status.effective, status.now)));
	row_add(&facts, true, BoolGetDatum(record_key_is_late(&status.call, status.now)));
	row_add(&facts, status.held, Int32GetDatum(status.holder));
	row_add(&facts, true, JsonbPGetDatum(status.call.policy->settings));
	row_add(&facts, true, JsonbPGetDatum(settings_row_read(&operation_settings, status.call.who.operation)->settings));
	row_add(&facts, true, JsonbPGetDatum(settings_row_read(&operation_settings, EVERY_NAME)->settings));
	row_add(&facts, listed, Int32GetDatum(work.tries));
	row_add_time(&facts, work.due_at);
	if (status.found == PROBE_ROW)
		explain_record(&facts, &status, sees_all);
	return row_datum(fcinfo, &facts);
}

/* idem_left_open() */
SQL_FUNCTION(idem_left_open)
{
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, open_claim_list())
	{
		const OpenClaim *open = lfirst(lc);
		Identity	who;
		Answer		answer;

		identity_of_record(&who, &open->rec);
		answer_own_claim(&answer, &who, policy_get(who.operation), open);
		answer_put(fcinfo, &answer);
	}
	return (Datum) 0;
}

/* What a record of these columns means now: idempotency_internal.effective_state(). */
SQL_FUNCTION(idem_effective_state)
{
	Call		call = {0};
	Record		rec = {0};
	TimestampTz *times[] = {&rec.finished_at, &rec.lease_until, &rec.expires_at,
	&rec.forget_at, &rec.reopened_at};

	for (int i = 0; i < 6; i++)
	{
		if (PG_ARGISNULL(i))
			PG_RETURN_NULL();
	}
	for (int i = 0; i < lengthof(times); i++)
		*times[i] = PG_ARGISNULL(6 + i) ? NEVER : PG_GETARG_TIMESTAMPTZ(6 + i);
	if (rec.reopened_at == NEVER)
		rec.reopened_at = DT_NOBEGIN;
	call.who.operation = text_to_cstring(PG_GETARG_TEXT_PP(0));
	call.who.key = text_to_cstring(PG_GETARG_TEXT_PP(1));
	identity_check_text(call.who.operation, "operation");
	identity_read_key_time(&call.who);
	call.policy = policy_get(call.who.operation);
	rec.state = PG_GETARG_CHAR(2);
	rec.attempt = PG_GETARG_INT32(3);
	rec.releases = PG_GETARG_INT32(4);
	rec.claimed_at = PG_GETARG_TIMESTAMPTZ(5);
	PG_RETURN_TEXT_P(cstring_to_text(record_effective_name(record_effective_state(&rec, &call, GetCurrentTimestamp()))));
}

/* What stands in the way of a result. */
typedef struct Refusal
{
	int			sqlstate;
	const char *what;
	const char *hint;
} Refusal;

/*
 * Returns why an answer has no result, or NULL.  The verdict comes first: the
 * state of a mismatch, say, is that of another intent.
 */
static const Refusal *
why_no_result(const DecodedAnswer *decoded)
{
	static const Refusal
				in_progress = {ERRCODE_IDEM_IN_PROGRESS, "it is in progress",
	"Ask again with the same key after retry_after."},
				early = {ERRCODE_IDEM_IN_PROGRESS, "it failed and may be tried again, but not yet",
	"Ask again with the same key after retry_after."},
				mismatch = {ERRCODE_IDEM_MISMATCH, "the key was used with other params",
	"Use a new key for a new intent."},
				unknown = {ERRCODE_IDEM_UNKNOWN, "its outcome is not known",
	"Reconcile: find out what happened, then resolve it."},
				expired = {ERRCODE_IDEM_EXPIRED, "its outcome is no longer kept",
	"Reconcile: look for what the operation did in your own tables."},
				no_state = {ERRCODE_INVALID_PARAMETER_VALUE, "the answer has no state",
	"Hand over an answer as it came."},
				retryable = {ERRCODE_IDEM_FAILED, "it failed and may be tried again",
	"Claim again with the same key after retry_after."},
				failed = {ERRCODE_IDEM_FAILED, "it failed",
	"The stored error is in the detail. Use a new key for a new try."},
				no_error = {ERRCODE_IDEM_FAILED, "it failed",
	"No error is stored: it was recorded without one, or redacted. Use a new key for a new try."},
				yours = {ERRCODE_INVALID_PARAMETER_VALUE, "it is yours to execute",
	"Do the work and call idem_complete()."},
				absent = {ERRCODE_IDEM_NO_CLAIM, "nothing is on record",
	"Claim with the same key; absent does not mean that a new key is safe."};
	State		state = decoded->state;

	if (decoded->verdict == VERDICT_IN_PROGRESS)
		return state == STATE_FAILED && decoded->retryable ? &early : &in_progress;
	if (decoded->verdict == VERDICT_MISMATCH)
		return &mismatch;
	if (decoded->verdict == VERDICT_UNKNOWN)
		return &unknown;
	if (decoded->verdict == VERDICT_EXPIRED)
		return &expired;
	switch (state)
	{
		case STATE_SUCCEEDED:
			return NULL;
		case STATE_FAILED:
			return decoded->retryable ? &retryable : decoded->error ? &failed : &no_error;
		case STATE_PROCESSING:
			return decoded->verdict == VERDICT_EXECUTE ? &yours : &in_progress;
		case STATE_ACCEPTED:
			return &in_progress;
		case STATE_ABSENT:
		case STATE_UNCONFIRMED:
			return &absent;
		case STATE_UNKNOWN:
			return &unknown;
		case STATE_EXPIRED:
			return &expired;
	}
	return &no_state;
}

/* idem_value(answer): the result, or an error that says why there is none. */
SQL_FUNCTION(idem_value)
{
	DecodedAnswer decoded;
	const Refusal *refusal;

	answer_decode(fcinfo, 0, &decoded);
	refusal = why_no_result(&decoded);
	if (refusal)
		ereport(ERROR,
				(errcode(refusal->sqlstate),
				 errmsg("operation \"%s\" (id %s) has no result: %s",
						decoded.operation ? text_to_cstring(decoded.operation) : "",
						decoded.id ? identity_text(decoded.id) : "", refusal->what),
				 refusal->sqlstate == ERRCODE_IDEM_FAILED && decoded.error != (Datum) 0 ?
				 errdetail("%s", JsonbToCString(NULL, &DatumGetJsonbP(decoded.error)->root,
												VARSIZE(DatumGetJsonbP(decoded.error)))) : 0,
				 errhint("%s", refusal->hint)));
	if (decoded.result == (Datum) 0)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(decoded.result);
}
