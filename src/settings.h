/*-------------------------------------------------------------------------
 *
 * settings.h
 *	  What the rooms that define settings have in common: how one is described,
 *	  and the kinds of values there are (kinds.c).
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_SETTINGS_H
#define IDEMPOTENCY_SETTINGS_H

#include "idempotency.h"

/* Whose settings they are, for messages. */
typedef struct SettingsOf
{
	const char *kind;			/* such as operation */
	const char *name;			/* of that operation */
	const char *shown_by;		/* the function that shows them */
} SettingsOf;

typedef struct Setting
{
	const char *name;
	void		(*read) (const struct Setting *self, const JsonbValue *value,
						 void *target, const SettingsOf *of);
	size_t		offset;			/* of the member of target */
	int64		when_null;		/* value of JSON null; REFUSE_NULL = not
								 * allowed */
	int64		least;			/* smallest number or interval allowed */
} Setting;

#define REFUSE_NULL PG_INT64_MIN

/* A share is a number up to 1, kept in millionths. */
#define WHOLE INT64CONST(1000000)

/* kinds.c */
pg_noreturn extern void setting_refuse(const Setting *self,
									   const SettingsOf *of,
									   const char *expected);
extern void setting_interval(const Setting *self, const JsonbValue *value,
							 void *target, const SettingsOf *of);
extern void setting_integer(const Setting *self, const JsonbValue *value,
							void *target, const SettingsOf *of);
extern void setting_share(const Setting *self, const JsonbValue *value,
						  void *target, const SettingsOf *of);
extern void setting_boolean(const Setting *self, const JsonbValue *value,
							void *target, const SettingsOf *of);
extern void setting_string(const Setting *self, const JsonbValue *value,
						   void *target, const SettingsOf *of);
extern void setting_pointer(const Setting *self, const JsonbValue *value,
							void *target, const SettingsOf *of);
extern int	setting_one_of(const Setting *self, const JsonbValue *value,
						   const SettingsOf *of, const char *const *words,
						   int n);
extern Jsonb *settings_overlay(const char *built_in, Jsonb *everyone,
							   Jsonb *own);
extern void settings_read(const Setting *settings, int n, Jsonb *effective,
						  void *target, const SettingsOf *of);
extern void settings_refuse_unknown(const Setting *settings, int n,
									Jsonb *given, const SettingsOf *of);

#endif							/* IDEMPOTENCY_SETTINGS_H */
