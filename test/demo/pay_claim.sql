SELECT verdict, fence, retry_after, idem_downstream_key(id, 'charge'),
     result ->> 'charge'
FROM idem_claim(:'operation', :'key', jsonb_build_object(
     'amount', :amount, 'currency', :'currency'), lease => :'lease');
