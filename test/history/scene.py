"""What the sessions play with: operations, their settings, and the SQL of each call.

The checker reads the settings here too; it knows nothing else of the driver.
"""

import json

# Times in microseconds, as the checker computes with them.
MS = 1000
HOUR = 3600 * 1000 * MS
DAY = 24 * HOUR

DEFAULTS = dict(retention=DAY, guard=0, lease=None, on_lease_expiry="reconcile", max_attempts=None,
                deadline=None, wait=0, retry_after=1000 * MS, store_result=True, key_format="any")

# Those that differ.  Retentions and waits of milliseconds end while others call.
OPERATIONS = {
    "plain": {},
    "again": dict(on_lease_expiry="retry", max_attempts=4, retry_after=4 * MS),
    "short": dict(retention=40 * MS, guard=40 * MS, retry_after=5 * MS),
    "twice": dict(max_attempts=2, retention=60 * MS),
    "leased": dict(lease=12 * MS, wait=6 * MS, store_result=False),
    "dated": dict(key_format="uuidv7", retention=150 * MS, guard=100 * MS),
    "ended": dict(deadline=120 * MS, on_lease_expiry="retry", retention=50 * MS, guard=50 * MS),
}


def settings(operation):
    return {**DEFAULTS, **OPERATIONS[operation]}


def interval(microseconds):
    return "%d us" % microseconds


def define(operation):
    """The SQL that defines an operation."""
    times = ("retention", "guard", "lease", "deadline", "wait", "retry_after")
    changed = {name: interval(value) if name in times else value
               for name, value in OPERATIONS[operation].items()}
    return "SELECT idem_define('%s', '%s')" % (operation, json.dumps(changed))


SET_UP = """
CREATE EXTENSION idempotency;
CREATE TABLE business (key text NOT NULL, fence bigint, tx bigint NOT NULL);
CREATE FUNCTION effect(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO business VALUES (current_setting('history.key'), NULL, current_setting('history.tx')::bigint);
    IF current_setting('history.fail') = 'yes' THEN
        RAISE EXCEPTION 'refused';
    END IF;
    RETURN '1';
END $$;
-- Runs a call in a block with an exception clause, and undoes it if told to.
CREATE FUNCTION in_block(call text, undo boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    answer jsonb;
    found jsonb;
BEGIN
    BEGIN
        answer := '[]';
        FOR found IN EXECUTE call LOOP
            answer := answer || jsonb_build_array(found);
        END LOOP;
        IF undo THEN
            RAISE EXCEPTION USING ERRCODE = 'HIST0';
        END IF;
    EXCEPTION
        WHEN SQLSTATE 'HIST0' THEN
            NULL;
        WHEN OTHERS THEN
            answer := to_jsonb(SQLSTATE || ' ' || SQLERRM);
    END;
    RETURN answer;
END $$;
"""


def literal(value):
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return "'%s'" % value.replace("'", "''")


# Argument -> how it is written.  Everything that is given is passed by name.
def argument(name, value):
    if name in ("lease", "wait", "retry_after", "delay"):
        return "%s => '%s'" % (name, interval(value))
    if name == "fingerprint":
        return r"fingerprint => decode(repeat('%02x', 32), 'hex')" % ord(value)
    if name == "keys":
        return "keys => ARRAY[%s]::text[]" % ", ".join(literal(v) for v in value)
    if name in ("params", "result", "error", "detail"):
        return "%s => %s" % (name, literal(json.dumps(value)))
    if name == "claim":
        return "claim => jsonb_populate_record(NULL::idem_answer, %s)" % literal(json.dumps(value))
    return "%s => %s" % (name, literal(value))


VOID = {name + form for name in ("fail", "unsure", "release") for form in ("", "_key")} | {"redact"}


def call_sql(function, arguments):
    """One call as a query whose rows are one jsonb each."""
    given = ", ".join(argument(name, value) for name, value in arguments.items())
    return "SELECT %s FROM idem_%s(%s) c" % ("to_jsonb(1)" if function in VOID else "to_jsonb(c)", function, given)
