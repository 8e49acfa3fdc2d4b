"""Keeps the newest look at the cards at hand, so that a decision seldom waits for the driver.

A look is a probe of the driver with a listing of the engine before it and one after it; what all
looks together say of the cards' health is kept here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from logging import Logger
from typing import Protocol

from .attribution import attributed, may_be_at_work, remembered, unowned
from .claims import Claims, Survey
from .devices import Inventory
from .errors import EngineUnknown, ProbeError
from .health import Health, Limits, Look, Seen, observe, recalled
from .inventory import Source


class Listings(Protocol):
    """What a look asks of the engine."""

    def survey(self) -> Awaitable[Survey]:
        """A listing begun after this call; raises EngineUnknown."""
        ...

    def claims(self, survey: Survey, inventory: Inventory) -> Claims:
        """Who holds what in it."""
        ...

    def processes_of(self, container_id: str) -> Awaitable[Collection[int]]:
        """Host PIDs of a container; empty where the engine does not tell."""
        ...

    def lately(self) -> Mapping[str, frozenset[str]]:
        """Ids of the containers that other listings showed at work since the last look, by UUID."""
        ...


class Prober:
    """One look at a time; a missed one keeps the last for a while.

    Args:
        max_age_seconds: how old a look may get before a missed one means "unknown".
        looked: told of each look, with the health that follows from it.
    """

    def __init__(
        self,
        source: Source,
        listings: Listings,
        *,
        limits: Limits,
        max_age_seconds: float,
        log: Logger,
        looked: Callable[[Look], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._listings = listings
        self._limits = limits
        self._max_age_seconds = max_age_seconds
        self._log = log
        self._looked = looked
        self._running: asyncio.Task[Inventory] | None = None
        self._complaint = ""
        self.health = Health()

    @property
    def inventory(self) -> Inventory:
        """Of the last look."""
        return self.health.inventory

    @property
    def cuda_version(self) -> str | None:
        """What the driver last said it offers, such as ``12.8``; None if it was not told."""
        return self.inventory.cuda_version

    @property
    def driver_version(self) -> str | None:
        """The driver's own version, as it last said; None if it was not told."""
        return self.inventory.driver_version

    def refresh(self) -> asyncio.Task[Inventory]:
        """Begin a look, or join the one under way."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._look())
            # A look that nobody waits for reports its failure in the log only.
            self._running.add_done_callback(lambda f: f.cancelled() or f.exception())
        return self._running

    async def renewed(self) -> Inventory:
        """A look that began after this call.

        Raises:
            ProbeError, EngineUnknown: there is none to be had.
        """
        if self._running is not None and not self._running.done():
            await asyncio.wait([self._running])
        return await asyncio.shield(self.refresh())

    async def latest(self, max_age_seconds: float) -> Inventory:
        """An inventory at most this old, from the driver if need be.

        Raises:
            ProbeError, EngineUnknown: there is none to be had, and the last is too old to rely on.
        """
        if self._is_newer_than(max_age_seconds):
            return self.inventory
        try:
            return await asyncio.shield(self.refresh())
        except (ProbeError, EngineUnknown):
            if self._is_newer_than(self._max_age_seconds):
                return self.inventory
            raise

    def _is_newer_than(self, age_seconds: float) -> bool:
        begun = self.health.begun
        seen = begun > float("-inf")
        return seen and asyncio.get_running_loop().time() - begun <= age_seconds

    async def _look(self) -> Inventory:
        begun = asyncio.get_running_loop().time()
        before = await self._listings.survey()
        inventory = await self._owned(recalled(await self._read(), self.health), before)
        after = await self._listings.survey()
        claims = self._listings.claims
        look = Look(
            begun,
            inventory,
            Seen(before, claims(before, inventory)),
            Seen(after, claims(after, inventory)),
        )
        self.health = observe(self.health, look, self._limits, self._listings.lately())
        self._looked(look)
        return inventory

    async def _read(self) -> Inventory:
        try:
            inventory = await self._source.read()
        except ProbeError as error:
            # Told once while it lasts, not at every try.
            if str(error) != self._complaint:
                self._complaint = str(error)
                self._log.warning("The GPUs could not be probed: %s", error)
            raise
        if self._complaint:
            self._complaint = ""
            self._log.info("The GPUs can be probed again")
        return inventory

    async def _owned(self, inventory: Inventory, before: Survey) -> Inventory:
        """Find out whose the processes are that the probe could not tell."""
        inventory = remembered(inventory, self.inventory)
        if not unowned(inventory):
            return inventory
        asked = sorted(may_be_at_work(before))
        answers = await asyncio.gather(*(self._listings.processes_of(one) for one in asked))
        return attributed(inventory, dict(zip(asked, answers, strict=True)))
