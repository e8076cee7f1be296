#!/usr/bin/env python3
"""Calls every function of the extension with hostile arguments, in random transactions.

    fuzz.py SECONDS SEED DATABASE [BYTES]

The functions and their arguments are taken from the catalog, so a new one is called as
soon as it is there; it goes on until each has been called, however slow the machine is.
Prints TAP.  A failure is

- an internal error (SQLSTATE XX...) that the arguments alone do not raise,
- the end of the connection, or a statement that a time-out does not end,
- a lock, a snapshot or a transaction id that is left when a transaction is over,
- a warning that something was not given back.
"""

import os
import random
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))

from wire import Connection, Lost, Refused

LEFT_BEHIND = re.compile(r"leak|own a lock|not released|still referenced|not closed|unexpected")
NAMES = ("pay", "ship", "*", "o", "dest")
KEYS = ("k1", "k2", "k3", "018f0000-0000-7000-8000-000000000001", "01ARZ3NDEKTSV4RRFFQ69G5FAV")

# One statement of what a value of a type can be, as SQL.  BIG is replaced by a size.
VALUES = {
    "text": ["''", "'*'", "' '", "'%'", "repeat('x', 255)", "repeat('x', 256)", "repeat('ü', 128)", "repeat('y', BIG)",
             "E'\\u0001'", "E'\\U0001F600'", "'{}'", "'null'", "'[1,'", "repeat('[', 20000)", "'1e400000'", "'\"\\ud800\"'",
             "'{\"a\":1,\"a\":2}'", "'$$'", "'request.jwt.claims ->> sub'", "'admin'", "'worker'", "'succeeded'",
             "'not_executed'", "'failed'", "'effect(jsonb)'", "chr(1114111)"],
    "jsonb": ["'{}'", "'null'", "'[]'", "'0'", "'\"\"'", "'1e1000'", "'-0.0'", "'{\"\": {\"\": []}}'",
              "('1' || repeat('0', 131071))::jsonb", "'1e-16383'", "to_jsonb(repeat('x', BIG))",
              "(repeat('[', 5000) || repeat(']', 5000))::jsonb", "'{\"retention\": \"1 day\"}'", "'{\"retention\": null}'",
              "'{\"lease\": \"1 s\", \"wait\": \"1 ms\"}'", "'{\"guard\": \"infinity\"}'", "'{\"role\": \"nobody\"}'",
              "'{\"fields\": [\"/a\"], \"unordered\": [\"\"]}'", "'{\"defaults\": {\"a\": {\"b\": 1}}}'",
              "'{\"max_attempts\": 1, \"deadline\": \"1 us\"}'", "'{\"key_format\": \"uuidv7\"}'",
              "'{\"on_lease_expiry\": \"retry\", \"lease\": \"1 us\"}'", "'{\"max_result_bytes\": 0}'",
              "'{\"no such setting\": 1}'", "'{\"retention\": \"178000000 years\"}'", "'{\"base\": \"1 us\", \"max_attempts\": 1}'",
              "'{\"max_in_flight\": 0}'", "'{\"breaker_window\": \"9999999 days\"}'",
              "(SELECT jsonb_object_agg('k' || i, i) FROM generate_series(1, 3000) i)"],
    "interval": ["'0'", "'1 us'", "'-1 us'", "'1 s'", "'1 mon'", "'178000000 years'", "'-178000000 years'",
                 "'2147483647 days'", "'9223372036854775807 us'", "'-9223372036854775808 us'", "'1 day -1 us'",
                 "'20 years'", "'300000 years'"],
    "bigint": ["0", "1", "-1", "9223372036854775807", "(-9223372036854775807 - 1)", "1796023810667599"],
    "integer": ["0", "1", "-1", "2147483647", "(-2147483647 - 1)", "3"],
    "boolean": ["true", "false"],
    "bytea": ["''", "decode(repeat('ab', 32), 'hex')", "decode(repeat('00', 31), 'hex')", "decode(repeat('ff', 33), 'hex')",
              "convert_to(repeat('z', BIG), 'UTF8')", "'\\x00'"],
    "uuid": ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "gen_random_uuid()"],
    "timestamp with time zone": ["'infinity'", "'-infinity'", "'epoch'", "now()", "'294276-12-31'", "'4714-11-24 BC'"],
    "text[]": ["'{}'", "ARRAY['k1', 'k2', 'k1']", "ARRAY[NULL]::text[]", "'{{a,b},{c,d}}'", "'[5:6]={a,b}'",
               "(SELECT array_agg('m' || i) FROM generate_series(1, 2000) i)", "ARRAY[repeat('x', 300)]", "'{retention}'"],
    "regprocedure": ["'effect(jsonb)'", "'broken(jsonb)'", "'now()'", "0", "4294967295", "'jsonb_pretty(jsonb)'"],
    "name": ["'app_role'", "'no such role'", "'public'", "'postgres'", "''"],
    "double precision": ["0", "'NaN'", "'infinity'", "'-infinity'", "1e308", "-1e-308"],
    "json": ["'{}'", "'[1,2'", "'null'"],
    "oid": ["0", "1", "4294967295"],
    "uuid[]": ["'{}'", "ARRAY[NULL]::uuid[]", "ARRAY[gen_random_uuid()]", "'{{00000000-0000-0000-0000-000000000000}}'"],
}

