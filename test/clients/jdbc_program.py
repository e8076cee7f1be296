"""docs/examples/jdbc, a program that is called with account, key and order, and prints what
came of it: $COMMAND."""
import os
import subprocess
import sys

import psycopg

sys.path.append("test/clients/lib")
from tap import check, done

ME = "jdbc_program"


def place(key, order):
    ran = subprocess.run([*os.environ["COMMAND"].split(), ME, key, order], capture_output=True, text=True)
    return ran.stdout.strip() or ran.stderr


first = place("k1", '{"item": "Lämpchen", "quantity": 2}')
check("the first executes", first.startswith('execute: {"item": "Lämpchen", "order": '))
check("again: the same, replayed", place("k1", '{"quantity": 2, "item": "Lämpchen"}'), first.replace("execute", "replay"))
check("another order under the key", place("k1", '{"item": "Lämpchen", "quantity": 3}'), "mismatch: null")
refused = place("k2", '{"item": "lamp", "quantity": 0}')
check("a refusal: its work is taken back, and it is recorded", refused, 'execute: {"error": "bad quantity"}')
check("and replayed", place("k2", '{"item": "lamp", "quantity": 0}'), refused.replace("execute", "replay"))
check("what is no quantity is no outcome", "invalid input syntax for type integer" in place("k3", '{"item": "lamp", "quantity": "x"}'))
check("so that the key may execute", place("k3", '{"item": "lamp", "quantity": 1}').startswith("execute: "))
with psycopg.connect() as db:
    rows = db.execute("SELECT item, quantity FROM orders WHERE client = %s ORDER BY id", (ME,)).fetchall()
check("and of all this two orders", rows, [("Lämpchen", 2), ("lamp", 1)])
done()
