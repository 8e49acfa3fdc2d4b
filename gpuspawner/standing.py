"""A server that stands: is it alive, stop it, know it again after a restart.

Containers are found by the id this spawner stored, else by labels; never by name, since two hubs on
one engine may use the same names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from . import names
from .claims import ENDED_STATES, LIVE_STATES, Listing, Row
from .errors import EngineUnknown
from .inside_watch import Watched
from .recall import api_token, recall
from .resuming import Resuming

#: A container that looks exited must still look so in a listing begun this much later: during
#: ``docker restart`` a container is listed as exited for some 0.3 s.
EXIT_CONFIRM_SECONDS = 1.0

#: How long the hub's own "stop" waits for the engine, once for the stop and once for the removal:
#: the user is told that it is over, and it goes on.
STOP_SECONDS = 30.0

_STATE_KEY = "gpuspawner"
#: In an inspection's ``State``; an engine that lists states we don't know has these all the same.
_ALIVE = ("Running", "Paused", "Restarting")


class Standing(Resuming):
    """The part of the spawner that looks after a started server."""

    _untold = False  # adopted, but its API token is not known yet
    _stopping: asyncio.Future[bool] | None = None
    _ended: int | str | None = None

    # -- state over restarts --------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        own: dict[str, Any] = {}
        if self.last_options is not None:
            own["options"] = self.last_options
        if self.lease:
            own["lease"] = self.lease
            own["devices"] = list(self.devices)
            own["profile"] = self.profile_slug
            own["max_seconds"] = self.max_seconds
        if self.time_over[0]:
            own["time_over"] = list(self.time_over)
        if own:
            state[_STATE_KEY] = own
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        own = state.get(_STATE_KEY) or {}
        self.last_options = own.get("options")
        words, at = own.get("time_over") or ("", 0.0)
        self.time_over = (str(words), float(at))
        if self.orm_spawner is not None and self.orm_spawner.server is None:
            # Stopped, and the hub was killed before it stored that: what is left is nobody's.
            self.object_id = ""
            return
        self.lease = str(own.get("lease") or "")
        self.devices = tuple(own.get("devices") or ())
        self.profile_slug = str(own.get("profile") or "")
        self.max_seconds = own.get("max_seconds")
        if self.lease:
            self.pool.know(self.lease, self.owner)

    def clear_state(self) -> None:
        """The one place that every end of a server passes: nothing stays held behind it."""
        super().clear_state()
        if self._wish is not None:
            self._wish.withdraw()
            self._wish = None
        self.let_go()
        self._begun, self._ended = True, None
        if not (self._start_pending or self._stop_pending):
            self._forget_profile()

    def _forget_profile(self) -> None:
        """A new start begins: the last choice may not show through the next.

        The hub makes a new spawner for most starts, but not after each kind of end.
        """
        while self.before_profile:
            setattr(self, *self.before_profile.popitem())

    def let_go(self, *, stop: bool = False) -> None:
        """Own nothing any more: what was under way is given up, what was held is released.

        Args:
            stop: also stop a container that is kept for the next start.
        """
        if self._flight is not None:
            self.pool.give_up(self._flight.attempt, self._flight.ticket)
            self._flight = None
        if self.lease and self.object_id:
            if self._keeps_container:
                self.pool.forget(self.lease)
                if stop:
                    self._stop_unowned(self.object_id)
            else:
                self.pool.release(self.lease, self.object_id, after=self._stopping)
        elif self.lease:
            self.pool.forget(self.lease)
        if self.lease:
            self._was_removed = not self._keeps_container
        self.lease, self.devices, self.profile_slug = "", (), ""
        self.watched = None
        self.forget_time()
        self._untold = False
        self.object_id = ""

    # -- finding --------------------------------------------------------------------------------

    def _find(self, listing: Listing) -> Row | None:
        if self.object_id:
            return listing.by_id(self.object_id)
        if self.lease:
            return listing.by_lease(self.lease)
        return self._orphan_of_mine(listing)

    def _orphan_of_mine(self, listing: Listing) -> Row | None:
        """The single running container with this hub's, user's and server's labels.

        A hub that was killed in mid-start stored nothing of it.
        """
        wanted = {names.LABEL_USER: self.user.name, names.LABEL_SERVER: self.name}
        known = self.pool.known()
        rows = [
            row
            for row in listing.rows
            if row.mine(self.pool.hub_id) and row.state in LIVE_STATES and row.lease not in known
            # A newer one would be of another hub that has a copy of our id.
            if self.pool.is_adoptable(row)
            if all(row.labels.get(key) == value for key, value in wanted.items())
        ]
        return rows[0] if len(rows) == 1 else None

    async def _adopt(self, row: Row) -> None:
        """Own a container found by its labels: lease, cards, options and API token."""
        self.object_id = row.id
        self._recall(row)
        self.pool.know(self.lease, self.owner)
        if row.names:
            self.object_name = row.names[0].lstrip("/")
        self.log.info("Adopted container %s of %s", row.id[:12], self._log_name)
        self._untold = True
        await self._learn_token(row)

    async def _learn_token(self, row: Row) -> None:
        """Know the API token of an adopted container; without an answer, at a later poll."""
        token = api_token(await self.pool.engine.inspect(row.id))
        if self.object_id == row.id:
            self._untold = False
            if token:
                self.api_token = token

    def _recall(self, row: Row) -> None:
        """Know again what the labels tell; options only where the database has none."""
        found = recall(row)
        self.lease, self.devices, self.profile_slug = found.lease, found.devices, found.profile
        if found.options is None:
            return
        if not self.user_options:
            self._store_options(found.options)
        if self.last_options is None:
            self.last_options = found.options

    async def get_object(self) -> Mapping[str, Any] | None:
        """Inspection of this server's container, None if there is none.

        Raises:
            EngineUnknown: the engine can't be asked; that never means "gone".
        """
        return await self.pool.engine.inspect(self.object_id) if self.object_id else None

    # -- polling --------------------------------------------------------------------------------

    @cached_property
    def _notifying(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def poll_and_notify(self) -> int | str | None:
        """Poll, and have the hub clean up after a server that has ended; one at a time.

        Else a start that comes just then would meet the clean-up of the server before it.
        """
        async with self._notifying:
            status = await self.poll()
            if status is None or self._stop_pending:
                return status
            if self.pending == "spawn":
                # The hub listens only when its start is over. Told now it would stop asking, and
                # never hear of the end: the next poll tells it.
                return status
            # It answers at once now: nobody comes between the answer and what the hub does.
            again: int | str | None = await super().poll_and_notify()
            return again

    async def poll(self) -> int | str | None:
        """None while the server runs, starts, or nobody can tell; else how it ended."""
        if self._launching or self._stopping:
            return None
        if self._begun and not self.object_id and not self.lease:
            return 0  # refused or over: quick, and right also while the engine can't be asked
        if self._ended is None:
            try:
                self._ended = await self._poll()
            except EngineUnknown as error:
                self.log.warning("Can't tell whether %s runs: %s", self._log_name, error)
        return self._ended

    async def _poll(self) -> int | str | None:
        # Also where nobody opens a form after a restart: what a killed hub left is cleaned.
        self.pool.start_cleaner()
        asked_about = self._incarnation
        listing = await self.pool.engine.listing()
        self.pool.timekeeper.look(listing)
        row = self._find(listing)
        if row is not None and row.state not in LIVE_STATES | ENDED_STATES:
            await asyncio.sleep(EXIT_CONFIRM_SECONDS)
            if asked_about == self._incarnation:
                listing = await self.pool.engine.listing()
                row = self._find(listing)
        if asked_about != self._incarnation:
            return None  # stopped or started meanwhile: this answer is about the past
        if row is None or row.state in ENDED_STATES:
            return 0
        if row.ours and not self.lease:
            await self._adopt(row)
            asked_about = self._incarnation
        elif self._untold:
            await self._learn_token(row)
        elif row.ours and not (self.last_options and self.user_options):
            self._recall(row)
        if row.state in LIVE_STATES:
            if self.devices:
                self.pool.watch.polled(self.poll_interval)
            self.keep_time(row, listing)
            if row.state == "running":
                self._look_inside(row)
            await self.follow(row)
            return None
        # While a start is inside, the engine answers this only when it is over.
        inspection = await self.pool.engine.inspect(row.id)
        state = (inspection or {}).get("State") or {}
        if asked_about != self._incarnation or any(map(state.get, _ALIVE)):
            return None
        time_over = self.note_end(row.id)
        return (f"{time_over}, " if time_over else "") + (
            f"ExitCode={state.get('ExitCode')}, Error={state.get('Error')!r}, "
            f"FinishedAt={state.get('FinishedAt')}"
        )

    @property
    def _incarnation(self) -> tuple[object, ...]:
        """Changes with every start and stop."""
        return (self.object_id, self.lease, self._launching, bool(self._stopping))

    def _look_inside(self, row: Row) -> None:
        if self.watched is None or self.watched.container_id != row.id:
            self.watched = Watched(row.id, self.devices)
        self.pool.inside.poll(self.watched, self._log_name, self.poll_interval)

    # -- stopping -------------------------------------------------------------------------------

    async def stop(self, now: bool = False) -> None:  # noqa: ARG002 - the hub's signature
        """Stop the server and remove its container.

        If the engine can't be asked, the removal is tried until it can: the user's "stop" holds.
        """
        if not self.object_id:
            self.clear_state()
            return
        container_id, lease = self.object_id, self.lease
        self.log.info("Stopping %s (container %s)", self._log_name, container_id[:12])
        keeps = self._keeps_container
        self._stopping = stopping = self.pool.background(
            self.pool.remover.stop(container_id, until_stopped=keeps)
        )
        try:
            # It goes on however this ends: nothing is removed before it was answered.
            answered, _ = await asyncio.wait([stopping], timeout=STOP_SECONDS)
            if not answered:
                self.log.warning("Stopping %s: no answer yet, it goes on", container_id[:12])
            self.clear_state()
        finally:
            self._stopping = None
        if answered and stopping.result():
            await self.pool.released(lease, timeout_seconds=STOP_SECONDS)
