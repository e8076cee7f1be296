/*-------------------------------------------------------------------------
 *
 * canonical_parts.h
 *	  What the files that make canonical text show each other, and nobody
 *	  else: canonical.c, reshape.c, normalise.c, paths.c, members.c, sort.c,
 *	  number.c, image.c, writer.c, utf8.c.
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

/*
 * A place in params that settings speak of.  The places of one operation are
 * a tree; a step down is the name of a member.
 */
typedef struct PathNode
{
	const char *name;			/* in UTF-8 */
	uint32		len;
	bool		kept;			/* a pointer of "fields" ends here */
	bool		dropped;		/* one of "ignore" */
	bool		unordered;		/* one of "unordered" */
	bool		leads_into_object;	/* "fields" go on to members of this */
	bool		leads_into_array;	/* "fields" go on to elements of this */
	uint32		count;			/* of children */
	struct PathNode **children; /* by length of name, then bytes */
	struct PathNode *each;		/* the child for every element of an array */
} PathNode;

/* What is done to params before they are hashed. */
struct Normalisation
{
	char	   *operation;		/* for messages; NULL if not known */
	bool		doubles;		/* numbers: double, that is strict JCS */
	bool		reshapes;		/* any of the following */
	bool		chooses;		/* "fields": only places so marked are kept */
	PathNode   *paths;			/* root of the places; NULL if none */
	const JsonbContainer *defaults; /* in UTF-8; NULL if none */
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
	uint32		source;			/* which of the objects */
} Run;

/* Runs of all objects being written, innermost last. */
typedef struct RunStack
{
	Run		   *runs;
	Size		used;
	Size		space;
	Run			first[32];		/* enough for most params: no allocation */
} RunStack;

/* An object is taken together with the one whose members are its defaults. */
#define SOURCES 2
#define SOURCE_GIVEN 0
#define SOURCE_BELOW 1

/* The runs of one object, at the end of the RunStack: a heap, or in order. */
typedef struct Members
{
	const JsonbContainer *object[SOURCES];
	const char *data[SOURCES];	/* where the object's children begin */
	Size		bottom;
	bool		sorted;			/* each member is a run: not a heap, but in
								 * order */
	Size		first;			/* where the next member's run is */
	Size		count;			/* runs left */
} Members;

/* One member of an object, taken in order. */
typedef struct Member
{
	const char *key;
	uint32		key_len;
	JEntry		entry;			/* kind of the value */
	uint32		value_len;
	const char *value;			/* its bytes, not yet aligned */
	uint32		source;			/* SOURCE_GIVEN or SOURCE_BELOW */
} Member;

/* Decimal digits in one stored digit of a numeric. */
#define NUMBER_GROUP_DIGITS 4

/* At most how many bytes a numeric made from that many digits has. */
#define NUMBER_STORE_ROOM(digits) \
	(VARHDRSZ + 2 * sizeof(int16) + \
	 sizeof(int16) * ((digits) / NUMBER_GROUP_DIGITS + 2))

/* One walk over params. */
typedef struct Walk
{
	Writer	   *out;
	RunStack	runs;
	const Normalisation *norm;
} Walk;

/* Does item a come before item b?  Items are known by number. */
typedef bool (*SortBefore) (const void *items, uint32 a, uint32 b);

/* writer.c */
extern void writer_open(Writer *out, WriterKind kind, int64 max_bytes);
extern int64 writer_close(Writer *out);
extern void writer_flush(Writer *out);
extern void write_long(Writer *out, const char *bytes, size_t len);
extern void write_string(Writer *out, const char *string, size_t len);

/* number.c */
extern void write_number(Writer *out, Numeric number,
						 const Normalisation *norm);
extern size_t number_store(char *to, char *token, size_t len);

/* members.c */
extern void runs_open(RunStack *stack);
extern void runs_close(RunStack *stack);
extern void members_open(RunStack *stack, Members *members,
						 const JsonbContainer *object,
						 const JsonbContainer *below);
extern bool members_next(RunStack *stack, Members *members, Member *member);
extern bool members_next_below(RunStack *stack, Members *members,
							   const Member *given, Member *below);
extern void members_close(RunStack *stack, Members *members);
extern int	name_compare(const char *a, uint32 a_len,
						 const char *b, uint32 b_len);

/* canonical.c */
extern void write_value(Walk *walk, JEntry entry, const char *data, uint32 len);
extern void write_container(Walk *walk, const JsonbContainer *container);

/* reshape.c */
extern void write_reshaped(Walk *walk, const JsonbContainer *params);

/* sort.c */
extern void sort_numbers(uint32 *order, uint32 count, const void *items,
						 SortBefore before);

/* image.c */
extern Jsonb *image_of_text(text *params, const Normalisation *norm);

/* paths.c */
extern PathNode *path_node_add(PathNode *root, const char *pointer, uint32 len,
							   bool field, const char **problem);
extern const PathNode *path_node_step(const PathNode *from, const char *name,
									  uint32 len);

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
