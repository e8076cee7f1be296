/*-------------------------------------------------------------------------
 *
 * requests.c
 *	  The log of requests, on its way to the table: lines in shared memory.
 *
 * A line says who asked for what and what was answered; never params, results
 * or errors' texts.  It is left in shared memory for the worker to write, so
 * it stays when the transaction rolls back, and costs its caller no write.
 *
 * The memory is a ring of cells.  A line takes one, or if it is long as many in
 * a row as it needs.  A cell belongs to one process at a time, by its status:
 *
 *		FREE -> WRITING		a session, compare and swap
 *		FREE -> FOLLOWING	the same session: the line goes on in this cell,
 *							which belongs to whom the line's first belongs to
 *		WRITING -> READY	the same session, nothing in between can be raised
 *		READY -> FREE		the worker of the line's database, after the
 *							transaction that wrote it into the table committed;
 *							or the launcher, if no worker will come; the cells
 *							that follow go first
 *
 * so there is no lock.  A session looks at a few places, from where the one
 * before it found one; if none is free it counts a dropped line and goes on.
 * Who meets another at a cell of a place gives back the cells it has taken of
 * it, and looks on.
 *
 * What every line writes besides its own cells is two numbers, next and taken,
 * side by side.  The rest is counted by who empties the ring.
 *
 * When half of the cells are taken somebody is woken: the worker that is there
 * for it, or the launcher.  Whoever that is sets waker to itself; the latch
 * set in vain when it has just left does no harm, since the launcher, whose
 * turn it is then, looks how full the ring is before it sleeps.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "storage/shmem.h"

#include "background.h"
#include "compat.h"
#include "requests.h"

PG_FUNCTION_INFO_V1(idem_stat_request_lines);

enum
{
	CELL_FREE,
	CELL_WRITING,
	CELL_FOLLOWING,
	CELL_READY
};

/* Bytes of a cell: enough for a line without long texts. */
#define CELL_SIZE 256

/* Places to look at before giving up. */
#define MOST_LOOKS 16

typedef struct CellHead
{
	pg_atomic_uint32 status;
	Oid			database;		/* whose line begins here */
} CellHead;

typedef struct Ring
{
	pg_atomic_uint32 next;		/* where to look first */
	pg_atomic_uint32 taken;		/* cells */
	pg_atomic_uint64 written;	/* lines that have left for their table */
	pg_atomic_uint64 dropped;
	Latch	   *waker;			/* whom to wake; a PGPROC's, so it stays */
	CellHead	cells[FLEXIBLE_ARRAY_MEMBER];
} Ring;

static Ring *ring = NULL;
static char *contents = NULL;	/* of the cells, in one piece */
static uint32 n_cells = 0;

static Size
heads_size(void)
{
	return CACHELINEALIGN(add_size(offsetof(Ring, cells),
								   mul_size(guc_request_log_size, sizeof(CellHead))));
}

Size
requests_size(void)
{
	return add_size(heads_size(), mul_size(guc_request_log_size, CELL_SIZE));
}

/*
 * Shared memory is there; make it ready unless somebody has.
 */
void
requests_attach(void *memory, bool found)
{
	ring = memory;
	contents = (char *) memory + heads_size();
	n_cells = guc_request_log_size;
	if (found)
		return;
	memset(ring, 0, requests_size());
	pg_atomic_init_u32(&ring->next, 0);
	pg_atomic_init_u32(&ring->taken, 0);
	pg_atomic_init_u64(&ring->written, 0);
	pg_atomic_init_u64(&ring->dropped, 0);
	for (uint32 i = 0; i < n_cells; i++)
		pg_atomic_init_u32(&ring->cells[i].status, CELL_FREE);
}

/*
 * Is there a log at all, that is, was the library preloaded?
 */
bool
requests_available(void)
{
	return ring != NULL;
}

/*
 * This process, launcher or worker, wants to know when the ring fills.
 */
void
requests_wake_me(void)
{
	ring->waker = MyLatch;
}

/*
 * Is it time to write lines out?
 */
bool
requests_urgent(void)
{
	return pg_atomic_read_u32(&ring->taken) >= n_cells / 2;
}

/*
 * Are those so many lines that the next ones will soon be urgent?
 */
bool
requests_are_many(int lines)
{
	return lines >= n_cells / 16;
}

/*----
 * Lines, written by sessions.
 *----
 */

static uint32
cells_of(const LineHead *head)
{
	return (head->length + CELL_SIZE - 1) / CELL_SIZE;
}

/*
 * Take n cells in a row, the first one to be written.  False if one of them is
 * taken; then none is.
 */
static bool
take_place(uint32 first, uint32 n)
{
	uint32		got;

	for (got = 0; got < n; got++)
	{
		uint32		status = CELL_FREE;

		if (!pg_atomic_compare_exchange_u32(&ring->cells[first + got].status, &status,
											got == 0 ? CELL_WRITING : CELL_FOLLOWING))
			break;
	}
	if (got == n)
		return true;
	while (got-- > 0)
		pg_atomic_write_u32(&ring->cells[first + got].status, CELL_FREE);
	return false;
}

