/*-------------------------------------------------------------------------
 *
 * image.c
 *	  Raw JSON text in the form the walk over params wants: that of a jsonb.
 *
 * What comes out looks like a jsonb inside but is none, and never leaves
 * these files: its strings are in UTF-8 whatever the server's encoding and
 * may contain NUL bytes, its numbers have no display scale, and its members
 * are in the order of RFC 8785.  So one walk serves both forms of params, and
 * they cannot disagree.
 *
 * The text is read once into a list of what is in it; from that it is known
 * how much memory the image takes, and all of it is written once, in order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical_parts.h"
#include "compat.h"
#include "json_text.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"

typedef struct Image
{
	const JsonText *json;
	const Normalisation *norm;	/* for messages */
	char	   *to;				/* where the image goes on */
} Image;

/* The entries of a container that is being written. */
typedef struct Entries
{
	JEntry	   *entries;
	uint32		count;
	uint64		total;			/* bytes of children so far */
} Entries;

static void put_container(Image *image, uint32 item);

/*
 * Refuse a text (22032) because of the byte at an offset.
 */
static void
refuse_text(const Normalisation *norm, uint32 at, const char *detail)
{
	const char *hint =
	"Positions count the bytes of the text in UTF-8, from 1.";

	if (norm != NULL && norm->operation != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_JSON_TEXT),
				 errmsg("params of operation \"%s\" cannot be canonicalised: error at byte %u",
						norm->operation, at + 1),
				 errdetail_internal("%s", detail),
				 errhint("%s", hint)));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_JSON_TEXT),
			 errmsg("params cannot be canonicalised: error at byte %u", at + 1),
			 errdetail_internal("%s", detail),
			 errhint("%s", hint)));
}

/*
 * The item behind an item and all that is in it.
 */
static inline uint32
item_after(const JsonText *json, uint32 item)
{
	char		kind = json->text[json->items[item].at];
	uint32		inside = kind == '{' || kind == '[' ? json->items[item].size : 0;

	return item + 1 + inside;
}

/*
 * At most how many bytes will the image have?
 */
static size_t
image_room(const JsonText *json)
{
	size_t		room = VARHDRSZ + sizeof(uint32) + sizeof(JEntry);

	for (uint32 i = 0; i < json->count; i++)
	{
		uint32		size = json->items[i].size;

		room += sizeof(JEntry);
		switch (json->text[json->items[i].at])
		{
			case '"':
				room += size;
				break;
			case '{':
			case '[':
				room += sizeof(uint32) + ALIGNOF_INT;
				break;
			case 't':
			case 'f':
			case 'n':
				break;
			default:
				room += NUMBER_STORE_ROOM(size) + ALIGNOF_INT;
		}
	}
	return room;
}

/*
 * Numbers and containers begin at aligned places.
 */
static void
align(Image *image)
{
	while (image->to != (char *) INTALIGN(image->to))
		*image->to++ = '\0';
}

/*
 * Write the bytes of an item; returns its kind as a JEntry has it.
 */
static JEntry
put_bytes(Image *image, uint32 at)
{
	const TextItem *item = &image->json->items[at];
	char	   *text = image->json->text +item->at;
	size_t		size;

	switch (*text)
	{
		case '"':
			memcpy(image->to, text +1, item->size);
			image->to += item->size;
			return JENTRY_ISSTRING;
		case '{':
		case '[':
			align(image);
			put_container(image, at);
			return JENTRY_ISCONTAINER;
		case 't':
			return JENTRY_ISBOOL_TRUE;
		case 'f':
			return JENTRY_ISBOOL_FALSE;
		case 'n':
			return JENTRY_ISNULL;
		default:
			align(image);
			size = number_store(image->to, text, item->size);
			if (size == 0)
				refuse_text(image->norm, item->at,
							"A number is beyond the range or precision of numeric.");
			image->to += size;
			return JENTRY_ISNUMERIC;
	}
}

/*
 * Write an item as the next child of a container.  Raises
 * program_limit_exceeded where jsonb would.
 */
static void
put_child(Image *image, Entries *entries, uint32 item)
{
	char	   *begin = image->to;
	JEntry		kind = put_bytes(image, item);
	uint64		len = image->to - begin;

	CHECK_FOR_INTERRUPTS();
	entries->total += len;
	if (entries->total > JENTRY_OFFLENMASK)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("an object or array of params is larger than %u bytes",
						JENTRY_OFFLENMASK),
				 errhint("Compute the fingerprint of so large a request yourself.")));
	if (entries->count % JB_OFFSET_STRIDE == 0)
		kind |= JENTRY_HAS_OFF | (JEntry) entries->total;
	else
		kind |= (JEntry) len;
	entries->entries[entries->count++] = kind;
}

/*
 * Write the head of a container with that many children and entries.
 */
