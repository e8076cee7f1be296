/*-------------------------------------------------------------------------
 *
 * answer.c
 *	  idem_answer: built for the caller, and read back as a permit.
 *
 * The composite may have grown by an update, and belongs to whatever schema
 * the extension was installed into, so nothing about it is known at compile
 * time but the names of its attributes and the labels of its enums.  They are
 * resolved once per session and version of the type.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "compat.h"
#include "idempotency.h"

typedef enum Field
{
	FIELD_VERDICT,
	FIELD_STATE,
	FIELD_ADVICE,
	FIELD_ID,
	FIELD_PRINCIPAL,
	FIELD_OPERATION,
	FIELD_KEY,
	FIELD_FENCE,
	FIELD_ATTEMPT,
	FIELD_RESULT,
	FIELD_ERROR,
	FIELD_RETRY_AFTER,
	FIELD_HOLDER,
	FIELD_CLAIMED_AT,
	FIELD_FINISHED_AT,
	FIELD_LEASE_UNTIL,
	FIELD_EXPIRES_AT,
	FIELD_FORGET_AT
} Field;

#define N_FIELDS (FIELD_FORGET_AT + 1)

static const char *const field_names[N_FIELDS] = {
	"verdict", "state", "advice", "id", "principal", "operation", "key",
	"fence", "attempt", "result", "error", "retry_after", "holder",
	"claimed_at", "finished_at", "lease_until", "expires_at", "forget_at"
};

/* Types of the fields; InvalidOid = an enum of ours. */
static const Oid field_types[N_FIELDS] = {
	InvalidOid, InvalidOid, InvalidOid, UUIDOID, TEXTOID, TEXTOID, TEXTOID,
	INT8OID, INT4OID, JSONBOID, JSONBOID, INTERVALOID, INT4OID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID
};

#define N_VERDICTS VERDICT_NONE
#define N_STATES (STATE_EXPIRED + 1)
#define N_ADVICES (ADVICE_RECONCILE + 1)

static const char *const verdict_labels[N_VERDICTS] = {
	"execute", "replay", "in_progress", "mismatch", "unknown", "expired"
};

static const char *const state_labels[N_STATES] = {
	"absent", "unconfirmed", "accepted", "processing", "succeeded", "failed",
	"unknown", "expired"
};

static const char *const advice_labels[N_ADVICES] = {
	"run", "use_result", "retry_same_key", "new_key", "reconcile"
};

/*
 * The label of a verdict; NULL if there is none.
 */
const char *
answer_verdict_label(Verdict verdict)
{
	return verdict == VERDICT_NONE ? NULL : verdict_labels[verdict];
}

/*
 * The label of a state.
 */
const char *
answer_state_label(State state)
{
	return state_labels[state];
}

/* What is known of the type; valid while identifier is the type's current one. */
typedef struct AnswerType
{
	Oid			typid;
	uint64		identifier;
	MemoryContext context;
	TupleDesc	tupdesc;
	int			column[N_FIELDS];	/* zero-based; -1 = the type has none */
	Oid			verdicts[N_VERDICTS];
	Oid			states[N_STATES];
	Oid			advices[N_ADVICES];
} AnswerType;

static AnswerType answer_type = {InvalidOid};

/*
 * Look up the labels of the enum behind a field.
 */
static void
resolve_labels(const AnswerType *type, Field field, Oid *oids,
			   const char *const *labels, int n)
{
	Oid			enumtype = TupleDescAttr(type->tupdesc,
										 type->column[field])->atttypid;

	for (int i = 0; i < n; i++)
		oids[i] = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
								  ObjectIdGetDatum(enumtype),
								  CStringGetDatum(labels[i]));
}

/*
 * Fill in where each field is.  Raises 42804 if the type lacks one: it is not
 * the one the script made.
 */
static void
resolve_columns(AnswerType *type)
{
	for (int i = 0; i < N_FIELDS; i++)
	{
		type->column[i] = -1;
		for (int a = 0; a < type->tupdesc->natts; a++)
		{
			Form_pg_attribute att = TupleDescAttr(type->tupdesc, a);

			if (!att->attisdropped &&
				strcmp(NameStr(att->attname), field_names[i]) == 0 &&
				(OidIsValid(field_types[i]) ? att->atttypid == field_types[i] :
				 type_is_enum(att->atttypid)))
				type->column[i] = a;
		}
		if (type->column[i] < 0)
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("type %s has no attribute \"%s\" of the right type",
							format_type_be(type->typid), field_names[i]),
					 errhint("Run ALTER EXTENSION idempotency UPDATE.")));
	}
}

