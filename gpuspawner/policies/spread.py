"""Spread: use what is emptiest, since crowding one card, or one group of cards, helps nobody.

Whole cards: one by one, each from the group of which the smallest part is in use. Slices likewise,
from card to card. Shares: the emptiest card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpuspawner.request import Card
from gpuspawner.topology import Group


def choose(
    available: Sequence[Card], count: int, share: Fraction, groups: Mapping[str, Group]
) -> tuple[Card, ...]:
    """The emptiest cards, of the emptiest groups."""
    given: Counter[tuple[int, int, str]] = Counter()

    def key(card: Card) -> tuple[Any, ...]:
        group = groups[card.uuid]
        used = Fraction(group.used + given[group.place], group.size) if share == 1 else card.load
        return (
            not card.own, card.display, used, card.memory_mib or 0,
            card.order, card.index, card.uuid,
        )  # fmt: skip

    left = list(available)
    chosen: list[Card] = []
    while len(chosen) < count:
        card = min(left, key=key)
        left.remove(card)
        chosen.append(card)
        given[groups[card.uuid].place] += 1
    return tuple(chosen)
