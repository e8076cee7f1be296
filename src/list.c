/*-------------------------------------------------------------------------
 *
 * list.c
 *	  idem_list: what is not finished.
 *
 * The work list says where to look; what is shown is what the records say now.
 * Somebody who may read the view of unresolved records, as monitors, workers
 * and admins may, sees all principals if no principal is named.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "idempotency.h"

PG_FUNCTION_INFO_V1(idem_list);

#define VIEW_OF_MONITORS "idem_unresolved"

/* One call of idem_list. */
typedef struct Listing
{
	char	   *principal;		/* NULL = all */
	char	   *operation;		/* NULL = all */
	List	   *work;			/* of Work */
} Listing;

static bool
collect(const Work *work, void *arg)
{
	Listing    *listing = arg;
	Work	   *copy;

	if (listing->operation &&
		strcmp(text_to_cstring(work->operation), listing->operation) != 0)
		return true;
	copy = palloc(sizeof(Work));
	*copy = *work;
	listing->work = lappend(listing->work, copy);
	return true;
}

static int
oldest_first(const ListCell *a, const ListCell *b)
{
	const Work *left = lfirst(a);
	const Work *right = lfirst(b);

	if (left->since != right->since)
		return left->since < right->since ? -1 : 1;
	return memcmp(&left->id, &right->id, UUID_LEN);
}

/*
 * May the caller see all principals?
 */
static bool
sees_all(FunctionCallInfo fcinfo)
{
	Oid			view = get_relname_relid(VIEW_OF_MONITORS,
										 get_func_namespace(fcinfo->flinfo->fn_oid));

	return OidIsValid(view) &&
		pg_class_aclcheck(view, GetUserId(), ACL_SELECT) == ACLCHECK_OK;
}

/*
 * Put an entry's record into the result, if it is still open and the caller
 * may see it.
 */
static bool
put_entry(FunctionCallInfo fcinfo, const Listing *listing, Store *store,
		  const Work *work)
{
	Call		call = {0};
	Record		rec;
	Answer		answer;

	if (store_probe_id(store, &work->id, &rec) != PROBE_ROW)
		return false;
	identity_of_record(&call.who, &rec);
	if (listing->principal && strcmp(call.who.principal, listing->principal) != 0)
		return false;
	call.policy = policy_get(call.who.operation);
	if (!policy_permits(call.policy, &call.who,
						sees_all(fcinfo) ? BIND_WORKER : BIND_CALLER))
		return false;
	status_of_record(&call, &rec, &answer);
	if (answer.state != STATE_ACCEPTED && answer.state != STATE_PROCESSING &&
		answer.state != STATE_UNKNOWN)
		return false;
	answer_put(fcinfo, &answer);
	return true;
}

/*
 * idem_list(principal, operation, max_records)
 */
Datum
idem_list(PG_FUNCTION_ARGS)
{
	Listing		listing = {0};
	Store		store;
	ListCell   *lc;
	int			left;

	if (PG_ARGISNULL(2) || PG_GETARG_INT32(2) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_records of idem_list must be greater than zero"),
				 errhint("Pass how many records to show at most.")));
	left = PG_GETARG_INT32(2);
	if (!PG_ARGISNULL(1))
	{
		Call		call = {0};

		call_begin_operation(&call, PG_GETARG_TEXT_PP(1));
		listing.operation = call.who.operation;
	}
	if (!PG_ARGISNULL(0) || guc_principal[0] != '\0' || !sees_all(fcinfo))
		listing.principal = principal_resolve(ARG_TEXT(0),
											  listing.operation ? listing.operation : "*");

	InitMaterializedSRF(fcinfo, 0);
	work_visit_all(collect, &listing);
	list_sort(listing.work, oldest_first);
	store_open(&store, false);
	foreach(lc, listing.work)
	{
		CHECK_FOR_INTERRUPTS();
		if (put_entry(fcinfo, &listing, &store, lfirst(lc)) && --left == 0)
			break;
	}
	store_close(&store);
	return (Datum) 0;
}
