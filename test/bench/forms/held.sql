-- Another transaction holds the key.
SELECT verdict FROM idem_claim('bench', 'held', :params);
