"""Smallest that fits: big cards stay free for those who ask for them.

Whole cards, slices and shares alike: those with the least memory. One whose memory is not told
counts as the smallest; it is never given to somebody who asked for memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from gpuspawner.request import Card
from gpuspawner.topology import Group


def choose(
    available: Sequence[Card],
    count: int,
    share: Fraction,  # noqa: ARG001 - policies are called alike
    groups: Mapping[str, Group],  # noqa: ARG001
) -> tuple[Card, ...]:
    """The cards with the least memory."""
    return tuple(
        sorted(
            available,
            key=lambda c: (not c.own, c.display, c.memory_mib or 0, c.order, c.index, c.uuid),
        )[:count]
    )
