-- A unique index on three texts as long as they are in practice.
INSERT INTO seen (principal, operation, key) VALUES ('tenant-1042', 'create_order', gen_random_uuid()::text);
