"""FastAPI: the dependency `once` makes an endpoint happen once per Idempotency-Key. The
endpoint gives it a function that gets the transaction and returns (status, headers, body):
what is recorded and replayed. (Code after a dependency's yield may run when the answer is
sent, too late for COMMIT: so the endpoint returns once(work).)

    ALTER DATABASE shop SET search_path = public, idempotency;  -- a SET is one connection's
    CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY, client text, item text, quantity int);
    PGHOST=… PGDATABASE=shop PORT=8080 python3 fastapi_dependency.py      needs fastapi, uvicorn, psycopg 3 (pip or Debian)"""
import os

import psycopg
import uvicorn
from fastapi import Depends, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg.types.json import Jsonb
from pydantic import BaseModel

CLAIM = """SELECT verdict, fence, result, idem_http_status(c), ceil(extract(epoch FROM retry_after))
    FROM idem_claim(%s, %s, %s, %s) c"""
COMPLETE = "SELECT idem_complete_key(%s, %s, %s, %s, %s)"
TITLES = {"in_progress": "A request with this Idempotency-Key is in progress", "mismatch": "This Idempotency-Key was used with another request",
          "unknown": "The outcome of the first request is not known yet", "expired": "This Idempotency-Key is too old"}


def problem(status, title, headers=None):
    return JSONResponse({"status": status, "title": title}, status, headers, "application/problem+json")


async def params_of(request: Request):
    return [request.path_params, request.url.query, await request.json()]


def once(request: Request, params=Depends(params_of), x_account: str = Header(), idempotency_key: str | None = Header(None)):
    operation, key = f"{request.method} {request.scope['route'].path}", (idempotency_key or "").strip('"')

    def run(work):
        if not key:
            return problem(400, "This endpoint needs an Idempotency-Key")
        with psycopg.connect() as db:  # or a connection of a pool; COMMIT comes before the answer
            verdict, fence, recorded, status, retry_after = db.execute(CLAIM, (operation, key, Jsonb(params), x_account)).fetchone()
            if verdict == "execute":
                with db.transaction() as savepoint:
                    response = work(db)
                    if response[0] >= 400:  # a refusal is recorded, what was done before it is taken back
                        raise psycopg.Rollback(savepoint)
                recorded = Jsonb(dict(zip(("status", "headers", "body"), response)))
                recorded = db.execute(COMPLETE, (operation, key, fence, recorded, x_account)).fetchone()[0]
        if recorded is None:
            return problem(status, TITLES[verdict], {"Retry-After": str(retry_after)} if retry_after else None)
        replayed = {"Idempotent-Replayed": "true"} if verdict == "replay" else {}
        return JSONResponse(recorded["body"], recorded["status"], recorded["headers"] | replayed)
    return run


class Order(BaseModel):
    item: str
    quantity: int


def bad_request(request, error):  # DataError is 22023, 22P02 and their like: a key too long, params that are none
    return problem(400, "The account, the key or the body is missing or wrong")


app = FastAPI(exception_handlers={psycopg.DataError: bad_request, RequestValidationError: bad_request})

@app.post("/orders")
def create_order(order: Order, once=Depends(once), x_account: str = Header()):
    def work(db):
        number = db.execute("INSERT INTO orders (client, item, quantity) VALUES (%s, %s, %s) RETURNING id",
                            (x_account, order.item, order.quantity)).fetchone()[0]
        if order.item == "crash":
            raise RuntimeError("the handler crashed")  # nothing is recorded
        if order.item == "unicorn":
            return 400, {}, {"error": "there are no unicorns"}
        return 201, {"Location": f"/orders/{number}"}, {"order": number, "item": order.item}
    return once(work)


uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="error")
