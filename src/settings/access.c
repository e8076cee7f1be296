/*
 * access.c
 *	  Which callers may use an operation: its settings "role" and
 *	  "principal_setting", and the tiers of idem_grant(), which are privileges
 *	  on functions and views of the extension.
 */
#include "postgres.h"

#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "guc.h"
#include "settings/settings.h"

/* Returns the principal given, else the session's.  Raises 22023 if there is none. */
char *
access_principal(text *principal, const char *operation)
{
	if (principal)
		return text_to_cstring(principal);
	if (guc_principal == NULL || guc_principal[0] == '\0')
		REFUSE_ARGUMENT(errmsg("no principal for operation \"%s\"", operation),
						errhint("Pass principal, or set idempotency.principal."));
	return pstrdup(guc_principal);
}

/* Raises 42501, with one text for all reasons: it says nothing about the key. */
pg_noreturn static void
refuse_caller(const char *operation)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("not permitted to use operation \"%s\" for this principal",
					operation),
			 errhint("The settings \"role\" and \"principal_setting\" of the operation decide who may.")));
}

/*
 * Returns what the caller's principal must be under a principal_setting: NULL
 * if that has no value, an empty string, which no principal is, if it has no such
 * member.  Raises 42501 if it should be JSON and is not.
 */
static char *
bound_principal(const char *setting, const char *operation)
{
	const char *arrow = strstr(setting, "->>");
	char	   *name = arrow ? pnstrdup(setting, arrow - setting) : pstrdup(setting);
	const char *value;
	char	   *bound = NULL;
	Datum		object;
	JsonbValue	member;

	if (strcmp(setting, "current_user") == 0)
		return GetUserNameFromId(GetUserId(), false);
	if (strcmp(setting, "session_user") == 0)
		return GetUserNameFromId(GetSessionUserId(), false);
	while (arrow && name[0] != '\0' && name[strlen(name) - 1] == ' ')
		name[strlen(name) - 1] = '\0';
	value = GetConfigOptionByName(name, NULL, true);
	if (value == NULL || value[0] == '\0')
		return NULL;
	if (arrow == NULL)
		return pstrdup(value);
	if (!setting_parse(jsonb_in, value, &object))
		refuse_caller(operation);
	arrow += strlen("->>");
	if (JB_ROOT_IS_OBJECT(DatumGetJsonbP(object)) &&
		json_find(DatumGetJsonbP(object), arrow + strspn(arrow, " "), &member))
		bound = json_scalar_text(&member);
	return bound ? bound : "";
}

/* Returns whether the current user has the privileges of a role, which may be NULL or not exist. */
bool
access_has_role(const char *role)
{
	Oid			oid;

	if (role == NULL)
		return true;
	oid = get_role_oid(role, true);
	return OidIsValid(oid) && has_privs_of_role(GetUserId(), oid);
}

/* Raises 42501 unless the current user has the operation's role. */
void
access_check_role(const Policy *policy, const char *operation)
{
	if (!access_has_role(policy->role))
		refuse_caller(operation);
}

/* Returns the one principal that a session of a worker has been told; NULL if none. */
char *
access_workers_principal(const Policy *policy, const char *operation)
{
	const char *setting = policy->principal_setting;

	if (setting == NULL || strcmp(setting, "current_user") == 0 ||
		strcmp(setting, "session_user") == 0)
		return NULL;
	return bound_principal(setting, operation);
}

/*
 * Returns whether the current user may execute that function of the extension.  It
 * stands in the schema of the one called, where no other has its name and arguments.
 */
static bool
may_execute(FunctionCallInfo fcinfo, const char *name, const Oid *types, int n)
{
	Oid			schema = get_func_namespace(fcinfo->flinfo->fn_oid);
	Oid			function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
										   CStringGetDatum(name),
										   PointerGetDatum(buildoidvector(types, n)),
										   ObjectIdGetDatum(schema));

	return OidIsValid(function) && compat_may_execute(function);
}

/*
 * Returns whether the caller works for all principals: only workers may start what
 * others have accepted.  Superusers may do anything, so for them that says nothing.
 */
static bool
is_worker(FunctionCallInfo fcinfo)
{
	static const Oid types[] = {TEXTOID, INT4OID, INTERVALOID, TEXTOID};

	return may_execute(fcinfo, "idem_start_next", types, lengthof(types)) && !superuser();
}

/* Returns whether the caller of that function may read a view of the extension. */
bool
access_may_read(FunctionCallInfo fcinfo, const char *name)
{
	Oid			view = get_relname_relid(name, get_func_namespace(fcinfo->flinfo->fn_oid));

	return OidIsValid(view) && pg_class_aclcheck(view, GetUserId(), ACL_SELECT) == ACLCHECK_OK;
}

/* Returns whether the current user may use the operation for that principal. */
bool
access_permits(const Policy *policy, const Identity *who, Binding binding)
{
	char	   *bound;

	if (!access_has_role(policy->role))
		return false;
	if (policy->principal_setting == NULL)
		return true;
	bound = binding == BIND_WORKER ?
		access_workers_principal(policy, who->operation) :
		bound_principal(policy->principal_setting, who->operation);
	if (bound == NULL)
		return binding == BIND_WORKER;
	return strcmp(bound, who->principal) == 0;
}

/* Raises 42501 unless the caller of that function may make the call. */
void
access_check(const Call *call, FunctionCallInfo fcinfo, Binding binding)
{
	if (binding == BIND_NOT)
		return;
	if (binding == BIND_UNLESS_WORKER && call->policy->principal_setting)
		binding = is_worker(fcinfo) ? BIND_WORKER : BIND_CALLER;
	if (!access_permits(call->policy, &call->who, binding))
		refuse_caller(call->who.operation);
}

/*
 * Returns how the params of an operation are normalised now; NULL for not at all,
 * or without a name.  That shows settings, so it takes what idem_policy() takes.
 */
const Normalisation *
access_normalisation(FunctionCallInfo fcinfo, text *name)
{
	static const Oid types[] = {TEXTOID};
	char	   *operation = name ? text_to_cstring(name) : NULL;

	if (operation == NULL)
		return NULL;
	identity_check_text(operation, "operation");
	if (!may_execute(fcinfo, "idem_policy", types, lengthof(types)))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("not permitted to see the settings of operation \"%s\"", operation),
				 errhint("Pass no operation, or have tier \"app\" granted with idem_grant().")));
	access_check_role(policy_get(operation), operation);
	return policy_get(operation)->normalisation;
}
