"""What docs/contract.md says of one key, as a machine with states.

A state has the record that is committed (`base`), and for each open transaction what it
has done to the key since (`open`): a stack of frames, each made at a nesting level and
dropped when that level is rolled back.  apply() gives the states to which an event can
lead if it takes place in a state; none, if what was answered cannot be answered there.

Times are ranges, in microseconds: a deadline lies between its first and its last possible
instant, "now" between the moment a call was sent and the moment its answer had come.  What
a lost answer said is not known, so each is tried.
"""

import json
from collections import namedtuple
from datetime import datetime

import scene

# state: a accepted, p processing, s succeeded, f failed, c cancelled, t failed but retryable,
# r released.  fence None: not known to any session.  tries: fence of the last reconciler.
Record = namedtuple("Record", "state fp fence attempt counted owner lease early expires forget claimed "
                              "limits result error accepted tries try_until")

# What a transaction has done: an open claim (the record it becomes, and what it takes over),
# a row it has written (SAME: none), a completion it has repeated, whether the row is an outcome
# of an earlier transaction that it has only redacted.
SAME = "same"
Frame = namedtuple("Frame", "level claim row repeated rewritten")
Claim = namedtuple("Claim", "record prior prior_fence prior_state")
State = namedtuple("State", "base open prepared fresh highest")

EMPTY = State(None, (), frozenset(), frozenset(), 0)
NEVER = None
LOST = "lost"           # the answer of a call whose connection was lost

FORGOTTEN, RELEASED, EXPIRED, SUCCEEDED, FAILED, RETRYABLE, ACCEPTED, RUNNING, OVERRUN, UNKNOWN = (
    "forgotten", "released", "expired", "succeeded", "failed", "retryable", "accepted", "running",
    "overrun", "unknown")


def after(event, length):
    return add(event["now"], length)


def add(time, length):
    return NEVER if time is NEVER or length is None else (time[0] + length, time[1] + length)


def later(a, b):
    return NEVER if a is NEVER or b is NEVER else (max(a[0], b[0]), max(a[1], b[1]))


def over(time, event):
    """The possible answers to: is that time over?"""
    if time is NEVER:
        return (False,)
    first, last = event["now"]
    return tuple(answer for answer, possible in ((True, last >= time[0]), (False, first <= time[1])) if possible)


def microseconds(text):
    return text and int(datetime.fromisoformat(text).timestamp() * 1000000 + 0.5)


