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

#include "compat.h"
#include "idempotency.h"

PG_FUNCTION_INFO_V1(idem_define);
PG_FUNCTION_INFO_V1(idem_policy);

/*
 * Store an operation's own settings, over those it had.  Between SPI_connect
 * and SPI_finish.  Concurrent definitions of one operation follow each other.
 */
static void
store_settings(const char *operation, Jsonb *given)
{
	Oid			types[2] = {TEXTOID, JSONBOID};
	Datum		values[2] = {CStringGetTextDatum(operation), JsonbPGetDatum(given)};
	int			rc;

	rc = SPI_execute_with_args("INSERT INTO idempotency_internal.policy AS p (operation, settings)"
							   " VALUES ($1, $2)"
							   " ON CONFLICT (operation) DO UPDATE"
							   " SET settings = p.settings OPERATOR(pg_catalog.||) excluded.settings",
							   2, types, values, NULL, false, 0);
	if (rc != SPI_OK_INSERT)
		elog(ERROR, "could not store settings: %s", SPI_result_code_string(rc));
}

/*
 * Keep a version of the normalisation settings.
 */
static void
store_normalisation(Jsonb *normalisation)
{
	Oid			types[2] = {INT8OID, JSONBOID};
	Datum		values[2];
	int			rc;

	if (normalisation == NULL)
		return;
	values[0] = Int64GetDatum(settings_normalisation_version(normalisation));
	values[1] = JsonbPGetDatum(normalisation);
	rc = SPI_execute_with_args("INSERT INTO idempotency_internal.normalisation (version, settings)"
							   " VALUES ($1, $2) ON CONFLICT (version) DO NOTHING",
							   2, types, values, NULL, false, 0);
	if (rc != SPI_OK_INSERT)
		elog(ERROR, "could not store normalisation: %s", SPI_result_code_string(rc));
}

/*
 * Check every operation as it is now, and keep the version of its
 * normalisation settings: a change of operation * reaches all of them.
 * Raises 22023 if settings that are right alone are wrong together.
 */
static void
check_operations(void)
{
	Jsonb	   *everyone = NULL;
	int			rc;

	rc = SPI_execute("SELECT operation, settings FROM idempotency_internal.policy"
					 " ORDER BY operation OPERATOR(pg_catalog.<>) '*'",
					 false, 0);
	if (rc != SPI_OK_SELECT)
		elog(ERROR, "could not read settings: %s", SPI_result_code_string(rc));
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		SPITupleTable *table = SPI_tuptable;
		HeapTuple	tuple = table->vals[i];
		char	   *operation = SPI_getvalue(tuple, table->tupdesc, 1);
		bool		isnull;
		Jsonb	   *own = DatumGetJsonbP(SPI_getbinval(tuple, table->tupdesc, 2, &isnull));
		Jsonb	   *effective;

		if (strcmp(operation, "*") == 0)
			everyone = own;
		effective = settings_effective(everyone, own);
		(void) settings_parse(effective, operation);
		store_normalisation(settings_normalisation(effective));
	}
}

/*
 * idem_define(operation, settings)
 */
Datum
idem_define(PG_FUNCTION_ARGS)
{
	char	   *operation;
	Jsonb	   *given;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("operation and settings must not be null")));
	operation = text_to_cstring(PG_GETARG_TEXT_PP(0));
	given = PG_GETARG_JSONB_P(1);
	identity_check_text(operation, "operation");
	settings_check_names(given, operation);

	SPI_connect();
	store_settings(operation, given);
	check_operations();
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
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("operation must not be null")));
	operation = text_to_cstring(PG_GETARG_TEXT_PP(0));
	identity_check_text(operation, "operation");
	PG_RETURN_DATUM(policy_shown(operation));
}
