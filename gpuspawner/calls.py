"""Calls to the engine that must be followed to their end.

A cancelled ``create`` still creates. So the calls of one attempt belong to a :class:`Ticket` that
outlives whoever waits for them: when the attempt is abandoned, the container is removed in the
thread that made the last call, as soon as that call is answered. A thread, not a task: a task dies
with the hub's event loop, while the interpreter waits for its threads at exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from docker.errors import DockerException

from .connection import NO_ANSWER, NoAnswer
from .engine import Engine

T = TypeVar("T")


class Ending(Enum):
    """How an abandoned attempt's container stands when its last call has ended."""

    GONE = "gone"  # removed, or never made: the engine said so
    STAYS = "stays"  # the removal was refused or not answered: to be tried again
    UNANSWERED = "unanswered"  # a call had no answer: a container may still appear


class Abandoned(Exception):
    """The attempt was given up before this call was sent."""


class Ticket:
    """The calls of one attempt.

    Args:
        lease: the attempt's lease, a label of its container.
        on_end: told, in whatever thread ends it, once the ticket is abandoned and no call is
            under way any more. Exactly once.
    """

    def __init__(
        self, engine: Engine, lease: str, on_end: Callable[[Ticket, Ending], None]
    ) -> None:
        self.lease = lease
        self.container_id = ""
        self._engine = engine
        self._on_end = on_end
        self._lock = threading.Lock()
        self._busy = 0
        self._abandoned = False
        self._over = False
        self._unanswered = False
        self._force = True

    async def create(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """``POST /containers/create``; the id is kept here even if nobody waits any more."""

        def work() -> dict[str, Any]:
            client = self._engine.connection.client()
            answer: dict[str, Any] = client.create_container(**kwargs)
            if not isinstance(answer.get("Id"), str):
                raise NoAnswer("a create was answered without an id")
            with self._lock:
                self.container_id = answer["Id"]
            return answer

        return await self.call(work)

    async def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread under this ticket."""
        return await self._engine.run(self._run, work, kind="start")

    async def start(self) -> None:
        """``POST /containers/<id>/start``."""
        await self.call(lambda: self._engine.connection.client().start(self.container_id))

    def _run(self, work: Callable[[], T]) -> T:
        with self._lock:
            if self._abandoned:
                raise Abandoned
            self._busy += 1
        try:
            return work()
        except DockerException:
            # The engine's answer, or docker-py refused by itself and sent nothing.
            raise
        except NO_ANSWER:
            self._unanswered = True
            raise
        finally:
            with self._lock:
                self._busy -= 1
            if self._is_last():
                self._end()

    def abandon(self, *, force: bool = True) -> None:
        """Give the attempt up; its container is removed as soon as no call is under way.

        Args:
            force: False to remove it only if it does not run.
        """
        with self._lock:
            if self._abandoned:
                return
            self._abandoned = True
            self._force = force
        if self._is_last():
            self._engine.submit(self._end, kind="end")

    def _is_last(self) -> bool:
        """True, once, when the ticket is abandoned and no call is under way."""
        with self._lock:
            if self._over or self._busy or not self._abandoned:
                return False
            self._over = True
            return True

    def keep(self) -> None:
        """The attempt has succeeded: nothing is removed by this ticket any more."""
        with self._lock:
            self._abandoned = self._over = True

    def _end(self) -> None:
        ending = Ending.UNANSWERED if self._unanswered else Ending.GONE
        if self.container_id:
            try:
                removal = self._engine.remove_now(self.container_id, force=self._force)
                ending = Ending.GONE if removal == "gone" else Ending.STAYS
            except NO_ANSWER:
                ending = Ending.STAYS
        self._on_end(self, ending)
