-- What a call answers.  The enums and the composite only ever grow at the end.

CREATE TYPE idem_verdict AS ENUM
	('execute', 'replay', 'in_progress', 'mismatch', 'unknown', 'expired');
COMMENT ON TYPE idem_verdict IS
	'what the caller of a claim is to do: execute the work, or take the recorded outcome, wait, correct its request, or reconcile';

CREATE TYPE idem_state AS ENUM
	('absent', 'unconfirmed', 'accepted', 'processing', 'succeeded', 'failed', 'unknown', 'expired');
COMMENT ON TYPE idem_state IS
	'what is on record for a key; unknown and expired are computed when read';

CREATE TYPE idem_advice AS ENUM
	('run', 'use_result', 'retry_same_key', 'new_key', 'reconcile');
COMMENT ON TYPE idem_advice IS
	'the one safe next step of the caller';

CREATE TYPE idem_answer AS (
	verdict idem_verdict,
	state idem_state,
	advice idem_advice,
	id uuid,
	principal text,
	operation text,
	key text,
	fence bigint,
	attempt integer,
	result jsonb,
	error jsonb,
	retry_after interval,
	holder integer,
	claimed_at timestamptz,
	finished_at timestamptz,
	lease_until timestamptz,
	expires_at timestamptz,
	forget_at timestamptz
);
COMMENT ON TYPE idem_answer IS
	'the answer of a claim, a status query and their kin; a value with verdict execute is the permit to finish';
