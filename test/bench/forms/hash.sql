-- The same, and their fingerprint is taken.
\set k random(1, 9000000000000000000)
SELECT idem_fingerprint(:params) IS NULL, 'k-' || :k;
