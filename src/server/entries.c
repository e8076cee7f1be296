/*
 * entries.c
 *	  Entries in shared memory, each of which belongs to a name of a database.
 *
 * A table has a fixed number of entries for all databases together.  Its lock
 * protects which entry is whose; what else is in an entry is its owner's business.
 *
 * When there is no free entry, one is given away.  Names that are defined come
 * first: one of them takes the entry of an undefined one even while that is in
 * use, and loses its own only to another defined one, when it is at rest.  An
 * undefined one takes only the entry of an undefined one at rest.  So names made
 * up by a caller cannot push out those that are defined, whichever database they
 * are of.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "server/server.h"

void
entries_attach(EntryTable *table, void *memory, int n)
{
	table->entries = memory;
	table->n = n;
}

SharedEntry *
entries_at(const EntryTable *table, int i)
{
	return (SharedEntry *) (table->entries + (Size) i * table->entry_size);
}

static uint32
hash_of(const char *name)
{
	return hash_bytes((const unsigned char *) name, strlen(name));
}

/* Returns the entry of a name, or NULL.  The caller must hold the table's lock. */
SharedEntry *
entries_find(const EntryTable *table, const char *name)
{
	uint32		hash = hash_of(name);

	Assert(LWLockHeldByMe(shared_lock(table->lock)));
	for (int i = 0; i < table->n; i++)
	{
		SharedEntry *entry = entries_at(table, (hash + i) % table->n);

		if (entry->hash == hash && entry->database == MyDatabaseId &&
			strcmp(entry->name, name) == 0)
			return entry;
	}
	return NULL;
}

/* Returns the rank of an entry that may be given away: the lowest goes first, a negative stays. */
static int
rank_of(const EntryTable *table, const SharedEntry *entry, bool for_defined)
{
	bool		at_rest;

	if (!OidIsValid(entry->database))
		return 0;
	at_rest = table->at_rest(entry);
	if (!entry->defined && (at_rest || for_defined))
		return at_rest ? 1 : 2;
	return for_defined && at_rest ? 3 : -1;
}

/* Returns the entry to give away, of equal rank the one longest not used; NULL if none. */
static SharedEntry *
choose(const EntryTable *table, uint32 hash, bool for_defined)
{
	SharedEntry *chosen = NULL;
	int			best = 0;

	for (int i = 0; i < table->n; i++)
	{
		SharedEntry *entry = entries_at(table, (hash + i) % table->n);
		int			rank = rank_of(table, entry, for_defined);

		if (rank == 0)
			return entry;
		if (rank > 0 && (chosen == NULL || rank < best ||
						 (rank == best && entry->used_at < chosen->used_at)))
		{
			chosen = entry;
			best = rank;
		}
	}
	return chosen;
}

/*
 * Returns the entry of a name, made if need be; NULL if there is none to give.  The
 * caller must hold the table's lock exclusively.
 */
SharedEntry *
entries_get(const EntryTable *table, const char *name, bool defined)
{
	uint32		hash = hash_of(name);
	SharedEntry *entry = entries_find(table, name);

	Assert(LWLockHeldByMeInMode(shared_lock(table->lock), LW_EXCLUSIVE));
	if (entry || strlen(name) >= sizeof(entry->name))
		return entry;
	entry = choose(table, hash, defined);
	if (entry == NULL)
		return NULL;
	table->clear(entry);
	entry->generation++;
	entry->hash = hash;
	strlcpy(entry->name, name, sizeof(entry->name));
	entry->database = MyDatabaseId;
	return entry;
}

/*
 * Returns the entry of a name of this database, made if need be, with the
 * table's lock held until entries_unlock(), so that it stays whose it is.  NULL,
 * and nothing held, if there is none.
 */
SharedEntry *
entries_lock(const EntryTable *table, const char *name, bool defined)
{
	SharedEntry *entry;

	LWLockAcquire(shared_lock(table->lock), LW_SHARED);
	entry = entries_find(table, name);
	if (entry == NULL)
	{
		LWLockRelease(shared_lock(table->lock));
		LWLockAcquire(shared_lock(table->lock), LW_EXCLUSIVE);
		entry = entries_get(table, name, defined);
	}
	if (entry)
		entry->defined = defined;
	else
		LWLockRelease(shared_lock(table->lock));
	return entry;
}

void
entries_unlock(const EntryTable *table)
{
	LWLockRelease(shared_lock(table->lock));
}

/* Returns a copy of all entries, as they are while none is held locked. */
char *
entries_copy(const EntryTable *table)
{
	Size		size = table->n * table->entry_size;
	char	   *copy = palloc(size);

	LWLockAcquire(shared_lock(table->lock), LW_EXCLUSIVE);
	memcpy(copy, table->entries, size);
	entries_unlock(table);
	return copy;
}

/* Frees the entries of databases that are gone. */
void
entries_forget(const EntryTable *table, const List *databases)
{
	LWLockAcquire(shared_lock(table->lock), LW_EXCLUSIVE);
	for (int i = 0; i < table->n; i++)
	{
		if (list_member_oid(databases, entries_at(table, i)->database))
			entries_at(table, i)->database = InvalidOid;
	}
	entries_unlock(table);
}
