"""What an earlier hub process left behind: the cleaner's rounds, and what a new spawn removes.

Which containers may go is decided in :mod:`gpuspawner.cleaning`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from typing import Any

from . import names
from .claims import LIVE_STATES, Listing, Row
from .cleaner import Cleaner
from .cleaning import Ownership
from .engine import Engine
from .pool_ends import PoolEnds


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
        self._begun = math.inf
        self._cleaning: asyncio.Task[None] | None = None
        self.cleaner = Cleaner(
            engine,
            self._ownership,
            self.known,
            self.log,
            created_grace_seconds=self.created_grace_seconds,
            orphan_grace_seconds=self.orphan_grace_seconds,
        )

    # -- before a new spawn -----------------------------------------------------------------------

    async def remove_leftovers(self, listing: Listing, user: str, server: str) -> bool:
        """Remove what an earlier hub process left of a server; True if there was something."""
        self.begin(listing)
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
            await self.remover.once(row.id)
        return bool(rows)

    def _is_leftover(self, row: Row, user: str, server: str) -> bool:
        """Of this server, and neither kept for a restart nor another hub's with our id."""
        labels = row.labels
        if not row.mine(self.hub_id):
            return False
        if (labels.get(names.LABEL_USER), labels.get(names.LABEL_SERVER)) != (user, server):
            return False
        if row.state == "exited":
            return not self._keep_ended
        # A running one that is newer than this process: the cleaner raises the alarm.
        return row.state not in LIVE_STATES or row.created < self._begun

    # -- the cleaner ----------------------------------------------------------------------------

    def start_cleaner(self) -> None:
        """Begin the cleaner's rounds, once."""
        if self._cleaning is None:
            self._cleaning = self._spawn(self.cleaner.run(self.clean_interval_seconds))

    async def clean(self) -> None:
        """One round of the cleaner.

        Raises:
            EngineUnknown: the engine can't be asked.
        """
        await self.cleaner.clean()

    def begin(self, listing: Listing) -> None:
        """Remember the first listing's time: what is older was there before this process."""
        self._begun = min(self._begun, listing.at)

    def _ownership(self, listing: Listing, before: frozenset[str]) -> Ownership:
        self.begin(listing)
        known = self.known() | before
        strange = any(row.mine(self.hub_id) and row.lease not in known for row in listing.rows)
        return Ownership(
            hub_id=self.hub_id,
            known=known,
            # A hub has thousands of users: its database is asked only if there is a question.
            in_database=self._in_database() if strange else frozenset(),
            since=self._begun,
            keep_ended=self._keep_ended,
        )
