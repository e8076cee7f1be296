/*-------------------------------------------------------------------------
 *
 * identity.c
 *	  The id of a record, and what else is derived from keys.
 *
 * The id is a pure function of principal, operation and key, so that anybody
 * can compute it, and no setting ever changes it.  Each text is preceded by
 * its length, so that no two triples give the same bytes; docs/identity.md
 * has the form to the byte, with vectors.
 *
 * Keys that carry their time (UUIDv7, ULID) give ids that lead with it: they
 * enter the unique index at its right edge.  Their top bit is set and that
 * of all others is clear, so that the time-led part lies above the rest and
 * the edge is the edge of the whole index.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/time.h>

#include "canonical_parts.h"
#include "compat.h"
#include "idempotency.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(idem_id);
PG_FUNCTION_INFO_V1(idem_downstream_key);
PG_FUNCTION_INFO_V1(idem_new_key);

#define ID_DOMAIN	"idempotency:1"
#define STEP_DOMAIN "idempotency:step:1"
#define EVENT_DOMAIN "idempotency:event:1"

#define UUID_TEXT_LEN 36
#define ULID_TEXT_LEN 26
#define ULID_TIME_LEN 10

/* Domain, and three texts with their lengths. */
#define ID_INPUT_MAX \
	(sizeof(ID_DOMAIN) - 1 + 3 * (sizeof(uint32) + IDEM_TEXT_MAX))

/*
 * Refuse one of the three texts (22023), with the operation's name if that
 * is not itself the bad one.
 */
static void
refuse_text(const char *what, const char *operation, const char *problem)
{
	bool		named = strcmp(what, "operation") != 0;

	if (named && operation == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s %s", what, problem),
				 errhint("It is 1 to %d bytes of valid text in UTF-8.", IDEM_TEXT_MAX)));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 named ?
			 errmsg("%s for operation \"%s\" %s", what, operation, problem) :
			 errmsg("%s %s", what, problem),
			 errhint("Principal, operation and key are each 1 to %d bytes of valid text in UTF-8.",
					 IDEM_TEXT_MAX)));
}

/*
 * Append one text of an identity to input: its length, big-endian, and its
 * UTF-8 bytes.  Raises 22023 if it is empty, too long or not valid text.
 */
static uint8 *
append_text(uint8 *input, const char *what, const char *text,
			const char *operation)
{
	size_t		len = strlen(text);
	char	   *utf8;
	int			utf8_len;
	uint32		framed;

	if (len == 0)
		refuse_text(what, operation, "is empty");
	/* no encoding takes more bytes than four times what UTF-8 takes */
	if (len > 4 * IDEM_TEXT_MAX)
		refuse_text(what, operation, "is too long");
	utf8 = utf8_from_server(text, (int) len, &utf8_len);
	if (utf8 == NULL)
		refuse_text(what, operation,
					"is not valid in the encoding of the database");
	if (utf8_len > IDEM_TEXT_MAX)
		refuse_text(what, operation, "is too long");

	framed = pg_hton32((uint32) utf8_len);
	memcpy(input, &framed, sizeof(framed));
	memcpy(input + sizeof(framed), utf8, utf8_len);
	if (utf8 != text)
		pfree(utf8);
	return input + sizeof(framed) + utf8_len;
}

/*
 * Raise 22023 unless value can be that part of an identity.
 */
void
identity_check_text(const char *value, const char *what)
{
	uint8		framed[sizeof(uint32) + IDEM_TEXT_MAX];

	append_text(framed, what, value, NULL);
}

/*
 * The value of a hex digit of either case, or -1.
 */
static int
hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/*
 * Is key the usual text of a UUID, of version 7 and variant 10?  If so store
 * its milliseconds since 1970.
 */
static bool
uuidv7_time(const char *key, uint64 *milliseconds)
{
	uint64		time = 0;

	for (int i = 0; i < UUID_TEXT_LEN; i++)
	{
		bool		hyphen = i == 8 || i == 13 || i == 18 || i == 23;
		int			value = hex_value(key[i]);

		if (hyphen ? key[i] != '-' : value < 0)
			return false;
		if (!hyphen && i < 13)
			time = time << 4 | value;
	}
	*milliseconds = time;
	return key[14] == '7' && (hex_value(key[19]) & 0xC) == 0x8;
}

/*
 * Is key a ULID in its canonical upper case?  If so store its milliseconds
 * since 1970.
 */
