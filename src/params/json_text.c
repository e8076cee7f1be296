/*
 * json_text.c
 *	  Raw JSON text as a jsonb, unless it names a member twice.
 *
 * The server's own parser reads the text, so what is JSON here is what is JSON
 * there.  A cast to jsonb would silently take the last of two members of one
 * name, though readers disagree about which counts, and its errors would show
 * a piece of the text.
 *
 * pushJsonbValue() itself removes the members that occur twice when an object
 * ends; that there are fewer then is how they are found.
 */
#include "postgres.h"

#include "params/params.h"
#include "miscadmin.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

typedef struct Parsing
{
	JsonLexContext *lex;
	JsonbParseState *state;		/* what is open */
	JsonbValue *result;
	JsonbValue	scalar;			/* the text, if there is no result */
	int			twice_at;		/* the position where an object ends with two
								 * members of one name; 0 = none does */
} Parsing;

/* Returns where the last token ends, counted in bytes from 1. */
static int
end_of_token(const JsonLexContext *lex)
{
	return lex->prev_token_terminator - lex->input;
}

/* Adds the beginning or end of a container, a name or a value. */
static void
push(Parsing *parsing, JsonbIteratorToken token, JsonbValue *value)
{
	CHECK_FOR_INTERRUPTS();
	parsing->result = pushJsonbValue(&parsing->state, token, value);
}

static CompatJsonResult
on_object_start(void *arg)
{
	push(arg, WJB_BEGIN_OBJECT, NULL);
	COMPAT_JSON_RETURN();
}

static CompatJsonResult
on_object_end(void *arg)
{
	Parsing    *parsing = arg;
	int			given = parsing->state->contVal.val.object.nPairs;

	push(parsing, WJB_END_OBJECT, NULL);
	if (parsing->result->val.object.nPairs < given && parsing->twice_at == 0)
		parsing->twice_at = end_of_token(parsing->lex);
	COMPAT_JSON_RETURN();
}

static CompatJsonResult
on_array_start(void *arg)
{
	push(arg, WJB_BEGIN_ARRAY, NULL);
	COMPAT_JSON_RETURN();
}

static CompatJsonResult
on_array_end(void *arg)
{
	push(arg, WJB_END_ARRAY, NULL);
	COMPAT_JSON_RETURN();
}

static CompatJsonResult
on_member(void *arg, char *name, bool is_null)
{
	JsonbValue	value = {.type = jbvString,.val.string = {strlen(name), name}};

	push(arg, WJB_KEY, &value);
	COMPAT_JSON_RETURN();
}

static CompatJsonResult
on_scalar(void *arg, char *token, JsonTokenType type)
{
	Parsing    *parsing = arg;
	JsonbValue	value;

	switch (type)
	{
		case JSON_TOKEN_STRING:
			value.type = jbvString;
			value.val.string.val = token;
			value.val.string.len = strlen(token);
			break;
		case JSON_TOKEN_NUMBER:
			value.type = jbvNumeric;
			value.val.numeric =
				DatumGetNumeric(DirectFunctionCall3(numeric_in,
													CStringGetDatum(token),
													ObjectIdGetDatum(InvalidOid),
													Int32GetDatum(-1)));
			break;
		case JSON_TOKEN_NULL:
			value.type = jbvNull;
			break;
		default:
			value.type = jbvBool;
			value.val.boolean = type == JSON_TOKEN_TRUE;
			break;
	}
	if (parsing->state == NULL)
		parsing->scalar = value;
	else
		push(parsing, parsing->state->contVal.type == jbvArray ? WJB_ELEM : WJB_VALUE, &value);
	COMPAT_JSON_RETURN();
}

pg_noreturn static void
refuse_text(const Normalisation *norm, const char *problem, int at)
{
	canonical_refuse(norm, psprintf("%s at byte %d of the text.", problem, at));
}

pg_noreturn static void
refuse_token(const Normalisation *norm, const JsonLexContext *lex,
			 JsonParseErrorType error)
{
	const char *at = lex->token_start ? lex->token_start : lex->token_terminator;
	const char *problem;

	switch (error)
	{
		case JSON_UNICODE_CODE_POINT_ZERO:
			problem = "A string with U+0000, which jsonb cannot hold, is";
			break;
		case JSON_UNICODE_HIGH_SURROGATE:
		case JSON_UNICODE_LOW_SURROGATE:
			problem = "A string with half of a surrogate pair is";
			break;
		case COMPAT_JSON_UNTRANSLATABLE:
			problem = "A string with a character the encoding of the database cannot hold is";
			break;
		default:
			problem = "What is not JSON (RFC 8259) is";
	}
	refuse_text(norm, problem, at - lex->input + 1);
}

/*
 * Parses a text.  Raises 22032 for what the parser refuses or what raises an
 * error that shows a piece of the text: a number that no numeric can hold, and
 * before PostgreSQL 16 a character that the encoding of the database cannot.
 */
static void
parse_text(Parsing *parsing, const Normalisation *norm)
{
	JsonSemAction actions = {
		.semstate = parsing,
		.object_start = on_object_start,
		.object_end = on_object_end,
		.array_start = on_array_start,
		.array_end = on_array_end,
		.object_field_start = on_member,
		.scalar = on_scalar
	};
	MemoryContext caller = CurrentMemoryContext;
	JsonParseErrorType error;

	PG_TRY();
	{
		error = pg_parse_json(parsing->lex, &actions);
	}
	PG_CATCH();
	{
		int			code = geterrcode();

		if (ERRCODE_TO_CATEGORY(code) != ERRCODE_DATA_EXCEPTION &&
			code != ERRCODE_FEATURE_NOT_SUPPORTED)
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
		if (code == ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE)
			refuse_text(norm, "A number beyond the range or precision of numeric ends",
						end_of_token(parsing->lex));
		refuse_token(norm, parsing->lex, COMPAT_JSON_UNTRANSLATABLE);
	}
	PG_END_TRY();
	if (error != JSON_SUCCESS)
		refuse_token(norm, parsing->lex, error);
	if (parsing->twice_at > 0)
		refuse_text(norm, "An object with two members of one name ends",
					parsing->twice_at);
}

/*
 * Returns the value of a JSON text in the encoding of the database, which must
 * be detoasted.  norm may be NULL.  Raises 22032 for what jsonb does not take
 * and for two members of one name, 54001 when nesting is too deep.
 */
Jsonb *
json_text_value(const text *params, const Normalisation *norm)
{
	MemoryContext working = AllocSetContextCreate(CurrentMemoryContext,
												  "idempotency JSON text",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext result = MemoryContextSwitchTo(working);
	Parsing		parsing = {0};
	Jsonb	   *value;

	Assert(!VARATT_IS_EXTERNAL(params) && !VARATT_IS_COMPRESSED(params));
	parsing.lex = compat_json_lexer(VARDATA_ANY(params),
									VARSIZE_ANY_EXHDR(params));
	parse_text(&parsing, norm);
	MemoryContextSwitchTo(result);
	value = JsonbValueToJsonb(parsing.result ? parsing.result : &parsing.scalar);
	MemoryContextDelete(working);
	return value;
}
