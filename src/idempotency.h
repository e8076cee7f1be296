/*
 * idempotency.h
 *	  SQLSTATEs, limits and argument macros of the whole extension.
 */
#ifndef IDEMPOTENCY_H
#define IDEMPOTENCY_H

#include "fmgr.h"
#include "utils/timestamp.h"

#include "compat.h"

/* An argument of type text; NULL for SQL NULL. */
#define ARG_TEXT(n) (PG_ARGISNULL(n) ? NULL : PG_GETARG_TEXT_PP(n))

/* Defines a SQL function; its body follows. */
#define SQL_FUNCTION(name) \
	PG_FUNCTION_INFO_V1(name); \
	Datum \
	name(PG_FUNCTION_ARGS)

/* SQLSTATEs of our own. */
#define ERRCODE_IDEM_NO_CLAIM		MAKE_SQLSTATE('I','D','0','0','1')
#define ERRCODE_IDEM_NOT_YOURS		MAKE_SQLSTATE('I','D','0','0','2')
#define ERRCODE_IDEM_LEFT_OPEN		MAKE_SQLSTATE('I','D','0','0','3')
#define ERRCODE_IDEM_RESULT_TOO_LARGE MAKE_SQLSTATE('I','D','0','0','4')
#define ERRCODE_IDEM_IN_PROGRESS	MAKE_SQLSTATE('I','D','0','1','0')
#define ERRCODE_IDEM_MISMATCH		MAKE_SQLSTATE('I','D','0','1','1')
#define ERRCODE_IDEM_UNKNOWN		MAKE_SQLSTATE('I','D','0','1','2')
#define ERRCODE_IDEM_EXPIRED		MAKE_SQLSTATE('I','D','0','1','3')
#define ERRCODE_IDEM_FAILED			MAKE_SQLSTATE('I','D','0','1','4')
#define ERRCODE_IDEM_ID_COLLISION	MAKE_SQLSTATE('I','D','0','9','9')

/* Raises 22023 about an argument; message is an errmsg(), hint an errhint(). */
#define REFUSE_ARGUMENT(message, hint) \
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), message, hint))

/* A time that does not come: stored as NULL, compares later than any other. */
#define NEVER DT_NOEND

#define NO_LIMIT	(-1)		/* JSON null in a setting */

#define LIBRARY_NAME "idempotency"
#define LIBRARY_VERSION "1.0"	/* of the script that belongs to it */

#endif							/* IDEMPOTENCY_H */
