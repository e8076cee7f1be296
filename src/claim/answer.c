/*
 * answer.c
 *	  idem_answer: encoded for the caller, and decoded as a claim handle.
 *
 * The composite belongs to whatever schema the extension was installed into, and
 * an update may have added fields at its end: fields are known by their number.
 * The labels of its enums are resolved once per session and version of the type.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "claim/claim.h"

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

#define N_ENUMS (FIELD_ADVICE + 1)
#define MOST_LABELS (STATE_EXPIRED + 1)

/* Types of the fields, in their order; InvalidOid = an enum of the extension. */
static const Oid field_types[N_FIELDS] = {
	InvalidOid, InvalidOid, InvalidOid, UUIDOID, TEXTOID, TEXTOID, TEXTOID,
	INT8OID, INT4OID, JSONBOID, JSONBOID, INTERVALOID, INT4OID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID
};

/* Labels of the enums, by their values here. */
static const char *const labels[N_ENUMS][MOST_LABELS] = {
	[FIELD_VERDICT] = {"execute", "replay", "in_progress", "mismatch", "unknown", "expired"},
	[FIELD_STATE] = {"absent", "unconfirmed", "accepted", "processing", "succeeded", "failed",
	"unknown", "expired"},
	[FIELD_ADVICE] = {"run", "use_result", "retry_same_key", "new_key", "reconcile"},
};

/* What is known of the type; valid while identifier is the type's current one. */
typedef struct AnswerType
{
	TypeCacheEntry *entry;		/* of the session's cache; NULL = not known */
	uint64		identifier;
	MemoryContext context;
	TupleDesc	tupdesc;
	Oid			label_oids[N_ENUMS][MOST_LABELS];
} AnswerType;

static AnswerType answer_type = {NULL};

/*
 * Looks up the labels of the enums.  Raises 42804 unless the type has the fields
 * the script made.
 */
static void
resolve_fields(AnswerType *type)
{
	for (int i = 0; i < N_FIELDS; i++)
	{
		Form_pg_attribute att = i < type->tupdesc->natts ?
		TupleDescAttr(type->tupdesc, i) : NULL;

		if (att == NULL || att->attisdropped ||
			(i < N_ENUMS ? !type_is_enum(att->atttypid) : att->atttypid != field_types[i]))
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("type %s is not the one the extension made: field %d differs",
							format_type_be(type->entry->type_id), i + 1),
					 errhint("Run ALTER EXTENSION idempotency UPDATE, or drop and create the extension.")));
		for (int n = 0; i < N_ENUMS && n < MOST_LABELS && labels[i][n]; n++)
			type->label_oids[i][n] = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
													 ObjectIdGetDatum(att->atttypid),
													 CStringGetDatum(labels[i][n]));
	}
}

/*
 * Returns what is known of the composite type typid, resolved again if it has
 * changed.
 */
static const AnswerType *
answer_type_of(Oid typid)
{
	TypeCacheEntry *entry = answer_type.entry;
	AnswerType	type = {NULL};
	MemoryContext old;

	/* an entry stays for ever; a change of the type takes its identifier away */
	if (entry && entry->type_id == typid &&
		entry->tupDesc_identifier == answer_type.identifier)
		return &answer_type;
	entry = lookup_type_cache(typid, TYPECACHE_TUPDESC);
	if (entry->tupDesc == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("type %s is not a composite type",
						format_type_be(typid))));

	type.entry = entry;
	type.identifier = entry->tupDesc_identifier;
	type.context = AllocSetContextCreate(TopMemoryContext,
										 "idempotency answer type",
										 ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(type.context);
	type.tupdesc = CreateTupleDescCopy(entry->tupDesc);
	MemoryContextSwitchTo(old);
	BlessTupleDesc(type.tupdesc);
	resolve_fields(&type);
	if (answer_type.context)
		MemoryContextDelete(answer_type.context);
	answer_type = type;
	return &answer_type;
}

/* Makes an answer that says nothing yet but which key it is about. */
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

/*
 * Says that an open transaction has the key: that of the session with this pid,
 * 0 = a prepared one, NO_HOLDER = one that is not known.
 */
void
answer_tell_holder(Answer *answer, const Policy *policy, int32 holder)
{
	answer->state = STATE_PROCESSING;
	answer->advice = ADVICE_RETRY_SAME_KEY;
	answer->retry_after = record_retry_pause(policy);
	answer->holder = holder;
}