static bool
ulid_time(const char *key, uint64 *milliseconds)
{
	static const char crockford[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
	uint64		time = 0;

	if (key[0] > '7')
		return false;
	for (int i = 0; i < ULID_TEXT_LEN; i++)
	{
		const char *digit = strchr(crockford, key[i]);

		if (digit == NULL)
			return false;
		if (i < ULID_TIME_LEN)
			time = time << 5 | (digit - crockford);
	}
	*milliseconds = time;
	return true;
}

/*
 * Does the text of key carry its time?  If so store its milliseconds.
 */
static bool
key_milliseconds(const char *key, uint64 *milliseconds)
{
	size_t		len = strlen(key);

	return (len == UUID_TEXT_LEN && uuidv7_time(key, milliseconds)) ||
		(len == ULID_TEXT_LEN && ulid_time(key, milliseconds));
}

/*
 * Milliseconds since 1970 as a timestamp; 48 bits of them always fit.
 */
static TimestampTz
timestamp_of_milliseconds(uint64 milliseconds)
{
	const int64 epoch = (int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) *
	SECS_PER_DAY * 1000;

	return ((int64) milliseconds - epoch) * 1000;
}

/*
 * Store 48 bits of milliseconds into the first six bytes of a UUID.
 */
static void
put_milliseconds(pg_uuid_t *id, uint64 milliseconds)
{
	for (int i = 0; i < 6; i++)
		id->data[i] = (uint8) (milliseconds >> (40 - 8 * i));
}

/*
 * Set version and variant of RFC 9562.
 */
static void
put_version(pg_uuid_t *id, uint8 version)
{
	id->data[6] = (uint8) (version << 4 | (id->data[6] & 0x0F));
	id->data[8] = (uint8) (0x80 | (id->data[8] & 0x3F));
}

/*
 * Set what the key says about its own time.  Only who->key need be set.
 */
void
identity_read_key_time(Identity *who)
{
	who->key_milliseconds = 0;
	who->key_has_time = key_milliseconds(who->key, &who->key_milliseconds);
	who->key_time = timestamp_of_milliseconds(who->key_milliseconds);
}

/*
 * The first bytes of the digest of a framed identity.  A claim and its
 * completion are about the same one, and setting a digest up costs more than
 * a comparison, so the last one is kept.
 */
static void
id_digest(const uint8 *input, size_t len, pg_uuid_t *id)
{
	static uint8 last_input[ID_INPUT_MAX];
	static size_t last_len = 0;
	static uint8 last_digest[IDEM_DIGEST_LEN];

	if (len != last_len || memcmp(input, last_input, len) != 0)
	{
		last_len = 0;			/* while digest and input do not agree */
		digest_start();
		digest_update(input, len);
		digest_finish(last_digest);
		memcpy(last_input, input, len);
		last_len = len;
	}
	memcpy(id->data, last_digest, UUID_LEN);
}

/*
 * Derive who->id, key_has_time and key_time from the three texts, which the
 * caller has set, in server encoding.  Raises 22023 if one is empty, longer
 * than IDEM_TEXT_MAX bytes in UTF-8, or not valid text.
 */
void
identity_derive(Identity *who)
{
	uint8		input[ID_INPUT_MAX];
	uint8	   *end = input + sizeof(ID_DOMAIN) - 1;

	/* the operation is checked first, because the other errors show it */
	(void) append_text(end, "operation", who->operation, NULL);
	memcpy(input, ID_DOMAIN, sizeof(ID_DOMAIN) - 1);
	end = append_text(end, "principal", who->principal, who->operation);
	end = append_text(end, "operation", who->operation, NULL);
	end = append_text(end, "key", who->key, who->operation);

	id_digest(input, end - input, &who->id);
	identity_read_key_time(who);
	if (who->key_has_time)
	{
		put_milliseconds(&who->id, who->key_milliseconds);
		who->id.data[0] |= 0x80;
	}
	else
		who->id.data[0] &= 0x7F;
	put_version(&who->id, 8);
}

/*
 * The usual text of an id, allocated.
 */
char *
id_text(const pg_uuid_t *id)
{
	static const char hex[] = "0123456789abcdef";
	char	   *text = palloc(UUID_TEXT_LEN + 1);
	char	   *to = text;

	for (int i = 0; i < UUID_LEN; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*to++ = '-';
		*to++ = hex[id->data[i] >> 4];
		*to++ = hex[id->data[i] & 0x0F];
	}
	*to = '\0';
	return text;
}

/*
 * Refuse a NULL argument (22023): an id or a downstream key that is silently
 * NULL would be sent as no key at all.
 */
static void
refuse_null(const char *function, const char *argument)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s of %s must not be null", argument, function),
			 errhint("Pass the value that names this one intent.")));
}

