/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  idem_grant and idem_revoke: who may call what, by tier.
 *
 * Both are SECURITY DEFINER with a fixed search_path, so that an admin can
 * pass on what the extension's owner owns.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/pg_proc.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "utils/acl.h"
#include "utils/catcache.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "compat.h"
#include "idempotency.h"

PG_FUNCTION_INFO_V1(idem_grant);
PG_FUNCTION_INFO_V1(idem_revoke);

typedef enum Tier
{
	TIER_APP,
	TIER_WORKER,
	TIER_MONITOR,
	TIER_ADMIN
} Tier;

static const char *const tier_names[] = {"app", "worker", "monitor", "admin"};

/* What each tier adds; a worker is an app too, an admin is everything. */
static const struct
{
	Tier		tier;
	const char *function;
}			tier_functions[] =

{
	{TIER_APP, "idem_accept"},
	{TIER_APP, "idem_cancel"},
	{TIER_APP, "idem_claim"},
	{TIER_APP, "idem_complete"},
	{TIER_APP, "idem_complete_key"},
	{TIER_APP, "idem_destination_policy"},
	{TIER_APP, "idem_emit"},
	{TIER_APP, "idem_fail"},
	{TIER_APP, "idem_fail_key"},
	{TIER_APP, "idem_list"},
	{TIER_APP, "idem_once"},
	{TIER_APP, "idem_once_many"},
	{TIER_APP, "idem_permit"},
	{TIER_APP, "idem_policy"},
	{TIER_APP, "idem_release"},
	{TIER_APP, "idem_release_key"},
	{TIER_APP, "idem_renew"},
	{TIER_APP, "idem_renew_key"},
	{TIER_APP, "idem_report"},
	{TIER_APP, "idem_run"},
	{TIER_APP, "idem_status"},
	{TIER_APP, "idem_unsure"},
	{TIER_APP, "idem_unsure_key"},
	{TIER_WORKER, "idem_ack"},
	{TIER_WORKER, "idem_ack_many"},
	{TIER_WORKER, "idem_nack"},
	{TIER_WORKER, "idem_reconcile"},
	{TIER_WORKER, "idem_redeliver"},
	{TIER_WORKER, "idem_resolve"},
	{TIER_WORKER, "idem_start"},
	{TIER_WORKER, "idem_start_next"},
	{TIER_WORKER, "idem_take"},
	{TIER_MONITOR, "idem_destination_policy"},
	{TIER_MONITOR, "idem_list"},
	{TIER_MONITOR, "idem_requests"},
	{TIER_MONITOR, "idem_stat_calls"},
	{TIER_MONITOR, "idem_stat_claims"},
	{TIER_MONITOR, "idem_stat_counters"},
	{TIER_MONITOR, "idem_stat_horizons"},
	{TIER_MONITOR, "idem_stat_request_lines"},
	{TIER_MONITOR, "idem_stat_visits"},
	{TIER_ADMIN, "idem_define"},
	{TIER_ADMIN, "idem_destination_define"},
	{TIER_ADMIN, "idem_discard"},
	{TIER_ADMIN, "idem_grant"},
	{TIER_ADMIN, "idem_purge"},
	{TIER_ADMIN, "idem_redact"},
	{TIER_ADMIN, "idem_revoke"},
	{TIER_ADMIN, "idem_stat_reset"},
};

/*
 * Is a function of one tier part of another?
 */
static bool
tier_has(Tier tier, Tier of_function)
{
	return tier == TIER_ADMIN || tier == of_function ||
		(tier == TIER_WORKER && of_function == TIER_APP);
}

/*
 * Raises 22023 for a tier there is not.
 */
static Tier
tier_of(const char *name)
{
	for (int i = 0; i < lengthof(tier_names); i++)
	{
		if (strcmp(tier_names[i], name) == 0)
			return (Tier) i;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("there is no tier \"%s\"", name),
			 errhint("The tiers are app, worker, monitor and admin.")));
	return TIER_APP;
}

static const struct
{
	bool		for_workers;	/* also the worker tier reads it */
	const char *view;
}			monitor_views[] = {
	{true, "idem_dead_letter"},
	{false, "idem_open"},
	{false, "idem_outbox_event"},
	{false, "idem_record"},
	{false, "idem_request_log"},
	{false, "idem_stat"},
	{false, "idem_stat_activity"},
	{false, "idem_stat_destination"},
	{false, "idem_stat_worker"},
	/* says that a role may see all principals; see list.c */
	{true, "idem_unresolved"},
};

static void
execute(const char *command)
{
	if (SPI_execute(command, false, 0) != SPI_OK_UTILITY)
		elog(ERROR, "unexpected result of: %s", command);
}

/*
 * The signature of a function of ours, quoted; somebody may have made another
 * one of that name in the same schema.
 */
static char *
signature_of(const char *name, Oid schema)
{
	Oid			extension = get_extension_oid("idempotency", false);
	CatCList   *list = SearchSysCacheList1(PROCNAMEARGSNSP, CStringGetDatum(name));
	char	   *signature = NULL;

	for (int i = 0; i < list->n_members; i++)
	{
		Form_pg_proc proc = (Form_pg_proc) GETSTRUCT(&list->members[i]->tuple);

		if (proc->pronamespace == schema &&
			getExtensionOfObject(ProcedureRelationId, proc->oid) == extension)
			signature = format_procedure_qualified(proc->oid);
	}
	ReleaseSysCacheList(list);
	if (signature == NULL)
		elog(ERROR, "function %s of extension \"idempotency\" is missing", name);
	return signature;
}

/*
 * Run GRANT or REVOKE for each function of the tier.  verb and preposition are
 * those of the command; schema_too adds USAGE of the extension's schema, which
 * a revoke leaves alone: others than us may have granted it.
 */
static Datum
change_grants(FunctionCallInfo fcinfo, const char *verb,
			  const char *preposition, bool schema_too)
{
	const char *role;
	Oid			schema_oid = get_func_namespace(fcinfo->flinfo->fn_oid);
	const char *schema = quote_identifier(get_namespace_name(schema_oid));
	Tier		tier;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("role and tier must not be null")));
	/* a role, not the word PUBLIC or CURRENT_USER */
	(void) get_role_oid(NameStr(*PG_GETARG_NAME(0)), false);
	role = quote_identifier(NameStr(*PG_GETARG_NAME(0)));
	tier = tier_of(text_to_cstring(PG_GETARG_TEXT_PP(1)));

	SPI_connect();
	if (schema_too)
		execute(psprintf("GRANT USAGE ON SCHEMA %s TO %s", schema, role));
	for (int i = 0; i < lengthof(tier_functions); i++)
	{
		if (tier_has(tier, tier_functions[i].tier))
			execute(psprintf("%s EXECUTE ON FUNCTION %s %s %s", verb,
							 signature_of(tier_functions[i].function, schema_oid),
							 preposition, role));
	}
	for (int i = 0; i < lengthof(monitor_views); i++)
	{
		if (tier == TIER_APP ||
			(tier == TIER_WORKER && !monitor_views[i].for_workers))
			continue;
		execute(psprintf("%s SELECT ON %s.%s %s %s", verb, schema,
						 monitor_views[i].view, preposition, role));
	}
	SPI_finish();
	PG_RETURN_VOID();
}

/* idem_grant(role, tier) */
Datum
idem_grant(PG_FUNCTION_ARGS)
{
	return change_grants(fcinfo, "GRANT", "TO", true);
}

/* idem_revoke(role, tier) */
Datum
idem_revoke(PG_FUNCTION_ARGS)
{
	return change_grants(fcinfo, "REVOKE", "FROM", false);
}
