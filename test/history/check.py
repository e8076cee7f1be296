#!/usr/bin/env python3
"""Looks for an order of the calls in a history that explains every answer.

    check.py FILE

Key by key: a key's events are put into an order, each at some instant between its
start and its end, such that the machine of model.py can go along with all of them.
The search goes through the ends of the events in the order of time and keeps all states
in which the machine can then be, with the events that have taken place though they have
not ended (Lowe's form of the search of Wing and Gong).  What can take place and never changes
anything does so at once, so that it is not tried before and after everything else.  Where
no state is left, there is no such order.  It then prints the shortest beginning that has none, from the last
instant at which nothing was open, without the calls that can be left out.

What concerns several keys at once is looked at per transaction: COMMIT refused without
a reason, and business rows: those of a transaction that is known to be committed are
there, those of any other are not, and there is one for an attempt at most.

Ends with 0 if all is explained; with 1 if something is not; with 2 if a search grew too
large to be decided, and all else is explained; with 3 if the machine's clock was set
meanwhile, which leaves nothing to go by.
"""

import json
import sys
import uuid
from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate

import scene
from model import EMPTY, KINDS, LOST, Model, apply

# Of a key, after which its search is given up.  With 32 sessions most keys have some hundred.
MOST_CONFIGURATIONS = 300000

FINISHING = ("complete", "fail", "unsure", "renew", "release")
DECIDING = tuple(KINDS) + ("once_many", "reconcile")
COMMIT_MAY_RAISE = ("ID002", "ID003", "57014")

# lock_timeout ends a statement as a cancel does, whatever it has waited for: on a busy machine
# also for the lock with which a table is extended.
CANCELLED = "57014"
WAITED = "canceling statement due to lock timeout"


def load(path):
    about, rows, events = {}, [], []
    with open(path, encoding="utf8") as file:
        for line in file:
            event = json.loads(line)
            if event["e"] == "about":
                about = event
            elif event["e"] == "rows":
                rows = event["rows"]
            else:
                event["n"] = len(events)
                events.append(event)
    return about, rows, events


# --- transactions ---------------------------------------------------------------------


class Transaction:
    """What the session was told of one transaction, as far as no savepoint undid it."""

    def __init__(self, number):
        self.number = number
        self.pid = None
        self.old_snapshot = False
        self.keys = set()
        self.open = {}              # key -> level
        self.rows = []              # (level, key, fence)
        self.wrote = False
        self.repeats = False        # has finished what it had not claimed
        self.end = None

    def see(self, event):
        kind, level = event["e"], event["lv"]
        self.pid = self.pid or event["pid"]
        if kind == "call":
            self.see_call(event, level)
        elif kind == "row":
            self.wrote = True
            self.rows.append((level, event["key"], event["fence"]))
        elif kind == "undo":
            self.open = {key: at for key, at in self.open.items() if at < level}
            self.rows = [row for row in self.rows if row[0] < level]
        elif kind == "keep":
            self.open = {key: min(at, level - 1) for key, at in self.open.items()}
            self.rows = [(min(row[0], level - 1),) + row[1:] for row in self.rows]
        elif kind == "snapshot":
            self.old_snapshot = True
        elif kind != "prepare":
            self.end = event

    def see_call(self, event, level):
        f = function(event)
        for answer in event.get("ans") or []:
            if isinstance(answer, dict) and answer.get("verdict") == "execute":
                if answer["state"] == "processing" and answer["lease_until"] is None:
                    self.open[answer["key"]] = level
                if f == "run" and answer["state"] == "succeeded":
                    self.rows.append((level, answer["key"], None))
                self.wrote = self.wrote or f == "run"
        if f in FINISHING and "ans" in event:
            self.repeats = self.repeats or key_of(event) not in self.open
            if f != "renew":
                self.open.pop(key_of(event), None)


def function(event):
    return event["f"].removesuffix("_key")


def key_of(event):
    return event["a"].get("key") or event["a"]["claim"]["key"]


