-- Records are rows of this node.  A cluster that runs sessions on several nodes
-- would execute a key once on each.

DO $$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'citus'::pg_catalog.name) THEN
		RAISE WARNING 'the records of extension "idempotency" are not distributed among the nodes of a cluster'
			USING DETAIL = 'A key claimed on two nodes executes twice, and a transaction that writes on several nodes is not one with its record.',
				HINT = 'Run idem_distribute() on the coordinator to have them beside the rows of each tenant. Without it claim on the coordinator, and treat the worker nodes as outside systems, as servers of postgres_fdw are: on them claims are refused.';
	END IF;
END
$$;
