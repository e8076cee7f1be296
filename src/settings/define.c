/*
 * define.c
 *	  idem_define, idem_undefine and idem_policy: changing and showing settings.
 *
 * A lock on the policy table, kept to the end of the transaction, makes
 * definitions follow each other, and keeps purge away until this one is
 * committed.  The time at which the old horizon ends is taken under the lock: if
 * purge went on forgetting by it after that, a key made later would be forgotten
 * and not be known to be late.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/inval.h"

#include "settings/settings.h"

/* What an operation's own settings over those of operation * come to. */
typedef struct InForce
{
	const SettingsRow *own;
	Jsonb	   *everyone;		/* NULL for * itself */
	const Policy *policy;		/* by understand() */
} InForce;

/* Raises 22023 or XX001 if the settings cannot be understood. */
static void
understand(void *arg)
{
	InForce    *in_force = arg;

	settings_row_check(&operation_settings, in_force->own);
	in_force->policy = settings_parse(settings_overlay(&operation_settings, in_force->everyone,
													   in_force->own->settings),
									  in_force->own->name);
}

/*
 * Writes what follows for an operation from a change of what is in force: a
 * horizon that has ended, which read_horizons() reads, and the version of its
 * normalisation.
 */
static void
follow(Relation rel, SettingsRow *row, const InForce *before, const InForce *after, bool changed)
{
	int64		horizon = settings_horizon(before->policy);
	bool		ended = settings_horizon(after->policy) != horizon;
	char	   *past;

	if (ended)
	{
		past = psprintf("[{\"until\": " INT64_FORMAT ", \"length\": %s}]", GetCurrentTimestamp(),
						horizon == NO_LIMIT ? "null" : psprintf(INT64_FORMAT, horizon));
		row->horizons = json_concatenate(row->horizons, json_parse(past));
	}
	if (ended || changed)
		settings_row_write(rel, &operation_settings, row);
	settings_row_keep_version(settings_normalisation(after->policy->settings));
}

/*
 * Applies a change of operation * to all that have settings of their own.  One
 * whose settings, changed by hand, cannot be understood is left alone: its own
 * calls raise that, and it must not keep others from being defined.
 */
static void
follow_everyone(Relation rel, Jsonb *old, Jsonb *new)
{
	ListCell   *lc;

	foreach(lc, settings_row_all(rel, &operation_settings))
	{
		SettingsRow *row = lfirst(lc);
		InForce		before = {.own = row,.everyone = old};
		InForce		after = {.own = row,.everyone = new};

		if (strcmp(row->name, EVERY_NAME) == 0 || subtransaction_try(understand, &before))
			continue;
		understand(&after);
		follow(rel, row, &before, &after, false);
	}
}

/*
 * Stores the settings an operation has of its own from now on; row is what they
 * were.  The caller must hold the lock.  Raises 22023.
 */
void
operation_store(Relation rel, SettingsRow *row, Jsonb *settings)
{
	bool		everyone = strcmp(row->name, EVERY_NAME) == 0;
	SettingsRow *defaults = everyone ? NULL :
	settings_row_read(&operation_settings, EVERY_NAME);
	SettingsRow old = *row;
	InForce		before = {.own = &old,.everyone = defaults ? defaults->settings : NULL};
	InForce		after = {.own = row,.everyone = before.everyone};

	/* the horizons of what was in force for it so far are its past too */
	if (!row->stored && defaults)
		row->horizons = defaults->horizons;
	understand(&before);
	row->settings = settings;
	understand(&after);
	if (after.policy->max_lease != NO_LIMIT && after.policy->lease > after.policy->max_lease)
		REFUSE_ARGUMENT(errmsg("setting \"lease\" of operation \"%s\" is longer than setting \"max_lease\"",
							   row->name),
						errhint("Give a shorter lease, or define a longer max_lease with it."));
	follow(rel, row, &before, &after, true);
	if (everyone)
		follow_everyone(rel, old.settings, settings);
}

/*
 * Returns the name given for an operation or destination.  Raises 22023 if it is
 * null, empty, longer than 255 bytes of UTF-8 or not valid text.
 */
