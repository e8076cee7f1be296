/*-------------------------------------------------------------------------
 *
 * define.c
 *	  idem_define and idem_policy: changing and showing settings.
 *
 * The tables of settings are read and written like the record table (rows.c):
 * what counts is what was committed last, whatever the transaction's snapshot,
 * so that defining at REPEATABLE READ neither misses a change nor raises
 * 40001.
 *
 * A lock on the policy table, kept to the end of the transaction, makes
 * definitions follow each other, and keeps purge away until this one is
 * committed: purge must not forget by an old horizon what the time of its end,
 * taken under the lock, says nothing about.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "idempotency.h"

/* How long an old version of normalisation settings is kept unasked. */
#define KEEP_VERSION USECS_PER_DAY

PG_FUNCTION_INFO_V1(idem_define);
PG_FUNCTION_INFO_V1(idem_policy);

/* A row of the policy table. */
typedef struct Defined
{
	char	   *operation;
	Jsonb	   *settings;
	Jsonb	   *horizons;
	Jsonb	   *before;			/* in force so far; NULL = broken */
	int64		horizon;		/* with those */
	Jsonb	   *after;			/* in force from now on; NULL = still broken */
	bool		stored;			/* has a row, at tid */
	ItemPointerData tid;
} Defined;

/*
 * Read all rows of the policy table; the caller holds the lock.
 */
static List *
read_defined(Relation rel)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	List	   *list = NIL;
	SnapshotData dirty;
	TableScanDesc scan;

	InitDirtySnapshot(dirty);
	scan = table_beginscan(rel, &dirty, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		Defined    *defined = palloc0(sizeof(Defined));

		slot_getallattrs(slot);
		defined->operation = TextDatumGetCString(slot->tts_values[0]);
		defined->settings = DatumGetJsonbPCopy(slot->tts_values[1]);
		defined->horizons = DatumGetJsonbPCopy(slot->tts_values[2]);
		defined->stored = true;
		defined->tid = slot->tts_tid;
		list = lappend(list, defined);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return list;
}

/*
 * The row of an operation in a list of them; NULL if it has none.
 */
static Defined *
find_defined(List *list, const char *operation)
{
	ListCell   *lc;

	foreach(lc, list)
	{
		Defined    *defined = lfirst(lc);

		if (strcmp(defined->operation, operation) == 0)
			return defined;
	}
	return NULL;
}

/*
 * Settings in force for a row, given all rows, and the horizon they make.
 * Raises 22023 or XX001 if they cannot be understood.
 */
static Jsonb *
in_force(Relation rel, List *list, const Defined *defined, int64 *horizon)
{
	Defined    *everyone = find_defined(list, EVERY_OPERATION);
	Jsonb	   *effective;

	if (!JB_ROOT_IS_OBJECT(defined->settings) ||
		!JB_ROOT_IS_ARRAY(defined->horizons) || JB_ROOT_IS_SCALAR(defined->horizons) ||
		(everyone && !JB_ROOT_IS_OBJECT(everyone->settings)))
		stored_refuse(rel);
	effective = settings_effective(everyone ? everyone->settings : NULL,
								   defined->settings);
	*horizon = life_horizon(settings_parse(effective, defined->operation));
	return effective;
}

typedef struct InForce
{
	Relation	rel;
	List	   *list;
	const Defined *defined;
	int64	   *horizon;
	Jsonb	   *effective;
} InForce;

static void
in_force_step(void *arg)
{
	InForce    *step = arg;

	step->effective = in_force(step->rel, step->list, step->defined, step->horizon);
}

/*
 * The same for an operation that is not the one being defined: NULL if its
 * settings, changed by hand, cannot be understood.  That is for its own calls
 * to say; it must not keep others from being defined.
 */
static Jsonb *
in_force_elsewhere(Relation rel, List *list, const Defined *defined, int64 *horizon)
{
	InForce		step = {rel, list, defined, horizon, NULL};

	return subtransaction_try(in_force_step, &step) ? NULL : step.effective;
}

/*
 * Add a row for an operation that has none.  The horizons of the settings that
 * were in force for it so far are its past too.
 */
static Defined *
add_defined(List **list, char *operation)
{
	Defined    *everyone = find_defined(*list, EVERY_OPERATION);
	Defined    *defined = palloc0(sizeof(Defined));

	defined->operation = operation;
	defined->settings = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")));
	defined->horizons = everyone ? everyone->horizons :
		DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("[]")));
	*list = lappend(*list, defined);
	return defined;
}

/*
 * Add the horizon a row had until now to its past; see policy.c, which reads
 * it.
 */
static void
end_horizon(Defined *defined)
{
	JsonbParseState *state = NULL;

	pushJsonbValue(&state, WJB_BEGIN_ARRAY, NULL);
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_push_integer(&state, "until", GetCurrentTimestamp(), false);
	json_push_integer(&state, "length", defined->horizon, defined->horizon == NO_LIMIT);
	pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	defined->horizons = json_concatenate(defined->horizons,
										 JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_ARRAY, NULL)));
}

/*
 * Write a row of the policy table.
 */
