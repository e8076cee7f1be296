/*-------------------------------------------------------------------------
 *
 * canonical.h
 *	  Parameters -> canonical text -> SHA-256, and the identity of a record.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_CANONICAL_H
#define IDEMPOTENCY_CANONICAL_H

#include "lib/stringinfo.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

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

/* What is done to params before they are hashed; NULL = nothing, exact. */
typedef struct Normalisation Normalisation;

/* digest.c: one SHA-256 at a time */
extern void digest_start(void);
extern void digest_update(const void *data, size_t len);
extern void digest_finish(uint8 *digest);

/* identity.c */
extern void identity_derive(Identity *who);
extern void identity_read_key_time(Identity *who);
extern void identity_check_text(const char *value, const char *what);
extern char *id_text(const pg_uuid_t *id);
extern void identity_new(pg_uuid_t *key);
extern void identity_of_event(const pg_uuid_t *operation_id,
							  TimestampTz claimed_at, int32 ordinal,
							  pg_uuid_t *id);

/* canonical.c */
extern int64 canonical_fingerprint(Jsonb *params, const Normalisation *norm,
								   int64 max_bytes, uint8 *digest);
extern void canonical_fingerprint_text(text *params,
									   const Normalisation *norm,
									   uint8 *digest);
extern int64 canonical_length(Jsonb *value, int64 max_bytes);
extern void canonical_text(Jsonb *params, const Normalisation *norm,
						   StringInfo text);

/* normalise.c */
extern Normalisation *normalisation_compile(Jsonb *settings,
											const char *operation);

#endif							/* IDEMPOTENCY_CANONICAL_H */
