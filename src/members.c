/*-------------------------------------------------------------------------
 *
 * members.c
 *	  The members of an object in the order of RFC 8785: by the UTF-16 code
 *	  units of their names.
 *
 * jsonb stores members by length of name and then by bytes.  So an object is
 * already a short list of sorted runs, about one for each length that
 * occurs, and what is left to do is to merge them.  The merge walks one
 * cursor per run and takes the least from a heap.  That is n log(runs) time
 * whatever the names are (a quicksort can be driven to n squared by names
 * chosen for it), and memory for the runs only: names of k different lengths
 * are at least k*k/2 bytes of input.  Nothing is copied.
 *
 * UTF-16 order is the order of the UTF-8 bytes but for one thing: characters
 * beyond the basic plane (first byte F0 to F4) are written with surrogates
 * (D800 to DFFF) and so come before U+E000 to U+FFFF (first byte EE, EF).
 * Lifting EE and EF above F4 turns one order into the other; where two
 * strings first differ in a later byte of a character, those are not
 * affected.  Names of one length that differ in just this way make a run
 * end early; the order stays right.
 *
 * In an object of few members, as most are, each is a run of its own and all
 * are in order: an order that is remembered, because the next object is likely
 * to have the same names.  Only when it has not, the members are put in order
 * one by one.
 *
 * The runs of all objects being written lie on one stack, which has room for
 * most params without any allocation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "canonical_parts.h"
#include "miscadmin.h"

/* Objects whose order is remembered have at most so many names and bytes. */
#define SHAPE_NAMES 32
#define SHAPE_BYTES 480

/* How many of them, found by their size. */
#define SHAPES 16

/* The names of an object, as jsonb stores them, and their order. */
typedef struct Shape
{
	uint32		count;
	uint32		len;			/* bytes of all names */
	JEntry		entries[SHAPE_NAMES];
	char		names[SHAPE_BYTES];
	Run			order[SHAPE_NAMES]; /* without what concerns the values */
} Shape;

static Shape shapes[SHAPES];

/*
 * A byte of UTF-8 such that comparing it compares UTF-16 code units.
 */
static inline unsigned char
utf16_rank(unsigned char byte)
{
	return (byte & 0xFE) == 0xEE ? byte + 0x10 : byte;
}

/*
 * The first eight bytes of a name as one comparable number; shorter names
 * are filled up with zeros.
 */
static inline uint64
key_lead(const char *key, uint32 len)
{
	uint64		lead = first_eight(key, len);

	if (unlikely(lead & EVERY_BYTE(0x80)))
	{
		unsigned char *byte = (unsigned char *) &lead;

		for (int i = 0; i < (int) sizeof(lead); i++)
			byte[i] = utf16_rank(byte[i]);
	}
	return lead;
}

/*
 * Compare two names, in UTF-8 and equal in the bytes before start, by their
 * UTF-16 code units: below, at or above zero.
 */
static inline int
compare_from(uint32 start, const char *a, uint32 a_len,
			 const char *b, uint32 b_len)
{
	uint32		common = Min(a_len, b_len);

	for (uint32 i = start; i < common; i++)
	{
		unsigned char byte_a = (unsigned char) a[i];
		unsigned char byte_b = (unsigned char) b[i];

		if (byte_a != byte_b)
			return (int) utf16_rank(byte_a) - (int) utf16_rank(byte_b);
	}
	return a_len < b_len ? -1 : a_len > b_len;
}

/*
 * The same for names with the same lead.
 */
static int
compare_rest(const char *a, uint32 a_len, const char *b, uint32 b_len)
{
	return compare_from(sizeof(uint64), a, a_len, b, b_len);
}

/*
 * The same for any two names, wherever they lie.
 */
int
name_compare(const char *a, uint32 a_len, const char *b, uint32 b_len)
{
	return compare_from(0, a, a_len, b, b_len);
}

/*
 * Is run a's next name before run b's?  Of equal names the given one is.
 */
static inline bool
comes_before(const Members *members, const Run *a, const Run *b)
{
	int			order;

	if (likely(a->lead != b->lead))
		return a->lead < b->lead;
	order = compare_rest(members->data[a->source] + a->key_at, a->key_len,
						 members->data[b->source] + b->key_at, b->key_len);
	return order < 0 || (order == 0 && a->source < b->source);
}

/*
 * How long is the child that begins at offset start?
 */
static inline uint32
child_length(JEntry child, uint32 start)
{
	uint32		field = JBE_OFFLENFLD(child);

	return JBE_HAS_OFF(child) ? field - start : field;
}

