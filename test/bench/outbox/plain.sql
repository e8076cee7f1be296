INSERT INTO plain (destination, payload) VALUES ('mail', '{"order": 4711, "amount": "129.00", "currency": "EUR"}');
