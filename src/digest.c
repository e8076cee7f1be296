/*-------------------------------------------------------------------------
 *
 * digest.c
 *	  SHA-256, one digest at a time.
 *
 * Setting up a digest costs more than hashing a typical request, because
 * OpenSSL allocates, and looks its algorithm up anew each time it is given by
 * name, as pg_cryptohash does.  So the backend keeps one context for its whole
 * life, and where the server is built with OpenSSL, this file calls it
 * directly, with an algorithm that was looked up once; pg_cryptohash serves
 * elsewhere.
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

#if defined(USE_OPENSSL) && defined(__has_include)
#if __has_include(<openssl/evp.h>)
#define CALL_OPENSSL
#endif
#endif

#ifdef CALL_OPENSSL
#include <openssl/evp.h>
#else
#include "common/cryptohash.h"
#include "utils/resowner.h"
#endif

/*
 * Raise the error of a hash call that failed: only a crypto library that is
 * out of memory or forbids SHA-256 can be the cause.
 */
static void
digest_failed(const char *step)
{
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("could not %s SHA-256 digest", step),
			 errhint("See whether SELECT sha256('') works on this server.")));
}

#ifdef CALL_OPENSSL

static EVP_MD_CTX * context = NULL;

/* 3.0: algorithms are fetched, which is slow, and kept */
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
#define FETCH_SHA256() EVP_MD_fetch(NULL, "SHA256", NULL)
#else
#define FETCH_SHA256() EVP_sha256()
#endif

/*
 * Make the backend's context.  Raises an internal error if the library
 * refuses, in which case the next call tries again.
 */
static void
make_context(void)
{
	static const EVP_MD *algorithm = NULL;
	EVP_MD_CTX *made;

	if (algorithm == NULL)
		algorithm = FETCH_SHA256();
	made = algorithm != NULL ? EVP_MD_CTX_new() : NULL;
	if (made == NULL || EVP_DigestInit_ex(made, algorithm, NULL) != 1)
	{
		EVP_MD_CTX_free(made);
		digest_failed("create");
	}
	context = made;
}

/*
 * Begin a digest, forgetting one that was abandoned.  Raises an internal error
 * if the crypto library refuses.
 */
void
digest_start(void)
{
	if (unlikely(context == NULL))
		make_context();
	else if (unlikely(EVP_DigestInit_ex(context, NULL, NULL) != 1))
		digest_failed("initialize");
}

/*
 * Add len bytes to the digest begun last.  Callers with many short pieces
 * put a buffer in front (see writer.c): a call costs tens of nanoseconds.
 */
void
digest_update(const void *data, size_t len)
{
	if (unlikely(EVP_DigestUpdate(context, data, len) != 1))
		digest_failed("update");
}

/*
 * End the digest begun last and store its IDEM_DIGEST_LEN bytes.
 */
void
digest_finish(uint8 *digest)
{
	if (unlikely(EVP_DigestFinal_ex(context, digest, NULL) != 1))
		digest_failed("finalize");
}

#else							/* pg_cryptohash */

static pg_cryptohash_ctx *context = NULL;

/*
 * Make the backend's context.  The server remembers it in the resource owner
 * that is current, and would warn and free it at the end of that transaction;
 * so it is made under an owner of its own, which has no parent and is never
 * released.  The memory behind it is the server's TopMemoryContext.  Raises
 * an internal error, in which case the next call tries again.
 */
static void
make_context(void)
{
	static ResourceOwner context_owner = NULL;
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
		digest_failed("create");
}

/*
 * As above.
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
 * As above.
 */
void
digest_update(const void *data, size_t len)
{
	if (unlikely(pg_cryptohash_update(context, data, len) < 0))
		digest_failed("update");
}

/*
 * As above.
 */
void
digest_finish(uint8 *digest)
{
	if (unlikely(pg_cryptohash_final(context, digest, IDEM_DIGEST_LEN) < 0))
		digest_failed("finalize");
}

#endif							/* CALL_OPENSSL */