class Model:
    def __init__(self, operation, key_time, steady):
        self.settings = scene.settings(operation)
        self.horizon = self.settings["retention"] + self.settings["guard"]
        self.dated = self.settings["key_format"] == "uuidv7"
        self.key_time = (key_time, key_time) if self.dated else None
        self.steady = steady        # the clock is not set

    # --- what a record means now ------------------------------------------------------

    def deadline(self, record):
        return add(record.limits, self.settings["deadline"])

    def tries_left(self, record, event):
        most = self.settings["max_attempts"]
        if most is not None and record.counted >= most:
            return (False,)
        return tuple(not answer for answer in over(self.deadline(record), event))

    def kept(self, record, recorded):
        """The record with the end of its retention and guard."""
        return record._replace(expires=add(recorded, self.settings["retention"]),
                               forget=add(later(recorded, self.key_time) if self.dated else recorded, self.horizon))

    @staticmethod
    def purged(record, event):
        """May it be gone though it is to be kept, because the clock was set back after a purge?"""
        return record.forget is not NEVER and event["purged"] >= record.forget[0]

    def forgotten(self, record, event):
        answers = over(record.forget, event)
        return answers if True in answers or not self.purged(record, event) else answers + (True,)

    def lives_of_outcome(self, record, event, life):
        found = set()
        for forgotten in self.forgotten(record, event):
            for expired in over(record.expires, event):
                if forgotten:
                    found.add((FORGOTTEN, record))
                else:
                    found.add((EXPIRED if expired else life, record))
        return found

    def lives(self, record, event):
        """What it can mean at the time of the event: pairs of life and record."""
        if record.state == "s":
            return self.lives_of_outcome(record, event, SUCCEEDED)
        if record.state in "fc":
            return self.lives_of_outcome(record, event, FAILED)
        if record.state == "p":
            found = set()
            for ended in over(record.lease, event):
                for left in self.tries_left(record, event):
                    retry = left and self.settings["on_lease_expiry"] == "retry"
                    found.add(((OVERRUN if retry else UNKNOWN) if ended else RUNNING, record))
            return found
        if record.state != "r":
            return self.lives_in_waiting(record, event, RETRYABLE if record.state == "t" else ACCEPTED)
        found = set()
        for forgotten in self.forgotten(record, event):
            found |= {(FORGOTTEN, record)} if forgotten else self.lives_in_waiting(record, event, RELEASED)
        return found

    def lives_in_waiting(self, record, event, life):
        """Of a record that waits for its next attempt."""
        found = set()
        for left in self.tries_left(record, event):
            found |= {(life, record)} if left else self.lives_of_outcome(self.failed_by_limit(record), event, FAILED)
        return found

    def failed_by_limit(self, record):
        if record.state == "t":
            return record if record.forget else self.kept(record, record.early or record.claimed)
        which = "deadline" if self.deadline(record) else "max_attempts"
        ended = self.deadline(record) or record.claimed
        return self.kept(record._replace(error='{"limit": "%s"}' % which), ended)

    def early(self, record, event):
        """Is it too early for its next attempt?"""
        if record.early is None:
            return (False,)
        return tuple(not answer for answer in over(record.early, event))

    # --- reading ----------------------------------------------------------------------

    @staticmethod
    def frame(state, tx):
        for owner, frames in state.open:
            if owner == tx:
                return frames[-1]
        return None

    def read(self, state, tx):
        """The record that the transaction reads, and whether it is its own."""
        frame = self.frame(state, tx)
        if frame and frame.row != SAME:
            return frame.row, True
        return state.base, False

    @staticmethod
    def others(state, tx):
        """Open transactions that hold the key or have changed its row."""
        return [owner for owner, frames in state.open
                if owner != tx and any(f.claim or f.row != SAME for f in frames)]

    def changed_by_others(self, state, tx):
        return any(owner != tx and frames[-1].row != SAME for owner, frames in state.open)

    # --- writing ----------------------------------------------------------------------

    def push(self, state, event, claim="keep", row="keep", repeated=False, rewritten=False):
        """The state after the event's transaction has done something to the key."""
        tx, level = event["tx"], event["lv"]
        frames = dict(state.open).get(tx, ())
        last = frames[-1] if frames else Frame(0, None, SAME, False, False)
        new = Frame(level, last.claim if claim == "keep" else claim, last.row if row == "keep" else row,
                    last.repeated or repeated, last.rewritten or rewritten)
        frames = tuple(f for f in frames if f.level < level) + (new,)
        highest = state.highest
        for record in (new.row if new.row != SAME else None, new.claim and new.claim.record):
            if record and record.fence:
                highest = max(highest, record.fence)
        return state._replace(open=self.with_frames(state, tx, frames), highest=highest)

    @staticmethod
    def with_frames(state, tx, frames):
        rest = tuple(item for item in state.open if item[0] != tx)
        return tuple(sorted(rest + ((tx, frames),))) if frames else rest

    def undo(self, state, tx, level):
        frames = tuple(f for f in dict(state.open).get(tx, ()) if f.level < level)
        return state._replace(open=self.with_frames(state, tx, frames))

    def keep(self, state, tx, level):
        """RELEASE of the savepoint of a level."""
        frames = dict(state.open).get(tx, ())
        below = tuple(f for f in frames if f.level < level - 1)
        above = [f for f in frames if f.level >= level - 1]
        merged = (above[-1]._replace(level=level - 1),) if above else ()
        return state._replace(open=self.with_frames(state, tx, below + merged))

    def end(self, state, tx):
        return state._replace(open=self.with_frames(state, tx, ()), prepared=state.prepared - {tx},
                              fresh=state.fresh - {tx})

    def commit(self, state, tx):
        frame = self.frame(state, tx)
        state = self.end(state, tx)
        if frame and frame.row != SAME:
            state = state._replace(base=frame.row, fresh=frozenset())
        return state

    def may_commit(self, state, event):
        frame = self.frame(state, event["tx"])
        if frame is None:
            return True
        return not frame.claim and not (frame.repeated and event["wrote"])

    # --- answers ----------------------------------------------------------------------

    def says(self, event, verdict, state, **expected):
        """Can that be the answer?  A lost one can be any."""
        answer = event["answer"]
        if answer is LOST:
            return True
        if not isinstance(answer, dict) or answer["verdict"] != verdict or answer["state"] != state:
            return False
        for name, value in expected.items():
            if name in ("lease_until", "claimed_at", "expires_at", "forget_at"):
                told = microseconds(answer[name])
                # others than the owner are told claimed_at to the millisecond
                slack = 1001 if name == "claimed_at" else 1
                if (value is NEVER) != (told is None) or told and not value[0] - slack <= told <= value[1] + slack:
                    return False
            elif answer[name] != value:
                return False
        return answer["retry_after"] is None or not answer["retry_after"].startswith("-")

    def says_held(self, event, state, holders):
        """in_progress because of another open transaction, or of a call that is just deciding."""
        if event["answer"] is LOST:
            return True
        if not self.says(event, "in_progress", "processing"):
            return False
        holder = event["answer"]["holder"]
        pids = {event["pids"][tx] for tx in holders} | {0 for tx in holders if tx in state.prepared}
        if pids and (holder in pids or holder is None):
            return True
        return bool(event["brief"]) and (holder in event["brief"] or not holder)

    def execute_forbidden(self, state, event, record, own):
        """Must a takeover of this record raise 40001?"""
        return event["old_snapshot"] and not own and event["tx"] not in state.fresh

    # --- the decision table -------------------------------------------------------------

    def decide(self, state, event, kind):
        """Yields the states after a call that decides about the key, row by row of the table."""
        tx = event["tx"]
        frame = self.frame(state, tx)
        if frame and frame.claim:
            if kind.answers_held(self, event, state, [tx]):
                yield state
            return
        record, own = self.read(state, tx)
        others = self.others(state, tx)
        for late in over(add(self.key_time, self.horizon), event) if self.dated else (False,):
            for life, meant in self.lives(record, event) if record else ((None, None),):
                yield from self.row(state, event, kind, life, meant, own, others, late)

    def row(self, state, event, kind, life, record, own, others, late):
        held = lambda: [state] if kind.answers_held(self, event, state, others) else []
        if life == FORGOTTEN and self.dated and not late and not self.purged(record, event):
            return
        if life in (None, FORGOTTEN, RELEASED):
            if record is None and others or (late or kind.only_recorded) and (others or event["brief"]):
                yield from held()
            if record is None and others:
                return
            if late:
                if kind.answers(self, event, "expired", "expired"):
                    yield state
                return
            if kind.only_recorded and not others:
                if kind.refuses_nothing(event):
                    yield state
                return
            if life == RELEASED and not kind.withdraws:
                for early in self.early(record, event):
                    if not early:
                        yield from self.execute(state, event, kind, life, record, own, others)
                    elif kind.answers(self, event, "in_progress", "processing"):
                        yield state
                return
            yield from self.execute(state, event, kind, life, record, own, others)
        elif life == EXPIRED:
            if kind.answers(self, event, "expired", "expired"):
                yield state
        elif kind.compares and not self.same_params(record, event):
            shown = {SUCCEEDED: "succeeded", FAILED: "failed", RETRYABLE: "failed", ACCEPTED: "accepted",
                     RUNNING: "processing", OVERRUN: "unknown", UNKNOWN: "unknown"}[life]
            if kind.answers(self, event, "mismatch", shown, result=None, error=None, fence=None):
                yield state
        elif life in (SUCCEEDED, FAILED):
            told = dict(result=record.result, attempt=record.attempt, error=None) if life == SUCCEEDED else \
                dict(error=record.error, result=None)
            if kind.answers(self, event, "replay", "succeeded" if life == SUCCEEDED else "failed", fence=None, **told):
                yield state
        elif life == RETRYABLE:
            for early in (False,) if kind.withdraws else self.early(record, event):
                if not early:
                    yield from self.execute(state, event, kind, life, record, own, others)
                elif kind.answers(self, event, "in_progress", "failed", fence=None):
                    yield state
        elif life == ACCEPTED:
            for early in (False,) if kind.withdraws else self.early(record, event):
                if kind.starts and not early:
                    yield from self.execute(state, event, kind, life, record, own, others)
                elif kind.answers(self, event, "in_progress", "accepted", fence=None):
                    yield state
            if others or event["brief"]:
                yield from held()
        elif life == RUNNING:
            if event["owner"] and event["owner"] == record.owner:
                if others or event["brief"]:
                    yield from held()
                if not others:
                    yield from self.hand_again(state, event, kind, record, own)
            elif kind.answers(self, event, "in_progress", "processing", fence=None):
                yield state
        elif life == OVERRUN and not kind.withdraws:
            yield from self.execute(state, event, kind, life, record, own, others)
        elif kind.answers(self, event, "unknown", "unknown", fence=None):
            yield state

    @staticmethod
    def same_params(record, event):
        return record.state == "c" or record.fp == event["fp"]

    def hand_again(self, state, event, kind, record, own):
        """The first answer was lost: the same attempt, fence and lease."""
        if not kind.answers(self, event, "execute", "processing", attempt=record.attempt, lease_until=record.lease):
            return
        if event["answer"] is LOST or record.fence is None and event["answer"]["fence"] > self.fence_before(state, record, event):
            yield state if event["answer"] is LOST else self.bind(state, event, own)
        elif event["answer"]["fence"] == record.fence:
            yield state

    def fence_before(self, state, record, event):
        """Each fence is greater than all before; where the clock is set, than the record's and the clock."""
        if self.steady:
            return state.highest
        return max(record.fence or 0 if record else 0, event["now"][0] - 1)

    def bind(self, state, event, own):
        """Learns the fence of a claim whose answer was lost."""
        fence = event["answer"]["fence"]
        if not own:
            return state._replace(base=state.base._replace(fence=fence), highest=max(state.highest, fence))
        return self.push(state, event, row=self.frame(state, event["tx"]).row._replace(fence=fence))

    def execute(self, state, event, kind, life, record, own, others):
        if others or event["brief"]:
            if kind.answers_held(self, event, state, others):
                yield state
            if others:
                return
        takes_over = life not in (None, FORGOTTEN)
        if takes_over and kind.sees_past and self.execute_forbidden(state, event, record, own):
            if event["error"] == "40001":
                yield state
            if event["answer"] is not LOST:
                return
        yield from kind.grant(self, state, event, record if takes_over else None, life)

    def new_record(self, event, prior, kind):
        """The record of a new attempt."""
        fp = event["fp"] if kind.compares or prior is None else prior.fp
        claimed = prior.claimed if prior else event["now"]
        return Record("p", fp, None, (prior.attempt if prior else 0) + kind.attempts,
                      (prior.counted if prior else 0) + kind.attempts, event["owner"], NEVER, None, NEVER, NEVER,
                      claimed, prior.limits if prior else claimed, None, None,
                      prior.accepted if prior else False, None, None)

    def write(self, state, event, record):
        return self.push(state, event, claim=None, row=record)

    # --- what an owner says -------------------------------------------------------------

    def finish(self, state, event):
        tx = event["tx"]
        frame = self.frame(state, tx)
        if frame and frame.claim:
            yield from self.finish_open(state, event, frame.claim)
            return
        record, own = self.read(state, tx)
        for owns in self.has_fence(record, event) if record else (False,):
            if owns and record.state == "p":
                yield from self.finish_record(state, event, record, own)
                continue
            repeats = owns and self.repeats(record, event)
            if repeats and self.accepts(event, record):
                yield self.push(state, event, repeated=not own or bool(frame and frame.rewritten))
            if not repeats or True in self.forgotten(record, event):
                yield from self.refused(state, event)

    def has_fence(self, record, event):
        """One that no session was told can be that of a claim that was undone, if the clock was set back."""
        if record.fence is None and not self.steady:
            return (False, True)
        return (record.fence == event["fence"],)

    def finish_open(self, state, event, claim):
        if claim.record.fence != event["fence"]:
            yield from self.refused(state, event)
        elif event["f"] == "renew":
            if event["error"] == "22023" or event["answer"] is LOST:
                yield state
        elif not self.changed_by_others(state, event["tx"]):
            if not self.stands(state, event, claim):
                yield from self.refused(state, event)
            elif self.accepts(event, claim.record):
                if event["f"] == "release" and not event["retry_after"] and claim.prior != "record":
                    # no trace; what an earlier savepoint may bring back is still held
                    yield self.push(state, event, claim=None, row=self.frame(state, event["tx"]).row)
                else:
                    for record in self.finished(claim.record, event):
                        yield self.write(state, event, record)

    def stands(self, state, event, claim):
        """Is what the claim takes over still as it was when it was granted?"""
        if claim.prior != "record":
            return True
        record, _ = self.read(state, event["tx"])
        return record is not None and (record.fence, record.state) == (claim.prior_fence, claim.prior_state)

    def finish_record(self, state, event, record, own):
        if not own and self.changed_by_others(state, event["tx"]):
            return          # it waits
        for ended in over(record.lease, event):
            if event["f"] == "renew" and ended:
                yield from self.refused(state, event)
            elif self.accepts(event, record):
                for new in self.finished(record, event):
                    yield self.write(state, event, new)

    def accepts(self, event, record):
        if event["answer"] is LOST:
            return True
        if event["error"]:
            return False
        if event["f"] == "complete":
            return event["answer"] == event["outcome"]
        if event["f"] == "renew":
            given, lease = microseconds(event["answer"]), after(event, event["length"])
            # never shorter than it was
            return lease[0] - 1 <= given <= later(lease, record.lease)[1] + 1
        return True

    @staticmethod
    def refused(state, event):
        if event["answer"] is LOST or event["error"] in ("ID001", "ID002"):
            yield state

    def repeats(self, record, event):
        if event["f"] == "complete":
            return record.state == "s" and record.result == self.stored(event)
        if event["f"] == "fail":
            return (record.state == "f" or record.state == "t" and event["retryable"]) and record.error == event["outcome"]
        return event["f"] == "release" and record.state in "ra"

    def stored(self, event):
        return event["outcome"] if self.settings["store_result"] else None

    def finished(self, record, event):
        """What becomes of the record: a list, for a limit may have been reached or not."""
        what, now = event["f"], event["now"]
        if what == "renew":
            lease = after(event, event["length"])
            if event["answer"] is not LOST:
                lease = (microseconds(event["answer"]),) * 2
            return [record._replace(lease=later(lease, record.lease))]
        if what == "unsure":
            ended = now if record.lease is NEVER else (min(record.lease[0], now[0]), min(record.lease[1], now[1]))
            return [record._replace(lease=ended, error=event["outcome"])]
        pause = event["retry_after"]
        record = record._replace(lease=NEVER, result=None, error=None, early=None)
        if what == "release":
            if pause is None and record.accepted:
                pause = self.settings["retry_after"]
            return self.put_back(record._replace(early=after(event, pause) if pause else None,
                                                 counted=record.counted - 1), event)
        if what == "complete":
            return [self.kept(record._replace(state="s", result=self.stored(event)), now)]
        failed = self.kept(record._replace(state="f", error=event["outcome"]), now)
        if not event["retryable"]:
            return [failed]
        return [self.kept(failed._replace(state="t", early=after(event, pause) if pause else None),
                          self.deadline(record)) if left else failed for left in self.tries_left(record, event)]

    def put_back(self, record, event):
        """The attempt has done nothing."""
        results, now = [], event["now"]
        record = record._replace(lease=NEVER, result=None, error=None, tries=None)
        for left in self.tries_left(record, event):
            if not left:
                for which in ("deadline", "max_attempts"):
                    results.append(self.kept(record._replace(state="f", error='{"limit": "%s"}' % which), now))
            elif record.accepted:
                results.append(self.kept(record._replace(state="a"), self.deadline(record)))
            else:
                results.append(self.kept(record._replace(state="r"), self.deadline(record) or now)._replace(expires=NEVER))
        return results

    # --- what others say ----------------------------------------------------------------

    def change(self, state, event):
        """resolve, expire_lease, reopen, redact: they judge the committed record and replace it."""
        record, own = self.read(state, event["tx"])
        if event["answer"] is LOST:
            yield state
        if record is None:
            if event["error"] in ("ID001", "ID002"):
                yield state
            return
        for life, meant in self.lives(record, event):
            if life == FORGOTTEN and event["error"] in ("ID001", "ID002"):
                yield state         # as if it were purged
            for new in getattr(self, "after_" + event["f"])(meant, life, event, record):
                if new is None:
                    if event["error"] == "ID002":
                        yield state
                elif event["error"]:
                    continue
                elif new is record:
                    yield state
                elif own or not self.changed_by_others(state, event["tx"]):
                    yield self.push(state, event, claim=None, row=new, rewritten=event["f"] == "redact" and not own)

    @staticmethod
    def anew(record, event):
        """From when on limits count that begin anew: not before the first claim, if the clock was set back."""
        return later(record.claimed, event["now"])

    def after_resolve(self, record, life, event, stored):
        if life not in (UNKNOWN, OVERRUN) or event["fence"] is not None and event["fence"] != record.tries:
            return [None]
        if event["outcome_name"] == "not_executed":
            found = []
            for left in self.tries_left(record, event):
                new = record._replace(fence=None, early=None)
                if not left and not record.accepted:
                    # that is a decision about a claim, whose limits begin anew
                    new = new._replace(counted=0, limits=self.anew(record, event))
                found += self.put_back(new, event)
            return found
        succeeded = event["outcome_name"] == "succeeded"
        detail = self.stored(event) if succeeded else event["outcome"]
        return [self.kept(record._replace(state="s" if succeeded else "f", lease=NEVER, tries=None,
                                          result=detail if succeeded else None,
                                          error=None if succeeded else detail), event["now"])]

    def after_expire_lease(self, record, life, event, stored):
        if life != RUNNING:
            return [None]
        return [record._replace(lease=event["now"], fence=None)]

    def after_reopen(self, record, life, event, stored):
        if not (life == FAILED or life == EXPIRED and record.state != "s"):
            return [None]
        new = record._replace(fence=None, counted=0, limits=self.anew(record, event), early=None)
        if record.state == "c":
            found = self.put_back(new, event)
        else:
            found = [self.kept(new._replace(state="t"), self.deadline(new))]
        error = dict(reopened=event["reason"])
        if record.error is not None:
            error["error"] = json.loads(record.error)
        return [one._replace(error=json.dumps(error, sort_keys=True)) for one in found]

    def after_redact(self, record, life, event, stored):
        if stored.result is None and stored.error is None:
            return [stored]
        return [stored._replace(result=None, error=None)]

    def reconcile(self, state, event):
        """The key was handed out to a reconciler; its record is as it was, and still its owner's."""
        record, _ = self.read(state, event["tx"])
        if event["answer"] is LOST:
            yield state
            if record is None:
                return
        if record is None or self.others(state, event["tx"]):
            return
        for life, _ in self.lives(record, event):
            if life == UNKNOWN and (record.try_until is None or True in over(record.try_until, event)):
                fence = None if event["answer"] is LOST else event["answer"]["fence"]
                if fence is None or self.says(event, "unknown", "unknown", attempt=record.attempt) and \
                        fence > max(record.fence or 0, record.tries or 0):
                    handed = record._replace(tries=fence, try_until=after(event, event["length"]))
                    yield state._replace(base=handed)

    def pass_over(self, state, event):
        """What idem_start_next does to other keys: what it finds ended by a limit it may record as failed."""
        yield state
        frame = self.frame(state, event["tx"])
        record, _ = self.read(state, event["tx"])
        if record is None or record.state not in "at" or not record.accepted or frame and frame.claim or \
                self.others(state, event["tx"]):
            return
        for life, meant in self.lives(record, event):
            if life in (FAILED, EXPIRED, FORGOTTEN):
                yield self.write(state, event, meant._replace(state="f"))

    def status(self, state, event):
        frame = self.frame(state, event["tx"])
        if frame and frame.claim:
            if self.says(event, None, "processing"):
                yield state
            return
        record, _ = self.read(state, event["tx"])
        if (self.others(state, event["tx"]) or event["brief"]) and self.says(event, None, "processing"):
            yield state
        late = over(add(self.key_time, self.horizon), event) if self.dated else (False,)
        for life, meant in self.lives(record, event) if record else ((None, None),):
            if life in (None, FORGOTTEN, RELEASED):
                if any(self.says(event, None, "expired" if is_late else "absent") for is_late in late):
                    yield state
                continue
            shown = {EXPIRED: "expired", SUCCEEDED: "succeeded", FAILED: "failed", RETRYABLE: "failed",
                     ACCEPTED: "accepted", RUNNING: "processing", OVERRUN: "unknown", UNKNOWN: "unknown"}[life]
            told = dict(result=meant.result) if life == SUCCEEDED else dict(error=meant.error) if life == FAILED else {}
            if self.says(event, None, shown, fence=None, **told):
                yield state


