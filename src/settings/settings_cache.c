/*
 * settings_cache.c
 *	  What settings mean, kept for the session.
 *
 * A change of settings sends a relcache invalidation for their table when it
 * commits; every look-up takes in invalidations first, so that a change acts
 * on the next call of every session.
 *
 * A value is used while other code runs: a claim holds its policy while it
 * waits, while idem_run() runs the caller's function, and while a row with
 * hundreds of calls is computed.  Each of them may take in an invalidation or
 * fill the cache.  Therefore a value lives to the end of the transaction, at
 * least: what is outdated before goes to the transaction's memory, and what a
 * full cache has no room for to the caller's.
 *
 * With IDEMPOTENCY_DISCARD_SETTINGS defined every look-up empties the cache;
 * see test/README.md.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "settings/settings.h"

/* Values kept; a caller that makes names up must not eat memory. */
#define MAX_CACHED 256

typedef struct CacheEntry
{
	char		name[IDEM_TEXT_MAX * 4 + 32];	/* hash key */
	void	   *value;
} CacheEntry;

static void
begin_cache(SettingsCache *cache)
{
	HASHCTL		ctl = {.keysize = sizeof(((CacheEntry *) NULL)->name),.entrysize = sizeof(CacheEntry)};

	cache->context = AllocSetContextCreate(TopMemoryContext, "idempotency settings",
										   ALLOCSET_SMALL_SIZES);
	ctl.hcxt = cache->context;
	cache->entries = hash_create("idempotency settings", 16, &ctl,
								 HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/* Returns a new value, which is cached only when complete: loading may raise. */
static void *
load(const SettingsKind *kind, const char *name)
{
	SettingsCache *cache = kind->cache;
	SettingsRow *everyone = settings_row_read(kind, EVERY_NAME);
	SettingsRow *own = settings_row_read(kind, name);
	Jsonb	   *effective = settings_overlay(kind, everyone->settings, own->settings);

	/* sizes that AllocSetDelete() returns to malloc */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "idempotency settings",
												  0, 2 * 1024, 16 * 1024);
	MemoryContext old = MemoryContextSwitchTo(context);
	void	   *value;

	/* an operation took over everyone's horizons when it was defined */
	if (!own->stored)
		own->horizons = everyone->horizons;
	value = kind->load(DatumGetJsonbPCopy(JsonbPGetDatum(effective)), own);
	MemoryContextSwitchTo(old);
	if (hash_get_num_entries(cache->entries) < MAX_CACHED)
	{
		CacheEntry *entry = hash_search(cache->entries, name, HASH_ENTER, NULL);

		entry->value = value;
		MemoryContextSetParent(context, cache->context);
	}
	return value;
}

/*
 * Returns what the settings of that name mean, valid until the current memory
 * context is reset or the transaction ends.  Raises what loading them raises.
 */
const void *
settings_get(const SettingsKind *kind, const char *name)
{
	SettingsCache *cache = kind->cache;
	TimestampTz transaction = GetCurrentTransactionStartTimestamp();
	bool		outdated = catalog_changed(kind->table);
	CacheEntry *entry;

	Assert(strlen(name) < sizeof(entry->name));
#ifdef IDEMPOTENCY_DISCARD_SETTINGS
	outdated = true;
#endif
	/* what earlier transactions filled it with is in use no more */
	if (cache->context && cache->used_in != transaction &&
		hash_get_num_entries(cache->entries) >= MAX_CACHED)
		outdated = true;
	cache->used_in = transaction;
	if (cache->context && outdated)
	{
		MemoryContextSetParent(cache->context, TopTransactionContext);
		cache->context = NULL;
	}
	if (cache->context == NULL)
		begin_cache(cache);
	entry = hash_search(cache->entries, name, HASH_FIND, NULL);
	return entry ? entry->value : load(kind, name);
}
