"""Reads what gcov counted below the current folder, and prints it by file of src/.

    report.py                    the report
    report.py LINES BRANCHES     the same; exits 1 if less per cent of all is reached
    report.py --whole FILE       lines of that file that are not reached, but for those of elog
"""

import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile

# Macros that branch on something of the server's: whether an error is logged, the form
# of a stored value.  gcov tells of a branch no more than its line, so those of such a
# line are not counted.
SERVER_MACRO = re.compile(
    r"\b(ereport|elog|REFUSE_ARGUMENT|CHECK_FOR_INTERRUPTS|PG_TRY|PG_CATCH|PG_FINALLY|PG_END_TRY"
    r"|VARSIZE_ANY_EXHDR|VARDATA_ANY|foreach|dlist_foreach|dlist_foreach_modify|SpinLockAcquire)\b")


def counted(notes, folder):
    """One object's counts, as gcov tells them."""
    subprocess.run(["gcov", "--json-format", "--branch-probabilities", str(notes.resolve())],
                   cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with gzip.open(next(pathlib.Path(folder).glob("*.gcov.json.gz"))) as found:
        return json.load(found)["files"]


def lines_of(source):
    with tempfile.TemporaryDirectory() as folder:
        for file in counted(source.with_suffix(".gcno"), folder):
            if file["file"] == str(source):
                return file["lines"]
    return []


class Counts:
    """What was reached of a file."""

    def __init__(self, source):
        self.source = source
        self.text = source.read_text(encoding="utf8").split("\n")
        reached = {}
        branches = []
        for line in lines_of(source):
            number = line["line_number"]
            reached[number] = reached.get(number, False) or line["count"] > 0
            if not SERVER_MACRO.search(self.text[number - 1]):
                branches += [branch["count"] > 0 for branch in line["branches"]]
        self.missed = sorted(number for number, is_reached in reached.items() if not is_reached)
        self.numbers = (len(reached) - len(self.missed), len(reached), sum(branches), len(branches))

    def lines_missed(self):
        return ["%s:%d:%s" % (self.source, number, self.text[number - 1]) for number in self.missed]


def percent(part, whole):
    return 100 * part / whole if whole else 100


def row(name, numbers):
    reached, lines, taken, branches = numbers
    print("%-34s %5d of %5d lines %6.2f %% %5d of %5d branches %6.2f %%" % (
        name, reached, lines, percent(reached, lines), taken, branches, percent(taken, branches)))


def report(goals):
    files = [Counts(source) for source in sorted(pathlib.Path("src").rglob("*.c"))]
    total = [sum(numbers) for numbers in zip(*(counts.numbers for counts in files))]
    for counts in files:
        row(str(counts.source), counts.numbers)
    row("all", total)
    print("\nLines never reached:")
    for counts in files:
        print("".join(line + "\n" for line in counts.lines_missed()), end="")
    if goals and (percent(*total[:2]) < float(goals[0]) or percent(*total[2:]) < float(goals[1])):
        sys.exit(1)


def main():
    if sys.argv[1:2] == ["--whole"]:
        print("\n".join(line for line in Counts(pathlib.Path(sys.argv[2])).lines_missed()
                        if not re.search(r"\belog\(", line)))
    else:
        report(sys.argv[1:])


main()
