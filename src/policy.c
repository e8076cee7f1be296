/*-------------------------------------------------------------------------
 *
 * policy.c
 *	  The policy of an operation, cached for the session, and who may use it.
 *
 * idem_define sends a relcache invalidation for the policy table when its
 * transaction commits; every call takes in invalidations before it looks here,
 * so a change acts on the next call of every session.  The table is read like
 * the record table, through a dirty look-up: a policy is not part of anybody's
 * snapshot, and reading it must not make transactions conflict.
 *
 * A Policy handed out stays valid until the next policy_get().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/catcache.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/numeric.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"
#include "counters.h"
#include "requests.h"

/* Operations remembered; a caller that makes names up must not eat memory. */
#define MAX_CACHED 256

typedef struct CachedPolicy
{
	char		operation[IDEM_TEXT_MAX * 4 + 1];	/* hash key, zero-padded */
	Policy	   *policy;
} CachedPolicy;

typedef struct CachedNormalisation
{
	int64		version;		/* hash key */
	Normalisation *normalisation;
} CachedNormalisation;

static MemoryContext cache_context = NULL;
static HTAB *policies = NULL;
static HTAB *normalisations = NULL;

/*
 * Drop what is cached if any policy changed or there is too much of it.
 */
static void
cache_refresh(void)
{
	HASHCTL		ctl;

	if (!catalog_changed(TABLE_POLICY) && policies &&
		hash_get_num_entries(policies) + hash_get_num_entries(normalisations) < MAX_CACHED)
		return;

	if (cache_context == NULL)
		cache_context = AllocSetContextCreate(TopMemoryContext,
											  "idempotency policies",
											  ALLOCSET_DEFAULT_SIZES);
	policies = normalisations = NULL;
	MemoryContextReset(cache_context);

	ctl.keysize = sizeof(((CachedPolicy *) NULL)->operation);
	ctl.entrysize = sizeof(CachedPolicy);
	ctl.hcxt = cache_context;
	policies = hash_create("idempotency policies", 16, &ctl,
						   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	ctl.keysize = sizeof(int64);
	ctl.entrysize = sizeof(CachedNormalisation);
	normalisations = hash_create("idempotency normalisations", 16, &ctl,
								 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * What is stored for an operation: its settings, and the horizons there were.
 * False if nothing is.
 */
static bool
read_policy(const char *operation, Jsonb **settings, Jsonb **horizons)
{
	Relation	rel;
	HeapTuple	tuple = stored_row(TABLE_POLICY, F_TEXTEQ,
								   CStringGetTextDatum(operation), &rel);

	*settings = *horizons = NULL;
	if (tuple)
	{
		*settings = stored_jsonb(tuple, 2, rel, false);
		*horizons = stored_jsonb(tuple, 3, rel, true);
	}
	table_close(rel, NoLock);
	return tuple != NULL;
}

static int64
json_integer(const JsonbValue *object, const char *name, int64 when_null)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(object->val.binary.data, name,
									 strlen(name), &value) == NULL ||
		value.type != jbvNumeric)
		return when_null;
	return DatumGetInt64(DirectFunctionCall1(numeric_int8,
											 NumericGetDatum(value.val.numeric)));
}

/*
 * Take the horizons of a policy from their stored form, an array of objects
 * with members until and length.
 */
static void
parse_horizons(Policy *policy, Jsonb *stored)
{
	int			n = stored ? JB_ROOT_COUNT(stored) : 0;

	policy->horizons = palloc(Max(n, 1) * sizeof(Horizon));
	for (int i = 0; i < n; i++)
	{
		JsonbValue *object = getIthJsonbValueFromContainer(&stored->root, i);

		if (object == NULL || object->type != jbvBinary ||
			!JsonContainerIsObject(object->val.binary.data))
			elog(ERROR, "unexpected form of stored horizons");
		policy->horizons[i].until = json_integer(object, "until", NEVER);
		policy->horizons[i].length = json_integer(object, "length", NO_LIMIT);
	}
	policy->n_horizons = n;
}

/*
 * Read and understand a policy; the result lives in context.
 */
static Policy *
policy_load(const char *operation, MemoryContext context)
{
	Jsonb	   *everyone;
	Jsonb	   *own;
	Jsonb	   *everyones_horizons;
	Jsonb	   *own_horizons;
	Jsonb	   *effective;
	Policy	   *policy;
	MemoryContext old;

	(void) read_policy(EVERY_OPERATION, &everyone, &everyones_horizons);

	/* an operation took over everyone's horizons when it was defined */
	if (!read_policy(operation, &own, &own_horizons))
		own_horizons = everyones_horizons;
	effective = settings_effective(everyone, own);

	old = MemoryContextSwitchTo(context);
	effective = DatumGetJsonbPCopy(JsonbPGetDatum(effective));
	policy = settings_parse(effective, operation);
	parse_horizons(policy, own_horizons);
	MemoryContextSwitchTo(old);
	policy->counters = counters_of(operation);
	return policy;
}

/*
 * The policy of an operation.  Raises 22023 if the name is too long for one.
 */
const Policy *
policy_get(const char *operation)
{
	CachedPolicy *entry;
	Policy	   *policy;

	if (strlen(operation) >= sizeof(entry->operation))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the name of an operation must not be longer than %d bytes",
						IDEM_TEXT_MAX)));
	cache_refresh();
	entry = hash_search(policies, operation, HASH_FIND, NULL);
	if (entry)
		return entry->policy;

	/* enter it only when complete: loading may raise */
	policy = policy_load(operation, cache_context);
	entry = hash_search(policies, operation, HASH_ENTER, NULL);
	entry->policy = policy;
	return policy;
}

