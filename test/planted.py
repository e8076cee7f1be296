"""Faults that are planted into the sources still fit them, and name tests that exist.
Prints TAP.
"""

import pathlib
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(TOP / "test" / folder) for folder in ("lib", "history", "mutants")]

import faults
import mutants
from plant import Unfit, planted, sources

FOLDERS = ["sql/%s.sql", "specs/%s.spec", "t/%s.pl"]


def unfit(table, names, files):
    for name in names:
        try:
            planted(table.changes(name), files)
        except Unfit as problem:
            yield "%s: %s" % (name, problem)


def unknown_tests():
    for name, row in mutants.MUTANTS.items():
        for test in row[0].split():
            if not any((TOP / "test" / (folder % test.split("@")[0])).exists() for folder in FOLDERS):
                yield "%s: there is no test %s" % (name, test)


def main():
    files = sources(TOP)
    checks = {
        "%d faults of test/history fit the sources" % len(faults.FAULTS): unfit(faults, faults.FAULTS, files),
        "%d changes of test/mutants fit the sources" % len(mutants.MUTANTS): unfit(mutants, mutants.MUTANTS, files),
        "the tests that they name are there": unknown_tests(),
    }
    failed = False
    for number, (what, problems) in enumerate(checks.items(), 1):
        problems = list(problems)
        failed |= bool(problems)
        print("%s %d - %s" % ("not ok" if problems else "ok", number, what))
        for problem in problems:
            print("#   " + problem)
    print("1..%d" % len(checks))
    sys.exit(failed)


main()
