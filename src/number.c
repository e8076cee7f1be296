/*-------------------------------------------------------------------------
 *
 * number.c
 *	  Numbers in the layout of ECMAScript, from their exact decimal digits.
 *
 * A number is reduced to its decimal digits without leading and trailing
 * zeros and to the place of the decimal point, and laid out from these.  So
 * 1e131071, one stored digit, takes eight bytes of text and no more memory.
 *
 * The digits are read out of the stored form of numeric, not asked from
 * numeric_out(): that would expand the number, and allocate.  The stored
 * form is private to numeric.c but part of the on-disk format, which
 * pg_upgrade has carried over unchanged since 9.1: a 2-byte header (short
 * form: sign, scale, weight) or two 2-byte words (sign and scale, weight),
 * then digits in base 10000.
 *
 * With numbers => double, a number is rounded to the nearest double first.
 * Up to 15 digits within the range of doubles the rounding cannot be seen:
 * the shortest digits that name the double are the ones given.  Only beyond
 * that is the double really made.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "canonical_parts.h"
#include "compat.h"
#include "common/shortest_dec.h"

/* The stored form of numeric. */
#define STORED_KIND		0xC000
#define STORED_NEGATIVE 0x4000
#define STORED_SHORT	0x8000
#define STORED_SPECIAL	0xC000	/* NaN and infinities */
#define SHORT_NEGATIVE	0x2000
#define SHORT_SCALE		0x1F80
#define SHORT_WEIGHT_SIGN 0x0040
#define SHORT_WEIGHT	0x003F
#define GROUP_DIGITS	NUMBER_GROUP_DIGITS
#define SHORT_WEIGHT_MIN (-64)
#define SHORT_WEIGHT_MAX 63

/* What a numeric can hold: digits before and behind the decimal point. */
#define DIGITS_BEFORE_POINT 131072
#define DIGITS_BEHIND_POINT 16383

/* Numbers of this many groups need no allocation. */
#define FEW_GROUPS		24

/* More digits than this cannot change how a decimal rounds to a double. */
#define DOUBLE_DIGITS_MAX 800

/*
 * The number 0.DIGITS * 10^point; no digits at all for zero.  The first and
 * the last digit are not zero.
 */
typedef struct Decimal
{
	bool		negative;
	int			count;
	int			point;
	const char *digits;
} Decimal;

/*
 * Drop zeros at both ends of count digits, which are the digits of a number
 * 0.DIGITS * 10^point, and make them a Decimal.
 */
static void
trim_zeros(Decimal *number, const char *digits, int count, int point)
{
	while (count > 0 && digits[0] == '0')
	{
		digits++;
		count--;
		point--;
	}
	while (count > 0 && digits[count - 1] == '0')
		count--;
	number->digits = digits;
	number->count = count;
	number->point = point;
}

/*
 * Spread base-10000 digits into decimal ones.  The groups may be unaligned.
 */
static void
spread_groups(char *digits, const char *groups, int count)
{
	for (int i = 0; i < count; i++)
	{
		int16		group;

		memcpy(&group, groups + i * sizeof(group), sizeof(group));
		digits[0] = '0' + group / 1000;
		digits[1] = '0' + group / 100 % 10;
		digits[2] = '0' + group / 10 % 10;
		digits[3] = '0' + group % 10;
		digits += GROUP_DIGITS;
	}
}

/*
 * Take a numeric apart.  few has room for FEW_GROUPS groups; returns it, or
 * what was allocated instead.  NaN and infinities, which jsonb cannot hold,
 * are refused.
 */
static char *
decimal_of(Decimal *number, Numeric stored, char *few,
		   const Normalisation *norm)
{
	const char *data = VARDATA_ANY(stored);
	int			size = VARSIZE_ANY_EXHDR(stored);
	uint16		header;
	int16		weight;
	int			groups;
	char	   *digits = few;

	memcpy(&header, data, sizeof(header));
	data += sizeof(header);
	size -= sizeof(header);
	if ((header & STORED_KIND) == STORED_SPECIAL)
		canonical_refuse(norm, "A number is not finite.");
	if (header & STORED_SHORT)
	{
		number->negative = (header & SHORT_NEGATIVE) != 0;
		weight = header & SHORT_WEIGHT;
		if (header & SHORT_WEIGHT_SIGN)
			weight |= ~SHORT_WEIGHT;
	}
	else
	{
		number->negative = (header & STORED_KIND) == STORED_NEGATIVE;
		memcpy(&weight, data, sizeof(weight));
		data += sizeof(weight);
		size -= sizeof(weight);
	}

	groups = size / sizeof(int16);
	if (groups > FEW_GROUPS)
		digits = palloc(groups * GROUP_DIGITS);
	spread_groups(digits, data, groups);
	trim_zeros(number, digits, groups * GROUP_DIGITS,
			   (weight + 1) * GROUP_DIGITS);
	return digits;
}

