"""Carries out what :mod:`gpuspawner.cleaning` decides, round after round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import Logger

from .claims import Listing
from .cleaning import Leftover, Ownership, leftovers
from .engine import Engine
from .errors import EngineUnknown
from .removal import Remover


class Cleaner:
    """Removes containers of this hub that nobody owns any more.

    Args:
        remover: removes them, each once at a time.
        ownership: what this process knows, given the listing and what was known before it.
        known: the leases that this process knows now.
        listed: is shown the listing of every round.
    """

    def __init__(
        self,
        engine: Engine,
        remover: Remover,
        ownership: Callable[[Listing, frozenset[str]], Ownership],
        known: Callable[[], frozenset[str]],
        log: Logger,
        *,
        created_grace_seconds: float,
        orphan_grace_seconds: float,
        listed: Callable[[Listing], None] | None = None,
    ) -> None:
        self._engine = engine
        self._remover = remover
        self._ownership = ownership
        self._known = known
        self._log = log
        self._created_grace_seconds = created_grace_seconds
        self._orphan_grace_seconds = orphan_grace_seconds
        self._listed = listed
        self._alarmed: set[str] = set()
        self._removals: dict[str, asyncio.Task[bool]] = {}
        self._stopping: set[str] = set()

    async def run(self, interval_seconds: float) -> None:
        """Rounds for ever."""
        while True:
            try:
                await self.clean()
            except EngineUnknown as error:
                self._log.warning("The cleaner can't look: %s", error)
            except Exception:  # noqa: BLE001 - the cleaner must outlive any fault
                # For ever: a fault, say of the hub's database, costs one round only.
                self._log.exception("A round of the cleaner failed")
            await asyncio.sleep(interval_seconds)

    async def clean(self) -> None:
        """One round of the cleaner. What it begins to remove may take longer than the round.

        Raises:
            EngineUnknown: the engine can't be asked.
        """
        # A container may be listed and then end, and its lease be forgotten, before the answer is
        # read: what was known before is known still.
        before = self._known()
        listing = await self._engine.listing()
        if self._listed is not None:
            self._listed(listing)
        cleaning = leftovers(
            listing,
            self._ownership(listing, before),
            created_grace_seconds=self._created_grace_seconds,
            orphan_grace_seconds=self._orphan_grace_seconds,
        )
        for row in cleaning.alarms:
            if row.id not in self._alarmed:
                self._alarmed.add(row.id)
                self._log.critical(
                    "Container %s carries this hub's id, but this hub did not start it: another "
                    "hub has a copy of the file of GPUPool.hub_id_file. Give each its own.",
                    row.id[:12],
                )
        for leftover in cleaning.remove:
            self._remove(leftover)

    def _remove(self, leftover: Leftover) -> None:
        """Begin a removal: one that hangs must hold up neither the rounds nor the others."""
        container_id = leftover.row.id
        if container_id in self._removals:
            return
        self._log.warning("Cleaning container %s (%s)", container_id[:12], leftover.why)
        task = asyncio.ensure_future(self._remover.once(container_id, force=leftover.force))
        self._removals[container_id] = task
        if leftover.force:
            self._stopping.add(container_id)
        task.add_done_callback(lambda _: self._removed(container_id))

    def _removed(self, container_id: str) -> None:
        del self._removals[container_id]
        self._stopping.discard(container_id)

    def is_stopping(self, container_id: str) -> bool:
        """True while it is being removed whether it runs or not: nobody may adopt it any more."""
        return container_id in self._stopping
