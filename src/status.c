/*-------------------------------------------------------------------------
 *
 * status.c
 *	  idem_status: what is known of a key, changing nothing; and what an
 *	  answer means to SQL (idem_value) and HTTP (idem_http_status).
 *
 * Status asks for a holder first and looks at the record after.  The other way
 * round, a claim could be made, completed and committed between an empty look
 * and the question for its lock, and a key with an outcome would read as
 * absent.  In this order, whoever is not seen as a holder either had not begun
 * when the question was asked, or has its row in place when the record is
 * looked at.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "compat.h"
#include "counters.h"
#include "requests.h"

PG_FUNCTION_INFO_V1(idem_http_status);
PG_FUNCTION_INFO_V1(idem_status);
PG_FUNCTION_INFO_V1(idem_value);

typedef struct Status
{
	Call		call;
	TimestampTz now;
	bool		held;			/* somebody has the id, or its record, in hand */
	int32		holder;
	ProbeResult found;
	Record		rec;
	Life		life;			/* LIFE_FORGOTTEN if nothing is found */
} Status;

/*
 * Look.  False if what was seen has changed meanwhile: look again.
 */
static bool
look(Status *status, Store *store)
{
	const Identity *who = &status->call.who;
	bool		standby = RecoveryInProgress();

	status->held = !standby && permit_holder(&who->id, &status->holder);
	status->found = store_probe(store, who, &status->rec);
	status->now = GetCurrentTimestamp();
	status->life = status->found != PROBE_ROW ? LIFE_FORGOTTEN :
		life_of(&status->rec, &status->call, status->now);

	/* what a standby has replayed but not seen committed is not confirmed */
	if (!standby && !status->held && TransactionIdIsValid(status->rec.changer))
	{
		if (!permit_holder_of_xid(status->rec.changer, &status->holder))
			return false;
		status->held = true;
	}
	return true;
}

/*
 * Would a claim execute, were it not for another open transaction?
 */
static bool
is_claimable(Life life)
{
	return life == LIFE_FORGOTTEN || life == LIFE_RELEASED ||
		life == LIFE_RETRYABLE || life == LIFE_OVERRUN;
}

static Advice
advice_for(Life life)
{
	switch (life)
	{
		case LIFE_SUCCEEDED:
			return ADVICE_USE_RESULT;
		case LIFE_FAILED:
			return ADVICE_NEW_KEY;
		case LIFE_EXPIRED:
		case LIFE_UNKNOWN:
			return ADVICE_RECONCILE;
		default:
			return ADVICE_RETRY_SAME_KEY;
	}
}

/*
 * The key is in an open transaction.
 */
static void
tell_held(const Status *status, Answer *answer)
{
	answer->state = STATE_PROCESSING;
	answer->advice = ADVICE_RETRY_SAME_KEY;
	answer->retry_after = life_retry_after(status->call.policy, NEVER, status->now);
	answer->holder = status->holder;
}

/*
 * Nothing is on record, or nothing that is still in force.
 */
static void
tell_nothing(const Status *status, Answer *answer)
{
	if (life_key_is_late(&status->call, status->now))
	{
		answer->state = STATE_EXPIRED;
		answer->advice = ADVICE_RECONCILE;
		return;
	}
	answer->state = RecoveryInProgress() ? STATE_UNCONFIRMED : STATE_ABSENT;
	answer->advice = ADVICE_RETRY_SAME_KEY;
	answer->retry_after = life_retry_after(status->call.policy, NEVER, status->now);
}

static void
tell_record(const Status *status, Answer *answer)
{
	const Record *rec = &status->rec;

	answer->state = life_state(status->life);
	answer->advice = advice_for(status->life);
	answer->attempt = rec->attempt;
	answer->claimed_at = rec->claimed_at;
	answer->finished_at = rec->finished_at;
	answer->lease_until = rec->lease_until;
	answer->expires_at = rec->expires_at;
	answer->forget_at = rec->forget_at;
	if (status->life != LIFE_EXPIRED)
	{
		answer->result = rec->result;
		answer->error = rec->error;
	}
	if (answer->advice == ADVICE_RETRY_SAME_KEY)
		answer->retry_after = life_retry_after(status->call.policy,
											   status->life == LIFE_RUNNING ?
											   rec->lease_until : NEVER,
											   status->now);
}

