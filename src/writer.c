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

#define EVERY_BYTE(b)	(UINT64CONST(0x0101010101010101) * (b))

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
 * Copy the bytes up to the first that must be escaped and return how many
 * these are.  Eight at a time; the last eight may overlap those before, so
 * that names and values of ordinary length need no byte-wise rest.
 */
static inline size_t
copy_plain(char *to, const char *from, size_t len)
{
	size_t		at = 0;

	while (at + 8 <= len && copy_eight(to + at, from + at))
		at += 8;
	if (at == len || (at > 0 && at + 8 > len &&
					  copy_eight(to + len - 8, from + len - 8)))
		return len;
	while (at < len && !needs_escape((unsigned char) from[at]))
	{
		to[at] = from[at];
		at++;
	}
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
 * Append a string, given in UTF-8, as JSON.  It may contain NUL bytes.
 */
void
write_string(Writer *out, const char *string, size_t len)
{
	write_byte(out, '"');
	while (len > 0)
	{
		size_t		now;
		size_t		plain;

		if (unlikely(out->used == WRITER_BUFFER))
			writer_flush(out);
		now = Min(len, (size_t) (WRITER_BUFFER - out->used));
		plain = copy_plain(out->buffer + out->used, string, now);
		out->used += plain;
		string += plain;
		len -= plain;
		if (plain < now)
		{
			write_escape(out, (unsigned char) *string);
			string++;
			len--;
		}
	}
	write_byte(out, '"');
}
