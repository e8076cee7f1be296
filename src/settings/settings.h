/*
 * settings.h
 *	  Settings of operations and destinations, and the call of a function under them.
 */
#ifndef IDEMPOTENCY_SETTINGS_H
#define IDEMPOTENCY_SETTINGS_H

#include "params/params.h"

typedef struct SettingValue SettingValue;

typedef struct Setting
{
	const char *name;
	const char *built_in;		/* value as JSON where none is defined */
	void		(*read) (const SettingValue *given);	/* may be NULL */
	size_t		offset;			/* of the member that holds it: an int64 for
								 * numbers, shares and intervals, a bool, a
								 * char *, or what read stores */
	int64		when_null;		/* value of JSON null; REFUSE_NULL = not
								 * allowed */
	int64		least;			/* smallest number or interval allowed */
} Setting;

/* A row of a table of settings. */
typedef struct SettingsRow
{
	char	   *name;
	Jsonb	   *settings;
	Jsonb	   *horizons;		/* of an operation that were in force before */
	bool		stored;			/* has a row, at tid */
	ItemPointerData tid;
} SettingsRow;

/* The name whose settings are the defaults of all. */
#define EVERY_NAME "*"

/* What has been read: see settings_row.c. */
typedef struct SettingsCache
{
	MemoryContext context;		/* NULL = nothing yet */
	struct HTAB *entries;
	TimestampTz used_in;		/* when the last transaction to look began */
} SettingsCache;

/* What has settings: operations or destinations. */
typedef struct SettingsKind
{
	const char *noun;			/* such as operation */
	const char *shown_by;		/* the function that shows them */
	const char *example;		/* of settings */
	const Setting *settings;
	int			n;
	Table		table;			/* that stores them */
	int			columns;		/* of it; with horizons 3 */
	SettingsCache *cache;

	/* returns what they mean; own is what is stored, if anything */
	void	   *(*load) (Jsonb *effective, const SettingsRow *own);

	/* stores new settings in that table, which is locked against others */
	void		(*store) (Relation rel, SettingsRow *row, Jsonb *settings);
} SettingsKind;

/* A value to be read, which is not null. */
struct SettingValue
{
	const Setting *setting;
	const SettingsKind *kind;
	const char *name;			/* of what has the setting */
	const JsonbValue *value;
	void	   *member;
};

#define REFUSE_NULL PG_INT64_MIN

/* A share is a number up to 1, kept in millionths. */
#define WHOLE INT64CONST(1000000)

/* setting_types.c */
pg_noreturn extern void setting_refuse(const SettingValue *given, const char *expected);
extern void setting_interval(const SettingValue *given);
extern void setting_integer(const SettingValue *given);
extern void setting_share(const SettingValue *given);
extern void setting_boolean(const SettingValue *given);
extern void setting_string(const SettingValue *given);
extern void setting_role(const SettingValue *given);
extern void setting_pointer(const SettingValue *given);
extern int	setting_one_of(const SettingValue *given, const char *const *words, int n);
extern bool setting_parse(PGFunction input, const char *string, Datum *value);
extern int64 setting_microseconds(const Interval *span, const char *what, const char *kind,
								  const char *name, const pg_uuid_t *id);
extern Jsonb *settings_overlay(const SettingsKind *kind, Jsonb *everyone, Jsonb *own);
extern void settings_read(Jsonb *effective, void *target, const SettingsKind *kind,
						  const char *name);

/* settings_row.c */
extern SettingsRow *settings_row_read(const SettingsKind *kind, const char *name);
extern void settings_row_check(const SettingsKind *kind, const SettingsRow *row);
extern List *settings_row_all(Relation rel, const SettingsKind *kind);
extern void settings_row_write(Relation rel, const SettingsKind *kind, const SettingsRow *row);
extern Jsonb *settings_row_version(int64 version);
extern void settings_row_keep_version(Jsonb *normalisation);
extern const void *settings_get(const SettingsKind *kind, const char *name);

typedef enum KeyFormat
{
	KEY_ANY,
	KEY_UUID,
	KEY_UUIDV7,
	KEY_ULID
} KeyFormat;

/* What the sum of retention and guard was until a time. */
typedef struct Horizon
{
	TimestampTz until;
	int64		length;			/* NO_LIMIT = for ever */
} Horizon;

/* The settings of one operation; intervals in microseconds. */
typedef struct Policy
{
	int64		retention;		/* NO_LIMIT = for ever */
	int64		guard;
	int64		lease;			/* 0 = atomic */
	int64		max_lease;		/* NO_LIMIT = none */
	int64		deadline;		/* NO_LIMIT = none */
	int64		wait;
	int64		retry_after;
	int64		clock_skew;
	int64		max_attempts;	/* NO_LIMIT = none */
	int64		reconcile_attempts;
	int64		max_params_bytes;
	int64		max_result_bytes;
	bool		retry_on_lease_expiry;
	bool		require_params;
	bool		log_requests;
	bool		store_result;
	KeyFormat	key_format;
	char	   *role;			/* NULL = all roles with EXECUTE */
	char	   *principal_setting;	/* NULL = unbound */
	char	   *resource_pointer;	/* NULL = none, likewise below */
	char	   *error_pointer;
	Normalisation *normalisation;	/* NULL = none */
	int64		normalisation_version;	/* 0 = none */
	Jsonb	   *settings;		/* all of it, as idem_policy shows it */
	int			n_horizons;		/* that were in force before */
	Horizon    *horizons;
	struct Counters *counters;	/* NULL = nothing is counted */
} Policy;