/*
 * idem_id(operation text, key text, principal text) returns uuid
 */
Datum
idem_id(PG_FUNCTION_ARGS)
{
	Identity	who;
	pg_uuid_t  *id;

	if (PG_ARGISNULL(0))
		refuse_null("idem_id", "operation");
	if (PG_ARGISNULL(1))
		refuse_null("idem_id", "key");
	who.operation = text_to_cstring(PG_GETARG_TEXT_PP(0));
	who.key = text_to_cstring(PG_GETARG_TEXT_PP(1));
	who.principal = principal_resolve(PG_ARGISNULL(2) ? NULL :
									  PG_GETARG_TEXT_PP(2), who.operation);
	identity_derive(&who);
	id = palloc(sizeof(pg_uuid_t));
	*id = who.id;
	PG_RETURN_UUID_P(id);
}

/*
 * idem_downstream_key(id uuid, step text) returns uuid
 */
Datum
idem_downstream_key(PG_FUNCTION_ARGS)
{
	text	   *step;
	char	   *utf8;
	int			utf8_len;
	uint8		digest[IDEM_DIGEST_LEN];
	pg_uuid_t  *result;

	if (PG_ARGISNULL(0))
		refuse_null("idem_downstream_key", "id");
	if (PG_ARGISNULL(1))
		refuse_null("idem_downstream_key", "step");
	step = PG_GETARG_TEXT_PP(1);
	utf8 = utf8_from_server(VARDATA_ANY(step), VARSIZE_ANY_EXHDR(step),
							&utf8_len);
	if (utf8 == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("step of idem_downstream_key is not valid in the encoding of the database"),
				 errhint("Pass valid UTF-8.")));

	digest_start();
	digest_update(STEP_DOMAIN, sizeof(STEP_DOMAIN) - 1);
	digest_update(PG_GETARG_UUID_P(0)->data, UUID_LEN);
	digest_update(utf8, utf8_len);
	digest_finish(digest);

	result = palloc(sizeof(pg_uuid_t));
	memcpy(result->data, digest, UUID_LEN);
	put_version(result, 8);
	PG_RETURN_UUID_P(result);
}

/*
 * The time now in steps of 1/4096 ms since 1970, made to grow from call to
 * call within the backend, also while the clock stands or is set back.
 */
static uint64
next_tick(void)
{
	static uint64 latest = 0;
	struct timeval now;
	uint64		tick;

	gettimeofday(&now, NULL);
	tick = ((uint64) now.tv_sec * 1000 + now.tv_usec / 1000) << 12;
	tick |= (uint64) (now.tv_usec % 1000) * 4096 / 1000;
	latest = Max(tick, latest + 1);
	return latest;
}

/*
 * A new UUIDv7: 48 bits of milliseconds, 12 bits that count on within one, 62
 * random bits.
 */
void
identity_new(pg_uuid_t *key)
{
	uint64		tick = next_tick();

	if (!pg_strong_random(key->data + 8, UUID_LEN - 8))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	put_milliseconds(key, tick >> 12);
	key->data[6] = (tick >> 8) & 0x0F;
	key->data[7] = tick & 0xFF;
	put_version(key, 7);
}

/*
 * The id of an event of an operation: a digest of the operation's id, when it
 * was first claimed and the event's ordinal.  It leads with the time of the key
 * like the operation's id.
 */
void
identity_of_event(const pg_uuid_t *operation_id, TimestampTz claimed_at,
				  int32 ordinal, pg_uuid_t *id)
{
	uint64		microseconds = pg_hton64((uint64) claimed_at);
	uint32		number = pg_hton32((uint32) ordinal);
	uint8		digest[IDEM_DIGEST_LEN];

	digest_start();
	digest_update(EVENT_DOMAIN, sizeof(EVENT_DOMAIN) - 1);
	digest_update(operation_id->data, UUID_LEN);
	digest_update(&microseconds, sizeof(microseconds));
	digest_update(&number, sizeof(number));
	digest_finish(digest);
	memcpy(id->data, digest, UUID_LEN);
	if (operation_id->data[0] & 0x80)
		memcpy(id->data, operation_id->data, 6);
	else
		id->data[0] &= 0x7F;
	put_version(id, 8);
}

/*
 * idem_new_key() returns text
 */
Datum
idem_new_key(PG_FUNCTION_ARGS)
{
	pg_uuid_t	key;

	identity_new(&key);
	PG_RETURN_TEXT_P(cstring_to_text(id_text(&key)));
}
