"""A stand-in for a single-user server, for tests of starts and stops: small, quick, obedient.

Runs inside the tiny image on the standard library alone. Below the server's prefix:

- ``api``: what the hub asks to see whether the server is up.
- ``env``: what the server is given, as JSON: env, uid, gid, groups, dev, home, argv.
- ``exit?code=N``: ends the server.
- ``write?name=F`` (POST): writes the body to HOME/F; 500 with the error where that fails.
- ``read?path=F``: the content of any file, 404 with the error where that fails.

``TINY_START_SECONDS`` delays its answer, ``TINY_STOP_SECONDS`` its end, ``TINY_EXIT`` ends it at
once with that code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

URL = urlsplit(os.environ.get("JUPYTERHUB_SERVICE_URL", "http://0.0.0.0:8888/"))
PREFIX = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/")
# The hub compares it with its own version and would log a warning at each start otherwise.
VERSION = os.environ.get("TINY_HUB_VERSION", "6.0.0")


def facts() -> dict[str, object]:
    """What this process was given."""
    return {
        "env": dict(os.environ),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": sorted(os.getgroups()),
        "dev": sorted(path.name for path in Path("/dev").iterdir()),
        "home": os.environ.get("HOME", ""),
        "argv": sys.argv,
        "pid": os.getpid(),
    }


class Handler(BaseHTTPRequestHandler):
    """Answers below the prefix, whatever the path that is asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, query = self.parts()
        if path == "env":
            self.answer(200, facts())
        elif path == "exit":
            self.answer(200, {"exit": query.get("code", "0")})
            self.end(int(query.get("code", "0")))
        elif path == "read":
            try:
                self.answer(200, {"content": Path(query["path"]).read_text(errors="replace")})
            except OSError as error:
                self.answer(404, {"error": str(error)})
        else:
            self.answer(200, {"version": VERSION, "path": self.path})

    def do_POST(self) -> None:
        path, query = self.parts()
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if path != "write":
            self.answer(404, {"error": f"nothing takes a POST at {self.path}"})
            return
        target = Path(os.environ.get("HOME", "/"), query["name"])
        try:
            target.write_bytes(body)
        except OSError as error:
            self.answer(500, {"error": str(error)})
        else:
            self.answer(200, {"written": str(target)})

    def end(self, code: int) -> None:
        """End the server once its answer has arrived: the network goes with the container."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(10)
            while self.connection.recv(4096):
                pass
        os._exit(code)

    def parts(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        path = url.path.removeprefix(PREFIX)
        return path, {key: values[-1] for key, values in parse_qs(url.query).items()}

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-JupyterHub-Version", VERSION)
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *args: object) -> None:
        """Say nothing."""


def stop(*_: object) -> None:
    """As process 1 it is deaf to SIGTERM without a handler."""
    time.sleep(float(os.environ.get("TINY_STOP_SECONDS", "0")))
    os._exit(0)


def main() -> None:
    """Serve until told to stop."""
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if "TINY_EXIT" in os.environ:
        sys.exit(int(os.environ["TINY_EXIT"]))
    time.sleep(float(os.environ.get("TINY_START_SECONDS", "0")))
    server = ThreadingHTTPServer(("0.0.0.0", URL.port or 8888), Handler)
    server.daemon_threads = True
    server.request_queue_size = 64
    threading.Thread(target=server.serve_forever).start()


if __name__ == "__main__":
    main()
