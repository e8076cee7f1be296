"""Faults planted into a copy of the sources: what the tables of them share."""

import pathlib
import re
import sys


class Unfit(Exception):
    """A fault does not fit the sources."""


def sources(folder):
    return {path: path.read_text(encoding="utf8") for path in sorted(pathlib.Path(folder, "src").rglob("*.c"))}


def planted(changes, files):
    """The files that differ once each pattern, which must match in exactly one place of all
    sources, wherever that is, is replaced: so a fault follows code that is moved."""
    files = dict(files)
    changed = {}
    for pattern, new in changes:
        places = [path for path, text in files.items() for _ in re.finditer(pattern, text)]
        if len(places) != 1:
            raise Unfit("the sources match %d times: %s" % (len(places), pattern))
        text = re.sub(pattern, new, files[places[0]])
        if text == files[places[0]]:
            raise Unfit("nothing is changed: %s" % pattern)
        files[places[0]] = changed[places[0]] = text
    return changed


def plant(name, changes, folder):
    try:
        for path, text in planted(changes, sources(folder)).items():
            path.write_text(text, encoding="utf8")
    except Unfit as problem:
        sys.exit("fault %s: %s" % (name, problem))
