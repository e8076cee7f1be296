#!/usr/bin/env python3
"""Sessions that call the extension at random, and what each call answered and when.

    drive.py OUTPUT [CALLS [SESSIONS [SEED [CRASHES [STEPS]]]]]

Writes one JSON document a line; check.py reads them.  The programs of the sessions
follow from the seed; how they meet is the machine's doing, so what is to be looked
into again is the file, not the seed.

An event has t0 and t1, microseconds of the machine's clock before the statement was
sent and after its answer was there: whatever it did, it did between them.  A lost
connection leaves open what the last statement did; its interval ends when the session
is known to be gone.  The server's clock is the machine's and a number of microseconds in the
file HISTORY_CLOCK, which is set meanwhile, STEPS times.
"""

import ctypes
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))

import scene
from wire import Connection, Lost, Refused

MS = scene.MS
CALLS_OF_A_KEY = 25
LIVE_KEYS = 6
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


def now():
    return time.time_ns() // 1000


def set_ahead():
    """Nanoseconds that the time of day is ahead of a clock that nobody sets: the closest of many readings."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(300)]
    before, day, _ = min(readings, key=lambda r: r[2] - r[0])
    return day - before


class Key:
    """A key in play, and what sessions have been told about it."""

    def __init__(self, generator):
        self.operation = generator.choice(list(scene.OPERATIONS))
        self.principal = generator.choices((None, "zenith"), (80, 20))[0]
        self.text = "k%d-%d" % (generator.randrange(10), generator.getrandbits(48))
        if self.operation == "dated" or generator.random() < 0.4:
            milliseconds = now() // 1000
            self.text = str(uuid.UUID(int=(milliseconds << 80) | (7 << 76) | generator.getrandbits(76) & ~(3 << 62) | (2 << 62)))
        self.calls = 0
        self.handles = []           # answers with verdict execute, the latest last
        self.tries = []             # fences of reconcilers
        self.state = None           # as last answered


class Stage:
    """What all sessions share."""

    def __init__(self, calls, seed):
        self.seed = seed
        self.left = calls
        self.generator = random.Random("%d/keys" % seed)
        self.lock = threading.Lock()
        self.keys = []
        self.retired = []
        self.prepared = []
        self.transactions = 0
        self.sessions = []
        for _ in range(LIVE_KEYS):
            self.keys.append(Key(self.generator))

    def pick(self, generator):
        with self.lock:
            place = generator.randrange(LIVE_KEYS)
            key = self.keys[place]
            key.calls += 1
            if key.calls > CALLS_OF_A_KEY:
                self.retired = self.retired[-40:] + [key]
                key = self.keys[place] = Key(self.generator)
            return key

    def of_operation(self, operation):
        with self.lock:
            return [k for k in self.retired[-12:] + self.keys if k.operation == operation]

    def find(self, text):
        with self.lock:
            return next((k for k in self.keys + self.retired if k.text == text), None)

    def transaction(self):
        with self.lock:
            self.transactions += 1
            return self.transactions

    def count_call(self):
        with self.lock:
            self.left -= 1

    def take_prepared(self):
        with self.lock:
            return self.prepared.pop(0) if self.prepared else None


class Player(threading.Thread):
    """A session."""

    def __init__(self, stage, number):
        super().__init__(daemon=True)
        self.stage = stage
        self.number = number
        self.random = random.Random("%d/session/%d" % (stage.seed, number))
        self.events = []
        self.connection = None
        self.died = None

    # --- the connection -------------------------------------------------------------

    def connect(self):
        while True:
            try:
                self.connection = Connection(timezone="UTC")
                self.started = self.ask("SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()")
                return
            except Lost:
                time.sleep(0.02)

    def ask(self, sql):
        """A question of the driver's own, put again if it is cancelled."""
        while True:
            try:
                return self.connection.value(sql)
            except Refused:
                continue

    def reconnect(self):
        """Returns when the old session is known to be gone."""
        pid, started = self.connection.pid, self.started
        self.connection.close()
        while True:
            self.connect()
            try:
                while self.ask("SELECT 1 FROM pg_stat_activity WHERE pid = %d AND backend_start = '%s'"
                               % (pid, started)):
                    time.sleep(0.001)
                return now()
            except Lost:
                continue

    def note(self, kind, **fields):
        if kind == "call":
            self.stage.count_call()
        self.events.append(dict(e=kind, s=self.number, pid=self.connection.pid, tx=self.tx, lv=self.level,
                                t0=self.t0, t1=self.t1, **fields))

    def send(self, sql):
        """Runs a statement; afterwards t0 and t1 are around it."""
        # a session that ends may have done so right after its last answer was sent, unread as yet
        self.last = self.t0
        self.t0 = now()
        try:
            return self.connection.query(sql)
        finally:
            self.t1 = now()

    # --- calls ------------------------------------------------------------------------

    def named(self, key):
        """The arguments that name it; its principal only where it is not that of the session."""
        given = dict(operation=key.operation, key=key.text)
        if key.principal or self.random.random() < 0.1:
            given["principal"] = key.principal or "acme"
        return given

    def arguments(self, function, key):
        """Random arguments of a call about a key."""
        r = self.random
        given = self.named(key)
        if function in ("claim", "accept"):
            params = r.choices("ABN", (90, 5, 5))[0]
            if params == "A" and r.random() < 0.04:
                given["fingerprint"] = "f"
            elif params != "N":
                given["params"] = params
        if function in ("claim", "start"):
            lease = r.choices((None, 0, 3 * MS, 15 * MS, scene.HOUR), (15, 20, 25, 20, 20))[0]
            owner = r.choices((None, "w1", "w2"), (50, 40, 10))[0]
            if lease is not None:
                given["lease"] = lease
            if owner:
                given["owner"] = owner
        if function == "claim" and r.random() < 0.3:
            given["wait"] = r.choice((0, 5 * MS, 20 * MS))
        if function == "accept" and r.random() < 0.3:
            given["delay"] = r.choice((1, 5 * MS, 30 * MS))
        if function == "run":
            given.update(params="A", func="effect(jsonb)")
        if function in ("cancel", "reopen") and r.random() < 0.5:
            given["reason"] = "late"
        if function == "resolve":
            given["outcome"] = r.choice(("succeeded", "failed", "not_executed", "not_executed"))
            if given["outcome"] != "not_executed":
                given["detail"] = r.choice((1, 2))
            fences = key.tries[-3:] or [handle["fence"] for handle in key.handles[-1:] if r.random() < 0.3]
            if fences and r.random() < 0.6:
                given["fence"] = r.choice(fences)
        return given

    def finish_arguments(self, function, key, handle):
        r = self.random
        given = dict(claim=handle) if r.random() < 0.3 else dict(self.named(key), fence=handle["fence"])
        if function == "complete" and r.random() < 0.9:
            given["result"] = r.choice((1, 1, 2))
        if function == "fail":
            given.update(error=r.choice((3, 3, 4)), retryable=r.random() < 0.85)
        if function == "unsure" and r.random() < 0.5:
            given["detail"] = 5
        if function == "renew":
            given["lease"] = r.choice((4 * MS, 20 * MS, scene.HOUR))
        if function in ("fail", "release") and r.random() < 0.25:
            given["retry_after"] = r.choice((1, 4 * MS, 30 * MS))
        return given

    FINISHING = ("complete", "fail", "unsure", "renew", "release")
    OVERRULING = ("resolve", "expire_lease", "reopen", "redact", "reconcile")

    def choose(self, key):
        """A function and its arguments."""
        r = self.random
        own = self.own(key)
        if not own and r.random() < 0.25 and key.state in self.LEADS_ON:
            function = r.choice(self.LEADS_ON[key.state])
            if function not in self.OVERRULING or not self.open and not (function == "reconcile" and self.explicit):
                return self.with_arguments(function, key)
        if own and r.random() < 0.75 or key.handles and r.random() < 0.36:
            handle = own if own and r.random() < 0.9 else r.choice(key.handles[-4:]) if key.handles and r.random() < 0.4 \
                else key.handles[-1] if key.handles else own
            function = r.choices(self.FINISHING, (22, 34, 12, 10, 22))[0]
            given = self.finish_arguments(function, key, handle)
            return function if "claim" in given else function + "_key", given
        function = r.choices(
            ("claim", "accept", "start", "once", "run", "cancel", "status", "start_next", "once_many")
            + self.OVERRULING,
            (48, 9, 9, 3, 3, 2, 5, 4, 2, 7, 3, 4, 3, 4))[0]
        if function in self.OVERRULING and (self.open or self.tx and function == "reconcile" and self.explicit):
            function = "status"
        return self.with_arguments(function, key)

    # What makes something happen in a state.
    LEADS_ON = dict(unknown=("resolve", "resolve", "reconcile"), accepted=("start", "start_next"),
                    failed=("reopen", "claim"), absent=("claim", "claim", "accept"))

    def with_arguments(self, function, key):
        r = self.random
        if function == "start_next":
            return function, dict(operation=key.operation, max_records=r.choice((1, 3)), lease=r.choice((0, 5 * MS, scene.HOUR)),
                                  owner=r.choice((None, "w1")))
        if function == "reconcile":
            return function, dict(operation=key.operation, max_records=r.choice((1, 3)), lease=r.choice((1 * MS, 10 * MS)))
        if function == "once_many":
            others = [k.text for k in self.stage.of_operation(key.operation)[-3:] if k.principal == key.principal]
            given = self.named(key)
            given["keys"] = others + [given.pop("key")]
            r.shuffle(given["keys"])
            return function, given
        return function, self.arguments(function, key)

    def call(self, key):
        """One call, in whatever transaction there is; its answer is on record."""
        function, given = self.choose(key)
        in_block = self.explicit and self.random.random() < 0.12
        undo = in_block and self.random.random() < 0.5
        inner = scene.call_sql(function, given)
        sql = "SELECT in_block(%s, %s)" % (scene.literal(inner), scene.literal(undo)) if in_block else inner
        fields = dict(f=function, a=given, op=key.operation, block=in_block)
        if function == "run":
            fails = self.random.random() < 0.2
            self.send("SELECT set_config('history.key', '%s', false), set_config('history.tx', '%d', false),"
                      " set_config('history.fail', '%s', false)" % (key.text, self.tx, "yes" if fails else "no"))
            self.snapshot()
        if function in ("start_next", "reconcile"):
            fields["near"] = [k.text for k in self.stage.of_operation(key.operation)]
        if in_block:
            self.level += 1
        try:
            rows = self.send(sql)
        except Refused as error:
            self.snapshot()
            self.note("call", err=error.sqlstate, message=error.message, **fields)
            self.level -= in_block
            raise
        except Lost:
            self.t0 = self.last if self.explicit else self.t0
            self.lost_call = fields
            raise
        self.snapshot()
        answers = json.loads(rows[0][0]) if in_block else [json.loads(row[0]) if row[0] else None for row in rows]
        if isinstance(answers, str):
            sqlstate, _, message = answers.partition(" ")
            self.note("call", err=sqlstate, message=message, **fields)
        else:
            self.note("call", ans=answers, **fields)
        if in_block:
            undo = undo or isinstance(answers, str)
            self.note("undo" if undo else "keep")
            self.level -= 1
        if not undo and not isinstance(answers, str):
            self.learn(function, given, answers)

    def snapshot(self):
        if self.explicit and not self.has_snapshot:
            self.has_snapshot = True
            if self.isolation != "READ COMMITTED":
                self.note("snapshot")

    def learn(self, function, given, answers):
        """Remembers the handles in answers; a claim without lease is to be finished here."""
        for answer in answers:
            if isinstance(answer, dict) and (key := self.stage.find(answer["key"])):
                key.state = answer["state"]
            if function == "reconcile":
                key = self.stage.find(answer["key"])
                if key:
                    key.tries.append(answer["fence"])
            elif isinstance(answer, dict) and answer.get("verdict") == "execute" and answer.get("fence"):
                key = self.stage.find(answer["key"])
                if key:
                    key.handles.append(answer)
                if answer["lease_until"] is None and answer["state"] == "processing":
                    self.open[answer["key"]] = (answer, self.level)
        if function.split("_")[0] in self.FINISHING and function.split("_")[0] != "renew":
            self.open.pop(given.get("key") or given["claim"]["key"], None)

    # --- transactions -----------------------------------------------------------------

    def autocommit(self):
        self.explicit = False
        try:
            self.call(self.stage.pick(self.random))
            self.note("commit")
        except Refused:
            self.note("abort")
        self.open = {}

    def own(self, key):
        """The handle of a claim that this transaction has to finish."""
        return self.open[key.text][0] if key.text in self.open else None

    def finish_with_row(self, key):
        """Business row and completion together, as an application writes them."""
        handle = self.own(key) or self.random.choice(key.handles[-2:])
        given = self.finish_arguments("complete", key, handle)
        self.send("INSERT INTO business VALUES ('%s', %d, %d)" % (key.text, handle["fence"], self.tx))
        self.snapshot()
        self.note("row", key=key.text, fence=handle["fence"])
        function = "complete" if "claim" in given else "complete_key"
        fields = dict(f=function, a=given, op=key.operation, block=False)
        try:
            rows = self.send(scene.call_sql(function, given))
        except Refused as error:
            self.note("call", err=error.sqlstate, message=error.message, **fields)
            raise
        except Lost:
            self.t0 = self.last
            self.lost_call = fields
            raise
        self.note("call", ans=[json.loads(rows[0][0]) if rows[0][0] else None], **fields)
        self.learn(function, given, [None])

    def transaction(self):
        r = self.random
        self.explicit = True
        self.has_snapshot = False
        self.isolation = r.choice(LEVELS)
        self.send("BEGIN ISOLATION LEVEL " + self.isolation)
        keys = [self.stage.pick(r) for _ in range(r.choice((1, 1, 2)))]
        steps = r.randint(1, 5)
        while steps > 0 or self.open and r.random() < 0.9 and steps > -4:
            steps -= 1
            key = r.choice(keys)
            if self.stage.left <= 0:
                break
            try:
                self.step(key)
            except Refused:
                # the innermost level is undone now; RELEASE and so on would be refused
                self.note("undo")
                if self.level == 0:
                    self.send("ROLLBACK")
                    return
                self.roll_back_to(r.randint(1, self.level))
        self.end_transaction()

    def step(self, key):
        r = self.random
        dice = r.random()
        if dice < 0.15 and self.level < 3:
            self.send("SAVEPOINT s%d" % (self.level + 1))
            self.level += 1
        elif dice < 0.25 and self.level > 0:
            level = r.randint(1, self.level)
            self.send("RELEASE s%d" % level)
            self.level = level
            self.note("keep")
            self.level -= 1
            self.open = {key: (handle, min(at, self.level)) for key, (handle, at) in self.open.items()}
        elif dice < 0.34 and self.level > 0:
            self.roll_back_to(r.randint(1, self.level))
        elif dice < (0.65 if key.text in self.open else 0.42 if key.handles else 0):
            self.finish_with_row(key)
        else:
            self.call(key)

    def roll_back_to(self, level):
        self.send("ROLLBACK TO s%d" % level)
        self.level = level
        self.note("undo")
        self.open = {key: (handle, at) for key, (handle, at) in self.open.items() if at < level}

    def end_transaction(self):
        r = self.random
        how = r.choices(("COMMIT", "ROLLBACK", "PREPARE"), (72, 16, 12))[0]
        self.level = 0
        if how == "ROLLBACK":
            self.send("ROLLBACK")
            self.note("abort")
            return
        gid = "h%d" % self.tx
        self.ending = gid if how == "PREPARE" else "COMMIT"
        try:
            self.send("PREPARE TRANSACTION '%s'" % gid if how == "PREPARE" else "COMMIT")
        except Refused as error:
            self.note("abort", err=error.sqlstate, message=error.message, asked=how)
            return
        if how == "PREPARE":
            self.note("prepare")
            with self.stage.lock:
                self.stage.prepared.append((gid, self.tx))
        else:
            self.note("commit", asked=how)

    def end_prepared(self, which):
        gid, self.tx = which
        commits = self.random.random() < 0.7
        self.ending_prepared = (gid, commits)
        self.send("%s PREPARED '%s'" % ("COMMIT" if commits else "ROLLBACK", gid))
        self.note("commit" if commits else "abort", asked="PREPARED")
        self.ending_prepared = None

    def is_prepared(self, gid):
        return self.ask("SELECT 1 FROM pg_prepared_xacts WHERE gid = '%s'" % gid) is not None

    def after_loss(self):
        """The connection was lost: what is open is void as soon as the session is gone."""
        last, t0 = self.last, self.t0
        pid = self.connection.pid
        gone = self.reconnect()
        lost_call, ending, prepared = self.lost_call, self.ending, self.ending_prepared
        while True:
            try:
                if prepared:
                    still = self.is_prepared(prepared[0])
                elif ending and ending != "COMMIT":
                    still = self.is_prepared(ending)
                break
            except Lost:
                gone = self.reconnect()
        new_pid, self.connection.pid = self.connection.pid, pid
        self.t1 = gone
        if self.purges:
            self.note("purge", lost=True)
        if lost_call:
            self.t0 = last if self.explicit else t0
            self.note("call", lost=True, **lost_call)
        self.level = 0
        if prepared:
            self.t0 = t0
            if still:
                with self.stage.lock:
                    self.stage.prepared.append((prepared[0], self.tx))
            else:
                self.note("commit" if prepared[1] else "abort", asked="PREPARED")
        elif ending and ending != "COMMIT":
            self.t0 = t0 if still else last
            self.note("prepare" if still else "abort")
            if still:
                with self.stage.lock:
                    self.stage.prepared.append((ending, self.tx))
        elif ending or not self.explicit and lost_call:
            self.t0 = min(t0, last) if ending else t0
            self.note("maybe")
        elif self.explicit:
            self.t0 = last
            self.note("abort")
        self.connection.pid = new_pid

    def begin(self):
        self.tx = self.stage.transaction()
        self.level = 0
        self.open = {}
        self.explicit = False
        self.purges = False
        self.lost_call = self.ending = self.ending_prepared = None

    def play(self):
        r = self.random
        dice = r.random()
        self.begin()
        if dice < 0.02:
            self.purges = True
            try:
                self.send("SELECT idem_purge()")
                self.note("purge")
            except Refused as error:
                self.note("purge", err=error.sqlstate)
        elif dice < 0.2 and (which := self.stage.take_prepared()):
            self.end_prepared(which)
        elif dice < 0.5:
            self.autocommit()
        else:
            self.transaction()

    def run(self):
        try:
            self.t0 = self.t1 = self.last = now()
            self.connect()
            while self.stage.left > 0:
                try:
                    self.play_on()
                except Lost:
                    self.after_loss()
        except BaseException as error:      # a fault of the driver itself
            self.died = error
            raise

    def play_on(self):
        try:
            self.play()
        except Refused as error:
            # a cancelled statement that is no call: BEGIN, ROLLBACK and their kin
            self.recover(error)

    def recover(self, error):
        """A statement that is no call was cancelled."""
        t0 = self.t0
        if self.connection.status != b"I":
            self.ask("ROLLBACK")
        if self.ending_prepared:
            with self.stage.lock:
                self.stage.prepared.append((self.ending_prepared[0], self.tx))
            return
        self.level, self.t0, self.t1 = 0, t0, now()
        self.note("abort", err=error.sqlstate, message=error.message, asked="other")


