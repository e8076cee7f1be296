-- Who may call what of work that is accepted, unknown or done at once, by tier.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set suite :abs_srcdir '/lib/suite.sql'
\i :suite

CREATE ROLE regress_app;
CREATE ROLE regress_worker;
CREATE ROLE regress_monitor;
CREATE ROLE regress_admin;
CREATE ROLE regress_nobody;
SELECT idem_grant('regress_app'), idem_grant('regress_worker', 'worker'), idem_grant('regress_monitor', 'monitor'), idem_grant('regress_admin', 'admin');

-- The privileges themselves
CREATE FUNCTION pg_temp.who_may(f regproc) RETURNS text LANGUAGE sql AS $$
SELECT coalesce(string_agg(r, ' ' ORDER BY n), 'nobody') FROM unnest('{nobody,app,worker,monitor,admin}'::text[]) WITH ORDINALITY u (r, n)
 WHERE has_function_privilege('regress_' || r, f, 'EXECUTE')
$$;
SELECT is(pg_temp.who_may(f::regproc), expected, f || ': ' || expected)
  FROM (VALUES
	('idem_accept', 'app worker admin'), ('idem_run', 'app worker admin'), ('idem_once', 'app worker admin'), ('idem_once_many', 'app worker admin'),
	('idem_cancel', 'app worker admin'), ('idem_unsure', 'app worker admin'), ('idem_unsure_key', 'app worker admin'), ('idem_list', 'app worker monitor admin'), ('idem_explain', 'app worker monitor admin'), ('idem_explain_key', 'app worker monitor admin'),
	('idem_start', 'worker admin'), ('idem_start_next', 'worker admin'), ('idem_reconcile', 'worker admin'), ('idem_resolve', 'worker admin'),
	('idem_redact', 'admin'), ('idem_doctor', 'monitor admin'), ('idem_redact_event', 'admin'), ('idem_define', 'admin'), ('idem_purge', 'admin'), ('idem_grant', 'admin'), ('idem_revoke', 'admin'),
	('idem_emit', 'app worker admin'), ('idem_permit', 'app worker admin'), ('idem_report', 'app worker admin'), ('idem_destination_policy', 'app worker monitor admin'),
	('idem_take', 'worker admin'), ('idem_ack', 'worker admin'), ('idem_ack_many', 'worker admin'), ('idem_nack', 'worker admin'),
	('idem_redeliver', 'worker admin'), ('idem_discard', 'admin'), ('idem_destination_define', 'admin'), ('idem_stat_reset', 'admin'),
	('idem_webhook_verify', 'nobody app worker monitor admin'), ('idem_webhook_sign', 'nobody app worker monitor admin'),
	('idem_postgrest', 'nobody app worker monitor admin'), ('idem_backoff', 'nobody app worker monitor admin'), ('idem_value', 'nobody app worker monitor admin')) v (f, expected);
SELECT is((SELECT string_agg(r, ' ' ORDER BY n) FROM unnest('{nobody,app,worker,monitor,admin}'::text[]) WITH ORDINALITY u (r, n)
	WHERE has_table_privilege('regress_' || r, 'idem_unresolved', 'SELECT')), 'worker monitor admin', 'idem_unresolved: worker monitor admin');
-- also of what comes later: only what computes from its arguments is for everybody
SELECT is(string_agg(p.proname, ' ' ORDER BY p.proname),
	'idem_backoff idem_canonical idem_downstream_key idem_fingerprint idem_fingerprint_text idem_http_status idem_id idem_left_open idem_new_key idem_postgrest idem_value idem_webhook_sign idem_webhook_verify', 'functions for everybody')
  FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idempotency' WHERE has_function_privilege('regress_nobody', p.oid, 'EXECUTE');