/*
 * The normalisation of that version, which a record was hashed under.  Raises
 * XX001 if its settings are gone.  Valid like a Policy.
 */
const Normalisation *
policy_normalisation_version(int64 version, const char *operation)
{
	CachedNormalisation *entry;
	Normalisation *normalisation;
	Jsonb	   *settings;
	Relation	rel;
	HeapTuple	tuple;
	MemoryContext old;

	if (version == 0)
		return NULL;
	entry = hash_search(normalisations, &version, HASH_FIND, NULL);
	if (entry)
		return entry->normalisation;

	tuple = stored_row(TABLE_NORMALISATION, F_INT8EQ, Int64GetDatum(version), &rel);
	if (tuple == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("normalisation settings " INT64_FORMAT " of a record of operation \"%s\" are missing",
						version, operation)));
	old = MemoryContextSwitchTo(cache_context);
	settings = stored_jsonb(tuple, 2, rel, false);
	table_close(rel, NoLock);
	normalisation = normalisation_compile(settings, operation);
	MemoryContextSwitchTo(old);
	entry = hash_search(normalisations, &version, HASH_ENTER, NULL);
	entry->normalisation = normalisation;
	return normalisation;
}

/*
 * The principal of a call: the one given, else the session's.  Raises 22023
 * if there is none.
 */
char *
principal_resolve(text *principal, const char *operation)
{
	if (principal)
		return text_to_cstring(principal);
	if (guc_principal == NULL || guc_principal[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no principal for operation \"%s\"", operation),
				 errhint("Pass principal, or set idempotency.principal.")));
	return pstrdup(guc_principal);
}

/*
 * Raise 42501.  One text for all reasons, so that the answer says nothing
 * about the key.
 */
static void
refuse_caller(const char *operation)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("not permitted to use operation \"%s\" for this principal",
					operation),
			 errhint("The settings \"role\" and \"principal_setting\" of the operation decide who may.")));
}

/*
 * Member of a JSON text as ->> gives it; NULL if there is none.  Raises 42501
 * if it is not JSON.
 */
static char *
json_member(const char *json, const char *name, const char *operation)
{
	MemoryContext caller = CurrentMemoryContext;
	Jsonb	   *volatile object = NULL;
	JsonbValue	value;

	PG_TRY();
	{
		object = DatumGetJsonbP(DirectFunctionCall1(jsonb_in,
													CStringGetDatum(json)));
	}
	PG_CATCH();
	{
		/* always ends in another error, so nothing needs to be undone */
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		refuse_caller(operation);
	}
	PG_END_TRY();
	if (!JB_ROOT_IS_OBJECT(object) ||
		getKeyJsonValueFromContainer(&object->root, name, strlen(name),
									 &value) == NULL)
		return NULL;
	switch (value.type)
	{
		case jbvString:
			return pnstrdup(value.val.string.val, value.val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out,
													   NumericGetDatum(value.val.numeric)));
		case jbvBool:
			return pstrdup(value.val.boolean ? "true" : "false");
		default:
			return NULL;
	}
}

/*
 * What the caller's principal has to be under a principal_setting; NULL if
 * the session has not been told, something that nobody is if it has been told
 * nonsense.
 */
