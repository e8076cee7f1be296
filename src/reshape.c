/*-------------------------------------------------------------------------
 *
 * reshape.c
 *	  The walk over params where an operation's settings change something.
 *
 * Nothing is changed in place and nothing is copied: params and defaults are
 * walked side by side, and what is to be left out is not written.  Below a
 * place the settings say nothing more about, canonical.c goes on.
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
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical_parts.h"
#include "miscadmin.h"

/* What is known about the place the walk is at. */
typedef struct Place
{
	const PathNode *node;		/* NULL: the settings name nothing in it */
	bool		choosing;		/* only what "fields" names is kept */
	const JsonbContainer *below;	/* defaults of the object here, or NULL */
} Place;

/* The elements of an unordered array, as text. */
typedef struct Element
{
	Size		at;
	Size		len;
} Element;

typedef struct Elements
{
	StringInfoData text;
	Element    *all;
	uint32		count;
} Elements;

static void reshape_container(Walk *walk, const JsonbContainer *container,
							  const Place *place);

/*
 * The container that a value is; NULL if it is a scalar.
 */
static const JsonbContainer *
container_of(JEntry entry, const char *data)
{
	return JBE_ISCONTAINER(entry) ? (const JsonbContainer *) INTALIGN(data) : NULL;
}

/*
 * Go down to a child, for which the settings have node (NULL: nothing).
 * False if it is left out.
 */
static bool
enter(const Place *from, const PathNode *node, Place *to)
{
	to->node = node;
	to->choosing = false;
	to->below = NULL;
	if (node != NULL && node->dropped)
		return false;
	if (!from->choosing)
		return true;
	if (node == NULL)
		return false;
	to->choosing = !node->kept;
	return node->kept || node->leads_into_object || node->leads_into_array;
}

/*
 * Append one value, as write_value() does.
 */
static void
reshape_value(Walk *walk, JEntry entry, const char *data, uint32 len,
			  const Place *place)
{
	if (JBE_ISCONTAINER(entry) &&
		(place->node != NULL || place->choosing || place->below != NULL))
		reshape_container(walk, container_of(entry, data), place);
	else
		write_value(walk, entry, data, len);
}

/*
 * Append the members of an object and of its defaults.
 */
static void
reshape_members(Walk *walk, const JsonbContainer *object, const Place *place)
{
	Members		members;
	Member		member;
	bool		first = true;

	members_open(&walk->runs, &members, object, place->below);
	while (!walk->out->over && members_next(&walk->runs, &members, &member))
	{
		Member		below;
		Place		child;
		bool		has_below = place->below != NULL &&
		member.source == SOURCE_GIVEN &&
		members_next_below(&walk->runs, &members, &member, &below);

		CHECK_FOR_INTERRUPTS();
		if (!enter(place, path_node_step(place->node, member.key, member.key_len),
				   &child))
			continue;
		if (has_below)
			child.below = container_of(below.entry, below.value);
		if (!first)
			write_byte(walk->out, ',');
		first = false;
		write_string(walk->out, member.key, member.key_len);
		write_byte(walk->out, ':');
		reshape_value(walk, member.entry, member.value, member.value_len, &child);
	}
	members_close(&walk->runs, &members);
}

/*
 * Append the elements of an array in their order.
 */
static void
reshape_elements(Walk *walk, const JsonbContainer *array, const Place *child)
{
	uint32		count = JsonContainerSize(array);
	const char *data = (const char *) (array->children + count);
	uint32		at = 0;

	for (uint32 i = 0; i < count && !walk->out->over; i++)
	{
		uint32		next = at;

		CHECK_FOR_INTERRUPTS();
		JBE_ADVANCE_OFFSET(next, array->children[i]);
		if (i > 0)
			write_byte(walk->out, ',');
		reshape_value(walk, array->children[i], data + at, next - at, child);
		at = next;
	}
}

/*
 * Write the elements of an array, one behind the other, into elements.
 */
