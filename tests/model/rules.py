"""What the hubs of the model go by: the product's deciding functions, and how they are driven.

A mutant is a copy of :data:`RULES` with one rule left out: either another function, or a switch of
the driver, which stands for what the product's shell does around its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

from fakes.rows import IMAGE
from gpuspawner import names
from gpuspawner.asks import Asks
from gpuspawner.attempts import Attempt, Attempts
from gpuspawner.cards import see_cards
from gpuspawner.claims import Claim, Claims, Detail, Listing, Row, Survey, needs_detail, read_claims
from gpuspawner.cleaning import Cleaning, Ownership, leftovers
from gpuspawner.devices import Inventory
from gpuspawner.placement import place
from gpuspawner.request import Card, Placement, Request, Shortage
from gpuspawner.states import State
from gpuspawner.verdict import Verdict, judge, second_look

from .world import ORPHAN_GRACE_SECONDS, TIMES, Scene, Seen, Shown, World


@dataclass(frozen=True)
class Rules:
    """The rules; every field may be replaced by a mutant's."""

    needs_detail: Callable[[Row], bool] = needs_detail
    read_claims: Callable[..., Claims] = read_claims
    judge: Callable[[Claim, Iterable[Claim], Inventory], Verdict] = judge
    second_look: Callable[[Claim, Iterable[Claim], Inventory], bool] = second_look
    see_cards: Callable[..., tuple[Card, ...]] = see_cards
    place: Callable[[Request, Sequence[Card]], Placement | Shortage] = place
    leftovers: Callable[..., Cleaning] = leftovers

    #: The listing that is judged begins after create has answered.
    look_after_answer: bool = True
    #: What a hub does when a listing fails: nothing, ``start``, ``yield`` or ``empty``.
    failed_listing: str = ""
    #: An inspection without an answer: the listing is no basis for anything.
    silence_is_unknown: bool = True
    #: A listing begun before a reservation of this hub ended is void.
    void_old_listings: bool = True
    #: A reservation is counted in these states.
    reserved_in: frozenset[str] = frozenset(
        {"reserved", "creating", "claimed", "waiting", "starting", "releasing"}
    )
    #: A cancel ends nothing: the call under way is followed.
    follow_cancelled: bool = True
    #: A reset ends nothing: the lease is searched in the list for the grace.
    follow_lost: bool = True
    #: Followed for the grace, and not for ever nor for one look only.
    follow_for: str = "grace"
    #: A removal that is answered 404 while the container is still listed proves nothing.
    list_after_404: bool = True
    #: A removal that failed is tried again.
    retry_removal: bool = True
    #: A waiting container yields in the end.
    wait_ends: bool = True
    #: A container with a claim is started once in its life.
    start_once: bool = True
    #: No restart policy, and no automatic removal.
    restart_policy: str = "no"
    auto_remove: bool = False
    #: An exit counts once a listing begun a second later confirms it.
    confirm_exit: bool = True
    #: A lease is known until its removal was answered.
    known_until_removed: bool = True
    #: What was known before the cleaner's listing is known still.
    known_before: bool = True
    #: The cleaner runs at all.
    cleans: bool = True
    #: A new spawn removes what is left of its server.
    remove_leftovers: bool = True
    #: A server without a stored lease adopts the single running container of its labels.
    adopts: bool = True
    #: What the cleaner is removing is not adopted.
    adopts_swept: bool = False
    #: Containers are known by the hub's label, never by name alone.
    by_label: bool = True
    #: Only the container that was decided on is removed, without force if it was created.
    unforced: bool = True


RULES = Rules()


class Undecided(Exception):
    """A listing in which something is unknown."""


