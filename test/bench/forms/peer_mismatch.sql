\set k random(1, :keys)
SELECT verdict, result FROM peer_claim('bench', 'p-' || :k, '{"other": "params"}');
