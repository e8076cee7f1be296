/*-------------------------------------------------------------------------
 *
 * normalise.c
 *	  The settings of an operation that say which params mean the same.
 *
 * They are compiled once, when a policy is read, into the form the walk over
 * params wants.  What is wrong with them is said here, so at the latest when
 * an operation is defined, and never while a customer claims.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical_parts.h"

/*
 * Refuse params (22032).  detail is one of our own sentences and shows
 * nothing of them.  norm may be NULL.
 */
void
canonical_refuse(const Normalisation *norm, const char *detail)
{
	const char *hint =
	"Send a value that has a canonical JSON form (RFC 8785), "
	"or compute the fingerprint of the raw request yourself.";

	if (norm != NULL && norm->operation != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_JSON_TEXT),
				 errmsg("params of operation \"%s\" cannot be canonicalised",
						norm->operation),
				 errdetail_internal("%s", detail),
				 errhint("%s", hint)));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_JSON_TEXT),
			 errmsg("params cannot be canonicalised"),
			 errdetail_internal("%s", detail),
			 errhint("%s", hint)));
}

/*
 * Refuse a setting (22023).
 */
static void
refuse_setting(const char *operation, const char *setting, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid value for setting \"%s\" of operation \"%s\"",
					setting, operation),
			 errhint("%s", hint)));
}

/*
 * Is a jsonb string this word?
 */
static bool
is_word(const JsonbValue *value, const char *word)
{
	return value->type == jbvString &&
		value->val.string.len == (int) strlen(word) &&
		memcmp(value->val.string.val, word, value->val.string.len) == 0;
}

/*
 * Read numbers: exact|double; absent means exact.
 */
static bool
compile_numbers(Jsonb *settings, const char *operation)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&settings->root, "numbers",
									 strlen("numbers"), &value) == NULL)
		return false;
	if (is_word(&value, "double"))
		return true;
	if (!is_word(&value, "exact"))
		refuse_setting(operation, "numbers",
					   "It is \"exact\" or \"double\".");
	return false;
}

/*
 * Compile an operation's settings.  Members that are not about normalisation
 * are left to others.  settings must be an object; NULL, or settings that
 * change nothing, still give a result, which names the operation in errors.
 * It is allocated in CurrentMemoryContext and refers to nothing outside.
 * Raises 22023 for a wrong value.
 */
Normalisation *
normalisation_compile(Jsonb *settings, const char *operation)
{
	Normalisation *norm = palloc0(sizeof(Normalisation));

	if (operation != NULL)
		norm->operation = pstrdup(operation);
	if (settings != NULL && JB_ROOT_IS_OBJECT(settings))
		norm->doubles = compile_numbers(settings, operation);
	return norm;
}
