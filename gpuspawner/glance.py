"""How the cards stand, for the open forms: one look for all that ask within a moment.

Decisions never use it: they ask anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: So old may a shared look be.
SHARED_SECONDS = 2.0


class Glance(Generic[T]):
    """Shares the answer, or the failure, of one call among those who ask for it meanwhile."""

    def __init__(self, look: Callable[[], Awaitable[T]], seconds: float = SHARED_SECONDS) -> None:
        self._look = look
        self._seconds = seconds
        self._task: asyncio.Task[T] | None = None
        self._until = 0.0

    async def latest(self) -> T:
        """The shared answer; raises what the look raises."""
        loop = asyncio.get_running_loop()
        if self._task is None or (self._task.done() and loop.time() >= self._until):
            self._task = loop.create_task(self._run())
        # Who goes away must not end the look of the others.
        return await asyncio.shield(self._task)

    async def _run(self) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await self._look()
        finally:
            self._until = loop.time() + self._seconds
