BEGIN;
INSERT INTO payments VALUES (:'key', :'charge', :amount, :'currency');
SELECT state FROM idem_resolve(:'operation', :'key', 'succeeded',
     jsonb_build_object('charge', :'charge'), fence => :fence);
COMMIT;
