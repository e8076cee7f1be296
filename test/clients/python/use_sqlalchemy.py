# SQLAlchemy: text() with a Session; begin_nested() is the savepoint. In text() a
# parameter is cast with CAST(:key AS text), never with :key::text.
import json
import sys
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.orm import Session

sys.path.append("test/clients/lib")
from tap import check, done, raised

CLAIM = text("""SELECT verdict, fence, result, error, retry_after, holder
    FROM idem_claim('create_order', CAST(:key AS text), CAST(:params AS jsonb), 'sqlalchemy', lease => :lease)""")
COMPLETE = text("SELECT idem_complete_key('create_order', :key, :fence, CAST(:result AS jsonb), 'sqlalchemy')")
FAIL = text("SELECT idem_fail_key('create_order', :key, :fence, CAST(:error AS jsonb), principal => 'sqlalchemy')")
INSERT = text("INSERT INTO orders (client, item, quantity) VALUES ('sqlalchemy', :item, :quantity) RETURNING id")
LAMP, NONE = {"item": "lamp", "quantity": 2}, {"item": "lamp", "quantity": 0}
engine = create_engine("postgresql+psycopg2://", future=True)


def claim(db, key, params=LAMP, lease=None):
    return db.execute(CLAIM, {"key": key, "params": json.dumps(params), "lease": lease}).one()


def once_elsewhere(statement, args=None):
    with engine.begin() as db:
        return db.execute(statement, args).one()


with Session(engine) as db, db.begin():
    first = claim(db, "k1")
    order = db.execute(INSERT, LAMP).scalar_one()
    with engine.connect() as other:
        busy = claim(other, "k1")
    pid = db.scalar(text("SELECT pg_backend_pid()"))
    returned = db.scalar(COMPLETE, {"key": "k1", "fence": first.fence, "result": json.dumps({"order": order})})
check("execute: the first claim executes, and the result is handed back", [first.verdict, returned], ["execute", {"order": order}])
check("in progress: told at once, by whom and for how long", [busy.verdict, busy.holder, busy.retry_after > timedelta()],
      ["in_progress", pid, True])
with Session(engine) as db:
    again = claim(db, "k1")
    check("replay: the recorded result, as a dict", [again.verdict, again.result], ["replay", {"order": order}])
    check("mismatch: other params", claim(db, "k1", NONE).verdict, "mismatch")

with Session(engine) as db:
    claim(db, "k2")
    forgotten = raised(DBAPIError, db.commit)
    check("forgotten completion: commit() raises DBAPIError, .orig.pgcode ID003", forgotten.orig.pgcode, "ID003")
    db.rollback()
    check("forgotten completion: nothing is left", claim(db, "k2").verdict, "execute")

with Session(engine) as db, db.begin():
    third = claim(db, "k3", NONE)
    try:
        with db.begin_nested():
            db.execute(INSERT, NONE)
    except IntegrityError:
        db.execute(FAIL, {"key": "k3", "fence": third.fence, "error": '{"code": "bad_quantity"}'})
with Session(engine) as db:
    failed = claim(db, "k3", NONE)
check("savepoint: the claim outlives the work's begin_nested()", third.verdict, "execute")
check("failure recorded: it is replayed", [failed.verdict, failed.error], ["replay", {"code": "bad_quantity"}])

with Session(engine) as db, db.begin():
    leased = claim(db, "k4", lease=timedelta(seconds=30))
with Session(engine) as db:
    check("leased call: others see it while no transaction is open", claim(db, "k4").verdict, "in_progress")
with Session(engine) as db, db.begin():
    db.execute(COMPLETE, {"key": "k4", "fence": leased.fence, "result": '{"charge": "ch_1"}'})
with Session(engine) as db:
    check("leased call: completed by a later transaction", claim(db, "k4").result, {"charge": "ch_1"})

with Session(engine) as db, db.begin():
    handle = db.scalar(text("SELECT CAST(c AS text) FROM idem_claim('create_order', 'k5', principal => 'sqlalchemy') c"))
    db.execute(text("SELECT idem_complete(CAST(:claim AS idem_answer), CAST(:result AS jsonb))"), {"claim": handle, "result": "[1, 2]"})
check("answer handed back: as text, cast to idem_answer",
      once_elsewhere(text("SELECT result FROM idem_status('create_order', 'k5', 'sqlalchemy')"))[0], [1, 2])

once = text("SELECT idem_once('on_payment', 'e1', 'sqlalchemy')")
check("once: true, then false", [once_elsewhere(once)[0], once_elsewhere(once)[0]], [True, False])

with Session(engine) as db:
    native = claim(db, str(uuid4()), lease=timedelta(seconds=5))
    check("types: str(uuid), json.dumps, timedelta; the fence is an int", [native.verdict, type(native.fence)], ["execute", int])
    colons = raised(ProgrammingError, db.execute, text("SELECT idem_once('a', :key::text)"), {"key": "k"})
    check("trap: text() does not see a parameter in :key::text", 'at or near ":"' in str(colons))

legacy = create_engine("postgresql+psycopg2://")
lost = text("SELECT idem_once('on_payment', 'e2', 'sqlalchemy')")
with legacy.connect() as db:
    db.execute(lost)
check("trap: SQLAlchemy 1.4 without future=True commits no SELECT by itself: use begin()", once_elsewhere(lost)[0], True)
done()