/* What every call about one key starts from. */
typedef struct Call
{
	Identity	who;
	const Policy *policy;
	const char *verb;			/* what the request is to do, for messages */
} Call;

/* request_log.c */
extern Datum request_serve(FunctionCallInfo fcinfo, const char *call, PGFunction body);
extern const char *request_verb(void);
extern void request_about(const Call *call);
extern void request_answered(const Call *call, const char *verdict, const char *state,
							 int32 attempt, Datum result, Datum error);
extern void request_next(bool logged);
extern const char *request_header(const char *name);

/* Defines a SQL function that is a request, with its name in the log; its body follows. */
#define REQUEST_FUNCTION(name, call) \
	static Datum name##_body(PG_FUNCTION_ARGS); \
	SQL_FUNCTION(name) \
	{ \
		return request_serve(fcinfo, call, name##_body); \
	} \
	static Datum \
	name##_body(PG_FUNCTION_ARGS)

/* operation_settings.c */
extern const SettingsKind operation_settings;
extern const Policy *policy_get(const char *operation);
extern const Normalisation *policy_normalisation_version(int64 version, const char *operation);
extern Policy *settings_parse(Jsonb *effective, const char *operation);
extern Jsonb *settings_normalisation(Jsonb *effective);
extern int64 settings_normalisation_version(Jsonb *normalisation);
extern int64 settings_horizon(const Policy *policy);

/*
 * How the setting "principal_setting" binds the caller of a function.  A worker
 * is bound only in a session that has been told its principal.
 */
typedef enum Binding
{
	BIND_CALLER,				/* to one principal, or to none at all */
	BIND_WORKER,				/* to one principal if it is told which */
	BIND_UNLESS_WORKER,			/* as the caller is the one or the other */
	BIND_NOT					/* sees all principals; not by "role" either */
} Binding;

/* define.c */
extern char *settings_name(const SettingsKind *kind, text *value);
extern void settings_change(FunctionCallInfo fcinfo, const SettingsKind *kind, bool define,
							const char *function);
extern void operation_store(Relation rel, SettingsRow *row, Jsonb *settings);

/* access.c */
extern bool access_has_role(const char *role);
extern void access_check_role(const Policy *policy, const char *operation);
extern bool access_permits(const Policy *policy, const Identity *who, Binding binding);
extern void access_check(const Call *call, FunctionCallInfo fcinfo, Binding binding);
extern char *access_workers_principal(const Policy *policy, const char *operation);
extern bool access_may_read(FunctionCallInfo fcinfo, const char *view);
extern char *access_principal(text *principal, const char *operation);
extern const Normalisation *access_normalisation(FunctionCallInfo fcinfo, text *name);

/* call.c */
extern void call_begin(Call *call, FunctionCallInfo fcinfo, Binding binding,
					   text *operation, text *key, text *principal, const pg_uuid_t *known_id);
extern void call_begin_operation(Call *call, text *operation, bool is_monitor);
extern void call_check_key(const Call *call);
pg_noreturn extern void call_refuse(const Call *call, int sqlstate, const char *why,
									const char *hint);
extern void call_require_writable(const char *function);
extern void call_refuse_unless_writable(const Call *call);
extern void call_check_size(const Call *call, Datum outcome, const char *what);

/* The settings of a destination; intervals in microseconds. */
typedef struct Destination
{
	const char *name;
	bool		defined;		/* has settings of its own */
	int64		base;			/* of the back-off */
	int64		cap;
	int64		max_attempts;	/* NO_LIMIT = none */
	int64		deadline;		/* NO_LIMIT = none; from the first take */
	int64		retry_budget;	/* share, in millionths of a first try;
								 * NO_LIMIT = none */
	int64		breaker_failures;	/* share, in millionths of all calls;
									 * NO_LIMIT = never opens */
	int64		breaker_window;
	int64		breaker_cooldown;
	int64		max_in_flight;	/* NO_LIMIT = none */
	int64		max_event_bytes;	/* of payload and headers, as text */
	int64		retention;		/* of delivered events; NO_LIMIT = for ever */
	bool		relay_from_log; /* events are not queued: logical decoding
								 * delivers them */
	char	   *role;			/* NULL = all roles with EXECUTE */
	bool		skip_dead_head; /* a dead letter frees its ordering key */
	Jsonb	   *settings;		/* all of it, as shown */
} Destination;

/* destination.c */
extern char *destination_called(text *value);
extern const Destination *destination_get(const char *name);
extern void destination_check_role(const Destination *destination);
extern int64 backoff_jitter(int32 attempt, int64 base, int64 cap);
extern bool backoff_next(const Destination *destination, int32 attempts, TimestampTz since,
						 int64 asked, TimestampTz now, TimestampTz *again);

#endif							/* IDEMPOTENCY_SETTINGS_H */
