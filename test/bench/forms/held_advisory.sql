-- What an advisory lock answers while another transaction holds it.
SELECT pg_try_advisory_xact_lock(hashtextextended('acme bench held', 0));
