"""Watches whether running servers can still use their cards.

A container may lose its cards while it runs ("Failed to initialize NVML: Unknown Error" after
``systemctl daemon-reload``, which takes back what NVIDIA's hook allowed behind the engine's back).
Nothing on the host shows it; the only way to know is to try, inside. Each poll of a server begins
a look in the background, and never waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from logging import Logger
from typing import Any

from . import messages
from .errors import GPUSpawnerError
from .inside import Unseen
from .proof import Proof
from .sight import Seen

#: Part of the poll interval after which the next look may begin: a poll may come a little early.
_EARLY = 0.9
#: The longest pause between two looks that find nothing out.
LONGEST_PAUSE_SECONDS = 3600.0
#: A loss must show in two looks, this long apart.
CONFIRM_SECONDS = 1.0
#: Looks of all servers together that may be under way.
_AT_ONCE = 4

_FIX = (
    "If other containers lost their GPUs too, it was 'systemctl daemon-reload' or a unit's restart "
    "where systemd manages Docker's cgroups: let GPUs come by CDI (GPUPool.device_driver = 'cdi'), "
    'or set "exec-opts": ["native.cgroupdriver=cgroupfs"] in daemon.json. If the card does not '
    "answer, look at 'dmesg' for Xid errors. The server has to be stopped and started again"
)


@dataclass
class Watched:
    """What is known of one running container's cards.

    Attributes:
        devices: UUIDs that it was promised.
        opened: minors that could be opened in some look.
        lost: the cause while cards are lost, for the admin; else empty.
    """

    container_id: str
    devices: tuple[str, ...]
    opened: frozenset[int] = frozenset()
    lost: str = ""
    next_at: float = 0.0
    pause_seconds: float = 0.0
    task: asyncio.Task[None] | None = None

    def back_off(self) -> None:
        """A look found nothing out: the next one has time, and more so each time."""
        self.pause_seconds = min(max(2 * self.pause_seconds, 60.0), LONGEST_PAUSE_SECONDS)
        self.next_at = asyncio.get_running_loop().time() + self.pause_seconds

    @property
    def notice(self) -> str:
        """What the user should know; empty if all is well."""
        return messages.gpu_lost() if self.lost else ""


class InsideWatch:
    """Begins looks and keeps what they found.

    Args:
        spawn: runs work in the background, and logs its failures.
    """

    def __init__(
        self,
        proof: Proof,
        log: Logger,
        spawn: Callable[[Awaitable[None]], asyncio.Task[None]],
    ) -> None:
        self._proof = proof
        self._log = log
        self._spawn = spawn
        self._free = asyncio.Semaphore(_AT_ONCE)

    def poll(self, watched: Watched, name: str, interval_seconds: float) -> None:
        """A poll found the container running: look into it, at most once in each interval."""
        now = asyncio.get_running_loop().time()
        under_way = watched.task is not None and not watched.task.done()
        if not self._proof.looks or not watched.devices or under_way or now < watched.next_at:
            return
        watched.next_at = now + max(_EARLY * interval_seconds, watched.pause_seconds)
        watched.task = self._spawn(self._look(watched, name))

    async def _look(self, watched: Watched, name: str) -> None:
        try:
            async with self._free:
                seen = await self._proof.look(watched.container_id)
                lost = await self._lost(watched, seen)
                if lost and not watched.lost:
                    await asyncio.sleep(CONFIRM_SECONDS)
                    seen = await self._proof.look(watched.container_id)
                    lost = await self._lost(watched, seen)
        except (Unseen, GPUSpawnerError) as error:
            self._log.debug("Can't look into server %s: %s", name, error)
            # An image without a shell never has one, and a look that hangs must not pile up.
            watched.back_off()
            return
        if not seen.nodes and not watched.opened:
            watched.back_off()  # simulated cards, say: a loss could not be told
            return
        watched.pause_seconds = 0.0
        watched.opened |= seen.opened
        cause = "; ".join(lost.values())
        if cause and not watched.lost:
            self._log.error("Server %s can't use its GPU any more: %s. %s", name, cause, _FIX)
        elif watched.lost and not cause:
            self._log.info("Server %s can use its GPU again", name)
        watched.lost = cause

    async def _lost(self, watched: Watched, seen: Seen) -> Mapping[int, Any]:
        return await self._proof.lost(watched.devices, seen, watched.opened)
