/*
 * destination.c
 *	  Destinations: where calls and events go, and the settings with which
 *	  they are tried; and when to try again.
 *
 * A destination is a name.  It need not be defined: then it has the defaults.
 * Unlike those of operations its settings say nothing about the past, so nothing
 * is kept of what was in force before.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/datum.h"

#include "settings/settings.h"

static void
read_relay(const SettingValue *given)
{
	static const char *const words[] = {"take", "log"};

	*(bool *) given->member = setting_one_of(given, words, 2) == 1;
}

#define AT(member) offsetof(Destination, member)

/* By name. */
static const Setting settings[] = {
	{"base", "\"1 s\"", setting_interval, AT(base), REFUSE_NULL, 0},
	{"breaker_cooldown", "\"30 s\"", setting_interval, AT(breaker_cooldown), REFUSE_NULL, 1},
	{"breaker_failures", "0.5", setting_share, AT(breaker_failures), NO_LIMIT, 1},
	{"breaker_window", "\"30 s\"", setting_interval, AT(breaker_window), REFUSE_NULL, 1},
	{"cap", "\"5 min\"", setting_interval, AT(cap), REFUSE_NULL, 0},
	{"deadline", "\"24 h\"", setting_interval, AT(deadline), NO_LIMIT, 1},
	{"max_attempts", "50", setting_integer, AT(max_attempts), NO_LIMIT, 1},
	{"max_event_bytes", "1048576", setting_integer, AT(max_event_bytes), REFUSE_NULL, 1},
	{"max_in_flight", "null", setting_integer, AT(max_in_flight), NO_LIMIT, 0},
	{"relay", "\"take\"", read_relay, AT(relay_from_log), REFUSE_NULL, 0},
	{"retention", "\"7 days\"", setting_interval, AT(retention), NO_LIMIT, 0},
	{"retry_budget", "0.2", setting_share, AT(retry_budget), NO_LIMIT, 0},
	{"role", "null", setting_role, AT(role), 0, 0},
	{"skip_dead_head", "true", setting_boolean, AT(skip_dead_head), REFUSE_NULL, 0},
};

static SettingsCache destinations = {NULL};

static void *load_destination(Jsonb *effective, const SettingsRow *own);
static void destination_store(Relation rel, SettingsRow *row, Jsonb *settings);

static const SettingsKind destination_settings = {
	"destination", "idem_destination_policy", "{\"max_attempts\": 10}",
	settings, lengthof(settings), TABLE_DESTINATION, 2, &destinations,
	load_destination, destination_store
};

/* Returns what effective settings mean.  Raises 22023 for a wrong value. */
static void *
load_destination(Jsonb *effective, const SettingsRow *own)
{
	Destination *destination = palloc0(sizeof(Destination));

	destination->name = pstrdup(own->name);
	destination->defined = own->stored;
	destination->settings = effective;
	settings_read(effective, destination, &destination_settings, own->name);
	return destination;
}

/* Returns a destination, defined or not.  settings_name() must have checked its name. */
const Destination *
destination_get(const char *name)
{
	return settings_get(&destination_settings, name);
}

/* Returns a name as settings_name() does; raises 22023 for * too. */
char *
destination_called(text *value)
{
	char	   *name = settings_name(&destination_settings, value);

	if (strcmp(name, EVERY_NAME) == 0)
		REFUSE_ARGUMENT(errmsg("destination \"%s\" stands for the defaults of all", name),
						errhint("Name the one destination that is called."));
	return name;
}

/* Raises 42501 unless the current user has the destination's role. */
void
destination_check_role(const Destination *destination)
{
	if (!access_has_role(destination->role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("not permitted to use destination \"%s\"", destination->name),
				 errhint("Setting \"role\" of the destination names the role whose members may use it.")));
}

/* Stores what settings are from now on.  Raises 22023. */
static void
destination_store(Relation rel, SettingsRow *row, Jsonb *settings)
{
	(void) load_destination(settings_overlay(&destination_settings, NULL, settings), row);
	row->settings = settings;
	settings_row_write(rel, &destination_settings, row);
}

SQL_FUNCTION(idem_destination_define)
{
	settings_change(fcinfo, &destination_settings, true, "idem_destination_define()");
	PG_RETURN_VOID();
}

SQL_FUNCTION(idem_destination_undefine)
{
	settings_change(fcinfo, &destination_settings, false, "idem_destination_undefine()");
	PG_RETURN_VOID();
}

SQL_FUNCTION(idem_destination_policy)
{
	char	   *name = settings_name(&destination_settings, ARG_TEXT(0));

	PG_RETURN_DATUM(datumCopy(JsonbPGetDatum(destination_get(name)->settings), false, -1));
}

/*
 * Full jitter: uniform in [0, min(cap, base * 2^attempt)], so that callers that failed
 * together do not come back together.  No argument is negative.
 */
int64
backoff_jitter(int32 attempt, int64 base, int64 cap)
{
	int64		bound = cap;

	/* base * 2^attempt <= cap, without the product overflowing */
	if (attempt < 63 && base <= cap >> attempt)
		bound = base << attempt;
	return (int64) pg_prng_uint64_range(&pg_global_prng_state, 0, (uint64) bound);
}

/*
 * When to try again after that many attempts: after a pause, or as much later as the
 * destination has asked for (microseconds, 0 = it has not).  False if attempts, or
 * the time since the first could have been made, are used up, or would be by then.
 */
bool
backoff_next(const Destination *destination, int32 attempts, TimestampTz since,
			 int64 asked, TimestampTz now, TimestampTz *again)
{
	int64		pause = backoff_jitter(Max(attempts - 1, 0), destination->base,
									   destination->cap);

	if (destination->max_attempts != NO_LIMIT && attempts >= destination->max_attempts)
		return false;
	*again = clock_after(now, Max(pause, asked));
	return destination->deadline == NO_LIMIT ||
		*again <= clock_after(since, destination->deadline);
}
