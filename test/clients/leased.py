"""docs/examples/leased.mjs over HTTP, with a provider that honours keys and whose book is
kept here: what comes back, and what does not, a kill -9 between call and completion."""
import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time

import psycopg

sys.path.append("test/clients/lib")
from program import Program, body, free_port
from tap import check, done

ME = "leased"
book = {}       # key: charge
refusals = {}   # key: how often it has been told to come back
RETRY_AFTER = {503: "1", 5031: "-5", 5032: "1.5", 5033: "1e10", 5034: "Fri, 31 Dec 2100 23:59:59 GMT"}    # what an amount is told
called = threading.Event()
hang_up = threading.Event()


class Provider(http.server.BaseHTTPRequestHandler):
    """Books a key once. The amount says what it answers the first time."""

    def do_POST(self):
        key = self.headers["Idempotency-Key"]
        amount = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["amount"]
        known = key in book
        if amount == 402:
            return self.answer(402, {"refused": "Ungedeckt, täglich"})
        if amount in RETRY_AFTER and not refusals.setdefault(key, 0):
            refusals[key] += 1
            return self.answer(503, {}, Retry_After=RETRY_AFTER[amount])
        book.setdefault(key, f"ch_{len(book) + 1}")
        if amount == 504 and not known:
            return self.answer(504, {})
        if amount == 999 and not known:
            called.set()
            hang_up.wait()
        return self.answer(200, {"charge": book[key]})

    def answer(self, status, content, **headers):
        text = json.dumps(content, ensure_ascii=False).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(text)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        with contextlib.suppress(ConnectionError):  # whom it answers may have been killed
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, *_):
        pass


provider = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
provider.daemon_threads = True
threading.Thread(target=provider.serve_forever, daemon=True).start()
os.environ["PROVIDER"] = f"http://127.0.0.1:{provider.server_port}"
program = Program()
db = psycopg.connect(autocommit=True)
clerk = psycopg.connect(autocommit=True, user="clerk")


def pay(key, amount, through=None):
    return (through or program).post("/payments", {"amount": amount}, Idempotency_Key=key, X_Account=ME)


def told(answer):
    return [answer.status, body(answer), answer.headers["Idempotent-Replayed"]]


def status_of(answer):
    return [answer.status, body(answer).get("title")]


def until(wanted, ask):
    """The last answer, when it is that or after some seconds."""
    for _ in range(200):
        answer = ask()
        if answer.status == wanted:
            break
        time.sleep(0.1)
    return answer


def booked(key):
    """The provider's charge, and that of the payment."""
    row = db.execute("SELECT idem_downstream_key(id, 'charge'), p.amount, p.charge FROM idem_status('pay', %s, %s) s JOIN payment p USING (id)", (key, ME)).fetchone()
    return [book.get(str(row[0])) == row[2], *row[1:]]


first = pay("k1", 100)
check("the provider says yes: 200, and booked with the payment", [told(first), booked("k1")], [[200, {"charge": "ch_1"}, None], [True, 100, "ch_1"]])
check("again: replayed, the same to the byte", [told(pay("k1", 100)), pay("k1", 100).bytes], [[200, {"charge": "ch_1"}, "true"], first.bytes])
check("another amount under the key: 422, and not the charge", status_of(pay("k1", 101)), [422, "mismatch"])
check("no key, no account: 400", [pay(None, 100).status, program.post("/payments", {"amount": 1}, Idempotency_Key="k0").status], [400, 400])
no = pay("k2", 402)
check("it says no: 422, and why, not in ASCII", told(no), [422, {"refused": "Ungedeckt, täglich"}, None])
check("again: replayed, the same to the byte", [told(pay("k2", 402))[2], pay("k2", 402).bytes], ["true", no.bytes])
busy = pay("k3", 503)
check("it did nothing: 503 with its Retry-After", [busy.status, busy.headers["Retry-After"]], [503, "1"])
check("and executed when that is over", [until(200, lambda: pay("k3", 503)).status, booked("k3")], [200, [True, 503, "ch_2"]])
for amount, seconds in (5031, 1), (5032, 2), (5033, 3600), (5034, 1):
    busy = pay(f"k {amount}", amount)
    check(f"Retry-After: {RETRY_AFTER[amount]} becomes {seconds}", [busy.status, busy.headers["Retry-After"]], [503, str(seconds)])
busy = pay("k 5033", 5033)
check("an hour at most, also when asked again", [busy.status, 3590 < int(busy.headers["Retry-After"] or 0) <= 3600], [409, True])
elsewhere = Program(PROVIDER=f"http://127.0.0.1:{free_port()}")
check("nothing was sent: 503", pay("k4", 100, elsewhere).status, 503)
elsewhere.end()
check("and executed later", [until(200, lambda: pay("k4", 100)).status, booked("k4")], [200, [True, 100, "ch_3"]])

lost = pay("k5", 504)
check("no telling: 409, and not what the reconciler is told", status_of(lost), [409, "no outcome yet: ask again with the same key"])
check("and unknown from then on", status_of(pay("k5", 504)), [409, "unknown"])

killed = Program()
threading.excepthook = lambda error: None   # the client of what is killed
threading.Thread(target=pay, args=("k6", 999, killed), daemon=True).start()
called.wait(20)
killed.end(kill=True)
check("kill -9 between call and completion: in progress while the lease runs", status_of(pay("k6", 999)), [409, "in_progress"])
clerk.execute("SELECT idem_expire_lease('pay', 'k6', %s)", (ME,))
check("unknown when it is over", status_of(pay("k6", 999)), [409, "unknown"])

called.clear()
slow = {}
owner = threading.Thread(target=lambda: slow.update(answer=pay("k7", 999)))
owner.start()
called.wait(20)
clerk.execute("SELECT idem_expire_lease('pay', 'k7', %s)", (ME,))

reconciler = subprocess.Popen([*os.environ["COMMAND"].split(), "reconcile"], env={**os.environ, "PGUSER": "clerk"})
for key, amount, charge in ("k5", 504, "ch_4"), ("k6", 999, "ch_5"), ("k7", 999, "ch_6"):
    answer = until(200, lambda: pay(key, amount))
    check(f"{key}: a reconciler finds it out, and it replays", [told(answer), booked(key)], [[200, {"charge": charge}, "true"], [True, amount, charge]])
hang_up.set()
owner.join()
check("an owner that comes after the reconciler is answered what that recorded", told(slow["answer"])[:2], [200, {"charge": "ch_6"}])
check("of all this one booking each", len(book), 6)

db.execute("SELECT idem_cancel('pay', 'k 5033', %s)", (ME,))
with psycopg.connect(user="postgres") as admin:
    admin.execute("SELECT idem_reopen('pay', 'k 5033', %s)", (ME,))
check("cancelled and reopened, with another amount: that is what is booked", [pay("k 5033", 100).status, booked("k 5033")], [200, [True, 100, "ch_7"]])
reconciler.terminate()
reconciler.wait()
program.end()
done()