SET_UP = """
CREATE FUNCTION effect(params jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT params $$;
CREATE FUNCTION broken(params jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    IF random() < 0.3 THEN RAISE 'no'; END IF;
    IF random() < 0.3 THEN PERFORM 1 / 0; END IF;
    IF random() < 0.3 THEN PERFORM idem_claim('pay', 'k1'); END IF;
    IF random() < 0.2 THEN PERFORM idem_run('pay', 'k2', params, 'broken(jsonb)'); END IF;
    RETURN NULL;
END $$;
"""

EXTENSION = """
SET LOCAL lock_timeout = 0;
DROP EXTENSION IF EXISTS idempotency CASCADE;
CREATE EXTENSION idempotency;
SELECT idem_grant('app_role'), idem_grant('worker_role', 'worker');
"""

FUNCTIONS = """
SELECT p.oid::regproc::text, array_to_string(ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) t), '|'),
    p.pronargdefaults, p.proretset
FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
    JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
WHERE e.extname = 'idempotency' AND p.prokind = 'f'
    AND p.prorettype NOT IN ('trigger'::regtype, 'internal'::regtype, 'event_trigger'::regtype)
    AND NOT 'internal'::regtype = ANY (p.proargtypes::oid[])
ORDER BY 1"""

VIEWS = """
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
    AND d.deptype = 'e' JOIN pg_extension e ON d.refobjid = e.oid
WHERE e.extname = 'idempotency' AND c.relkind = 'v' ORDER BY 1"""

