/*
 * identity.c
 *	  The id of a record, and what else is derived from keys.
 *
 * The id is a pure function of principal, operation and key, so that any client
 * can compute it, and no setting ever changes it.  Each text is preceded by
 * its length, so that no two triples give the same bytes; docs/identity.md
 * has the form to the byte, with vectors.
 *
 * Keys that carry their time (UUIDv7, ULID) give ids that lead with it: they
 * enter the unique index at its right edge.  Their top bit is set and that
 * of all others is clear, so that the time-led part lies above the rest and
 * the edge is the edge of the whole index.
 */
#include "postgres.h"

#include <ctype.h>

#include "params/params.h"
#include "port/pg_bswap.h"
#include "utils/fmgrprotos.h"

#define ID_DOMAIN	"idempotency:1"
#define STEP_DOMAIN "idempotency:step:1"
#define EVENT_DOMAIN "idempotency:event:1"

#define UUID_TEXT_LEN 36
#define ULID_TEXT_LEN 26
#define ULID_TIME_LEN 10

/* The longest of the domains, an id, a time, and three texts with lengths. */
#define INPUT_MAX \
	(sizeof(EVENT_DOMAIN) + UUID_LEN + sizeof(uint64) + \
	 3 * (sizeof(uint32) + IDEM_TEXT_MAX))

/* Microseconds from 1970 to 2000. */
#define UNIX_EPOCH_OFFSET \
	((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)

typedef struct Input
{
	uint8		bytes[INPUT_MAX];
	size_t		len;
} Input;

/* Raises 22023 for a text; operation is NULL if that is the bad one, or not known. */
pg_noreturn static void
refuse_part(const char *what, const char *operation, const char *problem)
{
	REFUSE_ARGUMENT(operation ?
					errmsg("%s for operation \"%s\" %s", what, operation, problem) :
					errmsg("%s %s", what, problem),
					errhint("It is 1 to %d bytes of valid text in UTF-8.", IDEM_TEXT_MAX));
}

static void
add_bytes(Input *input, const void *bytes, size_t len)
{
	Assert(len <= INPUT_MAX - input->len);
	memcpy(input->bytes + input->len, bytes, len);
	input->len += len;
}

/* Adds a text that may be empty: its length, big-endian, and its UTF-8 bytes. */
static void
add_optional_part(Input *input, const char *what, const char *value,
				  const char *operation)
{
	size_t		len = strlen(value);
	char	   *utf8;
	int			utf8_len;
	uint32		framed;

	/* no encoding takes more bytes than four times what UTF-8 takes */
	if (len > 4 * IDEM_TEXT_MAX)
		refuse_part(what, operation, "is too long");
	utf8 = utf8_from_server(value, (int) len, &utf8_len);
	if (utf8 == NULL)
		refuse_part(what, operation, "is not valid in the encoding of the database");
	if (utf8_len > IDEM_TEXT_MAX)
		refuse_part(what, operation, "is too long");
	framed = pg_hton32((uint32) utf8_len);
	add_bytes(input, &framed, sizeof(framed));
	add_bytes(input, utf8, utf8_len);
	if (utf8 != value)
		pfree(utf8);
}

static void
add_part(Input *input, const char *what, const char *value, const char *operation)
{
	if (value[0] == '\0')
		refuse_part(what, operation, "is empty");
	add_optional_part(input, what, value, operation);
}

/* Raises 22023 unless a text can be that part of an identity. */
void
identity_check_text(const char *value, const char *what)
{
	Input		input;

	input.len = 0;
	add_part(&input, what, value, NULL);
}

/* Returns whether a key is the usual text of a UUID. */
bool
identity_is_uuid(const char *key)
{
	if (strlen(key) != UUID_TEXT_LEN)
		return false;
	for (int i = 0; i < UUID_TEXT_LEN; i++)
	{
		bool		hyphen = i == 8 || i == 13 || i == 18 || i == 23;

		if (hyphen ? key[i] != '-' : !isxdigit((unsigned char) key[i]))
			return false;
	}
	return true;
}

/* Returns whether a key is a UUIDv7 of variant 10, and stores its milliseconds since 1970. */
static bool
uuidv7_time(const char *key, uint64 *milliseconds)
{
	if (!identity_is_uuid(key) || key[14] != '7' ||
		strchr("89abAB", key[19]) == NULL)
		return false;
	*milliseconds = strtou64(key, NULL, 16) << 16 |
		strtou64(key + 9, NULL, 16);
	return true;
}

/* Returns whether a key is a ULID in upper case, and stores its milliseconds since 1970. */
static bool
ulid_time(const char *key, uint64 *milliseconds)
{
	static const char crockford[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
	uint64		time = 0;

	/* the length first: strspn() makes a table of the alphabet */
	if (strlen(key) != ULID_TEXT_LEN ||
		strspn(key, crockford) != ULID_TEXT_LEN || key[0] > '7')
		return false;
	for (int i = 0; i < ULID_TIME_LEN; i++)
		time = time << 5 | (strchr(crockford, key[i]) - crockford);
	*milliseconds = time;
	return true;
}

/* Stores 48 bits of milliseconds in the first six bytes of a UUID. */
static void
put_milliseconds(pg_uuid_t *id, uint64 milliseconds)
{
	for (int i = 0; i < 6; i++)
		id->data[i] = (uint8) (milliseconds >> (40 - 8 * i));
}

/* Sets version and variant of RFC 9562. */
static void
put_version(pg_uuid_t *id, uint8 version)
{
	id->data[6] = (uint8) (version << 4 | (id->data[6] & 0x0F));
	id->data[8] = (uint8) (0x80 | (id->data[8] & 0x3F));
}

/* Sets what the key says about its own time.  Only who->key need be set. */
void
identity_read_key_time(Identity *who)
{
	who->key_milliseconds = 0;
	who->key_has_time = uuidv7_time(who->key, &who->key_milliseconds) ||
		ulid_time(who->key, &who->key_milliseconds);
	/* 48 bits of milliseconds always fit */
	who->key_time = (int64) who->key_milliseconds * 1000 - UNIX_EPOCH_OFFSET;
}

static void
digest_input(const Input *input, pg_uuid_t *id)
{
	uint8		digest[IDEM_DIGEST_LEN];

	digest_start();
	digest_update(input->bytes, input->len);
	digest_finish(digest);
	memcpy(id->data, digest, UUID_LEN);
}

/*
 * Derives the rest of who from the three texts.  The caller must have checked the
 * operation: errors about the others show it.  Raises 22023 for a text that is
 * empty, too long, or not valid.  known_id, unless NULL, has been derived from the
 * same texts before.
 */
void
identity_derive(Identity *who, const pg_uuid_t *known_id)
{
	Input		input;

	Assert(who->principal != NULL && who->operation != NULL && who->key != NULL);
	identity_read_key_time(who);
	if (known_id)
	{
		who->id = *known_id;
		return;
	}
	input.len = 0;
	add_bytes(&input, ID_DOMAIN, sizeof(ID_DOMAIN) - 1);
	add_part(&input, "principal", who->principal, who->operation);
	add_part(&input, "operation", who->operation, NULL);
	add_part(&input, "key", who->key, who->operation);
	digest_input(&input, &who->id);
	if (who->key_has_time)
	{
		put_milliseconds(&who->id, who->key_milliseconds);
		who->id.data[0] |= 0x80;
	}
	else
		who->id.data[0] &= 0x7F;
	put_version(&who->id, 8);
}

char *
identity_text(const pg_uuid_t *id)
{
	return DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id)));
}

