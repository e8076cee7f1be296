SELECT idem_emit('mail', '{"order": 4711, "amount": "129.00", "currency": "EUR"}');
