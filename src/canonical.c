/*-------------------------------------------------------------------------
 *
 * canonical.c
 *	  The canonical text of a jsonb, as a stream.
 *
 * Walks the stored form of jsonb directly: a JsonbIterator would build a
 * JsonbValue for each item and cannot take members in another order than
 * the stored one.  The stored form is part of the on-disk format and its
 * layout and accessors are public (utils/jsonb.h).
 *
 * This is the walk over params that are taken as they are; where settings
 * change them, reshape.c comes before it.
 *
 * The walk recurses, one small frame per level; the parser that made the
 * jsonb had larger ones.  Everything else it needs is in Walk, so that the
 * frame stays small and no value costs an allocation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical_parts.h"
#include "miscadmin.h"

/*
 * Append one value: entry says of which kind, and data and len (used for
 * strings only) where it is.  Numbers and containers begin at the next
 * aligned place.
 */
void
write_value(Walk *walk, JEntry entry, const char *data, uint32 len)
{
	switch (entry & JENTRY_TYPEMASK)
	{
		case JENTRY_ISSTRING:
			write_string(walk->out, data, len);
			break;
		case JENTRY_ISNUMERIC:
			write_number(walk->out, (Numeric) INTALIGN(data), walk->norm);
			break;
		case JENTRY_ISBOOL_FALSE:
			write_bytes(walk->out, "false", 5);
			break;
		case JENTRY_ISBOOL_TRUE:
			write_bytes(walk->out, "true", 4);
			break;
		case JENTRY_ISNULL:
			write_bytes(walk->out, "null", 4);
			break;
		case JENTRY_ISCONTAINER:
			write_container(walk, (const JsonbContainer *) INTALIGN(data));
			break;
		default:
			elog(ERROR, "unknown jsonb entry type: %x", entry);
	}
}

/*
 * Append the elements of an array, or the one value a scalar is stored as.
 */
static void
write_elements(Walk *walk, const JsonbContainer *array)
{
	uint32		count = JsonContainerSize(array);
	const char *data = (const char *) (array->children + count);
	uint32		at = 0;

	for (uint32 i = 0; i < count && !walk->out->over; i++)
	{
		JEntry		entry = array->children[i];
		uint32		next = at;

		CHECK_FOR_INTERRUPTS();
		JBE_ADVANCE_OFFSET(next, entry);
		if (i > 0)
			write_byte(walk->out, ',');
		write_value(walk, entry, data + at, next - at);
		at = next;
	}
}

/*
 * Append the members of an object in canonical order.
 */
static void
write_members(Walk *walk, const JsonbContainer *object)
{
	Members		members;
	Member		member;
	bool		first = true;

	members_open(&walk->runs, &members, object, NULL);
	while (!walk->out->over && members_next(&walk->runs, &members, &member))
	{
		CHECK_FOR_INTERRUPTS();
		if (!first)
			write_byte(walk->out, ',');
		first = false;
		write_string(walk->out, member.key, member.key_len);
		write_byte(walk->out, ':');
		write_value(walk, member.entry, member.value, member.value_len);
	}
	members_close(&walk->runs, &members);
}

/*
 * Append an object, an array, or the scalar that is stored as an array.
 * Raises 54001 when nesting is too deep.
 */
void
write_container(Walk *walk, const JsonbContainer *container)
{
	check_stack_depth();
	if (JsonContainerIsObject(container))
	{
		write_byte(walk->out, '{');
		write_members(walk, container);
		write_byte(walk->out, '}');
	}
	else if (JsonContainerIsScalar(container))
		write_elements(walk, container);
	else
	{
		write_byte(walk->out, '[');
		write_elements(walk, container);
		write_byte(walk->out, ']');
	}
}

/*
 * Write the canonical text of value, whose strings are in UTF-8, to where kind
 * says; returns its length.  Raises 22032 for what has no such text, 54001 for
 * too deep nesting.
 */
static int64
write_utf8(const JsonbContainer *value, const Normalisation *norm,
		   WriterKind kind, StringInfo text, int64 max_bytes)
{
	Writer		out;
	Walk		walk;
	int64		len;

	writer_open(&out, kind, max_bytes);
	out.text = text;

	walk.out = &out;
	walk.norm = norm;

	runs_open(&walk.runs);
	if (kind == WRITE_DIGEST)
		digest_start();
	if (norm != NULL && norm->reshapes)
		write_reshaped(&walk, value);
	else
		write_container(&walk, value);
	len = writer_close(&out);
	runs_close(&walk.runs);
	return len;
}

/*
 * The same for a value in the server's encoding.
 */
static int64
write_canonical(Jsonb *value, const Normalisation *norm, WriterKind kind,
				StringInfo text, int64 max_bytes)
{
	Jsonb	   *utf8 = jsonb_in_utf8(value, norm);
	int64		len = write_utf8(&utf8->root, norm, kind, text, max_bytes);

	if (utf8 != value)
		pfree(utf8);
	return len;
}

/*
 * Store the IDEM_DIGEST_LEN bytes of the fingerprint of params, which must
 * be detoasted, under norm (NULL: exact numbers, nothing else) and return
 * the length of the canonical text.  If that is longer than max_bytes
 * (<= 0: no limit), stop early, return some number above max_bytes and leave
 * digest alone.  Raises 22032 and 54001 as above.
 */
int64
canonical_fingerprint(Jsonb *params, const Normalisation *norm,
					  int64 max_bytes, uint8 *digest)
{
	int64		len;

	len = write_canonical(params, norm, WRITE_DIGEST, NULL, max_bytes);
	if (max_bytes <= 0 || len <= max_bytes)
		digest_finish(digest);
	return len;
}

/*
 * Store the fingerprint of params that are raw JSON text in the server's
 * encoding; it must be detoasted, with a header of four bytes, and is
 * destroyed.  Raises 22032 for text that is not strict JSON, with the position
 * of the byte (of its UTF-8 form) that is wrong, and 54001.
 */
void
canonical_fingerprint_text(text *params, const Normalisation *norm,
						   uint8 *digest)
{
	Jsonb	   *image = image_of_text(params, norm);

	(void) write_utf8(&image->root, norm, WRITE_DIGEST, NULL, 0);
	digest_finish(digest);
	pfree(image);
}

/*
 * The length in bytes of the canonical text of value, or some number above
 * max_bytes (<= 0: no limit) if that is exceeded.
 */
int64
canonical_length(Jsonb *value, int64 max_bytes)
{
	return write_canonical(value, NULL, WRITE_COUNT, NULL, max_bytes);
}

/*
 * Append the canonical text of params, in UTF-8, to text.  May also raise
 * program_limit_exceeded beyond 1 GB.
 */
void
canonical_text(Jsonb *params, const Normalisation *norm, StringInfo text)
{
	(void) write_canonical(params, norm, WRITE_TEXT, text, 0);
}
