SELECT idem_unsure_key(:'operation', :'key', :fence,
     jsonb_build_object('provider', :'answer'));
