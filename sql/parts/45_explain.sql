-- Why a key answers as it does, in words.

CREATE FUNCTION idem_explain_key(
	operation text, key text, principal text,
	OUT id uuid, OUT life text, OUT early boolean, OUT late boolean, OUT holder integer,
	OUT settings jsonb, OUT own_settings jsonb, OUT everyones_settings jsonb, OUT tries integer, OUT due_at timestamptz,
	OUT stored "char", OUT owner text, OUT has_fingerprint boolean, OUT attempt integer, OUT releases integer,
	OUT claimed_at timestamptz, OUT finished_at timestamptz, OUT lease_until timestamptz, OUT expires_at timestamptz,
	OUT forget_at timestamptz, OUT not_before timestamptz, OUT deadline timestamptz)
RETURNS record
AS 'MODULE_PATHNAME', 'idem_explain_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_explain_key(text, text, text) IS
'Shows what idem_explain puts into words; the owner''s name only to readers of idem_unresolved.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal
Raises 22023 (bad argument), 42501, ID099.';

-- With the caller's rights: of other sessions it shows what pg_stat_activity
-- shows the caller, and monitors what idem_stat_activity does.
CREATE FUNCTION idem_explain(operation text, key text, principal text DEFAULT NULL)
RETURNS TABLE (fact text, value text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
	k record;
	session record;
	claim record;
	told_now timestamptz;
	reads_activity boolean := has_table_privilege('@extschema@.idem_stat_activity', 'SELECT');
	as_told text := 'not shown to this role: members of pg_read_all_stats see it';
BEGIN
	SELECT * INTO k FROM @extschema@.idem_explain_key(operation, key, principal);
	told_now := clock_timestamp();

	-- the first line that fits, as in docs/answers.md
	RETURN QUERY SELECT f.fact, f.value
	  FROM (SELECT r.* FROM (VALUES
		(1, k.holder = pg_backend_pid(), 'in_progress', 'this transaction has claimed the key itself and not finished it'),
		(2, k.holder IS NOT NULL AND k.life IN ('forgotten', 'released', 'retryable', 'overrun', 'accepted'), 'in_progress',
			CASE k.holder WHEN 0 THEN 'a prepared transaction holds the key' ELSE 'the open transaction of another session holds the key' END),
		(3, k.late AND k.life IN ('forgotten', 'released'), 'expired', 'nothing is on record, and the key carries a time that is longer ago than retention and guard'),
		(4, k.life = 'forgotten' AND pg_is_in_recovery(), 'not known', 'nothing has arrived under this key on this standby, which proves nothing: ask the primary'),
		(5, k.life = 'forgotten' AND k.stored IS NOT NULL, 'execute', 'what was on record is past retention and guard'),
		(6, k.life = 'forgotten', 'execute', 'nothing is on record'),
		(7, k.life = 'released' AND k.early, 'in_progress', 'it was released, or found not executed, and its time has not come'),
		(8, k.life = 'released', 'execute', 'it was released, or found not executed'),
		(9, k.life = 'expired', 'expired', 'its outcome is past retention and inside the guard'),
		(10, k.life = 'succeeded', 'replay', 'it succeeded'),
		(11, k.life = 'failed', 'replay', CASE k.stored WHEN 'c' THEN 'it was cancelled' WHEN 'f' THEN 'it failed for good' ELSE 'max_attempts or deadline have ended it' END),
		(12, k.life = 'retryable' AND k.early, 'in_progress', 'it failed, may be tried again, and its time has not come'),
		(13, k.life = 'retryable', 'execute', 'it failed and may be tried again'),
		(14, k.life = 'accepted', 'in_progress', 'it was accepted and waits to be started'),
		(15, k.life = 'running', 'in_progress', 'a lease is running; under the owner that took it, execute'),
		(16, k.life = 'overrun', 'execute', 'its lease is over, and on_lease_expiry is retry'),
		(17, k.life = 'unknown', 'unknown', CASE k.settings ->> 'on_lease_expiry' WHEN 'retry' THEN 'its lease is over or its owner was unsure, and max_attempts or deadline are used up'
			ELSE 'its lease is over or its owner was unsure, and on_lease_expiry is reconcile' END))
		AS r (line, fits, verdict, rule) WHERE r.fits ORDER BY r.line LIMIT 1) d,
		LATERAL (VALUES
		(1, 'verdict', d.verdict),
		(2, 'because', d.rule),
		(3, 'params', CASE WHEN k.stored IS NULL OR k.stored = 'c' OR k.life IN ('forgotten', 'released', 'expired') THEN 'any'
			WHEN k.has_fingerprint THEN 'those it was first claimed with; with others, mismatch' ELSE 'none; with any, mismatch' END),
		(4, 'on a standby', CASE WHEN pg_is_in_recovery() THEN 'claims are refused here (25006): the verdict is the primary''s, by what has arrived' END),
		(5, 'id', k.id::text),
		(6, 'attempt', k.attempt || CASE k.releases WHEN 0 THEN '' ELSE format(', %s of them released', k.releases) END
			|| CASE WHEN k.settings ->> 'max_attempts' IS NULL THEN '' ELSE format(', %s counted of max_attempts %s', k.attempt - k.releases, k.settings ->> 'max_attempts') END),
		(7, 'owner', k.owner)) f (n, fact, value)
	 WHERE f.value IS NOT NULL ORDER BY f.n;

	RETURN QUERY SELECT t.fact, format('%s, %s', date_trunc('milliseconds', t.at), CASE WHEN t.at > told_now THEN 'in ' || date_trunc('seconds', t.at - told_now)
			ELSE date_trunc('seconds', told_now - t.at) || ' ago' END)
	  FROM (VALUES
		(1, 'first claimed', k.claimed_at), (2, 'finished', CASE WHEN k.life NOT IN ('running', 'overrun', 'unknown', 'accepted') THEN k.finished_at END),
		(3, 'lease until', CASE WHEN k.life IN ('running', 'overrun', 'unknown') THEN k.lease_until END), (4, 'not before', CASE WHEN k.early THEN k.not_before END),
		(5, 'deadline', CASE WHEN k.life IN ('released', 'retryable', 'accepted', 'running', 'overrun', 'unknown') THEN k.deadline END),
		(6, 'replayed until', CASE WHEN k.life IN ('succeeded', 'failed', 'expired') THEN k.expires_at END),
		(7, 'remembered until', CASE WHEN k.life IN ('succeeded', 'failed', 'expired') THEN k.forget_at END)) t (n, fact, at)
	 WHERE t.at IS NOT NULL ORDER BY t.n;

	IF k.tries IS NOT NULL THEN
		fact := CASE k.life WHEN 'unknown' THEN 'reconcilers' ELSE 'work list' END;
		value := CASE
			WHEN k.life = 'unknown' AND k.due_at IS NULL THEN format('have given up after %s tries: find out what happened and call idem_resolve()', k.tries)
			WHEN k.life = 'unknown' THEN format('%s of %s tries; handed out by idem_reconcile() %s', k.tries, k.settings ->> 'reconcile_attempts',
				CASE WHEN k.due_at > told_now THEN 'from ' || date_trunc('milliseconds', k.due_at) ELSE 'when it is called next' END)
			WHEN k.life IN ('accepted', 'retryable', 'released', 'overrun') THEN 'handed out by idem_start_next() ' || CASE WHEN k.due_at > told_now
				THEN 'from ' || date_trunc('milliseconds', k.due_at) ELSE 'when it is called next' END END;
		IF value IS NOT NULL THEN
			RETURN NEXT;
		END IF;
	END IF;

	IF k.holder = 0 THEN
		-- those that have written records
		RETURN QUERY SELECT 'holder'::text, coalesce(string_agg(format('prepared transaction %L of %s, prepared %s ago', p.gid, p.owner,
				date_trunc('seconds', told_now - p.prepared)), ', or ' ORDER BY p.prepared), 'a prepared transaction')
		  FROM pg_prepared_xacts p
		 WHERE p.database = current_database() AND EXISTS (SELECT FROM pg_locks x JOIN pg_locks l USING (virtualtransaction) JOIN pg_class c ON c.oid = l.relation
			 WHERE x.transactionid = p.transaction AND x.pid IS NULL AND l.pid IS NULL
				AND c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'idempotency_internal') AND c.relname ~ '^record(_s[0-9]+)?$');
	ELSIF k.holder IS NOT NULL THEN
		SELECT * INTO session FROM pg_stat_activity a WHERE a.pid = k.holder;
		IF reads_activity THEN
			SELECT * INTO claim FROM @extschema@.idem_stat_activity a WHERE a.holder = k.holder LIMIT 1;
		ELSE
			SELECT NULL::text AS application_name, NULL::interval AS age, NULL::text AS state INTO claim;
		END IF;
		RETURN QUERY SELECT h.fact, h.value FROM (VALUES
			(1, 'holder', format('pid %s, role %s', k.holder, session.usename)),
			(2, 'holder''s application', coalesce(session.application_name, claim.application_name, as_told)),
			(3, 'holder''s transaction', CASE WHEN coalesce(session.state, claim.state) IS NULL THEN as_told
				ELSE format('%s, open for %s', coalesce(session.state, claim.state), date_trunc('seconds', coalesce(told_now - session.xact_start, claim.age))) END),
			(4, 'holder''s query', CASE WHEN session.state IS NULL THEN as_told ELSE session.query END),
			(5, 'holder waits for', CASE WHEN session.state IS NULL THEN as_told WHEN session.wait_event IS NULL THEN 'nothing'
				ELSE session.wait_event_type || ' ' || session.wait_event || CASE WHEN pg_blocking_pids(k.holder) = '{}' THEN '' ELSE format(', held by pid %s', array_to_string(pg_blocking_pids(k.holder), ', ')) END END)
			) h (n, fact, value) WHERE session.pid IS NOT NULL ORDER BY h.n;
	END IF;

	RETURN QUERY SELECT 'setting ' || s.key, format('%s, %s', s.value, CASE WHEN k.own_settings ? s.key THEN 'defined for this operation'
			WHEN k.everyones_settings ? s.key THEN 'defined for operation *' ELSE 'built in' END)
	  FROM jsonb_each(k.settings) s ORDER BY s.key;
END
$$;
COMMENT ON FUNCTION idem_explain(text, text, text) IS
'Tells in words why a key answers as it does: the verdict a claim would get and the rule that decides, attempts, times, reconcilers, the session in the way, and where each setting comes from. Changes nothing; works on a standby. Never params, results or errors; of other sessions what pg_stat_activity shows the caller.
operation: name of the operation, 1 to 255 bytes in UTF-8
key: the idempotency key, 1 to 255 bytes in UTF-8
principal: whose key it is; NULL takes the setting idempotency.principal; readers of idem_unresolved (workers, monitors, admins) may name any
Returns one row a fact.
Raises 22023 (bad argument), 42501, ID099.';
