-- pg_cron calls idem_purge: scheduled when the suite began (setup), looked at at its end.
\set QUIET 1
SET search_path = public, idempotency, tap;
SELECT plan(3);
DO $$
DECLARE
	until timestamptz := clock_timestamp() + '70 s';
BEGIN
	WHILE clock_timestamp() < until AND NOT EXISTS (SELECT FROM cron.job_run_details WHERE status IN ('succeeded', 'failed')) LOOP
		PERFORM pg_sleep(0.2);
	END LOOP;
END $$;
SELECT is(status || ': ' || return_message, 'succeeded: 1 row', 'the job ran') FROM cron.job_run_details ORDER BY runid LIMIT 1;
SELECT is((SELECT count(*) FROM idem_record WHERE operation = 'short_lived'), 0::bigint, 'what was past its retention is gone');
SELECT isnt((SELECT count(*) FROM idem_record), 0::bigint, 'and nothing else');
SELECT * FROM finish();