/*
 * Say what was seen.
 */
static void
tell(const Status *status, Answer *answer)
{
	if (status->held && (is_claimable(status->life) || status->life == LIFE_ACCEPTED))
		tell_held(status, answer);
	else if (status->life == LIFE_FORGOTTEN || status->life == LIFE_RELEASED)
		tell_nothing(status, answer);
	else
		tell_record(status, answer);
}

/*
 * What is on record, as idem_status says it when nobody has it in hand.
 */
void
status_of_record(const Call *call, Record *rec, Answer *answer)
{
	Status		status = {.call = *call,.now = GetCurrentTimestamp(),
	.found = PROBE_ROW,.rec = *rec};

	answer_init(answer, &call->who);
	status.life = life_of(rec, call, status.now);
	tell(&status, answer);
}

/*
 * Answer, and count and log it.
 */
static Datum
answered(FunctionCallInfo fcinfo, const Call *call, const Answer *answer)
{
	counters_add(call->policy->counters, COUNT_STATUS, 1);
	request_answered(call, answer);
	return answer_datum(fcinfo, answer);
}

static Datum
serve_status(PG_FUNCTION_ARGS)
{
	Status		status = {0};
	Answer		answer;
	Store		store;
	const Permit *permit;

	call_begin(&status.call, fcinfo, BIND_CALLER, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(2));
	answer_init(&answer, &status.call.who);
	permit = permit_find(&status.call.who.id);
	if (permit && permit->settled_level == 0)
	{
		status.now = GetCurrentTimestamp();
		status.holder = MyProcPid;
		tell_held(&status, &answer);
		answer.attempt = permit->rec.attempt;
		answer.claimed_at = permit->rec.claimed_at;
		return answered(fcinfo, &status.call, &answer);
	}

	store_open(&store, false);
	while (!look(&status, &store))
		CHECK_FOR_INTERRUPTS();
	store_close(&store);

	tell(&status, &answer);
	return answered(fcinfo, &status.call, &answer);
}

/*
 * idem_status(operation, key, principal)
 */
Datum
idem_status(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "ask", serve_status);
}

/*----
 * What an answer means.
 *----
 */

static char *
handed_text(const text *value)
{
	return value ? text_to_cstring(value) : pstrdup("");
}

/*
 * Raise what stands in the way of a result.
 */
static void
refuse_value(int sqlstate, const Handed *handed, const char *what,
			 const char *hint)
{
	bool		failed = sqlstate == ERRCODE_IDEM_FAILED;

	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("operation \"%s\" (id %s) has no result: %s",
					handed_text(handed->operation),
					handed->has_id ? id_text(&handed->id) : "", what),
			 failed && handed->error != (Datum) 0 ?
			 errdetail("%s", JsonbToCString(NULL, &DatumGetJsonbP(handed->error)->root,
											VARSIZE(DatumGetJsonbP(handed->error)))) : 0,
			 errhint("%s", hint)));
}

/*
 * Raise by verdict, where that alone decides.
 */
static void
refuse_by_verdict(const Handed *handed)
{
	switch (handed->verdict)
	{
		case VERDICT_IN_PROGRESS:
			refuse_value(ERRCODE_IDEM_IN_PROGRESS, handed, "it is in progress",
						 "Ask again with the same key after retry_after.");
			break;
		case VERDICT_MISMATCH:
			refuse_value(ERRCODE_IDEM_MISMATCH, handed,
						 "the key was used with other params",
						 "Use a new key for a new intent.");
			break;
		case VERDICT_UNKNOWN:
			refuse_value(ERRCODE_IDEM_UNKNOWN, handed, "its outcome is not known",
						 "Reconcile: find out what happened, then resolve it.");
			break;
		case VERDICT_EXPIRED:
			refuse_value(ERRCODE_IDEM_EXPIRED, handed,
						 "its outcome is no longer kept",
						 "Reconcile: look for what the operation did in your own tables.");
			break;
		default:
			break;
	}
}

