"""What an earlier hub process left behind: the cleaner's rounds, and what a new spawn removes.

Which containers may go is decided in :mod:`gpuspawner.cleaning`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from . import names
from .claims import LIVE_STATES, Listing, Row
from .cleaner import Cleaner
from .cleaning import Ownership
from .engine import Engine
from .pool_ends import PoolEnds, still_there
from .timekeeper import Timekeeper

#: How long a new spawn waits for the removal of what its server left.
REMOVAL_SECONDS = 10.0


class PoolLeftovers(PoolEnds):
    """The part of the pool that removes containers of this hub that nobody owns any more.

    Args:
        hub_id: random id of this hub.
        in_database: tells the container ids that the hub's database names.
        keep_ended: True if ended containers are wanted for a restart (``remove = False``).
    """

    def __init__(
        self,
        engine: Engine,
        hub_id: str,
        in_database: Callable[[], Collection[str]] = frozenset,
        *,
        keep_ended: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(engine, **kwargs)
        self.hub_id = hub_id
        self._in_database = in_database
        self._keep_ended = keep_ended
        self._cleaning: asyncio.Task[None] | None = None
        self.timekeeper = Timekeeper(hub_id, self.remover, self.log, self._spawn)
        self.cleaner = Cleaner(
            engine,
            self.remover,
            self._ownership,
            self.known,
            self.log,
            created_grace_seconds=self.created_grace_seconds,
            orphan_grace_seconds=self.orphan_grace_seconds,
            listed=self.timekeeper.look,
        )

    # -- before a new spawn -----------------------------------------------------------------------

    async def remove_leftovers(self, listing: Listing, user: str, server: str) -> bool:
        """Remove what an earlier hub process left of a server; True if there was something.

        A removal that hangs is not waited for any longer than :data:`REMOVAL_SECONDS`: it goes on,
        and until its end the container is counted.

        Raises:
            EngineUnknown: something of it runs on.
        """
        known = self.known()
        rows = [
            row
            for row in listing.rows
            if row.lease not in known and self._is_leftover(row, user, server)
        ]
        for row in rows:
            self.log.warning(
                "Removing container %s, left over of server %r of user %s",
                row.id[:12],
                server,
                user,
            )
        removals = {row.id: asyncio.ensure_future(self.remover.once(row.id)) for row in rows}
        if removals:
            await asyncio.wait(removals.values(), timeout=REMOVAL_SECONDS)
        gone = {one for one, removal in removals.items() if removal.done() and removal.result()}
        if live := [r.id for r in rows if r.state in LIVE_STATES and r.id not in gone]:
            still_there(live)
        return bool(rows)

    def _is_leftover(self, row: Row, user: str, server: str) -> bool:
        """Of this server, from before this process, and not kept for a restart."""
        labels = row.labels
        # What is newer than this process is another hub's with our id: the cleaner's business.
        if not row.mine(self.hub_id) or not self.is_earlier(row):
            return False
        if (labels.get(names.LABEL_USER), labels.get(names.LABEL_SERVER)) != (user, server):
            return False
        return row.state != "exited" or not self._keep_ended

    def is_earlier(self, row: Row) -> bool:
        """True if a container was there before this process could have made it."""
        return row.id in self._earlier

    def is_adoptable(self, row: Row) -> bool:
        """True if a server of this hub may take a container for its own."""
        return self.is_earlier(row) and not self.cleaner.is_stopping(row.id)

    @property
    def _earlier(self) -> frozenset[str]:
        """Ids in this process's first listing."""
        return self.engine.sightings.first or frozenset()

    # -- the cleaner ----------------------------------------------------------------------------

    def start_cleaner(self) -> None:
        """Begin the cleaner's rounds, once."""
        if self._cleaning is None:
            self._cleaning = self._spawn(self.cleaner.run(self.clean_interval_seconds))

    def _ownership(self, listing: Listing, before: frozenset[str]) -> Ownership:
        known = self.known() | before
        strange = any(row.mine(self.hub_id) and row.lease not in known for row in listing.rows)
        return Ownership(
            hub_id=self.hub_id,
            known=known,
            # A hub has thousands of users: its database is asked only if there is a question.
            in_database=self._in_database() if strange else frozenset(),
            earlier=self._earlier,
            watching_seconds=listing.steady - self.engine.sightings.since,
            keep_ended=self._keep_ended,
        )