class Kind:
    """How a call that decides about a key differs from idem_claim."""
    attempts = 1
    compares = True         # the fingerprint
    sees_past = True        # so that 40001 is due where the snapshot is too old
    starts = False          # accepted work
    withdraws = False
    only_recorded = False

    def answers(self, model, event, verdict, state, **expected):
        return model.says(event, verdict, state, **expected)

    def answers_held(self, model, event, state, holders):
        return model.says_held(event, state, holders)

    def refuses_nothing(self, event):
        return event["error"] == "ID001" or event["answer"] is LOST

    def grant(self, model, state, event, prior, life):
        record = model.new_record(event, prior, self)
        if not model.says(event, "execute", "processing", attempt=record.attempt):
            return
        record = self.granted(model, state, event, record, prior)
        if record is None:
            return
        if event["length"]:
            yield model.write(state, event, record)
        else:
            claim = Claim(record, "record" if prior else life, prior and prior.fence, prior and prior.state)
            yield model.push(state, event, claim=claim)

    def granted(self, model, state, event, record, prior):
        """Fence and lease as told."""
        lease = after(event, event["length"]) if event["length"] else NEVER
        if event["answer"] is LOST:
            return record._replace(lease=lease)
        told = event["answer"]
        if told["fence"] <= model.fence_before(state, prior, event) or not model.says(event, "execute", "processing", lease_until=lease,
                                                           claimed_at=record.claimed):
            return None
        # whatever later answers say must lie within what the owner was told
        lease = lease and (microseconds(told["lease_until"]),) * 2
        return record._replace(fence=told["fence"], lease=lease)


