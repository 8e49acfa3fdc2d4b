"""Which cards to give to a request for linked ones: the best set, and the best left for others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from .request import Card
from .topology import Tier, Topology


def choose_linked(
    available: Sequence[Card], count: int, topology: Topology, *, required: bool
) -> tuple[Card, ...]:
    """The best-linked ``count`` of the available cards.

    Args:
        required: give none rather than cards that only the whole machine joins.

    Returns:
        The cards; empty if none are linked as required.
    """
    ordered = sorted(available, key=lambda c: (c.order, c.index, c.uuid))

    def rank(cards: tuple[Card, ...]) -> tuple[int, int]:
        joints = [topology.joint(a.uuid, b.uuid) for a, b in combinations(cards, 2)]
        return (min(j.tier for j in joints), sum(j.nvlinks for j in joints))

    best = max(combinations(ordered, count), key=rank, default=())
    if not best or (required and rank(best)[0] is Tier.NONE):
        return ()
    return best
