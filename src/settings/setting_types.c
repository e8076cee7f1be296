/*
 * setting_types.c
 *	  The kinds of values that settings have, read from jsonb and checked; and
 *	  what is done with all settings of something.  Knows no setting by name.
 */
#include "postgres.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>

#include "utils/builtins.h"

#include "settings/settings.h"

/* A thousand years: far enough, and no sum with a clock can overflow. */
#define LONGEST_DAYS 366000
#define LONGEST_INTERVAL (LONGEST_DAYS * USECS_PER_DAY)

/* Raises 22023: the value is not what the setting takes. */
void
setting_refuse(const SettingValue *given, const char *expected)
{
	REFUSE_ARGUMENT(errmsg("setting \"%s\" of %s \"%s\" must be %s", given->setting->name,
						   given->kind->noun, given->name, expected),
					errhint("%s() shows the settings in force.", given->kind->shown_by));
}

/*
 * Returns the length of an interval in microseconds, days being 24 hours.  Raises
 * 22023 with what it is, of which kind of thing, its name, and its id if not NULL.
 */
int64
setting_microseconds(const Interval *span, const char *what, const char *kind,
					 const char *name, const pg_uuid_t *id)
{
	/* more of them are refused all the same, and might overflow */
	int64		days = Min(Max(span->day, -LONGEST_DAYS - 1), LONGEST_DAYS + 1) * USECS_PER_DAY;
	const char *wrong = NULL;
	const char *hint = NULL;

	if (span->month != 0)
	{
		wrong = "must not contain months or years";
		hint = "Months differ in length: give days or hours.";
	}
	else if (span->time > LONGEST_INTERVAL || span->time < -LONGEST_INTERVAL ||
			 days > LONGEST_INTERVAL || days + span->time > LONGEST_INTERVAL)
	{
		wrong = "is too long";
		hint = "The longest is 366000 days.";
	}
	else if (days + span->time < 0)
	{
		wrong = "must not be negative";
		hint = "Give zero or more.";
	}
	if (wrong)
		REFUSE_ARGUMENT(id ?
						errmsg("%s of %s \"%s\" (id %s) %s", what, kind, name, identity_text(id), wrong) :
						errmsg("%s of %s \"%s\" %s", what, kind, name, wrong),
						errhint("%s", hint));
	return days + span->time;
}

/* Returns whether each number has a unit, as in "24 hours", "1:30", "P1DT2H". */
static bool
has_units(const char *interval)
{
	const char *at = interval;

	while (*(at += strcspn(at, "0123456789")) != '\0')
	{
		bool		after_colon = at > interval && at[-1] == ':';

		at += strspn(at, "0123456789.");
		if (after_colon || *at == ':')
			continue;
		at += strspn(at, " \t\n");
		if (!isalpha((unsigned char) *at))
			return false;
	}
	return true;
}

/*
 * Stores what an input function makes of a string; false if it raises.  The
 * caller must raise an error then: nothing is undone.
 */
bool
setting_parse(PGFunction input, const char *string, Datum *value)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool good = true;

	PG_TRY();
	{
		*value = DirectFunctionCall3(input, CStringGetDatum(string),
									 ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		good = false;
	}
	PG_END_TRY();
	return good;
}

/* Reads an interval in its input syntax; a number without a unit must be zero. */
void
setting_interval(const SettingValue *given)
{
	const char *noun = given->kind->noun;
	const char *what = psprintf("setting \"%s\"", given->setting->name);
	Datum		value;
	Interval   *span;
	char	   *string;
	int64		length;

	if (given->value->type != jbvString)
		setting_refuse(given, "an interval, written as a string");
	string = json_scalar_text(given->value);
	if (!setting_parse(interval_in, string, &value))
		setting_refuse(given, "an interval such as \"24 hours\"");
	span = DatumGetIntervalP(value);
	if ((span->time != 0 || span->day != 0 || span->month != 0) && !has_units(string))
		REFUSE_ARGUMENT(errmsg("%s of %s \"%s\" must be an interval with a unit", what, noun, given->name),
						errhint("Write \"24 hours\" or \"24 s\": a number alone would be seconds."));
	length = setting_microseconds(span, what, noun, given->name, NULL);
	if (length < given->setting->least)
		setting_refuse(given, "longer than zero");
	*(int64 *) given->member = length;
}

