BEGIN;
INSERT INTO payments VALUES (:'key', :'charge', :amount, :'currency');
SELECT idem_complete_key('pay_order', :'key', :fence,
     jsonb_build_object('charge', :'charge'));
COMMIT;