/* Says that this very transaction has claimed the key. */
void
answer_tell_own_claim(Answer *answer, const Policy *policy, const OpenClaim *open)
{
	answer_tell_holder(answer, policy, MyProcPid);
	answer->attempt = open->rec.attempt;
	answer->claimed_at = open->rec.claimed_at;
}

static Advice
advice_for(EffectiveState effective)
{
	switch (effective)
	{
		case EFFECTIVE_SUCCEEDED:
			return ADVICE_USE_RESULT;
		case EFFECTIVE_FAILED:
			return ADVICE_NEW_KEY;
		case EFFECTIVE_EXPIRED:
		case EFFECTIVE_UNKNOWN:
			return ADVICE_RECONCILE;
		default:
			return ADVICE_RETRY_SAME_KEY;
	}
}

/*
 * Says of a record what others than its owner may know.  The fence is made of
 * a reading of the clock, of which claimed_at to the microsecond would tell too
 * much.
 */
void
answer_tell_record(Answer *answer, const Policy *policy, const Record *rec,
				   EffectiveState effective, TimestampTz now)
{
	answer->state = record_shown_state(effective);
	answer->advice = advice_for(effective);
	answer->attempt = rec->attempt;
	if (effective != EFFECTIVE_EXPIRED)
	{
		answer->result = rec->result;
		answer->error = rec->error;
	}
	if (answer->advice == ADVICE_RETRY_SAME_KEY || answer->state == STATE_UNKNOWN)
		answer->retry_after = record_retry_after(policy, rec, effective, now);
	answer->claimed_at = rec->claimed_at - rec->claimed_at % 1000;
	answer->finished_at = rec->finished_at;
	answer->lease_until = rec->lease_until;
	answer->expires_at = rec->expires_at;
	answer->forget_at = rec->forget_at;
}

static Datum
label_oid(const AnswerType *type, Field field, int label)
{
	return ObjectIdGetDatum(type->label_oids[field][label]);
}

/* Fills a row with an answer, field by field. */
static void
put_answer(RowValues *row, const AnswerType *type, const Answer *answer, Interval *retry_after)
{
	const Identity *who = answer->who;

	retry_after->time = answer->retry_after;
	row_add(row, answer->verdict != VERDICT_NONE, label_oid(type, FIELD_VERDICT, answer->verdict));
	row_add(row, true, label_oid(type, FIELD_STATE, answer->state));
	row_add(row, true, label_oid(type, FIELD_ADVICE, answer->advice));
	row_add(row, true, UUIDPGetDatum(&who->id));
	row_add(row, true, CStringGetTextDatum(who->principal));
	row_add(row, true, CStringGetTextDatum(who->operation));
	row_add(row, true, CStringGetTextDatum(who->key));
	row_add(row, answer->fence != 0, Int64GetDatum(answer->fence));
	row_add(row, answer->attempt != NO_ATTEMPT, Int32GetDatum(answer->attempt));
	row_add(row, answer->result != (Datum) 0, answer->result);
	row_add(row, answer->error != (Datum) 0, answer->error);
	row_add(row, answer->retry_after > 0, IntervalPGetDatum(retry_after));
	row_add(row, answer->holder != NO_HOLDER, Int32GetDatum(answer->holder));
	row_add_time(row, answer->claimed_at);
	row_add_time(row, answer->finished_at);
	row_add_time(row, answer->lease_until);
	row_add_time(row, answer->expires_at);
	row_add_time(row, answer->forget_at);
	Assert(row->n == N_FIELDS);
}

/* Returns the answer as a row of the calling function's result type. */
static HeapTuple
answer_tuple(FunctionCallInfo fcinfo, const Answer *answer)
{
	Oid			typid = get_fn_expr_rettype(fcinfo->flinfo);
	const AnswerType *type;
	Interval	retry_after = {0};
	RowValues	row = {0};

	Assert(answer->who != NULL);
	Assert(answer->verdict <= VERDICT_NONE && answer->state <= STATE_EXPIRED);
	/* without an expression around the call only the catalog knows */
	if (!OidIsValid(typid))
		typid = get_func_rettype(fcinfo->flinfo->fn_oid);
	type = answer_type_of(typid);
	put_answer(&row, type, answer, &retry_after);
	return rows_form(type->tupdesc, row.n, row.values, row.nulls);
}

