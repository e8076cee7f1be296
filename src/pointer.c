/*-------------------------------------------------------------------------
 *
 * pointer.c
 *	  What a JSON Pointer (RFC 6901) finds in a value.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/numeric.h"

#include "compat.h"
#include "idempotency.h"

/*
 * One token of a pointer, ~1 and ~0 being / and ~.
 */
static char *
unescaped(const char *token, size_t len)
{
	char	   *result = palloc(len + 1);
	size_t		n = 0;

	for (size_t i = 0; i < len; i++)
	{
		char		c = token[i];

		if (c == '~' && i + 1 < len && (token[i + 1] == '0' || token[i + 1] == '1'))
			c = token[++i] == '0' ? '~' : '/';
		result[n++] = c;
	}
	result[n] = '\0';
	return result;
}

/*
 * The member of that name, or the element of that number; NULL if there is
 * none.
 */
static JsonbValue *
child(JsonbContainer *container, const char *token)
{
	if (JsonContainerIsObject(container))
		return getKeyJsonValueFromContainer(container, token, strlen(token), NULL);
	if (!JsonContainerIsScalar(container) && token[0] != '\0' && strlen(token) < 10 &&
		strspn(token, "0123456789") == strlen(token))
		return getIthJsonbValueFromContainer(container, strtoul(token, NULL, 10));
	return NULL;
}

/*
 * The string, number or boolean a pointer finds, as text; NULL if it finds
 * nothing, or something else.
 */
char *
pointer_text(const char *pointer, Jsonb *value)
{
	JsonbContainer *container = &value->root;
	JsonbValue *found = NULL;

	while (*pointer == '/')
	{
		size_t		len = strcspn(pointer + 1, "/");

		if (container == NULL)
			return NULL;
		found = child(container, unescaped(pointer + 1, len));
		if (found == NULL)
			return NULL;
		container = found->type == jbvBinary ? found->val.binary.data : NULL;
		pointer += len + 1;
	}
	if (found == NULL)
		return NULL;
	switch (found->type)
	{
		case jbvString:
			return pnstrdup(found->val.string.val, found->val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out,
													   NumericGetDatum(found->val.numeric)));
		case jbvBool:
			return pstrdup(found->val.boolean ? "true" : "false");
		default:
			return NULL;
	}
}