char *
settings_name(const SettingsKind *kind, text *value)
{
	char	   *name;

	if (value == NULL)
		REFUSE_ARGUMENT(errmsg("%s must not be null", kind->noun),
						errhint("Pass its name; * stands for the defaults of all %ss.", kind->noun));
	name = text_to_cstring(value);
	identity_check_text(name, kind->noun);
	return name;
}

static void
refuse_unless_setting(const char *name, const SettingsKind *kind, const char *of)
{
	for (int i = 0; i < kind->n; i++)
	{
		if (strcmp(kind->settings[i].name, name) == 0)
			return;
	}
	REFUSE_ARGUMENT(errmsg("there is no setting \"%s\" for %s \"%s\"",
						   name, kind->noun, of),
					errhint("%s() shows all settings.", kind->shown_by));
}

static void
refuse_unknown_members(Jsonb *given, const SettingsKind *kind, const char *of)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (!JB_ROOT_IS_OBJECT(given))
		REFUSE_ARGUMENT(errmsg("settings of %s \"%s\" must be a JSON object",
							   kind->noun, of),
						errhint("Pass an object such as %s.", kind->example));
	it = JsonbIteratorInit(&given->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			refuse_unless_setting(json_scalar_text(&value), kind, of);
	}
}

static void
refuse_unknown_names(ArrayType *names, const SettingsKind *kind, const char *of)
{
	Datum	   *elements;
	bool	   *nulls;
	int			count;

	if (ARR_NDIM(names) > 1)
		REFUSE_ARGUMENT(errmsg("names of settings of %s \"%s\" must be a list of one dimension",
							   kind->noun, of),
						errhint("Pass names such as {retention,guard}."));
	deconstruct_array(names, TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			REFUSE_ARGUMENT(errmsg("names of settings of %s \"%s\" must not be null",
								   kind->noun, of),
							errhint("Pass names, or NULL instead of the array for all settings."));
		refuse_unless_setting(TextDatumGetCString(elements[i]), kind, of);
	}
}

/*
 * Changes settings of the name in argument 0: defines those of an object or, if
 * not so asked, takes away those of a list of names, NULL for all.  The lock makes
 * definitions follow each other.  Raises 22023, 25006.
 */
void
settings_change(FunctionCallInfo fcinfo, const SettingsKind *kind, bool define,
				const char *function)
{
	char	   *name = settings_name(kind, ARG_TEXT(0));
	Relation	rel;
	SettingsRow *row;
	Jsonb	   *after;

	if (define && PG_ARGISNULL(1))
		REFUSE_ARGUMENT(errmsg("settings of %s \"%s\" must not be null", kind->noun, name),
						errhint("Pass an object such as %s.", kind->example));
	if (define)
		refuse_unknown_members(PG_GETARG_JSONB_P(1), kind, name);
	else if (!PG_ARGISNULL(1))
		refuse_unknown_names(PG_GETARG_ARRAYTYPE_P(1), kind, name);
	call_require_writable(function);
	rel = catalog_open(kind->table, ShareRowExclusiveLock);
	row = settings_row_read(kind, name);
	if (define)
		after = json_concatenate(row->settings, PG_GETARG_JSONB_P(1));
	else if (!PG_ARGISNULL(1))
		after = DatumGetJsonbP(DirectFunctionCall2(jsonb_delete_array, JsonbPGetDatum(row->settings),
												   PG_GETARG_DATUM(1)));
	else
		after = json_parse("{}");
	if (row->stored || define)
		kind->store(rel, row, after);
	CacheInvalidateRelcache(rel);
	table_close(rel, NoLock);
}

SQL_FUNCTION(idem_define)
{
	settings_change(fcinfo, &operation_settings, true, "idem_define()");
	PG_RETURN_VOID();
}

SQL_FUNCTION(idem_undefine)
{
	settings_change(fcinfo, &operation_settings, false, "idem_undefine()");
	PG_RETURN_VOID();
}

SQL_FUNCTION(idem_policy)
{
	char	   *operation = settings_name(&operation_settings, ARG_TEXT(0));
	const Policy *policy = policy_get(operation);

	access_check_role(policy, operation);
	PG_RETURN_DATUM(datumCopy(JsonbPGetDatum(policy->settings), false, -1));
}