@dataclass
class Deciding:
    """The product's functions over what a hub saw, remembered by what they were given."""

    scene: Scene
    rules: Rules
    _told: dict[Any, Any] = field(default_factory=dict)

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if key not in self._told:
            try:
                self._told[key] = make()
            except Undecided as unknown:
                self._told[key] = unknown
        if isinstance(self._told[key], Undecided):
            raise self._told[key]
        return self._told[key]

    # -- reading a listing -----------------------------------------------------------------------

    def container_id(self, i: int, tries: int) -> str:
        return f"{self.scene.spawns[i].rank}-{i}.{tries}"

    def lease_id(self, i: int, tries: int) -> str:
        return f"L{i}.{tries}"

    def _row(self, place: int, shown: Shown) -> Row:
        state, born, _, tries, _, devices = shown
        if place >= len(self.scene.spawns):
            return Row(f"x{place}", born, IMAGE, state)
        spawn = self.scene.spawns[place]
        labels = {
            names.LABEL_HUB: self.scene.ids[spawn.hub],
            names.LABEL_IMAGE: IMAGE,
            names.LABEL_LEASE: self.lease_id(place, tries),
            names.LABEL_DEVICES: ",".join(devices),
            names.LABEL_SHARE: str(spawn.share),
            names.LABEL_USER: self.scene.user(place),
            names.LABEL_SERVER: "",
        }
        return Row(self.container_id(place, tries), born, IMAGE, state, labels)

    def _listed(self, seen: Seen) -> list[tuple[int, Shown]]:
        return [(place, one) for place, one in enumerate(seen[1]) if one is not None]

    def listing(self, seen: Seen) -> Listing:
        rows = tuple(self._row(place, one) for place, one in self._listed(seen))
        return Listing(rows, float(seen[0]))

    def _survey(self, seen: Seen) -> Survey:
        listing = self.listing(seen)
        details: dict[str, Detail] = {}
        for (spot, one), row in zip(self._listed(seen), listing.rows, strict=True):
            if not self.rules.needs_detail(row):
                continue
            told = one[4]
            if told == "silent":
                if self.rules.silence_is_unknown:
                    raise Undecided
                told = "404"
            outside = spot - len(self.scene.spawns)
            asks = self.scene.strangers[outside].asks if outside >= 0 else Asks()
            details[row.id] = Detail(
                asks,
                error="failed to start" if told == "error" else "",
                finished_at=float(one[2]) if row.state == "exited" else None,
                missing=told == "404",
            )
        return Survey(listing, details)

    def claims(self, h: int, seen: Seen) -> tuple[Claim, ...]:
        """The product's reading of a listing.

        Raises:
            Undecided: something in it is unknown.
        """
        hub_id = self.scene.ids[h]
        found: tuple[Claim, ...] = self._once(
            ("claims", hub_id, seen),
            lambda: (
                self.rules.read_claims(
                    self._survey(seen), self.scene.inventory, hub_id, TIMES
                ).claims
            ),
        )
        return found

    # -- placing ---------------------------------------------------------------------------------

    def attempts(self, world: World, h: int) -> tuple[tuple[int, int, str, tuple[str, ...]], ...]:
        """This hub's attempts in flight."""
        return tuple(
            (i, one.tries, one.at, one.devices)
            for i, one in enumerate(world.leases)
            if self.scene.spawns[i].hub == h and one.at in self.rules.reserved_in
            if not one.stood
        )

    def cards(self, h: int, seen: Seen, world: World) -> tuple[Card, ...]:
        """The cards as a hub sees them.

        Raises:
            Undecided: something in the listing is unknown.
        """
        in_flight = self.attempts(world, h)

        def count() -> tuple[Card, ...]:
            attempts = Attempts()
            for i, tries, at, cards in in_flight:
                share = self.scene.spawns[i].share
                one = Attempt(self.lease_id(i, tries), cards, share, (self.scene.user(i), ""))
                one.state = State(at)
                attempts.add(one)
            claims = self.claims(h, seen)
            return self.rules.see_cards(self.scene.inventory, claims, attempts, self.scene.ids[h])

        found: tuple[Card, ...] = self._once(("cards", h, seen, in_flight), count)
        return found

    def placed(self, i: int, seen: Seen, world: World) -> tuple[str, ...] | None:
        """The cards that a spawn gets; None if there are not enough."""
        spawn = self.scene.spawns[i]
        cards = self.cards(spawn.hub, seen, world)
        request = Request(spawn.count, spawn.share)
        key = ("place", request, cards)
        chosen = self._once(key, lambda: self.rules.place(request, cards))
        return chosen.devices if isinstance(chosen, Placement) else None

    # -- looking ---------------------------------------------------------------------------------

    def _mine(self, i: int, tries: int, seen: Seen) -> tuple[Claim | None, tuple[Claim, ...]]:
        claims = self.claims(self.scene.spawns[i].hub, seen)
        wanted = self.container_id(i, tries)
        return next((c for c in claims if c.row.id == wanted), None), claims

    def verdict(self, i: int, tries: int, seen: Seen) -> Verdict | None:
        """May a created container start? None if it is not there any more."""

        def look() -> Verdict | None:
            mine, claims = self._mine(i, tries, seen)
            return self.rules.judge(mine, claims, self.scene.inventory) if mine else None

        found: Verdict | None = self._once(("judge", i, tries, seen), look)
        return found

    def still_alone(self, i: int, tries: int, seen: Seen) -> bool:
        """The second look."""

        def look() -> bool:
            mine, claims = self._mine(i, tries, seen)
            return mine is None or self.rules.second_look(mine, claims, self.scene.inventory)

        found: bool = self._once(("second", i, tries, seen), look)
        return found

    # -- cleaning --------------------------------------------------------------------------------

    def known(self, world: World, h: int) -> frozenset[str]:
        """The leases that a hub process knows."""
        knows = {"reserved", "creating", "claimed", "waiting", "starting", "held"}
        if self.rules.known_until_removed:
            knows.add("releasing")
        return frozenset(
            self.lease_id(i, one.tries)
            for i, one in enumerate(world.leases)
            if self.scene.spawns[i].hub == h and one.at in knows
            if world.hubs[h].loaded or not one.saved
        )

    def cleaning(self, world: World, h: int, seen: Seen, known: frozenset[str]) -> Cleaning:
        """The cleaner's verdict on a listing."""
        own = Ownership(
            hub_id=self.scene.ids[h],
            known=known,
            in_database=frozenset(
                self.container_id(i, one.tries)
                for i, one in enumerate(world.leases)
                if one.saved and self.scene.spawns[i].hub == h
            ),
            earlier={self.container_id(*one) for one in world.hubs[h].earlier},
            watching_seconds=float(seen[0] - world.hubs[h].since),
        )
        return self.rules.leftovers(
            self.listing(seen),
            own,
            created_grace_seconds=TIMES.created_grace_seconds,
            orphan_grace_seconds=ORPHAN_GRACE_SECONDS,
        )


@cache
def moved(source: str, target: str) -> bool:
    """Take one step as an attempt does; True if it ends a reservation.

    Raises:
        ValueError: the table has no such step.
    """
    attempts = Attempts()
    one = Attempt("L", ("GPU-0",), Fraction(1), ("ada", ""))
    attempts.add(one)
    one.state = State(source)
    attempts.move(one, State(target))
    return attempts.ended > 0
