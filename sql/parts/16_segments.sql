-- The ring of segments (src/segment.c): an id that carries time belongs to the
-- segment of its six-hour window, any other to "record".  Made like "record",
-- column by column and index by index; the store refuses a table that differs.

CREATE TABLE idempotency_internal.record_s00 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s00 IS 'records whose id carries a time in window 0 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s00', '');
CREATE TABLE idempotency_internal.record_s01 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s01 IS 'records whose id carries a time in window 1 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s01', '');
CREATE TABLE idempotency_internal.record_s02 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s02 IS 'records whose id carries a time in window 2 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s02', '');
CREATE TABLE idempotency_internal.record_s03 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s03 IS 'records whose id carries a time in window 3 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s03', '');
CREATE TABLE idempotency_internal.record_s04 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s04 IS 'records whose id carries a time in window 4 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s04', '');
CREATE TABLE idempotency_internal.record_s05 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s05 IS 'records whose id carries a time in window 5 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s05', '');
CREATE TABLE idempotency_internal.record_s06 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s06 IS 'records whose id carries a time in window 6 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s06', '');
CREATE TABLE idempotency_internal.record_s07 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s07 IS 'records whose id carries a time in window 7 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s07', '');
CREATE TABLE idempotency_internal.record_s08 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s08 IS 'records whose id carries a time in window 8 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s08', '');
CREATE TABLE idempotency_internal.record_s09 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s09 IS 'records whose id carries a time in window 9 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s09', '');
CREATE TABLE idempotency_internal.record_s10 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s10 IS 'records whose id carries a time in window 10 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s10', '');
CREATE TABLE idempotency_internal.record_s11 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s11 IS 'records whose id carries a time in window 11 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s11', '');
CREATE TABLE idempotency_internal.record_s12 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s12 IS 'records whose id carries a time in window 12 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s12', '');
CREATE TABLE idempotency_internal.record_s13 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s13 IS 'records whose id carries a time in window 13 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s13', '');
CREATE TABLE idempotency_internal.record_s14 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s14 IS 'records whose id carries a time in window 14 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s14', '');
CREATE TABLE idempotency_internal.record_s15 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s15 IS 'records whose id carries a time in window 15 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s15', '');
CREATE TABLE idempotency_internal.record_s16 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s16 IS 'records whose id carries a time in window 16 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s16', '');
CREATE TABLE idempotency_internal.record_s17 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s17 IS 'records whose id carries a time in window 17 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s17', '');
CREATE TABLE idempotency_internal.record_s18 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s18 IS 'records whose id carries a time in window 18 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s18', '');
CREATE TABLE idempotency_internal.record_s19 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s19 IS 'records whose id carries a time in window 19 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s19', '');
CREATE TABLE idempotency_internal.record_s20 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s20 IS 'records whose id carries a time in window 20 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s20', '');
CREATE TABLE idempotency_internal.record_s21 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s21 IS 'records whose id carries a time in window 21 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s21', '');
CREATE TABLE idempotency_internal.record_s22 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s22 IS 'records whose id carries a time in window 22 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s22', '');
CREATE TABLE idempotency_internal.record_s23 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s23 IS 'records whose id carries a time in window 23 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s23', '');
CREATE TABLE idempotency_internal.record_s24 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s24 IS 'records whose id carries a time in window 24 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s24', '');
CREATE TABLE idempotency_internal.record_s25 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s25 IS 'records whose id carries a time in window 25 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s25', '');
CREATE TABLE idempotency_internal.record_s26 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s26 IS 'records whose id carries a time in window 26 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s26', '');
CREATE TABLE idempotency_internal.record_s27 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s27 IS 'records whose id carries a time in window 27 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s27', '');
CREATE TABLE idempotency_internal.record_s28 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s28 IS 'records whose id carries a time in window 28 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s28', '');
CREATE TABLE idempotency_internal.record_s29 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s29 IS 'records whose id carries a time in window 29 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s29', '');
CREATE TABLE idempotency_internal.record_s30 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s30 IS 'records whose id carries a time in window 30 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s30', '');
CREATE TABLE idempotency_internal.record_s31 (LIKE idempotency_internal.record INCLUDING ALL) USING heap;
COMMENT ON TABLE idempotency_internal.record_s31 IS 'records whose id carries a time in window 31 of 32, six hours each';
SELECT pg_catalog.pg_extension_config_dump('idempotency_internal.record_s31', '');

-- All of them, for the views; what no view shows is left out.
CREATE VIEW idempotency_internal.every_record AS
	SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s00
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s01
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s02
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s03
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s04
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s05
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s06
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s07
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s08
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s09
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s10
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s11
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s12
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s13
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s14
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s15
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s16
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s17
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s18
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s19
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s20
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s21
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s22
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s23
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s24
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s25
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s26
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s27
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s28
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s29
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s30
	UNION ALL SELECT id, claimed_at, finished_at, lease_until, expires_at, forget_at, fence, attempt, state, principal, operation, key, owner, result, error
		FROM idempotency_internal.record_s31;
COMMENT ON VIEW idempotency_internal.every_record IS
	'the records of "record" and of the 32 segments, without fingerprints';
