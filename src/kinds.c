/*-------------------------------------------------------------------------
 *
 * kinds.c
 *	  The kinds of values that settings have: intervals, numbers, strings,
 *	  read from jsonb and checked; and what is done with all settings of
 *	  something.  Knows no setting by name.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <math.h>

#include "utils/builtins.h"
#include "utils/numeric.h"

#include "compat.h"
#include "settings.h"

/* A thousand years: far enough, and no sum with a clock can overflow. */
#define LONGEST_INTERVAL (INT64CONST(366000) * USECS_PER_DAY)

/*
 * Raise 22023: the value is not what the setting takes.
 */
void
setting_refuse(const Setting *self, const SettingsOf *of, const char *expected)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("setting \"%s\" of %s \"%s\" must be %s",
					self->name, of->kind, of->name, expected),
			 errhint("%s() shows the settings in force.", of->shown_by)));
}

static void *
member(const Setting *self, void *target)
{
	return (char *) target + self->offset;
}

/*
 * Is the value JSON null, and may it be?  Raises 22023 if not.
 */
static bool
is_null(const Setting *self, const JsonbValue *value, const SettingsOf *of)
{
	if (value->type != jbvNull)
		return false;
	if (self->when_null == REFUSE_NULL)
		setting_refuse(self, of, "given; null has no meaning for it");
	return true;
}

static char *
string_of(const JsonbValue *value)
{
	return pnstrdup(value->val.string.val, value->val.string.len);
}

/*
 * Length of an interval in microseconds, days being 24 hours.  Raises 22023 if
 * it has months, is negative or unreasonably long.  For the message: what it
 * is, of which kind of thing, and that thing's name; id may be NULL.
 */
static int64
checked_microseconds(const Interval *span, const char *what, const char *kind,
					 const char *name, const pg_uuid_t *id)
{
	int64		days = (int64) span->day * USECS_PER_DAY;
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
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 id ?
				 errmsg("%s of %s \"%s\" (id %s) %s", what, kind, name, id_text(id), wrong) :
				 errmsg("%s of %s \"%s\" %s", what, kind, name, wrong),
				 errhint("%s", hint)));
	return days + span->time;
}

/*
 * The same for an interval given in a call about a key.
 */
int64
interval_microseconds(const Interval *span, const char *what,
					  const Identity *who)
{
	return checked_microseconds(span, what, "operation", who->operation, &who->id);
}

/*
 * The same for one that is about an operation, a destination or the like.
 */
int64
interval_microseconds_of(const Interval *span, const char *what,
						 const char *kind, const char *name)
{
	return checked_microseconds(span, what, kind, name, NULL);
}

/*
 * Read an interval in its input syntax.  Raises 22023 instead of what
 * interval_in raises.
 */
static Interval *
parse_interval(const Setting *self, const JsonbValue *value,
			   const SettingsOf *of)
{
	MemoryContext caller = CurrentMemoryContext;
	Interval   *volatile span = NULL;

	if (value->type != jbvString)
		setting_refuse(self, of, "an interval, written as a string");
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
		setting_refuse(self, of, "an interval such as \"24 hours\"");
	}
	PG_END_TRY();
	return span;
}

void
setting_interval(const Setting *self, const JsonbValue *value, void *target,
				 const SettingsOf *of)
{
	int64	   *number = member(self, target);
	char	   *what;

	if (is_null(self, value, of))
	{
		*number = self->when_null;
		return;
	}
	what = psprintf("setting \"%s\"", self->name);
	*number = interval_microseconds_of(parse_interval(self, value, of), what,
									   of->kind, of->name);
	if (*number < self->least)
		setting_refuse(self, of, "longer than zero");
}

/*
 * The number the value is.  Raises 22023, saying what was expected, if it is
 * none or not from least to most.
 */
static double
number_between(const Setting *self, const JsonbValue *value,
			   const SettingsOf *of, double least, double most,
			   const char *expected)
{
	double		number;

	if (value->type != jbvNumeric)
		setting_refuse(self, of, expected);
	number = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow,
												NumericGetDatum(value->val.numeric)));
	if (!(number >= least && number <= most))
		setting_refuse(self, of, expected);
	return number;
}

void
setting_integer(const Setting *self, const JsonbValue *value, void *target,
				const SettingsOf *of)
{
	char	   *expected = psprintf("a whole number from " INT64_FORMAT " to %d",
									self->least, INT_MAX);
	double		number;

	if (is_null(self, value, of))
	{
		*(int64 *) member(self, target) = self->when_null;
		return;
	}
	number = number_between(self, value, of, self->least, INT_MAX, expected);
	if (number != floor(number))
		setting_refuse(self, of, expected);
	*(int64 *) member(self, target) = (int64) number;
}

