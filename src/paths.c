/*-------------------------------------------------------------------------
 *
 * paths.c
 *	  JSON Pointers (RFC 6901) of settings, as a tree of places in params.
 *
 * All pointers of an operation go into one tree, so that the walk over params
 * takes one step in it for each member, however many pointers there are.
 *
 * As an extension, the token "*" stands for every element of an array (and,
 * as RFC 6901 has it, for a member of that name).  A token of digits only is
 * refused: it would mean an element by its place, which says nothing about
 * two requests, and would silently mean a member where there is an object.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical_parts.h"

/*
 * Which child has this name?  Returns its place among the children, or where
 * it would have to be put, and whether it is there.
 */
static uint32
find_child(const PathNode *node, const char *name, uint32 len, bool *found)
{
	uint32		low = 0;
	uint32		high = node->count;

	while (low < high)
	{
		uint32		middle = low + (high - low) / 2;
		const PathNode *child = node->children[middle];
		int			order = len < child->len ? -1 : len > child->len;

		if (order == 0)
			order = memcmp(name, child->name, len);
		if (order == 0)
		{
			*found = true;
			return middle;
		}
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	*found = false;
	return low;
}

/*
 * Step from a place to that of a member; NULL if nothing is said about it or
 * from is NULL.
 */
const PathNode *
path_node_step(const PathNode *from, const char *name, uint32 len)
{
	bool		found;
	uint32		at;

	if (from == NULL || from->count == 0)
		return NULL;
	at = find_child(from, name, len, &found);
	return found ? from->children[at] : NULL;
}

/*
 * The same, making the place if need be.
 */
static PathNode *
add_step(PathNode *from, char *name, uint32 len)
{
	bool		found = false;
	uint32		at = find_child(from, name, len, &found);
	PathNode   *child;

	if (found)
		return from->children[at];
	child = palloc0(sizeof(PathNode));
	child->name = name;
	child->len = len;
	if (from->count == 0)
		from->children = palloc(sizeof(PathNode *));
	else if ((from->count & (from->count - 1)) == 0)
		from->children = repalloc(from->children,
								  2 * from->count * sizeof(PathNode *));
	memmove(from->children + at + 1, from->children + at,
			(from->count - at) * sizeof(PathNode *));
	from->children[at] = child;
	from->count++;
	if (len == 1 && name[0] == '*')
		from->each = child;
	return child;
}

/*
 * Resolve the escapes of a token in place.  Returns its new length, or
 * PG_UINT32_MAX if an escape is neither ~0 nor ~1.
 */
static uint32
unescape(char *token, uint32 len)
{
	uint32		to = 0;

	for (uint32 at = 0; at < len; at++)
	{
		char		byte = token[at];

		if (byte == '~')
		{
			if (++at == len || (token[at] != '0' && token[at] != '1'))
				return PG_UINT32_MAX;
			byte = token[at] == '0' ? '~' : '/';
		}
		token[to++] = byte;
	}
	return to;
}

/*
 * Does a token consist of digits only?
 */
static bool
all_digits(const char *token, uint32 len)
{
	for (uint32 i = 0; i < len; i++)
	{
		if (token[i] < '0' || token[i] > '9')
			return false;
	}
	return len > 0;
}

/*
 * The place a pointer means, made if need be.  The pointer is in UTF-8; field
 * says whether it is one of "fields", which mark the way there.  Returns NULL
 * and says why in *problem if it is no pointer.
 */
PathNode *
path_node_add(PathNode *root, const char *pointer, uint32 len, bool field,
			  const char **problem)
{
	PathNode   *node = root;
	const char *end = pointer + len;

	if (len > 0 && *pointer != '/')
	{
		*problem = "A JSON Pointer is empty or begins with \"/\".";
		return NULL;
	}
	while (pointer < end)
	{
		const char *token = pointer + 1;
		const char *next = memchr(token, '/', end - token);
		char	   *name;

		pointer = next != NULL ? next : end;
		name = pnstrdup(token, pointer - token);
		len = unescape(name, pointer - token);
		if (len == PG_UINT32_MAX)
		{
			*problem = "In a JSON Pointer \"~\" is followed by 0 or 1.";
			return NULL;
		}
		if (all_digits(name, len))
		{
			*problem = "Places in an array cannot be given by number; "
				"\"*\" means every element.";
			return NULL;
		}
		if (field && len == 1 && name[0] == '*')
			node->leads_into_array = true;
		else if (field)
			node->leads_into_object = true;
		node = add_step(node, name, len);
	}
	return node;
}
