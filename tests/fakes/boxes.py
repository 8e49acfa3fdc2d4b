"""Synthetic machines as placement sees them: cards, and what joins them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from gpuspawner.request import Card
from gpuspawner.topology import Joint, Tier, Topology

A100 = "NVIDIA A100-SXM4-40GB"
#: Pairs of a DGX-1 (hybrid cube mesh) by the number of NVLinks between them.
_CUBE = {
    1: [(0, 1), (0, 2), (1, 3), (2, 3), (4, 5), (4, 6), (5, 7), (6, 7), (0, 4), (3, 7)],
    2: [(0, 3), (1, 2), (4, 7), (5, 6), (1, 5), (2, 6)],
}


def box(count: int, **fields: object) -> list[Card]:
    """``count`` equal cards GPU-00, GPU-01, … that are free."""
    return [
        Card(uuid=f"GPU-{i:02}", index=i, model=A100, memory_mib=40960, **fields)  # type: ignore[arg-type]
        for i in range(count)
    ]


def joined(groups: Iterable[Sequence[int]], joint: Joint) -> dict[frozenset[str], Joint]:
    """Each pair within a group has this joint."""
    return {
        frozenset((f"GPU-{a:02}", f"GPU-{b:02}")): joint
        for group in groups
        for a, b in combinations(group, 2)
    }


def islands(*sizes: int, joint: Joint | None = None, between: Joint | None = None) -> Topology:
    """Groups of cards that are fully joined inside, and less or not at all between each other."""
    groups, first = [], 0
    for size in sizes:
        groups.append(range(first, first + size))
        first += size
    joints = joined([range(first)], between) if between else {}
    return Topology({**joints, **joined(groups, joint or Joint(Tier.NVLINK, 12))})


def cube_mesh() -> Topology:
    """A DGX-1: two quads, each within fully linked or nearly so, with links across."""
    joints = joined([range(8)], Joint(Tier.NONE))
    joints |= joined([range(4), range(4, 8)], Joint(Tier.NUMA))
    for links, pairs in _CUBE.items():
        joints |= joined(pairs, Joint(Tier.NVLINK, links))
    return Topology(joints)


#: Machines with eight cards.
EIGHT = {
    "fully linked": islands(8),
    "2x4": islands(4, 4, between=Joint(Tier.NONE)),
    "2x4, one board": islands(4, 4, between=Joint(Tier.NUMA)),
    "4x2": islands(2, 2, 2, 2, between=Joint(Tier.SWITCH)),
    "cube mesh": cube_mesh(),
    "PCIe switches": islands(4, 4, joint=Joint(Tier.SWITCH)),
    "NUMA nodes": islands(4, 4, joint=Joint(Tier.NUMA)),
}