/* Returns a number.  Raises 22023 if it is none, or not from least to most. */
static double
number_between(const SettingValue *given, double least, double most, const char *expected)
{
	double		number;

	if (given->value->type != jbvNumeric)
		setting_refuse(given, expected);
	number = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow,
												NumericGetDatum(given->value->val.numeric)));
	if (!(number >= least && number <= most))
		setting_refuse(given, expected);
	return number;
}

void
setting_integer(const SettingValue *given)
{
	int64		least = given->setting->least;
	char	   *expected = psprintf("a whole number from " INT64_FORMAT " to %d", least, INT_MAX);
	double		number = number_between(given, least, INT_MAX, expected);

	if (number != floor(number))
		setting_refuse(given, expected);
	*(int64 *) given->member = (int64) number;
}

/* Kept in millionths: tenths and hundredths must add up exactly. */
void
setting_share(const SettingValue *given)
{
	double		least = (double) given->setting->least / WHOLE;
	char	   *expected = psprintf("a number from %g to 1", least);

	*(int64 *) given->member = (int64) rint(number_between(given, least, 1, expected) * WHOLE);
}

void
setting_boolean(const SettingValue *given)
{
	if (given->value->type != jbvBool)
		setting_refuse(given, "true or false");
	*(bool *) given->member = given->value->val.boolean;
}

void
setting_string(const SettingValue *given)
{
	if (given->value->type != jbvString || given->value->val.string.len == 0)
		setting_refuse(given, "a string that is not empty, or null");
	*(char **) given->member = json_scalar_text(given->value);
}

/* The role need not exist. */
void
setting_role(const SettingValue *given)
{
	setting_string(given);
	if (given->value->val.string.len >= NAMEDATALEN)
		setting_refuse(given, "the name of a role");
}

void
setting_pointer(const SettingValue *given)
{
	setting_string(given);
	if (!pointer_valid(*(char **) given->member))
		setting_refuse(given, "a JSON Pointer: \"/\" and a name, as often as needed, "
					   "in a name \"~\" being written ~0 and \"/\" ~1");
}

/* Returns the index of the word, of two or four, that a value is. */
int
setting_one_of(const SettingValue *given, const char *const *words, int n)
{
	const char *string = given->value->type == jbvString ? json_scalar_text(given->value) : "";

	for (int i = 0; i < n; i++)
	{
		if (strcmp(words[i], string) == 0)
			return i;
	}
	setting_refuse(given, n == 2 ?
				   psprintf("\"%s\" or \"%s\"", words[0], words[1]) :
				   psprintf("\"%s\", \"%s\", \"%s\" or \"%s\"",
							words[0], words[1], words[2], words[3]));
	return -1;
}

/* Returns the built-in defaults under everyone's, if not NULL, and its own. */
Jsonb *
settings_overlay(const SettingsKind *kind, Jsonb *everyone, Jsonb *own)
{
	StringInfoData built_in;
	Jsonb	   *effective;

	initStringInfo(&built_in);
	for (int i = 0; i < kind->n; i++)
		appendStringInfo(&built_in, "%c\"%s\": %s", i == 0 ? '{' : ',',
						 kind->settings[i].name, kind->settings[i].built_in);
	appendStringInfoChar(&built_in, '}');
	effective = json_parse(built_in.data);
	if (everyone)
		effective = json_concatenate(effective, everyone);
	return json_concatenate(effective, own);
}

/* Reads settings into target, which is zero.  Raises 22023 for a wrong value. */
void
settings_read(Jsonb *effective, void *target, const SettingsKind *kind, const char *name)
{
	for (int i = 0; i < kind->n; i++)
	{
		const Setting *setting = &kind->settings[i];
		JsonbValue	value;
		SettingValue given = {setting, kind, name, &value, (char *) target + setting->offset};

		if (!json_find(effective, setting->name, &value))
			elog(ERROR, "setting \"%s\" is missing", setting->name);
		if (setting->read == NULL)
			continue;
		if (value.type != jbvNull)
			setting->read(&given);
		else if (setting->when_null == REFUSE_NULL)
			setting_refuse(&given, "given; null has no meaning for it");
		else if (setting->when_null != 0)
			*(int64 *) given.member = setting->when_null;
	}
}
