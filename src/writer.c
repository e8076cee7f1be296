/*-------------------------------------------------------------------------
 *
 * writer.c
 *	  The stream that canonical text is written to, and JCS strings.
 *
 * Canonical text is never held as a whole unless it is asked for: it passes
 * through a small buffer into the digest, so that memory does not grow with
 * the params.  The buffer is also what makes short pieces cheap, and where
 * a long walk notices a cancel request and that its limit is exceeded.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical_parts.h"
#include "miscadmin.h"

/*
 * Make a writer ready.  max_bytes <= 0 means no limit.  The caller sets text
 * for WRITE_TEXT, and calls digest_start() itself for WRITE_DIGEST.
 */
void
writer_open(Writer *out, WriterKind kind, int64 max_bytes)
{
	out->kind = kind;
	out->text = NULL;
	out->flushed = 0;
	out->max_bytes = max_bytes;
	out->over = false;
	out->used = 0;
}

/*
 * Pass bytes on to where they go.  May raise what the target raises, for
 * WRITE_TEXT program_limit_exceeded beyond 1 GB.
 */
static void
deliver(Writer *out, const char *bytes, size_t len)
{
	out->flushed += len;
	if (out->max_bytes > 0 && out->flushed > out->max_bytes)
		out->over = true;
	if (out->over)
		return;
	if (out->kind == WRITE_DIGEST)
		digest_update(bytes, len);
	else if (out->kind == WRITE_TEXT)
		appendBinaryStringInfo(out->text, bytes, len);
}

/*
 * Empty the buffer.  Answers interrupts.
 */
void
writer_flush(Writer *out)
{
	CHECK_FOR_INTERRUPTS();
	deliver(out, out->buffer, out->used);
	out->used = 0;
}

/*
 * Empty the buffer for the last time; returns how many bytes were written.
 * With a limit exceeded that is some number above the limit.
 */
int64
writer_close(Writer *out)
{
	if (out->used > 0)
		writer_flush(out);
	return out->flushed;
}

/*
 * Append more bytes than the buffer has room for.  They go past the buffer,
 * not through it, but in portions, so that a digest over hundreds of
 * megabytes can be cancelled.
 */
void
write_long(Writer *out, const char *bytes, size_t len)
{
	const size_t portion = 1024 * 1024;

	writer_flush(out);
	while (len >= WRITER_BUFFER)
	{
		size_t		now = Min(len, portion);

		CHECK_FOR_INTERRUPTS();
		deliver(out, bytes, now);
		bytes += now;
		len -= now;
	}
	memcpy(out->buffer, bytes, len);
	out->used = len;
}

/*
 * Must this byte be escaped in a JCS string?
 */
static inline bool
needs_escape(unsigned char byte)
{
	return byte < 0x20 || byte == '"' || byte == '\\';
}

/*
 * Must one of these eight bytes be escaped?  The sum of three tests has the
 * top bit of a byte set if it is below 0x20, a quote or a backslash.  (A
 * borrow can set that of a byte behind such a one too, never otherwise.)
 */
static inline bool
any_needs_escape(uint64 bytes)
{
	uint64		quote = bytes ^ EVERY_BYTE('"');
	uint64		backslash = bytes ^ EVERY_BYTE('\\');

	return ((((bytes - EVERY_BYTE(0x20)) & ~bytes) |
			 ((quote - EVERY_BYTE(1)) & ~quote) |
			 ((backslash - EVERY_BYTE(1)) & ~backslash)) &
			EVERY_BYTE(0x80)) != 0;
}

/*
 * Copy eight bytes, unless one of them must be escaped.
 */
static inline bool
copy_eight(char *to, const char *from)
{
	uint64		bytes;

	memcpy(&bytes, from, sizeof(bytes));
	if (any_needs_escape(bytes))
		return false;
	memcpy(to, &bytes, sizeof(bytes));
	return true;
}

/*
 * Copy less than eight bytes, unless one of them must be escaped.  Writes
 * eight bytes; those behind the string are filled up with spaces.
 */
static inline bool
copy_short(char *to, const char *from, size_t len)
{
	uint64		bytes = first_eight(from, len);

	bytes |= EVERY_BYTE((uint64) ' ') >> (8 * len);
	if (any_needs_escape(bytes))
		return false;
	bytes = pg_hton64(bytes);
	memcpy(to, &bytes, sizeof(bytes));
	return true;
}

/*
 * Copy a string, unless one of its bytes must be escaped.  Eight bytes at a
 * time, of which the last may overlap those before.  Writes at least eight.
 */
static inline bool
copy_plain(char *to, const char *from, size_t len)
{
	if (len < 8)
		return copy_short(to, from, len);
	for (size_t at = 0; at + 8 <= len; at += 8)
	{
		if (!copy_eight(to + at, from + at))
			return false;
	}
	return copy_eight(to + len - 8, from + len - 8);
}

/*
 * How many of these bytes need no escape?
 */
static size_t
plain_prefix(const char *string, size_t len)
{
	size_t		at = 0;

	while (at + 8 <= len)
	{
		uint64		bytes;

		memcpy(&bytes, string + at, sizeof(bytes));
		if (any_needs_escape(bytes))
			break;
		at += 8;
	}
	while (at < len && !needs_escape((unsigned char) string[at]))
		at++;
	return at;
}

/*
 * Append the escape of one byte, in RFC 8785's only allowed form.
 */
static void
write_escape(Writer *out, unsigned char byte)
{
	static const char shorthand[0x20] = {
		['\b'] = 'b',['\t'] = 't',['\n'] = 'n',['\f'] = 'f',['\r'] = 'r'
	};
	static const char hex[] = "0123456789abcdef";

	write_byte(out, '\\');
	if (byte >= 0x20)
		write_byte(out, byte);
	else if (shorthand[byte] != 0)
		write_byte(out, shorthand[byte]);
	else
	{
		write_bytes(out, "u00", 3);
		write_byte(out, hex[byte >> 4]);
		write_byte(out, hex[byte & 0xF]);
	}
}

/*
 * Append what is between the quotes of a string that is long or has bytes
 * to be escaped.
 */
static void
write_escaped(Writer *out, const char *string, size_t len)
{
	while (len > 0)
	{
		size_t		plain = plain_prefix(string, len);

		write_bytes(out, string, plain);
		string += plain;
		len -= plain;
		if (len > 0)
		{
			write_escape(out, (unsigned char) *string);
			string++;
			len--;
		}
	}
}

/*
 * Append a string, given in UTF-8, as JSON.  It must lie in a jsonb (see
 * first_eight()) but may contain NUL bytes.
 */
void
write_string(Writer *out, const char *string, size_t len)
{
	char	   *to = out->buffer + out->used;

	/* room for two quotes, and for what copy_plain() writes at least */
	if (likely(len + 2 + sizeof(uint64) <= (size_t) (WRITER_BUFFER - out->used)) &&
		likely(copy_plain(to + 1, string, len)))
	{
		to[0] = '"';
		to[len + 1] = '"';
		out->used += (int) len + 2;
		return;
	}
	write_byte(out, '"');
	write_escaped(out, string, len);
	write_byte(out, '"');
}