static void
put_head(Image *image, Entries *entries, uint32 flags, uint32 count,
		 uint32 children)
{
	uint32		head = count | flags;

	memcpy(image->to, &head, sizeof(head));
	image->to += sizeof(head);
	entries->entries = (JEntry *) image->to;
	entries->count = 0;
	entries->total = 0;
	image->to += children * sizeof(JEntry);
}

/*
 * Does the name that is item a come before the one that is item b?
 */
static bool
name_before(const void *items, uint32 a, uint32 b)
{
	const JsonText *json = items;
	const TextItem *name_a = &json->items[a];
	const TextItem *name_b = &json->items[b];

	return name_compare(json->text +name_a->at + 1, name_a->size,
						json->text +name_b->at + 1, name_b->size) < 0;
}

/*
 * Refuse names that occur twice; they are in order.
 */
static void
check_names(const Image *image, const uint32 *names, uint32 count)
{
	for (uint32 i = 1; i < count; i++)
	{
		if (!name_before(image->json, names[i - 1], names[i]))
			refuse_text(image->norm, image->json->items[names[i]].at,
						"A member has the name of another one of the same object.");
	}
}

/*
 * Write an object: all names, then all values.
 */
static void
put_object(Image *image, uint32 first, uint32 end)
{
	const JsonText *json = image->json;
	uint32		few[16];
	uint32	   *names = few;
	uint32		count = 0;
	Entries		entries;

	for (uint32 i = first; i < end; i = item_after(json, i + 1))
		count++;
	if (count > lengthof(few))
		names = MemoryContextAllocHuge(CurrentMemoryContext,
									   count * sizeof(uint32));
	count = 0;
	for (uint32 i = first; i < end; i = item_after(json, i + 1))
		names[count++] = i;
	sort_numbers(names, count, json, name_before);
	check_names(image, names, count);

	put_head(image, &entries, JB_FOBJECT, count, 2 * count);
	for (uint32 i = 0; i < count; i++)
		put_child(image, &entries, names[i]);
	for (uint32 i = 0; i < count; i++)
		put_child(image, &entries, names[i] + 1);
	if (names != few)
		pfree(names);
}

/*
 * Write an array.
 */
static void
put_array(Image *image, uint32 flags, uint32 first, uint32 end)
{
	uint32		count = 0;
	Entries		entries;

	for (uint32 i = first; i < end; i = item_after(image->json, i))
		count++;
	put_head(image, &entries, JB_FARRAY | flags, count, count);
	for (uint32 i = first; i < end; i = item_after(image->json, i))
		put_child(image, &entries, i);
}

/*
 * Write an object or an array.  Raises 54001 when nesting is too deep.
 */
static void
put_container(Image *image, uint32 item)
{
	uint32		end = item_after(image->json, item);

	check_stack_depth();
	if (image->json->text[image->json->items[item].at] == '{')
		put_object(image, item + 1, end);
	else
		put_array(image, 0, item + 1, end);
}

/*
 * The text in UTF-8, in memory that may be written to: its own unless it has
 * to be converted.
 */
static char *
text_in_utf8(text *params, const Normalisation *norm, uint32 *utf8_len)
{
	char	   *given = VARDATA(params);
	int			len = VARSIZE(params) - VARHDRSZ;
	int			length;
	char	   *utf8 = utf8_from_server(given, len, &length);

	if (utf8 == NULL && GetDatabaseEncoding() == PG_SQL_ASCII)
		refuse_text(norm, pg_encoding_verifymbstr(PG_UTF8, given, len),
					"The text is not valid UTF-8.");
	if (utf8 == NULL)
		canonical_refuse(norm, "The text is not valid in the encoding of the database.");
	*utf8_len = length;
	return utf8;
}

/*
 * The image of a JSON text in the server's encoding, which must be detoasted,
 * with a header of four bytes, and is destroyed.  Raises 22032 for text that
 * is not strict JSON, 54001 when it is nested too deep.
 */
Jsonb *
image_of_text(text *params, const Normalisation *norm)
{
	JsonText	json;
	Image		image = {.json = &json,.norm = norm};
	Jsonb	   *result;

	json.text = text_in_utf8(params, norm, &json.len);
	json.items = MemoryContextAllocHuge(CurrentMemoryContext,
										json_text_room(json.text, json.len) * sizeof(TextItem));
	if (!json_text_parse(&json))
		refuse_text(norm, json.wrong_at, json.wrong);

	result = MemoryContextAllocHuge(CurrentMemoryContext, image_room(&json));
	image.to = (char *) &result->root;
	if (json.text[json.items[0].at] == '{' || json.text[json.items[0].at] == '[')
		put_container(&image, 0);
	else
		put_array(&image, JB_FSCALAR, 0, 1);
	pfree(json.items);
	if (json.text !=VARDATA(params))
		pfree(json.text);
	return result;
}
