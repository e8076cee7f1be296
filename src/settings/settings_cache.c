/*
 * settings_cache.c
 *	  What settings mean, kept for the session: of operations, destinations
 *	  and versions of the normalisation.
 *
 * A change of settings sends a relcache invalidation for their table when it
 * commits; every look-up takes in invalidations first, so that a change acts
 * on the next call of every session.
 *
 * A value is used while other code runs: a claim holds its policy while it
 * waits, while idem_run() runs the caller's function, and while a row with
 * hundreds of calls is computed.  Each of them may take in an invalidation or
 * fill the cache.  Therefore a value is pinned by the memory context that was
 * current when it was handed out, and freed once it is neither cached nor
 * pinned.  Errors need no care: they reset the context.
 *
 * With IDEMPOTENCY_DISCARD_SETTINGS defined every look-up empties the cache;
 * see test/README.md.
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "settings/settings.h"

/* Values kept; a caller that makes names up must not eat memory. */
#define MAX_CACHED 256

/* Lives in its own context, like all of its value. */
typedef struct CachedSettings
{
	MemoryContext context;
	void	   *value;
	int			pins;
	bool		is_cached;		/* there is an entry for it */
	MemoryContext pinned_by;	/* the last to do so; NULL = reset since */
} CachedSettings;

typedef struct CacheEntry
{
	char		name[IDEM_TEXT_MAX * 4 + 32];	/* hash key */
	CachedSettings *cached;
} CacheEntry;

typedef struct SettingsPin
{
	MemoryContextCallback callback;
	CachedSettings *cached;
	MemoryContext by;
} SettingsPin;

static void
free_unless_used(CachedSettings *cached)
{
	if (!cached->is_cached && cached->pins == 0)
		MemoryContextDelete(cached->context);
}

static void
unpin(void *arg)
{
	SettingsPin *pin = arg;

	Assert(pin->cached->pins > 0);
	pin->cached->pins--;
	if (pin->cached->pinned_by == pin->by)
		pin->cached->pinned_by = NULL;
	free_unless_used(pin->cached);
}

/* Keeps a value as long as the current memory context. */
static void
pin(CachedSettings *cached)
{
	SettingsPin *pin;

	if (cached->pinned_by == CurrentMemoryContext)
		return;
	pin = palloc(sizeof(SettingsPin));
	pin->callback.func = unpin;
	pin->callback.arg = pin;
	pin->cached = cached;
	pin->by = CurrentMemoryContext;
	cached->pins++;
	cached->pinned_by = CurrentMemoryContext;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &pin->callback);
}

static void
discard_all(SettingsCache *cache)
{
	HASH_SEQ_STATUS scan;
	CacheEntry *entry;

	hash_seq_init(&scan, cache->entries);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		CachedSettings *cached = entry->cached;

		hash_search(cache->entries, entry->name, HASH_REMOVE, NULL);
		cached->is_cached = false;
		free_unless_used(cached);
	}
}

/* Returns a new value, which is cached only when complete: loading may raise. */
static CachedSettings *
load(SettingsCache *cache, const char *name)
{
	/* sizes that AllocSetDelete() returns to malloc */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency settings",
												  0, 2 * 1024, 16 * 1024);
	CachedSettings *cached = MemoryContextAllocZero(context, sizeof(CachedSettings));
	CacheEntry *entry;

	cached->context = context;
	cached->value = cache->load(name, context);
	entry = hash_search(cache->entries, name, HASH_ENTER, NULL);
	MemoryContextSetParent(context, TopMemoryContext);
	cached->is_cached = true;
	entry->cached = cached;
	return cached;
}

/*
 * Returns what the settings of that name mean, valid until the current memory
 * context is reset.  Raises what loading them raises.
 */
const void *
settings_cache_get(SettingsCache *cache, const char *name)
{
	CacheEntry *entry;
	CachedSettings *cached;
	bool		changed;

	Assert(strlen(name) < sizeof(entry->name));
	if (cache->entries == NULL)
	{
		HASHCTL		ctl;

		ctl.keysize = sizeof(entry->name);
		ctl.entrysize = sizeof(CacheEntry);
		cache->entries = hash_create("idempotency settings", 16, &ctl,
									 HASH_ELEM | HASH_STRINGS);
	}
	changed = catalog_changed(cache->table);
#ifdef IDEMPOTENCY_DISCARD_SETTINGS
	changed = true;
#endif
	if (changed || hash_get_num_entries(cache->entries) >= MAX_CACHED)
		discard_all(cache);
	entry = hash_search(cache->entries, name, HASH_FIND, NULL);
	cached = entry ? entry->cached : load(cache, name);
	pin(cached);
	return cached->value;
}