def transactions(events):
    found = {}
    for event in sorted(events, key=lambda e: (e["t0"], e["n"])):
        if event["e"] != "purge":
            found.setdefault(event["tx"], Transaction(event["tx"])).see(event)
    return found


def check_ends(found):
    """COMMIT is refused for a reason only."""
    for tx in found.values():
        error = tx.end and tx.end.get("err")
        asked = tx.end and tx.end.get("asked")
        if asked not in ("COMMIT", "PREPARE") or error is None:
            continue
        if error not in COMMIT_MAY_RAISE:
            yield "transaction %d: %s raised %s: %s" % (tx.number, asked, error, tx.end["message"])
        elif error == "ID002" and not tx.repeats:
            yield "transaction %d: %s refused, but no completion was repeated" % (tx.number, asked)


def check_rows(found, rows):
    there = defaultdict(set)
    effects = defaultdict(set)
    for key, fence, tx in rows:
        there[tx].add((key, fence))
        if fence is not None:
            effects[key, fence].add(tx)
    for (key, fence), owners in effects.items():
        if len(owners) > 1:
            yield "key %s: the attempt with fence %d has effects of transactions %s" % (key, fence, sorted(owners))
    for tx in found.values():
        expected = {row[1:] for row in tx.rows}
        if tx.end and tx.end["e"] == "commit" and expected - there[tx.number]:
            yield "transaction %d is committed, but not its rows %s" % (tx.number, expected - there[tx.number])
        if tx.end and tx.end["e"] == "abort" and there[tx.number]:
            yield "transaction %d was rolled back, but not its rows %s" % (tx.number, there[tx.number])
        if tx.end and tx.end["e"] == "maybe" and (expected or there[tx.number]):
            tx.end["e"] = "commit" if there[tx.number] else "abort"


# --- the server's clock ------------------------------------------------------------------


class Clock:
    """What the server's clock may have said; it is the machine's, and a number that the driver sets."""

    def __init__(self, steps, purges):
        begins = [0] + [t0 for t0, _, _ in steps]
        ends = [t1 for _, t1, _ in steps] + [float("inf")]
        self.periods = list(zip(begins, ends, [0] + [ahead for _, _, ahead in steps]))
        self.steady = not steps
        purges = sorted((event["t0"], self.during(event)[1]) for event in purges)
        self.purges = [t0 for t0, _ in purges]
        self.latest = [0] + list(accumulate((last for _, last in purges), max))

    def during(self, event):
        """The first and the last instant of that clock at which the event can have taken place."""
        ahead = [number for begin, end, number in self.periods if begin <= event["t1"] and end >= event["t0"]]
        return event["t0"] + min(ahead), event["t1"] + max(ahead)

    def purged(self, event):
        """What was over by then may have been purged, though it is not over now that the clock is set back."""
        return 0 if self.steady else self.latest[bisect_right(self.purges, event["t1"])]


# --- the events of a key ----------------------------------------------------------------


def plain(answer):
    """An answer with its JSON values as texts that can be compared."""
    if isinstance(answer, dict):
        return {**answer, **{name: None if answer[name] is None else json.dumps(answer[name], sort_keys=True)
                             for name in ("result", "error")}}
    return answer


def about_key(event, key, f, answer):
    """A call as the model takes it: what it did to one key."""
    given = event["a"]
    lease = given.get("lease", scene.settings(event["op"])["lease"])
    outcome = next((given[name] for name in ("result", "error", "detail") if name in given), None)
    fence = given["claim"]["fence"] if "claim" in given else given.get("fence")
    if f == "complete" and answer is not None and answer is not LOST:
        answer = json.dumps(answer[0]) if answer[0] is not None else None
    # COMMIT of a call that is a transaction of its own: the call itself was right.  A repetition
    # takes a transaction id if it has to wait for the one that is just recording the same.
    must_open = event.get("err") == "ID003"
    message = event.get("message", "")
    must_repeat = event.get("err") == "ID002" and message.startswith("COMMIT refused")
    return dict(e="call", n=event["n"], s=event["s"], tx=event["tx"], lv=event["lv"], t0=event["t0"], t1=event["t1"],
                now=event["now"], purged=event["purged"], f=f, key=key, fp=fingerprint(given, f),
                owner=given.get("owner"), length=lease, fence=fence, reason=given.get("reason"),
                outcome=None if outcome is None else json.dumps(outcome), retryable=given.get("retryable"),
                retry_after=given.get("retry_after"), delay=given.get("delay"), outcome_name=given.get("outcome"),
                error=None if must_repeat else CANCELLED if message == WAITED else event.get("err"),
                must_open=must_open, must_repeat=must_repeat,
                answer=LOST if must_open or must_repeat else plain(answer))


