"""The cards of the hub's engine: placing, reserving, looking, releasing, cleaning.

The engine and the driver hold the truth; the pool holds only the short list of attempts in flight
in this process. All of it runs on the hub's event loop. Between reading a listing and adding the
reservation there is no ``await``, which is all the locking that one event loop needs: no lock is
held across a call to engine or driver.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterable
from fractions import Fraction

from . import messages
from .attempts import Attempt
from .claims import Row
from .demand import Demand, cards_for, decide
from .errors import EngineUnknown, GPUSpawnerError
from .limits import OverLimit, check_limits
from .pool_seeing import PoolSeeing
from .request import Card, Placement, Shortage
from .states import State
from .verdict import Verdict, judge, second_look
from .view import View

#: A created container waits this long for later rivals to go before it yields.
WAIT_SECONDS = 15.0


class NoRoom(GPUSpawnerError):
    """No cards for the request; ``shortage`` has the numbers."""

    def __init__(self, shortage: Shortage, cards: Collection[Card]) -> None:
        super().__init__(f"no room for {shortage.request}: {shortage}")
        self.shortage = shortage
        self.cards = tuple(cards)


class OverQuota(GPUSpawnerError):
    """The start would exceed a limit; ``over`` tells which, and what counts towards it."""

    def __init__(self, over: OverLimit) -> None:
        super().__init__(over.for_admins)
        self.over = over


class GPUPool(PoolSeeing):
    """The GPUs of the hub's container engine; see the parts for the arguments."""

    # -- placing and reserving ------------------------------------------------------------------

    async def check(self, demand: Demand) -> None:
        """Admission: raise what :meth:`reserve` would raise now, reserving nothing.

        What an earlier hub process left of this server is removed first. A probe is begun, so that
        a later :meth:`reserve` need not wait for one.

        Raises:
            NoRoom, OverQuota, EngineUnknown, ProbeError: as :meth:`reserve`.
        """
        if not demand.needs_gpu:
            listing = await self.engine.listing()
            if await self.remove_leftovers(listing, demand.user, demand.server):
                listing = await self.engine.listing()
            self._within_limits(demand, listing.rows)
            return
        self.prober.refresh()
        view = await self.view()
        if await self.remove_leftovers(view.survey.listing, demand.user, demand.server):
            view = await self.view()
        try:
            self._decide(demand, view)
        except NoRoom:
            if not view.outdated:
                raise
            self._decide(demand, await self.renewed_view(view))

    async def reserve(self, demand: Demand, *, lease: str = "") -> Attempt:
        """Choose cards and reserve them.

        Args:
            lease: of a container without a GPU that is to be started again; else a new one.

        Returns:
            The attempt, which the caller must bring to its end.

        Raises:
            NoRoom, OverQuota: not now.
            EngineUnknown, ProbeError: unknown is busy.
        """
        chosen = await self._choose(demand)
        attempt = Attempt(
            lease=lease or secrets.token_hex(16),
            devices=chosen.devices,
            share=chosen.share,
            owner=(demand.user, demand.server),
            memory_mib=chosen.memory_mib,
            profile=demand.profile,
        )
        self.attempts.add(attempt)
        self._ends[attempt.lease] = asyncio.Event()
        return attempt

    async def _choose(self, demand: Demand) -> Placement:
        """Decide by a listing that may be used for it; no ``await`` follows the decision."""
        if not demand.needs_gpu:
            if demand.limits:
                await self._count(demand)
            return Placement((), Fraction(1))
        renewed = False
        while True:
            ended, counted = self.attempts.ended, self._counted
            view = await self.view(probe_age_seconds=5.0)
            if ended != self.attempts.ended:
                # The listing may lack the container of an attempt that has ended since.
                continue
            try:
                return self._decide(demand, view)
            except NoRoom:
                if renewed or not view.outdated:
                    raise
            except OverQuota:
                if counted == self._counted:
                    raise
                continue
            renewed = True
            await self.renewed_view(view)

    @property
    def _counted(self) -> tuple[int, int]:
        """Changes whenever a listing begun before may lack a server, or have one too many."""
        return (self.attempts.over, self._released)

    async def _count(self, demand: Demand) -> None:
        """The same for a server without a GPU, whose number may be limited too."""
        while True:
            over, counted = self.attempts.over, self._counted
            rows = (await self.engine.listing()).rows
            if over != self.attempts.over:
                continue
            try:
                return self._within_limits(demand, rows)
            except OverQuota:
                if counted == self._counted:
                    raise

    def _decide(self, demand: Demand, view: View) -> Placement:
        scene = self.scene(view)
        found = decide(demand, scene)
        if isinstance(found, OverLimit):
            raise OverQuota(found)
        if isinstance(found, Shortage):
            raise NoRoom(found, cards_for(demand, scene))
        return found

    def _within_limits(self, demand: Demand, rows: Iterable[Row]) -> None:
        """As :meth:`_decide`, where no card is asked for."""
        over = check_limits(demand.limits, self._holdings(rows), Fraction(0), user=demand.user)
        if over is not None:
            raise OverQuota(over)

    # -- looks around the start -------------------------------------------------------------------

    async def look(self, attempt: Attempt, container_id: str) -> bool:
        """After create: True if the container may start, False if it must yield.

        Raises:
            EngineUnknown: no listing could be had in time, or the container was removed by others.
        """
        self.attempts.move(attempt, State.CLAIMED)
        if not attempt.devices:
            return True
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + WAIT_SECONDS, 0.02
        while True:
            verdict = await self._listed_verdict(container_id, last=loop.time() >= deadline)
            if verdict is Verdict.START:
                return True
            if verdict is Verdict.YIELD or loop.time() >= deadline:
                return False
            if attempt.state is State.CLAIMED:
                self.attempts.move(attempt, State.WAITING)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.25)

    async def _listed_verdict(self, container_id: str, *, last: bool) -> Verdict:
        try:
            survey = await self.survey()
        except EngineUnknown:
            if last:
                raise
            return Verdict.WAIT  # a failed listing is no verdict
        inventory = await self.prober.latest(self.probe_max_age_seconds)
        claims = self._claims_now(survey, inventory).claims
        mine = next((c for c in claims if c.row.id == container_id), None)
        if mine is None:
            if survey.listing.by_id(container_id) is None:
                raise EngineUnknown(
                    f"container {container_id[:12]} was removed by somebody else before it started",
                    user_message=messages.start_failed(),
                )
            # Nobody would know it as ours. Once is a tag that moved; each time is a strange engine.
            self.log.warning(
                "Container %s is listed with another image id than the engine told for its image; "
                "trying once more",
                container_id[:12],
            )
            return Verdict.YIELD
        return judge(mine, claims, inventory)

    async def look_again(self, attempt: Attempt, container_id: str) -> bool:
        """Right after start: False if an outsider started on the same card.

        Raises:
            EngineUnknown: no listing could be had within the wait.
        """
        if not attempt.devices:
            return True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_SECONDS
        while True:
            try:
                survey = await self.survey()
                break
            except EngineUnknown:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(0.25)
        inventory = await self.prober.latest(self.probe_max_age_seconds)
        claims = self._claims_now(survey, inventory).claims
        mine = next((c for c in claims if c.row.id == container_id), None)
        return mine is None or second_look(mine, claims, inventory)
