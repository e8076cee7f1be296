/*
 * utf8.c
 *	  Strings of any server encoding in UTF-8.
 *
 * Identity and fingerprint are the same in every server encoding because
 * they are computed over UTF-8.  A UTF8 database pays nothing for it.  In
 * SQL_ASCII no byte has been checked yet, so they are checked here.
 *
 * The conversion functions of the server are called in the form that
 * returns where it got stuck, because their own errors would show the
 * offending bytes, and with them a piece of a key or of params.
 */
#include "postgres.h"

#include "params/params.h"
#include "catalog/namespace.h"
#include "mb/pg_wchar.h"

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
 * Returns the UTF-8 form of len bytes in server encoding: the same pointer where
 * nothing has to change, allocated memory otherwise, NULL where there is none.
 * Raises 42883 for an encoding without conversion (MULE_INTERNAL).
 */
char *
utf8_from_server(const char *string, int len, int *utf8_len)
{
	int			encoding = GetDatabaseEncoding();
	Size		room = (Size) len * MAX_CONVERSION_GROWTH + 1;
	char	   *utf8;
	Oid			proc;

	Assert(memchr(string, '\0', len) == NULL);
	*utf8_len = len;
	if (encoding == PG_UTF8 || all_ascii(string, len))
		return unconstify(char *, string);
	if (encoding == PG_SQL_ASCII)
		return pg_verify_mbstr(PG_UTF8, string, len, true) ?
			unconstify(char *, string) : NULL;
	proc = FindDefaultConversionProc(encoding, PG_UTF8);
	if (!OidIsValid(proc))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("no conversion from encoding \"%s\" to UTF8 exists",
						pg_encoding_to_char(encoding))));
	utf8 = MemoryContextAllocHuge(CurrentMemoryContext, room);
	if (pg_do_encoding_conversion_buf(proc, encoding, PG_UTF8,
									  (unsigned char *) string, len,
									  (unsigned char *) utf8, room, true) < len)
		return NULL;
	*utf8_len = strlen(utf8);
	return utf8;
}
