"""Removes containers that are over, until the engine has answered that they are gone."""

from __future__ import annotations

import asyncio
from logging import Logger

from .engine import NO_ANSWER, Engine
from .errors import EngineUnknown

#: A removal that has not succeeded for this long is told to the admin.
STUCK_SECONDS = 60.0
#: First pause before a refused removal is tried again, and the longest.
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.2, 10.0


class Remover:
    """Tries again for ever: until it is gone, a container holds its cards."""

    def __init__(self, engine: Engine, log: Logger) -> None:
        self._engine = engine
        self._log = log

    async def until_gone(self, container_id: str) -> None:
        """Remove, however long that takes; a removal that hangs is told to the admin once."""
        loop = asyncio.get_running_loop()
        begun, delay, told = loop.time(), RETRY_SECONDS, False
        while not await self.once(container_id):
            if loop.time() - begun > STUCK_SECONDS and not told:
                told = True
                self._log.error(
                    "Container %s can't be removed for %d s now; it keeps its GPU until it is "
                    "gone. If a process in it can't be killed, the host may need a restart.",
                    container_id[:12],
                    STUCK_SECONDS,
                )
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_RETRY_SECONDS)

    async def once(self, container_id: str) -> bool:
        """Try once; True if the container is gone for good."""
        try:
            if await self._engine.remove(container_id, force=True) == "gone":
                return True
            listing = await self._engine.listing()
        except EngineUnknown as error:
            self._log.warning("Removing %s: %s", container_id[:12], error)
            return False
        except NO_ANSWER as error:
            self._log.warning("Removing %s: %s", container_id[:12], error)
            return False
        row = listing.by_id(container_id)
        return row is None or row.state in ("removing", "dead")
