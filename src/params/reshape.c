/*
 * reshape.c
 *	  Params in the form that is hashed: as the settings of their operation
 *	  want them, with all strings in UTF-8.
 *
 * In this order: "defaults" are filled in below what was given; of that,
 * "fields" keeps what it names, whole, and the objects and arrays on the way
 * there; "ignore" drops from that; the elements of arrays that are
 * "unordered" are sorted by their canonical text, inner ones first.
 *
 * Where "fields" expects an object and finds something else, or an array and
 * finds something else, what it finds is kept whole: that two requests count
 * as different by mistake is seen at once, that they count as the same by
 * mistake is not.
 *
 * Settings are compared with params as both are stored, in the encoding of the
 * database; strings are converted when they are taken over.  In a UTF8
 * database, params without settings are left as they are.
 */
#include "postgres.h"

#include "params/params.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/* A place in params. */
typedef struct Place
{
	const ParamsPath *node;		/* NULL: the settings name nothing in it */
	bool		choosing;		/* only what "fields" names is kept */
	JsonbContainer *below;		/* defaults of the object here, or NULL */
} Place;

/* An element of an unordered array. */
typedef struct Element
{
	JsonbValue	value;			/* reshaped */
	const char *canonical;
	Size		len;
} Element;

typedef struct Reshaping
{
	const Normalisation *norm;
	JsonbParseState *state;
} Reshaping;

static JsonbValue *push_container(Reshaping *to, JsonbContainer *container,
								  const Place *place);

static void
string_in_utf8(JsonbValue *string, const Normalisation *norm)
{
	string->val.string.val = utf8_from_server(string->val.string.val,
											  string->val.string.len,
											  &string->val.string.len);
	if (string->val.string.val == NULL)
		canonical_refuse(norm, "A string is not valid in the encoding of the database.");
}

/* Adds a value to the array or object under construction. */
static void
push_value(Reshaping *to, JsonbIteratorToken token, JsonbValue *value,
		   const Place *place)
{
	CHECK_FOR_INTERRUPTS();
	if (value->type == jbvBinary)
		(void) push_container(to, value->val.binary.data, place);
	else
	{
		if (value->type == jbvString)
			string_in_utf8(value, to->norm);
		(void) pushJsonbValue(&to->state, token, value);
	}
}

/* Goes down to a child, whose path is node or NULL; false if it is left out. */
static bool
enter_child(const Place *from, const ParamsPath *node, Place *to)
{
	*to = (Place)
	{
		.node = node,.choosing = from->choosing && node != NULL && !node->kept
	};
	if (node == NULL)
		return !from->choosing;
	return !node->dropped &&
		(!to->choosing || node->leads_into_object || node->leads_into_array);
}

static void
push_member(Reshaping *to, JsonbValue *name, JsonbValue *value,
			const Place *object)
{
	const char *bytes = name->val.string.val;
	int			len = name->val.string.len;
	Place		place;
	JsonbValue	below;

	if (!enter_child(object, params_path_step(object->node, bytes, len), &place))
		return;
	if (object->below != NULL && value->type == jbvBinary &&
		getKeyJsonValueFromContainer(object->below, bytes, len, &below) &&
		below.type == jbvBinary)
		place.below = below.val.binary.data;
	string_in_utf8(name, to->norm);
	(void) pushJsonbValue(&to->state, WJB_KEY, name);
	push_value(to, WJB_VALUE, value, &place);
}

/* Adds members of an object, without those that given, or NULL, has too. */
static void
push_members(Reshaping *to, JsonbContainer *object, JsonbContainer *given,
			 const Place *place)
{
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbIteratorToken token;
	JsonbValue	name;
	JsonbValue	value;
	JsonbValue	found;

	while ((token = JsonbIteratorNext(&it, &name, true)) != WJB_DONE)
	{
		if (token != WJB_KEY)
			continue;
		(void) JsonbIteratorNext(&it, &value, true);
		if (given == NULL ||
			getKeyJsonValueFromContainer(given, name.val.string.val,
										 name.val.string.len, &found) == NULL)
			push_member(to, &name, &value, place);
	}
}

static bool
element_before(const void *a, const void *b)
{
	const Element *left = a;
	const Element *right = b;
	int			order = memcmp(left->canonical, right->canonical,
							   Min(left->len, right->len));

	return order != 0 ? order < 0 : left->len < right->len;
}