static char *
bound_principal(const char *setting, const char *operation)
{
	const char *arrow = strstr(setting, "->>");
	char	   *name;
	const char *value;
	char	   *bound;

	if (strcmp(setting, "current_user") == 0)
		return GetUserNameFromId(GetUserId(), false);
	if (strcmp(setting, "session_user") == 0)
		return GetUserNameFromId(GetSessionUserId(), false);
	if (arrow == NULL)
	{
		value = GetConfigOptionByName(setting, NULL, true);
		return value && value[0] != '\0' ? pstrdup(value) : NULL;
	}

	name = pnstrdup(setting, arrow - setting);
	while (name[0] != '\0' && name[strlen(name) - 1] == ' ')
		name[strlen(name) - 1] = '\0';
	value = GetConfigOptionByName(name, NULL, true);
	arrow += strlen("->>");
	while (*arrow == ' ')
		arrow++;
	if (value == NULL || value[0] == '\0')
		return NULL;
	bound = json_member(value, arrow, operation);
	return bound ? bound : "";
}

/*
 * Has the current user the operation's role?  One that does not exist is one
 * that nobody has.
 */
static bool
has_role(const Policy *policy)
{
	Oid			role;

	if (policy->role == NULL)
		return true;
	role = get_role_oid(policy->role, true);
	return OidIsValid(role) && has_privs_of_role(GetUserId(), role);
}

/*
 * Raise 42501 unless the current user has the operation's role.
 */
static void
check_role(const Policy *policy, const char *operation)
{
	if (!has_role(policy))
		refuse_caller(operation);
}

/*
 * Is the current user bound to another principal?
 */
static bool
is_bound_elsewhere(const Policy *policy, const Identity *who, Binding binding)
{
	const char *setting = policy->principal_setting;
	char	   *bound;

	if (setting == NULL)
		return false;
	if (binding == BIND_WORKER && (strcmp(setting, "current_user") == 0 ||
								   strcmp(setting, "session_user") == 0))
		return false;
	bound = bound_principal(setting, who->operation);
	if (bound == NULL)
		return binding != BIND_WORKER;
	return strcmp(bound, who->principal) != 0;
}

/*
 * Does the caller of that function work for all principals?  A worker is who
 * may start what others have accepted.  Superusers may do anything, so for
 * them that says nothing.
 */
static bool
is_worker(FunctionCallInfo fcinfo)
{
	Oid			schema = get_func_namespace(fcinfo->flinfo->fn_oid);
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP,
										   CStringGetDatum("idem_start_next"));
	bool		found = false;

	for (int i = 0; i < list->n_members && !found; i++)
	{
		Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		found = proc->pronamespace == schema && compat_may_execute(proc->oid);
	}
	ReleaseSysCacheList(list);
	return found && !superuser();
}

/*
 * May the current user use the operation for that principal?
 */
bool
policy_permits(const Policy *policy, const Identity *who, Binding binding)
{
	return has_role(policy) && !is_bound_elsewhere(policy, who, binding);
}

/*
 * The effective settings of an operation, for those who may use it.  Raises
 * 42501.
 */
Datum
policy_shown(const char *operation)
{
	const Policy *policy = policy_get(operation);

	check_role(policy, operation);
	return JsonbPGetDatum(policy->settings);
}

/*
 * How an operation's params are normalised now; NULL = not at all.  Valid
 * like a Policy.  Raises 42501.
 */
const Normalisation *
policy_normalisation(const char *operation)
{
	const Policy *policy = policy_get(operation);

	check_role(policy, operation);
	return policy->normalisation;
}

/*
 * An argument that must be there.  Raises 22023 if it is NULL.
 */
static char *
require_text(text *value, const char *what, const char *operation)
{
	if (value == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 operation ?
				 errmsg("%s of operation \"%s\" must not be null", what, operation) :
				 errmsg("%s must not be null", what),
				 errhint("Operation and key name the intent: the same on every retry of it.")));
	return text_to_cstring(value);
}

/*
 * The operation of a call, and its policy.  From here on the request is logged
 * if that says so, whatever else is wrong with it.  Raises 22023.
 */
static void
begin_with_operation(Call *call, text *operation)
{
	memset(&call->who, 0, sizeof(call->who));
	call->who.operation = require_text(operation, "operation", NULL);
	identity_check_text(call->who.operation, "operation");
	call->policy = policy_get(call->who.operation);
	request_about(call);
}

