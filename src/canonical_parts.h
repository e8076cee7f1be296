/*-------------------------------------------------------------------------
 *
 * canonical_parts.h
 *	  What the files that make canonical text show each other, and nobody
 *	  else: writer.c, number.c, members.c, utf8.c, normalise.c, canonical.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_CANONICAL_PARTS_H
#define IDEMPOTENCY_CANONICAL_PARTS_H

#include "canonical.h"
#include "compat.h"
#include "lib/stringinfo.h"
#include "port/pg_bswap.h"
#include "utils/numeric.h"

#define EVERY_BYTE(b)	(UINT64CONST(0x0101010101010101) * (b))

/* Large enough that hashing dominates its calls, small enough for L1. */
#define WRITER_BUFFER 8192

/* Where canonical text goes. */
typedef enum WriterKind
{
	WRITE_COUNT,				/* nowhere: only its length is wanted */
	WRITE_DIGEST,				/* into the digest begun by digest_start() */
	WRITE_TEXT					/* appended to a StringInfo */
} WriterKind;

typedef struct Writer
{
	WriterKind	kind;
	StringInfo text;			/* for WRITE_TEXT */
	int64		flushed;		/* bytes that have left the buffer */
	int64		max_bytes;		/* stop beyond this many; <= 0: no limit */
	bool		over;			/* limit exceeded: what follows is dropped */
	int			used;			/* bytes in buffer */
	char		buffer[WRITER_BUFFER];
} Writer;

/* What is done to params before they are hashed. */
struct Normalisation
{
	char	   *operation;		/* for messages; NULL if not known */
	bool		doubles;		/* numbers: double, that is strict JCS */
};

/*
 * One run of members of an object that is in UTF-16 order already; it is
 * known by its next member.  Offsets count from where the object's children
 * begin.
 */
typedef struct Run
{
	uint64		lead;			/* first 8 bytes of name, made comparable */
	uint32		key_at;			/* offset of its name */
	uint32		key_len;
	uint32		value_at;		/* offset of its value */
	uint32		index;			/* its number in the object */
	uint32		last;			/* number of the run's last member */
} Run;

/* Runs of all objects being written, innermost last. */
typedef struct RunStack
{
	Run		   *runs;
	Size		used;
	Size		space;
	Run			first[16];		/* enough for most params: no allocation */
} RunStack;

/* The runs of one object: a heap at the end of the RunStack. */
typedef struct Members
{
	const JsonbContainer *object;
	const char *data;			/* where the object's children begin */
	Size		bottom;
	Size		count;
} Members;

/* One member of an object, taken in order. */
typedef struct Member
{
	const char *key;
	uint32		key_len;
	JEntry		entry;			/* kind of the value */
	uint32		value_len;
	const char *value;			/* its bytes, not yet aligned */
} Member;

/* writer.c */
extern void writer_open(Writer *out, WriterKind kind, int64 max_bytes);
extern int64 writer_close(Writer *out);
extern void writer_flush(Writer *out);
extern void write_long(Writer *out, const char *bytes, size_t len);
extern void write_string(Writer *out, const char *string, size_t len);

/* number.c */
extern void write_number(Writer *out, Numeric number,
						 const Normalisation *norm);

/* members.c */
extern void runs_open(RunStack *stack);
extern void runs_close(RunStack *stack);
extern void members_open(RunStack *stack, Members *members,
						 const JsonbContainer *object);
extern bool members_next(RunStack *stack, Members *members, Member *member);
extern void members_close(RunStack *stack, Members *members);

/* utf8.c */
extern char *utf8_from_server(const char *string, int len, int *utf8_len);
extern Jsonb *jsonb_in_utf8(Jsonb *value, const Normalisation *norm);

/* normalise.c */
pg_noreturn extern void canonical_refuse(const Normalisation *norm,
										 const char *detail);

/*
 * Up to eight bytes of a string as one number, the first byte highest, with
 * zeros behind a shorter one.  The string must lie in a jsonb: there at least
 * eight readable bytes (headers) precede it, so that a shorter one can be
 * read by its end instead of byte by byte.
 */
static inline uint64
first_eight(const char *string, size_t len)
{
	uint64		bytes;

	if (len >= sizeof(bytes))
	{
		memcpy(&bytes, string, sizeof(bytes));
		return pg_ntoh64(bytes);
	}
	if (len == 0)
		return 0;
	memcpy(&bytes, string + len - sizeof(bytes), sizeof(bytes));
	return pg_ntoh64(bytes) << (64 - 8 * len);
}

/*
 * Append one byte.  Raises only what writer_flush() raises.
 */
static inline void
write_byte(Writer *out, char byte)
{
	if (unlikely(out->used == WRITER_BUFFER))
		writer_flush(out);
	out->buffer[out->used++] = byte;
}

/*
 * Append bytes.  Raises only what writer_flush() raises.
 */
static inline void
write_bytes(Writer *out, const char *bytes, size_t len)
{
	if (likely(len <= (size_t) (WRITER_BUFFER - out->used)))
	{
		memcpy(out->buffer + out->used, bytes, len);
		out->used += len;
	}
	else
		write_long(out, bytes, len);
}

#endif							/* IDEMPOTENCY_CANONICAL_PARTS_H */
