"""Brings to its end what has begun: attempts given up, servers that are over.

Nothing here waits for the engine on behalf of a user. A reservation, and the knowledge of a lease,
stay until the engine has answered for the container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NoReturn

from . import messages
from .attempts import Attempt, Attempts
from .calls import Ending, Ticket
from .claims import ENDED_STATES
from .engine import Engine
from .errors import EngineUnknown
from .pool_traits import PoolTraits
from .removal import STUCK_SECONDS, Remover
from .states import State
from .waiting import happens

#: How often the list is searched for the container of a create that had no answer.
FOLLOW_SECONDS = 1.0


def still_there(ids: Iterable[str]) -> NoReturn:
    """Refuse a start for what its server had before.

    Raises:
        EngineUnknown: the removal of these containers has no answer, so they may run.
    """
    raise EngineUnknown(
        f"container(s) {', '.join(one[:12] for one in ids)} of this server are not gone yet; their "
        "removal is tried again. If this lasts, look at the engine's log",
        user_message=messages.still_stopping(),
    )


#: Tells (user, server) as the hub names them now.
Owner = Callable[[], tuple[str, str]]


class PoolEnds(PoolTraits):
    """The part of the pool that keeps attempts and leases until they have ended."""

    def __init__(self, engine: Engine, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.engine = engine
        self.attempts = Attempts()
        self._by_ticket: dict[str, Attempt] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self._stuck: dict[str, asyncio.TimerHandle] = {}
        self._held: dict[str, Owner | None] = {}
        self._releases: dict[str, asyncio.Task[None]] = {}
        self._released = 0  # how many releases are over
        self._leaving: dict[str, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.remover = Remover(engine, self.log)

    # -- attempts -------------------------------------------------------------------------------

    def ticket(self, attempt: Attempt) -> Ticket:
        """The ticket for an attempt's calls to the engine."""
        self._loop = asyncio.get_running_loop()
        self._by_ticket[attempt.lease] = attempt
        return Ticket(self.engine, attempt.lease, self._ticket_ended)

    def hold(self, attempt: Attempt, ticket: Ticket, owner: Owner | None = None) -> None:
        """The server runs: from here its container alone is the lease.

        Args:
            owner: tells whose it is whenever asked; without it the container's labels do.
        """
        ticket.keep()
        self._held[attempt.lease] = owner
        self._step(attempt, State.HELD)

    def give_up(self, attempt: Attempt, ticket: Ticket, *, force: bool = True) -> None:
        """End an attempt that did not succeed; safe at any point, never waits.

        Its reservation stays until the engine has answered for its container.
        """
        if attempt.state in (State.HELD, State.FREE, State.RELEASING):
            return
        if attempt.state is State.RESERVED:
            ticket.keep()
            self._step(attempt, State.FREE)
            return
        self._step(attempt, State.RELEASING)
        self._stuck[attempt.lease] = asyncio.get_running_loop().call_later(
            STUCK_SECONDS, self._tell_stuck, attempt
        )
        ticket.abandon(force=force)

    def _tell_stuck(self, attempt: Attempt) -> None:
        user, server = attempt.owner
        self.log.error(
            "The engine has not answered for %d s for a start of server %r of user %s that was "
            "given up; its GPU stays reserved until it has. See that the engine works",
            STUCK_SECONDS,
            server,
            user,
        )

    def _unstuck(self, attempt: Attempt) -> None:
        telling = self._stuck.pop(attempt.lease, None)
        if telling is not None:
            telling.cancel()

    async def ended(self, attempt: Attempt, timeout_seconds: float) -> bool:
        """Wait until the engine has answered for an attempt given up; False if it takes longer."""
        event = self._ends.get(attempt.lease)
        if event is None:
            return True
        return await happens(event, timeout_seconds)

    def _step(self, attempt: Attempt, state: State) -> None:
        self.attempts.move(attempt, state)
        if state in (State.HELD, State.FREE):
            self._unstuck(attempt)
            self._by_ticket.pop(attempt.lease, None)
            event = self._ends.pop(attempt.lease, None)
            if event:
                event.set()

    def _ticket_ended(self, ticket: Ticket, ending: Ending) -> None:
        """Called in an engine thread; carries the news to the event loop, if there still is one."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(self._attempt_left, ticket, ending)
        except RuntimeError:
            # The loop closed in between: the process ends, and the next one's cleaner takes over.
            return

    def _attempt_left(self, ticket: Ticket, ending: Ending) -> None:
        attempt = self._by_ticket[ticket.lease]
        if ending is Ending.GONE:
            self._step(attempt, State.FREE)
        elif ending is Ending.STAYS:
            self._unstuck(attempt)  # from here the remover tells
            self._spawn(self._finish(attempt, ticket.container_id))
        else:
            self._spawn(self._follow(attempt))

    async def _finish(self, attempt: Attempt, container_id: str) -> None:
        await self.remover.until_gone(container_id)
        self._step(attempt, State.FREE)

    async def _follow(self, attempt: Attempt) -> None:
        """A call had no answer: its container may still come. Remove it, or wait the grace."""
        unseen_since: float | None = None
        removed = False
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                listing = await self.engine.listing()
            except EngineUnknown:
                unseen_since = None
                continue
            except Exception:  # who gives up here keeps a GPU for ever
                self.log.exception("Looking for the container of a lost create failed")
                unseen_since = None
                continue
            row = listing.by_lease(attempt.lease)
            if row is not None and row.state not in ENDED_STATES:
                # While the engine is still creating it, a removal answers 404 though it is listed:
                # only its absence from a later listing counts.
                removed = await self.remover.once(row.id)
                unseen_since = None
                continue
            unseen_since = listing.steady if unseen_since is None else unseen_since
            if removed or listing.steady - unseen_since > self.created_grace_seconds:
                self._step(attempt, State.FREE)
                return

    # -- releasing what was held ----------------------------------------------------------------

    def know(self, lease: str, owner: Owner | None = None) -> None:
        """A server of this hub holds this lease (a restart found it in the database)."""
        self._held[lease] = owner

    def owners(self) -> dict[str, tuple[str, str]]:
        """(user, server) of the leases held, as the hub names them now."""
        return {lease: owner() for lease, owner in self._held.items() if owner is not None}

    def release(
        self, lease: str, container_id: str, *, after: asyncio.Future[bool] | None = None
    ) -> None:
        """A server is over: remove its container, however long that takes. Never waits.

        Args:
            after: a stop that is under way; a removal would cut it short.
        """
        if lease in self._releases:
            return
        owner = self._held.pop(lease, None)
        if owner is not None:
            self._leaving[lease] = owner()
        self._releases[lease] = self._spawn(self._release(lease, container_id, after))

    async def released(self, lease: str, timeout_seconds: float) -> bool:
        """Wait for a release; False if it takes longer (it goes on)."""
        task = self._releases.get(lease)
        if task is None:
            return True
        done, _ = await asyncio.wait([task], timeout=timeout_seconds)
        return bool(done)

    def forget(self, lease: str) -> None:
        """A server is over and its container is gone, or is kept for a restart."""
        self._held.pop(lease, None)

    async def _release(
        self, lease: str, container_id: str, after: asyncio.Future[bool] | None
    ) -> None:
        if after is not None:
            await asyncio.wait([after])
        await self.remover.until_gone(container_id)
        del self._releases[lease]
        self._released += 1
        self._leaving.pop(lease, None)

    async def settle(self, owner: tuple[str, str], timeout_seconds: float) -> None:
        """Wait until nothing that a server had can run any more: two of it would share its files.

        Args:
            owner: (user, server).

        Raises:
            EngineUnknown: something of it is still there.
        """
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + timeout_seconds, 0.02
        # What is not listed was not started, and will not be.
        while leases := self._ending(owner):
            rows = [row for row in (await self.engine.listing()).rows if row.lease in leases]
            there = [row.id for row in rows if row.state not in ENDED_STATES]
            if not there:
                return
            if loop.time() >= deadline:
                still_there(there)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.25)

    def _ending(self, owner: tuple[str, str]) -> frozenset[str]:
        attempts = {attempt.lease for attempt in self.attempts if attempt.owner == owner}
        return frozenset(attempts | {lease for lease, o in self._leaving.items() if o == owner})

    def known(self) -> frozenset[str]:
        """Leases that this process knows: attempts, running servers, removals under way."""
        return frozenset(self.attempts.leases()) | frozenset(self._held) | frozenset(self._releases)

    def background(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run beside everything else; a failure is logged."""
        return self._spawn(work)

    def _spawn(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log.error("A task of the GPU pool failed", exc_info=error)
