/*-------------------------------------------------------------------------
 *
 * fingerprint.c
 *	  SQL functions about params: canonical text and fingerprint.
 *
 * They are what somebody needs who wants to know why two requests count as
 * the same or do not, or who hashes requests elsewhere.  Claims themselves
 * call canonical_fingerprint().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical.h"
#include "compat.h"
#include "idempotency.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(idem_canonical);
PG_FUNCTION_INFO_V1(idem_fingerprint);
PG_FUNCTION_INFO_V1(idem_fingerprint_text);

/*
 * The normalisation of the operation given as argument 1; NULL if none is.
 */
static const Normalisation *
argument_normalisation(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(1))
		return NULL;
	return policy_normalisation(text_to_cstring(PG_GETARG_TEXT_PP(1)));
}

/*
 * idem_canonical(params jsonb, operation text) returns text
 */
Datum
idem_canonical(PG_FUNCTION_ARGS)
{
	StringInfoData utf8;
	char	   *result;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	initStringInfo(&utf8);
	canonical_text(PG_GETARG_JSONB_P(0), argument_normalisation(fcinfo), &utf8);
	result = pg_any_to_server(utf8.data, utf8.len, PG_UTF8);
	if (result == utf8.data)
		PG_RETURN_TEXT_P(cstring_to_text_with_len(utf8.data, utf8.len));
	PG_RETURN_TEXT_P(cstring_to_text(result));
}

/*
 * idem_fingerprint(params jsonb, operation text) returns bytea
 */
Datum
idem_fingerprint(PG_FUNCTION_ARGS)
{
	bytea	   *result;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	result = palloc(VARHDRSZ + IDEM_DIGEST_LEN);
	SET_VARSIZE(result, VARHDRSZ + IDEM_DIGEST_LEN);
	(void) canonical_fingerprint(PG_GETARG_JSONB_P(0),
								 argument_normalisation(fcinfo), 0,
								 (uint8 *) VARDATA(result));
	PG_RETURN_BYTEA_P(result);
}

/*
 * idem_fingerprint_text(params text, operation text) returns bytea
 */
Datum
idem_fingerprint_text(PG_FUNCTION_ARGS)
{
	bytea	   *result;
	text	   *params;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	params = PG_GETARG_TEXT_P_COPY(0);
	result = palloc(VARHDRSZ + IDEM_DIGEST_LEN);
	SET_VARSIZE(result, VARHDRSZ + IDEM_DIGEST_LEN);
	canonical_fingerprint_text(params, argument_normalisation(fcinfo),
							   (uint8 *) VARDATA(result));
	pfree(params);
	PG_RETURN_BYTEA_P(result);
}