-- In use: records of two principals
SELECT count(idem_accept('tiers', 'accepted ' || p, principal => p)), count(idem_accept('tiers', 'work ' || p, principal => p)) AS n FROM unnest('{acme,other}'::text[]) p \gset
SELECT idem_unsure(idem_claim('tiers', 'unknown ' || p, principal => p, lease => '1 h')) FROM unnest('{acme,other}'::text[]) p \g /dev/null
-- What a role is told: a value, or a SQLSTATE.
GRANT USAGE ON SCHEMA public TO regress_app, regress_worker, regress_monitor, regress_admin;
SET client_min_messages = warning;
\set list 'SELECT string_agg(key, '', '' ORDER BY key) FROM idem_list(operation => ''tiers'')'
SELECT is(pg_temp.as_role('regress_' || r, :'list'), expected, 'list by ' || r || ' with a principal set: its records only')
  FROM (VALUES ('app', 'accepted acme, unknown acme, work acme'), ('worker', 'accepted acme, unknown acme, work acme'), ('monitor', 'accepted acme, unknown acme, work acme'), ('admin', 'accepted acme, unknown acme, work acme')) v (r, expected);
SET idempotency.principal = '';
SELECT is(pg_temp.as_role('regress_' || r, :'list'), expected, 'list by ' || r || ' without a principal: ' || expected)
  FROM (VALUES ('app', '22023'), ('worker', 'accepted acme, accepted other, unknown acme, unknown other, work acme, work other'),
	('monitor', 'accepted acme, accepted other, unknown acme, unknown other, work acme, work other'), ('admin', 'accepted acme, accepted other, unknown acme, unknown other, work acme, work other'), ('nobody', '42501')) v (r, expected);
SET idempotency.principal = 'acme';

SELECT is(pg_temp.as_role('regress_' || r, query), expected, r || ': ' || query || ': ' || expected)
  FROM (VALUES
	('app', 'SELECT state FROM idem_start(''tiers'', ''work acme'', ''1 h'')', '42501'),
	('app', 'SELECT count(*) FROM idem_start_next(''tiers'', 1, ''1 h'')', '42501'),
	('app', 'SELECT count(*) FROM idem_reconcile(''tiers'')', '42501'),
	('app', 'SELECT state FROM idem_resolve(''tiers'', ''unknown acme'', ''succeeded'')', '42501'),
	('app', 'SELECT idem_redact(''tiers'', ''unknown acme'')', '42501'),
	('app', 'SELECT count(*) FROM idem_unresolved', '42501'),
	('app', 'SELECT count(*) FROM idempotency_internal.open_work', '42501'),
	('app', 'SELECT state FROM idem_accept(''tiers'', ''by app'')', 'accepted'),
	('app', 'SELECT state FROM idem_cancel(''tiers'', ''by app'')', 'failed'),
	('app', 'SELECT idem_once(''tiers'', ''once by app'')', 'true'),
	('app', 'SELECT idem_once_many(''tiers'', ''{many by app}'')', 'many by app'),
	('monitor', 'SELECT count(*) FROM idem_unresolved', '0'),
	('monitor', 'SELECT idem_once(''tiers'', ''k'')', '42501'),
	('monitor', 'SELECT state FROM idem_accept(''tiers'', ''k'')', '42501'),
	('monitor', 'SELECT state FROM idem_cancel(''tiers'', ''k'')', '42501'),
	('monitor', 'SELECT count(*) FROM idem_reconcile(''tiers'')', '42501'),
	('monitor', 'SELECT state FROM idem_resolve(''tiers'', ''unknown acme'', ''succeeded'')', '42501'),
	('monitor', 'SELECT count(*) FROM idempotency_internal.open_work', '42501'),
	('worker', 'SELECT state FROM idem_start(''tiers'', ''accepted acme'', ''1 h'')', 'processing'),
	('worker', 'SELECT count(*) FROM idem_start_next(''tiers'', 9, ''1 h'')', '3'),
	('worker', 'SELECT count(*) FROM idem_reconcile(''tiers'', 9)', '2'),
	('worker', 'SELECT state FROM idem_resolve(''tiers'', ''unknown acme'', ''succeeded'')', 'succeeded'),
	('worker', 'SELECT count(*) FROM idem_unresolved', '0'),
	('worker', 'SELECT idem_redact(''tiers'', ''unknown acme'')', '42501'),
	('worker', 'SELECT count(*) FROM idempotency_internal.record', '42501'),
	('admin', 'SELECT idem_redact(''tiers'', ''unknown acme'')', ''),
	('nobody', 'SELECT idem_once(''tiers'', ''k'')', '42501')) v (r, query, expected);