static void
collect_elements(Walk *walk, const JsonbContainer *array, const Place *child,
				 Elements *elements)
{
	Writer	   *outer = walk->out;
	Writer	   *inner = palloc(sizeof(Writer));
	const char *data = (const char *) (array->children + elements->count);
	uint32		at = 0;

	writer_open(inner, WRITE_TEXT, 0);
	inner->text = &elements->text;
	walk->out = inner;
	for (uint32 i = 0; i < elements->count; i++)
	{
		Element    *element = &elements->all[i];
		uint32		next = at;

		CHECK_FOR_INTERRUPTS();
		JBE_ADVANCE_OFFSET(next, array->children[i]);
		element->at = inner->flushed + inner->used;
		reshape_value(walk, array->children[i], data + at, next - at, child);
		element->len = inner->flushed + inner->used - element->at;
		at = next;
	}
	(void) writer_close(inner);
	walk->out = outer;
	pfree(inner);
}

/*
 * Does the text of element a sort before that of b?  By bytes.
 */
static bool
element_before(const void *items, uint32 a, uint32 b)
{
	const Elements *elements = items;
	const Element *left = &elements->all[a];
	const Element *right = &elements->all[b];
	int			order = memcmp(elements->text.data + left->at,
							   elements->text.data + right->at,
							   Min(left->len, right->len));

	return order != 0 ? order < 0 : left->len < right->len;
}

/*
 * Append the elements of an array that is a multiset.
 */
static void
reshape_unordered(Walk *walk, const JsonbContainer *array, const Place *child)
{
	uint32		count = JsonContainerSize(array);
	uint32	   *order;
	Elements	elements;

	initStringInfo(&elements.text);
	elements.count = count;
	elements.all = MemoryContextAllocHuge(CurrentMemoryContext,
										  count * sizeof(Element));
	order = MemoryContextAllocHuge(CurrentMemoryContext, count * sizeof(uint32));
	for (uint32 i = 0; i < count; i++)
		order[i] = i;
	collect_elements(walk, array, child, &elements);
	sort_numbers(order, count, &elements, element_before);
	for (uint32 i = 0; i < count && !walk->out->over; i++)
	{
		const Element *element = &elements.all[order[i]];

		if (i > 0)
			write_byte(walk->out, ',');
		write_bytes(walk->out, elements.text.data + element->at, element->len);
	}
	pfree(order);
	pfree(elements.all);
	pfree(elements.text.data);
}

/*
 * Append an array.
 */
static void
reshape_array(Walk *walk, const JsonbContainer *array, const Place *place)
{
	const PathNode *node = place->node;
	Place		child;

	write_byte(walk->out, '[');
	if (enter(place, node != NULL ? node->each : NULL, &child))
	{
		if (node != NULL && node->unordered)
			reshape_unordered(walk, array, &child);
		else
			reshape_elements(walk, array, &child);
	}
	write_byte(walk->out, ']');
}

/*
 * Is something else here than "fields" expect?
 */
static bool
is_in_the_way(const JsonbContainer *container, const PathNode *node)
{
	if (node == NULL || !(node->leads_into_object || node->leads_into_array))
		return false;
	return JsonContainerIsObject(container) ?
		!node->leads_into_object : !node->leads_into_array;
}

/*
 * Append an object or an array.  Raises 54001 when nesting is too deep.
 */
static void
reshape_container(Walk *walk, const JsonbContainer *container,
				  const Place *place)
{
	Place		here = *place;

	check_stack_depth();
	if (here.choosing && is_in_the_way(container, here.node))
		here.choosing = false;
	if (!JsonContainerIsObject(container))
		reshape_array(walk, container, &here);
	else
	{
		if (here.below != NULL && !JsonContainerIsObject(here.below))
			here.below = NULL;
		write_byte(walk->out, '{');
		reshape_members(walk, container, &here);
		write_byte(walk->out, '}');
	}
}

/*
 * Append params as the settings of their operation want them.  Raises 54001
 * when nesting is too deep.
 */
void
write_reshaped(Walk *walk, const JsonbContainer *params)
{
	const Normalisation *norm = walk->norm;
	Place		root = {norm->paths, norm->chooses, norm->defaults};

	if (JsonContainerIsScalar(params))
		write_container(walk, params);
	else
		reshape_container(walk, params, &root);
}
