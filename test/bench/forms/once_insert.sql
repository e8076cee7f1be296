-- What idem_once stands for, on a table with nothing but the key.
\set k random(1, 9000000000000000000)
INSERT INTO seen (principal, operation, key) VALUES ('acme', 'bench', 'k-' || :k) ON CONFLICT DO NOTHING;
