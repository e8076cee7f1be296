# psycopg2: parameters are written into the statement by the driver, so Json, str and
# timedelta fit as they are; a UUID wants register_uuid and a cast, a list is an ARRAY.
import sys
from datetime import timedelta
from uuid import uuid4

import psycopg2
from psycopg2.extras import Json, NamedTupleCursor, register_uuid

sys.path.append("test/clients/lib")
from tap import check, done, raised

CLAIM = """SELECT verdict, fence, result, error, retry_after, holder
    FROM idem_claim('create_order', %s, %s, 'psycopg2', lease => %s)"""
COMPLETE = "SELECT idem_complete_key('create_order', %s, %s, %s, 'psycopg2')"
LAMP, NONE = {"item": "lamp", "quantity": 2}, {"item": "lamp", "quantity": 0}
db, other = psycopg2.connect(""), psycopg2.connect("")
other.autocommit = True


def run(statement, args=None, on=db):
    with on.cursor(cursor_factory=NamedTupleCursor) as cursor:
        cursor.execute(statement, args)
        return cursor.fetchone() if cursor.description else None


def claim(key, params=LAMP, lease=None, on=db):
    return run(CLAIM, (key, Json(params), lease), on)


def insert(params=LAMP):
    return run("INSERT INTO orders (client, item, quantity) VALUES ('psycopg2', %s, %s) RETURNING id",
               (params["item"], params["quantity"]))[0]


with db:
    first = claim("k1")
    order = insert()
    busy = claim("k1", on=other)
    returned = run(COMPLETE, ("k1", first.fence, Json({"order": order})))[0]
check("execute: the first claim executes, and the result is handed back", [first.verdict, returned], ["execute", {"order": order}])
check("in progress: told at once, by whom and for how long", [busy.verdict, busy.holder, busy.retry_after > timedelta()],
      ["in_progress", db.info.backend_pid, True])
again = claim("k1")
check("replay: the recorded result, as a dict", [again.verdict, again.result], ["replay", {"order": order}])
check("mismatch: other params", claim("k1", NONE).verdict, "mismatch")
db.rollback()

claim("k2")
forgotten = raised(psycopg2.Error, db.commit)
check("forgotten completion: commit() raises DatabaseError, .pgcode ID003", [type(forgotten), forgotten.pgcode],
      [psycopg2.DatabaseError, "ID003"])
check("forgotten completion: nothing is left", claim("k2").verdict, "execute")
db.rollback()

with db:
    third = claim("k3", NONE)
    run("SAVEPOINT work")
    try:
        insert(NONE)
    except psycopg2.errors.CheckViolation:
        run("ROLLBACK TO SAVEPOINT work")
        run("SELECT idem_fail_key('create_order', 'k3', %s, %s, principal => 'psycopg2')",
            (third.fence, Json({"code": "bad_quantity"})))
failed = claim("k3", NONE)
check("savepoint: the claim outlives the work's", third.verdict, "execute")
check("failure recorded: it is replayed", [failed.verdict, failed.error], ["replay", {"code": "bad_quantity"}])
db.rollback()

leased = claim("k4", lease=timedelta(seconds=30))
db.commit()
check("leased call: others see it while no transaction is open", claim("k4", on=other).verdict, "in_progress")
with db:
    run(COMPLETE, ("k4", leased.fence, Json({"charge": "ch_1"})))
check("leased call: completed by a later transaction", claim("k4").result, {"charge": "ch_1"})
db.rollback()

with db:
    handle = run("SELECT c FROM idem_claim('create_order', 'k5', principal => 'psycopg2') c")[0]
    run("SELECT idem_complete(%s::idem_answer, %s)", (handle, Json([1, 2])))
check("answer handed back: a composite is a str here, cast to idem_answer", [type(handle),
      run("SELECT result FROM idem_status('create_order', 'k5', 'psycopg2')")[0]], [str, [1, 2]])

with db:
    once = "SELECT idem_once('on_payment', 'e1', 'psycopg2')"
    check("once: true, then false", [run(once)[0], run(once)[0]], [True, False])

key = uuid4()
unknown = raised(psycopg2.ProgrammingError, claim, key)
check("trap: a UUID cannot be adapted before register_uuid()", "can't adapt type 'UUID'" in str(unknown))
register_uuid()
unknown = raised(psycopg2.errors.UndefinedFunction, claim, key)
check("trap: nor is there a function for it without a cast", unknown is not None)
db.rollback()
native = run(CLAIM.replace("order', %s", "order', %s::text"), (key, Json(LAMP), timedelta(seconds=5)))
check("types: UUID with a cast, Json, timedelta; the fence is an int", [native.verdict, type(native.fence)], ["execute", int])
array = raised(psycopg2.errors.UndefinedFunction, run, COMPLETE, (str(key), native.fence, [1, 2]))
check("trap: a list without Json is an ARRAY", "integer[]" in str(array))
db.rollback()
check("types: JSON text is taken as it is", run("SELECT verdict FROM idem_claim('create_order', %s, %s, 'psycopg2')",
      (str(key), '{"item": "lamp"}')).verdict, "execute")
done()
