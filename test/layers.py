"""The layer rule of src/, kept: what a file includes, and what its object calls.

server <- params <- settings <- record <- claim <- { outbox, calls } <- worker; stats may be
called by every folder and itself needs only server and params.  The rule is also run over
trees that break it, because a rule that cannot fail is worse than none.  Prints TAP.
"""

import atexit
import os
import pathlib
import re
import subprocess
import shutil
import sys
import tempfile

LEFT_TO_RIGHT = ["server", "params", "settings", "record", "claim"]
ALLOWED = {name: set(LEFT_TO_RIGHT[:at]) for at, name in enumerate(LEFT_TO_RIGHT)}
ALLOWED["outbox"] = set(LEFT_TO_RIGHT) | {"calls"}
ALLOWED["calls"] = set(LEFT_TO_RIGHT)
ALLOWED["worker"] = set(LEFT_TO_RIGHT) | {"outbox", "calls"}
ALLOWED["stats"] = {"server", "params"}

TOP = pathlib.Path(__file__).resolve().parent.parent
count = 0
failed = False


def check(holds, title, details=()):
    global count, failed
    count += 1
    print(("ok" if holds else "not ok") + f" {count} - {title}")
    if not holds:
        failed = True
        for line in details:
            print("#   " + line)


def sources(src):
    return sorted(p for p in src.rglob("*.[ch]"))


def included(path):
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.M)


def wrong_includes(src):
    """The includes of a tree that run against the rule."""
    found = []
    for path in sources(src):
        folder = path.relative_to(src).parts[0]
        if folder not in ALLOWED:
            continue
        for name in included(path):
            other = name.split("/")[0]
            if other in ALLOWED and (src / name).exists() and other not in ALLOWED[folder] | {folder, "stats"}:
                found.append(f"{path.relative_to(src)} includes {name}")
    return found


def circles(src):
    """Headers that include themselves by way of others."""
    graph = {str(p.relative_to(src)): [n for n in included(p) if (src / n).exists()]
             for p in sources(src) if p.suffix == ".h"}
    found = []

    def walk(name, way):
        if name in way:
            found.append(" -> ".join(way[way.index(name):] + [name]))
        else:
            for other in graph.get(name, []):
                walk(other, way + [name])

    for name in graph:
        walk(name, [])
    return found


def headers_beside(src):
    """Folders that do not have exactly one header."""
    return [f"{folder}: {[p.name for p in (src / folder).glob('*.h')]}" for folder in ALLOWED
            if (src / folder).is_dir() and [p.name for p in (src / folder).glob("*.h")] != [folder + ".h"]]


def wrong_calls(objects):
    """The calls between compiled folders that run against the rule."""
    def symbols(path, option):
        output = subprocess.run(["nm", option, str(path)], capture_output=True, text=True, check=True).stdout
        return {line.split()[-1] for line in output.splitlines() if line.strip()}

    compiled = [p for p in sorted(objects.rglob("*.o")) if p.with_suffix(".c").exists()]
    defined = {name: p for p in compiled for name in symbols(p, "--defined-only")
               if p.relative_to(objects).parts[0] in ALLOWED}
    found = []
    for path in compiled:
        folder = path.relative_to(objects).parts[0]
        for name in sorted(symbols(path, "--undefined-only")) if folder in ALLOWED else []:
            other = defined[name].relative_to(objects).parts[0] if name in defined else folder
            if other not in ALLOWED[folder] | {folder, "stats"}:
                found.append(f"{path.relative_to(objects)} calls {name} of {defined[name].relative_to(objects)}")
    return found, len(compiled)


def shared_static_names(src):
    """Static functions whose name stands in two files."""
    where = {}
    for path in sources(src):
        if path.suffix == ".c":
            for name in re.findall(r"^static (?:[\w *]+)\n(\w+)\(", path.read_text(), re.M):
                where.setdefault(name, set()).add(str(path.relative_to(src)))
    return [f"{name}: {', '.join(sorted(files))}" for name, files in sorted(where.items()) if len(files) > 1]


def lines(paths):
    return sum(p.read_text(errors="replace").count("\n") for p in paths)


def broken_tree(files):
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def main():
    src = TOP / "src"
    upward = broken_tree({"server/rows.c": '#include "record/record.h"\n', "record/record.h": ""})
    check(wrong_includes(upward) == ["server/rows.c includes record/record.h"],
          "an include that runs upwards is found")
    circle = broken_tree({"server/server.h": '#include "params/params.h"\n',
                          "params/params.h": '#include "server/server.h"\n'})
    check(len(circles(circle)) == 2, "a circle of headers is found")
    same = broken_tree({"server/a.c": "static void\nhelp(void)\n{\n}\n", "claim/b.c": "static void\nhelp(void)\n{\n}\n"})
    check(shared_static_names(same) == ["help: claim/b.c, server/a.c"], "a static name that stands twice is found")

    check(not wrong_includes(src), "no include runs against the layer rule", wrong_includes(src))
    check(not circles(src), "no header includes itself by way of others", circles(src))
    check(not headers_beside(src), "every folder has one header, named like it", headers_beside(src))
    check(not shared_static_names(src), "no two static functions share a name", shared_static_names(src))

    objects = pathlib.Path(os.environ.get("IDEM_OBJECTS", src))
    found, compiled = wrong_calls(objects)
    check(compiled > 0 and not found, "no call runs against the layer rule, so that outbox and calls can be left out",
          found or [f"{compiled} objects below {objects}"])

    check(lines([src / "idempotency.h"]) <= 100, "idempotency.h has at most 100 lines")
    check(lines(sources(src)) <= 18500, f"src/ has at most 18 500 lines of C ({lines(sources(src))})")
    expected = [p for p in (TOP / "expected").rglob("*") if p.is_file()]
    check(lines(expected) <= 19000, f"expected/ has at most 19 000 lines ({lines(expected)})")
    asserts = sum(len(re.findall(r"^\s*Assert\(", p.read_text(), re.M)) for p in sources(src))
    check(asserts >= 40, f"at least 40 Asserts say what the caller must hold ({asserts})")
    print(f"1..{count}")
    return failed


sys.exit(main())
