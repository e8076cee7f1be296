/*
 * webhook.c
 *	  Signatures of webhooks: idem_webhook_verify, idem_webhook_sign.
 *
 * Standard Webhooks 1.0.0, symmetric: HMAC-SHA256 over id.timestamp.body, as
 * v1,<base64>.  A secret is base64, with or without the prefix whsec_, as in
 * the reference libraries.  Ed25519 (v1a) is not there.
 *
 * What comes from the far side can be anything, and anything wrong with it is
 * answered with false, without saying what.  What is configured here, secrets
 * and tolerance, raises an error when it is wrong, whatever the request is like,
 * so that it is found before the first forged one.
 *
 * The point that separates id, timestamp and body is in neither of the first
 * two: else one signature would fit several requests.
 *
 * Nothing is learned from how long the answer takes: all signatures are
 * compared with all secrets, all bytes of them, and how many there are is no
 * secret.  Messages never contain secrets, signatures or bodies.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/hmac.h"
#include "common/sha2.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "calls/calls.h"

#define SECRET_PREFIX "whsec_"
#define SCHEME "v1,"

/* Of 32 bytes, base64 makes 44. */
#define MAC_TEXT_LEN 44

/* Of PostgreSQL, in seconds since 1970. */
#define PG_EPOCH ((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY)

/* Seconds since 1970 that any timestamptz can hold have fewer digits. */
#define TIMESTAMP_DIGITS 12

/* What is signed, in pieces. */
typedef struct Message
{
	const char *id;				/* in UTF-8 */
	const char *timestamp;
	const bytea *body;
} Message;

static void
hmac_failed(pg_hmac_ctx *context, const char *step)
{
	char	   *reason = context ? pstrdup(pg_hmac_error(context)) : NULL;

	pg_hmac_free(context);
	ereport(ERROR,
			(errcode(ERRCODE_INTERNAL_ERROR),
			 errmsg("could not %s HMAC: %s", step, reason ? reason : "out of memory")));
}

/*
 * The signature of a message, MAC_TEXT_LEN characters of base64.  Raises an
 * internal error if the crypto library refuses.
 */
static void
message_mac(const Message *message, const bytea *key, char *text)
{
	uint8		mac[PG_SHA256_DIGEST_LENGTH];
	pg_hmac_ctx *context = pg_hmac_create(PG_SHA256);

#define UPDATE(data, len) \
	pg_hmac_update(context, (const uint8 *) (data), len) < 0

	if (context == NULL ||
		pg_hmac_init(context, (const uint8 *) VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key)) < 0)
		hmac_failed(context, "create");
	if (UPDATE(message->id, strlen(message->id)) || UPDATE(".", 1) ||
		UPDATE(message->timestamp, strlen(message->timestamp)) || UPDATE(".", 1) ||
		UPDATE(VARDATA_ANY(message->body), VARSIZE_ANY_EXHDR(message->body)) ||
		pg_hmac_final(context, mac, sizeof(mac)) < 0)
		hmac_failed(context, "compute");
	pg_hmac_free(context);
	if (compat_base64_encode(mac, sizeof(mac), text, MAC_TEXT_LEN) != MAC_TEXT_LEN)
		elog(ERROR, "unexpected length of a signature");
#undef UPDATE
}

/*
 * The key that a secret stands for.  Raises 22023 for the secret of that
 * number, 0 if there is only one, without showing it.
 */
static bytea *
key_of(const text *secret, int number)
{
	const char *base64 = VARDATA_ANY(secret);
	int			len = VARSIZE_ANY_EXHDR(secret);
	int			prefix = strlen(SECRET_PREFIX);
	int			key_len;
	bytea	   *key;

	if (len >= prefix && memcmp(base64, SECRET_PREFIX, prefix) == 0)
	{
		base64 += prefix;
		len -= prefix;
	}
	key = palloc(VARHDRSZ + pg_b64_dec_len(len));
	key_len = compat_base64_decode(base64, len, (uint8 *) VARDATA(key), pg_b64_dec_len(len));
	if (key_len <= 0)
		REFUSE_ARGUMENT(number > 0 ?
						errmsg("secret %d for webhooks is not one", number) :
						errmsg("the secret for webhooks is not one"),
						errhint("A secret is base64, usually behind whsec_."));
	SET_VARSIZE(key, VARHDRSZ + key_len);
	return key;
}

/*
 * The keys of an array of secrets.  Raises 22023 if there are none, or one of
 * them is null or no secret.
 */
static bytea **
keys_of(ArrayType *secrets, int *n)
{
	Datum	   *values;
	bool	   *nulls;
	bytea	  **keys;

	*n = 0;
	if (secrets)
		deconstruct_array(secrets, TEXTOID, -1, false, TYPALIGN_INT, &values, &nulls, n);
	if (*n == 0)
		REFUSE_ARGUMENT(errmsg("no secret to verify webhooks with"),
						errhint("Pass those in use: the old and the new one while they are exchanged."));
	keys = palloc(*n * sizeof(bytea *));
	for (int i = 0; i < *n; i++)
	{
		if (nulls[i])
			REFUSE_ARGUMENT(errmsg("secret %d for webhooks is null", i + 1),
							errhint("A secret is base64, usually behind whsec_."));
		keys[i] = key_of(DatumGetTextPP(values[i]), i + 1);
	}
	return keys;
}