/* Stores the id of a step, a digest of record's id and name.  Raises 22023 for a bad name. */
void
identity_of_step(const pg_uuid_t *operation_id, const char *step, int len,
				 pg_uuid_t *id)
{
	uint8		digest[IDEM_DIGEST_LEN];
	int			utf8_len;
	char	   *utf8 = utf8_from_server(step, len, &utf8_len);

	if (utf8 == NULL)
		REFUSE_ARGUMENT(errmsg("step of idem_downstream_key is not valid in the encoding of the database"),
						errhint("Pass valid UTF-8."));
	digest_start();
	digest_update(STEP_DOMAIN, sizeof(STEP_DOMAIN) - 1);
	digest_update(operation_id->data, UUID_LEN);
	digest_update(utf8, utf8_len);
	digest_finish(digest);
	memcpy(id->data, digest, UUID_LEN);
	put_version(id, 8);
}

/*
 * Stores a new UUIDv7: 48 bits of milliseconds, 12 bits of 1/4096 ms, 62 random bits.
 * The time grows from call to call within the backend, also while the clock stands or
 * is set back.
 */
void
identity_new(pg_uuid_t *key)
{
	static uint64 latest = 0;
	int64		now = GetCurrentTimestamp() + UNIX_EPOCH_OFFSET;
	uint64		tick = (uint64) (now / 1000) << 12 | (uint64) (now % 1000) * 4096 / 1000;

	latest = Max(tick, latest + 1);
	if (!pg_strong_random(key->data + 8, UUID_LEN - 8))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	put_milliseconds(key, latest >> 12);
	key->data[6] = (latest >> 8) & 0x0F;
	key->data[7] = latest & 0xFF;
	put_version(key, 7);
}

/*
 * Stores the id of an event of an operation, as docs/outbox.md has it to the byte.  It
 * leads with the time of the key like the operation's id.  Raises 22023 for a text
 * that is too long or not valid.
 */
void
identity_of_event(const pg_uuid_t *operation_id, TimestampTz claimed_at,
				  const char *destination, const char *ordering_key,
				  const char *step, pg_uuid_t *id)
{
	uint64		microseconds = pg_hton64((uint64) (claimed_at + UNIX_EPOCH_OFFSET));
	Input		input;

	input.len = 0;
	add_bytes(&input, EVENT_DOMAIN, sizeof(EVENT_DOMAIN) - 1);
	add_bytes(&input, operation_id->data, UUID_LEN);
	add_bytes(&input, &microseconds, sizeof(microseconds));
	add_optional_part(&input, "destination", destination, NULL);
	add_optional_part(&input, "ordering_key", ordering_key ? ordering_key : "", NULL);
	add_optional_part(&input, "step", step ? step : "", NULL);
	digest_input(&input, id);
	if (operation_id->data[0] & 0x80)
		memcpy(id->data, operation_id->data, 6);
	else
		id->data[0] &= 0x7F;
	put_version(id, 8);
}
