"""Django: @idempotent makes a view happen once per Idempotency-Key. What the view answers
is recorded and replayed; an exception is not, and the next request with the key executes.

    ALTER DATABASE shop SET search_path = public, idempotency;  -- a SET is one connection's
    CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY, client text, item text, quantity int);
    PGHOST=… PGUSER=… PGDATABASE=shop PORT=8080 python3 django_view.py      needs django, psycopg2 (pip or Debian)"""
import functools
import json
import os
from wsgiref.simple_server import make_server

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import DataError, connection, transaction
from django.http import HttpResponse, JsonResponse
from django.urls import path

CLAIM = """SELECT verdict, fence, result::text, idem_http_status(c), ceil(extract(epoch FROM retry_after))
    FROM idem_claim(%s, %s, %s, %s) c"""
COMPLETE = "SELECT idem_complete_key(%s, %s, %s, %s, %s)"
TITLES = {"in_progress": "A request with this Idempotency-Key is in progress", "mismatch": "This Idempotency-Key was used with another request",
          "unknown": "The outcome of the first request is not known yet", "expired": "This Idempotency-Key is too old"}
BAD_REQUEST = (DataError, json.JSONDecodeError, UnicodeDecodeError)  # DataError is 22023, 22P02 and their like: no account, a key too long


def problem(status, title, headers={}):
    return JsonResponse({"status": status, "title": title}, status=status, content_type="application/problem+json", headers=headers)


def idempotent(view):
    @functools.wraps(view)
    def once(request, *args, **kwargs):
        key = request.headers.get("Idempotency-Key", "").strip('"')
        if not key:
            return problem(400, "This endpoint needs an Idempotency-Key")
        operation, params = f"{request.method} {request.resolver_match.route}", json.dumps([kwargs, dict(request.GET.lists()), json.loads(request.body)])
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(CLAIM, [operation, key, params, request.account])
            verdict, fence, recorded, status, retry_after = cursor.fetchone()
            if verdict == "execute":
                savepoint = transaction.savepoint()
                response = view(request, *args, **kwargs)
                if response.status_code >= 400:  # a refusal is recorded, what was done before it is taken back
                    transaction.savepoint_rollback(savepoint)
                recorded = json.dumps({"status": response.status_code, "headers": dict(response.items()), "body": response.content.decode(response.charset)})
                cursor.execute(COMPLETE, [operation, key, fence, recorded, request.account])
        if recorded is None:
            return problem(status, TITLES[verdict], {"Retry-After": retry_after} if retry_after else {})
        stored = json.loads(recorded)
        replayed = {"Idempotent-Replayed": "true"} if verdict == "replay" else {}
        return HttpResponse(stored["body"], status=stored["status"], headers=stored["headers"] | replayed)
    return once


@idempotent
def orders(request):
    order = json.loads(request.body)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (client, item, quantity) VALUES (%s, %s, %s) RETURNING id",
                       [request.account, order["item"], order["quantity"]])
        number = cursor.fetchone()[0]
    if order["item"] == "crash":
        raise RuntimeError("the view crashed")
    if order["item"] == "unicorn":
        return JsonResponse({"error": "there are no unicorns"}, status=400)
    return JsonResponse({"order": number, "item": order["item"]}, status=201, headers={"Location": f"/orders/{number}"})


def account(get_response):  # stands for authentication
    def found(request):
        request.account = request.headers.get("X-Account")
        return get_response(request)
    found.process_exception = lambda request, error: problem(400, "The account, the key or the body is missing or wrong") if isinstance(error, BAD_REQUEST) else None
    return found


urlpatterns = [path("orders", orders)]
database = {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"], "HOST": os.environ["PGHOST"], "USER": os.environ["PGUSER"]}
settings.configure(SECRET_KEY="of this example", DATABASES={"default": database}, ROOT_URLCONF=__name__, MIDDLEWARE=[f"{__name__}.account"], ALLOWED_HOSTS=["*"])
make_server("127.0.0.1", int(os.environ["PORT"]), get_wsgi_application()).serve_forever()