/*
 * Make an empty stack.
 */
void
runs_open(RunStack *stack)
{
	stack->runs = stack->first;
	stack->used = 0;
	stack->space = lengthof(stack->first);
}

/*
 * Give the stack's memory back; after an error the memory context does it.
 */
void
runs_close(RunStack *stack)
{
	if (stack->runs != stack->first)
		pfree(stack->runs);
}

/*
 * Make room for one more run and return it.  May raise out of memory.
 */
static Run *
push_run(RunStack *stack)
{
	if (unlikely(stack->used == stack->space))
	{
		Size		bytes = stack->space * sizeof(Run);

		if (stack->runs == stack->first)
		{
			stack->runs = MemoryContextAllocHuge(CurrentMemoryContext,
												 2 * bytes);
			memcpy(stack->runs, stack->first, bytes);
		}
		else
			stack->runs = repalloc_huge(stack->runs, 2 * bytes);
		stack->space *= 2;
	}
	return &stack->runs[stack->used++];
}

/*
 * Where in the object do the values begin?  Where the last name ends; only
 * some children say where that is, the others how long they are.
 */
static uint32
values_offset(const JsonbContainer *object)
{
	uint32		at = 0;
	uint32		names = JsonContainerSize(object);

	while (names > 0)
	{
		JEntry		child = object->children[--names];

		at += JBE_OFFLENFLD(child);
		if (JBE_HAS_OFF(child))
			break;
	}
	return at;
}

/*
 * Cut the members of one of the objects into runs.  Answers interrupts; may
 * raise out of memory.
 */
static void
push_runs(RunStack *stack, const Members *members, uint32 source)
{
	const JEntry *names = members->object[source]->children;
	uint32		count = JsonContainerSize(members->object[source]);
	Run			now = {.source = source,
	.value_at = values_offset(members->object[source])};
	uint64		lead_before = 0;
	uint32		len_before = 0;
	Run		   *run = NULL;

	for (uint32 i = 0; i < count; i++)
	{
		const char *key = members->data[source] + now.key_at;

		CHECK_FOR_INTERRUPTS();
		now.key_len = child_length(names[i], now.key_at);
		now.lead = key_lead(key, now.key_len);
		if (run == NULL || now.lead < lead_before ||
			(now.lead == lead_before &&
			 compare_rest(key - len_before, len_before, key, now.key_len) >= 0))
		{
			now.index = i;
			run = push_run(stack);
			*run = now;
		}
		run->last = i;
		lead_before = now.lead;
		len_before = now.key_len;
		now.key_at += now.key_len;
		JBE_ADVANCE_OFFSET(now.value_at, names[count + i]);
	}
}

/*
 * Where the order of an object of that size is remembered.
 */
static inline Shape *
shape_of(uint32 count, uint32 len)
{
	return &shapes[(count * 5 + len) % SHAPES];
}

/*
 * Put the names of an object, which are few, in order and remember that.
 */
static void
learn_shape(Shape *shape, const Members *members, uint32 count, uint32 len)
{
	const JEntry *names = members->object[SOURCE_GIVEN]->children;
	Run			now = {.source = SOURCE_GIVEN};

	for (now.index = 0; now.index < count; now.index++)
	{
		uint32		at = now.index;

		now.last = now.index;
		now.key_len = child_length(names[now.index], now.key_at);
		now.lead = key_lead(members->data[SOURCE_GIVEN] + now.key_at, now.key_len);
		for (; at > 0 && comes_before(members, &now, &shape->order[at - 1]); at--)
			shape->order[at] = shape->order[at - 1];
		shape->order[at] = now;
		now.key_at += now.key_len;
	}
	memcpy(shape->entries, names, count * sizeof(JEntry));
	memcpy(shape->names, members->data[SOURCE_GIVEN], len);
	shape->count = count;
	shape->len = len;
}

/*
 * Push the members of an object, which are few, in order.  May raise out of
 * memory.
 */
static void
push_in_order(RunStack *stack, Members *members, uint32 count, uint32 len)
{
	const JEntry *names = members->object[SOURCE_GIVEN]->children;
	Shape	   *shape = shape_of(count, len);
	uint32		value_at[SHAPE_NAMES];
	uint32		at = len;

	if (shape->count != count || shape->len != len ||
		memcmp(shape->entries, names, count * sizeof(JEntry)) != 0 ||
		memcmp(shape->names, members->data[SOURCE_GIVEN], len) != 0)
		learn_shape(shape, members, count, len);
	for (uint32 i = 0; i < count; i++)
	{
		value_at[i] = at;
		JBE_ADVANCE_OFFSET(at, names[count + i]);
	}
	for (uint32 i = 0; i < count; i++)
	{
		Run		   *run = push_run(stack);

		*run = shape->order[i];
		run->value_at = value_at[run->index];
	}
	members->sorted = true;
}