/* Returns the answer as a value of the calling function's result type. */
Datum
answer_datum(FunctionCallInfo fcinfo, const Answer *answer)
{
	return HeapTupleGetDatum(answer_tuple(fcinfo, answer));
}

/*
 * Puts the answer as one more row of the calling function, which has called
 * InitMaterializedSRF.
 */
void
answer_put(FunctionCallInfo fcinfo, const Answer *answer)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	tuplestore_puttuple(rsinfo->setResult, answer_tuple(fcinfo, answer));
}

/*
 * Hands an answer to the request log.  Members may be missing that do not apply.
 */
void
answer_log(const Call *call, const Answer *answer)
{
	const Policy *policy = call->policy;
	RequestAnswer logged = {
		.verdict = answer->verdict == VERDICT_NONE ? NULL : labels[FIELD_VERDICT][answer->verdict],
		.state = labels[FIELD_STATE][answer->state],
		.attempt = answer->attempt,
	};

	if (!request_is_logged())
		return;
	if (policy->resource_pointer && answer->result != (Datum) 0)
		logged.resource = pointer_text(policy->resource_pointer,
									   DatumGetJsonbP(answer->result));
	if (policy->error_pointer && answer->error != (Datum) 0)
		logged.error_class = pointer_text(policy->error_pointer,
										  DatumGetJsonbP(answer->error));
	request_answered(call, &logged);
}

/* A row being decoded. */
typedef struct Row
{
	const AnswerType *type;
	Datum	   *values;
	bool	   *nulls;
} Row;

static text *
get_text(const Row *row, Field field)
{
	return row->nulls[field] ? NULL : DatumGetTextPP(row->values[field]);
}

/*
 * Returns which of the n labels of an enum a field has; n if it is NULL or has
 * another one.
 */
static int
get_label(const Row *row, Field field, int n)
{
	const Oid  *oids = row->type->label_oids[field];
	int			i = row->nulls[field] ? n : 0;

	while (i < n && oids[i] != DatumGetObjectId(row->values[field]))
		i++;
	return i;
}

/*
 * Decodes an idem_answer argument.  Raises 22023 if it is NULL.  What is decoded
 * points into the argument.
 */
void
answer_decode(FunctionCallInfo fcinfo, int argno, DecodedAnswer *decoded)
{
	HeapTupleHeader header;
	HeapTupleData tuple;
	Row			row;
	TupleDesc	tupdesc;

	if (PG_ARGISNULL(argno))
		REFUSE_ARGUMENT(errmsg("the answer handed over must not be null"),
						errhint("Hand over the answer of idem_claim() as it came."));
	header = PG_GETARG_HEAPTUPLEHEADER(argno);
	row.type = answer_type_of(HeapTupleHeaderGetTypeId(header));
	tupdesc = row.type->tupdesc;
	row.values = palloc(tupdesc->natts * sizeof(Datum));
	row.nulls = palloc(tupdesc->natts * sizeof(bool));
	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = header;
	heap_deform_tuple(&tuple, tupdesc, row.values, row.nulls);

	decoded->verdict = get_label(&row, FIELD_VERDICT, VERDICT_NONE);
	decoded->state = get_label(&row, FIELD_STATE, MOST_LABELS);
	decoded->has_state = decoded->state < MOST_LABELS;
	decoded->retryable = get_label(&row, FIELD_ADVICE, ADVICE_RECONCILE + 1) == ADVICE_RETRY_SAME_KEY;
	decoded->has_id = !row.nulls[FIELD_ID];
	if (decoded->has_id)
		decoded->id = *DatumGetUUIDP(row.values[FIELD_ID]);
	decoded->principal = get_text(&row, FIELD_PRINCIPAL);
	decoded->operation = get_text(&row, FIELD_OPERATION);
	decoded->key = get_text(&row, FIELD_KEY);
	decoded->has_fence = !row.nulls[FIELD_FENCE];
	decoded->fence = decoded->has_fence ? DatumGetInt64(row.values[FIELD_FENCE]) : 0;
	decoded->result = row.nulls[FIELD_RESULT] ? (Datum) 0 : row.values[FIELD_RESULT];
	decoded->error = row.nulls[FIELD_ERROR] ? (Datum) 0 : row.values[FIELD_ERROR];
}
