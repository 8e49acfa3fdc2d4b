"""A fault injector between a client and its engine: a proxy with rules, on a socket of its own.

::

    with Injector(folder / "i.sock", engine.socket) as injector:
        client = docker.APIClient(injector.url)
        with injector.fault("create", "cut", times=1) as fault:
            ...  # the engine creates, and its answer is lost
        with injector.fault("start", "hang") as fault:
            ...
            fault.wait_met()
            fault.release()  # at the latest when the block ends
        with injector.down():
            ...  # connection refused

========= ==========================================================================
slow      passed on after ``seconds``
hang      held until released, then passed on, also if the client has gone
mute      passed on; the engine's answer is held until released
500-json  answered so in the engine's place, as an engine words it
500-html  answered so (502) by something that is no engine
500-empty answered so without a word
200-list  a list, whatever was asked
200-html  a page, as from a login or a proxy
200-empty nothing
reset     the connection ends, nothing was passed on
cut       carried out by the engine; the connection ends without an answer
torn      carried out; the connection ends in the middle of the answer's body
garbled   carried out; a whole HTTP answer, but its JSON stops in the middle
========= ==========================================================================

Streams (events, pulls) pass through as they come, and an ``exec`` by its upgraded connection.
A client that goes away is gone for the engine too.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11

from .injector_faults import ANSWERS, Call, Fault, Kind, read_call

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

_CHUNK_BYTES = 65536
_MAX_HEADER_BYTES = 256 * 1024


class Injector:
    """The proxy.

    Attributes:
        calls: every call so far, in the order in which they came.
    """

    def __init__(self, path: Path, upstream: Path) -> None:
        """Describe it; :meth:`start` starts it.

        Args:
            path: of its socket; keep it short.
            upstream: the engine's socket.
        """
        self.path = path
        self.upstream = upstream
        self.calls: list[Call] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._sockets: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(256)
        self._spawn(self._accept, self._listener)
        return self

    def stop(self) -> None:
        """End it: faults are over, connections closed, threads gone."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.release()
        self._close()
        while True:
            with self._lock:
                threads = list(self._threads)
            if not threads:
                return
            for thread in threads:
                thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _close(self) -> None:
        """Close the listener and every connection: whoever waits on one wakes."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.path.unlink(missing_ok=True)
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    # -- faults ---------------------------------------------------------------------------------

    @contextmanager
    def fault(
        self,
        operation: str,
        kind: Kind,
        *,
        times: int = -1,
        seconds: float = 0.0,
        when: Callable[[Call], bool] | None = None,
    ) -> Iterator[Fault]:
        """Do this to calls within the block; the newest fault that takes a call wins.

        Args:
            operation: ``list``, ``inspect``, ``create``, ``start``…; ``*`` for every one.
            times: to how many calls; -1 for all.
            seconds: of ``slow``.
            when: decides by the call.
        """
        made = Fault(operation, kind, times=times, seconds=seconds, when=when)
        with self._lock:
            self._faults.insert(0, made)
        try:
            yield made
        finally:
            with self._lock:
                if made in self._faults:
                    self._faults.remove(made)
            made.release()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Within the block nothing listens, and every connection has ended."""
        self._close()
        try:
            yield
        finally:
            self.start()

    def drop_connections(self) -> None:
        """End every connection now, whatever is under way on it."""
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def count(self, operation: str) -> int:
        """How many such calls came so far."""
        return sum(call.operation == operation for call in list(self.calls))

    def _fault_for(self, call: Call) -> Fault | None:
        with self._lock:
            self.calls.append(call)
            return next((fault for fault in self._faults if fault.takes(call)), None)

    # -- connections ----------------------------------------------------------------------------

    def _spawn(self, work: Callable[..., None], *args: Any) -> None:
        def run() -> None:
            try:
                work(*args)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, name="injector", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._spawn(self._serve, client)

    @contextmanager
    def _kept(self, one: socket.socket) -> Iterator[socket.socket]:
        """Known while it lasts, so that the end of the injector ends it; then closed."""
        with self._lock:
            self._sockets.add(one)
            ended = self._listener is None
        try:
            if ended:
                raise ConnectionAbortedError
            yield one
        finally:
            with self._lock:
                self._sockets.discard(one)
            one.close()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, h11.RemoteProtocolError), self._kept(client):
            server = h11.Connection(h11.SERVER, _MAX_HEADER_BYTES)
            while self._exchange(client, server):
                server.start_next_cycle()

    def _exchange(self, client: socket.socket, server: h11.Connection) -> bool:
        """One request and its answer; True if the connection can carry another."""
        request = _next(server, client)
        if not isinstance(request, h11.Request):
            return False
        body = _body(server, client)
        call = read_call(request.method.decode(), request.target.decode(), body)
        fault = self._fault_for(call)
        kind = fault.kind if fault else None
        if kind in ANSWERS:
            _answer(client, server, *ANSWERS[kind])
        elif kind == "reset":
            return False
        else:
            if fault is not None and kind in ("slow", "hang"):
                fault.hold()
            with self._kept(socket.socket(socket.AF_UNIX)) as engine:
                engine.connect(str(self.upstream))
                _pass_on(request, body, client, server, engine, fault)
        return server.our_state is h11.DONE and server.their_state is h11.DONE


