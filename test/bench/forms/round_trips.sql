-- As a client does it that works between claim and completion: four round trips.
\set k random(1, 9000000000000000000)
BEGIN;
SELECT verdict, fence FROM idem_claim('bench', 'k-' || :k, :params) \gset
SELECT idem_complete_key('bench', 'k-' || :k, :fence, :result);
COMMIT;
