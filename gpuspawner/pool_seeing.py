"""What the pool sees: who holds what, how the cards are, and all that a decision is made from.

The engine and the driver hold the truth and are asked anew; nothing here changes what they hold.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Collection, Iterable, Mapping
from typing import Any

from .bookings import parse_bookings, parse_reserved
from .cards import holdings, see_cards
from .claims import Claims, Row, Survey, Times, read_claims
from .demand import Scene
from .departures import Departures, conditions_now
from .devices import Inventory
from .errors import ProbeError
from .health import Limits, Look
from .inside_watch import InsideWatch
from .inventory import source_from_config
from .keeping import Picked, pick
from .limits import Held
from .local_time import local_now
from .placement import Policies
from .pool_leftovers import PoolLeftovers
from .prober import Prober
from .proof import Proof
from .request import Card
from .topology import topology_of
from .view import View
from .watch import Watch


class PoolSeeing(PoolLeftovers):
    """The part of the pool that looks at engine and driver; see its own parts for the arguments."""

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
