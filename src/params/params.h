/*
 * params.h
 *	  Parameters -> canonical text -> SHA-256, and the identity of a record.
 */
#ifndef IDEMPOTENCY_PARAMS_H
#define IDEMPOTENCY_PARAMS_H

#include "lib/stringinfo.h"
#include "utils/uuid.h"

#include "server/server.h"

#define IDEM_DIGEST_LEN 32		/* SHA-256 */
#define IDEM_TEXT_MAX 255		/* UTF-8 bytes of principal, operation, key */

/* What a call is about: the three texts (server encoding) and their id. */
typedef struct Identity
{
	char	   *principal;
	char	   *operation;
	char	   *key;
	pg_uuid_t	id;
	bool		key_has_time;	/* key is a UUIDv7 or a ULID */
	uint64		key_milliseconds;	/* its time since 1970 */
	TimestampTz key_time;		/* the same as a timestamp */
} Identity;

/*
 * A path into params that settings speak of.  The paths of one operation are a
 * tree; a step down is the name of a member, in the encoding of the database.
 */
typedef struct ParamsPath
{
	const char *name;
	size_t		len;
	bool		kept;			/* a pointer of "fields" ends here */
	bool		dropped;		/* one of "ignore" */
	bool		unordered;		/* one of "unordered" */
	bool		leads_into_object;	/* "fields" go on to members of this */
	bool		leads_into_array;	/* "fields" go on to elements of this */
	List	   *children;
	struct ParamsPath *each;	/* the child for every element of an array */
} ParamsPath;

/* What is done to params before they are hashed; zeros: nothing. */
typedef struct Normalisation
{
	char	   *operation;		/* for messages; may be NULL */
	bool		doubles;		/* numbers: double, that is strict JCS */
	bool		reshapes;		/* any of the following */
	bool		chooses;		/* "fields": only paths so marked are kept */
	ParamsPath *paths;			/* the root */
	JsonbContainer *defaults;
} Normalisation;

/* digest.c: one SHA-256 at a time */
extern void digest_start(void);
extern void digest_update(const void *data, size_t len);
extern void digest_finish(uint8 *digest);

/* identity.c */
extern void identity_derive(Identity *who, const pg_uuid_t *known_id);
extern void identity_read_key_time(Identity *who);
extern void identity_check_text(const char *value, const char *what);
extern bool identity_is_uuid(const char *key);
extern char *identity_text(const pg_uuid_t *id);
extern void identity_new(pg_uuid_t *key);
extern void identity_of_step(const pg_uuid_t *operation_id, const char *step,
							 int len, pg_uuid_t *id);
extern void identity_of_event(const pg_uuid_t *operation_id, TimestampTz claimed_at,
							  const char *destination, const char *ordering_key,
							  const char *step, pg_uuid_t *id);

/* canonical.c */
extern void canonical_fingerprint(Jsonb *params, const Normalisation *norm, uint8 *digest);
extern void canonical_append(StringInfo text, const Jsonb *reshaped, const Normalisation *norm);

extern bool json_exceeds(Jsonb *value, int64 max_bytes);

/* normalise.c */
extern Normalisation *normalisation_compile(Jsonb *settings, const char *operation);
extern ParamsPath *params_path_step(const ParamsPath *from, const char *name, size_t len);
pg_noreturn extern void canonical_refuse(const Normalisation *norm, const char *detail);

/* reshape.c */
extern Jsonb *reshape_params(Jsonb *params, const Normalisation *norm);

/* number.c */
extern void number_write(StringInfo to, Numeric number, const Normalisation *norm);
extern int64 number_length(Numeric number);

/* json_text.c */
extern Jsonb *json_text_value(const text *params, const Normalisation *norm);

/* utf8.c */
extern char *utf8_from_server(const char *string, int len, int *utf8_len);

#endif							/* IDEMPOTENCY_PARAMS_H */
