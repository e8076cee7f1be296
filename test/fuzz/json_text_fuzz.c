/*-------------------------------------------------------------------------
 *
 * json_text_fuzz.c
 *	  A libFuzzer target for src/json_text.c.
 *
 * Memory is watched by the sanitizers.  Beyond that: what was refused was
 * refused because of a byte that is there or just behind the end, and not at
 * once when there was nothing wrong so far; what was accepted, written again
 * as JSON, is accepted again and is the same.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdio.h>
#include <stdlib.h>

#include "json_text.h"

#define LONGEST 4096

extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Growing text. */
typedef struct Out
{
	char	   *bytes;
	size_t		len;
	size_t		room;
} Out;

static void
must(bool holds, const char *what)
{
	if (!holds)
	{
		fprintf(stderr, "violated: %s\n", what);
		abort();
	}
}

static void
put(Out *out, const char *bytes, size_t len)
{
	if (out->len + len > out->room)
	{
		out->room = 2 * (out->len + len);
		out->bytes = realloc(out->bytes, out->room);
		must(out->bytes != NULL, "there is memory");
	}
	memcpy(out->bytes + out->len, bytes, len);
	out->len += len;
}

/*
 * Parse a copy of exactly that size, so that a byte too far is noticed.
 */
static bool
parse(JsonText *json, const char *text, size_t len)
{
	json->text = malloc(len > 0 ? len : 1);
	json->len = (uint32) len;
	memcpy(json->text, text, len);
	json->items = malloc(json_text_room(text, json->len) * sizeof(TextItem));
	return json_text_parse(json);
}

static void
release(JsonText *json)
{
	free(json->text);
	free(json->items);
}

/*
 * Write a string with every byte below the blank, quotes and backslashes
 * escaped.
 */
static void
put_string(Out *out, const char *bytes, uint32 len)
{
	put(out, "\"", 1);
	for (uint32 i = 0; i < len; i++)
	{
		char		escape[8];
		unsigned char byte = (unsigned char) bytes[i];

		if (byte < 0x20 || byte == '"' || byte == '\\')
			put(out, escape, snprintf(escape, sizeof(escape), "\\u%04x", byte));
		else
			put(out, &bytes[i], 1);
	}
	put(out, "\"", 1);
}

/*
 * Write an item and all in it; returns the item behind.
 */
static uint32
put_item(Out *out, const JsonText *json, uint32 item)
{
	const TextItem *self = &json->items[item];
	const char *text = json->text + self->at;
	uint32		next = item + 1;

	must(item < json->count, "items are within their count");
	must(self->at < json->len, "items are within the text");
	switch (*text)
	{
		case '"':
			must(self->at + 1 + self->size < json->len, "strings are within the text");
			put_string(out, text + 1, self->size);
			break;
		case '{':
		case '[':
			must(item + self->size < json->count, "what is inside is there");
			put(out, text, 1);
			for (uint32 i = 0; next <= item + self->size; i++)
			{
				if (i > 0)
					put(out, *text == '{' && i % 2 == 1 ? ":" : ",", 1);
				next = put_item(out, json, next);
			}
			must(next == item + self->size + 1, "containers end where they say");
			put(out, *text == '{' ? "}" : "]", 1);
			break;
		case 't':
			put(out, "true", 4);
			break;
		case 'f':
			put(out, "false", 5);
			break;
		case 'n':
			put(out, "null", 4);
			break;
		default:
			must(self->size > 0, "numbers have digits");
			put(out, text, self->size);
	}
	return next;
}

static void
check_accepted(const JsonText *json)
{
	JsonText	again;
	Out			first = {0};
	Out			second = {0};

	must(put_item(&first, json, 0) == json->count, "there is one value");
	must(parse(&again, first.bytes, first.len), "its own text is accepted");
	(void) put_item(&second, &again, 0);
	must(first.len == second.len && memcmp(first.bytes, second.bytes, first.len) == 0,
		 "and is the same");
	release(&again);
	free(first.bytes);
	free(second.bytes);
}

/*
 * What stands before the wrong byte is the beginning of some JSON text: cut off
 * there, the text is refused for ending too early, or accepted.
 */
static void
check_refused(const JsonText *json, const char *text)
{
	JsonText	before;

	must(json->wrong != NULL, "a reason is given");
	must(json->wrong_at <= json->len, "the wrong byte is in the text");
	must((json->wrong_at == json->len) == (strcmp(json->wrong, "The text ends too early.") == 0),
		 "only what is behind the end is missing");
	if (!parse(&before, text, json->wrong_at))
		must(before.wrong_at == json->wrong_at, "nothing before was wrong");
	release(&before);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	JsonText	json;

	if (size > LONGEST)
		return 0;
	if (parse(&json, (const char *) data, size))
		check_accepted(&json);
	else
		check_refused(&json, (const char *) data);
	release(&json);
	return 0;
}
