/*-------------------------------------------------------------------------
 *
 * define.c
 *	  idem_define and idem_policy: changing and showing settings.
 *
 * Rare calls, so plain SQL through SPI.  idem_define is SECURITY DEFINER with
 * a fixed search_path: nobody but the extension's owner can write its tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "idempotency.h"

#define EVERY_OPERATION "*"

PG_FUNCTION_INFO_V1(idem_define);
PG_FUNCTION_INFO_V1(idem_policy);

/* An operation that has settings, and how long it remembers a key with them. */
typedef struct Defined
{
	char	   *operation;
	int64		horizon;
} Defined;

/*
 * Run a command; between SPI_connect and SPI_finish.
 */
static void
run(const char *command, int n, Oid *types, Datum *values, const char *nulls)
{
	int			rc = SPI_execute_with_args(command, n, types, values, nulls,
										   false, 0);

	if (rc < 0)
		elog(ERROR, "could not run \"%s\": %s", command,
			 SPI_result_code_string(rc));
}

/*
 * Read all stored settings as last committed, operation * first; whatever the
 * transaction's snapshot says, they are what this definition changes.
 */
static void
select_settings(void)
{
	SPIPlanPtr	plan = SPI_prepare("SELECT operation, settings FROM idempotency_internal.policy"
								   " ORDER BY operation OPERATOR(pg_catalog.<>) '*', operation",
								   0, NULL);
	int			rc;

	if (plan == NULL)
		elog(ERROR, "could not prepare: %s", SPI_result_code_string(SPI_result));
	rc = SPI_execute_snapshot(plan, NULL, NULL, GetLatestSnapshot(),
							  InvalidSnapshot, false, false, 0);
	if (rc != SPI_OK_SELECT)
		elog(ERROR, "could not read settings: %s", SPI_result_code_string(rc));
}

/*
 * Store an operation's own settings, over those it had.  A new operation takes
 * over the horizons of the settings that were in force for it so far.
 */
static void
store_settings(const char *operation, Jsonb *given)
{
	Oid			types[2] = {TEXTOID, JSONBOID};
	Datum		values[2] = {CStringGetTextDatum(operation), JsonbPGetDatum(given)};

	run("INSERT INTO idempotency_internal.policy AS p (operation, settings, horizons)"
		" SELECT $1, $2, coalesce((SELECT horizons FROM idempotency_internal.policy"
		"  WHERE operation OPERATOR(pg_catalog.=) '*'), '[]')"
		" ON CONFLICT (operation) DO UPDATE"
		" SET settings = p.settings OPERATOR(pg_catalog.||) excluded.settings",
		2, types, values, NULL);
}

/*
 * Add the horizon an operation had until now to its history.
 */
static void
store_horizon(const char *operation, int64 length)
{
	Oid			types[3] = {TEXTOID, INT8OID, INT8OID};
	Datum		values[3];
	char		nulls[3] = {' ', ' ', length == NO_LIMIT ? 'n' : ' '};

	values[0] = CStringGetTextDatum(operation);
	values[1] = Int64GetDatum(GetCurrentTimestamp());
	values[2] = Int64GetDatum(length);
	run("UPDATE idempotency_internal.policy SET horizons = horizons OPERATOR(pg_catalog.||)"
		" pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('until', $2, 'length', $3))"
		" WHERE operation OPERATOR(pg_catalog.=) $1",
		3, types, values, nulls);
}

/*
 * Keep a version of the normalisation settings.
 */
static void
store_normalisation(Jsonb *normalisation)
{
	Oid			types[2] = {INT8OID, JSONBOID};
	Datum		values[2];

	if (normalisation == NULL)
		return;
	values[0] = Int64GetDatum(settings_normalisation_version(normalisation));
	values[1] = JsonbPGetDatum(normalisation);
	run("INSERT INTO idempotency_internal.normalisation AS n (version, settings)"
		" VALUES ($1, $2) ON CONFLICT (version) DO UPDATE SET check_after = NULL"
		" WHERE n.check_after IS NOT NULL",
		2, types, values, NULL);
}

