-- A key that says nothing of its time.
SELECT idem_complete(idem_claim('bench', gen_random_uuid()::text, :params), :result);
