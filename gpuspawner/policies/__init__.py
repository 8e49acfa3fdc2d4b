"""Which of the cards that would do are given: one policy a file, each a plain function.

``choose(available, count, share) -> cards``: ``available`` are at least ``count`` cards that each
suit and have room for ``share``; the answer is ``count`` of them. A policy keeps no state, and
its answer does not depend on the order of ``available``. Among equals the hub's own order decides,
then (index, UUID).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from gpuspawner.request import Card

from . import pack, smallest_that_fits, spread

Policy = Callable[[Sequence[Card], int, Fraction], tuple[Card, ...]]

#: By the name that an admin writes.
POLICIES: Mapping[str, Policy] = {
    "smallest-that-fits": smallest_that_fits.choose,
    "pack": pack.choose,
    "spread": spread.choose,
}
DEFAULT_POLICY = "smallest-that-fits"
DEFAULT_SHARE_POLICY = "spread"
