"""Removes containers that are over, until the engine has answered that they are gone."""

from __future__ import annotations

import asyncio
from logging import Logger

from docker.errors import APIError

from .claims import ENDED_STATES
from .connection import NO_ANSWER
from .engine import Engine
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
        self._under_way: dict[str, tuple[bool, asyncio.Task[bool]]] = {}

    async def stop(self, container_id: str, *, until_stopped: bool) -> bool:
        """Stop a container, as gently as it was configured to be stopped.

        Args:
            until_stopped: try again until it has stopped; else its removal will end it.

        Returns:
            False if the engine gave no answer.
        """
        delay = RETRY_SECONDS
        while True:
            answered = False
            try:
                await self._engine.call("stop", container_id)
                return True
            except APIError as error:
                if error.status_code == 404:
                    return True
                answered = True
                self._log.warning("Stopping %s: %s", container_id[:12], error)
            except NO_ANSWER as error:
                self._log.warning("Stopping %s: %s", container_id[:12], error)
            if not until_stopped:
                return answered
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_RETRY_SECONDS)

    async def until_gone(self, container_id: str) -> None:
        """Remove, however long that takes; a removal that hangs is told to the admin once."""
        # By a timer, since a single call may hang for longer.
        telling = asyncio.get_running_loop().call_later(STUCK_SECONDS, self._tell, container_id)
        delay = RETRY_SECONDS
        try:
            while not await self.once(container_id):
                await asyncio.sleep(delay)
                delay = min(delay * 2, LONGEST_RETRY_SECONDS)
        finally:
            telling.cancel()

    def _tell(self, container_id: str) -> None:
        self._log.error(
            "Container %s can't be removed for %d s now; it keeps its GPU until it is gone. If a "
            "process in it can't be killed, the host may need a restart.",
            container_id[:12],
            STUCK_SECONDS,
        )

    async def once(self, container_id: str, *, force: bool = True) -> bool:
        """Try once; True if the container is gone for good.

        Never two calls for one container at once: who comes while one is under way shares it.

        Args:
            force: False to leave it if it runs.
        """
        while (current := self._under_way.get(container_id)) is not None:
            forced, task = current
            if forced or not force:
                return await asyncio.shield(task)
            await asyncio.wait([task])
        task = asyncio.ensure_future(self._once(container_id, force))
        self._under_way[container_id] = (force, task)
        # A call to the engine goes on after its caller was cancelled.
        return await asyncio.shield(task)

    async def _once(self, container_id: str, force: bool) -> bool:
        try:
            if await self._engine.remove(container_id, force=force) == "gone":
                return True
            listing = await self._engine.listing()
        except EngineUnknown as error:
            self._log.warning("Removing %s: %s", container_id[:12], error)
            return False
        except NO_ANSWER as error:
            self._log.warning("Removing %s: %s", container_id[:12], error)
            return False
        except Exception:  # noqa: BLE001 - who gives up here keeps a GPU for ever
            self._log.exception("Removing %s failed", container_id[:12])
            return False
        finally:
            del self._under_way[container_id]
        row = listing.by_id(container_id)
        return row is None or row.state in ENDED_STATES