/*
 * Append count zeros; the layout never asks for more than 20.
 */
static void
write_zeros(Writer *out, int count)
{
	write_bytes(out, "00000000000000000000", count);
}

/*
 * Append the exponent form: d.ddde+x.
 */
static void
write_exponential(Writer *out, const Decimal *number)
{
	char		exponent[16];
	int			len;

	write_byte(out, number->digits[0]);
	if (number->count > 1)
	{
		write_byte(out, '.');
		write_bytes(out, number->digits + 1, number->count - 1);
	}
	len = snprintf(exponent, sizeof(exponent), "e%+d", number->point - 1);
	write_bytes(out, exponent, len);
}

/*
 * Append a number as ECMAScript's Number::toString lays it out.
 */
static void
write_decimal(Writer *out, const Decimal *number)
{
	int			count = number->count;
	int			point = number->point;

	if (count == 0)
	{
		write_byte(out, '0');
		return;
	}
	if (number->negative)
		write_byte(out, '-');
	if (point > 21 || point <= -6)
		write_exponential(out, number);
	else if (count <= point)
	{
		write_bytes(out, number->digits, count);
		write_zeros(out, point - count);
	}
	else if (point > 0)
	{
		write_bytes(out, number->digits, point);
		write_byte(out, '.');
		write_bytes(out, number->digits + point, count - point);
	}
	else
	{
		write_bytes(out, "0.", 2);
		write_zeros(out, -point);
		write_bytes(out, number->digits, count);
	}
}

/*
 * The double nearest to a number, its sign left out.  The text handed to
 * strtod has no decimal point, so that no locale matters, and is cut where
 * only the fact that more follows still counts.
 */
static double
nearest_double(const Decimal *number)
{
	char text[	DOUBLE_DIGITS_MAX + 32];
	int			count = Min(number->count, DOUBLE_DIGITS_MAX);

	memcpy(text, number->digits, count);
	if (count < number->count)
		text[		count++] = '1';

	snprintf(text +count, sizeof(text) - count, "e%d", number->point - count);
	return strtod(text, NULL);
}

/*
 * Read a text like 1.25e-7, as printf and shortest_dec write it, into a
 * Decimal whose digits are put into room.
 */
static void
decimal_of_text(Decimal *number, const char *text, char *room)
{
	int			count = 0;
	int			point = -1;
	int			exponent = 0;

	for (; *text !='\0'; text ++)
	{
		if (*text == '.')
			point = count;
		else if (*text == 'e')
		{
			exponent = atoi(text +1);
			break;
		}
		else
			room[count++] = *text;
	}
	if (point < 0)
		point = count;
	trim_zeros(number, room, count, point + exponent);
}

/*
 * The digits ECMAScript names a positive double by, put into room.
 *
 * PostgreSQL's shortest digits are the shortest strictly inside the interval
 * that rounds to the double; ECMAScript also allows the ends of the interval
 * where ties go to this double.  An end, if it is shorter, is exactly one
 * half step away and so is what printf rounds to at one digit less.
 */
static void
shortest_digits(Decimal *number, double value, char *room)
{
	char text[	DOUBLE_SHORTEST_DECIMAL_LEN + 8];

	double_to_shortest_decimal_buf(value, text);
	decimal_of_text(number, text, room);
	if (number->count > 1)
	{
		snprintf(text, sizeof(text), "%.*e", number->count - 2, value);
		if (strtod(text, NULL) == value)
			decimal_of_text(number, text, room);
	}
}

/*
 * Round a number to a double and replace its digits by the shortest that
 * name it.  Refuses what overflows; what underflows becomes zero.  room is
 * for DOUBLE_SHORTEST_DECIMAL_LEN digits.
 */
static void
round_to_double(Decimal *number, char *room, const Normalisation *norm)
{
	double		value;

	if (number->count == 0 ||
		(number->count <= 15 && number->point > -300 && number->point < 300))
		return;
	value = nearest_double(number);
	if (isinf(value))
		canonical_refuse(norm, "A number is beyond the range of a double, "
						 "which \"numbers\" asks for.");
	if (value == 0)
		number->count = 0;
	else
		shortest_digits(number, value, room);
}

/*
 * Append a number if it is a whole one from 1 to 9999, as most are: one
 * stored digit, short form, and everything in the header but the scale zero.
 */