/*
 * Let the run at place at sink to where the heap needs it.
 */
static inline void
sift_down(const Members *members, Run *heap, Size at)
{
	Size		count = members->count;

	for (;;)
	{
		Size		child = 2 * at + 1;
		Run			sinking;

		if (child >= count)
			break;
		if (child + 1 < count &&
			comes_before(members, &heap[child + 1], &heap[child]))
			child++;
		if (!comes_before(members, &heap[child], &heap[at]))
			break;
		sinking = heap[at];
		heap[at] = heap[child];
		heap[child] = sinking;
		at = child;
	}
}

/*
 * Make an object one of those whose members are taken.
 */
static inline void
add_source(Members *members, uint32 source, const JsonbContainer *object)
{
	members->object[source] = object;
	members->data[source] =
		(const char *) (object->children + 2 * JsonContainerSize(object));
}

/*
 * Begin to take the members of object in order, and with them those of below
 * (NULL: none), which follow given ones of the same name.  The objects must
 * stay where they are until members_close().  Answers interrupts; may raise
 * out of memory.
 */
void
members_open(RunStack *stack, Members *members, const JsonbContainer *object,
			 const JsonbContainer *below)
{
	uint32		count = JsonContainerSize(object);
	uint32		len = values_offset(object);

	members->first = members->bottom = stack->used;
	members->sorted = false;
	add_source(members, SOURCE_GIVEN, object);
	if (below == NULL && count <= SHAPE_NAMES && len <= SHAPE_BYTES)
		push_in_order(stack, members, count, len);
	else
		push_runs(stack, members, SOURCE_GIVEN);
	if (below != NULL)
	{
		add_source(members, SOURCE_BELOW, below);
		push_runs(stack, members, SOURCE_BELOW);
	}
	members->count = stack->used - members->bottom;
	if (members->sorted)
		return;
	for (Size at = members->count / 2; at-- > 0;)
		sift_down(members, stack->runs + members->bottom, at);
}

/*
 * Step a run on to its next member, which it must have; value_len is the
 * length of the present one's value.
 */
static inline void
advance(const Members *members, Run *run, uint32 value_len)
{
	run->value_at += value_len;
	run->key_at += run->key_len;
	run->index++;
	run->key_len = child_length(members->object[run->source]->children[run->index],
								run->key_at);
	run->lead = key_lead(members->data[run->source] + run->key_at, run->key_len);
}

/*
 * Let go of the member that a heap has on top.
 */
static void
drop_first(const RunStack *stack, Members *members, uint32 value_len)
{
	Run		   *heap = stack->runs + members->bottom;

	if (heap->index < heap->last)
		advance(members, heap, value_len);
	else
		heap[0] = heap[--members->count];
	if (members->count > 1)
		sift_down(members, heap, 0);
}

/*
 * Take the next member; false if there is none.  Other objects may have been
 * opened and closed since the last call, but not left open.
 */
bool
members_next(RunStack *stack, Members *members, Member *member)
{
	const Run  *run = stack->runs + members->first;
	const JsonbContainer *object;

	if (members->count == 0)
		return false;
	object = members->object[run->source];
	member->source = run->source;
	member->key = members->data[run->source] + run->key_at;
	member->key_len = run->key_len;
	member->entry = object->children[JsonContainerSize(object) + run->index];
	member->value = members->data[run->source] + run->value_at;
	member->value_len = child_length(member->entry, run->value_at);
	if (members->sorted)
	{
		members->first++;
		members->count--;
	}
	else
		drop_first(stack, members, member->value_len);
	return true;
}

/*
 * Take the member below the given one that was taken last, if there is one of
 * that name.
 */
bool
members_next_below(RunStack *stack, Members *members, const Member *given,
				   Member *below)
{
	const Run  *next = stack->runs + members->first;

	if (members->count == 0 || next->source != SOURCE_BELOW ||
		next->key_len != given->key_len ||
		memcmp(members->data[SOURCE_BELOW] + next->key_at, given->key,
			   given->key_len) != 0)
		return false;
	return members_next(stack, members, below);
}

/*
 * Take the object's runs off the stack.
 */
void
members_close(RunStack *stack, Members *members)
{
	stack->used = members->bottom;
}
