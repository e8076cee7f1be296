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

#include <limits.h>
#include <math.h>

#include "utils/builtins.h"
#include "utils/numeric.h"

#include "compat.h"
#include "idempotency.h"

/* A thousand years: far enough, and no sum with a clock can overflow. */
#define LONGEST_INTERVAL (INT64CONST(366000) * USECS_PER_DAY)

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

typedef struct Setting
{
	const char *name;
	void		(*read) (const struct Setting *self, const JsonbValue *value,
						 Policy *policy, const char *operation);
	size_t		offset;			/* of the member of Policy */
	int64		when_null;		/* value of JSON null; REFUSE_NULL = not
								 * allowed */
	int64		least;			/* smallest number or interval allowed */
} Setting;

#define REFUSE_NULL PG_INT64_MIN

static void
refuse(const Setting *self, const char *operation, const char *expected)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("setting \"%s\" of operation \"%s\" must be %s",
					self->name, operation, expected),
			 errhint("idem_policy() shows the settings in force.")));
}

static void *
member(const Setting *self, Policy *policy)
{
	return (char *) policy + self->offset;
}

/*
 * Is the value JSON null, and may it be?  Raises 22023 if not.
 */
static bool
is_null(const Setting *self, const JsonbValue *value, const char *operation)
{
	if (value->type != jbvNull)
		return false;
	if (self->when_null == REFUSE_NULL)
		refuse(self, operation, "given; null has no meaning for it");
	return true;
}

static char *
string_of(const JsonbValue *value)
{
	return pnstrdup(value->val.string.val, value->val.string.len);
}

/*
 * What an error says it is about: the operation and, where there is one, the
 * id.
 */
static char *
about(const Identity *who, bool has_id)
{
	return has_id ? psprintf("\"%s\" (id %s)", who->operation, id_text(&who->id)) :
		psprintf("\"%s\"", who->operation);
}

/*
 * Length of an interval in microseconds, days being 24 hours.  Raises 22023 if
 * it has months, is negative or unreasonably long; what names it for the user.
 */
static int64
checked_microseconds(const Interval *span, const char *what,
					 const Identity *who, bool has_id)
{
	int64		days = (int64) span->day * USECS_PER_DAY;

	if (span->month != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of operation %s must not contain months or years",
						what, about(who, has_id)),
				 errhint("Months differ in length: give days or hours.")));
	if (span->time > LONGEST_INTERVAL || span->time < -LONGEST_INTERVAL ||
		days > LONGEST_INTERVAL || days + span->time > LONGEST_INTERVAL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of operation %s is too long", what, about(who, has_id)),
				 errhint("The longest is 366000 days.")));
	if (days + span->time < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of operation %s must not be negative",
						what, about(who, has_id)),
				 errhint("Give zero or more.")));
	return days + span->time;
}

/*
 * The same for an interval given in a call about a key.
 */
int64
interval_microseconds(const Interval *span, const char *what,
					  const Identity *who)
{
	return checked_microseconds(span, what, who, true);
}

/*
 * The same for one about no key in particular.
 */
int64
interval_microseconds_of(const Interval *span, const char *what,
						 const char *operation)
{
	Identity	who = {.operation = unconstify(char *, operation)};

	return checked_microseconds(span, what, &who, false);
}

/*
 * Read an interval in its input syntax.  Raises 22023 instead of what
 * interval_in raises.
 */
static Interval *
parse_interval(const Setting *self, const JsonbValue *value,
			   const char *operation)
{
	MemoryContext caller = CurrentMemoryContext;
	Interval   *volatile span = NULL;

	if (value->type != jbvString)
		refuse(self, operation, "an interval, written as a string");
	PG_TRY();
	{
		span = DatumGetIntervalP(DirectFunctionCall3(interval_in,
													 CStringGetDatum(string_of(value)),
													 ObjectIdGetDatum(InvalidOid),
													 Int32GetDatum(-1)));
	}
	PG_CATCH();
	{
		/* always ends in another error, so nothing needs to be undone */
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		refuse(self, operation, "an interval such as \"24 hours\"");
	}
	PG_END_TRY();
	return span;
}

