"""A program that serves HTTP on $PORT, and what it answers: start(...), post(...)."""
import http.client
import json
import os
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Program:
    """$COMMAND, from when it listens."""

    def __init__(self, **env):
        self.port = free_port()
        self.process = subprocess.Popen(os.environ["COMMAND"].split(), env={**os.environ, "PORT": str(self.port), **env})
        while self.process.poll() is None:
            with socket.socket() as probe:
                probe.settimeout(0.2)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
        sys.exit("the program ended")

    def post(self, path, body, **headers):
        """Sends a body, as JSON unless it is bytes; None is a header that is left out."""
        server = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        text = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        server.request("POST", path, text, {"Content-Type": "application/json", **headers})
        answer = server.getresponse()
        answer.bytes = answer.read()
        server.close()
        return answer

    def end(self, kill=False):
        (self.process.kill if kill else self.process.terminate)()
        self.process.wait()


def body(answer):
    """As its type says that it is to be read."""
    text = answer.bytes.decode(answer.headers.get_content_charset("utf-8"))
    return json.loads(text) if text.startswith("{") else text