/* Is it an id that can be signed: some text, without a point?  If so, *utf8 is it. */
static bool
read_id(const text *value, const char **utf8)
{
	char	   *id = text_to_cstring(value);

	*utf8 = pg_server_to_any(id, strlen(id), PG_UTF8);
	return id[0] != '\0' && strchr(id, '.') == NULL;
}

/* Is it a time in seconds since 1970, in digits, written in the one way there is? */
static bool
read_seconds(const char *value, int64 *seconds)
{
	int			len = strlen(value);

	if (len == 0 || len > TIMESTAMP_DIGITS || strspn(value, "0123456789") != len ||
		(value[0] == '0' && len > 1))
		return false;
	*seconds = strtoi64(value, NULL, 10);
	return true;
}

/*
 * Returns whether one of the signatures, separated by spaces, is the one
 * expected.  Compares all bytes of all of them; skips those of other schemes.
 */
static bool
has_signature(const char *signatures, const char *expected)
{
	bool		found = false;

	while (*signatures)
	{
		int			len = strcspn(signatures, " ");

		if (len == strlen(SCHEME) + MAC_TEXT_LEN &&
			strncmp(signatures, SCHEME, strlen(SCHEME)) == 0)
		{
			volatile uint8 difference = 0;

			for (int i = 0; i < MAC_TEXT_LEN; i++)
				difference |= signatures[strlen(SCHEME) + i] ^ expected[i];
			found |= difference == 0;
		}
		signatures += len;
		signatures += strspn(signatures, " ");
	}
	return found;
}

/* idem_webhook_verify(id, timestamp, body, signatures, secrets, tolerance) */
SQL_FUNCTION(idem_webhook_verify)
{
	int64		tolerance;
	int			n;
	bytea	  **keys;
	Message		message;
	char	   *signatures;
	int64		seconds;
	int64		distance;
	bool		found = false;

	if (PG_ARGISNULL(5))
		REFUSE_ARGUMENT(errmsg("tolerance of idem_webhook_verify must not be null"),
						errhint("It says how far the clocks may be apart, and how old a request may be."));
	tolerance = setting_microseconds(PG_GETARG_INTERVAL_P(5), "tolerance", "function",
									 "idem_webhook_verify", NULL);
	keys = keys_of(PG_ARGISNULL(4) ? NULL : PG_GETARG_ARRAYTYPE_P(4), &n);
	for (int i = 0; i < 4; i++)
	{
		if (PG_ARGISNULL(i))
			PG_RETURN_BOOL(false);
	}
	message.timestamp = text_to_cstring(PG_GETARG_TEXT_PP(1));
	if (!read_id(PG_GETARG_TEXT_PP(0), &message.id) ||
		!read_seconds(message.timestamp, &seconds))
		PG_RETURN_BOOL(false);
	distance = (seconds - PG_EPOCH) * USECS_PER_SEC - GetCurrentTimestamp();
	if (distance < -tolerance || distance > tolerance)
		PG_RETURN_BOOL(false);
	message.body = PG_GETARG_BYTEA_PP(2);
	signatures = text_to_cstring(PG_GETARG_TEXT_PP(3));
	for (int i = 0; i < n; i++)
	{
		char		expected[MAC_TEXT_LEN + 1];

		message_mac(&message, keys[i], expected);
		found |= has_signature(signatures, expected);
	}
	PG_RETURN_BOOL(found);
}

/* idem_webhook_sign(id, timestamp, body, secret) */
SQL_FUNCTION(idem_webhook_sign)
{
	char		signature[sizeof(SCHEME) + MAC_TEXT_LEN] = SCHEME;
	Message		message;
	int64		seconds;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2) || PG_ARGISNULL(3))
		REFUSE_ARGUMENT(errmsg("idem_webhook_sign needs an id, a timestamp, a body and a secret"),
						errhint("A body may be empty."));
	message.timestamp = text_to_cstring(PG_GETARG_TEXT_PP(1));
	message.body = PG_GETARG_BYTEA_PP(2);
	if (!read_id(PG_GETARG_TEXT_PP(0), &message.id))
		REFUSE_ARGUMENT(errmsg("id of a webhook must be neither empty nor contain a point"),
						errhint("The point separates it from the timestamp in what is signed."));
	if (!read_seconds(message.timestamp, &seconds))
		REFUSE_ARGUMENT(errmsg("timestamp of a webhook must be in whole seconds since 1970"),
						errhint("Such as extract(epoch FROM now())::bigint::text."));
	message_mac(&message, key_of(PG_GETARG_TEXT_PP(3), 0), signature + strlen(SCHEME));
	PG_RETURN_TEXT_P(cstring_to_text_with_len(signature, strlen(SCHEME) + MAC_TEXT_LEN));
}
