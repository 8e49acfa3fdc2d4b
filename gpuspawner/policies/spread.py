"""Spread: the emptiest cards, since crowding one helps nobody."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gpuspawner.request import Card


def choose(available: Sequence[Card], count: int, share: Fraction) -> tuple[Card, ...]:  # noqa: ARG001
    """The emptiest cards; one with a display comes last."""
    return tuple(
        sorted(
            available,
            key=lambda c: (
                not c.own, c.display, c.load, c.memory_mib or 0, c.order, c.index, c.uuid,
            ),
        )[:count]
    )  # fmt: skip