# --- what disturbs them -------------------------------------------------------------------


class Trouble(threading.Thread):
    """Cancels statements and ends sessions."""

    def __init__(self, stage, seed):
        super().__init__(daemon=True)
        self.stage = stage
        self.random = random.Random("%d/trouble" % seed)
        self.over = threading.Event()
        self.connection = None

    def run(self):
        while not self.over.wait(self.random.uniform(0.005, 0.06)):
            player = self.random.choice(self.stage.sessions)
            if self.random.random() < 0.75:
                player.connection.cancel()
            else:
                self.terminate(player.connection.pid)

    def terminate(self, pid):
        """By the server, which signals no process that is not its own."""
        try:
            self.connection = self.connection or Connection()
            self.connection.query("SELECT pg_terminate_backend(%d)" % pid)
        except (Lost, Refused):
            self.connection = None


class Clock(threading.Thread):
    """Sets the server's clock: by as much as leases and retentions last, and by more than all but some do."""

    # Not further back than a second: pg_ctl would take a server for one that has not started yet.
    AHEAD = (0, 0, -30 * MS, -100 * MS, 60 * MS, 200 * MS, 2 * scene.HOUR)

    def __init__(self, stage, seed, steps):
        super().__init__(daemon=True)
        self.stage = stage
        self.random = random.Random("%d/clock" % seed)
        self.number = steps
        self.steps = []
        self.calls = stage.left
        with open(os.environ["SET_CLOCK"], "r+b") as file:
            self.ahead = ctypes.c_int64.from_buffer(mmap.mmap(file.fileno(), 8))
        self.ahead.value = 0

    def run(self):
        for left in sorted((self.random.randrange(self.calls) for _ in range(self.number)), reverse=True):
            while self.stage.left > left:
                time.sleep(0.002)
            t0 = now()
            ahead = self.ahead.value = self.random.choice(self.AHEAD)
            self.steps.append((t0, now(), ahead))


