/*-------------------------------------------------------------------------
 *
 * utf8.c
 *	  Texts and params of any server encoding in UTF-8.
 *
 * Identity and fingerprint are the same in every server encoding because
 * they are computed over UTF-8.  A UTF8 database pays nothing for it.  In
 * SQL_ASCII nobody has checked the bytes, so they are checked here.
 *
 * The conversion functions of the server are called in the form that
 * returns where it got stuck, because their own errors would show the
 * offending bytes, and with them a piece of a key or of params.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical_parts.h"
#include "catalog/namespace.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"

/* Source bytes converted at a time. */
#define PORTION 65536

/*
 * Is there no byte outside ASCII?
 */
static bool
all_ascii(const char *string, int len)
{
	for (int i = 0; i < len; i++)
	{
		if (IS_HIGHBIT_SET(string[i]))
			return false;
	}
	return true;
}

/*
 * Convert string from encoding to UTF-8; NULL if some of it has no UTF-8
 * form.  The result is allocated.  Raises only undefined_function for an
 * encoding that has no conversion to UTF-8 (MULE_INTERNAL).
 */
static char *
convert(const char *string, int len, int encoding, int *utf8_len)
{
	Oid			proc = FindDefaultConversionProc(encoding, PG_UTF8);
	StringInfoData utf8;

	if (!OidIsValid(proc))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("no conversion from encoding \"%s\" to UTF8 exists",
						pg_encoding_to_char(encoding))));

	initStringInfo(&utf8);
	while (len > 0)
	{
		int			room = Min(len, PORTION) * MAX_CONVERSION_GROWTH + 5;
		int			taken;

		CHECK_FOR_INTERRUPTS();
		enlargeStringInfo(&utf8, room);
		taken = pg_do_encoding_conversion_buf(proc, encoding, PG_UTF8,
											  (unsigned char *) string,
											  Min(len, PORTION),
											  (unsigned char *) utf8.data + utf8.len,
											  room, true);
		if (taken <= 0)
			return NULL;
		utf8.len += strlen(utf8.data + utf8.len);
		string += taken;
		len -= taken;
	}
	*utf8_len = utf8.len;
	return utf8.data;
}

/*
 * The UTF-8 form of len bytes in server encoding: the same pointer where
 * nothing has to change, allocated memory otherwise, NULL where there is no
 * such form.  NUL bytes are not expected.
 */
char *
utf8_from_server(const char *string, int len, int *utf8_len)
{
	int			encoding = GetDatabaseEncoding();

	*utf8_len = len;
	if (encoding == PG_UTF8 || all_ascii(string, len))
		return unconstify(char *, string);
	if (encoding == PG_SQL_ASCII)
		return pg_verify_mbstr(PG_UTF8, string, len, true) ?
			unconstify(char *, string) : NULL;
	return convert(string, len, encoding, utf8_len);
}

/*
 * Replace a string of params by its UTF-8 form; true if that changed it.
 * Refuses (22032) what has none.
 */
static bool
string_in_utf8(JsonbValue *string, const Normalisation *norm)
{
	char	   *before = string->val.string.val;
	char	   *utf8;

	utf8 = utf8_from_server(before, string->val.string.len,
							&string->val.string.len);
	if (utf8 == NULL)
		canonical_refuse(norm, "A string is not valid in the encoding of the database.");
	string->val.string.val = utf8;
	return utf8 != before;
}

/*
 * Would conversion change any string of value?  Refuses invalid ones.
 */
static bool
any_string_differs(Jsonb *value, const Normalisation *norm)
{
	JsonbIterator *it = JsonbIteratorInit(&value->root);
	JsonbIteratorToken token;
	JsonbValue	item;

	while ((token = JsonbIteratorNext(&it, &item, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		if ((token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM) &&
			item.type == jbvString && string_in_utf8(&item, norm))
			return true;
	}
	return false;
}

/*
 * Params with all strings in UTF-8.  The rest of the canonical machinery
 * knows no other encoding.  Returns value itself unless something has to
 * change.  May raise 22032 for bytes that mean nothing.
 */
Jsonb *
jsonb_in_utf8(Jsonb *value, const Normalisation *norm)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbParseState *state = NULL;
	JsonbValue *result = NULL;
	JsonbValue	item;

	if (GetDatabaseEncoding() == PG_UTF8 || !any_string_differs(value, norm))
		return value;

	it = JsonbIteratorInit(&value->root);
	while ((token = JsonbIteratorNext(&it, &item, false)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		if (token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM)
		{
			if (item.type == jbvString)
				(void) string_in_utf8(&item, norm);
			result = pushJsonbValue(&state, token, &item);
		}
		else if (token == WJB_BEGIN_ARRAY && item.val.array.rawScalar)
			result = pushJsonbValue(&state, token, &item);
		else
			result = pushJsonbValue(&state, token, NULL);
	}
	return JsonbValueToJsonb(result);
}
