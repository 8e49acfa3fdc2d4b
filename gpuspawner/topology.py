"""How near cards are to each other: what joins each pair of them. Pure.

The tiers follow NVML: active NVLinks between the two, else the nearest common ancestor on the PCI
bus (``nvmlDeviceGetTopologyCommonAncestor``), else the NUMA node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from .devices import Inventory, Link


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
