"""A fake engine on a unix socket, for clients in other processes."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import requests

from .docker_api import Request, serve
from .docker_machine import FakeMachine
from .parts import STUCK_SECONDS


class Served:
    """A machine that is being served.

    Attributes:
        url: the engine's address, as ``DOCKER_HOST`` has it.
    """

    def __init__(self, machine: FakeMachine, path: Path) -> None:
        self.url = f"unix://{path}"
        self._path = path
        self.server = _Server(str(path), _Handler)
        self.server.machine = machine

    def wait_idle(self) -> None:
        """Wait until all that was sent by clients that have gone was carried out."""
        with socket.socket(socket.AF_UNIX) as last:
            # Connections are taken up in turn: with this one, all that were made before it.
            last.connect(str(self._path))
            last.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            while last.recv(4096):
                pass
        with self.server.changed:
            assert self.server.changed.wait_for(lambda: not self.server.open, STUCK_SECONDS)


@contextmanager
def served(machine: FakeMachine, path: Path) -> Iterator[Served]:
    """Serve a machine; a fault without an answer cuts the connection.

    Args:
        path: of the socket; short, since unix sockets allow some 100 characters.
    """
    path.unlink(missing_ok=True)
    one = Served(machine, path)
    thread = threading.Thread(target=one.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()
        thread.join()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: str, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(path, handler)
        self.machine: FakeMachine
        self.open = 0
        self.changed = threading.Condition()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.changed:
            self.open += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self.changed:
            self.open -= 1
            self.changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed leave broken connections behind: no news here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *args: Any) -> None:
        """Nothing."""

    def address_string(self) -> str:
        return "unix"

    def _serve(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            reply = serve(
                self.server.machine,
                Request(
                    self.command,
                    url.path,
                    dict(parse_qsl(url.query)),
                    body,
                    upgrade="Upgrade" in self.headers,
                ),
            )
        except requests.RequestException:
            self.close_connection = True
            return
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.raw is None:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body if reply.raw is None else reply.raw)
        self.close_connection = self.close_connection or reply.raw is not None

    do_GET = do_POST = do_PUT = do_DELETE = _serve