static void
read_interval(const Setting *self, const JsonbValue *value, Policy *policy,
			  const char *operation)
{
	int64	   *target = member(self, policy);
	char	   *what;

	if (is_null(self, value, operation))
	{
		*target = self->when_null;
		return;
	}
	what = psprintf("setting \"%s\"", self->name);
	*target = interval_microseconds_of(parse_interval(self, value, operation),
									   what, operation);
	if (*target < self->least)
		refuse(self, operation, "longer than zero");
}

static void
read_integer(const Setting *self, const JsonbValue *value, Policy *policy,
			 const char *operation)
{
	int64	   *target = member(self, policy);
	double		number;

	if (is_null(self, value, operation))
	{
		*target = self->when_null;
		return;
	}
	if (value->type != jbvNumeric)
		refuse(self, operation, "a whole number");
	number = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow,
												NumericGetDatum(value->val.numeric)));
	if (number != floor(number) || number < self->least || number > INT_MAX)
		refuse(self, operation,
			   psprintf("a whole number from " INT64_FORMAT " to %d",
						self->least, INT_MAX));
	*target = (int64) number;
}

static void
read_boolean(const Setting *self, const JsonbValue *value, Policy *policy,
			 const char *operation)
{
	if (value->type != jbvBool)
		refuse(self, operation, "true or false");
	*(bool *) member(self, policy) = value->val.boolean;
}

/*
 * A string or null.  When least is set, not longer than a name.
 */
static void
read_string(const Setting *self, const JsonbValue *value, Policy *policy,
			const char *operation)
{
	char	  **target = member(self, policy);

	*target = NULL;
	if (is_null(self, value, operation))
		return;
	if (value->type != jbvString || value->val.string.len == 0)
		refuse(self, operation, "a string that is not empty, or null");
	if (self->least > 0 && value->val.string.len >= self->least)
		refuse(self, operation, "the name of a role");
	*target = string_of(value);
}

/*
 * A JSON Pointer (RFC 6901) or null.
 */
static void
read_pointer(const Setting *self, const JsonbValue *value, Policy *policy,
			 const char *operation)
{
	char	   *pointer;

	read_string(self, value, policy, operation);
	pointer = *(char **) member(self, policy);
	if (pointer == NULL)
		return;
	if (pointer[0] != '/')
		refuse(self, operation, "a JSON Pointer, which begins with /");
	for (char *tilde = strchr(pointer, '~'); tilde; tilde = strchr(tilde + 1, '~'))
	{
		if (tilde[1] != '0' && tilde[1] != '1')
			refuse(self, operation, "a JSON Pointer, in which ~ is written ~0 and / in a name ~1");
	}
}

/*
 * Which of the words the value is.
 */
static int
one_of(const Setting *self, const JsonbValue *value, const char *operation,
	   const char *const *words, int n)
{
	if (value->type == jbvString)
	{
		for (int i = 0; i < n; i++)
		{
			if (strlen(words[i]) == value->val.string.len &&
				memcmp(words[i], value->val.string.val,
					   value->val.string.len) == 0)
				return i;
		}
	}
	refuse(self, operation, n == 2 ?
		   psprintf("\"%s\" or \"%s\"", words[0], words[1]) :
		   psprintf("\"%s\", \"%s\", \"%s\" or \"%s\"",
					words[0], words[1], words[2], words[3]));
	return -1;
}

static void
read_on_lease_expiry(const Setting *self, const JsonbValue *value,
					 Policy *policy, const char *operation)
{
	static const char *const words[] = {"reconcile", "retry"};

	policy->retry_on_lease_expiry = one_of(self, value, operation, words, 2) == 1;
}

static void
read_key_format(const Setting *self, const JsonbValue *value, Policy *policy,
				const char *operation)
{
	static const char *const words[] = {"any", "uuid", "uuidv7", "ulid"};

	policy->key_format = (KeyFormat) one_of(self, value, operation, words, 4);
}

/*
 * Part of the normalisation, which canonical.c reads as a whole.
 */
static void
read_normalisation(const Setting *self, const JsonbValue *value,
				   Policy *policy, const char *operation)
{
}

