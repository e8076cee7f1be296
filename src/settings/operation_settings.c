/*
 * operation_settings.c
 *	  The settings of an operation: their names, defaults, and meaning, its
 *	  policy.
 *
 * Settings travel as one jsonb object, the built-in defaults too.  Everything is
 * checked when it is defined, not when a customer claims.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "settings/settings.h"
#include "stats/stats.h"

static void
read_on_lease_expiry(const SettingValue *given)
{
	static const char *const words[] = {"reconcile", "retry"};

	*(bool *) given->member = setting_one_of(given, words, 2) == 1;
}

static void
read_key_format(const SettingValue *given)
{
	static const char *const words[] = {"any", "uuid", "uuidv7", "ulid"};

	*(KeyFormat *) given->member = (KeyFormat) setting_one_of(given, words, 4);
}

#define AT(member) offsetof(Policy, member)

/* By name.  What is read by none is normalise.c's. */
static const Setting settings[] = {
	{"clock_skew", "\"5 min\"", setting_interval, AT(clock_skew), REFUSE_NULL, 0},
	{"deadline", "null", setting_interval, AT(deadline), NO_LIMIT, 1},
	{"defaults", "{}", NULL, 0, 0, 0},
	{"error_pointer", "null", setting_pointer, AT(error_pointer), 0, 0},
	{"fields", "null", NULL, 0, 0, 0},
	{"guard", "\"0\"", setting_interval, AT(guard), REFUSE_NULL, 0},
	{"ignore", "[]", NULL, 0, 0, 0},
	{"key_format", "\"any\"", read_key_format, AT(key_format), REFUSE_NULL, 0},
	{"lease", "null", setting_interval, AT(lease), 0, 0},
	{"log_requests", "false", setting_boolean, AT(log_requests), REFUSE_NULL, 0},
	{"max_attempts", "null", setting_integer, AT(max_attempts), NO_LIMIT, 1},
	{"max_lease", "\"1 day\"", setting_interval, AT(max_lease), NO_LIMIT, 1},
	{"max_params_bytes", "1048576", setting_integer, AT(max_params_bytes), REFUSE_NULL, 1},
	{"max_result_bytes", "1048576", setting_integer, AT(max_result_bytes), REFUSE_NULL, 1},
	{"numbers", "\"exact\"", NULL, 0, 0, 0},
	{"on_lease_expiry", "\"reconcile\"", read_on_lease_expiry, AT(retry_on_lease_expiry), REFUSE_NULL, 0},
	{"principal_setting", "null", setting_string, AT(principal_setting), 0, 0},
	{"reconcile_attempts", "20", setting_integer, AT(reconcile_attempts), REFUSE_NULL, 0},
	{"require_params", "false", setting_boolean, AT(require_params), REFUSE_NULL, 0},
	{"resource_pointer", "null", setting_pointer, AT(resource_pointer), 0, 0},
	{"retention", "\"24 h\"", setting_interval, AT(retention), NO_LIMIT, 0},
	{"retry_after", "\"1 s\"", setting_interval, AT(retry_after), REFUSE_NULL, 1},
	{"role", "null", setting_role, AT(role), 0, 0},
	{"store_result", "true", setting_boolean, AT(store_result), REFUSE_NULL, 0},
	{"unordered", "[]", NULL, 0, 0, 0},
	{"wait", "\"0\"", setting_interval, AT(wait), REFUSE_NULL, 0},
};

static SettingsCache policies = {NULL};

static void *load_policy(Jsonb *effective, const SettingsRow *own);

const SettingsKind operation_settings = {
	"operation", "idem_policy", "{\"retention\": \"7 days\"}",
	settings, lengthof(settings), TABLE_POLICY, 3, &policies, load_policy, operation_store
};

/* Returns the members that decide how params are hashed and are not built in, or NULL. */
Jsonb *
settings_normalisation(Jsonb *effective)
{
	JsonbParseState *state = NULL;
	JsonbValue *object;
	bool		any = false;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < lengthof(settings); i++)
	{
		const char *name = settings[i].name;
		JsonbValue	item;

		if (settings[i].read)
			continue;
		if (!json_find(effective, name, &item))
			elog(ERROR, "setting \"%s\" is missing", name);
		if (compareJsonbContainers(&JsonbValueToJsonb(&item)->root,
								   &json_parse(settings[i].built_in)->root) == 0)
			continue;
		json_push(&state, name, &item);
		any = true;
	}
	object = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	return any ? JsonbValueToJsonb(object) : NULL;
}

/*
 * Returns the number of normalisation settings: their digest, so that it is the
 * same in every database, and records can be dumped, restored and compared.
 */
int64
settings_normalisation_version(Jsonb *normalisation)
{
	uint8		digest[IDEM_DIGEST_LEN];
	int64		version = 0;

	if (normalisation == NULL)
		return 0;
	canonical_fingerprint(normalisation, NULL, digest);
	for (int i = 0; i < 8; i++)
		version = (int64) (((uint64) version << 8) | digest[i]);
	return version == 0 ? 1 : version;
}

/* Returns what effective settings mean.  Raises 22023 for a wrong value. */
Policy *
settings_parse(Jsonb *effective, const char *operation)
{
	Policy	   *policy = palloc0(sizeof(Policy));
	Jsonb	   *normalisation = settings_normalisation(effective);

	settings_read(effective, policy, &operation_settings, operation);
	policy->settings = effective;
	policy->normalisation_version = settings_normalisation_version(normalisation);
	if (normalisation)
		policy->normalisation = normalisation_compile(normalisation, operation);
	return policy;
}

/* Returns how long an operation remembers a key now. */
int64
settings_horizon(const Policy *policy)
{
	return policy->retention == NO_LIMIT ? NO_LIMIT :
		policy->retention + policy->guard;
}

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
read_horizons(Policy *policy, Jsonb *stored)
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

static void *
load_policy(Jsonb *effective, const SettingsRow *own)
{
	Policy	   *policy = settings_parse(effective, own->name);

	read_horizons(policy, own->horizons);
	policy->counters = counters_of(own->name, own->stored);
	return policy;
}

/* Returns the policy of an operation.  The caller must have checked the name. */
const Policy *
policy_get(const char *operation)
{
	return settings_get(&operation_settings, operation);
}

/* Returns what a record was hashed under; NULL for version 0.  Raises XX001 if it is gone. */
const Normalisation *
policy_normalisation_version(int64 version, const char *operation)
{
	Jsonb	   *settings = version == 0 ? NULL : settings_row_version(version);

	if (version != 0 && settings == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("normalisation settings " INT64_FORMAT " of a record of operation \"%s\" are missing",
						version, operation),
				 errhint("They were deleted by hand. Restore them from a backup, or give the operation the settings it had then once more with idem_define(), which stores them.")));
	return settings ? normalisation_compile(settings, operation) : NULL;
}
