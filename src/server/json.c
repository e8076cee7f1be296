/*
 * json.c
 *	  Small jsonb objects put together, and JSON Pointers (RFC 6901): their
 *	  syntax, their tokens, and what one finds in a value.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "server/server.h"

/* Add a member to an object begun with WJB_BEGIN_OBJECT. */
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

/* Add a string; NULL is null. */
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

/* Returns an object with that string, or null, as its only member. */
Jsonb *
json_pair(const char *name, const char *value)
{
	JsonbParseState *state = NULL;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	json_push_string(&state, name, value);
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

/* Returns the value of a text that is known to be JSON. */
Jsonb *
json_parse(const char *text)
{
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
}

/* Returns below with the members of above over it, or two arrays in a row. */
Jsonb *
json_concatenate(Jsonb *below, Jsonb *above)
{
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
											  JsonbPGetDatum(below),
											  JsonbPGetDatum(above)));
}

/* Stores the value of a member of an object; false if there is none. */
bool
json_find(const Jsonb *object, const char *name, JsonbValue *value)
{
	return getKeyJsonValueFromContainer(unconstify(JsonbContainer *, &object->root), name,
										strlen(name), value) != NULL;
}

/* Returns a scalar as ->> gives it; NULL for null and containers. */
char *
json_scalar_text(const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvString:
			return pnstrdup(value->val.string.val, value->val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out,
													   NumericGetDatum(value->val.numeric)));
		case jbvBool:
			return pstrdup(value->val.boolean ? "true" : "false");
		default:
			return NULL;
	}
}

/* Returns whether a string is a JSON Pointer. */
bool
pointer_valid(const char *string)
{
	if (*string != '\0' && *string != '/')
		return false;
	for (; (string = strchr(string, '~')) != NULL; string++)
	{
		if (string[1] != '0' && string[1] != '1')
			return false;
	}
	return true;
}

/* Returns the next token, unescaped, and moves *pointer behind it; NULL at its end. */
char *
pointer_token(const char **pointer)
{
	const char *from = *pointer;
	char	   *token;
	char	   *to;

	Assert(pointer_valid(from));
	if (*from == '\0')
		return NULL;
	token = to = palloc(strlen(from));
	while (*++from != '\0' && *from != '/')
		*to++ = *from != '~' ? *from : *++from == '0' ? '~' : '/';
	*to = '\0';
	*pointer = from;
	return token;
}

/* Returns the member of that name or element of that number, or NULL. */
static JsonbValue *
find_child(JsonbContainer *container, const char *token)
{
	size_t		len = strlen(token);

	if (JsonContainerIsObject(container))
		return getKeyJsonValueFromContainer(container, token, len, NULL);
	if (!JsonContainerIsScalar(container) && len > 0 && len < 10 &&
		strspn(token, "0123456789") == len)
		return getIthJsonbValueFromContainer(container,
											 strtoul(token, NULL, 10));
	return NULL;
}

/* Returns the string, number or boolean that a pointer finds as text, or NULL. */
char *
pointer_text(const char *pointer, Jsonb *value)
{
	JsonbContainer *container = &value->root;
	JsonbValue *found = NULL;
	char	   *token;

	while ((token = pointer_token(&pointer)) != NULL)
	{
		found = container != NULL ? find_child(container, token) : NULL;
		if (found == NULL)
			return NULL;
		container = found->type == jbvBinary ? found->val.binary.data : NULL;
	}
	return found ? json_scalar_text(found) : NULL;
}
