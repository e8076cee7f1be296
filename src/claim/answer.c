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

/* The first fields, whose types are enums of the extension. */
typedef enum Label
{
	LABEL_VERDICT,
	LABEL_STATE,
	LABEL_ADVICE,
	N_LABELS
} Label;

#define MOST_LABELS (STATE_EXPIRED + 1)

/* Types of the fields; InvalidOid = an enum of the extension. */
static const Oid field_types[] = {
	InvalidOid, InvalidOid, InvalidOid, UUIDOID, TEXTOID, TEXTOID, TEXTOID,
	INT8OID, INT4OID, JSONBOID, JSONBOID, INTERVALOID, INT4OID,
	TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID
};

#define N_FIELDS ((int) lengthof(field_types))

/* Labels of the enums, by their values here. */
static const char *const labels[N_LABELS][MOST_LABELS] = {
	[LABEL_VERDICT] = {"execute", "replay", "in_progress", "mismatch", "unknown", "expired"},
	[LABEL_STATE] = {"absent", "unconfirmed", "accepted", "processing", "succeeded", "failed",
	"unknown", "expired"},
	[LABEL_ADVICE] = {"run", "use_result", "retry_same_key", "new_key", "reconcile"},
};

/* What is known of the type; valid while identifier is the type's current one. */
typedef struct AnswerType
{
	TypeCacheEntry *entry;		/* of the session's cache; NULL = not known */
	uint64		identifier;
	TupleDesc	tupdesc;
	Oid			label_oids[N_LABELS][MOST_LABELS];
} AnswerType;

static AnswerType answer_type = {NULL};

/* Looks up the labels.  Raises 42804 unless the type has the fields the script made. */
static void
resolve_fields(AnswerType *type)
{
	int			natts = type->tupdesc ? type->tupdesc->natts : 0;

	for (int i = 0; i < N_FIELDS; i++)
	{
		Form_pg_attribute att = i < natts ? TupleDescAttr(type->tupdesc, i) : NULL;

		if (att == NULL || att->attisdropped ||
			(i < N_LABELS ? !type_is_enum(att->atttypid) : att->atttypid != field_types[i]))
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("type %s is not the one the extension made: field %d differs",
							format_type_be(type->entry->type_id), i + 1),
					 errhint("Run ALTER EXTENSION idempotency UPDATE, or drop and create the extension.")));
		for (int n = 0; i < N_LABELS && n < MOST_LABELS && labels[i][n]; n++)
			type->label_oids[i][n] = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid,
													 ObjectIdGetDatum(att->atttypid),
													 CStringGetDatum(labels[i][n]));
	}
}

/* Returns what is known of a composite type, resolved again if it has changed. */
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
	type.entry = entry = lookup_type_cache(typid, TYPECACHE_TUPDESC);
	type.identifier = entry->tupDesc_identifier;
	type.tupdesc = entry->tupDesc ? CreateTupleDescCopy(entry->tupDesc) : NULL;
	resolve_fields(&type);
	old = MemoryContextSwitchTo(TopMemoryContext);
	type.tupdesc = CreateTupleDescCopy(type.tupdesc);
	MemoryContextSwitchTo(old);
	if (answer_type.tupdesc)
		FreeTupleDesc(answer_type.tupdesc);
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
	answer->claimed_at = answer->finished_at = answer->lease_until = NEVER;
	answer->expires_at = answer->forget_at = NEVER;
}

/* Says which session has the key open: its pid, 0 = prepared, NO_HOLDER = not known. */
void
answer_tell_holder(Answer *answer, const Policy *policy, int32 holder)
{
	answer->state = STATE_PROCESSING;
	answer->advice = ADVICE_RETRY_SAME_KEY;
	answer->retry_after = record_retry_pause(policy);
	answer->holder = holder;
}

