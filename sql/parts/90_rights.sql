-- Who may call and read what.  A function or view that is not named here is
-- its owner's alone.

-- Tier public is all roles: what computes from its arguments, or tells of its own
-- transaction.  A worker has what an app has, an admin everything.
CREATE VIEW idempotency_internal.tier_object (tier, object) WITH (security_barrier) AS VALUES
	('public', 'idem_backoff'),
	('public', 'idem_canonical'),
	('public', 'idem_downstream_key'),
	('public', 'idem_fingerprint'),
	('public', 'idem_fingerprint_text'),
	('public', 'idem_http_status'),
	('public', 'idem_id'),
	('public', 'idem_left_open'),
	('public', 'idem_new_key'),
	('public', 'idem_postgrest'),
	('public', 'idem_value'),
	('public', 'idem_webhook_sign'),
	('public', 'idem_webhook_verify'),
	('app', 'idem_accept'),
	('app', 'idem_cancel'),
	('app', 'idem_claim'),
	('app', 'idem_complete'),
	('app', 'idem_complete_key'),
	('app', 'idem_destination_policy'),
	('app', 'idem_emit'),
	('app', 'idem_explain'),
	('app', 'idem_explain_key'),
	('app', 'idem_fail'),
	('app', 'idem_fail_key'),
	('app', 'idem_list'),
	('app', 'idem_once'),
	('app', 'idem_once_many'),
	('app', 'idem_permit'),
	('app', 'idem_policy'),
	('app', 'idem_release'),
	('app', 'idem_release_key'),
	('app', 'idem_renew'),
	('app', 'idem_renew_key'),
	('app', 'idem_report'),
	('app', 'idem_run'),
	('app', 'idem_status'),
	('app', 'idem_unsure'),
	('app', 'idem_unsure_key'),
	('worker', 'idem_ack'),
	('worker', 'idem_ack_many'),
	('worker', 'idem_dead_letter'),
	('worker', 'idem_expire_lease'),
	('worker', 'idem_nack'),
	('worker', 'idem_outbox_head'),
	('worker', 'idem_reconcile'),
	('worker', 'idem_redeliver'),
	('worker', 'idem_resolve'),
	('worker', 'idem_start'),
	('worker', 'idem_start_next'),
	('worker', 'idem_take'),
	('worker', 'idem_unresolved'),
	('worker', 'placed_entries'),
	('worker', 'placed_rows'),
	('monitor', 'effective_state'),
	('monitor', 'idem_dead_letter'),
	('monitor', 'idem_destination_policy'),
	('monitor', 'idem_doctor'),
	('monitor', 'idem_explain'),
	('monitor', 'idem_explain_key'),
	('monitor', 'idem_list'),
	('monitor', 'idem_open'),
	('monitor', 'idem_outbox_event'),
	('monitor', 'idem_outbox_head'),
	('monitor', 'idem_record'),
	('monitor', 'idem_stat'),
	('monitor', 'idem_stat_activity'),
	('monitor', 'idem_stat_calls'),
	('monitor', 'idem_stat_claims'),
	('monitor', 'idem_stat_counters'),
	('monitor', 'idem_stat_destination'),
	('monitor', 'idem_stat_horizons'),
	('monitor', 'idem_stat_queue'),
	('monitor', 'idem_stat_visits'),
	('monitor', 'idem_stat_worker'),
	('monitor', 'idem_unresolved'),
	('monitor', 'placed_entries'),
	('monitor', 'placed_rows'),
	('admin', 'idem_copy_settings'),
	('admin', 'idem_define'),
	('admin', 'idem_destination_define'),
	('admin', 'idem_destination_undefine'),
	('admin', 'idem_discard'),
	('admin', 'idem_distribute'),
	('admin', 'idem_everywhere'),
	('admin', 'idem_grant'),
	('admin', 'idem_purge'),
	('admin', 'idem_redact'),
	('admin', 'idem_redact_event'),
	('admin', 'idem_reopen'),
	('admin', 'idem_revoke'),
	('admin', 'idem_stat_reset'),
	('admin', 'idem_undefine');
COMMENT ON VIEW idempotency_internal.tier_object IS
	'functions and views of the extension by the tier that has them';

