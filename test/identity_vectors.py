#!/usr/bin/python3
"""Ids and downstream keys computed a second time, without the extension.

Reads test/data/identity-vectors.tsv, derives every result from the rules in
docs/identity.md with nothing but Python's standard library, and checks that
the document shows the same vectors.  Prints TAP; exits 1 if any test failed.
"""
import hashlib
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
UUIDV7 = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}")
ULID = re.compile("[0-7][" + CROCKFORD + "]{25}")


def framed(text):
    """The text in UTF-8 behind its length in 4 bytes, big-endian."""
    data = text.encode("utf-8")
    return len(data).to_bytes(4, "big") + data


def milliseconds(key):
    """The time a key carries, or None."""
    if UUIDV7.fullmatch(key):
        return int(key[:8] + key[9:13], 16)
    if ULID.fullmatch(key):
        time = 0
        for character in key[:10]:
            time = time * 32 + CROCKFORD.index(character)
        return time
    return None


def version8(data):
    """Sixteen bytes as the text of a UUID of version 8, variant 10."""
    data = bytearray(data[:16])
    data[6] = 0x80 | data[6] & 0x0F
    data[8] = 0x80 | data[8] & 0x3F
    text = data.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def record_id(principal, operation, key):
    """idem_id"""
    texts = framed(principal) + framed(operation) + framed(key)
    data = bytearray(hashlib.sha256(b"idempotency:1" + texts).digest()[:16])
    time = milliseconds(key)
    if time is None:
        data[0] &= 0x7F
    else:
        data[:6] = time.to_bytes(6, "big")
        data[0] |= 0x80
    return version8(data)


def downstream_key(record, step):
    """idem_downstream_key"""
    record = bytes.fromhex(record.replace("-", ""))
    return version8(hashlib.sha256(
        b"idempotency:step:1" + record + step.encode("utf-8")).digest())


def main():
    """One test for each vector's value and one for its line in the document."""
    functions = {"id": record_id, "step": downstream_key}
    lines = (HERE / "data" / "identity-vectors.tsv").read_text("utf-8").splitlines()
    document = (HERE.parent / "docs" / "identity.md").read_text("utf-8")
    results = []
    for line in lines:
        if line.startswith("#"):
            continue
        kind, arguments, expected, why = line.split("\t")
        results.append((functions[kind](*json.loads(arguments)) == expected,
                        f"{kind} {arguments}: {why}"))
        results.append((f"| `{arguments}` | `{expected}` |" in document,
                        f"{kind} {arguments} is in docs/identity.md"))
    results.append((len(results) >= 28, "there are at least 14 vectors"))
    print(f"1..{len(results)}")
    for number, (passed, name) in enumerate(results, 1):
        print(f"{'ok' if passed else 'not ok'} {number} - {name}")
    return 0 if all(passed for passed, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
