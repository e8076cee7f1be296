/*
 * canonical.c
 *	  The canonical text of params (RFC 8785), as a stream into a digest.
 *
 * The walk over reshaped params (reshape.c) reads the stored form of jsonb: a
 * JsonbIterator would build a JsonbValue for each item.  The form is part of the
 * on-disk format, and its layout and accessors are public (utils/jsonb.h).
 *
 * Canonical text is never held as a whole unless it is asked for: it passes
 * through a small buffer into the digest, so that memory does not grow with
 * the length of what is written.  The walk recurses with a small frame for
 * each level; the parser that made the jsonb had a larger one.
 *
 * A second walk counts the bytes of the text jsonb_out() makes of a value,
 * because that is what a reader, a replay and a dump have to take.  It says
 * nothing about the stored size: 1e131071 is stored in ten bytes and printed in
 * 131072, so the text is counted and not made.
 */
#include "postgres.h"

#include "params/params.h"
#include "miscadmin.h"

/* Large enough that hashing dominates its calls, small enough for L1. */
#define BUFFER_BYTES	8192

/* At most so many bytes of a string are written at a time. */
#define STRING_PORTION	1024

/* Bytes that stand escaped in a string: below U+0020, and two more. */
static const bool must_escape[256] = {
	true, true, true, true, true, true, true, true,
	true, true, true, true, true, true, true, true,
	true, true, true, true, true, true, true, true,
	true, true, true, true, true, true, true, true,
	['"'] = true,['\\'] = true
};

typedef struct Walk
{
	StringInfoData out;			/* text that has not been hashed */
	bool		hashes;			/* hand text over to the digest */
	const Normalisation *norm;
} Walk;

/* An element, a name or a value. */
typedef struct Child
{
	JEntry		entry;			/* its kind */
	uint32		len;			/* of a string */
	const char *data;			/* a number or container is aligned behind it */
} Child;

typedef struct Member
{
	Child		name;
	Child		value;
} Member;

/* The children of a container that are still to come. */
typedef struct Children
{
	const JEntry *next;
	const char *data;
	uint32		at;
} Children;

static void write_container(Walk *walk, const JsonbContainer *container);

static inline Children
children_of(const JsonbContainer *container, uint32 count)
{
	return (Children)
	{
		container->children, (const char *) (container->children + count), 0
	};
}

static inline Child
next_child(Children *children)
{
	Child		child = {.entry = *children->next++,.data = children->data + children->at};
	uint32		begin = children->at;

	JBE_ADVANCE_OFFSET(children->at, child.entry);
	child.len = children->at - begin;
	return child;
}

/* Hands text over to the digest when there is enough.  Answers interrupts. */
static inline void
flush_if_full(Walk *walk)
{
	CHECK_FOR_INTERRUPTS();
	if (walk->hashes && walk->out.len >= BUFFER_BYTES)
	{
		digest_update(walk->out.data, walk->out.len);
		walk->out.len = 0;
	}
}

/* Returns where that many bytes can be written.  No NUL need be kept behind the text. */
static inline char *
room_for(StringInfo out, uint32 bytes)
{
	if (unlikely(out->maxlen - out->len <= bytes))
		enlargeStringInfo(out, bytes);
	return out->data + out->len;
}

static void
write_escaped(StringInfo out, char byte)
{
	static const char escaped[] = "\b\t\n\f\r\"\\";
	static const char letters[] = "btnfr\"\\";
	const char *found = byte != '\0' ? strchr(escaped, byte) : NULL;

	if (found != NULL)
		appendStringInfo(out, "\\%c", letters[found - escaped]);
	else
		appendStringInfo(out, "\\u%04x", byte);
}

/* Copies bytes up to one that must be escaped.  Returns how many. */
static inline uint32
copy_plain(char *to, const char *from, uint32 len)
{
	const char *end = from + len;
	const char *at = from;

	while (at < end && !must_escape[(unsigned char) *at])
		*to++ = *at++;
	return at - from;
}