ANSWER = """
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = 'idem_answer'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""

LOCKS = """
SELECT string_agg(concat_ws(' ', locktype, mode, relation::regclass, objsubid), '; ') FROM pg_locks
WHERE pid = pg_backend_pid() AND locktype <> 'virtualxid' AND mode <> 'SIReadLock'
    AND NOT (locktype = 'relation' AND relation IN ('pg_locks'::regclass, 'pg_class'::regclass, 'pg_class_oid_index'::regclass,
        'pg_class_relname_nsp_index'::regclass, 'pg_class_tblspc_relfilenode_index'::regclass,
        'pg_namespace'::regclass, 'pg_namespace_nspname_index'::regclass, 'pg_namespace_oid_index'::regclass))"""


class Failure(Exception):
    pass


class Fuzz:
    def __init__(self, seed, database, size):
        self.random = random.Random(seed)
        self.database = database
        self.size = size
        self.count = 0
        self.called = {}
        self.states = {}
        self.statements = []
        self.deck = []              # functions that are called next
        self.watcher = Connection(database)
        self.encoding = self.watcher.value("SHOW server_encoding")
        self.connect()
        self.must(SET_UP)
        self.renew()

    def connect(self):
        self.connection = Connection(self.database, patience=900, statement_timeout="3s", **{"idempotency.principal": "acme"})

    def renew(self):
        """A fresh extension: what was defined before would refuse all that follows."""
        self.must(EXTENSION)
        self.functions = [(name, types.split("|") if types else [], int(defaults), many == "t")
                          for name, types, defaults, many in self.must(FUNCTIONS)]
        self.views = [row[0] for row in self.must(VIEWS)]
        self.fields = self.must(ANSWER)

    def must(self, sql):
        """A statement of the tool's own, which no limit of time may end."""
        try:
            return self.connection.query("SET LOCAL statement_timeout = 0; " + sql)
        except Refused as error:
            raise Failure("SQLSTATE %s: %s, of: %s" % (error.sqlstate, error.message, sql)) from error

    # --- arguments ----------------------------------------------------------------------

    def value(self, type_name, place):
        r = self.random
        if r.random() < 0.08:
            return "NULL"
        if type_name == "idem_answer":
            return self.answer()
        if type_name == "text" and r.random() < 0.75:
            return "'%s'" % r.choice(NAMES[:3] if place == 0 else KEYS)
        if type_name == "text" and r.random() < 0.03:
            return self.raw_text()
        if type_name not in VALUES:
            return "NULL"
        value = r.choice(VALUES[type_name])
        return value.replace("BIG", str(r.choice((1, 100, self.size)))) if "BIG" in value else value

    def raw_text(self):
        """Bytes that no encoding has; only a database without encoding takes them."""
        return "E'%s'" % "".join("\\x%02x" % self.random.randrange(128, 256) for _ in range(self.random.randint(1, 8)))

    def answer(self):
        r = self.random
        dice = r.random()
        operation, key = r.choice(NAMES[:2]), r.choice(KEYS)
        if dice < 0.5:
            return "idem_claim('%s', '%s'%s)" % (operation, key, r.choice(("", ", lease => '1 s'", ", lease => '1 us'")))
        if dice < 0.6:
            return "idem_status('%s', '%s')" % (operation, key)
        enums = {"idem_verdict": ("execute", "replay", "in_progress", "mismatch", "unknown", "expired"),
                 "idem_state": ("absent", "unconfirmed", "accepted", "processing", "succeeded", "failed", "unknown", "expired"),
                 "idem_advice": ("run", "use_result", "retry_same_key", "new_key", "reconcile")}
        members = []
        for name, type_name in self.fields:
            if r.random() < 0.15:
                members.append("NULL")
            elif type_name in enums:
                members.append("'%s'" % ("execute" if r.random() < 0.6 and name == "verdict" else r.choice(enums[type_name])))
            elif name == "id" and r.random() < 0.8:
                members.append("idem_id('%s', '%s')" % (operation, key))
            elif name in ("operation", "key", "principal") and r.random() < 0.8:
                members.append("'%s'" % dict(operation=operation, key=key, principal="acme")[name])
            else:
                members.append(self.value(type_name, 1))
        return "ROW(%s)::idem_answer" % ", ".join(members)

    def arguments(self, types, defaults):
        r = self.random
        given = len(types) - (r.randint(0, defaults) if r.random() < 0.5 else 0)
        return ["%s::%s" % (self.value(type_name, i), type_name) for i, type_name in enumerate(types[:given])]

    def expression(self):
        if not self.deck:
            self.deck = self.random.sample(self.functions, len(self.functions))
        name, types, defaults, many = self.deck.pop()
        self.called[name] = self.called.get(name, 0) + 1
        arguments = self.arguments(types, defaults)
        return "%s(%s)" % (name, ", ".join(arguments)), arguments, many

    # --- statements ---------------------------------------------------------------------

    def statement(self):
        """A statement with a call, and its arguments."""
        r = self.random
        if r.random() < 0.03:
            return "SELECT count(*) FROM (SELECT * FROM %s LIMIT 50) v" % r.choice(self.views), []
        call, arguments, many = self.expression()
        form = r.randrange(9)
        if form == 0:
            return "SELECT %s FROM generate_series(1, 3)" % call, arguments
        if form == 1:
            return "SELECT * FROM (SELECT 1) one, LATERAL %s f LIMIT 1" % call, arguments
        if form == 2:
            return "DO $fuzz$ BEGIN PERFORM %s; EXCEPTION WHEN OTHERS THEN " \
                "IF SQLSTATE LIKE 'XX%%' THEN RAISE; END IF; END $fuzz$" % call, arguments
        if form == 3 and not many:
            return "SELECT coalesce(%s::text, 'x') = ANY (ARRAY['a', 'x'])" % call, arguments
        if form == 4:
            return "SELECT (f).* FROM (SELECT %s AS f OFFSET 0) s" % call, arguments
        if form == 5 and not many:
            return "SELECT %s, %s" % (call, call), arguments
        if form == 6:
            return "WITH a AS MATERIALIZED (SELECT %s AS f) SELECT count(*) FROM a" % call, arguments
        return "SELECT * FROM %s" % call, arguments

    def send(self, sql, arguments=()):
        self.statements = self.statements[-40:] + [sql]
        try:
            rows = self.connection.query(sql)
            self.states["00000"] = self.states.get("00000", 0) + 1
            return rows
        except Refused as error:
            self.states[error.sqlstate] = self.states.get(error.sqlstate, 0) + 1
            if error.sqlstate.startswith("XX") and not self.raised_by(arguments, error):
                raise Failure("SQLSTATE %s: %s" % (error.sqlstate, error.message)) from error
            return None
        finally:
            for warning in self.connection.warnings:
                if LEFT_BEHIND.search(warning.message):
                    raise Failure("WARNING: " + warning.message)
            self.connection.warnings.clear()

    def raised_by(self, arguments, error):
        """Do the arguments raise the same error without the call?"""
        other = Connection(self.database, **{"idempotency.principal": "acme"})
        for argument in arguments:
            if "idem_" in argument:
                continue
            try:
                other.query("SELECT " + argument)
            except Refused as again:
                if again.message == error.message:
                    return True
        other.close()
        return False

    def call(self):
        sql, arguments = self.statement()
        self.count += 1
        self.send(sql, arguments)

    def cursor(self):
        """A call whose rows are not all fetched."""
        call, arguments, _ = self.expression()
        self.count += 1
        self.send("DECLARE c%d CURSOR FOR SELECT * FROM %s" % (self.count, call), arguments)
        if self.connection.status != b"E":
            self.send("FETCH 1 FROM c%d" % self.count, arguments)

    def steps(self):
        """Calls in an open transaction, with savepoints."""
        r = self.random
        savepoints = 0
        for _ in range(r.randint(1, 6)):
            if r.random() < 0.6:
                savepoints += 1
                self.send("SAVEPOINT s%d" % savepoints)
            if r.random() < 0.1:
                self.cursor()
            else:
                self.call()
            if self.connection.status == b"E" and not savepoints:
                return
            if savepoints and (self.connection.status == b"E" or r.random() < 0.2):
                savepoints = r.randint(1, savepoints)
                self.send("ROLLBACK TO s%d" % savepoints)
            elif savepoints and r.random() < 0.2:
                savepoints = r.randint(1, savepoints) - 1
                self.send("RELEASE s%d" % (savepoints + 1))

    def transaction(self):
        r = self.random
        role = r.choice((None, None, None, None, None, "app_role", "worker_role"))
        if role:
            self.send("SET ROLE " + role)
        if r.random() < 0.4:
            self.call()
        else:
            self.send("BEGIN ISOLATION LEVEL %s %s" % (
                r.choice(("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")), r.choice(("", "", "", "", "READ ONLY"))))
            if r.random() < 0.1:
                # ends what follows at some point of it
                self.send("SET LOCAL statement_timeout = '%d ms'" % r.randint(1, 4))
            self.steps()
            self.send(r.choice(("COMMIT", "COMMIT", "ROLLBACK", "SET CONSTRAINTS ALL IMMEDIATE; COMMIT",
                                "PREPARE TRANSACTION 'fuzz'")))
            if self.connection.status != b"I":
                self.send("ROLLBACK")
        self.leaves_nothing()
        self.send("RESET ROLE")
        if r.random() < 0.2:
            self.send("ROLLBACK PREPARED 'fuzz'")

    def leaves_nothing(self):
        locks = self.must(LOCKS)[0][0]
        if locks:
            raise Failure("locks are left: " + locks)
        left = self.watcher.query("SELECT backend_xid, backend_xmin, state FROM pg_stat_activity WHERE pid = %d"
                                  % self.connection.pid)
        if left and left[0][2] == "idle" and (left[0][0] or left[0][1]):
            raise Failure("a transaction id or a snapshot is left: %s" % left[0])

    def run(self, until):
        n = 0
        while time.monotonic() < until or len(self.called) < len(self.functions):
            n += 1
            if n % 400 == 0:
                self.send("ROLLBACK PREPARED 'fuzz'")
                self.renew()
            self.transaction()
        self.send("ROLLBACK PREPARED 'fuzz'")


def main():
    seconds, seed, database = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    size = int(sys.argv[4]) if len(sys.argv) > 4 else 3000000
    print("# SEED=%d SECONDS=%g, a large value has %d bytes" % (seed, seconds, size), flush=True)
    fuzz = Fuzz(seed, database, size)
    failure = None
    try:
        fuzz.run(time.monotonic() + seconds)
    except (Failure, Lost) as error:
        failure = error
    print("# encoding %s: %d calls of %d functions; SQLSTATEs: %s"
          % (fuzz.encoding, fuzz.count, len(fuzz.called), ", ".join("%s %d" % item for item in sorted(fuzz.states.items()))))
    if failure:
        print("# %s" % failure)
        for statement in fuzz.statements[-12:]:
            print("#   " + statement.replace("\n", " ")[:1500])
    print("%sok 1 - encoding %s: no internal error, nothing left behind" % ("not " if failure else "", fuzz.encoding))
    never = [name for name, *_ in fuzz.functions if name not in fuzz.called]
    print("%sok 2 - encoding %s: every function was called%s"
          % ("not " if never and not failure else "", fuzz.encoding, ", but " + ", ".join(never) if never else ""))
    print("1..2")
    sys.exit(1 if failure or never else 0)


main()