/*
 * Start a call: whose key it is about, under which policy, and whether the
 * caller of the SQL function may.  Arguments may be NULL pointers for SQL NULL.
 * Raises 22023 and 42501.
 */
void
call_begin(Call *call, FunctionCallInfo fcinfo, Binding binding,
		   text *operation, text *key, text *principal)
{
	begin_with_operation(call, operation);
	call->who.key = require_text(key, "key", call->who.operation);
	request_about(call);
	call->who.principal = principal_resolve(principal, call->who.operation);
	request_about(call);
	identity_derive(&call->who);
	request_about(call);
	if (binding == BIND_UNLESS_WORKER && call->policy->principal_setting)
		binding = is_worker(fcinfo) ? BIND_WORKER : BIND_CALLER;
	if (!policy_permits(call->policy, &call->who, binding))
		refuse_caller(call->who.operation);
}

/*
 * Start a call about an operation, whosever its keys.  Raises 22023 and 42501.
 */
void
call_begin_operation(Call *call, text *operation)
{
	begin_with_operation(call, operation);
	check_role(call->policy, call->who.operation);
}

/*
 * Refuse a function that writes where nothing can be written.  Raises 25006,
 * 25000.
 */
void
refuse_unless_writable(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
}

/*
 * Raise 25006 where no record can be changed; verb is what was to be done.
 */
void
call_refuse_unless_writable(const char *verb, const Identity *who)
{
	const char *where = NULL;

	if (RecoveryInProgress())
		where = "on a standby";
	else if (XactReadOnly)
		where = "in a read-only transaction";
	if (where)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot %s operation \"%s\" (id %s) %s", verb,
						who->operation, id_text(&who->id), where),
				 errhint("Do it on the primary, in a transaction that may write. idem_status() can be asked here.")));
	PreventCommandIfParallelMode("changing a record");
}

/*
 * Raise ID004 if an outcome, (Datum) 0 if there is none, is larger than the
 * operation allows.  what names it for the user.
 */
void
call_check_size(const Call *call, Datum outcome, const char *what)
{
	int64		limit = call->policy->max_result_bytes;

	if (outcome == (Datum) 0 || !json_exceeds(DatumGetJsonbP(outcome), limit))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_RESULT_TOO_LARGE),
			 errmsg("the %s of operation \"%s\" (id %s) is larger than " INT64_FORMAT " bytes",
					what, call->who.operation, id_text(&call->who.id), limit),
			 errhint("Nothing has changed: the claim is still open. Store the large part in a table of yours and record a reference, or raise setting \"max_result_bytes\".")));
}

/*
 * Is the key a UUID in its usual text form?
 */
static bool
is_uuid_text(const char *key)
{
	if (strlen(key) != 36)
		return false;
	for (int i = 0; i < 36; i++)
	{
		bool		hyphen = i == 8 || i == 13 || i == 18 || i == 23;

		if (hyphen ? key[i] != '-' : !isxdigit((unsigned char) key[i]))
			return false;
	}
	return true;
}

/*
 * Does the key have the form the operation asks for?
 */
static bool
key_has_format(const Call *call)
{
	bool		uuid = is_uuid_text(call->who.key);

	switch (call->policy->key_format)
	{
		case KEY_ANY:
			return true;
		case KEY_UUID:
			return uuid;
		case KEY_UUIDV7:
			return uuid && call->who.key_has_time;
		case KEY_ULID:
			return !uuid && call->who.key_has_time;
	}
	return false;
}

/*
 * Check a key that is about to be claimed.  Raises 22023 if it has not the
 * operation's format or comes from the future.
 */
void
call_check_key(const Call *call)
{
	const Policy *policy = call->policy;
	bool		timed = policy->key_format == KEY_UUIDV7 ||
	policy->key_format == KEY_ULID;

	if (!key_has_format(call))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("key of operation \"%s\" has not the format its policy asks for (id %s)",
						call->who.operation, id_text(&call->who.id)),
				 errhint("See setting \"key_format\" in idem_policy().")));
	if (timed && call->who.key_time >
		time_after(GetCurrentTimestamp(), policy->clock_skew))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("key of operation \"%s\" is from the future (id %s)",
						call->who.operation, id_text(&call->who.id)),
				 errhint("Check the clock that makes the keys; setting \"clock_skew\" says how far ahead it may be.")));
}