/* Appends a string that is long or has bytes that must be escaped. */
static void
write_long_string(Walk *walk, const char *string, uint32 len)
{
	StringInfo	out = &walk->out;

	appendStringInfoCharMacro(out, '"');
	for (;;)
	{
		uint32		plain = copy_plain(room_for(out, STRING_PORTION), string,
									   Min(len, STRING_PORTION));

		out->len += plain;
		if (plain == len)
			break;
		string += plain;
		len -= plain;
		if (must_escape[(unsigned char) *string])
		{
			write_escaped(out, *string++);
			len--;
		}
		flush_if_full(walk);
	}
	appendStringInfoCharMacro(out, '"');
}

static inline void
write_string(Walk *walk, const char *string, uint32 len)
{
	if (likely(len <= STRING_PORTION))
	{
		char	   *to = room_for(&walk->out, len + 2);

		if (likely(copy_plain(to + 1, string, len) == len))
		{
			to[0] = '"';
			to[len + 1] = '"';
			walk->out.len += len + 2;
			return;
		}
	}
	write_long_string(walk, string, len);
}

static void
write_value(Walk *walk, Child value)
{
	switch (value.entry & JENTRY_TYPEMASK)
	{
		case JENTRY_ISSTRING:
			write_string(walk, value.data, value.len);
			break;
		case JENTRY_ISNUMERIC:
			number_write(&walk->out, (Numeric) INTALIGN(value.data), walk->norm);
			break;
		case JENTRY_ISBOOL_FALSE:
			appendBinaryStringInfo(&walk->out, "false", 5);
			break;
		case JENTRY_ISBOOL_TRUE:
			appendBinaryStringInfo(&walk->out, "true", 4);
			break;
		case JENTRY_ISNULL:
			appendBinaryStringInfo(&walk->out, "null", 4);
			break;
		case JENTRY_ISCONTAINER:
			write_container(walk, (const JsonbContainer *) INTALIGN(value.data));
			break;
		default:
			elog(ERROR, "unknown jsonb entry type: %x", value.entry);
	}
	flush_if_full(walk);
}

/* Appends the elements of an array, or the one value a scalar is stored as. */
static void
write_elements(Walk *walk, const JsonbContainer *array)
{
	uint32		count = JsonContainerSize(array);
	Children	elements = children_of(array, count);

	for (uint32 i = 0; i < count; i++)
	{
		if (i > 0)
			appendStringInfoCharMacro(&walk->out, ',');
		write_value(walk, next_child(&elements));
	}
}

/*
 * Returns a byte of UTF-8 such that comparing it compares UTF-16 code units:
 * characters beyond the basic plane (first byte F0 to F4) are written with
 * surrogates (D800 to DFFF) and so come before U+E000 to U+FFFF (first byte
 * EE or EF).  Where two names first differ in a later byte of a character,
 * that one is below C0 and not affected.
 */
static inline unsigned char
utf16_rank(unsigned char byte)
{
	return (byte & 0xFE) == 0xEE ? byte + 0x10 : byte;
}

static bool
name_before(const void *a, const void *b)
{
	const Child *left = &((const Member *) a)->name;
	const Child *right = &((const Member *) b)->name;
	uint32		common = Min(left->len, right->len);

	for (uint32 i = 0; i < common; i++)
	{
		unsigned char byte = left->data[i];
		unsigned char other = right->data[i];

		if (byte != other)
			return utf16_rank(byte) < utf16_rank(other);
	}
	return left->len < right->len;
}

/* Appends members in canonical order.  All names are stored before the values. */
static void
write_members(Walk *walk, const JsonbContainer *object)
{
	uint32		count = JsonContainerSize(object);
	Children	children = children_of(object, 2 * count);
	const void **order = palloc(count * (sizeof(void *) + sizeof(Member)));
	Member	   *members = (Member *) (order + count);

	for (uint32 i = 0; i < count; i++)
	{
		members[i].name = next_child(&children);
		order[i] = &members[i];
	}
	for (uint32 i = 0; i < count; i++)
		members[i].value = next_child(&children);
	sort_pointers(order, count, name_before);
	for (uint32 i = 0; i < count; i++)
	{
		const Member *member = order[i];

		if (i > 0)
			appendStringInfoCharMacro(&walk->out, ',');
		write_string(walk, member->name.data, member->name.len);
		appendStringInfoCharMacro(&walk->out, ':');
		write_value(walk, member->value);
	}
	pfree(order);
}

