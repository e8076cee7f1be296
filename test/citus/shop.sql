-- The demo's shop on a cluster: orders by tenant, and a function that runs where they
-- are.  :type is the type of the tenant column.
SET client_min_messages = warning;
CREATE EXTENSION idempotency;
CREATE TABLE orders (tenant :type, id bigint GENERATED ALWAYS AS IDENTITY, key text, params jsonb, PRIMARY KEY (tenant, id));
SELECT create_distributed_table('orders', 'tenant');
SELECT idem_complete(idem_claim('before', 'k' || n, '1', principal => :'tenant'), '1') FROM generate_series(1, 100) n \g /dev/null
SELECT idem_complete(idem_claim('before', idem_new_key(), '1', principal => :'tenant'), '1') \g /dev/null
SELECT idem_distribute('orders');

-- stop names a point at which a kill is to come, or is "for a while"
CREATE FUNCTION create_order(tenant :type, key text, params jsonb, stop text) RETURNS jsonb LANGUAGE plpgsql STRICT AS $$
DECLARE
	claim idem_answer;
	placed bigint;
BEGIN
	PERFORM pg_advisory_xact_lock(hashtext(stop)) WHERE stop = 'before the claim';
	claim := idem_claim('create_order', key, params, principal => tenant::text);
	IF claim.verdict <> 'execute' THEN
		RETURN idem_value(claim);
	END IF;
	PERFORM pg_advisory_xact_lock(hashtext(stop)) WHERE stop = 'after the claim';
	INSERT INTO orders (tenant, key, params) VALUES (create_order.tenant, create_order.key, create_order.params) RETURNING id INTO placed;
	PERFORM pg_advisory_xact_lock(hashtext(stop)) WHERE stop = 'after the order';
	PERFORM idem_complete(claim, to_jsonb(placed));
	PERFORM pg_advisory_xact_lock(hashtext(stop)) WHERE stop = 'after the record';
	PERFORM pg_sleep(2 * random()) WHERE stop = 'for a while';
	RETURN to_jsonb(placed);
END $$;
SELECT create_distributed_function(format('create_order(%s, text, jsonb, text)', :'type')::regprocedure, '$1', colocate_with := 'orders', force_delegation := true);
-- the same in two transactions, under a lease
CREATE FUNCTION begin_order(tenant :type, key text, owner text) RETURNS jsonb LANGUAGE plpgsql STRICT AS $$
DECLARE
	claim idem_answer := idem_claim('order_in_two', key, principal => tenant::text, lease => '10 min', owner => owner);
BEGIN
	IF claim.verdict <> 'execute' THEN
		RETURN idem_value(claim);
	END IF;
	RETURN jsonb_build_object('fence', claim.fence);
END $$;
CREATE FUNCTION end_order(tenant :type, key text, fence bigint) RETURNS jsonb LANGUAGE plpgsql STRICT AS $$
DECLARE
	placed bigint;
BEGIN
	INSERT INTO orders (tenant, key, params) VALUES (end_order.tenant, end_order.key, '{}') RETURNING id INTO placed;
	RETURN idem_complete_key('order_in_two', key, fence, to_jsonb(placed), principal => tenant::text);
END $$;
SELECT create_distributed_function(format('begin_order(%s, text, text)', :'type')::regprocedure, '$1', colocate_with := 'orders', force_delegation := true);
SELECT create_distributed_function(format('end_order(%s, text, bigint)', :'type')::regprocedure, '$1', colocate_with := 'orders', force_delegation := true);
CREATE ROLE app LOGIN;
SELECT idem_everywhere($$idem_grant('app')$$), idem_everywhere($$idem_define('create_order', '{"retention": "1 day"}')$$);