/*
 * Find n free cells in a row and take them.  False, and a line counted as
 * dropped, if there are none.
 */
static bool
find_place(uint32 n, uint32 *first)
{
	for (int look = 0; look < MOST_LOOKS; look++)
	{
		*first = pg_atomic_fetch_add_u32(&ring->next, n) % n_cells;
		if (*first + n <= n_cells && take_place(*first, n))
			return true;
	}
	pg_atomic_fetch_add_u64(&ring->dropped, 1);
	return false;
}

/*
 * Leave a line, if there is room; its length is set here.  Raises nothing.
 */
void
requests_put(Line *line)
{
	uint32		n;
	uint32		first;
	uint32		before;

	line_measure(line);
	n = cells_of(&line->head);
	if (!find_place(n, &first))
		return;

	/* counted before anybody can give it back */
	before = pg_atomic_fetch_add_u32(&ring->taken, n);
	line_write(line, contents + (Size) first * CELL_SIZE);
	ring->cells[first].database = MyDatabaseId;
	pg_write_barrier();
	pg_atomic_write_u32(&ring->cells[first].status, CELL_READY);
	if (before < n_cells / 2 && before + n >= n_cells / 2)
	{
		Latch	   *waker = ring->waker;

		if (waker)
			SetLatch(waker);
	}
}

/*----
 * Lines, taken by the worker.
 *----
 */

/*
 * Up to that many ready lines of this database, by their first cells.  Returns
 * how many.
 */
int
requests_collect(uint32 *cells, int most)
{
	int			n = 0;

	for (uint32 i = 0; ring && i < n_cells && n < most; i++)
	{
		if (pg_atomic_read_u32(&ring->cells[i].status) != CELL_READY)
			continue;
		pg_read_barrier();
		if (ring->cells[i].database == MyDatabaseId)
			cells[n++] = i;
	}
	return n;
}

/*
 * The packed line that begins in that cell, and a copy of its head.
 */
const char *
requests_at(uint32 cell, LineHead *head)
{
	const char *packed = contents + (Size) cell * CELL_SIZE;

	memcpy(head, packed, sizeof(LineHead));
	return packed;
}

/*
 * The databases there are ready lines of, as a list of OIDs.
 */
List *
requests_databases(void)
{
	List	   *databases = NIL;

	for (uint32 i = 0; i < n_cells; i++)
	{
		if (pg_atomic_read_u32(&ring->cells[i].status) != CELL_READY)
			continue;
		pg_read_barrier();
		databases = list_append_unique_oid(databases, ring->cells[i].database);
	}
	return databases;
}

/*
 * Give back the cells of lines.  What was read of them has been read.
 */
static void
free_lines(const uint32 *cells, int n)
{
	uint32		freed = 0;

	pg_memory_barrier();
	for (int i = 0; i < n; i++)
	{
		LineHead	head;
		uint32		k;

		(void) requests_at(cells[i], &head);
		k = cells_of(&head);
		freed += k;
		while (k-- > 0)
			pg_atomic_write_u32(&ring->cells[cells[i] + k].status, CELL_FREE);
	}
	pg_atomic_fetch_sub_u32(&ring->taken, freed);
}

/*
 * Those are in the table, committed.
 */
void
requests_release(const uint32 *cells, int n)
{
	free_lines(cells, n);
	pg_atomic_fetch_add_u64(&ring->written, n);
}

static void
drop_line(uint32 cell)
{
	free_lines(&cell, 1);
	pg_atomic_fetch_add_u64(&ring->dropped, 1);
}

/*
 * Drop the lines of those databases: no worker will come for them, or cannot
 * write them.
 */
void
requests_discard(const List *databases)
{
	for (uint32 i = 0; i < n_cells; i++)
	{
		if (pg_atomic_read_u32(&ring->cells[i].status) != CELL_READY)
			continue;
		pg_read_barrier();
		if (list_member_oid(databases, ring->cells[i].database))
			drop_line(i);
	}
}

/*
 * Drop the lines of this database.
 */
void
requests_discard_own(void)
{
	requests_discard(list_make1_oid(MyDatabaseId));
}

/*
 * idem_stat_request_lines(): size, waiting, logged, dropped; NULL without
 * preload.
 */
Datum
idem_stat_request_lines(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[4];
	bool		nulls[4] = {false};

	if (ring == NULL)
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = Int32GetDatum((int32) n_cells);
	values[1] = Int32GetDatum((int32) pg_atomic_read_u32(&ring->taken));
	values[2] = Int64GetDatum((int64) pg_atomic_read_u64(&ring->written));
	values[3] = Int64GetDatum((int64) pg_atomic_read_u64(&ring->dropped));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}
