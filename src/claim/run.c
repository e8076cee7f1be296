/*
 * run.c
 *	  idem_run: claim, call a function, and record what came of it.
 *
 * The function runs with the caller's rights in a subtransaction.  What it
 * returns completes the claim.  An error that says something about the request
 * itself is recorded as a failure for good, cut if it is larger than the
 * operation allows; every other one, transient or internal, is raised again after
 * the subtransaction is gone, and takes the claim with it: nothing is recorded, the
 * key may be tried again.  In particular serialization failures, deadlocks and
 * cancels are never taken for an outcome.
 *
 * The function comes as an OID, so no parser has looked its name up for the
 * caller: what a call by name is asked for is asked here, before the claim and
 * again after it, because while a claim waits rights may be revoked.
 */
#include "postgres.h"

#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/acl.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"

#include "claim/claim.h"

#define HOW_TO_PASS "Pass the name as regprocedure, such as 'create_order(jsonb)'."

/* Classes of SQLSTATE that PostgreSQL uses; "ID" is ours. */
static const char defined_classes[][3] = {
	"00", "01", "02", "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z",
	"10", "20", "21", "22", "23", "24", "25", "26", "27", "28", "2B", "2D", "2F",
	"34", "38", "39", "3B", "3D", "3F", "40", "42", "44", "53", "54", "55",
	"57", "58", "72", "F0", "HV", "ID", "P0", "XX"
};

/*
 * Returns whether an error says that the request itself cannot succeed: P0001, data
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

#define UNCUT (-1)

/* Adds a text of an error, at most that many bytes of it. */
static void
push_text(JsonbParseState **state, const char *name, const char *value, int most)
{
	if (value && most != UNCUT)
		value = pnstrdup(value, pg_mbcliplen(value, strlen(value), most));
	json_push_string(state, name, value);
}

/* Returns an error as it is recorded, its texts cut to so many bytes each. */
static Jsonb *
error_json(const ErrorData *edata, int most)
{
	JsonbParseState *state = NULL;
	JsonbValue	cut = {.type = jbvBool,.val.boolean = true};

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_push_string(&state, "sqlstate", unpack_sql_state(edata->sqlerrcode));
	push_text(&state, "message", edata->message, most);
	push_text(&state, "detail", edata->detail, most);
	push_text(&state, "hint", edata->hint, most);
	if (most != UNCUT)
		json_push(&state, "cut", &cut);
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

/*
 * Returns an error as it is recorded: whole if it is at most so large, else with
 * its texts cut to what is the most that fits.  Where not even empty ones do,
 * they are recorded all the same: that it failed must not be lost.
 */
static Datum
error_that_fits(const ErrorData *edata, int64 max_bytes)
{
	Jsonb	   *error = error_json(edata, UNCUT);
	int			fits = 0;
	int			too_long = (int) Min(max_bytes, MaxAllocSize);

	if (!json_exceeds(error, max_bytes))
		return JsonbPGetDatum(error);
	while (too_long - fits > 1)
	{
		int			most = fits + (too_long - fits) / 2;

		pfree(error);
		error = error_json(edata, most);
		if (json_exceeds(error, max_bytes))
			too_long = most;
		else
			fits = most;
	}
	pfree(error);
	return JsonbPGetDatum(error_json(edata, fits));
}

/* Raises 22023 unless it is a function (jsonb) -> jsonb, 42883 for none, 42501 for no right. */
static void
check_function(Oid func, const Call *call)
{
	Oid			schema = get_func_namespace(func);
	Oid		   *types;
	int			n;

	if (!OidIsValid(schema))
		call_refuse(call, ERRCODE_UNDEFINED_FUNCTION,
					psprintf("function %u does not exist", func), HOW_TO_PASS);
	if (get_func_signature(func, &types, &n) != JSONBOID || n != 1 || types[0] != JSONBOID ||
		get_func_prokind(func) != PROKIND_FUNCTION || get_func_retset(func))
		call_refuse(call, ERRCODE_INVALID_PARAMETER_VALUE,
					psprintf("%s is of another kind", format_procedure(func)),
					"It must be a plain function that takes one jsonb and returns jsonb.");
	if (!compat_may_use_schema(schema))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA, get_namespace_name(schema));
	if (!compat_may_execute(func))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(func));
	InvokeFunctionExecuteHook(func);
}

typedef struct RunStep
{
	Oid			func;
	NullableDatum params;
	Datum		outcome;		/* a copy of the result; (Datum) 0 = NULL */
} RunStep;

/* Calls the function, if it is to be called with these params. */
static void
run_step(void *arg)
{
	LOCAL_FCINFO(call, 1);
	FmgrInfo	flinfo;
	RunStep    *run = arg;
	Datum		result;

	fmgr_info(run->func, &flinfo);
	if (flinfo.fn_strict && run->params.isnull)
		return;
	InitFunctionCallInfoData(*call, &flinfo, 1, InvalidOid, NULL, NULL);
	call->args[0] = run->params;
	result = FunctionCallInvoke(call);
	if (!call->isnull)
		run->outcome = JsonbPGetDatum(DatumGetJsonbPCopy(result));
}

static const ClaimKind kind_run = {
	.attempts = 1,
	.matches_params = true,
	.execute = claim_grant,
};

/* idem_run(operation, key, params, func, principal) */
REQUEST_FUNCTION(idem_run, "run")
{
	Claim		claim;
	Oid			func = PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3);
	RunStep		run = {.func = func,.params = fcinfo->args[2]};
	ErrorData  *error;
	bool		succeeded;

	claim_begin(&claim, fcinfo, &kind_run, ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(4));
	if (!OidIsValid(func))
		call_refuse(&claim.call, ERRCODE_INVALID_PARAMETER_VALUE,
					"func must not be null", HOW_TO_PASS);
	check_function(func, &claim.call);
	claim_read_params(&claim, fcinfo, 2, 0);
	claim_run(&claim);
	if (claim.answer.verdict != VERDICT_EXECUTE)
		return answer_datum(fcinfo, &claim.answer);

	Assert(claim.answer.fence > 0);
	open_claim_find(&claim.call.who.id)->call_finishes = true;
	/* a claim that waits takes no lock, with which changes of rights come in */
	AcceptInvalidationMessages();
	check_function(func, &claim.call);
	error = subtransaction_try(run_step, &run);
	succeeded = error == NULL;
	if (!succeeded && !is_outcome(error->sqlerrcode))
		ReThrowError(error);
	if (!succeeded)
		run.outcome = error_that_fits(error, claim.call.policy->max_result_bytes);
	finish_claim(&claim.call, claim.answer.fence, succeeded, run.outcome);
	claim.answer.state = succeeded ? STATE_SUCCEEDED : STATE_FAILED;
	claim.answer.advice = succeeded ? ADVICE_USE_RESULT : ADVICE_NEW_KEY;
	if (succeeded)
		claim.answer.result = run.outcome;
	else
		claim.answer.error = run.outcome;
	claim.answer.fence = 0;
	return answer_datum(fcinfo, &claim.answer);
}
