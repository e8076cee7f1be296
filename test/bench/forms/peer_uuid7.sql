CALL peer_procedure(idem_new_key(), :params);
