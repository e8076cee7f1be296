-- A key that carries its time.
SELECT idem_complete(idem_claim('timed', idem_new_key(), :params), :result);
