"""Keeps the newest inventory at hand, so that a decision seldom waits for the driver."""

from __future__ import annotations

import asyncio
from logging import Logger

from .devices import Inventory
from .errors import ProbeError
from .inventory import Source


class Prober:
    """One probe at a time; a missed one keeps the last for a while.

    Args:
        max_age_seconds: how old an inventory may get before a missed probe means "unknown".
    """

    def __init__(self, source: Source, *, max_age_seconds: float, log: Logger) -> None:
        self._source = source
        self._max_age_seconds = max_age_seconds
        self._log = log
        self._last: Inventory | None = None
        self._last_at = 0.0
        self._running: asyncio.Task[Inventory] | None = None

    @property
    def cuda_version(self) -> str | None:
        """What the driver last said it offers, such as ``12.8``; None if it was not told."""
        return self._last.cuda_version if self._last else None

    @property
    def driver_version(self) -> str | None:
        """The driver's own version, as it last said; None if it was not told."""
        return self._last.driver_version if self._last else None

    def refresh(self) -> asyncio.Task[Inventory]:
        """Begin a probe, or join the one under way."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._probe())
            # A probe that nobody waits for reports its failure in the log only.
            self._running.add_done_callback(lambda f: f.cancelled() or f.exception())
        return self._running

    async def _probe(self) -> Inventory:
        begun = asyncio.get_running_loop().time()
        try:
            inventory = await self._source.read()
        except ProbeError as error:
            self._log.warning("The GPUs could not be probed: %s", error)
            raise
        self._last, self._last_at = inventory, begun
        return inventory

    async def latest(self, max_age_seconds: float) -> Inventory:
        """An inventory at most this old, from the driver if need be.

        Raises:
            ProbeError: the driver can't be asked, and the last answer is too old to rely on.
        """
        loop = asyncio.get_running_loop()
        if self._last is not None and loop.time() - self._last_at <= max_age_seconds:
            return self._last
        try:
            return await asyncio.shield(self.refresh())
        except ProbeError:
            if self._last is not None and loop.time() - self._last_at <= self._max_age_seconds:
                return self._last
            raise