/*
 * A number up to 1, kept in millionths: tenths and hundredths must add up
 * exactly.
 */
void
setting_share(const Setting *self, const JsonbValue *value, void *target,
			  const SettingsOf *of)
{
	double		least = (double) self->least / WHOLE;
	char	   *expected = psprintf("a number from %g to 1", least);

	if (is_null(self, value, of))
	{
		*(int64 *) member(self, target) = self->when_null;
		return;
	}
	*(int64 *) member(self, target) =
		(int64) rint(number_between(self, value, of, least, 1, expected) * WHOLE);
}

void
setting_boolean(const Setting *self, const JsonbValue *value, void *target,
				const SettingsOf *of)
{
	if (value->type != jbvBool)
		setting_refuse(self, of, "true or false");
	*(bool *) member(self, target) = value->val.boolean;
}

/*
 * A string or null.  When least is set, not longer than a name.
 */
void
setting_string(const Setting *self, const JsonbValue *value, void *target,
			   const SettingsOf *of)
{
	char	  **string = member(self, target);

	*string = NULL;
	if (is_null(self, value, of))
		return;
	if (value->type != jbvString || value->val.string.len == 0)
		setting_refuse(self, of, "a string that is not empty, or null");
	if (self->least > 0 && value->val.string.len >= self->least)
		setting_refuse(self, of, "the name of a role");
	*string = string_of(value);
}

/*
 * A JSON Pointer (RFC 6901) or null.
 */
void
setting_pointer(const Setting *self, const JsonbValue *value, void *target,
				const SettingsOf *of)
{
	char	   *pointer;

	setting_string(self, value, target, of);
	pointer = *(char **) member(self, target);
	if (pointer == NULL)
		return;
	if (pointer[0] != '/')
		setting_refuse(self, of, "a JSON Pointer, which begins with /");
	for (char *tilde = strchr(pointer, '~'); tilde; tilde = strchr(tilde + 1, '~'))
	{
		if (tilde[1] != '0' && tilde[1] != '1')
			setting_refuse(self, of, "a JSON Pointer, in which ~ is written ~0 and / in a name ~1");
	}
}

/*
 * Which of the words, two or four, the value is.
 */
int
setting_one_of(const Setting *self, const JsonbValue *value,
			   const SettingsOf *of, const char *const *words, int n)
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
	setting_refuse(self, of, n == 2 ?
				   psprintf("\"%s\" or \"%s\"", words[0], words[1]) :
				   psprintf("\"%s\", \"%s\", \"%s\" or \"%s\"",
							words[0], words[1], words[2], words[3]));
	return -1;
}

/*----
 * All settings of something.
 *----
 */

/*
 * Built-in defaults, overlaid with those given for everyone and with its own.
 * Either may be NULL.
 */
Jsonb *
settings_overlay(const char *built_in, Jsonb *everyone, Jsonb *own)
{
	Jsonb	   *effective;

	effective = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(built_in)));
	if (everyone)
		effective = json_concatenate(effective, everyone);
	if (own)
		effective = json_concatenate(effective, own);
	return effective;
}

/*
 * Read effective settings into target.  Raises 22023 if a value is not what
 * its setting takes.
 */
void
settings_read(const Setting *settings, int n, Jsonb *effective, void *target,
			  const SettingsOf *of)
{
	for (int i = 0; i < n; i++)
	{
		JsonbValue	value;

		if (getKeyJsonValueFromContainer(&effective->root, settings[i].name,
										 strlen(settings[i].name), &value) == NULL)
			elog(ERROR, "setting \"%s\" is missing", settings[i].name);
		settings[i].read(&settings[i], &value, target, of);
	}
}

/*
 * Is there a setting of that name?
 */
static bool
is_setting(const Setting *settings, int n, const JsonbValue *name)
{
	for (int i = 0; i < n; i++)
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
 * checked by settings_read.
 */
void
settings_refuse_unknown(const Setting *settings, int n, Jsonb *given,
						const SettingsOf *of)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (!JB_ROOT_IS_OBJECT(given))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("settings of %s \"%s\" must be a JSON object",
						of->kind, of->name),
				 errhint("Such as {\"retention\": \"7 days\"}.")));
	it = JsonbIteratorInit(&given->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY && !is_setting(settings, n, &value))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("there is no setting \"%s\" for %s \"%s\"",
							string_of(&value), of->kind, of->name),
					 errhint("%s() shows all settings.", of->shown_by)));
	}
}
