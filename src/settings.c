/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings of an operation: their names, defaults, and meaning.
 *
 * Settings travel as one jsonb object.  The built-in defaults are such an
 * object too, so there is one way to read a value, wherever it came from.
 * Everything is checked when it is defined, not when a customer claims.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "settings.h"

static const char *const built_in_settings =
"{\"retention\": \"24 h\","
" \"guard\": \"0\","
" \"lease\": null,"
" \"on_lease_expiry\": \"reconcile\","
" \"max_attempts\": null,"
" \"deadline\": null,"
" \"reconcile_attempts\": 20,"
" \"wait\": \"0\","
" \"retry_after\": \"1 s\","
" \"defaults\": {},"
" \"fields\": null,"
" \"ignore\": [],"
" \"unordered\": [],"
" \"numbers\": \"exact\","
" \"key_format\": \"any\","
" \"clock_skew\": \"5 min\","
" \"role\": null,"
" \"principal_setting\": null,"
" \"require_params\": false,"
" \"max_params_bytes\": 1048576,"
" \"max_result_bytes\": 1048576,"
" \"log_requests\": false,"
" \"resource_pointer\": null}";

static void
read_on_lease_expiry(const Setting *self, const JsonbValue *value,
					 void *target, const SettingsOf *of)
{
	static const char *const words[] = {"reconcile", "retry"};

	((Policy *) target)->retry_on_lease_expiry = setting_one_of(self, value, of, words, 2) == 1;
}

static void
read_key_format(const Setting *self, const JsonbValue *value, void *target, const SettingsOf *of)
{
	static const char *const words[] = {"any", "uuid", "uuidv7", "ulid"};

	((Policy *) target)->key_format = (KeyFormat) setting_one_of(self, value, of, words, 4);
}

/*
 * Part of the normalisation, which canonical.c reads as a whole.
 */
static void
read_normalisation(const Setting *self, const JsonbValue *value,
				   void *target, const SettingsOf *of)
{
}

#define AT(member) offsetof(Policy, member)

/* By name. */
static const Setting settings[] = {
	{"clock_skew", setting_interval, AT(clock_skew), REFUSE_NULL, 0},
	{"deadline", setting_interval, AT(deadline), NO_LIMIT, 1},
	{"defaults", read_normalisation, 0, 0, 0},
	{"fields", read_normalisation, 0, 0, 0},
	{"guard", setting_interval, AT(guard), REFUSE_NULL, 0},
	{"ignore", read_normalisation, 0, 0, 0},
	{"key_format", read_key_format, 0, REFUSE_NULL, 0},
	{"lease", setting_interval, AT(lease), 0, 0},
	{"log_requests", setting_boolean, AT(log_requests), REFUSE_NULL, 0},
	{"max_attempts", setting_integer, AT(max_attempts), NO_LIMIT, 1},
	{"max_params_bytes", setting_integer, AT(max_params_bytes), REFUSE_NULL, 1},
	{"max_result_bytes", setting_integer, AT(max_result_bytes), REFUSE_NULL, 1},
	{"numbers", read_normalisation, 0, 0, 0},
	{"on_lease_expiry", read_on_lease_expiry, 0, REFUSE_NULL, 0},
	{"principal_setting", setting_string, AT(principal_setting), 0, 0},
	{"reconcile_attempts", setting_integer, AT(reconcile_attempts), REFUSE_NULL, 0},
	{"require_params", setting_boolean, AT(require_params), REFUSE_NULL, 0},
	{"resource_pointer", setting_pointer, AT(resource_pointer), 0, 0},
	{"retention", setting_interval, AT(retention), NO_LIMIT, 0},
	{"retry_after", setting_interval, AT(retry_after), REFUSE_NULL, 1},
	{"role", setting_string, AT(role), 0, NAMEDATALEN},
	{"unordered", read_normalisation, 0, 0, 0},
	{"wait", setting_interval, AT(wait), REFUSE_NULL, 0},
};

/*
 * Built-in defaults, overlaid with those given for every operation and with
 * the operation's own.  Either may be NULL.
 */
Jsonb *
settings_effective(Jsonb *everyone, Jsonb *own)
{
	return settings_overlay(built_in_settings, everyone, own);
}

static SettingsOf
settings_of(const char *operation)
{
	return (SettingsOf)
	{
		"operation", operation, "idem_policy"
	};
}

/*
 * The value of a member as a jsonb of its own.  The member must be there.
 */
static Jsonb *
member_value(Jsonb *object, const char *name)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&object->root, name, strlen(name),
									 &value) == NULL)
		elog(ERROR, "setting \"%s\" is missing", name);
	return JsonbValueToJsonb(&value);
}

/*
 * The members of effective that decide how params are hashed, without those
 * that have their built-in value; NULL if none is left.
 */
Jsonb *
settings_normalisation(Jsonb *effective)
{
	JsonbParseState *state = NULL;
	JsonbValue *object;
	Jsonb	   *built_in = settings_effective(NULL, NULL);
	bool		any = false;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < lengthof(settings); i++)
	{
		const char *name = settings[i].name;
		Jsonb	   *value;
		JsonbValue	item;

		if (settings[i].read != read_normalisation)
			continue;
		value = member_value(effective, name);
		if (compareJsonbContainers(&value->root,
								   &member_value(built_in, name)->root) == 0)
			continue;
		getKeyJsonValueFromContainer(&effective->root, name, strlen(name), &item);
		json_push(&state, name, &item);
		any = true;
	}
	object = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	return any ? JsonbValueToJsonb(object) : NULL;
}

/*
 * Number of a set of normalisation settings: a digest of the set itself, so
 * that the same settings have the same number in every database, and a record
 * can be dumped, restored and compared.
 */
int64
settings_normalisation_version(Jsonb *normalisation)
{
	uint8		digest[IDEM_DIGEST_LEN];
	int64		version = 0;

	if (normalisation == NULL)
		return 0;
	canonical_fingerprint(normalisation, NULL, 0, digest);
	for (int i = 0; i < 8; i++)
		version = (int64) (((uint64) version << 8) | digest[i]);
	return version == 0 ? 1 : version;
}

/*
 * The policy an effective settings object describes, allocated in the current
 * memory context.  Raises 22023 if a value is not what its setting takes.
 */
Policy *
settings_parse(Jsonb *effective, const char *operation)
{
	Policy	   *policy = palloc0(sizeof(Policy));
	SettingsOf	of = settings_of(operation);
	Jsonb	   *normalisation;

	settings_read(settings, lengthof(settings), effective, policy, &of);
	policy->settings = effective;
	normalisation = settings_normalisation(effective);
	policy->normalisation_version = settings_normalisation_version(normalisation);
	if (normalisation)
		policy->normalisation = normalisation_compile(normalisation, operation);
	return policy;
}

/*
 * Raise 22023 unless given is an object of known settings.  Their values are
 * checked by settings_parse.
 */
void
settings_check_names(Jsonb *given, const char *operation)
{
	SettingsOf	of = settings_of(operation);

	settings_refuse_unknown(settings, lengthof(settings), given, &of);
}