/*
 * Mark all versions as no longer in force; those that are get unmarked one by
 * one.  A claim still under way may use the old one for a moment, so a day
 * passes before anybody asks whether a record needs it.
 */
static void
retire_normalisations(void)
{
	run("UPDATE idempotency_internal.normalisation"
		" SET check_after = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 day'::interval"
		" WHERE check_after IS NULL",
		0, NULL, NULL, NULL);
}

/*
 * The horizon each operation has as things stand; also that of the operation
 * about to be defined, which may have no settings of its own yet.
 */
static List *
current_horizons(const char *operation)
{
	List	   *list = NIL;
	Jsonb	   *everyone = NULL;
	bool		listed = false;

	select_settings();
	for (uint64 i = 0; i <= SPI_processed; i++)
	{
		Defined    *defined = palloc(sizeof(Defined));
		SPITupleTable *table = SPI_tuptable;
		Jsonb	   *own = NULL;
		bool		isnull;

		if (i < SPI_processed)
		{
			defined->operation = SPI_getvalue(table->vals[i], table->tupdesc, 1);
			own = DatumGetJsonbP(SPI_getbinval(table->vals[i], table->tupdesc,
											   2, &isnull));
		}
		else if (listed)
			break;
		else
			defined->operation = pstrdup(operation);
		if (strcmp(defined->operation, EVERY_OPERATION) == 0)
			everyone = own;
		if (strcmp(defined->operation, operation) == 0)
			listed = true;
		defined->horizon = life_horizon(settings_parse(settings_effective(everyone, own),
													   defined->operation));
		list = lappend(list, defined);
	}
	return list;
}

/*
 * The operation in a list of them; NULL if it is not there.
 */
static const Defined *
find_defined(List *list, const char *operation)
{
	ListCell   *lc;

	foreach(lc, list)
	{
		const Defined *defined = lfirst(lc);

		if (strcmp(defined->operation, operation) == 0)
			return defined;
	}
	return NULL;
}

/*
 * Take in what the new settings mean for every operation, since a change of
 * operation * reaches all: check them, keep the version of their
 * normalisation, and remember horizons that have ended.  Raises 22023 if
 * settings that are right alone are wrong together.
 */
static void
apply_to_operations(List *before)
{
	Jsonb	   *everyone = NULL;
	SPITupleTable *table;
	uint64		n;

	retire_normalisations();
	select_settings();
	table = SPI_tuptable;
	n = SPI_processed;
	for (uint64 i = 0; i < n; i++)
	{
		char	   *operation = SPI_getvalue(table->vals[i], table->tupdesc, 1);
		bool		isnull;
		Jsonb	   *own = DatumGetJsonbP(SPI_getbinval(table->vals[i],
													   table->tupdesc, 2, &isnull));
		const Defined *was = find_defined(before, operation);
		Jsonb	   *effective;
		Policy	   *policy;

		if (strcmp(operation, EVERY_OPERATION) == 0)
			everyone = own;
		effective = settings_effective(everyone, own);
		policy = settings_parse(effective, operation);
		store_normalisation(settings_normalisation(effective));
		if (was && was->horizon != life_horizon(policy))
			store_horizon(operation, was->horizon);
	}
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
 *
 * The lock makes definitions follow each other, and keeps purge away until
 * this one is committed: purge must not forget by an old horizon what the
 * time of its end, taken under the lock, says nothing about.
 */
Datum
idem_define(PG_FUNCTION_ARGS)
{
	char	   *operation;
	Jsonb	   *given;
	List	   *before;

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

	SPI_connect();
	run("LOCK TABLE idempotency_internal.policy IN SHARE ROW EXCLUSIVE MODE",
		0, NULL, NULL, NULL);
	before = current_horizons(operation);
	store_settings(operation, given);
	apply_to_operations(before);
	SPI_finish();
	CacheInvalidateRelcacheByRelid(catalog_relid(TABLE_POLICY));
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
