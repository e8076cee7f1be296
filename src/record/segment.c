/*
 * segment.c
 *	  The ring of tables: which one a record belongs to, and when.
 *
 * An id that carries the time of its key (identity.c) belongs to one of
 * N_SEGMENTS tables, by its six-hour window: window number modulo N_SEGMENTS.
 * Every other id belongs to the table "record".  That is a function of the id
 * and of nothing else, so each id has exactly one table, for ever, and the unique
 * index of that table alone judges who is first.
 *
 * Records that were made together end together, and purge can empty a whole
 * table at once (purge.c).  The ring goes once round in eight days; records kept for
 * longer share a table with younger ones and are deleted one by one.
 *
 * These numbers cannot change within 1.x: another ring would look for old records
 * in the wrong table.
 */
#include "postgres.h"

#include "record/record.h"

#define WINDOW_MS (INT64CONST(6) * 60 * 60 * 1000)

/* Clocks of those who make keys may be ahead of ours. */
#define CLOCKS_DIFFER_MS (INT64CONST(5) * 60 * 1000)

#define UNIX_EPOCH_MS \
	((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * (SECS_PER_DAY * 1000))

Table
segment_of(const pg_uuid_t *id)
{
	int64		ms = id->data[0] & 0x7F;

	if ((id->data[0] & 0x80) == 0)
		return TABLE_RECORD;
	for (int i = 1; i < 6; i++)
		ms = (ms << 8) | id->data[i];
	return TABLE_SEGMENT + (Table) (ms / WINDOW_MS % N_SEGMENTS);
}

/*
 * The end of the latest window of a segment that has begun: later than now as
 * long as new keys may belong to it.
 */
TimestampTz
segment_closes_at(Table segment, TimestampTz now)
{
	int64		ms = now / 1000 + UNIX_EPOCH_MS + CLOCKS_DIFFER_MS;
	int64		latest = ms / WINDOW_MS;
	int64		back = (latest - (segment - TABLE_SEGMENT)) % N_SEGMENTS;

	return ((latest - back + 1) * WINDOW_MS + CLOCKS_DIFFER_MS - UNIX_EPOCH_MS) * 1000;
}
