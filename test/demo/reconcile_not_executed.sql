SELECT state
FROM idem_resolve(:'operation', :'key', 'not_executed', fence => :fence);