static inline bool
write_small(Writer *out, Numeric number)
{
	char text[	GROUP_DIGITS];
	uint16		stored[2];
	int			skip;

	if (VARSIZE_ANY_EXHDR(number) != sizeof(stored))
		return false;
	memcpy(stored, VARDATA_ANY(number), sizeof(stored));
	if ((stored[0] & ~SHORT_SCALE) != STORED_SHORT)
		return false;
	spread_groups(text, (const char *) &stored[1], 1);
	skip = (stored[1] < 10) + (stored[1] < 100) + (stored[1] < 1000);
	write_bytes(out, text +skip, GROUP_DIGITS - skip);
	return true;
}

/*
 * Append a number.  norm says whether it is a double, and names the
 * operation in the error if it cannot be one (22032).
 */
void
write_number(Writer *out, Numeric number, const Normalisation *norm)
{
	char		few[FEW_GROUPS * GROUP_DIGITS];
	char		room[DOUBLE_SHORTEST_DECIMAL_LEN + 8];
	char	   *digits;
	Decimal		decimal;

	if (write_small(out, number))
		return;
	digits = decimal_of(&decimal, number, few, norm);
	if (norm != NULL && norm->doubles)
		round_to_double(&decimal, room, norm);
	write_decimal(out, &decimal);
	if (digits != few)
		pfree(digits);
}

/*
 * Read an exponent, digits behind an optional sign; far ones come out as some
 * far one.
 */
static int64
read_exponent(const char *text, const char *end)
{
	bool		negative = *text == '-';
	int64		exponent = 0;

	if (*text == '-' || *text == '+')
		text	  ++;

	for (; text <end && exponent < PG_INT32_MAX; text ++)
		exponent = exponent * 10 + (*text -'0');
	return negative ? -exponent : exponent;
}

/*
 * Take the text of a number apart, which is one by the grammar of JSON.  Its
 * digits are moved together in place.  False if no numeric could hold it.
 */
static bool
decimal_of_token(Decimal *number, char *token, size_t len)
{
	const char *end = token + len;
	int64		exponent = 0;
	int			count = 0;
	int			point = -1;
	char	   *digits;

	number->negative = *token == '-';
	digits = token + (number->negative ? 1 : 0);
	for (const char *byte = digits; byte < end; byte++)
	{
		if (*byte == '.')
			point = count;
		else if (*byte == 'e' || *byte == 'E')
		{
			exponent = read_exponent(byte + 1, end);
			break;
		}
		else
			digits[count++] = *byte;
	}
	if (point < 0)
		point = count;
	trim_zeros(number, digits, count, point);
	if (number->count == 0)
		exponent = number->point = 0;
	if (number->point + exponent > DIGITS_BEFORE_POINT ||
		number->count - (number->point + exponent) > DIGITS_BEHIND_POINT)
		return false;
	number->point += (int) exponent;
	return true;
}

/*
 * Put decimal digits together to base-10000 ones, skip zeros before the first.
 */
static char *
store_groups(char *to, const Decimal *number, int skip)
{
	for (int at = -skip; at < number->count; at += GROUP_DIGITS)
	{
		int16		group = 0;

		for (int i = at; i < at + GROUP_DIGITS; i++)
			group = group * 10 +
				(i >= 0 && i < number->count ? number->digits[i] - '0' : 0);
		memcpy(to, &group, sizeof(group));
		to += sizeof(group);
	}
	return to;
}

/*
 * Store the number that a text of len bytes means, which is one by the grammar
 * of JSON and is changed, as a numeric without display scale.  to must be
 * aligned for int and have NUMBER_STORE_ROOM(len) bytes.  Returns how many it
 * takes, or 0 if no numeric could hold the number.
 */
size_t
number_store(char *to, char *token, size_t len)
{
	Decimal		number;
	char	   *begin = to;
	int			weight;
	uint16		header;
	int16		stored_weight;

	if (!decimal_of_token(&number, token, len))
		return 0;
	/* rounded down: the first group has the digits up to a whole power */
	weight = number.point > 0 ? (number.point - 1) / GROUP_DIGITS :
		-1 - (-number.point) / GROUP_DIGITS;
	to += VARHDRSZ;
	if (weight >= SHORT_WEIGHT_MIN && weight <= SHORT_WEIGHT_MAX)
	{
		header = STORED_SHORT | (number.negative ? SHORT_NEGATIVE : 0) |
			(weight & (SHORT_WEIGHT | SHORT_WEIGHT_SIGN));
		memcpy(to, &header, sizeof(header));
		to += sizeof(header);
	}
	else
	{
		header = number.negative ? STORED_NEGATIVE : 0;
		stored_weight = (int16) weight;
		memcpy(to, &header, sizeof(header));
		memcpy(to + sizeof(header), &stored_weight, sizeof(stored_weight));
		to += sizeof(header) + sizeof(stored_weight);
	}
	to = store_groups(to, &number, (weight + 1) * GROUP_DIGITS - number.point);
	SET_VARSIZE(begin, to - begin);
	return to - begin;
}
