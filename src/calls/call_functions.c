/*
 * call_functions.c
 *	  idem_permit and idem_report: the call limiter for programs that call
 *	  outside themselves.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "calls/calls.h"

static const char *const decision_labels[] = {
	[CALL_GO] = "go",
	[CALL_WAIT] = "wait",
	[CALL_GIVE_UP] = "give_up",
};

/*
 * Reads the destination that is called, and from argument n whether the call is
 * a retry.  Raises 22023, 42501, and 55000 where there is no shared memory to
 * keep its limits in: a caller that relies on them must not go on without.
 */
static const Destination *
read_call(FunctionCallInfo fcinfo, int n, bool *is_retry)
{
	const Destination *destination = destination_get(destination_called(ARG_TEXT(0)));

	destination_check_role(destination);
	if (!shared_available())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("calls to destination \"%s\" cannot be limited: library \"%s\" is not preloaded",
						destination->name, LIBRARY_NAME),
				 errhint("Add it to shared_preload_libraries and restart the server.")));
	if (PG_ARGISNULL(n))
		REFUSE_ARGUMENT(errmsg("is_retry of a call to destination \"%s\" must not be null",
							   destination->name),
						errhint("Pass true if the same message was sent before."));
	*is_retry = PG_GETARG_BOOL(n);
	return destination;
}

/* idem_permit(destination, is_retry) */
SQL_FUNCTION(idem_permit)
{
	bool		is_retry;
	const Destination *destination = read_call(fcinfo, 1, &is_retry);
	Interval	retry_after = {0};
	CallDecision decision = limiter_ask(destination, is_retry, &retry_after.time);
	RowValues	answer = {0};

	row_add(&answer, true, CStringGetTextDatum(decision_labels[decision]));
	row_add(&answer, decision == CALL_WAIT, IntervalPGetDatum(&retry_after));
	return row_datum(fcinfo, &answer);
}

/* idem_report(destination, succeeded, is_retry) */
SQL_FUNCTION(idem_report)
{
	bool		is_retry;
	const Destination *destination = read_call(fcinfo, 2, &is_retry);
	bool		made = !PG_ARGISNULL(1);
	CallsEnded	ended = {
		.succeeded = made && PG_GETARG_BOOL(1),
		.failed = made && !PG_GETARG_BOOL(1),
		.first_tries = !made && !is_retry,
		.retries = !made && is_retry,
		.probe = true
	};

	limiter_end(destination, &ended);
	PG_RETURN_VOID();
}
