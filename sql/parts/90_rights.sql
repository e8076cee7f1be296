-- Nobody may call anything that touches records until idem_grant says so.
-- What is left to everybody computes from its arguments alone.

REVOKE ALL ON FUNCTION
	idem_accept(text, text, jsonb, text, bytea),
	idem_cancel(text, text, text, text),
	idem_list(text, text, integer),
	idem_once(text, text, text),
	idem_once_many(text, text[], text),
	idem_reconcile(text, integer, interval),
	idem_redact(text, text, text),
	idem_resolve(text, text, text, jsonb, text, bigint),
	idem_run(text, text, jsonb, regprocedure, text),
	idem_start(text, text, interval, text, text),
	idem_start_next(text, integer, interval, text),
	idem_claim(text, text, jsonb, text, interval, interval, text, bytea),
	idem_complete(idem_answer, jsonb),
	idem_complete_key(text, text, bigint, jsonb, text),
	idem_define(text, jsonb),
	idem_fail(idem_answer, jsonb, boolean),
	idem_fail_key(text, text, bigint, jsonb, boolean, text),
	idem_grant(name, text),
	idem_policy(text),
	idem_purge(bigint),
	idem_release(idem_answer),
	idem_release_key(text, text, bigint, text),
	idem_renew(idem_answer, interval),
	idem_renew_key(text, text, bigint, interval, text),
	idem_revoke(name, text),
	idem_stat_visits(),
	idem_status(text, text, text),
	idem_unsure(idem_answer, jsonb),
	idem_unsure_key(text, text, bigint, jsonb, text)
FROM PUBLIC;
