/*
 * digest.c
 *	  SHA-256, one digest at a time.
 *
 * Setting up a digest costs more than hashing a typical request, because
 * OpenSSL allocates, and looks its algorithm up.  So where the server is built
 * with OpenSSL, this file calls it directly with a context that is kept, and in
 * it the algorithm; elsewhere pg_cryptohash serves, and makes one for each digest.
 *
 * An error may be raised between digest_start() and digest_finish(): a cancel, or
 * params that turn out not to be canonicalisable.  Nothing has to be cleaned up
 * then: digest_start() begins anew, whatever state the context was left in, and
 * one of pg_cryptohash goes with the memory, or the resource owner, it was made
 * under.  Nothing that is called in between may start another digest.
 */
#include "postgres.h"

#include "params/params.h"

#if defined(USE_OPENSSL) && defined(__has_include)
#if __has_include(<openssl/evp.h>)
#define CALL_OPENSSL
#endif
#endif

#ifdef CALL_OPENSSL
#include <openssl/evp.h>
#else
#include "common/cryptohash.h"
#endif

/* Raises an internal error for a crypto library that is out of memory or forbids SHA-256. */
static inline void
require(bool done, const char *step)
{
	if (unlikely(!done))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not %s SHA-256 digest", step),
				 errhint("See whether SELECT sha256('') works on this server.")));
}

#ifdef CALL_OPENSSL

static EVP_MD_CTX * context = NULL;

/* Makes the backend's context.  If the library refuses, the next call tries again. */
static void
make_context(void)
{
	EVP_MD_CTX *made = EVP_MD_CTX_new();

	if (made != NULL && EVP_DigestInit_ex(made, EVP_sha256(), NULL) == 1)
		context = made;
	else
		EVP_MD_CTX_free(made);
	require(context != NULL, "create");
}

/* Begins a digest, forgetting one that was abandoned. */
void
digest_start(void)
{
	if (unlikely(context == NULL))
		make_context();
	require(EVP_DigestInit_ex(context, NULL, NULL) == 1, "initialize");
}

/*
 * Adds len bytes.  A caller with many short pieces puts a buffer in front: a call costs
 * tens of nanoseconds.
 */
void
digest_update(const void *data, size_t len)
{
	Assert(context != NULL);
	require(EVP_DigestUpdate(context, data, len) == 1, "update");
}

void
digest_finish(uint8 *digest)
{
	Assert(context != NULL);
	require(EVP_DigestFinal_ex(context, digest, NULL) == 1, "finalize");
}

#else							/* pg_cryptohash */

static pg_cryptohash_ctx *context = NULL;

void
digest_start(void)
{
	context = pg_cryptohash_create(PG_SHA256);
	require(context != NULL && pg_cryptohash_init(context) >= 0, "initialize");
}

void
digest_update(const void *data, size_t len)
{
	require(pg_cryptohash_update(context, data, len) >= 0, "update");
}

void
digest_finish(uint8 *digest)
{
	require(pg_cryptohash_final(context, digest, IDEM_DIGEST_LEN) >= 0, "finalize");
	pg_cryptohash_free(context);
}

#endif							/* CALL_OPENSSL */
