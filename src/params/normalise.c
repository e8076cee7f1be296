/*
 * normalise.c
 *	  The settings of an operation that say which params mean the same.
 *
 * They are compiled once, when a policy is read, into the form reshape.c
 * works with.  What is wrong with them is said here, so at the latest when an
 * operation is defined, and never while a customer claims.
 *
 * All JSON Pointers (RFC 6901) of an operation go into one tree of paths, in
 * which reshape.c takes one step for each member, however many there are.  As
 * an extension, the token "*" stands for every element of an array (and, as
 * RFC 6901 has it, for a member of that name).  A token of digits only is
 * refused: it would mean an element by its position, which says nothing about
 * two requests, and would silently mean a member where there is an object.
 */
#include "postgres.h"

#include "params/params.h"

/* Raises 22032; detail shows nothing of params.  norm may be NULL. */
void
canonical_refuse(const Normalisation *norm, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_JSON_TEXT),
			 norm != NULL && norm->operation != NULL ?
			 errmsg("params of operation \"%s\" cannot be canonicalised",
					norm->operation) :
			 errmsg("params cannot be canonicalised"),
			 errdetail_internal("%s", detail),
			 errhint("Send a value that has a canonical JSON form (RFC 8785), "
					 "or compute the fingerprint of the raw request yourself.")));
}

pg_noreturn static void
refuse_setting(const Normalisation *norm, const char *setting, const char *hint)
{
	REFUSE_ARGUMENT(errmsg("invalid value for setting \"%s\" of operation \"%s\"",
						   setting, norm->operation ? norm->operation : "*"),
					errhint("%s", hint));
}

/* Reads numbers: exact|double; absent means exact. */
static void
compile_numbers(Normalisation *norm, Jsonb *settings)
{
	JsonbValue	value;
	const char *word;

	if (!json_find(settings, "numbers", &value))
		return;
	word = value.type == jbvString ? json_scalar_text(&value) : "";
	norm->doubles = strcmp(word, "double") == 0;
	if (!norm->doubles && strcmp(word, "exact") != 0)
		refuse_setting(norm, "numbers", "It is \"exact\" or \"double\".");
}

/* Reads defaults: an object, kept where it lies in settings. */
static void
compile_defaults(Normalisation *norm, Jsonb *settings)
{
	JsonbValue	value;

	if (!json_find(settings, "defaults", &value))
		return;
	if (value.type != jbvBinary || !JsonContainerIsObject(value.val.binary.data))
		refuse_setting(norm, "defaults",
					   "It is an object, whose members are filled in below those of params.");
	if (JsonContainerSize(value.val.binary.data) > 0)
		norm->defaults = value.val.binary.data;
}

/* Returns the path one step below from; NULL if there is none, or from is NULL. */
ParamsPath *
params_path_step(const ParamsPath *from, const char *name, size_t len)
{
	ListCell   *cell;

	if (from == NULL)
		return NULL;
	foreach(cell, from->children)
	{
		ParamsPath *child = lfirst(cell);

		if (child->len == len && memcmp(child->name, name, len) == 0)
			return child;
	}
	return NULL;
}

/*
 * Returns the path one step below from, made if need be; field: on the way of one
 * of "fields".
 */
static ParamsPath *
add_step(ParamsPath *from, char *name, bool field)
{
	bool		each = strcmp(name, "*") == 0;
	ParamsPath *child = params_path_step(from, name, strlen(name));

	if (child == NULL)
	{
		child = palloc0(sizeof(ParamsPath));
		child->name = name;
		child->len = strlen(name);
		from->children = lappend(from->children, child);
	}
	if (each)
		from->each = child;
	from->leads_into_array |= field && each;
	from->leads_into_object |= field && !each;
	return child;
}

/* Puts a pointer into the tree of paths. */
static void
compile_pointer(Normalisation *norm, const JsonbValue *value,
				const char *setting)
{
	bool		field = strcmp(setting, "fields") == 0;
	ParamsPath *node;
	const char *pointer;
	char	   *token;

	if (value->type != jbvString)
		refuse_setting(norm, setting,
					   "It is an array of JSON Pointers, which are strings.");
	pointer = pnstrdup(value->val.string.val, value->val.string.len);
	if (!pointer_valid(pointer))
		refuse_setting(norm, setting,
					   "In a JSON Pointer \"/\" is in front of each name, "
					   "and in a name \"~\" is written ~0 and \"/\" ~1.");
	if (norm->paths == NULL)
		norm->paths = palloc0(sizeof(ParamsPath));
	node = norm->paths;
	while ((token = pointer_token(&pointer)) != NULL)
	{
		if (token[0] != '\0' && token[strspn(token, "0123456789")] == '\0')
			refuse_setting(norm, setting,
						   "Elements of an array cannot be given by number; "
						   "\"*\" means every element.");
		node = add_step(node, token, field);
	}
	if (field)
		node->kept = true;
	else if (strcmp(setting, "unordered") == 0)
		node->unordered = true;
	else if (node == norm->paths)
		refuse_setting(norm, setting,
					   "The empty pointer would leave nothing of params.");
	else
		node->dropped = true;
}

/* Reads an array of pointers; true if there is one, however long. */
static bool
compile_pointers(Normalisation *norm, Jsonb *settings, const char *setting)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (!json_find(settings, setting, &value) || value.type == jbvNull)
		return false;
	if (value.type != jbvBinary || !JsonContainerIsArray(value.val.binary.data))
		refuse_setting(norm, setting, "It is an array of JSON Pointers.");
	it = JsonbIteratorInit(value.val.binary.data);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_ELEM)
			compile_pointer(norm, &value, setting);
	}
	return true;
}

/*
 * Returns an operation's settings, compiled.  NULL, or settings that change
 * nothing, still give a result, which names the operation in errors.  The result
 * is allocated in CurrentMemoryContext and refers to nothing outside that and
 * settings, which must live as long.  Raises 22023 for a wrong value.
 */
Normalisation *
normalisation_compile(Jsonb *settings, const char *operation)
{
	Normalisation *norm = palloc0(sizeof(Normalisation));

	if (operation != NULL)
		norm->operation = pstrdup(operation);
	if (settings == NULL || !JB_ROOT_IS_OBJECT(settings))
		return norm;
	compile_numbers(norm, settings);
	compile_defaults(norm, settings);
	norm->chooses = compile_pointers(norm, settings, "fields");
	compile_pointers(norm, settings, "ignore");
	compile_pointers(norm, settings, "unordered");
	if (norm->paths != NULL && norm->paths->kept)
		norm->chooses = false;
	norm->reshapes = norm->chooses || norm->paths != NULL ||
		norm->defaults != NULL;
	return norm;
}