/*
 * What is known of the composite type typid, resolved again if it changed.
 */
static const AnswerType *
answer_type_of(Oid typid)
{
	TypeCacheEntry *entry = lookup_type_cache(typid, TYPECACHE_TUPDESC);
	AnswerType	type = {InvalidOid};
	MemoryContext old;

	if (entry->tupDesc == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("type %s is not a composite type",
						format_type_be(typid))));
	if (answer_type.typid == typid &&
		answer_type.identifier == entry->tupDesc_identifier)
		return &answer_type;

	type.typid = typid;
	type.identifier = entry->tupDesc_identifier;
	type.context = AllocSetContextCreate(TopMemoryContext,
										 "idempotency answer type",
										 ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(type.context);
	type.tupdesc = CreateTupleDescCopy(entry->tupDesc);
	MemoryContextSwitchTo(old);
	BlessTupleDesc(type.tupdesc);
	resolve_columns(&type);
	resolve_labels(&type, FIELD_VERDICT, type.verdicts, verdict_labels, N_VERDICTS);
	resolve_labels(&type, FIELD_STATE, type.states, state_labels, N_STATES);
	resolve_labels(&type, FIELD_ADVICE, type.advices, advice_labels, N_ADVICES);

	if (answer_type.context)
		MemoryContextDelete(answer_type.context);
	answer_type = type;
	return &answer_type;
}

/*
 * An answer that says nothing yet but whom it is about.
 */
void
answer_init(Answer *answer, const Identity *who)
{
	memset(answer, 0, sizeof(*answer));
	answer->verdict = VERDICT_NONE;
	answer->who = who;
	answer->holder = NO_HOLDER;
	answer->attempt = NO_ATTEMPT;
	answer->claimed_at = NEVER;
	answer->finished_at = NEVER;
	answer->lease_until = NEVER;
	answer->expires_at = NEVER;
	answer->forget_at = NEVER;
}

/* The row under construction. */
typedef struct Row
{
	const AnswerType *type;
	Datum	   *values;
	bool	   *nulls;
} Row;

static void
put(Row *row, Field field, Datum value)
{
	int			column = row->type->column[field];

	row->values[column] = value;
	row->nulls[column] = false;
}

static void
put_time(Row *row, Field field, TimestampTz time)
{
	if (time != NEVER)
		put(row, field, TimestampTzGetDatum(time));
}

/*
 * Fill the fields that name the record.
 */
static void
put_identity(Row *row, const Identity *who)
{
	put(row, FIELD_ID, UUIDPGetDatum(&who->id));
	put(row, FIELD_PRINCIPAL, CStringGetTextDatum(who->principal));
	put(row, FIELD_OPERATION, CStringGetTextDatum(who->operation));
	put(row, FIELD_KEY, CStringGetTextDatum(who->key));
}

/*
 * Fill the rest.
 */
static void
put_answer(Row *row, const Answer *answer)
{
	if (answer->verdict != VERDICT_NONE)
		put(row, FIELD_VERDICT,
			ObjectIdGetDatum(row->type->verdicts[answer->verdict]));
	put(row, FIELD_STATE, ObjectIdGetDatum(row->type->states[answer->state]));
	put(row, FIELD_ADVICE, ObjectIdGetDatum(row->type->advices[answer->advice]));
	if (answer->fence != 0)
		put(row, FIELD_FENCE, Int64GetDatum(answer->fence));
	if (answer->attempt != NO_ATTEMPT)
		put(row, FIELD_ATTEMPT, Int32GetDatum(answer->attempt));
	if (answer->result != (Datum) 0)
		put(row, FIELD_RESULT, answer->result);
	if (answer->error != (Datum) 0)
		put(row, FIELD_ERROR, answer->error);
	if (answer->retry_after > 0)
	{
		Interval   *span = palloc0(sizeof(Interval));

		span->time = answer->retry_after;
		put(row, FIELD_RETRY_AFTER, IntervalPGetDatum(span));
	}
	if (answer->holder != NO_HOLDER)
		put(row, FIELD_HOLDER, Int32GetDatum(answer->holder));
	put_time(row, FIELD_CLAIMED_AT, answer->claimed_at);
	put_time(row, FIELD_FINISHED_AT, answer->finished_at);
	put_time(row, FIELD_LEASE_UNTIL, answer->lease_until);
	put_time(row, FIELD_EXPIRES_AT, answer->expires_at);
	put_time(row, FIELD_FORGET_AT, answer->forget_at);
}

