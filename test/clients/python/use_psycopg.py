# psycopg 3: parameters are typed by what Python says, so a UUID is no text and a
# dict needs Jsonb; enums come as str, intervals as timedelta, jsonb as Python.
import sys
from datetime import timedelta
from uuid import uuid4

import psycopg
from psycopg.types.json import Jsonb

sys.path.append("test/clients/lib")
from tap import check, done, raised

CLAIM = """SELECT verdict, fence, result, error, retry_after, holder
    FROM idem_claim('create_order', %(key)s, %(params)s, 'psycopg', lease => %(lease)s)"""
COMPLETE = "SELECT idem_complete_key('create_order', %s, %s, %s, 'psycopg')"
LAMP = {"item": "lamp", "quantity": 2}
db, other = psycopg.connect(), psycopg.connect(autocommit=True)


def claim(key, params=LAMP, lease=None, on=db):
    cursor = on.cursor(row_factory=psycopg.rows.namedtuple_row)
    return cursor.execute(CLAIM, {"key": key, "params": Jsonb(params), "lease": lease}).fetchone()


def insert(params=LAMP):
    return db.execute("INSERT INTO orders (client, item, quantity) VALUES ('psycopg', %s, %s) RETURNING id",
                      (params["item"], params["quantity"])).fetchone()[0]


with db.transaction():
    first = claim("k1")
    order = insert()
    busy = claim("k1", on=other)
    returned = db.execute(COMPLETE, ("k1", first.fence, Jsonb({"order": order}))).fetchone()[0]
check("execute: the first claim executes, and the result is handed back", [first.verdict, returned], ["execute", {"order": order}])
check("in progress: told at once, by whom and for how long", [busy.verdict, busy.holder, busy.retry_after > timedelta()],
      ["in_progress", db.info.backend_pid, True])
again = claim("k1")
check("replay: the recorded result, as a dict", [again.verdict, again.result], ["replay", {"order": order}])
check("mismatch: other params", claim("k1", {"item": "lamp", "quantity": 3}).verdict, "mismatch")
db.rollback()

claim("k2")
forgotten = raised(psycopg.DatabaseError, db.commit)
check("forgotten completion: commit() raises DatabaseError, .sqlstate ID003", [type(forgotten), forgotten.sqlstate],
      [psycopg.DatabaseError, "ID003"])
check("forgotten completion: nothing is left", claim("k2").verdict, "execute")
db.rollback()

with db.transaction():
    third = claim("k3", {"item": "lamp", "quantity": 0})
    try:
        with db.transaction():
            insert({"item": "lamp", "quantity": 0})
    except psycopg.errors.CheckViolation:
        db.execute("SELECT idem_fail_key('create_order', 'k3', %s, %s, principal => 'psycopg')",
                   (third.fence, Jsonb({"code": "bad_quantity"})))
failed = claim("k3", {"item": "lamp", "quantity": 0})
check("savepoint: the claim outlives the work's, a nested transaction()", third.verdict, "execute")
check("failure recorded: it is replayed", [failed.verdict, failed.error], ["replay", {"code": "bad_quantity"}])
db.rollback()

leased = claim("k4", lease=timedelta(seconds=30))
db.commit()
check("leased call: others see it while no transaction is open", claim("k4", on=other).verdict, "in_progress")
db.execute(COMPLETE, ("k4", leased.fence, Jsonb({"charge": "ch_1"})))
db.commit()
check("leased call: completed by a later transaction", claim("k4").result, {"charge": "ch_1"})
db.rollback()

handle = db.execute("SELECT c::text FROM idem_claim('create_order', 'k5', principal => 'psycopg') c").fetchone()[0]
db.execute("SELECT idem_complete(%s::idem_answer, %s)", (handle, Jsonb([1, 2])))
db.commit()
check("answer handed back: as text, cast to idem_answer",
      other.execute("SELECT result FROM idem_status('create_order', 'k5', 'psycopg')").fetchone()[0], [1, 2])

once = "SELECT idem_once('on_payment', 'e1', 'psycopg')"
check("once: true, then false", [db.execute(once).fetchone()[0], db.execute(once).fetchone()[0]], [True, False])
db.commit()

key = uuid4()
native = db.execute(CLAIM.replace("%(key)s", "%(key)s::text"), {"key": key, "params": Jsonb(LAMP), "lease": timedelta(seconds=5)}).fetchone()
check("types: UUID with a cast, Jsonb, timedelta; the fence is an int", [native[0], type(native[1])], ["execute", int])
check("types: JSON text is taken as it is", db.execute("SELECT verdict FROM idem_claim('create_order', %s, %s, 'psycopg')",
      (str(key), '{"quantity": 2, "item": "lamp"}')).fetchone()[0], "in_progress")
db.rollback()
untold = raised(psycopg.errors.UndefinedFunction, claim, uuid4())
check("trap: N06: a UUID without the cast finds no function", untold is not None)
db.rollback()
bare = raised(psycopg.ProgrammingError, db.execute, COMPLETE, ("k", 1, {"order": 1}))
check("trap: a dict without Jsonb cannot be adapted", "cannot adapt type 'dict'" in str(bare))
done()
