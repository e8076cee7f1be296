/*
 * explain.c
 *	  What idem_explain puts into words: a key as idem_status sees it, what the
 *	  work list notes of it, and where the settings of its operation are defined.
 *
 * Readers of the view of unresolved records (monitors, workers, admins) see all
 * principals, as there; others what idem_status tells them.  Never params,
 * results or errors.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"

#include "claim/claim.h"

/*
 * Adds what is on record.  The owner's name would open its lease to others, so
 * it is told to those only that see all principals.
 */
static void
explain_record(RowValues *facts, const Status *status, bool sees_all)
{
	const Record *rec = &status->rec;
	Answer		answer;

	answer_init(&answer, &status->call.who);
	answer_tell_record(&answer, status->call.policy, rec, status->effective, status->now);
	row_add(facts, true, CharGetDatum(rec->state));
	row_add(facts, sees_all && rec->owner, PointerGetDatum(rec->owner));
	row_add(facts, true, BoolGetDatum(rec->has_fingerprint));
	row_add(facts, true, Int32GetDatum(rec->attempt));
	row_add(facts, true, Int32GetDatum(rec->releases));
	row_add_time(facts, answer.claimed_at);
	row_add_time(facts, rec->finished_at);
	row_add_time(facts, rec->lease_until);
	row_add_time(facts, rec->expires_at);
	row_add_time(facts, rec->forget_at);
	row_add_time(facts, rec->not_before);
	row_add_time(facts, record_deadline(rec, status->call.policy));
}

/* idem_explain_key(operation, key, principal) */
SQL_FUNCTION(idem_explain_key)
{
	bool		sees_all = access_may_read(fcinfo, "idem_unresolved");
	Status		status = {0};
	RowValues	facts = {0};
	Work		work = {.due_at = NEVER};
	bool		listed;

	call_begin(&status.call, fcinfo, sees_all ? BIND_NOT : BIND_CALLER,
			   ARG_TEXT(0), ARG_TEXT(1), ARG_TEXT(2), NULL);
	status_look(&status);
	if (open_claim_find(&status.call.who.id))
	{
		status.held = true;
		status.holder = MyProcPid;
	}
	listed = status.found == PROBE_ROW && work_find(&status.rec, &work);

	row_add(&facts, true, UUIDPGetDatum(&status.call.who.id));
	row_add(&facts, true, CStringGetTextDatum(record_effective_name(status.effective)));
	row_add(&facts, true, BoolGetDatum(status.found == PROBE_ROW &&
									   record_is_early(&status.rec, status.effective, status.now)));
	row_add(&facts, true, BoolGetDatum(record_key_is_late(&status.call, status.now)));
	row_add(&facts, status.held, Int32GetDatum(status.holder));
	row_add(&facts, true, JsonbPGetDatum(status.call.policy->settings));
	row_add(&facts, true, JsonbPGetDatum(settings_row_read(&operation_settings, status.call.who.operation)->settings));
	row_add(&facts, true, JsonbPGetDatum(settings_row_read(&operation_settings, EVERY_NAME)->settings));
	row_add(&facts, listed, Int32GetDatum(work.tries));
	row_add_time(&facts, work.due_at);
	if (status.found == PROBE_ROW)
		explain_record(&facts, &status, sees_all);
	return row_datum(fcinfo, &facts);
}
