"""Stops servers whose time is over, whoever sees it first: a poll, or a round of the cleaner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Any

from . import names
from .claims import Listing, Row
from .limit_words import duration
from .removal import Remover
from .time_limits import max_seconds_of, overdue


class Timekeeper:
    """Stops each of them gently, once at a time, until it has stopped.

    What is left of it is its spawner's business, which finds it ended.

    Args:
        spawn: begins a task that nobody waits for.
    """

    def __init__(
        self,
        hub_id: str,
        remover: Remover,
        log: Logger,
        spawn: Callable[[Awaitable[Any]], asyncio.Task[Any]],
    ) -> None:
        self._hub_id = hub_id
        self._remover = remover
        self._log = log
        self._spawn = spawn
        self._stopping: dict[str, asyncio.Task[Any]] = {}
        self._stopped: set[str] = set()

    def look(self, listing: Listing) -> None:
        """Begin to stop what runs past its time; never waits."""
        # Ids of containers that are gone are never seen again.
        self._stopped &= {row.id for row in listing.rows} | self._stopping.keys()
        for row in overdue(listing, self._hub_id):
            if row.id not in self._stopping:
                self._stop(row)

    def _stop(self, row: Row) -> None:
        self._log.info(
            "The time of server %r of user %s is over (%s): stopping container %s",
            row.labels.get(names.LABEL_SERVER, ""),
            row.labels.get(names.LABEL_USER, "?"),
            duration(max_seconds_of(row.labels) or 0),
            row.id[:12],
        )
        self._stopped.add(row.id)
        task = self._spawn(self._remover.stop(row.id, until_stopped=True))
        self._stopping[row.id] = task
        task.add_done_callback(lambda _: self._stopping.pop(row.id, None))

    def stopping(self, container_id: str) -> asyncio.Task[Any] | None:
        """The stop of a container that is under way, if it is."""
        return self._stopping.get(container_id)

    def has_stopped(self, container_id: str) -> bool:
        """True if a container was, or is being, stopped because its time is over."""
        return container_id in self._stopped
