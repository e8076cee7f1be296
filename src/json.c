/*-------------------------------------------------------------------------
 *
 * json.c
 *	  The few things we do with jsonb that are not about its canonical form:
 *	  put small objects together, and tell how large a value is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/numeric.h"

#include "compat.h"
#include "idempotency.h"

/*
 * Add a member to an object begun with WJB_BEGIN_OBJECT.
 */
void
json_push(JsonbParseState **state, const char *name, JsonbValue *value)
{
	JsonbValue	key;

	key.type = jbvString;
	key.val.string.val = unconstify(char *, name);
	key.val.string.len = strlen(name);
	pushJsonbValue(state, WJB_KEY, &key);
	pushJsonbValue(state, WJB_VALUE, value);
}

/*
 * Add a string; NULL is null.
 */
void
json_push_string(JsonbParseState **state, const char *name, const char *value)
{
	JsonbValue	item;

	item.type = jbvNull;
	if (value)
	{
		item.type = jbvString;
		item.val.string.val = unconstify(char *, value);
		item.val.string.len = strlen(value);
	}
	json_push(state, name, &item);
}

/*
 * Add a whole number, or null.
 */
void
json_push_integer(JsonbParseState **state, const char *name, int64 value,
				  bool is_null)
{
	JsonbValue	item;

	item.type = jbvNull;
	if (!is_null)
	{
		item.type = jbvNumeric;
		item.val.numeric = int64_to_numeric(value);
	}
	json_push(state, name, &item);
}

/*
 * The members of below with those of above over them, or two arrays in a row.
 */
Jsonb *
json_concatenate(Jsonb *below, Jsonb *above)
{
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
											  JsonbPGetDatum(below),
											  JsonbPGetDatum(above)));
}

/*
 * Is a value longer than that many bytes of (canonical) text?
 */
bool
json_exceeds(Jsonb *value, int64 max_bytes)
{
	/* at worst each byte is written as \\u00xx */
	if ((int64) VARSIZE(value) * 6 <= max_bytes)
		return false;
	return canonical_length(value, max_bytes) > max_bytes;
}
