/*
 * policy.c
 *	  The policy of an operation, cached for the session.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "settings/settings.h"
#include "stats/stats.h"

static int64
integer_member(JsonbContainer *object, const char *name, int64 when_null)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(object, name, strlen(name), &value) == NULL ||
		value.type != jbvNumeric)
		return when_null;
	return DatumGetInt64(DirectFunctionCall1(numeric_int8, NumericGetDatum(value.val.numeric)));
}

/* Reads the stored horizons, an array of objects with until and length. */
static void
parse_horizons(Policy *policy, Jsonb *stored)
{
	policy->n_horizons = JB_ROOT_COUNT(stored);
	policy->horizons = palloc(policy->n_horizons * sizeof(Horizon));
	for (int i = 0; i < policy->n_horizons; i++)
	{
		JsonbValue *value = getIthJsonbValueFromContainer(&stored->root, i);

		if (value->type != jbvBinary || !JsonContainerIsObject(value->val.binary.data))
			elog(ERROR, "unexpected form of stored horizons");
		policy->horizons[i].until = integer_member(value->val.binary.data, "until", NEVER);
		policy->horizons[i].length = integer_member(value->val.binary.data, "length", NO_LIMIT);
	}
}

/* Reads and understands a policy; the result lives in context. */
static void *
load_policy(const char *operation, MemoryContext context)
{
	SettingsRow *everyone = settings_row_read(&operation_settings, EVERY_OPERATION);
	SettingsRow *own = settings_row_read(&operation_settings, operation);
	Jsonb	   *effective = settings_overlay(&operation_settings, everyone->settings, own->settings);
	Policy	   *policy;
	MemoryContext old = MemoryContextSwitchTo(context);

	effective = DatumGetJsonbPCopy(JsonbPGetDatum(effective));
	policy = settings_parse(effective, operation);
	/* an operation took over everyone's horizons when it was defined */
	parse_horizons(policy, own->stored ? own->horizons : everyone->horizons);
	policy->counters = counters_of(operation, own->stored);
	MemoryContextSwitchTo(old);
	return policy;
}

static SettingsCache policies = {TABLE_POLICY, load_policy, NULL};

/*
 * Returns the policy of an operation, valid until the current memory context
 * is reset.  Raises 22023 if the name is too long for an operation.
 */
const Policy *
policy_get(const char *operation)
{
	if (strlen(operation) > IDEM_TEXT_MAX * 4)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the name of an operation must not be longer than %d bytes",
						IDEM_TEXT_MAX)));
	return settings_cache_get(&policies, operation);
}

/*
 * Reads and compiles normalisation settings.  name has their version and, for
 * messages, an operation that uses it.  Raises XX001 if they are gone.
 */
static void *
load_normalisation(const char *name, MemoryContext context)
{
	char	   *operation;
	int64		version = strtoll(name, &operation, 10);
	Jsonb	   *settings = settings_row_version(version);
	MemoryContext old = MemoryContextSwitchTo(context);
	void	   *normalisation;

	operation++;
	if (settings == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("normalisation settings " INT64_FORMAT " of a record of operation \"%s\" are missing",
						version, operation),
				 errhint("They were deleted by hand. Restore them from a backup, or give the operation the settings it had then once more with idem_define(), which stores them.")));
	settings = DatumGetJsonbPCopy(JsonbPGetDatum(settings));
	normalisation = normalisation_compile(settings, operation);
	MemoryContextSwitchTo(old);
	return normalisation;
}

static SettingsCache normalisations = {TABLE_NORMALISATION, load_normalisation, NULL};

/*
 * Returns the normalisation of that version, which a record of the operation
 * was hashed under; valid like a Policy.
 */
const Normalisation *
policy_normalisation_version(int64 version, const char *operation)
{
	if (version == 0)
		return NULL;
	return settings_cache_get(&normalisations,
							  psprintf(INT64_FORMAT " %s", version, operation));
}