#define AT(member) offsetof(Policy, member)

/* By name. */
static const Setting settings[] = {
	{"clock_skew", read_interval, AT(clock_skew), REFUSE_NULL, 0},
	{"deadline", read_interval, AT(deadline), NO_LIMIT, 1},
	{"defaults", read_normalisation, 0, 0, 0},
	{"fields", read_normalisation, 0, 0, 0},
	{"guard", read_interval, AT(guard), REFUSE_NULL, 0},
	{"ignore", read_normalisation, 0, 0, 0},
	{"key_format", read_key_format, 0, REFUSE_NULL, 0},
	{"lease", read_interval, AT(lease), 0, 0},
	{"log_requests", read_boolean, AT(log_requests), REFUSE_NULL, 0},
	{"max_attempts", read_integer, AT(max_attempts), NO_LIMIT, 1},
	{"max_params_bytes", read_integer, AT(max_params_bytes), REFUSE_NULL, 1},
	{"max_result_bytes", read_integer, AT(max_result_bytes), REFUSE_NULL, 1},
	{"numbers", read_normalisation, 0, 0, 0},
	{"on_lease_expiry", read_on_lease_expiry, 0, REFUSE_NULL, 0},
	{"principal_setting", read_string, AT(principal_setting), 0, 0},
	{"reconcile_attempts", read_integer, AT(reconcile_attempts), REFUSE_NULL, 0},
	{"require_params", read_boolean, AT(require_params), REFUSE_NULL, 0},
	{"resource_pointer", read_pointer, AT(resource_pointer), 0, 0},
	{"retention", read_interval, AT(retention), NO_LIMIT, 0},
	{"retry_after", read_interval, AT(retry_after), REFUSE_NULL, 1},
	{"role", read_string, AT(role), 0, NAMEDATALEN},
	{"unordered", read_normalisation, 0, 0, 0},
	{"wait", read_interval, AT(wait), REFUSE_NULL, 0},
};

/*
 * Built-in defaults, overlaid with those given for every operation and with
 * the operation's own.  Either may be NULL.
 */
Jsonb *
settings_effective(Jsonb *everyone, Jsonb *own)
{
	Jsonb	   *effective;

	effective = DatumGetJsonbP(DirectFunctionCall1(jsonb_in,
												   CStringGetDatum(built_in_settings)));
	if (everyone)
		effective = json_concatenate(effective, everyone);
	if (own)
		effective = json_concatenate(effective, own);
	return effective;
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
	Jsonb	   *normalisation;

	for (int i = 0; i < lengthof(settings); i++)
	{
		JsonbValue	value;

		if (getKeyJsonValueFromContainer(&effective->root, settings[i].name,
										 strlen(settings[i].name), &value) == NULL)
			elog(ERROR, "setting \"%s\" is missing", settings[i].name);
		settings[i].read(&settings[i], &value, policy, operation);
	}
	policy->settings = effective;
	normalisation = settings_normalisation(effective);
	policy->normalisation_version = settings_normalisation_version(normalisation);
	if (normalisation)
		policy->normalisation = normalisation_compile(normalisation, operation);
	return policy;
}

/*
 * Is there a setting of that name?
 */
static bool
is_setting(const JsonbValue *name)
{
	for (int i = 0; i < lengthof(settings); i++)
	{
		if (strlen(settings[i].name) == name->val.string.len &&
			memcmp(settings[i].name, name->val.string.val,
				   name->val.string.len) == 0)
			return true;
	}
	return false;
}

/*
 * Raise 22023 unless given is an object of known settings.  Their values are
 * checked by settings_parse.
 */
void
settings_check_names(Jsonb *given, const char *operation)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (!JB_ROOT_IS_OBJECT(given))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("settings of operation \"%s\" must be a JSON object",
						operation),
				 errhint("Such as {\"retention\": \"7 days\"}.")));
	it = JsonbIteratorInit(&given->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY && !is_setting(&value))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("there is no setting \"%s\" for operation \"%s\"",
							string_of(&value), operation),
					 errhint("idem_policy() shows all settings.")));
	}
}
