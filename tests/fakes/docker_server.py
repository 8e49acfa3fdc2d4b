"""A fake engine on a unix socket, for clients in other processes."""

from __future__ import annotations

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


@contextmanager
def served(machine: FakeMachine, path: Path) -> Iterator[str]:
    """Serve a machine; a fault without an answer cuts the connection.

    Args:
        path: of the socket; short, since unix sockets allow some 100 characters.

    Yields:
        The engine's address, as ``DOCKER_HOST`` has it.
    """
    server = _Server(str(path), _Handler)
    server.machine = machine
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"unix://{path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    machine: FakeMachine

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
