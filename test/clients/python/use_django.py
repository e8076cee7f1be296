# Django: cursor.execute inside transaction.atomic(); an inner atomic() is the
# savepoint. jsonb comes as text from a raw cursor. Its TestCase finds a forgotten claim.
import json
import os
import sys
import unittest
from datetime import timedelta
from uuid import uuid4

import django
from django.conf import settings
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.test import TestCase

sys.path.append("test/clients/lib")
from tap import check, done, raised

shop = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "HOST": os.environ["PGHOST"], "USER": os.environ["PGUSER"]}
settings.configure(DATABASES={"default": shop, "other": shop}, DEFAULT_AUTO_FIELD="django.db.models.AutoField")
django.setup()
COLUMNS = "verdict, fence, result, error, retry_after, holder"
LAMP, NONE = {"item": "lamp", "quantity": 2}, {"item": "lamp", "quantity": 0}


def run(statement, args=None, on=connection):
    with on.cursor() as cursor:
        cursor.execute(statement, args)
        return cursor.fetchone()


def claim(key, params=LAMP, lease=None, on=connection):
    row = run(f"SELECT {COLUMNS} FROM idem_claim('create_order', %s::text, %s, 'django', lease => %s)",
              [key, json.dumps(params), lease], on)
    return dict(zip(COLUMNS.split(", "), row))


def complete(key, fence, result):
    return run("SELECT idem_complete_key('create_order', %s, %s, %s, 'django')", [key, fence, json.dumps(result)])[0]


def insert(params=LAMP):
    return run("INSERT INTO orders (client, item, quantity) VALUES ('django', %s, %s) RETURNING id",
               [params["item"], params["quantity"]])[0]


def forget():
    with transaction.atomic():
        claim("k2")


class Forgets(TestCase):
    def runTest(self):
        claim("k6")


with transaction.atomic():
    first = claim("k1")
    order = insert()
    with transaction.atomic("other"):
        busy = claim("k1", on=connections["other"])
    pid = run("SELECT pg_backend_pid()")[0]
    returned = complete("k1", first["fence"], {"order": order})
check("execute: the first claim executes, and the result is handed back", [first["verdict"], returned],
      ["execute", json.dumps({"order": order})])
check("in progress: told at once, by whom and for how long",
      [busy["verdict"], busy["holder"], busy["retry_after"] > timedelta()], ["in_progress", pid, True])
again = claim("k1")
check("replay: the recorded result, as JSON text", [again["verdict"], json.loads(again["result"])], ["replay", {"order": order}])
check("mismatch: other params", claim("k1", NONE)["verdict"], "mismatch")

forgotten = raised(DatabaseError, forget)
check("forgotten completion: leaving atomic() raises DatabaseError, .__cause__.pgcode ID003",
      [type(forgotten), forgotten.__cause__.pgcode], [DatabaseError, "ID003"])
check("forgotten completion: nothing is left", run("SELECT state FROM idem_status('create_order', 'k2', 'django')")[0], "absent")
found = unittest.TextTestRunner(stream=open(os.devnull, "w")).run(Forgets())
check("forgotten completion: N03: django.test.TestCase finds it, though it rolls back", "SET CONSTRAINTS ALL IMMEDIATE refused" in found.errors[0][1])

with transaction.atomic():
    third = claim("k3", NONE)
    try:
        with transaction.atomic():
            insert(NONE)
    except IntegrityError:
        run("SELECT idem_fail_key('create_order', 'k3', %s, %s, principal => 'django')", [third["fence"], '{"code": "bad_quantity"}'])
failed = claim("k3", NONE)
check("savepoint: the claim outlives the work's inner atomic()", third["verdict"], "execute")
check("failure recorded: it is replayed", [failed["verdict"], json.loads(failed["error"])], ["replay", {"code": "bad_quantity"}])

leased = claim("k4", lease=timedelta(seconds=30))
check("leased call: others see it while no transaction is open", claim("k4", on=connections["other"])["verdict"], "in_progress")
complete("k4", leased["fence"], {"charge": "ch_1"})
check("leased call: completed by a later transaction", json.loads(claim("k4")["result"]), {"charge": "ch_1"})

with transaction.atomic():
    handle = run("SELECT c FROM idem_claim('create_order', 'k5', principal => 'django') c")[0]
    run("SELECT idem_complete(%s::idem_answer, %s)", [handle, "[1, 2]"])
check("answer handed back: a composite is text here, cast to idem_answer",
      json.loads(run("SELECT result FROM idem_status('create_order', 'k5', 'django')")[0]), [1, 2])

once = "SELECT idem_once('on_payment', 'e1', 'django')"
check("once: true, then false", [run(once)[0], run(once)[0]], [True, False])
with transaction.atomic():
    native = claim(uuid4(), lease=timedelta(seconds=5))
    check("types: UUID with a cast, json.dumps, timedelta; the fence is an int", [native["verdict"], type(native["fence"])], ["execute", int])
at_once = raised(DatabaseError, claim, "k7")
check("trap: outside atomic() a claim without lease ends at once", at_once.__cause__.pgcode, "ID003")
done()