def fingerprint(given, f):
    return given.get("params", given.get("fingerprint")) if f in ("claim", "accept", "run") else None


def calls_of(event):
    """The calls about single keys that an event is."""
    f, answers = function(event), event.get("ans")
    if event.get("lost"):
        answers = LOST
    if f == "once_many":
        if event.get("err"):
            return          # for any of its keys
        for key in dict.fromkeys(event["a"]["keys"]):
            yield about_key(event, key, "once", LOST if answers is LOST else key in answers)
    elif f in ("start_next", "reconcile"):
        if event.get("err") == "ID003" or answers is LOST:
            for key in event["near"]:
                yield about_key({**event, "err": None}, key, f, LOST)
        elif answers is not None:
            told = {answer["key"]: answer for answer in answers}
            for key, answer in told.items():
                yield about_key(event, key, f, answer)
            for key in event["near"] if f == "start_next" else ():
                if key not in told:
                    yield about_key(event, key, "pass_over", None)
    else:
        if answers is not None and answers is not LOST and f not in FINISHING:
            answers = answers[0] if answers else None
        if f == "renew" and answers is not None and answers is not LOST:
            answers = answers[0]
        yield about_key(event, key_of(event), f, answers)


def touched(event):
    """Keys that a call is about."""
    if event["e"] == "purge":
        return None         # any
    if function(event) == "once_many":
        return event["a"]["keys"]
    return event["near"] if "near" in event else (key_of(event),)


def key_time(key):
    try:
        number = uuid.UUID(key)
    except ValueError:
        return None
    return (number.int >> 80) * 1000


class History:
    """One key's events."""

    def __init__(self, key, operation, steady):
        self.key = key
        self.operation = operation
        self.items = []
        dated = scene.settings(operation)["key_format"] == "uuidv7"
        self.model = Model(operation, key_time(key) if dated else None, steady)


def histories(events, found, steps):
    keys = {}
    clock = Clock(steps, [event for event in events if event["e"] == "purge"])
    moments = []
    by_transaction = defaultdict(list)
    pids = {tx.number: tx.pid for tx in found.values()}
    for event in events:
        if event["e"] == "call":
            event.update(now=clock.during(event), purged=clock.purged(event))
            for call in calls_of(event):
                history = keys.setdefault(call["key"], History(call["key"], event["op"], clock.steady))
                call.update(pids=pids, old_snapshot=found[call["tx"]].old_snapshot)
                history.items.append(call)
                found[call["tx"]].keys.add(call["key"])
        elif event["e"] not in ("purge", "row"):
            by_transaction[event["tx"]].append(event)
        if event["e"] in ("call", "purge"):
            finishes = event["e"] == "call" and function(event) not in DECIDING
            moments.append((event["t0"], event["t1"], event["s"], event["pid"], finishes, touched(event)))
    for tx in found.values():
        for event in by_transaction[tx.number]:
            event["wrote"] = tx.wrote
            for key in tx.keys:
                keys[key].items.append(event)
    for history in keys.values():
        history.items.sort(key=lambda e: e["n"])
    note_brief(keys, moments)
    return keys