/* Makes an answer that says that this very transaction has claimed the key. */
void
answer_own_claim(Answer *answer, const Identity *who, const Policy *policy,
				 const OpenClaim *open)
{
	answer_init(answer, who);
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
 * Says of a record what others than its owner may know.  The fence is a reading of
 * the clock, of which claimed_at to the microsecond would tell too much.
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

static void
add_label(RowValues *row, const AnswerType *type, Label which, int label)
{
	row_add(row, true, ObjectIdGetDatum(type->label_oids[which][label]));
}

/* Returns the answer as a row of the calling function's result type. */
static HeapTuple
answer_tuple(FunctionCallInfo fcinfo, const Answer *answer)
{
	Oid			typid = get_fn_expr_rettype(fcinfo->flinfo);
	const Identity *who = answer->who;
	const AnswerType *type;
	Interval	retry_after = {.time = answer->retry_after};
	RowValues	row = {0};

	Assert(who != NULL);
	Assert(answer->verdict <= VERDICT_NONE && answer->state <= STATE_EXPIRED);
	/* without an expression around the call only the catalog knows */
	if (!OidIsValid(typid))
		typid = get_func_rettype(fcinfo->flinfo->fn_oid);
	type = answer_type_of(typid);

	if (answer->verdict == VERDICT_NONE)
		row_add(&row, false, (Datum) 0);
	else
		add_label(&row, type, LABEL_VERDICT, answer->verdict);
	add_label(&row, type, LABEL_STATE, answer->state);
	add_label(&row, type, LABEL_ADVICE, answer->advice);
	row_add(&row, true, UUIDPGetDatum(&who->id));
	row_add(&row, true, CStringGetTextDatum(who->principal));
	row_add(&row, true, CStringGetTextDatum(who->operation));
	row_add(&row, true, CStringGetTextDatum(who->key));
	row_add(&row, answer->fence != 0, Int64GetDatum(answer->fence));
	row_add(&row, answer->attempt != NO_ATTEMPT, Int32GetDatum(answer->attempt));
	row_add(&row, answer->result != (Datum) 0, answer->result);
	row_add(&row, answer->error != (Datum) 0, answer->error);
	row_add(&row, answer->retry_after > 0, IntervalPGetDatum(&retry_after));
	row_add(&row, answer->holder != NO_HOLDER, Int32GetDatum(answer->holder));
	row_add_time(&row, answer->claimed_at);
	row_add_time(&row, answer->finished_at);
	row_add_time(&row, answer->lease_until);
	row_add_time(&row, answer->expires_at);
	row_add_time(&row, answer->forget_at);
	Assert(row.n == N_FIELDS);
	return rows_form(type->tupdesc, row.n, row.values, row.nulls);
}

/* Returns the answer as a value of the calling function's result type. */
Datum
answer_datum(FunctionCallInfo fcinfo, const Answer *answer)
{
	return HeapTupleGetDatum(answer_tuple(fcinfo, answer));
}

/* Puts one more row, after InitMaterializedSRF(). */
void
answer_put(FunctionCallInfo fcinfo, const Answer *answer)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	tuplestore_puttuple(rsinfo->setResult, answer_tuple(fcinfo, answer));
}

/* Hands an answer to the request log.  Members may be missing that do not apply. */
void
answer_log(const Call *call, const Answer *answer)
{
	request_answered(call, answer->verdict == VERDICT_NONE ? NULL :
					 labels[LABEL_VERDICT][answer->verdict],
					 labels[LABEL_STATE][answer->state], answer->attempt,
					 answer->result, answer->error);
}

/* Returns which label the next field has, of n; n if it is NULL or has another. */
static int
next_label(RowValues *row, const Oid *oids, int n)
{
	Datum		value = row_next(row);
	int			i = value == (Datum) 0 ? n : 0;

	while (i < n && oids[i] != DatumGetObjectId(value))
		i++;
	return i;
}

/* Decodes an argument; what is decoded points into it.  Raises 22023 if it is NULL. */
void
answer_decode(FunctionCallInfo fcinfo, int argno, DecodedAnswer *decoded)
{
	HeapTupleHeader header;
	HeapTupleData tuple = {0};
	const AnswerType *type;
	RowValues	row;
	Datum		fence;

	if (PG_ARGISNULL(argno))
		REFUSE_ARGUMENT(errmsg("the answer handed over must not be null"),
						errhint("Hand over the answer of idem_claim() as it came."));
	header = PG_GETARG_HEAPTUPLEHEADER(argno);
	type = answer_type_of(HeapTupleHeaderGetTypeId(header));
	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	tuple.t_data = header;
	row_begin(&row, type->tupdesc, &tuple, N_FIELDS);

	decoded->verdict = next_label(&row, type->label_oids[LABEL_VERDICT], VERDICT_NONE);
	decoded->state = next_label(&row, type->label_oids[LABEL_STATE], MOST_LABELS);
	decoded->retryable = next_label(&row, type->label_oids[LABEL_ADVICE],
									ADVICE_RECONCILE + 1) == ADVICE_RETRY_SAME_KEY;
	decoded->id = (pg_uuid_t *) DatumGetPointer(row_next(&row));
	decoded->principal = row_next_text(&row);
	decoded->operation = row_next_text(&row);
	decoded->key = row_next_text(&row);
	fence = row_next(&row);
	decoded->fence = fence == (Datum) 0 ? 0 : DatumGetInt64(fence);
	(void) row_next(&row);		/* attempt */
	decoded->result = row_next(&row);
	decoded->error = row_next(&row);
}
