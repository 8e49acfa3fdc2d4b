"""Which of the cards that would do are given: one policy a file, each a plain function.

``choose(available, count, share, groups) -> cards``: ``available`` are at least ``count`` cards
that each suit and have room for ``share``; ``groups`` tells by UUID of which group each of them is
(:func:`gpuspawner.topology.groups_of`). The answer is ``count`` of them, in order of preference. A
policy keeps no state, and its answer does not depend on the order of ``available``.

All of them give cards that are kept for the one who asks first, and one with a display last. Among
equals the hub's own order decides, then (index, UUID).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from gpuspawner.request import Card
from gpuspawner.topology import Group

from . import pack, smallest_that_fits, spread

Policy = Callable[[Sequence[Card], int, Fraction, Mapping[str, Group]], tuple[Card, ...]]

#: By the name that an admin writes.
POLICIES: Mapping[str, Policy] = {
    "smallest-that-fits": smallest_that_fits.choose,
    "pack": pack.choose,
    "spread": spread.choose,
}
DEFAULT_POLICY = "smallest-that-fits"
DEFAULT_SHARE_POLICY = "spread"
