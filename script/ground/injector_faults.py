"""What can go wrong between a client and its engine, call by call; see ``injector``."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "slow",
    "hang",
    "mute",
    "500-json",
    "500-html",
    "500-empty",
    "200-list",
    "200-html",
    "200-empty",
    "reset",
    "cut",
    "torn",
    "garbled",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: Kinds whose call never reaches the engine.
UNSENT: frozenset[Kind] = frozenset(
    {"500-json", "500-html", "500-empty", "200-list", "200-html", "200-empty", "reset"}
)

_HTML = b"<html><body><h1>Bad Gateway</h1></body></html>"

#: Status, content type and body of the answers given in the engine's place.
ANSWERS: dict[Kind, tuple[int, str, bytes]] = {
    "500-json": (500, "application/json", b'{"message":"the engine is unwell"}\n'),
    "500-html": (502, "text/html", _HTML),
    "500-empty": (500, "text/plain", b""),
    "200-list": (200, "application/json", b"[1]\n"),
    "200-html": (200, "text/html", _HTML),
    "200-empty": (200, "application/json", b""),
}

# The first that matches names the call.
_OPERATIONS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("version", r"GET /(version|_ping)"),
        ("info", r"GET /info"),
        ("events", r"GET /events"),
        ("list", r"GET /containers/json"),
        ("create", r"POST /containers/create"),
        ("inspect", r"GET /containers/[^/]+/json"),
        ("top", r"GET /containers/[^/]+/top"),
        ("archive-get", r"GET /containers/[^/]+/archive"),
        ("archive-put", r"PUT /containers/[^/]+/archive"),
        ("start", r"POST /containers/[^/]+/start"),
        ("stop", r"POST /containers/[^/]+/stop"),
        ("kill", r"POST /containers/[^/]+/kill"),
        ("restart", r"POST /containers/[^/]+/restart"),
        ("exec-create", r"POST /containers/[^/]+/exec"),
        ("exec-start", r"POST /exec/[^/]+/start"),
        ("exec-inspect", r"GET /exec/[^/]+/json"),
        ("remove", r"DELETE /containers/[^/]+"),
        ("image", r"GET /images/.+/json"),
        ("pull", r"POST /images/create"),
        ("volume", r"(GET|POST) /volumes(/.+)?"),
    )
)
_VERSION = re.compile(r"/v[0-9.]+(?=/)")


@dataclass(frozen=True)
class Call:
    """One call that came to the injector.

    Attributes:
        operation: its short name, such as ``create``; ``other`` for one without.
        path: without version and query.
    """

    operation: str
    method: str
    path: str
    query: str = ""
    body: bytes = b""


def read_call(method: str, target: str, body: bytes) -> Call:
    """The call that a request line and a body make."""
    path, _, query = target.partition("?")
    path = _VERSION.sub("", path, count=1)
    line = f"{method} {path}"
    operation = next((name for name, pattern in _OPERATIONS if pattern.fullmatch(line)), "other")
    return Call(operation, method, path, query, body)


class Fault:
    """One fault in force; made by ``Injector.fault``.

    Attributes:
        met: the calls it was done to.
        expired: a call was passed on because ``seconds`` were over, not because it was released.
    """

    def __init__(
        self,
        operation: str,
        kind: Kind,
        *,
        times: int = -1,
        seconds: float = 0.0,
        when: Callable[[Call], bool] | None = None,
    ) -> None:
        self.kind: Kind = kind
        self.seconds = seconds
        self.met: list[Call] = []
        self.expired = False
        self._operation = operation
        self._left = times
        self._when = when
        self._changed = threading.Condition()
        self._released = threading.Event()

    def takes(self, call: Call) -> bool:
        """True, and counted, if the fault is done to this call."""
        if self._operation not in (call.operation, "*"):
            return False
        if self._when is not None and not self._when(call):
            return False
        with self._changed:
            if self._left == 0:
                return False
            self._left -= self._left > 0
            self.met.append(call)
            self._changed.notify_all()
            return True

    def wait_met(self, count: int = 1, timeout_seconds: float = 60) -> None:
        """Block until it was done to ``count`` calls; not on an event loop.

        Raises:
            TimeoutError: it was not.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.met) >= count, timeout_seconds):
                raise TimeoutError(f"{self._operation} met {self.kind} {len(self.met)} times")

    def release(self) -> None:
        """Let go of the calls that it holds, and hold none any more."""
        self._released.set()

    def hold(self) -> None:
        """Wait as this fault has calls wait: in a connection's thread."""
        if not self._released.wait(self.seconds if self.kind == "slow" else None):
            self.expired = True
