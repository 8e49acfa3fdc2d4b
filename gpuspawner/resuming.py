"""With ``remove = False`` a container without a GPU is kept, and the next start resumes it."""

from __future__ import annotations

import asyncio

from . import names
from .admission import SETTLE_SECONDS
from .claims import Row
from .errors import EngineUnknown
from .manifest import options_text, read_image
from .options import Choice
from .time_limits import max_seconds_of
from .timing import Timing
from .waiting import Wish


class Resuming(Timing):
    """The part of the spawner that keeps containers for the next start."""

    _was_removed = False

    async def _adopt(self, row: Row) -> None:
        """Own a container found by its labels; see ``Standing``."""
        raise NotImplementedError

    @property
    def _keeps_container(self) -> bool:
        """With ``remove = False`` a server without a GPU keeps its container for the next start.

        Not one with a time limit, which counts from the making of its container.
        """
        return not self.remove and not self.devices and self.max_seconds is None

    @property
    def will_resume(self) -> bool:
        # Tells the hub to keep the API token, which is in the kept container's environment. The
        # hub asks after clear_state.
        return self._keeps_container and not self._was_removed

    async def rename(self, old_name: str, new_name: str) -> None:  # noqa: ARG002 - hub
        """Before a server gets another name: a kept container has the old one inside."""
        await self.pool.settle((self.user.name, old_name), SETTLE_SECONDS)
        for row in await self._kept():
            await self.pool.engine.remove(row.id, force=False)
        self.object_id = self.object_name = ""

    async def delete_forever(self) -> None:
        """The user or this server was deleted: a container kept for its next start goes too."""
        try:
            for row in await self._kept():
                await self.pool.remover.once(row.id, force=False)
        except EngineUnknown as error:
            self.log.warning("What %s keeps is not removed: %s", self._log_name, error)

    async def resume(self, choice: Choice, wish: Wish) -> tuple[str, int] | None:
        """Start this server's kept container again, if it is the one that was asked for.

        Only without a GPU: a container that holds a card is started once in its life.
        """
        if self.remove:
            return None
        kept = await self._kept()
        if not kept:
            return None
        image = read_image(await self.pool.engine.call("inspect_image", self.image))
        again = kept[0]
        labels = again.labels
        same = (
            len(kept) == 1
            and not choice.profile.needs_gpu
            and not labels.get(names.LABEL_DEVICES)
            and again.image_id == image.id
            and labels.get(names.LABEL_OPTIONS) == options_text(choice.options)
            and choice.profile.max_seconds is None
            and max_seconds_of(labels) is None
        )
        if not same:
            for row in kept:
                await self.pool.engine.remove(row.id, force=False)
            return None
        # It may be one too many by now, as a new one may.
        attempt = await self.pool.reserve(self.demand(choice.profile), lease=again.lease)
        try:
            return await self._start_again(again, wish)
        finally:
            self.pool.give_up(attempt, self.pool.ticket(attempt))

    async def _start_again(self, again: Row, wish: Wish) -> tuple[str, int]:
        await self._adopt(again)
        starting = self.pool.engine.connection.call("start", again.id)
        try:
            await asyncio.wrap_future(starting)
            if self.post_start_cmd:
                await self.post_start_exec()
            address: tuple[str, int] = await self.get_ip_and_port()
            wish.check()
        except BaseException:
            # It must not run on without an owner; its files are the user's, so it is not removed.
            starting.add_done_callback(lambda _: self._stop_unowned(again.id))
            self.clear_state()
            raise
        return address

    def _stop_unowned(self, container_id: str) -> None:
        """Stop a container that nobody waits for; called in whatever thread ended its start."""
        try:
            self.pool.engine.connection.call("stop", container_id)
        except RuntimeError:
            # The hub ends and takes no more work: this is one of its last threads.
            self.client.stop(container_id)

    async def _kept(self) -> list[Row]:
        listing = await self.pool.engine.listing()
        return [
            row
            for row in listing.rows
            if row.mine(self.pool.hub_id) and row.state == "exited"
            if row.labels.get(names.LABEL_USER) == self.user.name
            if row.labels.get(names.LABEL_SERVER) == self.name
        ]
