/*-------------------------------------------------------------------------
 *
 * destination.c
 *	  Destinations: where calls and events go, and the settings with which
 *	  they are tried, cached for the session.
 *
 * A destination is a name.  It need not be defined: then it has the defaults,
 * those of destination * over the built-in ones.
 *
 * Settings are stored, read and changed the way those of operations are
 * (policy.c, define.c): read through a dirty look-up, so that they are part of
 * nobody's snapshot and make no transactions conflict; changed under a lock of
 * the table that makes definitions follow each other; and a relcache
 * invalidation, sent when the change commits and taken in at the beginning of
 * each call, makes them act on the next call of every session.  Unlike those
 * of operations they say nothing about the past, so nothing is kept of what
 * was in force before.
 *
 * A Destination handed out stays valid until the next destination_get().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "compat.h"
#include "delivery.h"
#include "settings.h"

PG_FUNCTION_INFO_V1(idem_destination_define);
PG_FUNCTION_INFO_V1(idem_destination_policy);

/* Destinations remembered; a caller that makes names up must not eat memory. */
#define MAX_CACHED 256

typedef struct CachedDestination
{
	char		name[IDEM_TEXT_MAX * 4 + 1];	/* hash key, zero-padded */
	Destination *destination;
} CachedDestination;

static MemoryContext cache_context = NULL;
static HTAB *destinations = NULL;

static const char *const built_in_settings =
"{\"base\": \"1 s\","
" \"cap\": \"5 min\","
" \"max_attempts\": 50,"
" \"deadline\": \"24 h\","
" \"retry_budget\": 0.2,"
" \"breaker_failures\": 0.5,"
" \"breaker_window\": \"30 s\","
" \"breaker_cooldown\": \"30 s\","
" \"max_in_flight\": null,"
" \"retention\": \"7 days\","
" \"skip_dead_head\": true}";

#define AT(member) offsetof(Destination, member)

/* By name. */
static const Setting settings[] = {
	{"base", setting_interval, AT(base), REFUSE_NULL, 0},
	{"breaker_cooldown", setting_interval, AT(breaker_cooldown), REFUSE_NULL, 1},
	{"breaker_failures", setting_share, AT(breaker_failures), NO_LIMIT, 1},
	{"breaker_window", setting_interval, AT(breaker_window), REFUSE_NULL, 1},
	{"cap", setting_interval, AT(cap), REFUSE_NULL, 0},
	{"deadline", setting_interval, AT(deadline), NO_LIMIT, 1},
	{"max_attempts", setting_integer, AT(max_attempts), NO_LIMIT, 1},
	{"max_in_flight", setting_integer, AT(max_in_flight), NO_LIMIT, 0},
	{"retention", setting_interval, AT(retention), NO_LIMIT, 0},
	{"retry_budget", setting_share, AT(retry_budget), NO_LIMIT, 0},
	{"skip_dead_head", setting_boolean, AT(skip_dead_head), REFUSE_NULL, 0},
};

static SettingsOf
settings_of(const char *name)
{
	return (SettingsOf)
	{
		"destination", name, "idem_destination_policy"
	};
}

/*
 * Understand effective settings; allocated in the current memory context.
 * Raises 22023 if a value is not what its setting takes.
 */
static Destination *
parse(const char *name, Jsonb *effective)
{
	Destination *destination = palloc0(sizeof(Destination));
	SettingsOf	of = settings_of(name);

	destination->name = pstrdup(name);
	destination->settings = DatumGetJsonbPCopy(JsonbPGetDatum(effective));
	settings_read(settings, lengthof(settings), destination->settings,
				  destination, &of);
	return destination;
}

/*
 * The row of a destination, NULL if it has none; *rel is left open for reading
 * it.
 */
static HeapTuple
find_row(const char *name, Relation *rel)
{
	return stored_row(TABLE_DESTINATION, F_TEXTEQ, CStringGetTextDatum(name), rel);
}

/*
 * The settings stored for a destination; NULL if there are none.
 */
static Jsonb *
read_settings(const char *name)
{
	Relation	rel;
	HeapTuple	tuple = find_row(name, &rel);
	Jsonb	   *stored = tuple ? stored_jsonb(tuple, 2, rel, false) : NULL;

	table_close(rel, NoLock);
	return stored;
}

