"""Pack: fill what is in use already, so that whole cards, and groups of linked ones, stay free.

Whole cards: first those of a group that somebody uses already, of the group with the fewest free
cards before others; an unused group is broken up only where no used one has a card left. Slices
likewise: those of a card that is in use come first. Shares: the fullest card with room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpuspawner.request import Card
from gpuspawner.topology import Group


def choose(
    available: Sequence[Card], count: int, share: Fraction, groups: Mapping[str, Group]
) -> tuple[Card, ...]:
    """The fullest cards, of the fullest groups."""

    def key(card: Card) -> tuple[Any, ...]:
        group = groups[card.uuid]
        filled = (not group.used, group.free) if share == 1 else (-card.load,)
        return (
            not card.own, card.display, *filled, card.memory_mib or 0, group.place,
            card.order, card.index, card.uuid,
        )  # fmt: skip

    return tuple(sorted(available, key=key)[:count])
