#!/usr/bin/env python3
"""Faults to be planted into a copy of the sources: the checker must find each.

    faults.py list
    faults.py plant NAME FOLDER     changes the sources below FOLDER
    faults.py about NAME            says what is wrong then
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))

from plant import plant

FAULTS = {
    "uncommitted_unseen": (
        "a look-up does not see rows that are not committed",
        (r"seen->other = dirty->xmin;",
         "seen->other = InvalidTransactionId;"),
        (r"seen->written = true;",
         "seen->written = false;")),
    "no_look_again": (
        "a claim does not look again once it has the lock of the id",
        (r"if \(open_claim_lock\(id\)\)",
         "pg_usleep(300);\n\tif (open_claim_lock(id) && (claim->locked = true))\n\t\treturn true;\n\tif (false)")),
    "lock_refused": (
        "a lock that another session holds is taken for granted",
        (r"return result != LOCKACQUIRE_NOT_AVAIL;",
         "return true;")),
    "fence_not_compared": (
        "the fence of an owner is not compared",
        (r"if \(found\.state != RECORD_PROCESSING \|\| found\.fence != finish->fence\)",
         "if (found.state != RECORD_PROCESSING)")),
    "fence_not_new": (
        "a new owner gets the fence of the one before",
        (r"return Max\(previous \+ 1, last\);",
         "return previous > 0 ? previous : last;")),
    "lease_never_ends": (
        "the end of a lease is not looked at",
        (r"if \(rec->lease_until > now\)",
         "if (rec->lease_until != NEVER)")),
    "unknown_executes": (
        "a lease that is over may be taken over under any policy",
        (r"policy->retry_on_lease_expiry && (\w+_tries_left\(rec, policy, now\))",
         r"\1")),
    "params_not_compared": (
        "a replay does not compare the params",
        (r"if \(!claim->kind->matches_params \|\| rec->state == RECORD_CANCELLED\)",
         "if (true)")),
    "owner_not_compared": (
        "every owner gets the answer of the first one again",
        (r"return stored && given &&",
         "return stored && given;\n\treturn")),
    "old_snapshot": (
        "a takeover does not look whether the snapshot is too old",
        (r"&& !claim_snapshot_sees\(&claim->rec\)",
         "&& false")),
    "savepoint_forgotten": (
        "a completion that a savepoint undid still counts as one",
        (r"undo_push\(&all_finished, &open->finished\);",
         ";")),
    "open_commits": (
        "COMMIT is not refused while a claim is open",
        (r"refuse_open_claims\(what, true\);",
         ";")),
    "repeated_commits": (
        "COMMIT is not refused after a repeated completion",
        (r"(refuse_open_claims\(what, true\);\s+)refuse_repeated_completion\(what\);",
         r"\1;")),
    "lost_update": (
        "an owner that another one was faster than is not told so",
        (r"if \(store_update\(&store, &found, (&?rec), true\) == ROW_CHANGED\)",
         r"if (store_update(&store, &found, \1, true) != ROW_BUSY)")),
    "no_guard": (
        "a key is forgotten when its retention is over",
        (r"rec->forget_at = \w+\(from, settings_horizon\(policy\)\);",
         "rec->forget_at = rec->expires_at;")),
    "one_attempt_more": (
        "there is one attempt more than max_attempts",
        (r"attempts_counted\(rec\) >= policy->max_attempts\)",
         "attempts_counted(rec) > policy->max_attempts)")),
    "early_purge": (
        "purge removes what is to be kept for some seconds more",
        (r"return record_effective_state\(rec, &call, GetCurrentTimestamp\(\)\) == EFFECTIVE_FORGOTTEN \?",
         "return true ?"),
        (r"if \(forget_at > now\)",
         "if (forget_at > now + 5 * USECS_PER_SEC)")),
    "stale_reconciler": (
        "a reconciler that was overtaken is still believed",
        (r" \|\| work\.fence != change->fence",
         "")),
}


def changes(name):
    return FAULTS[name][1:]


def main():
    if sys.argv[1] == "list":
        print("\n".join(FAULTS))
    elif sys.argv[1] == "about":
        print(FAULTS[sys.argv[2]][0])
    else:
        plant(sys.argv[2], changes(sys.argv[2]), sys.argv[3])


if __name__ == "__main__":
    main()