class Start(Kind):
    compares = False
    starts = True
    only_recorded = True


class StartNext(Start):
    """It names the keys it has started, and waits for no time of a failure by itself."""

    def grant(self, model, state, event, prior, life):
        if prior and prior.accepted and life in (ACCEPTED, RETRYABLE, OVERRUN):
            yield from super().grant(model, state, event, prior, life)


class Accept(Kind):
    attempts = 0

    def grant(self, model, state, event, prior, life):
        record = model.new_record(event, prior, self)
        if model.says(event, "execute", "accepted", fence=None, attempt=record.attempt):
            early = after(event, event["delay"]) if event["delay"] else None
            record = record._replace(state="a", accepted=True, early=early)
            yield model.write(state, event, model.kept(record, model.deadline(record)))


class Cancel(Kind):
    attempts = 0
    compares = False
    sees_past = False
    starts = True
    withdraws = True

    def grant(self, model, state, event, prior, life):
        error = json.dumps(dict(cancelled=event["reason"]))
        if model.says(event, "replay", "failed", error=error):
            record = model.new_record(event, prior, self)._replace(state="c", error=error)
            yield model.write(state, event, model.kept(record, event["now"]))


class Once(Kind):
    """true, false, or an error that says why neither."""
    compares = False

    def answers(self, model, event, verdict, state, **expected):
        if event["answer"] is LOST:
            return True
        if verdict == "replay":
            return event["answer"] is False
        return event["error"] == ("ID013" if verdict == "expired" else "55P03")

    def answers_held(self, model, event, state, holders):
        return event["answer"] is LOST or event["error"] == "55P03"

    def grant(self, model, state, event, prior, life):
        if event["answer"] is LOST or event["answer"] is True:
            record = model.new_record(event, prior, self)._replace(state="s")
            yield model.write(state, event, model.kept(record, event["now"]))


