/*-------------------------------------------------------------------------
 *
 * json_text.h
 *	  What json_text.c makes of a JSON text.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_JSON_TEXT_H
#define IDEMPOTENCY_JSON_TEXT_H

/*
 * One value or name of a text, which its first byte tells the kind of:
 *
 *	"		a string; its unescaped bytes begin behind the quote
 *	{ [		what is inside follows, members as a string and a value each
 *	t f n	a literal
 *	else	a number
 */
typedef struct TextItem
{
	uint32		at;				/* offset of its first byte */
	uint32		size;			/* bytes of a string or number; items inside */
} TextItem;

/* A text and what was found in it, in the order of the text. */
typedef struct JsonText
{
	char	   *text;			/* UTF-8; strings are unescaped in place */
	uint32		len;
	uint32		at;				/* how far it has been read */
	TextItem   *items;			/* room for json_text_room() of them */
	uint32		count;
	uint32		wrong_at;		/* offset of the byte that is wrong */
	const char *wrong;			/* what is wrong there, as a sentence */
} JsonText;

extern size_t json_text_room(const char *text, uint32 len);
extern bool json_text_parse(JsonText *json);

#endif							/* IDEMPOTENCY_JSON_TEXT_H */
