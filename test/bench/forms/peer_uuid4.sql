CALL peer_procedure(gen_random_uuid()::text, :params);