def note_brief(keys, moments):
    """Which sessions may have held a key just for the time of a call, and whether one finished it."""
    of_key = defaultdict(list)
    for moment in moments:
        for key in moment[5] if moment[5] is not None else keys:
            of_key[key].append(moment[:5])
    for key, history in keys.items():
        for item in history.items:
            if item["e"] == "call":
                item["racing"] = any(s != item["s"] and t0 <= item["t1"] and t1 >= item["t0"]
                                     for t0, t1, s, _, finishes in of_key[key] if finishes)
                item["brief"] = frozenset(pid for t0, t1, s, pid, finishes in of_key[key]
                                          if not finishes and s != item["s"] and t0 <= item["t1"] and t1 >= item["t0"])


# --- the search ---------------------------------------------------------------------------


class NotDecided(Exception):
    """There are too many orders to go through."""


class Search:
    def __init__(self, history, items, start=EMPTY):
        self.model = history.model
        self.items = items
        self.idle = [changes_nothing(item) or item["e"] == "call" and only_replays(item) for item in items]
        self.configurations = {(start, frozenset())}
        self.failed = None          # the item that has no place
        self.before = None
        self.quiet = (0, start)     # position, and the only state there
        self.count = 0

    def run(self):
        ends = sorted(range(len(self.items)), key=lambda i: (self.items[i]["t1"], self.items[i]["n"]))
        begins = sorted(range(len(self.items)), key=lambda i: (self.items[i]["t0"], self.items[i]["n"]))
        previous = self.previous_of_session()
        pending, next_begin = set(), 0
        for position, end in enumerate(ends):
            while next_begin < len(begins) and self.items[begins[next_begin]]["t0"] <= self.items[end]["t1"]:
                pending.add(begins[next_begin])
                next_begin += 1
            self.before = self.configurations
            self.configurations = self.place(end, pending, previous)
            pending.discard(end)
            if not self.configurations:
                self.failed = position
                self.order = ends
                return False
            if len(self.configurations) == 1:
                (state, done), = self.configurations
                if not state.open and not done and not pending:
                    self.quiet = (position + 1, state)
        return True

    def previous_of_session(self):
        previous, last = {}, {}
        for i, item in enumerate(self.items):
            previous[i] = last.get(item["s"])
            last[item["s"]] = i
        return previous

    def place(self, end, pending, previous):
        """All configurations in which that item has taken place."""
        found, seen = set(), set(self.configurations)
        todo = list(self.configurations)
        while todo:
            state, done = todo.pop()
            if end in done:
                found.add((state, done - {end}))
                continue
            possible = [i for i in pending if i not in done and
                        (previous[i] not in pending or previous[i] in done)]
            new = set(self.after(state, done, possible)) - seen
            seen |= new
            todo += new
            self.count += len(new)
            if self.count > MOST_CONFIGURATIONS:
                raise NotDecided
        return found

    def after(self, state, done, possible):
        """The configurations that are one step away; where something is idle, the one with it."""
        idle = [i for i in possible if self.is_idle(i, state)]
        if idle:
            return [(state, done.union(idle))]
        return [(new, done | {i}) for i in possible for new in set(apply(self.model, state, self.items[i]))]

    def is_idle(self, i, state):
        """Can the item take place in that state, and never change one?"""
        item = self.items[i]
        if item["e"] == "call":
            return self.idle[i] and bool(apply(self.model, state, item))
        return item["e"] not in ("snapshot", "prepare") and self.model.frame(state, item["tx"]) is None and \
            item["tx"] not in state.prepared and item["tx"] not in state.fresh


def changes_nothing(item):
    """Can it be left out without taking away what explains others?"""
    if item["e"] != "call":
        return False
    if item["error"]:
        return not item["must_open"]
    if item["f"] == "status":
        return True
    answer = item["answer"]
    return isinstance(answer, dict) and answer["verdict"] in ("in_progress", "mismatch", "unknown", "expired") and \
        item["f"] != "reconcile"


def only_replays(item):
    """Does it repeat what is on record?"""
    answer = item["answer"]
    return answer is False or \
        item["f"] != "cancel" and isinstance(answer, dict) and answer["verdict"] == "replay"


