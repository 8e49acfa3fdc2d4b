"""How near cards are to each other: what joins each pair of them. Pure.

The tiers follow NVML: active NVLinks between the two, else the nearest common ancestor on the PCI
bus (``nvmlDeviceGetTopologyCommonAncestor``), else the NUMA node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from .devices import Inventory, Link
from .request import Card


class Tier(IntEnum):
    """What joins two cards, the fastest last."""

    NONE = 0  # only the path between the sockets, or not known
    NUMA = 1  # the same NUMA node
    SWITCH = 2  # the same PCIe switch, or switches in a row
    NVLINK = 3


@dataclass(frozen=True)
class Joint:
    """What joins one pair of cards.

    Attributes:
        nvlinks: number of active NVLinks between the two; 0 where there are none or not told.
    """

    tier: Tier = Tier.NONE
    nvlinks: int = 0


_NO_JOINT = Joint()
_SWITCHES = ("internal", "single", "multiple")
_NODES = ("hostbridge", "node")


@dataclass(frozen=True)
class Topology:
    """All joints of a machine's cards, by unordered pair of UUIDs."""

    joints: Mapping[frozenset[str], Joint] = field(default_factory=dict)

    def joint(self, a: str, b: str) -> Joint:
        """What joins two cards; the lowest tier where nothing is known."""
        return self.joints.get(frozenset((a, b)), _NO_JOINT)


def topology_of(inventory: Inventory) -> Topology:
    """Read the joints from a probe's links and NUMA nodes."""
    nodes = {d.uuid: d.numa_node for d in inventory.devices if d.uuid and d.numa_node is not None}
    joints: dict[frozenset[str], Joint] = {}
    for i, a in enumerate(inventory.devices):
        for b in inventory.devices[i + 1 :]:
            if a.uuid in nodes and nodes[a.uuid] == nodes.get(b.uuid):
                joints[frozenset((a.uuid, b.uuid))] = Joint(Tier.NUMA)
    for link in inventory.links:
        pair = frozenset((link.a, link.b))
        joint = _joint(link)
        joints[pair] = max(joints.get(pair, _NO_JOINT), joint, key=lambda j: (j.tier, j.nvlinks))
    return Topology(joints)


def _joint(link: Link) -> Joint:
    if link.nvlinks:
        return Joint(Tier.NVLINK, link.nvlinks)
    if link.ancestor in _SWITCHES:
        return Joint(Tier.SWITCH)
    return Joint(Tier.NUMA if link.ancestor in _NODES else Tier.NONE)


# -- groups ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Cards that are nearer to each other than to the rest; or the slices of one card.

    Attributes:
        used: how many of them somebody has, or a part of them.
        free: how many are free and offered.
        place: of its first card in this hub's order, to tell equal groups apart.
    """

    size: int
    used: int
    free: int
    place: tuple[int, int, str]


def groups_of(cards: Sequence[Card], topology: Topology) -> Mapping[str, Group]:
    """The group of each card, by UUID.

    Cards that NVLinks join are a group. Of those without any, the ones on a PCIe switch are, then
    the ones at a NUMA node; what is left is alone.
    """
    slices: dict[str, list[Card]] = defaultdict(list)
    alone = []
    for card in cards:
        if card.parent:
            slices[card.parent].append(card)
        elif not card.sliced:
            alone.append(card)
    clusters = list(slices.values())
    for tier in (Tier.NVLINK, Tier.SWITCH, Tier.NUMA):
        found = _clusters(alone, tier, topology)
        clusters += [c for c in found if len(c) > 1]
        alone = [card for c in found if len(c) == 1 for card in c]
    groups: dict[str, Group] = {}
    for cluster in (*clusters, *([card] for card in alone)):
        groups.update(dict.fromkeys((c.uuid for c in cluster), _group(cluster)))
    return groups


def _clusters(cards: Iterable[Card], tier: Tier, topology: Topology) -> list[list[Card]]:
    """Parts of the cards that nothing of this tier or better joins to each other."""
    left = list(cards)
    found = []
    while left:
        cluster = [left.pop()]
        for card in cluster:
            near = [c for c in left if topology.joint(card.uuid, c.uuid).tier >= tier]
            cluster += near
            left = [c for c in left if c not in near]
        found.append(cluster)
    return found


def _group(cards: Sequence[Card]) -> Group:
    return Group(
        size=len(cards),
        used=sum(1 for c in cards if c.load),
        free=sum(1 for c in cards if not c.load and not c.unavailable and c.kept is None),
        place=min((c.order, c.index, c.uuid) for c in cards),
    )
