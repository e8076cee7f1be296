# pgbouncer in transaction mode: every transaction may run on another connection of the
# server, so what is said for the session reaches others, and prepared statements do not
# follow. The database shop has two server connections here, shop_one has one.
import os
import sys
from datetime import timedelta

import psycopg
from psycopg.types.json import Jsonb

sys.path.append("test/clients/lib")
from tap import check, done, raised

LAMP, NONE = {"item": "lamp", "quantity": 2}, {"item": "lamp", "quantity": 0}


def connect(dbname="shop", **options):
    return psycopg.connect(host=os.environ["POOLER"], port=6432, dbname=dbname, prepare_threshold=None, **options)


db, other = connect(), connect(autocommit=True)


def one(statement, args=None, on=db):
    return on.cursor(row_factory=psycopg.rows.namedtuple_row).execute(statement, args).fetchone()


def principal(on=db):
    return one("SELECT set_config('idempotency.principal', 'pgbouncer', true)", on=on)


def claim(key, params=LAMP, lease=None, on=db):
    with on.transaction():
        principal(on)
        return one("SELECT verdict, fence, result, error, retry_after, holder FROM idem_claim('create_order', %s, %s, lease => %s)",
                   (key, Jsonb(params), lease), on)


def complete(key, fence, result):
    principal()
    return one("SELECT idem_complete_key('create_order', %s, %s, %s) AS result", (key, fence, Jsonb(result))).result


def insert(params=LAMP):
    return one("INSERT INTO orders (client, item, quantity) VALUES ('pgbouncer', %(item)s, %(quantity)s) RETURNING id", params).id


with db.transaction():
    first = claim("k1")
    order = insert()
    busy = claim("k1", on=other)
    pid = one("SELECT pg_backend_pid() AS pid").pid
    returned = complete("k1", first.fence, {"order": order})
check("execute: the first claim executes, and the result is handed back", [first.verdict, returned], ["execute", {"order": order}])
check("in progress: by a backend of the pool, which is not what the client takes for its own",
      [busy.verdict, busy.holder, busy.retry_after > timedelta(), db.info.backend_pid != pid], ["in_progress", pid, True, True])
again = claim("k1", on=other)
check("replay: over whichever connection", [again.verdict, again.result], ["replay", {"order": order}])
check("mismatch: other params", claim("k1", NONE).verdict, "mismatch")
db.commit()

forgotten = raised(psycopg.DatabaseError, claim, "k2")
check("forgotten completion: leaving transaction() raises it as without pooler", forgotten.sqlstate, "ID003")
check("forgotten completion: nothing is left, and the connection serves the next", claim("k2", lease="1 s", on=other).verdict, "execute")

with db.transaction():
    third = claim("k3", NONE)
    try:
        with db.transaction():
            insert(NONE)
    except psycopg.errors.CheckViolation:
        principal()
        one("SELECT idem_fail_key('create_order', 'k3', %s, %s)", (third.fence, Jsonb({"code": "bad_quantity"})))
failed = claim("k3", NONE, on=other)
check("savepoint: the claim outlives the work's", third.verdict, "execute")
check("failure recorded: it is replayed", [failed.verdict, failed.error], ["replay", {"code": "bad_quantity"}])

leased = claim("k4", lease=timedelta(seconds=30))
db.commit()
check("leased call: others see it while no transaction is open", claim("k4", on=other).verdict, "in_progress")
complete("k4", leased.fence, {"charge": "ch_1"})
db.commit()
check("leased call: completed by a later transaction, on whichever connection", claim("k4", on=other).result, {"charge": "ch_1"})

with db.transaction():
    handle = one("SELECT c::text FROM idem_claim('create_order', 'k5', principal => 'pgbouncer') c").c
    one("SELECT idem_complete(%s::idem_answer, '[1, 2]')", (handle,))
check("answer handed back: in the same transaction",
      one("SELECT result FROM idem_status('create_order', 'k5', 'pgbouncer')", on=other).result, [1, 2])
once = "SELECT idem_once('on_payment', 'e1', 'pgbouncer') AS first"
check("once: true, then false", [one(once, on=other).first, one(once, on=other).first], [True, False])
check("types: as without pooler", claim("8e03978e-40d5-43dd-bc93-6894a57f9324", lease=timedelta(seconds=5), on=other).verdict, "execute")

mine, theirs = connect("shop_one", autocommit=True), connect("shop_one", autocommit=True)
mine.execute("SET idempotency.principal = 'acme'")
check("trap: SET reaches the next client of that connection, which claims for another principal",
      one("SELECT principal FROM idem_claim('create_order', 'k6', lease => '1 s')", on=theirs).principal, "acme")
mine.execute("RESET idempotency.principal")
with mine.transaction():
    principal(mine)
check("trap: set_config(..., true), as SET LOCAL, ends with the transaction",
      raised(psycopg.DatabaseError, theirs.execute, "SELECT idem_claim('create_order', 'k6', lease => '1 s')").sqlstate, "22023")
for client in (mine, theirs):
    client.prepare_threshold = 0
mine.execute(once)
clash = raised(psycopg.errors.DuplicatePreparedStatement, theirs.execute, once)
check("trap: with prepared statements pgbouncer 1.18 mixes up those of two clients", clash is not None)
done()
