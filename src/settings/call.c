/*
 * call.c
 *	  What every SQL function about keys begins with: the arguments that name
 *	  a key, the policy, the caller's right; and checks that need these.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "settings/settings.h"

/* Returns an argument that must not be NULL.  Raises 22023 if it is. */
static char *
require_text(text *value, const char *what, const char *operation)
{
	if (value == NULL)
		REFUSE_ARGUMENT(operation ?
						errmsg("%s of operation \"%s\" must not be null", what, operation) :
						errmsg("%s must not be null", what),
						errhint("Operation and key name the intent: the same on every retry of it."));
	return text_to_cstring(value);
}

/*
 * Starts a call about an operation, whichever its keys.  From here on the request is
 * logged if the policy says so.  Raises 22023, and 42501 without the operation's
 * role, which monitors do not need.
 */
void
call_begin_operation(Call *call, text *operation, bool is_monitor)
{
	memset(&call->who, 0, sizeof(call->who));
	call->who.operation = require_text(operation, "operation", NULL);
	identity_check_text(call->who.operation, "operation");
	if (strcmp(call->who.operation, EVERY_NAME) == 0)
		REFUSE_ARGUMENT(errmsg("operation \"%s\" stands for all operations and has no keys",
							   EVERY_NAME),
						errhint("Name the operation."));
	call->policy = policy_get(call->who.operation);
	call->verb = request_verb();
	request_about(call);
	if (!is_monitor)
		access_check_role(call->policy, call->who.operation);
}

/*
 * Starts a call: sets the key it is about and the policy, and checks that the
 * caller of the SQL function may make it.  NULL stands for SQL NULL, known_id is
 * as in identity_derive().  Raises 22023 and 42501.
 */
void
call_begin(Call *call, FunctionCallInfo fcinfo, Binding binding,
		   text *operation, text *key, text *principal, const pg_uuid_t *known_id)
{
	call_begin_operation(call, operation, true);
	call->who.key = require_text(key, "key", call->who.operation);
	request_about(call);
	call->who.principal = access_principal(principal, call->who.operation);
	request_about(call);
	identity_derive(&call->who, known_id);
	request_about(call);
	access_check(call, fcinfo, binding);
}

/* Raises why a call cannot do what it is to, to its key or else its operation. */
void
call_refuse(const Call *call, int sqlstate, const char *why, const char *hint)
{
	const Identity *who = &call->who;

	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("cannot %s operation \"%s\"%s: %s", call->verb,
					who->operation, who->key ? psprintf(" (id %s)", identity_text(&who->id)) : "", why),
			 errhint("%s", hint)));
}

/* Raises 25006 or 25000 where nothing can be written. */
void
call_require_writable(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
}

/* Raises 25006 where no record can be changed. */
void
call_refuse_unless_writable(const Call *call)
{
	bool		parallel = IsInParallelMode();
	const char *where = parallel ? "in a parallel query" :
	RecoveryInProgress() ? "on a standby" :
	XactReadOnly ? "in a read-only transaction" : NULL;

	if (where)
		ereport(ERROR,
				(errcode(parallel ? ERRCODE_INVALID_TRANSACTION_STATE :
						 ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot %s operation \"%s\" (id %s) %s", call->verb,
						call->who.operation, identity_text(&call->who.id), where),
				 parallel ? errhint("Mark every function that calls it PARALLEL UNSAFE.") :
				 errhint("Do it on the primary, in a transaction that may write. idem_status() can be asked here.")));
}

/* Raises ID004 if an outcome is larger than the operation allows; (Datum) 0 = none. */
void
call_check_size(const Call *call, Datum outcome, const char *what)
{
	int64		limit = call->policy->max_result_bytes;

	if (outcome != (Datum) 0 && json_exceeds(DatumGetJsonbP(outcome), limit))
		call_refuse(call, ERRCODE_IDEM_RESULT_TOO_LARGE,
					psprintf("the %s is larger than " INT64_FORMAT " bytes", what, limit),
					"Store the large part in a table of yours and record a reference, or raise setting \"max_result_bytes\". A claim that was open still is, once this error is rolled back to a savepoint.");
}

/* Raises 22023 for a key to be claimed that is malformed or from the future. */
void
call_check_key(const Call *call)
{
	const Policy *policy = call->policy;
	KeyFormat	format = policy->key_format;
	bool		timed = format == KEY_UUIDV7 || format == KEY_ULID;

	if (format != KEY_ANY &&
		(identity_is_uuid(call->who.key) != (format != KEY_ULID) ||
		 (timed && !call->who.key_has_time)))
		call_refuse(call, ERRCODE_INVALID_PARAMETER_VALUE,
					"the key has not the format its policy asks for",
					"See setting \"key_format\" in idem_policy().");
	if (timed && call->who.key_time >
		clock_after(GetCurrentTimestamp(), policy->clock_skew))
		call_refuse(call, ERRCODE_INVALID_PARAMETER_VALUE, "the key is from the future",
					"Check the clock that makes the keys; setting \"clock_skew\" says how far ahead it may be.");
}
