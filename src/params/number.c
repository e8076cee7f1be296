/*
 * number.c
 *	  Numbers in the layout of ECMAScript, from their exact decimal digits.
 *
 * A number is reduced to its decimal digits without leading and trailing
 * zeros and to the place of the decimal point, and laid out from these.  So
 * 1e131071, one stored digit, takes eight bytes of text and no more memory.
 *
 * The digits are read out of the stored form of numeric, not asked
 * from numeric_out(): that would expand the number, and allocate.
 *
 * With numbers => double, a number is rounded to the nearest double first.
 * Up to 15 digits within the range of doubles the rounding cannot be seen:
 * the shortest digits that name the double are the ones given.  Only beyond
 * that is the double really made.
 */
#include "postgres.h"

#include <math.h>

#include "params/params.h"
#include "common/shortest_dec.h"
#include "utils/builtins.h"

#define GROUP_DIGITS	4		/* decimal digits in a stored one */

/*
 * The stored form of numeric, which is private to numeric.c but part of the
 * on-disk format, carried over unchanged by pg_upgrade since 9.1: a 2-byte
 * header (short form: sign, scale, weight) or two 2-byte words (sign and scale,
 * weight), then groups of four decimal digits.
 */
#define STORED_KIND		0xC000
#define STORED_NEGATIVE 0x4000
#define STORED_SHORT	0x8000
#define STORED_SPECIAL	0xC000	/* NaN and infinities */
#define STORED_SCALE	0x3FFF
#define SHORT_NEGATIVE	0x2000
#define SHORT_SCALE		0x1F80
#define SHORT_SCALE_SHIFT 7
#define SHORT_WEIGHT_SIGN 0x0040
#define SHORT_WEIGHT	0x003F

typedef struct StoredNumber
{
	bool		negative;
	int			weight;			/* of the first group, in base 10000 */
	int			scale;			/* decimals that are printed */
	int			n_groups;
	const char *groups;			/* int16 each, maybe unaligned */
} StoredNumber;

/* Numbers of this many groups need no allocation. */
#define FEW_GROUPS		24

/* More digits than this cannot change how a decimal rounds to a double. */
#define DOUBLE_DIGITS_MAX 800

/* The number 0.DIGITS * 10^point, without zeros at both ends; 0 has no digits. */
typedef struct Decimal
{
	bool		negative;
	int			count;
	int			point;
	const char *digits;
} Decimal;

/* Reads the header of a stored number.  Returns false if it is not finite. */
static bool
read_stored(Numeric stored, StoredNumber *number)
{
	const char *data = VARDATA_ANY(stored);
	uint16		header;
	int16		weight;

	memcpy(&header, data, sizeof(header));
	if ((header & STORED_KIND) == STORED_SPECIAL)
		return false;
	number->groups = data + sizeof(header);
	if (header & STORED_SHORT)
	{
		number->negative = (header & SHORT_NEGATIVE) != 0;
		number->scale = (header & SHORT_SCALE) >> SHORT_SCALE_SHIFT;
		weight = header & SHORT_WEIGHT;
		if (header & SHORT_WEIGHT_SIGN)
			weight |= ~SHORT_WEIGHT;
	}
	else
	{
		number->negative = (header & STORED_KIND) == STORED_NEGATIVE;
		number->scale = header & STORED_SCALE;
		memcpy(&weight, number->groups, sizeof(weight));
		number->groups += sizeof(weight);
	}
	number->weight = weight;
	number->n_groups = (data + VARSIZE_ANY_EXHDR(stored) - number->groups) / sizeof(int16);
	return true;
}

/* Returns the length of what numeric_out() prints. */
int64
number_length(Numeric stored)
{
	StoredNumber number;
	int64		digits = 1;
	int16		first;

	if (!read_stored(stored, &number))
		return sizeof("-Infinity") - 1;
	if (number.weight >= 0 && number.n_groups > 0)
	{
		memcpy(&first, number.groups, sizeof(first));
		digits = (int64) number.weight * 4 +
			1 + (first > 9) + (first > 99) + (first > 999);
	}
	return number.negative + digits + (number.scale > 0 ? 1 + number.scale : 0);
}

/* Makes a Decimal of count digits, leaving out zeros at both ends. */
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

/* Spreads base-10000 digits into decimal ones. */
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

