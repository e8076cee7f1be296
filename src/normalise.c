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
					setting, operation ? operation : "*"),
			 errhint("%s", hint)));
}

/*
 * Get a setting; false if it is absent or null.
 */
static bool
get_setting(Jsonb *settings, const char *name, JsonbValue *value)
{
	return getKeyJsonValueFromContainer(&settings->root, name, strlen(name),
										value) != NULL &&
		value->type != jbvNull;
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
 * Read defaults: an object, kept where it lies in settings.
 */
static void
compile_defaults(Normalisation *norm, Jsonb *settings, const char *operation)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&settings->root, "defaults",
									 strlen("defaults"), &value) == NULL)
		return;
	if (value.type != jbvBinary || !JsonContainerIsObject(value.val.binary.data))
		refuse_setting(operation, "defaults",
					   "It is an object, whose members are filled in below those of params.");
	norm->defaults = value.val.binary.data;
	if (JsonContainerSize(norm->defaults) > 0)
		norm->reshapes = true;
	else
		norm->defaults = NULL;
}

/*
 * Put one pointer of a setting into the tree of places.
 */
static void
compile_pointer(Normalisation *norm, const JsonbValue *pointer,
				const char *setting, const char *operation)
{
	bool		field = strcmp(setting, "fields") == 0;
	const char *problem = NULL;
	PathNode   *node;

	if (pointer->type != jbvString)
		refuse_setting(operation, setting,
					   "It is an array of JSON Pointers, which are strings.");
	if (norm->paths == NULL)
		norm->paths = palloc0(sizeof(PathNode));
	node = path_node_add(norm->paths, pointer->val.string.val,
						 pointer->val.string.len, field, &problem);
	if (node == NULL)
		refuse_setting(operation, setting, problem);
	else if (field)
		node->kept = true;
	else if (strcmp(setting, "unordered") == 0)
		node->unordered = true;
	else if (node == norm->paths)
		refuse_setting(operation, setting,
					   "The empty pointer would leave nothing of params.");
	else
		node->dropped = true;
}

/*
 * Read an array of pointers; true if there is one, however long.
 */
static bool
compile_pointers(Normalisation *norm, Jsonb *settings, const char *setting,
				 const char *operation)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (!get_setting(settings, setting, &value))
		return false;
	if (value.type != jbvBinary || !JsonContainerIsArray(value.val.binary.data))
		refuse_setting(operation, setting, "It is an array of JSON Pointers.");
	it = JsonbIteratorInit(value.val.binary.data);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_ELEM)
			compile_pointer(norm, &value, setting, operation);
	}
	return true;
}

/*
 * Compile an operation's settings.  Members that are not about normalisation
 * are left to others.  settings must be an object; NULL, or settings that
 * change nothing, still give a result, which names the operation in errors.
 * It is allocated in CurrentMemoryContext and refers to nothing outside that
 * and settings, which must live as long.  Raises 22023 for a wrong value,
 * 22032 for one that is not valid in the encoding of the database.
 */
Normalisation *
normalisation_compile(Jsonb *settings, const char *operation)
{
	Normalisation *norm = palloc0(sizeof(Normalisation));

	if (operation != NULL)
		norm->operation = pstrdup(operation);
	if (settings == NULL || !JB_ROOT_IS_OBJECT(settings))
		return norm;

	/* params are met in UTF-8 */
	settings = jsonb_in_utf8(settings, norm);
	norm->doubles = compile_numbers(settings, operation);
	compile_defaults(norm, settings, operation);
	norm->chooses = compile_pointers(norm, settings, "fields", operation);
	compile_pointers(norm, settings, "ignore", operation);
	compile_pointers(norm, settings, "unordered", operation);
	if (norm->chooses && norm->paths != NULL && norm->paths->kept)
		norm->chooses = false;
	if (norm->chooses || norm->paths != NULL)
		norm->reshapes = true;
	return norm;
}