static void
write_defined(Relation rel, const Defined *defined)
{
	Datum		values[3] = {CStringGetTextDatum(defined->operation),
		JsonbPGetDatum(defined->settings),
	JsonbPGetDatum(defined->horizons)};
	bool		nulls[3] = {false};
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);

	if (defined->stored ?
		rows_update(rel, &defined->tid, tuple, true) != ROW_CHANGED :
		!rows_insert(rel, tuple))
		elog(ERROR, "settings of operation \"%s\" were changed by another hand",
			 defined->operation);
}

/*----
 * Versions of the normalisation settings.
 *----
 */

/*
 * Write a version: in force if check_after is NEVER.
 */
static void
write_version(Relation rel, RowLook *look, int64 version, Jsonb *settings,
			  TimestampTz check_after)
{
	Datum		values[3] = {Int64GetDatum(version), JsonbPGetDatum(settings),
	TimestampTzGetDatum(check_after)};
	bool		nulls[3] = {false, false, check_after == NEVER};
	TransactionId other;
	HeapTuple	found;
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	bool		done;

	if (rows_look(look, Int64GetDatum(version), &found, &other) == PROBE_ROW)
		done = rows_update(rel, &found->t_self, tuple, true) == ROW_CHANGED;
	else
		done = rows_insert(rel, tuple);
	if (!done)
		elog(ERROR, "normalisation settings were changed by another hand");
}

/*
 * Keep the version of the normalisation settings in force for a row; mark the
 * one that was in force, unless they are the same.  A claim still under way
 * may use that one for a moment, so it is kept a while before anybody asks
 * whether a record needs it.
 */
static void
keep_version(Relation rel, RowLook *look, Jsonb *before, Jsonb *after,
			 List *list)
{
	Jsonb	   *old = before ? settings_normalisation(before) : NULL;
	Jsonb	   *new = settings_normalisation(after);
	int64		old_version = settings_normalisation_version(old);
	int64		new_version = settings_normalisation_version(new);
	ListCell   *lc;

	if (new)
		write_version(rel, look, new_version, new, NEVER);
	if (old == NULL || old_version == new_version)
		return;
	foreach(lc, list)
	{
		Jsonb	   *other = ((Defined *) lfirst(lc))->after;

		if (other && settings_normalisation_version(settings_normalisation(other)) == old_version)
			return;
	}
	write_version(rel, look, old_version, old,
				  time_after(GetCurrentTimestamp(), KEEP_VERSION));
}

/*
 * Do so for all rows that can be understood.
 */
static void
keep_versions(List *list)
{
	Relation	rel = catalog_open(TABLE_NORMALISATION, RowExclusiveLock);
	RowLook    *look = rows_look_begin(rel, compat_primary_key_index(rel), F_INT8EQ);
	ListCell   *lc;

	foreach(lc, list)
	{
		Defined    *each = lfirst(lc);

		if (each->after)
			keep_version(rel, look, each->before, each->after, list);
	}
	rows_look_end(look);
	table_close(rel, NoLock);
}

/*----
 * The calls.
 *----
 */

/*
 * Change the settings of an operation and take in what that means for every
 * operation, since a change of operation * reaches all: check them, keep the
 * version of their normalisation, and remember horizons that have ended.
 * Raises 22023 if settings that are right alone are wrong together.
 */
static void
define(Relation rel, char *operation, Jsonb *given)
{
	List	   *list = read_defined(rel);
	Defined    *defined = find_defined(list, operation);
	ListCell   *lc;

	if (defined == NULL)
		defined = add_defined(&list, operation);
	foreach(lc, list)
	{
		Defined    *each = lfirst(lc);

		each->before = each == defined ?
			in_force(rel, list, each, &each->horizon) :
			in_force_elsewhere(rel, list, each, &each->horizon);
	}

	defined->settings = json_concatenate(defined->settings, given);
	foreach(lc, list)
	{
		Defined    *each = lfirst(lc);
		int64		horizon;
		bool		ended;

		each->after = each->before ?
			in_force(rel, list, each, &horizon) :
			in_force_elsewhere(rel, list, each, &horizon);
		ended = each->before && horizon != each->horizon;
		if (ended)
			end_horizon(each);
		if (ended || each == defined)
			write_defined(rel, each);
	}
	keep_versions(list);
}

static void
refuse_null_operation(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("operation must not be null"),
			 errhint("Pass its name; * stands for the defaults of all operations.")));
}

/*
 * idem_define(operation, settings)
 */
Datum
idem_define(PG_FUNCTION_ARGS)
{
	char	   *operation;
	Jsonb	   *given;
	Relation	rel;

	if (PG_ARGISNULL(0))
		refuse_null_operation();
	operation = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("settings of operation \"%s\" must not be null", operation),
				 errhint("Pass an object such as {\"retention\": \"7 days\"}.")));
	given = PG_GETARG_JSONB_P(1);
	identity_check_text(operation, "operation");
	settings_check_names(given, operation);
	refuse_unless_writable("idem_define()");

	rel = catalog_open(TABLE_POLICY, ShareRowExclusiveLock);
	define(rel, operation, given);
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

/*
 * idem_policy(operation)
 */
Datum
idem_policy(PG_FUNCTION_ARGS)
{
	char	   *operation;

	if (PG_ARGISNULL(0))
		refuse_null_operation();
	operation = text_to_cstring(PG_GETARG_TEXT_PP(0));
	identity_check_text(operation, "operation");
	PG_RETURN_DATUM(policy_shown(operation));
}
