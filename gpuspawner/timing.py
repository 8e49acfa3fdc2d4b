"""A server with a time limit: what its user is told before and after, and that its end is noticed.

Stopped it is by :mod:`gpuspawner.timekeeper`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from . import limit_words
from .claims import Listing, Row
from .reaching import Reaching
from .time_limits import max_seconds_of, seconds_left

#: How long before its end the user of a server is told, in seconds.
WARNING_SECONDS = 600.0
#: How long after its end the user is told, in seconds.
AFTERWARDS_SECONDS = 86400.0


class Timing(Reaching):
    """The part of the spawner that knows how long its server may run.

    Attributes:
        time_over: what the user is told, until the next start, of a server whose time was over,
            and when that was; kept in the hub's database.
    """

    time_over: tuple[str, float] = ("", 0.0)
    _ends_at: float | None = None  # by this process's steady clock
    _awaited: asyncio.Future[Any] | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        told = super().notices
        words, at = self.time_over
        if words and time.time() - at < AFTERWARDS_SECONDS:
            return (*told, words)
        if self.max_seconds is None or self._ends_at is None:
            return told
        left = self._ends_at - time.monotonic()
        if left > WARNING_SECONDS:
            return told
        words = limit_words.time_ends(self.max_seconds, left, gpu=bool(self.devices))
        return (*told, words)

    def keep_time(self, row: Row, listing: Listing) -> None:
        """Know when the running server's time ends, and see to its end when it has."""
        self.max_seconds = max_seconds_of(row.labels)
        left = seconds_left(row, listing)
        self._ends_at = None if left is None else time.monotonic() + left
        stopping = self.pool.timekeeper.stopping(row.id)
        if stopping is not None and stopping is not self._awaited:
            # Else the user would find a dead server until the next poll.
            self._awaited = stopping
            stopping.add_done_callback(self._stopped_in_time)

    def _stopped_in_time(self, stopping: asyncio.Future[Any]) -> None:
        if not stopping.cancelled() and self._awaited is stopping:
            self.pool.background(self.poll_and_notify())

    def note_end(self, container_id: str) -> str:
        """Remember why a server ended; the cause in words, empty if it was not its time."""
        if not self.pool.timekeeper.has_stopped(container_id) or self.max_seconds is None:
            return ""
        words = limit_words.time_over(self.max_seconds, gpu=bool(self.devices))
        self.time_over = (words, time.time())
        return f"time limit of {limit_words.duration(self.max_seconds)}"

    def forget_time(self, *, told: bool = False) -> None:
        """No server runs any more.

        Args:
            told: also forget what the user should know of the last one's end.
        """
        self.max_seconds = self._ends_at = self._awaited = None
        if told:
            self.time_over = ("", 0.0)