class Run(Kind):
    """Claim and outcome in one call, between which the owner of a lease that is over may still win."""

    def grant(self, model, state, event, prior, life):
        answer = event["answer"]
        if life == OVERRUN and event["error"] == "ID002" and event["racing"]:
            yield state
        for succeeded in (True, False):
            told = "succeeded" if succeeded else "failed"
            if answer is LOST or model.says(event, "execute", told):
                record = model.new_record(event, prior, self)
                if answer is not LOST and answer["attempt"] != record.attempt:
                    continue
                record = record._replace(
                    state="s" if succeeded else "f", fence=None if answer is LOST else answer["fence"],
                    result="1" if succeeded and model.settings["store_result"] else None,
                    error=None if succeeded or answer is LOST else answer["error"])
                yield model.write(state, event, model.kept(record, event["now"]))


KINDS = dict(claim=Kind(), start=Start(), start_next=StartNext(), accept=Accept(), cancel=Cancel(), once=Once(),
             run=Run())

WAITING = ("complete", "fail", "unsure", "renew", "release", "resolve", "expire_lease", "reopen", "redact", "reconcile")


def apply(model, state, event):
    """The states to which the event can lead."""
    tx, kind = event["tx"], event["e"]
    if kind == "call":
        return call(model, state, event)
    if kind == "undo":
        return [model.undo(state, tx, event["lv"])]
    if kind == "keep":
        return [model.keep(state, tx, event["lv"])]
    if kind == "snapshot":
        return [state._replace(fresh=state.fresh | {tx})]
    if kind == "abort":
        return [model.end(state, tx)]
    can = model.may_commit(state, event)
    if kind == "prepare":
        # it releases the savepoints there are
        state = model.keep(state, tx, 1)
        return [state._replace(prepared=state.prepared | {tx})] if can else []
    results = [model.commit(state, tx)] if can else []
    return results + ([model.end(state, tx)] if kind == "maybe" else [])


def call(model, state, event):
    f = event["f"]
    if event["error"] == "57014":
        return [state]
    if f in WAITING and event["error"] == "40P01":
        return [state]
    if f == "status":
        return list(model.status(state, event))
    if f in KINDS:
        found = list(model.decide(state, event, KINDS[f]))
        if f == "start_next" and event["answer"] is LOST:
            found += model.pass_over(state, event)
        if event["must_open"]:
            return [s for s in found if (frame := model.frame(s, event["tx"])) and frame.claim]
        # a call whose answer was lost, or that names what it has taken, may have done nothing
        return found + [state] if event["answer"] is LOST else found
    if f in ("reconcile", "pass_over"):
        return list(getattr(model, f)(state, event))
    if f in ("resolve", "expire_lease", "reopen", "redact"):
        return list(model.change(state, event))
    found = list(model.finish(state, event))
    if event["must_repeat"]:
        return [s for s in found if (frame := model.frame(s, event["tx"])) and frame.repeated]
    return found + [state] if event["answer"] is LOST else found
