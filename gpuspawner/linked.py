"""Which cards to give to a request for linked ones: the best set, and the best left for others.

Sets are ranked by, first to last:

1. their worst pair: NVLink, the same PCIe switch, the same NUMA node, or less;
2. all their pairs together: tiers, then the number of NVLinks;
3. cards kept for the one who asks, then cards without a display, then the least memory;
4. what is left free: the set whose cards have the fewest and weakest joints to the rest;
5. the policy's order.

All of it is one sum over a set's pairs and cards, kept in the bits of one integer, so the best set
is found by adding up. Up to :data:`EXACT` free cards every set is looked at, in at most 2^16
additions and 12,870 sums; beyond, sets are grown from every card, which is exact where cards come
in groups, as they do on real machines. Either way the number of steps is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .request import Card
from .topology import Joint, Tier, Topology

#: Number of free cards up to which every set is looked at.
EXACT = 16

#: Bits for each part of the sum: wide enough that none of them ever carries over.
_LINKS, _TIERS, _CARDS, _GIB, _PAIRS = 20, 16, 12, 32, 24
_MOST_LINKS = 31
_TIERS_DOWN = (Tier.NVLINK, Tier.SWITCH, Tier.NUMA, Tier.NONE)


def choose_linked(
    available: Sequence[Card], count: int, topology: Topology, *, required: bool
) -> tuple[Card, ...]:
    """The best-linked ``count`` of the available cards.

    Args:
        available: in the policy's order.
        count: 2 or more.
        required: give none rather than cards that only the whole machine joins.

    Returns:
        The cards, in the order of ``available``; empty if none are linked as required.
    """
    if len(available) < count:
        return ()
    sums = _Sums(available, topology)
    for tier in _TIERS_DOWN[:-1] if required else _TIERS_DOWN:
        found = sums.best(count, tier)
        if found is not None:
            return tuple(available[i] for i in found)
    return ()


class _Sums:
    """Pairs and cards as integers whose sum ranks a set.

    From high to low: for each tier the number of pairs below it; then what a set is ranked by.
    """

    def __init__(self, cards: Sequence[Card], topology: Topology) -> None:
        size = self.size = len(cards)
        joints = [[topology.joint(a.uuid, b.uuid) for b in cards] for a in cards]
        worth = [
            [_worth(j) if a != b else 0 for b, j in enumerate(r)] for a, r in enumerate(joints)
        ]
        degrees = [sum(row) for row in worth]
        most, largest = max(degrees), max(_gib(c) for c in cards)
        self.cards = [
            _packed(
                (size, 1 << (size - 1 - place)),
                (_LINKS + _TIERS, most - degree),
                (_GIB, largest - _gib(card)),
                (_CARDS, not card.display),
                (_CARDS, card.own),
            )
            for place, (card, degree) in enumerate(zip(cards, degrees, strict=True))
        ]
        shift = size + _LINKS + _TIERS + _GIB + 2 * _CARDS
        top = shift + _LINKS + _TIERS
        self.rank = (1 << top) - 1
        self.below = {
            tier: ((1 << _PAIRS) - 1) << (top + _PAIRS * place)
            for place, tier in enumerate(_TIERS_DOWN[:-1])
        }
        self.below[Tier.NONE] = 0
        self.pairs = [
            [
                (value << shift)
                + sum(
                    1 << (top + _PAIRS * place)
                    for place, tier in enumerate(_TIERS_DOWN[:-1])
                    if joint.tier < tier
                )
                for value, joint in zip(values, row, strict=True)
            ]
            for values, row in zip(worth, joints, strict=True)
        ]
        self._cache: tuple[int, list[int]] | None = None

    def best(self, count: int, tier: Tier) -> list[int] | None:
        """Places of the best set of which every pair is of this tier or better; None if none is."""
        below = self.below[tier]
        if self.size <= EXACT:
            if self._cache is None:
                self._cache = (count, list(self._all(count)))
            sums: Iterable[int] = self._cache[1]
        else:
            sums = self._grown(count, below)
        rank = self.rank
        found = max((s & rank for s in sums if not s & below), default=None)
        if found is None:
            return None
        return [i for i in range(self.size) if found >> (self.size - 1 - i) & 1]

    def _all(self, count: int) -> Iterable[int]:
        """The sum of every set of that many cards.

        Each is a part of the first half of the cards and a part of the second.
        """
        half = self.size // 2
        first, second = range(half), range(half, self.size)
        inner = self._subsets(second, [self.cards[i] for i in second], pairs=True)
        by_count: list[list[int]] = [[] for _ in range(len(second) + 1)]
        for subset in range(1 << len(second)):
            by_count[subset.bit_count()].append(subset)
        outer = self._subsets(first, [self.cards[i] for i in first], pairs=True)
        for subset, begun in enumerate(outer):
            rest = count - subset.bit_count()
            if not 0 <= rest <= len(second):
                continue
            rows = [self.pairs[i] for i in first if subset >> i & 1]
            across = [sum(row[j] for row in rows) for j in second]
            crossing = self._subsets(second, across, pairs=False)
            for other in by_count[rest]:
                yield begun + crossing[other] + inner[other]

    def _subsets(self, places: range, values: Sequence[int], *, pairs: bool) -> list[int]:
        """The sum of every subset, by its bits: of its cards' values, and of its own pairs."""
        sums = [0]
        for bit, place in enumerate(places):
            value = values[bit]
            if not pairs:
                sums += [s + value for s in sums]
                continue
            joined = self._subsets(places[:bit], self.pairs[place][places.start :], pairs=False)
            sums += [s + value + j for s, j in zip(sums, joined, strict=True)]
        return sums

    def _grown(self, count: int, below: int) -> Iterable[int]:
        """From each card, always the next best that keeps the tier."""
        for seed in range(self.size):
            total = self.cards[seed]
            left = {i: self.pairs[seed][i] + self.cards[i] for i in range(self.size) if i != seed}
            for _ in range(count - 1):
                left = {i: gain for i, gain in left.items() if not gain & below}
                if not left:
                    break
                chosen = max(left, key=lambda i: left[i] & self.rank)
                total += left.pop(chosen)
                row = self.pairs[chosen]
                left = {i: gain + row[i] for i, gain in left.items()}
            else:
                yield total


def _worth(joint: Joint) -> int:
    return (int(joint.tier) << _LINKS) + min(joint.nvlinks, _MOST_LINKS)


def _gib(card: Card) -> int:
    # Whole GiB: equal cards may differ by some MiB.
    return round((card.memory_mib or 0) / 1024)


def _packed(*parts: tuple[int, int]) -> int:
    """Values in bits beside each other, the lowest first: (width, value) each."""
    packed, shift = 0, 0
    for width, value in parts:
        packed += int(value) << shift
        shift += width
    return packed
