"""A client of PostgreSQL's wire protocol: simple queries over a Unix socket.

It is as small as test/history and test/sqlfuzz need: what a statement answers, which
SQLSTATE it raises, what the server warns of, and whether the connection was lost.
"""

import os
import socket
import struct


class Lost(Exception):
    """The connection is gone: what the last statement did is not known."""


class Refused(Exception):
    """The statement raised an error; args are SQLSTATE and message."""

    def __init__(self, sqlstate, message):
        super().__init__(sqlstate, message)
        self.sqlstate = sqlstate
        self.message = message


class Connection:
    def __init__(self, database=None, patience=None, **settings):
        self.database = database or os.environ["PGDATABASE"]
        self.path = self.socket_path()
        self.buffer = b""
        self.warnings = []
        try:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(patience)
            self.socket.connect(self.path)
            self._start(settings)
        except OSError as error:
            raise Lost(str(error)) from error

    @staticmethod
    def socket_path():
        return "%s/.s.PGSQL.%s" % (os.environ["PGHOST"], os.environ.get("PGPORT", "5432"))

    def _start(self, settings):
        options = " ".join("-c %s=%s" % (name, value.replace(" ", "\\ "))
                           for name, value in settings.items())
        words = ["user", os.environ["PGUSER"], "database", self.database,
                 "options", options, "client_encoding", "UTF8"]
        body = struct.pack("!i", 196608) + b"".join(w.encode() + b"\0" for w in words) + b"\0"
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        while True:
            kind, body = self._message()
            if kind == b"K":
                self.pid, self.secret = struct.unpack("!ii", body)
            elif kind == b"E":
                raise Lost(self._error(body).message)
            elif kind == b"R" and struct.unpack("!i", body[:4])[0] != 0:
                raise Lost("the server asks for a password")
            elif kind == b"Z":
                return

    def _receive(self, size):
        while len(self.buffer) < size:
            part = self.socket.recv(65536)
            if not part:
                raise Lost("closed by the server")
            self.buffer += part
        result, self.buffer = self.buffer[:size], self.buffer[size:]
        return result

    def _message(self):
        head = self._receive(5)
        return head[:1], self._receive(struct.unpack("!i", head[1:])[0] - 4)

    @staticmethod
    def _error(body):
        fields = {part[:1]: part[1:].decode("utf8", "replace") for part in body.split(b"\0") if part}
        return Refused(fields[b"C"], fields[b"M"])

    @staticmethod
    def _row(body):
        values, at = [], 2
        for _ in range(struct.unpack("!h", body[:2])[0]):
            size, = struct.unpack("!i", body[at:at + 4])
            at += 4
            values.append(None if size < 0 else body[at:at + size].decode("utf8", "replace"))
            at += max(size, 0)
        return values

    def query(self, sql):
        """Returns the rows of the last statement that has some, as lists of texts.

        sql is a text, or bytes that need not be valid in any encoding.
        """
        rows, error = [], None
        try:
            body = sql if isinstance(sql, bytes) else sql.encode()
            self.socket.sendall(b"Q" + struct.pack("!i", len(body) + 5) + body + b"\0")
            while True:
                kind, body = self._message()
                if kind == b"T":
                    rows = []
                elif kind == b"D":
                    rows.append(self._row(body))
                elif kind == b"E":
                    error = self._error(body)
                elif kind == b"N" and b"VWARNING\0" in body:
                    self.warnings.append(self._error(body))
                elif kind == b"Z":
                    self.status = body
                    break
        except OSError as lost:
            raise Lost(str(lost)) from lost
        if error:
            raise error
        return rows

    def value(self, sql):
        rows = self.query(sql)
        return rows[0][0] if rows else None

    def cancel(self):
        """Asks the server to cancel what this session does."""
        try:
            other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            other.connect(self.path)
            other.sendall(struct.pack("!iiii", 16, 80877102, self.pid, self.secret))
            other.recv(1)
            other.close()
        except OSError:
            pass

    def close(self):
        self.socket.close()
