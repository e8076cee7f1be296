/*-------------------------------------------------------------------------
 *
 * calls.c
 *	  idem_permit and idem_report: the discipline of calls for who makes them
 *	  itself; and what of it can be seen.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "background.h"
#include "compat.h"
#include "discipline.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(idem_permit);
PG_FUNCTION_INFO_V1(idem_report);
PG_FUNCTION_INFO_V1(idem_stat_calls);

static const char *const decision_labels[] = {
	[CALL_GO] = "go",
	[CALL_WAIT] = "wait",
	[CALL_GIVE_UP] = "give_up",
};

static const char *const breaker_labels[] = {
	[BREAKER_CLOSED] = "closed",
	[BREAKER_OPEN] = "open",
	[BREAKER_HALF_OPEN] = "half-open",
};

/*
 * The destination of a call about the discipline.  Raises 22023, and 55000
 * where there is no shared memory to keep it in: a caller that believes to be
 * held back by it must not go on without.
 */
static const Destination *
destination_of(FunctionCallInfo fcinfo)
{
	char	   *name = destination_called(ARG_TEXT(0));

	if (!shared_available())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("calls to destination \"%s\" cannot be limited: library \"%s\" is not preloaded",
						name, LIBRARY_NAME),
				 errhint("Add it to shared_preload_libraries and restart the server.")));
	return destination_get(name);
}

static Datum
interval_datum(int64 microseconds)
{
	Interval   *span = palloc0(sizeof(Interval));

	span->time = microseconds;
	return IntervalPGetDatum(span);
}

/*
 * idem_permit(destination)
 */
Datum
idem_permit(PG_FUNCTION_ARGS)
{
	const Destination *destination = destination_of(fcinfo);
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false};
	int64		retry_after;
	CallDecision decision;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	desc = BlessTupleDesc(desc);
	decision = discipline_ask(destination, &retry_after);
	values[0] = CStringGetTextDatum(decision_labels[decision]);
	nulls[1] = decision != CALL_WAIT;
	values[1] = nulls[1] ? (Datum) 0 : interval_datum(retry_after);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/*
 * idem_report(destination, succeeded, is_retry)
 */
Datum
idem_report(PG_FUNCTION_ARGS)
{
	const Destination *destination = destination_of(fcinfo);

	if (PG_ARGISNULL(1) || PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("succeeded and is_retry of a report to destination \"%s\" must not be null",
						destination->name),
				 errhint("A call whose outcome is not known has not succeeded.")));
	discipline_tell(destination, PG_GETARG_BOOL(1), PG_GETARG_BOOL(2));
	PG_RETURN_VOID();
}

/*----
 * For people.
 *----
 */

/*
 * Millionths as a number with its fraction.
 */
static Datum
share_datum(int64 millionths)
{
	return DirectFunctionCall2(numeric_div,
							   NumericGetDatum(int64_to_numeric(millionths)),
							   NumericGetDatum(int64_to_numeric(WHOLE)));
}

static void
put_state(ReturnSetInfo *rsinfo, const Destination *destination,
		  const CallState *state)
{
	Datum		values[13];
	bool		nulls[13] = {false};
	int			n = 0;

	values[n++] = CStringGetTextDatum(destination->name);
	values[n++] = CStringGetTextDatum(breaker_labels[state->breaker]);
	values[n++] = Int64GetDatum(state->breaker_succeeded);
	values[n++] = Int64GetDatum(state->breaker_failed);
	values[n++] = Int64GetDatum(state->in_flight);
	nulls[n] = destination->retry_budget == NO_LIMIT;
	values[n++] = share_datum(Max(state->retries_left, 0));
	for (int i = 0; i < N_CALL_DECISIONS; i++)
		values[n++] = Int64GetDatum(state->counts.decided[i]);
	values[n++] = Int64GetDatum(state->counts.succeeded);
	values[n++] = Int64GetDatum(state->counts.failed);
	values[n++] = Int64GetDatum(state->counts.retries);
	values[n++] = Int64GetDatum(state->counts.opened);
	Assert(n == lengthof(values));
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * A row for the calls there was no room for, of all databases.
 */
static void
put_overflow(ReturnSetInfo *rsinfo)
{
	Datum		values[13] = {0};
	bool		nulls[13];

	memset(nulls, true, sizeof(nulls));
	nulls[6] = false;
	values[6] = Int64GetDatum(discipline_overflow());
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * idem_stat_calls(): a row for each destination of this database that is known
 * to the discipline.
 */
Datum
idem_stat_calls(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, discipline_names())
	{
		const Destination *destination = destination_get(lfirst(lc));
		CallState	state;

		if (discipline_state(destination, &state))
			put_state(rsinfo, destination, &state);
	}
	if (discipline_overflow() > 0)
		put_overflow(rsinfo);
	return (Datum) 0;
}
