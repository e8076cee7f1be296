/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Everything that differs between PostgreSQL 15, 16, 17 and 18.
 *
 * The only file of the tree that looks at PG_VERSION_NUM.  The visible name
 * is always the newest one; older servers get it by a definition here.
 * Entries are in alphabetical order.
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEMPOTENCY_COMPAT_H
#define IDEMPOTENCY_COMPAT_H

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 190000
#error "idempotency supports PostgreSQL 15 to 18"
#endif

/* 16: varlena macros moved out of postgres.h */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

#endif							/* IDEMPOTENCY_COMPAT_H */
