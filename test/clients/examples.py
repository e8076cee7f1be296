"""One program of docs/examples, over HTTP: starts $COMMAND with PORT set and asks it as
clients do. $OPERATION is what the program calls POST /orders."""
import os
import sys

import psycopg

sys.path.append("test/clients/lib")
from program import Program, body
from tap import check, done

ME = os.environ["EXAMPLE"]
LAMP = {"item": "lamp", "quantity": 2}
PROBLEM = "application/problem+json"
operation = os.environ["OPERATION"]
program = Program()
db = psycopg.connect(autocommit=True)


def post(key, order, account=ME, accept="application/json", query="", **headers):
    return program.post("/orders" + query, order, Idempotency_Key=key, X_Account=account, Accept=accept, **headers)


def told(answer, *names):
    return [answer.status] + [answer.headers[name] for name in names]


def refused(answer):
    """A problem, in which nothing is said of the database."""
    return told(answer, "Content-Type")[0], answer.headers.get_content_type(), b"SELECT" in answer.bytes or b"idem" in answer.bytes


check("without Idempotency-Key: 400", refused(post(None, LAMP))[:2], (400, PROBLEM))
check("nor without an account: 400", refused(post("k0", LAMP, account=None)), (400, PROBLEM, False))
check("nor with a body that is no JSON: 400", refused(post("k0", b'{"item": ')), (400, PROBLEM, False))
check("nor with a key that is too long: 400", refused(post("k" * 300, LAMP)), (400, PROBLEM, False))
first = post("k1", LAMP)
order = body(first)["order"]
check("the first: 201, with Location and body", told(first, "Location", "Idempotent-Replayed"), [201, f"/orders/{order}", None])
again = post('"k1"', LAMP)
check("again, the key as a structured field: status, headers and body as recorded, Idempotent-Replayed",
      told(again, "Location", "Idempotent-Replayed") + [again.bytes], [201, f"/orders/{order}", "true", first.bytes])
check("its type is that of the first", again.headers["Content-Type"], first.headers["Content-Type"])
check("another request under the key: 422", refused(post("k1", {"item": "lamp", "quantity": 3})), (422, PROBLEM, False))
check("or the same body to another query string: 422", refused(post("k1", LAMP, query="?a=1")), (422, PROBLEM, False))
answers = [post("k5", LAMP, ME + " 3", query=query) for query in ("?a=1", "?a=1", "?a=2")]
check("a query string of its own: 201, replayed, and with another 422", [answer.status for answer in answers], [201, 201, 422])
other = post("k1", LAMP, ME + " 2")
check("another account's key: its own order", [other.status, body(other)["order"] != order], [201, True])

for accept in "application/json", "text/plain":
    answers = [post("k " + accept, {"item": "Lämpchen", "quantity": 2}, accept=accept) for _ in range(2)]
    check(f"{accept}, not ASCII: read as its type says, it is what was sent", [body(answer)["item"] for answer in answers], ["Lämpchen"] * 2)
    check("its replay is the same to the byte, and of the same type", *[(answer.bytes, answer.headers["Content-Type"]) for answer in answers])

answers = [post("k6", LAMP, ME + " 3", Content_Type="text/csv") for _ in range(2)]
check("a type that is not JSON: whatever is said, it is said again", *[(answer.status, answer.bytes, answer.headers["Content-Type"]) for answer in answers])

with psycopg.connect() as holder:
    holder.execute("SELECT idem_claim(%s, 'k2', principal => %s)", (operation, ME))
    answer = post("k2", LAMP)
    check("while the first is worked on: 409 with Retry-After", [answer.status, int(answer.headers["Retry-After"] or 0) >= 1], [409, True])
    holder.rollback()
check("and 201 when that was given up", post("k2", LAMP).status, 201)

none = {"item": "unicorn", "quantity": 1}
refusal = post("k3", none)
check("a refusal: 400 and why", [refusal.status, body(refusal)], [400, {"error": "there are no unicorns"}])
answer = post("k3", none)
check("is recorded too", told(answer, "Idempotent-Replayed") + [answer.bytes], [400, "true", refusal.bytes])
answer = post("k4", {"item": "crash", "quantity": 1})
check("a crash: 500, and nothing of the database", [answer.status, b"INSERT" in answer.bytes], [500, False])
check("leaves nothing: the key may execute", db.execute("SELECT state FROM idem_status(%s, 'k4', %s)", (operation, ME)).fetchone()[0], "absent")
rows = db.execute("SELECT item, count(*) FROM orders WHERE client = %s GROUP BY item", (ME,)).fetchall()
check("and of what was refused or crashed: orders are those that were answered", sorted(rows), [("Lämpchen", 2), ("lamp", 2)])
program.end()
done()
