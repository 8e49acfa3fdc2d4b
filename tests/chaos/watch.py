"""The oracle's eyes: samples all the time and at every event, on connections of their own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from .noise import Threads
from .oracle import Container, Oracle, read_container
from .wire import Refused, Silent, Wire

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

SAMPLE_SECONDS = 0.15


class Watch:
    """Two threads: one reads events, one samples; whatever they see goes to the oracle."""

    def __init__(self, wire: Wire, oracle: Oracle) -> None:
        self._wire = wire
        self._oracle = oracle
        self._known: dict[str, Container] = {}
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._stream: socket.socket | None = None
        self._last_event = time.time_ns()
        self._threads = Threads((self._follow, self._sample_for_ever), self._stop)

    def __enter__(self) -> Self:
        self._threads.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._woken.set()
        self._close_stream()
        self._threads.__exit__()

    # -- sampling -----------------------------------------------------------------------------

    def sample(self) -> None:
        """Look once; an engine that gives no answer shows nothing."""
        with self._lock:
            try:
                rows = self._wire.ask("GET", "/containers/json")
                running = [found for row in rows if (found := self._container(row["Id"]))]
                at = time.time()
                if self._oracle.overfull(running):
                    # Read again: one that was restarted has other times than when it was first
                    # seen, and one that has just ended may still be in the list.
                    running = [self._container(one.id, fresh=True) or one for one in running]
            except (Silent, Refused):
                self._oracle.count("samples without an answer")
                return
            self._oracle.sample(at, running)

    def _container(self, identity: str, *, fresh: bool = False) -> Container | None:
        known = self._known.get(identity)
        if known is None or fresh:
            inspection = self._wire.inspect(identity)
            if inspection is None:
                return None
            known = self._known[identity] = read_container(inspection, self._oracle.cards)
        return known

    def _sample_for_ever(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._woken.wait(SAMPLE_SECONDS)
            self._woken.clear()

    # -- events -------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._stop.is_set():
            for event in self._wire.events(self._last_event + 1, self._opened):
                self._heed(event)
            self._stop.wait(0.05)

    def _heed(self, event: dict[str, Any]) -> None:
        self._last_event = max(self._last_event, int(event["timeNano"]))
        action, identity = str(event["Action"]), event["Actor"]["ID"]
        if action.startswith("exec_"):
            return
        self._oracle.count("events")
        if action == "create":
            self._oracle.count("containers")
        known = self._known.get(identity)
        at = int(event["timeNano"]) / 1e9
        if known is not None and known.cards:
            self._oracle.note(at, f"{known}: {action}", known.cards)
        if action in ("start", "die", "restart"):
            self._woken.set()

    def _opened(self, stream: socket.socket) -> None:
        self._stream = stream
        if self._stop.is_set():
            self._close_stream()

    def _close_stream(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
