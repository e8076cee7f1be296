#!/usr/bin/python3
"""docs/fingerprint.md says what is true.  Prints TAP.

Runs its code in both languages, and the extension, over its tables, over the
pairs of texts that are the same or are not, and over the vectors of the id.
test/run has made the database that PGHOST etc. lead to.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

TEST = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = (TEST.parent / "docs" / "fingerprint.md").read_text("utf-8")
FUZZ = pathlib.Path(os.environ["IDEM_FUZZ"])

results = []


def check(passed, name):
    results.append((bool(passed), name))


def block(language):
    return re.search(f"```{language}\n(.*?)```", DOCUMENT, re.S).group(1)


def python_code():
    space = {}
    exec(block("python"), space)  # pylint: disable=exec-used
    return space


def run_node(calls):
    """What the JavaScript returns for each [function, arguments]; null if it throws."""
    (FUZZ / "document.mjs").write_text(block("javascript") + """
import { readFileSync } from 'node:fs';
const functions = { fingerprint, recordId };
console.log(JSON.stringify(JSON.parse(readFileSync(0)).map(([name, args]) => {
  try { return functions[name](...args); } catch { return null; }
})));
""", "utf-8")
    return json.loads(subprocess.run(["node", FUZZ / "document.mjs"], input=json.dumps(calls),
                                     capture_output=True, text=True, check=True).stdout)


def sql(statement):
    """The rows psql prints, or None if there was an error."""
    run = subprocess.run([os.environ["IDEM_BIN"] + "/psql", "-XAtq", "-v", "ON_ERROR_STOP=1"],
                         input=statement, capture_output=True, text=True, check=False)
    return run.stdout.rstrip("\n") if run.returncode == 0 else None


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def server(text, operation=None):
    return sql("SELECT encode(idem_fingerprint_text(%s, %s), 'hex')"
               % (quoted(text), quoted(operation) if operation else "NULL"))


def python_fingerprint(code, text):
    try:
        return code["fingerprint"](text)
    except (ValueError, UnicodeEncodeError):
        return None


def vectors(code):
    rows = re.findall(r"^\| `(.*)` \| `([0-9a-f]{64})` \| (?:`([0-9a-f]{64})`|(.*)) \|$", DOCUMENT, re.M)
    node = run_node([["fingerprint", [text]] for text, *_ in rows])
    for (text, exact, double, word), found in zip(rows, node):
        expected = {"the same": exact, "refused": None}.get(word, double)
        check(python_fingerprint(code, text) == exact, f"Python: {text}")
        check(found == exact, f"JavaScript: {text}")
        check(server(text) == exact, f"extension: {text}")
        check(server(text, "document_double") == (expected or None), f"extension, double: {text}")
    check(len(rows) > 20, "there are vectors")


def example(code):
    params = re.search(r"^params +(.*)$", DOCUMENT, re.M).group(1)
    canonical = re.search(r"^canonical +(.*)$", DOCUMENT, re.M).group(1)
    data = re.search(r"^bytes +((?:[0-9a-f]{2}\s+)+)", DOCUMENT, re.M).group(1)
    digest = re.search(r"^SHA-256 +([0-9a-f]{64})$", DOCUMENT, re.M).group(1)
    check(code["canonical"](code["parse"](params)) == canonical, "example: canonical text, Python")
    check(sql(f"SELECT idem_canonical({quoted(params)})") == canonical, "example: canonical text, extension")
    check(bytes.fromhex(data) == canonical.encode("utf-8"), "example: bytes")
    check(code["fingerprint"](params) == digest == server(params), "example: fingerprint")


def settings():
    rows = re.findall(r"^\| (?:(fields|ignore) )?`([[{].*)` \| `(.*)` \| `(.*)` \|$", DOCUMENT, re.M)
    for name, value, params, expected in rows:
        setting = json.dumps({name or "defaults": json.loads(value)})
        found = sql("BEGIN; SELECT NULL FROM idem_define('document', %s);"
                    "SELECT idem_canonical(%s, 'document'); ROLLBACK" % (quoted(setting), quoted(params)))
        check(found is not None and found.strip() == expected, f"{setting}: {params}")
    check(len(rows) >= 7, "there are examples of settings")


def pairs(code):
    lines = (TEST / "data/jcs/fingerprint-pairs.jsonl").read_text("utf-8").splitlines()
    for pair in map(json.loads, lines):
        for column, operation in (("exact", None), ("jcs", "document_double")):
            first, second = server(pair["a"], operation), server(pair["b"], operation)
            found = "refuse" if first is None else "same" if first == second else "different"
            check(found == pair[column], f"{pair['id']} {column}, extension: {pair['why']}")
        first, second = (python_fingerprint(code, pair[text]) for text in "ab")
        found = "refuse" if first is None else "same" if first == second else "different"
        check(found == pair["exact"] or pair["id"] == "F026", f"{pair['id']}, Python: {pair['why']}")


def ids(code):
    lines = (TEST / "data/identity-vectors.tsv").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line.startswith("id\t")]
    node = run_node([["recordId", json.loads(arguments)] for _, arguments, *_ in rows])
    for (_, arguments, expected, why), found in zip(rows, node):
        check(code["record_id"](*json.loads(arguments)) == expected, f"Python: id, {why}")
        check(found == expected, f"JavaScript: id, {why}")


def main():
    code = python_code()
    sql("""SELECT idem_define('document_double', '{"numbers": "double"}')""")
    example(code)
    settings()
    vectors(code)
    pairs(code)
    ids(code)
    print(f"1..{len(results)}")
    for number, (passed, name) in enumerate(results, 1):
        print(f"{'ok' if passed else 'not ok'} {number} - {name}".replace("#", ""))
    return 0 if all(passed for passed, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