def smallest(history, search):
    """The items that cannot be explained, and the state they begin in."""
    position, start = search.quiet
    kept = {search.order[i] for i in range(position, search.failed + 1)}
    last = search.items[search.order[search.failed]]["t1"]
    items = [item for i, item in enumerate(search.items)
             if i in kept or item["t0"] <= last and i not in set(search.order[:position])]
    failed = search.items[search.order[search.failed]]
    for item in list(items):
        if item is failed or not changes_nothing(item):
            continue
        fewer = [other for other in items if other is not item]
        again = Search(history, fewer, start)
        try:
            if not again.run() and again.items[again.order[again.failed]] is failed:
                items = fewer
        except NotDecided:
            pass
    return start, items


def describe(item, origin):
    head = "%9d–%-9d session %-2d tx %-6d level %d  " % (item["t0"] - origin, item["t1"] - origin, item["s"], item["tx"],
                                                     item["lv"])
    if item["e"] != "call":
        return head + item["e"] + (" (%s)" % item["err"] if item.get("err") else "")
    given = ", ".join("%s %s" % (name, item[name]) for name in
                      ("fp", "owner", "length", "fence", "outcome", "outcome_name", "retryable", "retry_after", "delay")
                      if item[name] is not None)
    answer = item["answer"]
    if isinstance(answer, dict):
        answer = ", ".join("%s %s" % (name, answer[name]) for name in
                           ("verdict", "state", "attempt", "fence", "result", "error", "holder", "lease_until", "retry_after")
                           if answer[name] is not None)
    if item["error"]:
        answer = item["error"]
    return head + "%s(%s) => %s%s" % (item["f"], given, answer, " brief" if item["brief"] else "")


def report(history, search):
    start, items = smallest(history, search)
    failed = search.items[search.order[search.failed]]
    origin = min(item["t0"] for item in items)
    print("key %s of operation %s: no order explains these %d events (times in us from %d):"
          % (history.key, history.operation, len(items), origin))
    print("  it begins with %s" % (start.base or "nothing",))
    for item in sorted(items, key=lambda i: (i["t0"], i["n"])):
        print(("* " if item is failed else "  ") + describe(item, origin))
    print("  before the event with the star:")
    for state, done in list(search.before)[:4]:
        print("    base %s" % (state.base,))
        for tx, frames in state.open:
            print("      tx %d: %s" % (tx, frames))
        for i in done:
            print("      has taken place: " + describe(search.items[i], origin))


def check_keys(keys, most=3):
    """The numbers of keys that are not explained, and that are not decided."""
    bad = undecided = 0
    for history in keys.values():
        search = Search(history, history.items)
        try:
            if search.run():
                continue
            bad += 1
            if bad <= most:
                report(history, search)
        except NotDecided:
            undecided += 1
            print("key %s of operation %s, %d events: not decided, after %d configurations"
                  % (history.key, history.operation, len(history.items), search.count))
    return bad, undecided


def check(path):
    about, rows, events = load(path)
    if about["clock_set"]:
        print("not decided: the machine's clock was set meanwhile")
        return 3
    found = transactions(events)
    faults = list(check_ends(found)) + list(check_rows(found, rows))
    for fault in faults[:20]:
        print(fault)
    keys = histories(events, found, about["steps"])
    bad, undecided = check_keys(keys)
    calls = sum(event["e"] == "call" for event in events)
    print("%d calls about %d keys in %d transactions of %d sessions, %d crashes, %d steps of the clock, %d business rows: %s"
          % (calls, len(keys), len(found), about["sessions"], about["crashes"], len(about["steps"]), len(rows),
             "%d keys and %d transactions not explained" % (bad, len(faults)) if bad or faults else
             "%d keys not decided, all others explained" % undecided if undecided else "all explained"))
    return 1 if bad or faults else 2 if undecided else 0


if __name__ == "__main__":
    sys.exit(check(sys.argv[1]))
