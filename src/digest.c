/*-------------------------------------------------------------------------
 *
 * digest.c
 *	  SHA-256, one digest at a time, through PostgreSQL's pg_cryptohash.
 *
 * Setting up a pg_cryptohash context costs more than hashing a typical
 * request, because OpenSSL allocates and looks its algorithm up anew.  So
 * the backend keeps one context for its whole life.  The server remembers
 * each context in the resource owner that is current when it is made, and
 * would warn and free it at the end of that transaction; ours is therefore
 * made under a resource owner of its own, which has no parent and is never
 * released.  The memory behind it is the server's TopMemoryContext.
 *
 * An error may be raised between digest_start() and digest_finish(): a
 * cancel, or params that turn out not to be canonicalisable.  Nothing has to
 * be cleaned up then, because digest_start() initialises the context again,
 * whatever state it was left in.  Only one digest can be under way; nothing
 * that is called between start and finish may start another.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical.h"
#include "common/cryptohash.h"
#include "utils/resowner.h"

static pg_cryptohash_ctx *context = NULL;
static ResourceOwner context_owner = NULL;

/*
 * Raise the error of a hash call that failed: only OpenSSL being out of
 * memory or forbidding SHA-256 can be the cause.
 */
static void
digest_failed(const char *step)
{
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("could not %s SHA-256 digest: %s", step,
					pg_cryptohash_error(context))));
}

/*
 * Make the backend's context, out of reach of any transaction's end.  May
 * raise out of memory, in which case the next call tries again.
 */
static void
make_context(void)
{
	ResourceOwner saved = CurrentResourceOwner;

	if (context_owner == NULL)
		context_owner = ResourceOwnerCreate(NULL, "idempotency digest");

	PG_TRY();
	{
		CurrentResourceOwner = context_owner;
		context = pg_cryptohash_create(PG_SHA256);
	}
	PG_FINALLY();
	{
		CurrentResourceOwner = saved;
	}
	PG_END_TRY();

	if (context == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
}

/*
 * Begin a digest, forgetting one that was abandoned.  May raise an internal
 * error if the crypto library refuses.
 */
void
digest_start(void)
{
	if (unlikely(context == NULL))
		make_context();
	if (unlikely(pg_cryptohash_init(context) < 0))
		digest_failed("initialize");
}

/*
 * Add len bytes to the digest begun last.  Callers with many short pieces
 * put a buffer in front (see writer.c): a call costs tens of nanoseconds.
 */
void
digest_update(const void *data, size_t len)
{
	if (unlikely(pg_cryptohash_update(context, data, len) < 0))
		digest_failed("update");
}

/*
 * End the digest begun last and store its IDEM_DIGEST_LEN bytes.
 */
void
digest_finish(uint8 *digest)
{
	if (unlikely(pg_cryptohash_final(context, digest, IDEM_DIGEST_LEN) < 0))
		digest_failed("finalize");
}
