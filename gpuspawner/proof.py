"""Proves that a server has the promised cards and no other, before its user is told it is ready.

Twice: after create the engine must say that it kept the device requests, and after start a look
inside must find the cards' device nodes. Only certain evidence refuses a server.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Collection
from logging import Logger

from . import messages
from .devices import Inventory
from .engine import Engine
from .errors import EngineUnknown, NotAsPromised
from .inside import Unseen, look
from .prober import Prober
from .sight import Asked, Finding, Seen, compare, lost, unkept

#: For how long an inspection is asked for again.
WAIT_SECONDS = 15.0
_RETRY_SECONDS = 0.25
#: Some reasons are words of an image's shell; whoever makes ever new ones is not listened to.
_MOST_TOLD = 100
#: The engine's errors name containers and commands.
_ID = re.compile(r"\b[0-9a-f]{12,64}\b")

_FIXES = {
    "podman": (
        "Podman honours GPU requests for CDI only: set GPUPool.device_driver = 'cdi', with Podman "
        "5.5 or newer and a CDI file ('nvidia-ctk cdi generate')"
    ),
    "dropped": (
        "use Docker 20.10 or newer, and see that nothing between hub and engine (DOCKER_HOST, a "
        "proxy of its socket) takes device requests out"
    ),
    "more": (
        "see what the CDI file in /etc/cdi has for this card, and that no other tool gives "
        "containers cards; 'nvidia-ctk cdi list' shows the entries"
    ),
    "fewer": (
        "see that 'nvidia-smi -L' lists the card and 'dmesg' has no fault of it; with CDI make the "
        "file again ('nvidia-ctk cdi generate') after each change of driver or cards"
    ),
}


class Proof:
    """Asks the engine what it kept, and looks inside.

    Args:
        looks: False where nothing may be run inside servers.
    """

    def __init__(self, engine: Engine, prober: Prober, log: Logger, *, looks: bool) -> None:
        self._engine = engine
        self._prober = prober
        self._log = log
        self.looks = looks
        self._told: set[str] = set()

    async def kept(self, container_id: str, asked: Asked) -> None:
        """After create: see that the engine kept the request for the cards.

        Raises:
            NotAsPromised: it did not.
            EngineUnknown: it can't be asked.
        """
        if not asked.requests:
            return
        if (await self._engine.info()).podman:
            if asked.driver != "cdi":
                raise _refused(
                    f"Podman ignores requests for driver {asked.driver!r}", "podman", missing=True
                )
            self._tell("Podman doesn't say which GPUs a container was given; labels alone tell")
            return
        missing = await self._missing(container_id, asked)
        if missing:
            raise _refused(
                f"the engine made the container without its GPU: {missing}", "dropped", missing=True
            )

    async def _missing(self, container_id: str, asked: Asked) -> str:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_SECONDS
        while True:
            try:
                inspection = await self._engine.inspect(container_id)
                # Without one the container is gone, which the next listing shows.
                return "" if inspection is None else unkept(asked, inspection)
            except EngineUnknown:
                if loop.time() >= deadline:
                    raise
            except (AttributeError, TypeError) as error:
                if loop.time() >= deadline:
                    raise EngineUnknown(
                        f"the inspection of container {container_id[:12]} can't be read: {error!r}"
                    ) from error
            await asyncio.sleep(_RETRY_SECONDS)

    async def seen(self, container_id: str, promised: Collection[str], asked: Asked) -> None:
        """After start: look inside, and hold it against the promise.

        Raises:
            NotAsPromised: it certainly sees more or fewer cards.
            ProbeError: nothing is known of the cards.
        """
        if not self.looks:
            return
        try:
            seen = await look(self._engine, container_id)
        except Unseen as error:
            self._tell(str(error))
            return
        # A server without a GPU starts also while the driver can't be asked.
        inventory = await self._prober.latest(math.inf) if promised else Inventory()
        sight = compare(promised, inventory, seen, asked)
        if sight.finding is Finding.MORE:
            raise _refused(f"the server would see too much: {sight.reason}", "more", missing=False)
        if sight.finding is Finding.FEWER:
            raise _refused(
                f"the server would not have its GPU: {sight.reason}", "fewer", missing=True
            )
        if sight.finding is Finding.UNCLEAR:
            self._tell(sight.reason)

    async def look(self, container_id: str) -> Seen:
        """What a running server sees now.

        Raises:
            Unseen: no look was possible.
        """
        return await look(self._engine, container_id)

    async def lost(
        self, promised: Collection[str], seen: Seen, opened: Collection[int]
    ) -> dict[int, str]:
        """The promised cards that can't be used any more; see :func:`gpuspawner.sight.lost`."""
        return lost(promised, await self._prober.latest(math.inf), seen, opened)

    def _tell(self, reason: str) -> None:
        """Once for each reason, not for each server."""
        reason = _ID.sub("…", reason)
        if reason not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(reason)
            self._log.info("Can't prove which GPUs servers see (told once): %s", reason)


def _refused(cause: str, fix: str, *, missing: bool) -> NotAsPromised:
    words = messages.gpu_not_given() if missing else messages.start_failed()
    return NotAsPromised(f"{cause} (fix: {_FIXES[fix]})", user_message=words)