def postmaster():
    with open(os.path.join(os.environ["HISTORY_DATA"], "postmaster.pid"), encoding="ascii") as file:
        return int(file.readline())


def condition(pid):
    """Its letter in /proc; X where it is gone."""
    try:
        with open("/proc/%d/stat" % pid, encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def wait_until(pids, conditions):
    while any(condition(pid) not in conditions for pid in pids):
        time.sleep(0.005)


def crash():
    """kill -9 of the server with all it has started, and its start again."""
    chief = postmaster()
    os.kill(chief, signal.SIGSTOP)
    wait_until([chief], "TZX")      # until then it may start one more
    with open("/proc/%d/task/%d/children" % (chief, chief), encoding="ascii") as file:
        children = [int(pid) for pid in file.read().split()]
    for pid in children + [chief]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    wait_until(children + [chief], "ZX")
    # a killed process that is never reaped looks like a running server to the next one
    os.unlink(os.path.join(os.environ["HISTORY_DATA"], "postmaster.pid"))
    os.unlink(Connection.socket_path() + ".lock")
    subprocess.run([os.path.join(os.environ["IDEM_BIN"], "pg_ctl"), "-D", os.environ["HISTORY_DATA"],
                    "-l", os.environ["HISTORY_LOG"], "-w", "-s", "-t", "900", "start"], check=True,
                   env=dict(os.environ, LD_PRELOAD=os.environ["HISTORY_PRELOAD"]))


def business_rows():
    connection = Connection()
    rows = connection.query("SELECT key, fence, tx FROM business")
    for gid, in connection.query("SELECT gid FROM pg_prepared_xacts"):
        connection.query("ROLLBACK PREPARED '%s'" % gid)
    return [(key, fence and int(fence), int(tx)) for key, fence, tx in rows]


def disturb(stage, trouble, clock, crashes):
    """Until all calls are made."""
    calls = stage.left
    trouble.start()
    clock.start()
    for n in range(1, crashes + 1):
        while stage.left > calls - calls * n // (crashes + 1) and not any(p.died for p in stage.sessions):
            time.sleep(0.02)
        crash()
    while any(player.is_alive() for player in stage.sessions):
        time.sleep(0.05)
    trouble.over.set()
    trouble.join()
    clock.join()
    clock.ahead.value = 0


def write(output, stage, about):
    with open(output, "w", encoding="utf8") as file:
        print(json.dumps(dict(e="about", **about)), file=file)
        for player in stage.sessions:
            for event in player.events:
                print(json.dumps(event), file=file)
        print(json.dumps(dict(e="rows", rows=business_rows())), file=file)


def main():
    output = sys.argv[1]
    calls, sessions, seed, crashes, steps = [int(a) for a in sys.argv[2:]] + [6000, 8, 1, 1, 6][len(sys.argv) - 2:]
    ahead = set_ahead()
    connection = Connection()
    connection.query(scene.SET_UP)
    for operation in scene.OPERATIONS:
        connection.query(scene.define(operation))
    stage = Stage(calls, seed)
    clock = Clock(stage, seed, steps)
    stage.sessions = [Player(stage, number) for number in range(sessions)]
    for player in stage.sessions:
        player.start()
    while any(player.connection is None for player in stage.sessions):
        time.sleep(0.01)
    disturb(stage, Trouble(stage, seed), clock, crashes)
    write(output, stage, dict(seed=seed, calls=calls, sessions=sessions, crashes=crashes, steps=clock.steps,
                              clock_set=abs(set_ahead() - ahead) > 10000))
    if any(player.died for player in stage.sessions):
        sys.exit("a session of the driver died: " + repr([p.died for p in stage.sessions if p.died][0]))


main()
