/*-------------------------------------------------------------------------
 *
 * run.c
 *	  idem_run: claim, call a function, and record what came of it.
 *
 * The function runs with the caller's rights in a subtransaction.  What it
 * returns completes the claim.  An error that says something about the request
 * itself is recorded as a failure for good; every other one, transient or
 * internal, is raised again after the subtransaction is gone, and takes the
 * claim with it: nothing is recorded, the key may be tried again.  In
 * particular serialization failures, deadlocks and cancels are never taken for
 * an outcome.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "claim.h"
#include "compat.h"
#include "requests.h"

PG_FUNCTION_INFO_V1(idem_run);

/* Classes of SQLSTATE that PostgreSQL uses; "ID" is ours. */
static const char defined_classes[][3] = {
	"00", "01", "02", "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z",
	"10", "20", "21", "22", "23", "24", "25", "26", "27", "28", "2B", "2D", "2F",
	"34", "38", "39", "3B", "3D", "3F", "40", "42", "44", "53", "54", "55",
	"57", "58", "72", "F0", "HV", "ID", "P0", "XX"
};

/*
 * Does an error say that the request itself cannot succeed?  P0001, data
 * exceptions, violated constraints and check options, and whatever an
 * application has made up.
 */
static bool
is_outcome(int sqlstate)
{
	const char *state = unpack_sql_state(sqlstate);

	if (strcmp(state, "P0001") == 0 || strncmp(state, "22", 2) == 0 ||
		strncmp(state, "23", 2) == 0 || strncmp(state, "44", 2) == 0)
		return true;
	for (int i = 0; i < lengthof(defined_classes); i++)
	{
		if (strncmp(state, defined_classes[i], 2) == 0)
			return false;
	}
	return true;
}

/*
 * An error as the object that is recorded.
 */
static Datum
error_json(const ErrorData *edata)
{
	JsonbParseState *state = NULL;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_push_string(&state, "sqlstate", unpack_sql_state(edata->sqlerrcode));
	json_push_string(&state, "message", edata->message);
	json_push_string(&state, "detail", edata->detail);
	json_push_string(&state, "hint", edata->hint);
	return JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL)));
}

/*
 * Raise 22023 unless that is a plain function (jsonb) -> jsonb, 42883 if there
 * is none, 42501 if the caller may not execute it.
 */
static void
check_function(Oid func, const Identity *who)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(func));
	Form_pg_proc form;
	bool		good;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function %u to run for operation \"%s\" (id %s) does not exist",
						func, who->operation, id_text(&who->id)),
				 errhint("Pass the name as regprocedure, such as 'create_order(jsonb)'.")));
	form = (Form_pg_proc) GETSTRUCT(tuple);
	good = form->prokind == PROKIND_FUNCTION && !form->proretset &&
		form->pronargs == 1 && form->proargtypes.values[0] == JSONBOID &&
		form->prorettype == JSONBOID;
	ReleaseSysCache(tuple);
	if (!good)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s cannot be run for operation \"%s\" (id %s)",
						format_procedure(func), who->operation, id_text(&who->id)),
				 errhint("It must be a plain function that takes one jsonb and returns jsonb.")));
	if (!compat_may_execute(func))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(func));
}

/*
 * Call the function; false if it returned NULL.
 */
static bool
call_function(Oid func, Datum params, bool params_null, Datum *result)
{
	LOCAL_FCINFO(call, 1);
	FmgrInfo	flinfo;

	fmgr_info(func, &flinfo);
	InitFunctionCallInfoData(*call, &flinfo, 1, InvalidOid, NULL, NULL);
	call->args[0].value = params;
	call->args[0].isnull = params_null;
	if (flinfo.fn_strict && params_null)
		return false;
	*result = FunctionCallInvoke(call);
	return !call->isnull;
}

typedef struct Run
{
	Oid			func;
	Datum		params;
	bool		params_null;
	Datum		outcome;
} Run;

static void
run_step(void *arg)
{
	Run		   *run = arg;
	Datum		result;

	if (call_function(run->func, run->params, run->params_null, &result))
		run->outcome = JsonbPGetDatum(DatumGetJsonbPCopy(result));
}

/*
 * Call the function in a subtransaction.  True if it returned, *outcome being
 * a copy of the result or (Datum) 0; false if it failed with an error that is
 * an outcome, *outcome being that error.  Raises any other error again.
 */
static bool
run_function(Oid func, Datum params, bool params_null, Datum *outcome)
{
	Run			run = {func, params, params_null, (Datum) 0};
	ErrorData  *error = subtransaction_try(run_step, &run);

	if (error && !is_outcome(error->sqlerrcode))
		ReThrowError(error);
	*outcome = error ? error_json(error) : run.outcome;
	return error == NULL;
}

static const ClaimKind kind_run = {
	.verb = "run",
	.attempts = 1,
	.matches_params = true,
	.takes_overrun = true,
	.sees_past = true,
	.execute = claim_grant,
};

static Datum
serve_run(PG_FUNCTION_ARGS)
{
	Claim		claim;
	Oid			func = PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3);
	Jsonb	   *params = PG_ARGISNULL(2) ? NULL : PG_GETARG_JSONB_P(2);
	Datum		outcome;

	claim_begin(&claim, fcinfo, &kind_run, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(4));
	if (!OidIsValid(func))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("func to run for operation \"%s\" (id %s) must not be null",
						claim.call.who.operation, id_text(&claim.call.who.id)),
				 errhint("Pass the name as regprocedure, such as 'create_order(jsonb)'.")));
	check_function(func, &claim.call.who);
	claim_set_fingerprint(&claim, params, NULL);
	claim_run(&claim);
	if (claim.answer.verdict != VERDICT_EXECUTE)
		return answer_datum(fcinfo, &claim.answer);

	if (run_function(func, params ? JsonbPGetDatum(params) : (Datum) 0,
					 params == NULL, &outcome))
	{
		finish_claim(&claim.call, claim.answer.fence, true, outcome);
		claim.answer.state = STATE_SUCCEEDED;
		claim.answer.advice = ADVICE_USE_RESULT;
		claim.answer.result = outcome;
	}
	else
	{
		finish_claim(&claim.call, claim.answer.fence, false, outcome);
		claim.answer.state = STATE_FAILED;
		claim.answer.advice = ADVICE_NEW_KEY;
		claim.answer.error = outcome;
	}
	claim.answer.fence = 0;
	return answer_datum(fcinfo, &claim.answer);
}

/*
 * idem_run(operation, key, params, func, principal)
 */
Datum
idem_run(PG_FUNCTION_ARGS)
{
	return request_serve(fcinfo, "run", serve_run);
}