/* Appends a number as ECMAScript's Number::toString lays it out. */
static void
write_decimal(StringInfo to, const Decimal *number)
{
	static const char zeros[] = "00000000000000000000"; /* never more */
	int			count = number->count;
	int			point = number->point;

	if (count == 0)
	{
		appendStringInfoChar(to, '0');
		return;
	}
	if (number->negative)
		appendStringInfoChar(to, '-');
	if (point > 21 || point <= -6)
		appendStringInfo(to, "%c%s%.*se%+d", number->digits[0], count > 1 ? "." : "",
						 count - 1, number->digits + 1, point - 1);
	else if (count <= point)
	{
		appendBinaryStringInfo(to, number->digits, count);
		appendBinaryStringInfo(to, zeros, point - count);
	}
	else if (point > 0)
	{
		appendBinaryStringInfo(to, number->digits, point);
		appendStringInfoChar(to, '.');
		appendBinaryStringInfo(to, number->digits + point, count - point);
	}
	else
	{
		appendBinaryStringInfo(to, "0.", 2);
		appendBinaryStringInfo(to, zeros, -point);
		appendBinaryStringInfo(to, number->digits, count);
	}
}

/*
 * Returns the double nearest to a number, without its sign.  What strtod reads
 * has no point, so that no locale matters, and is cut where only the fact that
 * more follows still counts.
 */
static double
nearest_double(const Decimal *number)
{
	char		decimal[DOUBLE_DIGITS_MAX + 32];
	int			count = Min(number->count, DOUBLE_DIGITS_MAX);

	memcpy(decimal, number->digits, count);
	if (count < number->count)
		decimal[count++] = '1';
	snprintf(decimal + count, sizeof(decimal) - count, "e%d",
			 number->point - count);
	return strtod(decimal, NULL);
}

/* Makes a Decimal of one printed like 1.25e-7, its digits put into room. */
static void
read_decimal(Decimal *number, const char *printed, char *room)
{
	int			whole = strcspn(printed, ".e");
	int			count = whole;

	memcpy(room, printed, whole);
	printed += whole;
	if (*printed == '.')
	{
		int			decimals = strcspn(++printed, "e");

		memcpy(room + count, printed, decimals);
		count += decimals;
		printed += decimals;
	}
	trim_zeros(number, room, count, whole + (*printed == 'e' ? atoi(printed + 1) : 0));
}

/*
 * Makes a Decimal of the digits ECMAScript names a positive double by.
 *
 * PostgreSQL's shortest digits are the shortest strictly inside the interval
 * that rounds to the double; ECMAScript also allows the ends of the interval
 * where ties go to this double.  An end, if it is shorter, is exactly one
 * half step away and so is what printf rounds to at one digit less.
 */
static void
shortest_digits(Decimal *number, double value, char *room)
{
	char		printed[DOUBLE_SHORTEST_DECIMAL_LEN + 8];

	double_to_shortest_decimal_buf(value, printed);
	read_decimal(number, printed, room);
	if (number->count > 1)
	{
		snprintf(printed, sizeof(printed), "%.*e", number->count - 2, value);
		if (strtod(printed, NULL) == value)
			read_decimal(number, printed, room);
	}
}

/*
 * Rounds a number to a double and replaces its digits by the shortest that
 * name it, put into room.  What underflows becomes zero; raises 22032 for what
 * overflows.
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

/* Appends a whole number from 1 to 9999, as most are; false if this is none. */
static inline bool
write_small(StringInfo to, const StoredNumber *stored)
{
	int16		group;

	if (stored->n_groups != 1 || stored->weight != 0)
		return false;
	memcpy(&group, stored->groups, sizeof(group));
	if (stored->negative)
		appendStringInfoCharMacro(to, '-');
	enlargeStringInfo(to, GROUP_DIGITS);
	to->len += pg_ultoa_n(group, to->data + to->len);
	return true;
}

/*
 * Appends a number.  Raises 22032 if it cannot be the double that norm asks for,
 * or is NaN or infinite, which no jsonb should hold.
 */
void
number_write(StringInfo to, Numeric number, const Normalisation *norm)
{
	char		few[FEW_GROUPS * GROUP_DIGITS];
	char		room[DOUBLE_SHORTEST_DECIMAL_LEN + 8];
	char	   *digits = few;
	StoredNumber stored;
	Decimal		decimal;

	if (!read_stored(number, &stored))
		canonical_refuse(norm, "A number is not finite.");
	if (write_small(to, &stored))
		return;
	if (stored.n_groups > FEW_GROUPS)
		digits = palloc(stored.n_groups * GROUP_DIGITS);
	spread_groups(digits, stored.groups, stored.n_groups);
	decimal.negative = stored.negative;
	trim_zeros(&decimal, digits, stored.n_groups * GROUP_DIGITS,
			   (stored.weight + 1) * GROUP_DIGITS);
	if (norm != NULL && norm->doubles)
		round_to_double(&decimal, room, norm);
	write_decimal(to, &decimal);
	if (digits != few)
		pfree(digits);
}