/*
 * The answer as a row of the calling function's result type.
 */
static HeapTuple
answer_tuple(FunctionCallInfo fcinfo, const Answer *answer)
{
	Row			row;
	int			natts;

	row.type = answer_type_of(get_func_rettype(fcinfo->flinfo->fn_oid));
	natts = row.type->tupdesc->natts;
	row.values = palloc0(natts * sizeof(Datum));
	row.nulls = palloc(natts * sizeof(bool));
	memset(row.nulls, true, natts * sizeof(bool));
	put_identity(&row, answer->who);
	put_answer(&row, answer);
	return heap_form_tuple(row.type->tupdesc, row.values, row.nulls);
}

/*
 * The answer as a value of the calling function's result type.
 */
Datum
answer_datum(FunctionCallInfo fcinfo, const Answer *answer)
{
	return HeapTupleGetDatum(answer_tuple(fcinfo, answer));
}

/*
 * The answer as one more row of the calling function, which has called
 * InitMaterializedSRF.
 */
void
answer_put(FunctionCallInfo fcinfo, const Answer *answer)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	tuplestore_puttuple(rsinfo->setResult, answer_tuple(fcinfo, answer));
}

/* An answer taken apart. */
typedef struct Parts
{
	const AnswerType *type;
	Datum	   *values;
	bool	   *nulls;
} Parts;

/*
 * The value of a field; false if it is NULL.
 */
static bool
get(const Parts *parts, Field field, Datum *value)
{
	int			column = parts->type->column[field];

	*value = parts->values[column];
	return !parts->nulls[column];
}

static text *
get_text(const Parts *parts, Field field)
{
	Datum		value;

	return get(parts, field, &value) ? DatumGetTextPP(value) : NULL;
}

/*
 * Index of an enum field's label, or n if it is NULL or one we do not know.
 */
static int
get_label(const Parts *parts, Field field, const Oid *oids, int n)
{
	Datum		value;
	int			i;

	if (!get(parts, field, &value))
		return n;
	for (i = 0; i < n; i++)
	{
		if (oids[i] == DatumGetObjectId(value))
			break;
	}
	return i;
}

/*
 * Take an idem_answer argument apart.  Raises 22023 if it is NULL.  What is
 * handed over points into the argument.
 */
void
answer_read(FunctionCallInfo fcinfo, int argno, Handed *handed)
{
	HeapTupleHeader header;
	HeapTupleData tuple;
	Parts		parts;
	Datum		value;
	int			state;

	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the answer handed over must not be null"),
				 errhint("Hand over the answer of idem_claim() as it came.")));
	header = PG_GETARG_HEAPTUPLEHEADER(argno);
	parts.type = answer_type_of(HeapTupleHeaderGetTypeId(header));
	parts.values = palloc(parts.type->tupdesc->natts * sizeof(Datum));
	parts.nulls = palloc(parts.type->tupdesc->natts * sizeof(bool));
	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = header;
	heap_deform_tuple(&tuple, parts.type->tupdesc, parts.values, parts.nulls);

	memset(handed, 0, sizeof(*handed));
	handed->verdict = get_label(&parts, FIELD_VERDICT, parts.type->verdicts,
								N_VERDICTS);
	state = get_label(&parts, FIELD_STATE, parts.type->states, N_STATES);
	handed->has_state = state < N_STATES;
	if (handed->has_state)
		handed->state = state;
	handed->has_id = get(&parts, FIELD_ID, &value);
	if (handed->has_id)
		handed->id = *DatumGetUUIDP(value);
	handed->principal = get_text(&parts, FIELD_PRINCIPAL);
	handed->operation = get_text(&parts, FIELD_OPERATION);
	handed->key = get_text(&parts, FIELD_KEY);
	handed->has_fence = get(&parts, FIELD_FENCE, &value);
	if (handed->has_fence)
		handed->fence = DatumGetInt64(value);
	handed->has_claimed_at = get(&parts, FIELD_CLAIMED_AT, &value);
	if (handed->has_claimed_at)
		handed->claimed_at = DatumGetTimestampTz(value);
	if (get(&parts, FIELD_RESULT, &value))
		handed->result = value;
	if (get(&parts, FIELD_ERROR, &value))
		handed->error = value;
}