-- The operation's role, and its principals: 42501 whether or not the key exists
SELECT idem_define('tiers', '{"role": "regress_worker"}');
SELECT is(pg_temp.as_role('regress_app', query), '42501', 'operation of another role: ' || query || ': 42501')
  FROM unnest(ARRAY['SELECT idem_accept(''tiers'', ''k'')', 'SELECT idem_accept(''tiers'', ''accepted acme'')', 'SELECT idem_once(''tiers'', ''k'')', 'SELECT idem_once_many(''tiers'', ''{k}'')',
	'SELECT idem_cancel(''tiers'', ''k'')', 'SELECT idem_cancel(''tiers'', ''accepted acme'')', 'SELECT idem_list(operation => ''tiers'')']) query;
SELECT is(pg_temp.as_role('regress_app', 'SELECT count(*) FROM idem_list() WHERE operation = ''tiers'''), '0', 'and its records are not listed');
SELECT is(pg_temp.as_role('regress_worker', 'SELECT state FROM idem_accept(''tiers'', ''by worker'')'), 'accepted', 'the role itself may');
SELECT idem_define('tiers', '{"role": null, "principal_setting": "test.tenant"}');
SET test.tenant = 'other';
SELECT is(pg_temp.as_role('regress_worker', query), '42501', 'another principal: ' || query || ': 42501')
  FROM unnest(ARRAY['SELECT idem_accept(''tiers'', ''k'')', 'SELECT idem_start(''tiers'', ''by worker'')', 'SELECT idem_start(''tiers'', ''never'')', 'SELECT idem_once(''tiers'', ''k'')', 'SELECT idem_once_many(''tiers'', ''{k}'')',
	'SELECT idem_cancel(''tiers'', ''k'')', 'SELECT idem_resolve(''tiers'', ''unknown acme'', ''failed'')', 'SELECT idem_resolve(''tiers'', ''never'', ''failed'')']) query;
SELECT is(pg_temp.as_role('regress_worker', 'SELECT count(*) FROM idem_start_next(''tiers'', 9, ''1 h'')'), '0', 'start_next passes over it');
SELECT is(pg_temp.as_role('regress_worker', 'SELECT count(*) FROM idem_list(operation => ''tiers'')'), '0', 'list too');

-- Taken away
SELECT idem_define('tiers', '{"principal_setting": null}');
SELECT idem_revoke('regress_worker', 'worker'), idem_revoke('regress_monitor', 'monitor'), idem_revoke('regress_app'), idem_revoke('regress_admin', 'admin');
SELECT is(pg_temp.who_may(f::regproc), 'nobody', 'revoked: ' || f)
  FROM unnest('{idem_accept,idem_start,idem_start_next,idem_list,idem_reconcile,idem_resolve,idem_cancel,idem_once,idem_once_many,idem_run,idem_redact,idem_unsure}'::text[]) f;
SELECT is(has_table_privilege('regress_' || r, 'idem_unresolved', 'SELECT'), false, 'revoked: idem_unresolved from ' || r) FROM unnest('{worker,monitor,admin}'::text[]) r;
DROP OWNED BY regress_app, regress_worker, regress_monitor, regress_admin, regress_nobody;
DROP ROLE regress_app, regress_worker, regress_monitor, regress_admin, regress_nobody;

SELECT finish();
