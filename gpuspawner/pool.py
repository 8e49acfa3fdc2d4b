"""The cards of the hub's engine: placing, reserving, looking, releasing, cleaning.

The engine and the driver hold the truth; the pool holds only the short list of attempts in flight
in this process. All of it runs on the hub's event loop. Between reading a listing and adding the
reservation there is no ``await``, which is all the locking that one event loop needs: no lock is
held across a call to engine or driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Collection, Iterable, Mapping
from fractions import Fraction
from typing import Any

from . import messages
from .attempts import Attempt
from .bookings import parse_bookings, parse_reserved
from .cards import holdings, see_cards
from .claims import Claims, Row, Survey, Times, read_claims
from .demand import Demand, Scene, cards_for, decide
from .departures import Departures, conditions_now
from .devices import Inventory
from .errors import EngineUnknown, GPUSpawnerError, ProbeError
from .health import Limits, Look
from .inside_watch import InsideWatch
from .inventory import source_from_config
from .keeping import Picked, pick
from .limits import Held, OverLimit, check_limits
from .local_time import local_now
from .placement import Policies
from .pool_leftovers import PoolLeftovers
from .prober import Prober
from .proof import Proof
from .request import Card, Placement, Shortage
from .states import State
from .topology import topology_of
from .verdict import Verdict, judge, second_look
from .view import View
from .watch import Watch

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


class GPUPool(PoolLeftovers):
    """The GPUs of the hub's container engine; see the parts for the arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: What was dropped of the admin's config and told in the log.
        self.noted: set[str] = set()
        source = source_from_config(self.inventory)
        self.log.info("The list of GPUs comes from %s", source.description)
        self._keeps = (*parse_reserved(self.reserved_for), *parse_bookings(self.bookings))
        self._departures = Departures()
        self.prober = Prober(
            source,
            self,
            limits=Limits(self.foreign_memory_mib, self.clean_probes),
            max_age_seconds=self.probe_max_age_seconds,
            log=self.log,
            looked=self._looked,
        )
        self.watch = Watch(self.prober, self.log, self._spawn)
        self.proof = Proof(self.engine, self.prober, self.log, looks=self.look_inside)
        self.inside = InsideWatch(self.proof, self.log, self._spawn)

    # -- seeing ---------------------------------------------------------------------------------

    @property
    def times(self) -> Times:
        return Times(self.created_grace_seconds, self.release_delay_seconds)

    async def view(self, *, probe_age_seconds: float | None = None) -> View:
        """Ask the engine, and the driver if its last answer is older than ``probe_age_seconds``.

        Raises:
            EngineUnknown, ProbeError: one of them can't be asked.
        """
        age = self.probe_max_age_seconds if probe_age_seconds is None else probe_age_seconds
        await self.prober.latest(age)
        survey = await self.survey()
        # The newest there is by now; without an await from here on, all parts fit together.
        health = self.prober.health
        claims = self._claims_now(survey, health.inventory)
        left = self._departures.left(claims.claims, health.inventory, health.begun)
        conditions = conditions_now(health, left)
        return View(health.inventory, survey, claims, health.gone, conditions)

    async def renewed_view(self, view: View) -> View:
        """A view after a new look, where that may free a card; else the same.

        Raises:
            EngineUnknown: the engine can't be asked.
        """
        if not view.outdated:
            return view
        with contextlib.suppress(ProbeError):  # told in the log; the card stays as it was
            await self.prober.renewed()
        return await self.view()

    async def survey(self) -> Survey:
        return await self.engine.survey()

    def claims(self, survey: Survey, inventory: Inventory) -> Claims:
        """Who holds what in a survey."""
        return read_claims(survey, inventory, self.hub_id, self.times)

    def _claims_now(self, survey: Survey, inventory: Inventory) -> Claims:
        """The same, of a survey that was answered just now."""
        claims = self.claims(survey, inventory)
        self._departures.note(claims.claims, asyncio.get_running_loop().time())
        return claims

    def processes_of(self, container_id: str) -> Awaitable[Collection[int]]:
        """Host PIDs of a container; empty where the engine does not tell."""
        return self.engine.processes_of(container_id)

    def lately(self) -> Mapping[str, frozenset[str]]:
        """Ids of the containers that were listed at work since the last look, by UUID."""
        return self._departures.lately()

    def _looked(self, look: Look) -> None:
        for seen in (look.before, look.after):
            self._departures.note(seen.claims.claims, look.begun)
        self.watch.looked(look)

    def cards(self, view: View) -> tuple[Card, ...]:
        """The cards as they stand now, with this process's reservations."""
        return see_cards(
            view.inventory,
            view.claims.claims,
            self.attempts,
            self.hub_id,
            conditions=view.conditions,
            gone=view.gone,
        )

    def scene(self, view: View) -> Scene:
        """All that a decision is made from, as it stands in that view."""
        rows = view.survey.listing.rows
        cards = self.cards(view)
        return Scene(
            cards=cards,
            topology=topology_of(view.inventory),
            policies=Policies(self.policy, self.share_policy),
            held=self._holdings(rows),
            now=local_now(),
            picked=self._picked(cards),
        )

    def _picked(self, cards: Collection[Card]) -> Picked:
        """What is kept for groups; a name in the configuration that no card has is told once."""
        picked = pick(self._keeps, tuple(cards))
        for pattern in picked.unknown:
            if pattern not in self.noted:
                self.noted.add(pattern)
                self.log.warning(
                    "GPUPool.reserved_for or GPUPool.bookings keeps %r, but no GPU has that UUID "
                    "or model; 'gpuspawner devices' shows what there is",
                    pattern,
                )
        return picked

    def _holdings(self, rows: Iterable[Row]) -> tuple[Held, ...]:
        return holdings(rows, self.hub_id, self.attempts, self._releases, self.owners())

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
