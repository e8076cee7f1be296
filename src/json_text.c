/*-------------------------------------------------------------------------
 *
 * json_text.c
 *	  A strict parser of JSON text (RFC 8259).
 *
 * Two texts may share a fingerprint only if they are the same value, so
 * whatever readers of JSON disagree about is refused: half surrogates, bare
 * control characters, a byte order mark, white space of other kinds, text
 * behind the value.  (That a name occurs twice is seen where the members are
 * sorted: image.c.)  The lexer of the server would not do: it gives no byte
 * positions, its errors show the text, it refuses \u0000 where it unescapes,
 * and it leaves numbers to numeric, whose limits are not those of a text.
 *
 * It needs nothing of the server but check_stack_depth() and
 * CHECK_FOR_INTERRUPTS(), so that it can be fuzzed alone (test/fuzz).  The
 * text must be valid UTF-8 if strings are to be; nothing worse happens if it
 * is not.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "json_text.h"
#include "miscadmin.h"

/* Bytes of a string read at a time. */
#define PORTION 65536

static bool parse_value(JsonText *json);

/*
 * Say what is wrong and where; always false.
 */
static bool
fail(JsonText *json, uint32 at, const char *wrong)
{
	json->wrong_at = at;
	json->wrong = at < json->len ? wrong : "The text ends too early.";
	return false;
}

/*
 * How many items can the text have?  Each but the first follows one of four
 * bytes.
 */
size_t
json_text_room(const char *text, uint32 len)
{
	size_t		room = 1;

	for (uint32 i = 0; i < len; i++)
		room += text[i] == ',' || text[i] == ':' || text[i] == '[' || text[i] == '{';

	return room;
}

/*
 * The byte to be read next; 0, which begins nothing, at the end.
 */
static inline char
peek(const JsonText *json)
{
	return json->at < json->len ? json->text[json->at] : '\0';
}

static void
skip_space(JsonText *json)
{
	for (;;)
	{
		char		byte = peek(json);

		if (byte != ' ' && byte != '\n' && byte != '\t' && byte != '\r')
			return;
		json->at++;
	}
}

/*
 * Begin an item here.
 */
static uint32
add_item(JsonText *json)
{
	json->items[json->count].at = json->at;
	json->items[json->count].size = 0;
	return json->count++;
}

/*
 * Read the four digits of a \u escape that begins at offset at; -1 if they
 * are not there.
 */
static int
hex_escape(const JsonText *json, uint32 at)
{
	int			unit = 0;

	if (json->len - at < 6 || json->text[at] != '\\' || json->text[at + 1] != 'u')
		return -1;
	for (int i = 2; i < 6; i++)
	{
		char		digit = json->text[at + i];

		unit <<= 4;
		if (digit >= '0' && digit <= '9')
			unit |= digit - '0';
		else if (digit >= 'a' && digit <= 'f')
			unit |= digit - 'a' + 10;
		else if (digit >= 'A' && digit <= 'F')
			unit |= digit - 'A' + 10;
		else
			return -1;
	}
	return unit;
}

/*
 * Put a character at offset to, in UTF-8; returns the offset behind it.
 */
static uint32
put_character(JsonText *json, uint32 to, uint32 character)
{
	int			rest = character < 0x80 ? 0 : character < 0x800 ? 1 :
	character < 0x10000 ? 2 : 3;
	static const unsigned char lead[] = {0x00, 0xC0, 0xE0, 0xF0};

	json->text[to++] = (char) (lead[rest] | (character >> (6 * rest)));
	while (rest-- > 0)
		json->text[to++] = (char) (0x80 | ((character >> (6 * rest)) & 0x3F));
	return to;
}

/*
 * Read a \u escape, or two that are the halves of one character, and put the
 * character at *to.
 */
static bool
parse_hex_escape(JsonText *json, uint32 *to)
{
	int			unit = hex_escape(json, json->at);
	int			low;

	if (unit < 0)
		return fail(json, json->at, "An escape \\u has not four hexadecimal digits.");
	if ((unit & 0xF800) != 0xD800)
	{
		*to = put_character(json, *to, unit);
		json->at += 6;
		return true;
	}
	low = (unit & 0x0400) ? -1 : hex_escape(json, json->at + 6);
	if (low < 0 || (low & 0xFC00) != 0xDC00)
		return fail(json, json->at, "An escape is half a surrogate pair.");
	*to = put_character(json, *to,
						0x10000 + ((unit & 0x3FF) << 10) + (low & 0x3FF));
	json->at += 12;
	return true;
}

/*
 * Read an escape and put what it means at *to.
 */
