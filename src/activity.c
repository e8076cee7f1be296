/*-------------------------------------------------------------------------
 *
 * activity.c
 *	  Which claims other transactions have in hand right now, from the lock
 *	  table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"

#include "compat.h"
#include "idempotency.h"

PG_FUNCTION_INFO_V1(idem_claims_held);

/*
 * claims_held(): a row for each lock of an id that is held in this database:
 * the half of the id a lock can carry, as the end of its text, and who holds
 * it, 0 if a prepared transaction does.
 */
Datum
idem_claims_held(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LockData   *locks;

	InitMaterializedSRF(fcinfo, 0);
	locks = GetLockStatusData();
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];
		Datum		values[2];
		bool		nulls[2] = {false};
		uint8		half[8];

		if (lock->holdMask == 0 || !permit_lock_is_ours(&lock->locktag, half))
			continue;
		values[0] = CStringGetTextDatum(psprintf("%02x%02x-%02x%02x%02x%02x%02x%02x",
												 half[0], half[1], half[2], half[3],
												 half[4], half[5], half[6], half[7]));
		values[1] = Int32GetDatum(lock->pid);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