/* Sorts the elements of an array that is a multiset. */
static void
sort_elements(JsonbValue *values, int count, const Normalisation *norm)
{
	Element    *elements = palloc_extended(count * sizeof(Element), MCXT_ALLOC_HUGE);
	const void **order = palloc_extended(count * sizeof(void *), MCXT_ALLOC_HUGE);
	StringInfoData texts;
	const char *at;

	initStringInfo(&texts);
	for (int i = 0; i < count; i++)
	{
		Jsonb	   *stored = JsonbValueToJsonb(&values[i]);
		int			before = texts.len;

		CHECK_FOR_INTERRUPTS();
		canonical_append(&texts, stored, norm);
		pfree(stored);
		elements[i].value = values[i];
		elements[i].len = texts.len - before;
		order[i] = &elements[i];
	}
	at = texts.data;
	for (int i = 0; i < count; at += elements[i++].len)
		elements[i].canonical = at;
	sort_pointers(order, count, element_before);
	for (int i = 0; i < count; i++)
		values[i] = ((const Element *) order[i])->value;
	pfree(order);
	pfree(elements);
	pfree(texts.data);
}

static void
push_elements(Reshaping *to, JsonbContainer *array, const Place *place)
{
	const ParamsPath *node = place->node;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;
	Place		child;

	if (!enter_child(place, node != NULL ? node->each : NULL, &child))
		return;
	it = JsonbIteratorInit(array);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_ELEM)
			push_value(to, WJB_ELEM, &value, &child);
	}
}

/* Returns whether something else is here than "fields" expect. */
static bool
is_in_the_way(const JsonbContainer *container, const ParamsPath *node)
{
	if (node == NULL || !(node->leads_into_object || node->leads_into_array))
		return false;
	return JsonContainerIsObject(container) ?
		!node->leads_into_object : !node->leads_into_array;
}

static JsonbValue *
push_array(Reshaping *to, JsonbContainer *container, const Place *place)
{
	JsonbValue *array;

	(void) pushJsonbValue(&to->state, WJB_BEGIN_ARRAY, NULL);
	push_elements(to, container, place);
	array = pushJsonbValue(&to->state, WJB_END_ARRAY, NULL);
	if (place->node != NULL && place->node->unordered)
		sort_elements(array->val.array.elems, array->val.array.nElems, to->norm);
	return array;
}

/* Adds and returns a container.  Raises 54001 when nesting is too deep. */
static JsonbValue *
push_container(Reshaping *to, JsonbContainer *container, const Place *place)
{
	Place		here = *place;
	JsonbContainer *below;

	check_stack_depth();
	if (here.choosing && is_in_the_way(container, here.node))
		here.choosing = false;
	if (!JsonContainerIsObject(container))
		return push_array(to, container, &here);
	if (here.below != NULL && !JsonContainerIsObject(here.below))
		here.below = NULL;
	(void) pushJsonbValue(&to->state, WJB_BEGIN_OBJECT, NULL);
	push_members(to, container, NULL, &here);
	below = here.below;
	here.below = NULL;
	if (below != NULL)
		push_members(to, below, container, &here);
	return pushJsonbValue(&to->state, WJB_END_OBJECT, NULL);
}

/*
 * Returns params, which must be detoasted, in the form that is hashed; the same
 * pointer if they are already.  norm may be NULL.  Raises 22032 for a string that is
 * not valid in the encoding of the database, 54001 when nesting is too deep.
 */
Jsonb *
reshape_params(Jsonb *params, const Normalisation *norm)
{
	Reshaping	to = {.norm = norm};
	Place		root = {0};
	MemoryContext result = CurrentMemoryContext;
	MemoryContext working;
	JsonbValue	scalar;
	JsonbValue *value;
	Jsonb	   *reshaped;

	Assert(!VARATT_IS_EXTENDED(params));
	if (norm != NULL && norm->reshapes)
	{
		root.node = norm->paths;
		root.choosing = norm->chooses;
		root.below = norm->defaults;
	}
	else if (GetDatabaseEncoding() == PG_UTF8)
		return params;
	working = AllocSetContextCreate(result, "idempotency params", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(working);
	if (JB_ROOT_IS_SCALAR(params))
	{
		JsonbExtractScalar(&params->root, &scalar);
		if (scalar.type == jbvString)
			string_in_utf8(&scalar, norm);
		value = &scalar;
	}
	else
		value = push_container(&to, &params->root, &root);
	MemoryContextSwitchTo(result);
	reshaped = JsonbValueToJsonb(value);
	MemoryContextDelete(working);
	return reshaped;
}