def _pass_on(
    request: h11.Request,
    body: bytes,
    client: socket.socket,
    server: h11.Connection,
    engine: socket.socket,
    fault: Fault | None,
) -> None:
    """Send the request to the engine, and its answer back as the fault will have it."""
    upstream = h11.Connection(h11.CLIENT, _MAX_HEADER_BYTES)
    headers = [(name, text) for name, text in request.headers if name not in _FRAMING]
    if body or request.method in (b"POST", b"PUT"):
        headers.append((b"content-length", str(len(body)).encode()))
    again = h11.Request(method=request.method, target=request.target, headers=headers)
    for event in (again, h11.Data(data=body), h11.EndOfMessage()):
        engine.sendall(upstream.send(event) or b"")
    if fault is not None and fault.kind in ("mute", "cut", "torn", "garbled"):
        answer = _next(upstream, engine)
        whole = _body(upstream, engine) if isinstance(answer, h11.Response) else b""
        _spoil(client, server, answer, whole, fault)
        return
    # Held by a fault before, the order is carried out even if its client has gone.
    watched = None if fault is not None and fault.kind == "hang" else client
    while True:
        event = _next(upstream, engine, watched)
        if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            client.sendall((server.send(event) or b"") + upstream.trailing_data[0])
            engine.sendall(server.trailing_data[0])
            _tunnel(client, engine)
            return
        if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            return
        client.sendall(server.send(event) or b"")
        if isinstance(event, h11.EndOfMessage):
            return


#: The proxy frames the body by itself.
_FRAMING = (b"content-length", b"transfer-encoding", b"expect")


def _spoil(
    client: socket.socket, server: h11.Connection, answer: Any, body: bytes, fault: Fault
) -> None:
    if fault.kind == "mute":
        fault.hold()
    if fault.kind == "cut" or not isinstance(answer, h11.Response):
        return
    if fault.kind == "torn" and not body:
        return  # an answer without a body has no middle
    status = answer.status_code
    headers = [(name, text) for name, text in answer.headers if name not in _FRAMING]
    left = body[: len(body) // 2] if fault.kind in ("torn", "garbled") else body
    length = len(body) if fault.kind == "torn" else len(left)
    if status not in (204, 304):
        headers.append((b"content-length", str(length).encode()))
    client.sendall(server.send(h11.Response(status_code=status, headers=headers)) or b"")
    client.sendall(server.send(h11.Data(data=left)) or b"")
    if fault.kind != "torn":
        client.sendall(server.send(h11.EndOfMessage()) or b"")


def _answer(
    client: socket.socket, server: h11.Connection, status: int, kind: str, body: bytes
) -> None:
    headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    client.sendall(server.send(h11.Response(status_code=status, headers=headers)) or b"")
    client.sendall(server.send(h11.Data(data=body)) or b"")
    client.sendall(server.send(h11.EndOfMessage()) or b"")


def _next(
    connection: h11.Connection, source: socket.socket, watched: socket.socket | None = None
) -> Any:
    """The next event from a socket; ends early where ``watched`` goes away."""
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event
        if watched is not None and _gone(watched, source):
            return h11.ConnectionClosed()
        connection.receive_data(source.recv(_CHUNK_BYTES))


def _body(connection: h11.Connection, source: socket.socket) -> bytes:
    """The rest of a message: its body."""
    parts: list[bytes] = []
    while isinstance(event := _next(connection, source), h11.Data):
        parts.append(bytes(event.data))
    return b"".join(parts)


def _gone(watched: socket.socket, source: socket.socket) -> bool:
    """Wait for ``source``; True if ``watched`` ends before."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(watched, select.POLLRDHUP)
    ready = dict(poll.poll())
    return source.fileno() not in ready


def _tunnel(client: socket.socket, engine: socket.socket) -> None:
    """Bytes both ways, each way until its end, once a connection was upgraded."""
    ways = {client.fileno(): (client, engine), engine.fileno(): (engine, client)}
    poll = select.poll()
    for number in ways:
        poll.register(number, select.POLLIN)
    while ways:
        for number, _ in poll.poll():
            source, target = ways[number]
            data = source.recv(_CHUNK_BYTES)
            if data:
                target.sendall(data)
                continue
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
            poll.unregister(number)
            del ways[number]