static bool
parse_escape(JsonText *json, uint32 *to)
{
	static const char short_forms[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
	char		letter = json->at + 1 < json->len ? json->text[json->at + 1] : '\0';

	if (letter == 'u')
		return parse_hex_escape(json, to);
	for (const char *form = short_forms; *form != '\0'; form += 2)
	{
		if (*form == letter)
		{
			json->text[(*to)++] = form[1];
			json->at += 2;
			return true;
		}
	}
	return fail(json, json->at, "JSON has no such escape.");
}

/*
 * Read bytes of a string that stand for themselves and put them at *to; of
 * very many only some, so that interrupts are answered in between.
 */
static void
parse_plain(JsonText *json, uint32 *to)
{
	uint32		begin = json->at;
	uint32		end = begin;

	CHECK_FOR_INTERRUPTS();
	while (end < json->len && end - begin < PORTION)
	{
		unsigned char byte = (unsigned char) json->text[end];

		if (byte < 0x20 || byte == '"' || byte == '\\')
			break;
		end++;
	}
	if (*to != begin)
		memmove(json->text +*to, json->text +begin, end - begin);
	*to += end - begin;
	json->at = end;
}

/*
 * Read a string, whose quote is the byte to be read next.
 */
static bool
parse_string(JsonText *json)
{
	TextItem   *item = &json->items[add_item(json)];
	uint32		to = ++json->at;

	while (json->at < json->len)
	{
		char		byte = json->text[json->at];

		if (byte == '"')
		{
			item->size = to - item->at - 1;
			json->at++;
			return true;
		}
		if (byte == '\\')
		{
			if (!parse_escape(json, &to))
				return false;
		}
		else if ((unsigned char) byte < 0x20)
			return fail(json, json->at, "A control character in a string is not escaped.");
		else
			parse_plain(json, &to);
	}
	return fail(json, json->at, NULL);
}

/*
 * Read digits, of which there must be one.
 */
static bool
parse_digits(JsonText *json)
{
	if (peek(json) < '0' || peek(json) > '9')
		return fail(json, json->at, "A number lacks a digit.");
	while (peek(json) >= '0' && peek(json) <= '9')
		json->at++;
	return true;
}

/*
 * Read a number.  A digit behind a leading zero is left to whoever comes next,
 * who cannot use it.
 */
static bool
parse_number(JsonText *json)
{
	TextItem   *item = &json->items[add_item(json)];

	if (peek(json) == '-')
		json->at++;
	if (peek(json) == '0')
		json->at++;
	else if (!parse_digits(json))
		return false;
	if (peek(json) == '.')
	{
		json->at++;
		if (!parse_digits(json))
			return false;
	}
	if (peek(json) == 'e' || peek(json) == 'E')
	{
		json->at++;
		if (peek(json) == '+' || peek(json) == '-')
			json->at++;
		if (!parse_digits(json))
			return false;
	}
	item->size = json->at - item->at;
	return true;
}

/*
 * Read a word that is a value.
 */
static bool
parse_word(JsonText *json, const char *word, uint32 len)
{
	if (json->len - json->at < len ||
		memcmp(json->text +json->at, word, len) != 0)
		return fail(json, json->at, "There is no JSON value.");
	(void) add_item(json);
	json->at += len;
	return true;
}

/*
 * Behind a member or an element: read a comma (*more) or the closing byte.
 */
static bool
parse_separator(JsonText *json, char closing, bool *more)
{
	skip_space(json);
	*more = peek(json) == ',';
	if (!*more && (json->at == json->len || peek(json) != closing))
		return fail(json, json->at, closing == '}' ?
					"There is neither \",\" nor \"}\"." :
					"There is neither \",\" nor \"]\".");
	json->at++;
	skip_space(json);
	return true;
}

/*
 * Read a name, a colon and a value.
 */
static bool
parse_member(JsonText *json)
{
	if (peek(json) != '"')
		return fail(json, json->at, "There is no member name in double quotes.");
	if (!parse_string(json))
		return false;
	skip_space(json);
	if (peek(json) != ':')
		return fail(json, json->at, "There is no \":\".");
	json->at++;
	skip_space(json);
	return parse_value(json);
}

/*
 * Read an object or an array.  Raises 54001 when nesting is too deep.
 */
static bool
parse_container(JsonText *json, char closing)
{
	uint32		item = add_item(json);
	bool		more;

	check_stack_depth();
	json->at++;
	skip_space(json);
	more = peek(json) != closing;
	if (!more)
		json->at++;
	while (more)
	{
		CHECK_FOR_INTERRUPTS();
		if (!(closing == '}' ? parse_member(json) : parse_value(json)) ||
			!parse_separator(json, closing, &more))
			return false;
	}
	json->items[item].size = json->count - item - 1;
	return true;
}

/*
 * Read a value.
 */
static bool
parse_value(JsonText *json)
{
	switch (peek(json))
	{
		case '{':
			return parse_container(json, '}');
		case '[':
			return parse_container(json, ']');
		case '"':
			return parse_string(json);
		case 't':
			return parse_word(json, "true", 4);
		case 'f':
			return parse_word(json, "false", 5);
		case 'n':
			return parse_word(json, "null", 4);
		case '-':
		case '0':
		case '1':
		case '2':
		case '3':
		case '4':
		case '5':
		case '6':
		case '7':
		case '8':
		case '9':
			return parse_number(json);
		default:
			return fail(json, json->at, "There is no JSON value.");
	}
}

/*
 * Parse a text.  The caller has set text, len and items, which must have room
 * for json_text_room() items; the text is changed.  False if it is not JSON:
 * wrong_at and wrong then say why, without showing anything of it.  Raises
 * 54001 when nesting is too deep, and answers interrupts.
 */
bool
json_text_parse(JsonText *json)
{
	json->at = 0;
	json->count = 0;
	if (json->len >= 3 && memcmp(json->text, "\xEF\xBB\xBF", 3) == 0)
		return fail(json, 0, "The text begins with a byte order mark.");
	skip_space(json);
	if (!parse_value(json))
		return false;
	skip_space(json);
	if (json->at < json->len)
		return fail(json, json->at, "There is text behind the value.");
	return true;
}
