-- Work that is accepted, done at once, run, not known, or not to be done.

CREATE FUNCTION idem_accept(operation text, key text, params jsonb DEFAULT NULL, principal text DEFAULT NULL, fingerprint bytea DEFAULT NULL, delay interval DEFAULT '0')
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_accept' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_accept(text, text, jsonb, text, bytea, interval) IS
'Registers work that a worker starts later with idem_start or idem_start_next.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
params: the request''s parameters; NULL for none. They are hashed, not kept: keep them in a task table, written in the same transaction
principal: whose key it is; NULL takes the setting idempotency.principal
fingerprint: as in idem_claim
delay: how long, from now, it is not to be started; shorter than the policy''s deadline
Returns, to the first call, verdict execute with state accepted and no fence: enqueue the work in this transaction. Repeats get what idem_claim would answer, in_progress with state accepted until it is started.
Raises 22023 (bad argument), 42501, 25006, 40001, 54001, ID099.';

CREATE FUNCTION idem_start(operation text, key text, lease interval DEFAULT NULL, principal text DEFAULT NULL, owner text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_start' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_start(text, text, interval, text, text) IS
'Starts accepted work.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
lease: as in idem_claim; without one it starts atomically, and a rollback makes it accepted again
principal: whose key it is; NULL takes the setting idempotency.principal
owner: names the worker with 1 to 255 bytes
Returns verdict execute with attempt and fence, or what idem_claim would answer without looking at params.
Raises ID001 (nothing on record), 22023, 42501, 25006, 40001, ID099.';

CREATE FUNCTION idem_start_next(operation text, max_records integer DEFAULT 1, lease interval DEFAULT NULL, owner text DEFAULT NULL)
RETURNS SETOF idem_answer
AS 'MODULE_PATHNAME', 'idem_start_next' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_start_next(text, integer, interval, text) IS
'Starts up to max_records records of accepted work of an operation, longest due first, skipping those other sessions work on: accepted, released, found not executed, failed and to be retried (after retry_after or a back-off), and, under policy on_lease_expiry retry, those whose lease is over; until max_attempts or deadline end it. principal_setting binds a worker only where its session has been told a principal.
operation: name of the operation, 1 to 255 bytes in UTF-8
max_records: how many at most
lease: as in idem_start
owner: names the worker with 1 to 255 bytes; many sessions may share one, what is started is handed out once
Returns an answer with verdict execute for each; none when there is nothing to do.
Raises 22023, 42501, 25006, 40001.';

CREATE FUNCTION idem_once(operation text, key text, principal text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'idem_once' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_once(text, text, text) IS
'Claims and completes in one write: the first line of a consumer, in the transaction of what it does.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
Returns true exactly once; false if it was committed earlier or done earlier in this transaction. Waits for a key that is held or undecided up to the policy''s wait.
Raises 55P03 (still held or undecided), ID013 (too late to tell), 22023, 42501, 25006, 40001, ID099.';

CREATE FUNCTION idem_once_many(operation text, keys text[], principal text DEFAULT NULL)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'idem_once_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_once_many(text, text[], text) IS
'idem_once for a batch: one batch per transaction cannot deadlock with another.
operation: name of the operation, 1 to 255 bytes in UTF-8
keys: no nulls; a repeated one counts once
principal: whose key it is; NULL takes the setting idempotency.principal
Returns the keys seen for the first time, in the order given.
Raises what idem_once raises.';

CREATE FUNCTION idem_run(operation text, key text, params jsonb, func regprocedure, principal text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_run' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_run(text, text, jsonb, regprocedure, text) IS
'Claims atomically, calls func(params) with the caller''s rights, and completes with what it returns.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
params: the request''s parameters; NULL for none
func: a plain function that takes one jsonb and returns jsonb; the caller needs EXECUTE on it and USAGE of its schema
principal: whose key it is; NULL takes the setting idempotency.principal
Returns verdict execute with state succeeded and the result, or with state failed and {sqlstate, message, detail, hint} if it raised P0001, class 22, 23, 44 or a class of your own (an error beyond max_result_bytes is cut and has the member cut); else what idem_claim would answer. Every other error is raised again and nothing is recorded.
Raises 22023, 42501, 42883, 25006, 40001, ID004, ID099, and what func raises.';

CREATE FUNCTION idem_cancel(operation text, key text, principal text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_cancel' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_cancel(text, text, text, text) IS
'Makes sure that a lost first try can no longer act: a key never seen, accepted or retryably failed is recorded as failed for good with {cancelled: reason}, whatever its params.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
reason: kept as the error, and as large as one may be
Returns verdict replay, state failed and that error, also the first time; anything else on record is answered and left as it is. Only the answer failed with cancelled proves it.
Raises ID004 (reason too large), 22023, 42501, 25006, 40001, ID099.';

CREATE FUNCTION idem_list(principal text DEFAULT NULL, operation text DEFAULT NULL, max_records integer DEFAULT 100)
RETURNS SETOF idem_answer
AS 'MODULE_PATHNAME', 'idem_list' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_list(text, text, integer) IS
'Lists what is not finished: accepted, processing (with a lease) and unknown records, and accepted work that failed and is to be retried, oldest first.
principal: NULL takes the setting idempotency.principal; if that is empty too, workers, monitors and admins see all principals
operation: NULL means all
max_records: how many at most
Returns answers as idem_status gives them.
Raises 22023 (no principal, max_records below 1), 42501.';

CREATE FUNCTION idem_reconcile(operation text DEFAULT NULL, max_records integer DEFAULT 1, lease interval DEFAULT '1 min')
RETURNS SETOF idem_answer
AS 'MODULE_PATHNAME', 'idem_reconcile' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_reconcile(text, integer, interval) IS
'Hands out unknown records to one reconciler at a time, oldest first, 256 at most in one call. After reconcile_attempts tries a record is left to a person, in idem_unresolved.
operation: NULL means all
max_records: how many at most
lease: how long no other reconciler gets them; at most max_lease; a growing pause follows
Returns answers with verdict unknown whose fence is the reconciler''s own, for idem_resolve only.
Raises 22023, 42501, 25006.';

CREATE FUNCTION idem_resolve(operation text, key text, outcome text, detail jsonb DEFAULT NULL, principal text DEFAULT NULL, fence bigint DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_resolve' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_resolve(text, text, text, jsonb, text, bigint) IS
'Records what was found out about an unknown outcome.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
outcome: succeeded (detail is the result), failed (detail is the error) or not_executed (the key may execute again; accepted work is accepted again until max_attempts or deadline end it; the former owner is refused)
detail: the result or error that is recorded, at most max_result_bytes of text; with not_executed it is not kept
principal: whose key it is; NULL takes the setting idempotency.principal
fence: the reconciler''s, from idem_reconcile; NULL means a person decides
Returns what idem_status says from now on.
Raises ID002 (not unknown now, or another reconciler has it), ID004 (detail too large), 22023, 42501, 25006.';

CREATE FUNCTION idem_expire_lease(operation text, key text, principal text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_expire_lease' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_expire_lease(text, text, text) IS
'Ends a running lease now, for an owner that is known to be dead; its fence is stale from then on.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
Returns what idem_status says from now on: what a lease that is over gives under the policy.
Raises ID001 (nothing on record), ID002 (no running lease), 22023, 42501, 25006.';

CREATE FUNCTION idem_reopen(operation text, key text, principal text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS idem_answer
AS 'MODULE_PATHNAME', 'idem_reopen' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_reopen(text, text, text, text) IS
'Lets a key that has failed for good, or was cancelled, execute again, such as after a fault of the handler was mended; never one that succeeded. Attempt and fence go on, max_attempts and deadline begin anew.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
reason: kept as {reopened, error} beside the error until the next attempt, at most max_result_bytes of text
Returns what idem_status says from now on.
Raises ID001 (nothing on record), ID002 (not failed for good), ID004 (reason too large), 22023, 42501, 25006.';

CREATE FUNCTION idem_redact(operation text, key text, principal text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'idem_redact' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_redact(text, text, text) IS
'Empties result and error of a record and keeps the rest: later claims replay with NULL, and never execute.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
Raises ID001 (nothing on record), 22023, 42501, 25006.';

CREATE FUNCTION idem_backoff(attempt integer, base interval DEFAULT '100 ms', cap interval DEFAULT '30 s')
RETURNS interval
LANGUAGE plpgsql VOLATILE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF attempt IS NULL OR base IS NULL OR cap IS NULL OR attempt < 0 OR base < '0' OR cap < '0'
		OR extract(month FROM base) <> 0 OR extract(year FROM base) <> 0 OR extract(month FROM cap) <> 0 OR extract(year FROM cap) <> 0
	THEN
		RAISE 'idem_backoff needs an attempt, a base and a cap that are not negative and have no months' USING ERRCODE = 'invalid_parameter_value',
			HINT = 'The first retry is attempt 0 or 1, as you count.';
	END IF;
	RETURN make_interval(secs => random() * least(extract(epoch FROM cap)::float8, extract(epoch FROM base)::float8 * 2 ^ least(attempt, 100)));
END
$$;
COMMENT ON FUNCTION idem_backoff(integer, interval, interval) IS
'Returns how long to wait before a retry, with full jitter: uniform between 0 and the smaller of cap and base times 2 to the power of attempt.
attempt: from 0
base: longest pause of attempt 0, without months
cap: longest pause at all, without months
Raises 22023 (null, negative, or months).';

-- What reconcilers have given up, for a person.  Read by monitors, workers and
-- admins; that they may is also what lets them list all principals.
CREATE VIEW idem_unresolved WITH (security_barrier) AS
	SELECT r.id, r.principal, r.operation, r.key, r.attempt, r.owner, w.tries,
		pg_catalog.date_trunc('milliseconds'::pg_catalog.text, r.claimed_at) AS claimed_at,
		r.lease_until AS unknown_since, r.error AS detail
	FROM idempotency_internal.every_entry w
	JOIN idempotency_internal.every_record r ON r.id OPERATOR(pg_catalog.=) w.id
	WHERE w.due_at IS NULL
		AND r.state OPERATOR(pg_catalog.=) 'p'
		AND r.lease_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp();
COMMENT ON VIEW idem_unresolved IS
	'records whose outcome is unknown and that reconcilers have given up after reconcile_attempts tries: a person has to find out, and call idem_resolve';