static void
write_container(Walk *walk, const JsonbContainer *container)
{
	check_stack_depth();
	if (JsonContainerIsObject(container))
	{
		appendStringInfoCharMacro(&walk->out, '{');
		write_members(walk, container);
		appendStringInfoCharMacro(&walk->out, '}');
	}
	else if (JsonContainerIsScalar(container))
		write_elements(walk, container);
	else
	{
		appendStringInfoCharMacro(&walk->out, '[');
		write_elements(walk, container);
		appendStringInfoCharMacro(&walk->out, ']');
	}
}

/*
 * Appends the canonical text of a value that reshape_params() returned.  Raises
 * 22032 for a number that cannot be a double where norm asks for one, 54001 for too
 * deep nesting, 54000 beyond 1 GB.
 */
void
canonical_append(StringInfo text, const Jsonb *reshaped,
				 const Normalisation *norm)
{
	Walk		walk = {.out = *text,.norm = norm};

	write_container(&walk, &reshaped->root);
	*text = walk.out;
}

/*
 * Stores the IDEM_DIGEST_LEN bytes of the digest of the canonical text of params,
 * which must be detoasted.  norm may be NULL: exact numbers, nothing else.  Raises
 * 22032 also for a string that is not valid in the encoding of the database.
 */
void
canonical_fingerprint(Jsonb *params, const Normalisation *norm, uint8 *digest)
{
	Jsonb	   *reshaped = reshape_params(params, norm);
	Walk		walk = {.hashes = true,.norm = norm};

	initStringInfo(&walk.out);
	digest_start();
	write_container(&walk, &reshaped->root);
	digest_update(walk.out.data, walk.out.len);
	digest_finish(digest);
	pfree(walk.out.data);
	if (reshaped != params)
		pfree(reshaped);
}

/*----
 * The length of a value's text.
 *----
 */

/* The longest escape sequence of one byte is \u00xx. */
#define MOST_ESCAPED 6

/* A count of bytes that ends when there are more than allowed. */
typedef struct TextLength
{
	int64		bytes;
	int64		max_bytes;
	bool		at_most;		/* takes strings for as long as they can be,
								 * unread */
} TextLength;

/* Returns the length of what escape_json() makes of a string. */
static int64
string_length(const char *string, uint32 len)
{
	int64		length = (int64) len + 2;

	for (uint32 i = 0; i < len; i++)
	{
		if (string[i] == '"' || string[i] == '\\')
			length++;
		else if (unlikely(must_escape[(unsigned char) string[i]]))
			length += strchr("\b\f\n\r\t", string[i]) && string[i] != '\0' ? 1 : 5;
	}
	return length;
}

static void
count_container(TextLength *length, const JsonbContainer *container)
{
	uint32		count = JsonContainerSize(container) * (JsonContainerIsObject(container) ? 2 : 1);
	Children	children = children_of(container, count);

	check_stack_depth();
	/* brackets, ", " between elements, ": " between key and value */
	if (!JsonContainerIsScalar(container))
		length->bytes += 2 + (count > 0 ? 2 * (int64) (count - 1) : 0);
	for (uint32 i = 0; i < count && length->bytes <= length->max_bytes; i++)
	{
		Child		child = next_child(&children);

		CHECK_FOR_INTERRUPTS();
		if (JBE_ISCONTAINER(child.entry))
			count_container(length, (const JsonbContainer *) INTALIGN(child.data));
		else if (JBE_ISNUMERIC(child.entry))
			length->bytes += number_length((Numeric) INTALIGN(child.data));
		else if (JBE_ISSTRING(child.entry))
			length->bytes += length->at_most ? (int64) child.len * MOST_ESCAPED + 2 :
				string_length(child.data, child.len);
		else
			length->bytes += JBE_ISBOOL_FALSE(child.entry) ? strlen("false") : strlen("true");
	}
}

/* Returns whether the text of a value has more than that many bytes. */
bool
json_exceeds(Jsonb *value, int64 max_bytes)
{
	TextLength	length = {0, max_bytes, true};

	/* most values are so small that their strings need not be read */
	count_container(&length, &value->root);
	if (length.bytes <= max_bytes)
		return false;
	length.bytes = 0;
	length.at_most = false;
	count_container(&length, &value->root);
	return length.bytes > max_bytes;
}
