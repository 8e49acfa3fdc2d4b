"""One start's demand and the one decision about it: form, admission and reserving agree. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from .keeping import NOTHING_KEPT, Picked, keep_cards
from .limits import Held, Limit, OverLimit, check_limits
from .placement import Policies, closed, place_first
from .request import Card, Placement, Request, Shortage, has_room, suits
from .topology import Topology


@dataclass(frozen=True)
class Demand:
    """What a start asks for, and of whom it is.

    Attributes:
        requests: tried in order; the first that can be met counts.
        profile: slug.
        groups: the user is in, for cards that are kept for groups.
        limits: that the start must keep.
        max_seconds: after which the server is stopped; None for never.
    """

    user: str
    server: str = ""
    profile: str = ""
    requests: tuple[Request, ...] = (Request(),)
    groups: frozenset[str] = frozenset()
    limits: tuple[Limit, ...] = ()
    max_seconds: float | None = None

    @property
    def needs_gpu(self) -> bool:
        return any(r.count for r in self.requests)


@dataclass(frozen=True)
class Scene:
    """What a decision is made from: everything as it stands at one moment.

    Attributes:
        cards: of the machine; what is kept for whom is not applied yet.
        held: what servers of this hub hold.
        now: with a time zone.
        picked: which cards are kept for groups, always or at some hours.
    """

    cards: tuple[Card, ...]
    topology: Topology
    policies: Policies
    held: tuple[Held, ...]
    now: datetime
    picked: Picked = NOTHING_KEPT


Decision = Placement | Shortage | OverLimit


def decide(demand: Demand, scene: Scene) -> Decision:
    """May this start have cards now, and which? The first request that can be met counts."""
    over: list[OverLimit] = []
    within: list[Request] = []
    for request in demand.requests:
        asked = Fraction(request.count) * request.share
        found = check_limits(demand.limits, scene.held, asked, user=demand.user)
        if found is None:
            within.append(request)
        else:
            over.append(found)
    if not within:
        # The nearest to being met: advice for the first may be beside the point.
        return min(over, key=lambda o: o.asked)
    cards = cards_for(demand, scene)
    return place_first(within, cards, scene.topology, scene.policies)


def cards_for(demand: Demand, scene: Scene) -> tuple[Card, ...]:
    """The cards as this user sees them: what is kept for others, and what for them, is marked."""
    return keep_cards(
        scene.cards,
        scene.picked,
        groups=demand.groups,
        max_seconds=demand.max_seconds,
        now=scene.now,
    )


def outlook(demand: Demand, scene: Scene) -> tuple[int, int]:
    """For a form: how many cards suit any of the requests, and how many of those have room.

    Cards that the user never gets count as if they were not there.
    """
    suitable = free = 0
    for card in cards_for(demand, scene):
        requests = [r for r in demand.requests if suits(card, r)]
        if requests and not closed(card):
            suitable += 1
            free += any(has_room(card, r) for r in requests)
    return suitable, free
