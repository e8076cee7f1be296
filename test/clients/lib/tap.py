"""TAP for the clients in Python: check(name, got, wanted), raised(...), done()."""
import sys

count, bad = 0, 0


def check(name, got, wanted=True):
    global count, bad
    count += 1
    good = got == wanted
    bad += not good
    print(f"{'ok' if good else 'not ok'} {count} - {name}", flush=True)
    if not good:
        print(f"# got {got!r}, wanted {wanted!r}")


def raised(kind, call, *args):
    """What the call raises, which must be of that kind."""
    try:
        call(*args)
    except kind as error:
        return error
    print(f"# {call} raised nothing")
    return None


def done():
    print(f"1..{count}")
    sys.exit(bad > 0)