/*
 * idem_value(answer): the result, or an error that says why there is none.
 */
Datum
idem_value(PG_FUNCTION_ARGS)
{
	Handed		handed;

	answer_read(fcinfo, 0, &handed);
	refuse_by_verdict(&handed);
	if (!handed.has_state)
		refuse_value(ERRCODE_INVALID_PARAMETER_VALUE, &handed,
					 "the answer has no state",
					 "Hand over an answer as it came.");
	switch (handed.state)
	{
		case STATE_SUCCEEDED:
			if (handed.result == (Datum) 0)
				PG_RETURN_NULL();
			PG_RETURN_DATUM(handed.result);
		case STATE_FAILED:
			refuse_value(ERRCODE_IDEM_FAILED, &handed, "it failed",
						 "The stored error is in the detail.");
			break;
		case STATE_PROCESSING:
			if (handed.verdict == VERDICT_EXECUTE)
				refuse_value(ERRCODE_INVALID_PARAMETER_VALUE, &handed,
							 "it is yours to execute",
							 "Do the work and call idem_complete().");
			/* FALLTHROUGH */
		case STATE_ACCEPTED:
			refuse_value(ERRCODE_IDEM_IN_PROGRESS, &handed, "it is in progress",
						 "Ask again with the same key after retry_after.");
			break;
		case STATE_ABSENT:
		case STATE_UNCONFIRMED:
			refuse_value(ERRCODE_IDEM_NO_CLAIM, &handed, "nothing is on record",
						 "Claim with the same key; absent does not mean that a new key is safe.");
			break;
		case STATE_UNKNOWN:
			refuse_value(ERRCODE_IDEM_UNKNOWN, &handed, "its outcome is not known",
						 "Reconcile: find out what happened, then resolve it.");
			break;
		case STATE_EXPIRED:
			refuse_value(ERRCODE_IDEM_EXPIRED, &handed,
						 "its outcome is no longer kept",
						 "Reconcile: look for what the operation did in your own tables.");
			break;
	}
	PG_RETURN_NULL();
}

/*
 * HTTP status of an answer that has a verdict.
 */
static int
http_of_verdict(const Handed *handed)
{
	bool		accepted = handed->has_state && handed->state == STATE_ACCEPTED;
	bool		failed = handed->has_state && handed->state == STATE_FAILED;

	switch (handed->verdict)
	{
		case VERDICT_EXECUTE:
			return accepted ? 202 : failed ? 422 : 200;
		case VERDICT_REPLAY:
			return failed ? 422 : 200;
		case VERDICT_IN_PROGRESS:
			return accepted ? 202 : 409;
		case VERDICT_MISMATCH:
			return 422;
		case VERDICT_UNKNOWN:
			return 409;
		case VERDICT_EXPIRED:
			return 410;
		case VERDICT_NONE:
			break;
	}
	return 500;
}

/*
 * HTTP status of an answer from idem_status.
 */
static int
http_of_state(State state)
{
	static const int codes[] = {
		[STATE_ABSENT] = 404,
		[STATE_UNCONFIRMED] = 404,
		[STATE_ACCEPTED] = 202,
		[STATE_PROCESSING] = 202,
		[STATE_SUCCEEDED] = 200,
		[STATE_FAILED] = 422,
		[STATE_UNKNOWN] = 409,
		[STATE_EXPIRED] = 410,
	};

	return codes[state];
}

/*
 * idem_http_status(answer)
 */
Datum
idem_http_status(PG_FUNCTION_ARGS)
{
	Handed		handed;

	answer_read(fcinfo, 0, &handed);
	if (handed.verdict != VERDICT_NONE)
		PG_RETURN_INT32(http_of_verdict(&handed));
	if (!handed.has_state)
		refuse_value(ERRCODE_INVALID_PARAMETER_VALUE, &handed,
					 "the answer has no state", "Hand over an answer as it came.");
	PG_RETURN_INT32(http_of_state(handed.state));
}
