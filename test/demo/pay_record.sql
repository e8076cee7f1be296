BEGIN;
INSERT INTO payments VALUES (:'key', :'charge', :amount, :'currency');
SELECT idem_complete_key(:'operation', :'key', :fence,
     jsonb_build_object('charge', :'charge'));
COMMIT;