/*
 * Drop what is cached if any destination changed or there is too much of it.
 */
static void
cache_refresh(void)
{
	HASHCTL		ctl;

	if (!catalog_changed(TABLE_DESTINATION) && destinations &&
		hash_get_num_entries(destinations) < MAX_CACHED)
		return;

	if (cache_context == NULL)
		cache_context = AllocSetContextCreate(TopMemoryContext,
											  "idempotency destinations",
											  ALLOCSET_DEFAULT_SIZES);
	destinations = NULL;
	MemoryContextReset(cache_context);

	ctl.keysize = sizeof(((CachedDestination *) NULL)->name);
	ctl.entrysize = sizeof(CachedDestination);
	ctl.hcxt = cache_context;
	destinations = hash_create("idempotency destinations", 16, &ctl,
							   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/*
 * The destination of that name, which destination_name() has checked, defined
 * or not.
 */
const Destination *
destination_get(const char *name)
{
	CachedDestination *entry;
	Destination *destination;
	Jsonb	   *effective;
	MemoryContext old;

	cache_refresh();
	entry = hash_search(destinations, name, HASH_FIND, NULL);
	if (entry)
		return entry->destination;

	/* enter it only when complete: loading may raise */
	effective = settings_overlay(built_in_settings, read_settings(EVERY_DESTINATION),
								 read_settings(name));
	old = MemoryContextSwitchTo(cache_context);
	destination = parse(name, effective);
	MemoryContextSwitchTo(old);
	entry = hash_search(destinations, name, HASH_ENTER, NULL);
	entry->destination = destination;
	return destination;
}

/*
 * The name of a destination given as an argument, NULL for SQL NULL.  Raises
 * 22023 if it is null, empty, longer than 255 bytes of UTF-8 or not valid text.
 */
char *
destination_name(text *value)
{
	char	   *name;

	if (value == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("destination must not be null"),
				 errhint("Pass the name of what is called; * stands for the defaults of all destinations.")));
	name = text_to_cstring(value);
	identity_check_text(name, "destination");
	return name;
}

/*
 * The name of the one destination that is to be called.  Raises 22023 as
 * destination_name() does, and for *, which nobody can send to.
 */
char *
destination_called(text *value)
{
	char	   *name = destination_name(value);

	if (strcmp(name, EVERY_DESTINATION) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("destination \"%s\" stands for the defaults of all", name),
				 errhint("Name the one destination that is called.")));
	return name;
}

/*
 * Store settings of a destination over those it has.  The caller holds the
 * lock that makes definitions follow each other.
 */
static void
define(Relation rel, const char *name, Jsonb *given)
{
	Relation	again;
	HeapTuple	found = find_row(name, &again);
	Jsonb	   *own = found ? json_concatenate(stored_jsonb(found, 2, rel, false), given) : given;
	Datum		values[2] = {CStringGetTextDatum(name), JsonbPGetDatum(own)};
	bool		nulls[2] = {false};
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);

	(void) parse(name, settings_overlay(built_in_settings, NULL, own));
	if (found ?
		rows_update(rel, &found->t_self, tuple, true) != ROW_CHANGED :
		!rows_insert(rel, tuple))
		elog(ERROR, "settings of destination \"%s\" were changed by another hand", name);
	table_close(again, NoLock);
}

/*
 * idem_destination_define(destination, settings)
 */
Datum
idem_destination_define(PG_FUNCTION_ARGS)
{
	char	   *name = destination_name(ARG_TEXT(0));
	SettingsOf	of = settings_of(name);
	Jsonb	   *given;
	Relation	rel;

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("settings of destination \"%s\" must not be null", name),
				 errhint("Pass an object such as {\"max_attempts\": 10}.")));
	given = PG_GETARG_JSONB_P(1);
	settings_refuse_unknown(settings, lengthof(settings), given, &of);
	refuse_unless_writable("idem_destination_define()");

	rel = catalog_open(TABLE_DESTINATION, ShareRowExclusiveLock);
	define(rel, name, given);
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

/*
 * idem_destination_policy(destination)
 */
Datum
idem_destination_policy(PG_FUNCTION_ARGS)
{
	char	   *name = destination_name(ARG_TEXT(0));

	PG_RETURN_JSONB_P(destination_get(name)->settings);
}
