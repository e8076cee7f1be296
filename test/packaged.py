"""What `make dist` packs can be built out of tree and installed.

The archive is unpacked, its folder made read-only, and the extension built elsewhere
with "make -f FOLDER/Makefile VPATH=FOLDER", as packagers do.  A checkout without git
has no archive: there its own files are taken.  Prints TAP.
"""

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import zipfile

TOP = pathlib.Path(__file__).resolve().parent.parent
PARTS = ["Makefile", "META.json", "idempotency.control", "README.md", "CHANGELOG.md", "sql", "src", "docs"]
PG_CONFIG = os.environ["IDEM_PG_CONFIG"]
count = 0
failed = False


def check(holds, title, details=""):
    global count, failed
    count += 1
    print(("ok" if holds else "not ok") + f" {count} - {title}")
    if not holds:
        failed = True
        for line in str(details).splitlines():
            print("#   " + line)


def make(title, *words, where=TOP):
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    done = subprocess.run(["make", "-s", *words], cwd=where, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    check(done.returncode == 0, title, done.stdout[-3000:])


def unpacked(scratch):
    if (TOP / ".git").exists():
        make("make dist packs what is committed", "dist", f"ARCHIVE={scratch}/dist.zip")
        with zipfile.ZipFile(scratch / "dist.zip") as archive:
            archive.extractall(scratch)
        return next(scratch.glob("idempotency-*"))
    source = scratch / "idempotency"
    source.mkdir()
    for part in PARTS:
        (shutil.copytree if (TOP / part).is_dir() else shutil.copy2)(TOP / part, source / part)
    return source


def contents(folder):
    """Every file with the time of its last change: root may write where others may not."""
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*")}


def read_only(folder):
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))


def installed(root, what):
    folder = subprocess.run([PG_CONFIG, "--" + what], text=True, stdout=subprocess.PIPE, check=True).stdout.strip()
    return root / folder.lstrip("/")


def meta(source):
    """PGXN's index wants these; resources may be missing."""
    said = json.loads((source / "META.json").read_text())
    version = re.search(r"^default_version *= *'(.*)'", (source / "idempotency.control").read_text(), re.M)[1]
    missing = {"name", "version", "abstract", "maintainer", "license", "provides", "meta-spec"} - said.keys()
    check(not missing, "META.json says what it must", missing)
    check(said["provides"]["idempotency"]["file"] == f"sql/idempotency--{version}.sql", "and names the script")
    return version


def main():
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        source, build, root = unpacked(scratch), scratch / "build", scratch / "root"
        version = meta(source)
        build.mkdir()
        read_only(source)
        before = contents(source)
        # unoptimised: it is not run, and takes half the time
        make("it is built out of tree, and installed", "-j2", "-f", f"{source}/Makefile", f"VPATH={source}",
             f"PG_CONFIG={PG_CONFIG}", "with_llvm=no", "COPT=-O0", "install", f"DESTDIR={root}", where=build)
        check(contents(source) == before, "the source folder is as it was")
        extension = installed(root, "sharedir") / "extension"
        pages = installed(root, "docdir") / "idempotency"
        for path in [installed(root, "pkglibdir") / "idempotency.so", extension / "idempotency.control",
                     extension / f"idempotency--{version}.sql", pages / "README.md", pages / "contract.md"]:
            check(path.exists(), path.name + " is installed", sorted(contents(root)))
        for path in [source, *source.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
    print(f"1..{count}")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