-- Objects are found by their membership in the extension: others may have made
-- objects of the same name.
CREATE FUNCTION idempotency_internal.privileges_of(tier text, names text[] DEFAULT NULL)
RETURNS SETOF text
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT DISTINCT CASE WHEN p.oid IS NULL THEN 'SELECT ON ' || c.oid::regclass
		ELSE 'EXECUTE ON FUNCTION ' || p.oid::regprocedure END
	  FROM pg_extension e
	  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
	  LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
	  LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
	  JOIN idempotency_internal.tier_object o ON o.object = coalesce(p.proname, c.relname)
	 WHERE e.extname = 'idempotency'
		AND (o.tier = $1 OR ($1 = 'worker' AND o.tier = 'app') OR ($1 = 'admin' AND o.tier <> 'public'))
		AND ($2 IS NULL OR o.object = ANY ($2))
$$;
COMMENT ON FUNCTION idempotency_internal.privileges_of(text, text[]) IS
'Returns the privileges of a tier in the words of GRANT.
tier: app, worker, monitor, admin or public
names: of functions and views; NULL for all';

-- GRANT EXECUTE ON FUNCTIONS and the like in the default privileges of the role
-- that creates the extension has given rights to others than PUBLIC.
CREATE FUNCTION idempotency_internal.close_objects(names text[] DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	command text;
BEGIN
	FOR command IN
		SELECT format('REVOKE ALL ON %s FROM %s', o.object,
			CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
		  FROM pg_extension e
		  JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e',
			LATERAL (
				SELECT proname, 'FUNCTION ' || oid::regprocedure, proowner, coalesce(proacl, acldefault('f', proowner))
				  FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid
				UNION ALL
				SELECT relname, CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass, relowner, relacl
				  FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid
				UNION ALL
				SELECT nspname, 'SCHEMA ' || oid::regnamespace, nspowner, nspacl
				  FROM pg_namespace WHERE d.classid = 'pg_namespace'::regclass AND oid = d.objid
				UNION ALL
				SELECT typname, 'TYPE ' || oid::regtype, typowner, typacl
				  FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = d.objid AND typcategory <> 'A'
			) AS o (name, object, owner, acl),
			aclexplode(o.acl) a
		 WHERE e.extname = 'idempotency' AND a.grantee <> o.owner AND (names IS NULL OR o.name = ANY (names))
		 GROUP BY o.object, a.grantee
	LOOP
		EXECUTE command;
	END LOOP;
	FOR command IN SELECT privilege FROM idempotency_internal.privileges_of('public'::text, names) privilege LOOP
		EXECUTE 'GRANT ' || command || ' TO PUBLIC';
	END LOOP;
	FOR command IN
		-- since PostgreSQL 17 array types are members too, and have the rights of their elements
		SELECT oid::regtype FROM pg_type WHERE typcategory <> 'A' AND (names IS NULL OR typname = ANY (names)) AND oid IN (
			SELECT d.objid FROM pg_extension e JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
			 WHERE e.extname = 'idempotency' AND d.deptype = 'e' AND d.classid = 'pg_type'::regclass)
	LOOP
		EXECUTE format('GRANT USAGE ON TYPE %s TO PUBLIC', command);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.close_objects(text[]) IS
'Takes all rights on objects of the extension from all roles but their owner, and gives PUBLIC those of tier public and the use of types. For scripts of the extension.
names: of objects; NULL for all';

-- In a transaction with what it looks at: USAGE of the schema goes with the
-- last right of the role there.
CREATE FUNCTION idempotency_internal.change_privileges(verb text, role name, tier text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	home oid := (SELECT extnamespace FROM pg_extension WHERE extname = 'idempotency');
	preposition text := CASE verb WHEN 'GRANT' THEN 'TO' ELSE 'FROM' END;
	privilege text;
BEGIN
	IF role IS NULL OR tier IS NULL THEN
		RAISE 'role and tier must not be null' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	-- a role, not the word PUBLIC or CURRENT_USER
	IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = role) THEN
		RAISE 'role "%" does not exist', role USING ERRCODE = 'undefined_object';
	END IF;
	IF tier <> ALL ('{app,worker,monitor,admin}') THEN
		RAISE 'there is no tier "%"', tier USING ERRCODE = 'invalid_parameter_value',
			HINT = 'The tiers are app, worker, monitor and admin.';
	END IF;
	IF verb = 'GRANT' THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', home::regnamespace, role);
	END IF;
	FOR privilege IN SELECT p FROM idempotency_internal.privileges_of(tier) p LOOP
		EXECUTE format('%s %s %s %I', verb, privilege, preposition, role);
	END LOOP;
	IF verb = 'REVOKE' AND NOT EXISTS (
		SELECT FROM pg_shdepend s
		 WHERE s.refclassid = 'pg_authid'::regclass AND s.refobjid = quote_ident(role)::regrole
			AND s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND (EXISTS (SELECT FROM pg_proc WHERE s.classid = 'pg_proc'::regclass AND oid = s.objid AND pronamespace = home)
				OR EXISTS (SELECT FROM pg_class WHERE s.classid = 'pg_class'::regclass AND oid = s.objid AND relnamespace = home)
				OR EXISTS (SELECT FROM pg_type WHERE s.classid = 'pg_type'::regclass AND oid = s.objid AND typnamespace = home)))
	THEN
		EXECUTE format('REVOKE USAGE ON SCHEMA %s FROM %I', home::regnamespace, role);
	END IF;
END
$$;
COMMENT ON FUNCTION idempotency_internal.change_privileges(text, name, text) IS
'Runs GRANT or REVOKE for all privileges of a tier.
verb: GRANT or REVOKE
role: the role
tier: app, worker, monitor or admin
Raises 22023 (null, or no such tier), 42704 (no such role).';

-- With the rights of the owner, so that an admin can pass on what is the
-- owner's.
CREATE FUNCTION idem_grant(role name, tier text DEFAULT 'app')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM idempotency_internal.change_privileges('GRANT'::text, role, tier); END $$;
COMMENT ON FUNCTION idem_grant(name, text) IS
'Grants a role the functions and views of a tier, and USAGE of their schema.
role: name of a role
tier: app (claim, finish, ask), worker (app and what workers need), monitor (views and lists) or admin (everything)
Raises 22023 (no such tier), 42704 (no such role).';

CREATE FUNCTION idem_revoke(role name, tier text DEFAULT 'app')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ BEGIN PERFORM idempotency_internal.change_privileges('REVOKE'::text, role, tier); END $$;
COMMENT ON FUNCTION idem_revoke(name, text) IS
'Takes the functions and views of a tier from a role, and USAGE of their schema if the role then has no right and owns nothing there.
role: name of a role
tier: as in idem_grant
Raises 22023 (no such tier), 42704 (no such role).';

-- An upgrade script calls this with what it has created, once tier_object has it.
CREATE FUNCTION idempotency_internal.add_objects(names text[])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	command text;
BEGIN
	PERFORM idempotency_internal.close_objects(names);
	FOR command IN
		WITH held AS (
			SELECT r.rolname, 'EXECUTE ON FUNCTION ' || p.oid::regprocedure AS privilege FROM pg_proc p, aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
			UNION SELECT r.rolname, 'SELECT ON ' || c.oid::regclass FROM pg_class c, aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee WHERE a.privilege_type = 'SELECT')
		SELECT format('GRANT %s TO %I', n.privilege, r.rolname)
		  FROM unnest('{app,worker,monitor,admin}'::text[]) tier, (SELECT DISTINCT rolname FROM held) r, idempotency_internal.privileges_of(tier, names) n (privilege)
		 WHERE NOT EXISTS (SELECT idempotency_internal.privileges_of(tier) EXCEPT SELECT idempotency_internal.privileges_of(tier, names)
			EXCEPT SELECT h.privilege FROM held h WHERE h.rolname = r.rolname)
	LOOP
		EXECUTE command;
	END LOOP;
END
$$;
COMMENT ON FUNCTION idempotency_internal.add_objects(text[]) IS
'Closes new objects, and gives them to the roles that have all else of their tier. For upgrade scripts.
names: of functions, views and types';

SELECT idempotency_internal.close_objects();
