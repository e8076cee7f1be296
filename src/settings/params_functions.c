/*
 * params_functions.c
 *	  SQL functions that compute what a call would be about: id, canonical
 *	  text, fingerprint, with the principal and normalisation of settings.
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "settings/settings.h"
#include "utils/builtins.h"

/* Raises 22023 for NULL: an id that is NULL would be sent as no key at all. */
static void
check_not_null(FunctionCallInfo fcinfo, int argument, const char *name,
			   const char *function)
{
	if (PG_ARGISNULL(argument))
		REFUSE_ARGUMENT(errmsg("%s of %s must not be null", name, function),
						errhint("Pass the value that names this one intent."));
}

SQL_FUNCTION(idem_id)
{
	Identity   *who = palloc0(sizeof(Identity));

	check_not_null(fcinfo, 0, "operation", "idem_id");
	check_not_null(fcinfo, 1, "key", "idem_id");
	who->operation = text_to_cstring(PG_GETARG_TEXT_PP(0));
	who->key = text_to_cstring(PG_GETARG_TEXT_PP(1));
	who->principal = access_principal(ARG_TEXT(2), who->operation);
	identity_check_text(who->operation, "operation");
	identity_derive(who, NULL);
	PG_RETURN_UUID_P(&who->id);
}

SQL_FUNCTION(idem_downstream_key)
{
	pg_uuid_t  *key = palloc(sizeof(pg_uuid_t));
	text	   *step;

	check_not_null(fcinfo, 0, "id", "idem_downstream_key");
	check_not_null(fcinfo, 1, "step", "idem_downstream_key");
	step = PG_GETARG_TEXT_PP(1);
	identity_of_step(PG_GETARG_UUID_P(0), VARDATA_ANY(step),
					 VARSIZE_ANY_EXHDR(step), key);
	PG_RETURN_UUID_P(key);
}

SQL_FUNCTION(idem_new_key)
{
	pg_uuid_t	key;

	identity_new(&key);
	PG_RETURN_TEXT_P(cstring_to_text(identity_text(&key)));
}

static Datum
fingerprint(Jsonb *params, const Normalisation *norm)
{
	bytea	   *result = palloc(VARHDRSZ + IDEM_DIGEST_LEN);

	SET_VARSIZE(result, VARHDRSZ + IDEM_DIGEST_LEN);
	canonical_fingerprint(params, norm, (uint8 *) VARDATA(result));
	return PointerGetDatum(result);
}

SQL_FUNCTION(idem_canonical)
{
	StringInfoData utf8;
	const Normalisation *norm;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	initStringInfo(&utf8);
	norm = access_normalisation(fcinfo, ARG_TEXT(1));
	canonical_append(&utf8, reshape_params(PG_GETARG_JSONB_P(0), norm), norm);
	appendStringInfoChar(&utf8, '\0');	/* canonical_append() leaves none */
	PG_RETURN_TEXT_P(cstring_to_text(pg_any_to_server(utf8.data, utf8.len - 1, PG_UTF8)));
}

SQL_FUNCTION(idem_fingerprint)
{
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	return fingerprint(PG_GETARG_JSONB_P(0), access_normalisation(fcinfo, ARG_TEXT(1)));
}

SQL_FUNCTION(idem_fingerprint_text)
{
	const Normalisation *norm;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	norm = access_normalisation(fcinfo, ARG_TEXT(1));
	return fingerprint(json_text_value(PG_GETARG_TEXT_PP(0), norm), norm);
}
