"""What a container sees of the GPUs, held against what it was promised. Pure.

Three things can be told apart without any help of the user: what the engine says it was asked for
(:func:`unkept`), which of the driver's device nodes are there and can be opened (:func:`compare`),
and which of them could be opened once and can't be any more (:func:`lost`).

A node ``/dev/nvidia<minor>`` is a card; a slice's node is its card's, so slices of one card are not
told apart. Only what is certain counts against a server: whatever can't be told is ``UNCLEAR``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .devices import Inventory

#: Char major of NVIDIA's cards, fixed by the kernel. A node with another is taken by its name.
_NVIDIA_MAJOR = 195

#: Lists the nodes, opens each, and prints the driver's own list of minors and UUIDs.
#: Builtins only, but for ``stat``, which may be absent.
SCRIPT = r"""
for n in /dev/nvidia[0-9]*; do
 [ -c "$n" ] || continue
 e=$( (exec 3<"$n") 2>&1 ) && e=
 echo "node $n $(stat -c %t:%T "$n" 2>/dev/null || echo -) $e"
done
for f in /proc/driver/nvidia/gpus/*/information; do
 [ -r "$f" ] || continue
 m= u=
 while IFS=: read -r k v; do
  case $k in "Device Minor") m=$v;; "GPU UUID") u=$v;; esac
 done <"$f"
 echo "card $m $u"
done
echo end
"""

_NODE = re.compile(r"node /dev/nvidia(\d{1,6}) (?:([0-9a-f]{1,8}):([0-9a-f]{1,8})|-) ?(.*)")
_CARD = re.compile(r"card\s+(\d{1,6})\s+(GPU-[0-9a-fA-F-]+)")


class Access(Enum):
    """What came of opening a node."""

    OPEN = "open"
    DENIED = "denied"  # the device cgroup forbids it
    DEAD = "dead"  # allowed, but the driver finds no working card behind it
    UNCLEAR = "unclear"


#: The system's words, as shells print them in the C locale.
_WORDS = (
    ("operation not permitted", Access.DENIED),
    ("input/output error", Access.DEAD),
    ("no such device", Access.DEAD),
    ("i/o error", Access.DEAD),
)


@dataclass(frozen=True)
class Node:
    """One device node of a card.

    Attributes:
        error: the shell's words where it could not be opened.
    """

    number: int
    access: Access
    error: str = ""


@dataclass(frozen=True)
class Seen:
    """One look into a container.

    Attributes:
        nodes: by the card's minor.
        minors: of the cards that the driver lists, by UUID. The list may have more cards than the
            container was given: it tells which is which, not what can be used.
    """

    nodes: Mapping[int, Node] = field(default_factory=dict)
    minors: Mapping[str, int] = field(default_factory=dict)

    @property
    def opened(self) -> frozenset[int]:
        return frozenset(n for n, node in self.nodes.items() if node.access is Access.OPEN)


def read_look(text: str) -> Seen | None:
    """What :data:`SCRIPT` printed; None if it did not come to its end."""
    lines = text.replace("\r", "").split("\n")
    if "end" not in lines:
        return None
    nodes: dict[int, Node] = {}
    minors: dict[str, int] = {}
    for line in lines:
        if found := _NODE.fullmatch(line):
            node = _node(*found.groups())
            nodes[node.number] = node
        elif found := _CARD.match(line):
            minors[found[2]] = int(found[1])
    return Seen(nodes, minors)


def _node(name: str, major: str | None, minor: str | None, error: str) -> Node:
    real = major is not None and minor is not None and int(major, 16) == _NVIDIA_MAJOR
    number = int(minor, 16) if real and minor is not None else int(name)
    if not error:
        return Node(number, Access.OPEN)
    words = error.lower()
    access = next((kind for text, kind in _WORDS if text in words), Access.UNCLEAR)
    return Node(number, access, error.rpartition(": ")[2][:200])


@dataclass(frozen=True)
class Asked:
    """What the engine was asked for at create.

    Attributes:
        driver: how cards are put in: ``cdi``, ``nvidia``, or ``none`` where nothing was asked.
    """

    requests: tuple[tuple[str, frozenset[str]], ...] = ()
    driver: str = "none"
    privileged: bool = False


def read_asked(host_config: Mapping[str, Any]) -> Asked:
    """The GPU part of a host config, as it was sent to the engine."""
    requests = tuple(
        (driver, ids)
        for driver, ids in _requests(host_config)
        if driver == "nvidia" or any(one.startswith("nvidia.com/gpu=") for one in ids)
    )
    return Asked(
        requests,
        requests[0][0] if requests else "none",
        bool(host_config.get("Privileged")),
    )


def _requests(host_config: Mapping[str, Any]) -> Iterable[tuple[str, frozenset[str]]]:
    for request in host_config.get("DeviceRequests") or ():
        ids = frozenset(str(one) for one in request.get("DeviceIDs") or ())
        yield str(request.get("Driver") or ""), ids


def unkept(asked: Asked, inspection: Mapping[str, Any]) -> str:
    """Which device requests the engine did not keep, in words for the admin; empty if none.

    Raises:
        AttributeError, TypeError: no inspection as engines give it.
    """
    kept = list(_requests(inspection.get("HostConfig") or {}))
    missing = [one for one in asked.requests if one not in kept]
    if not missing:
        return ""
    wanted = "; ".join(f"driver {driver!r}: {', '.join(sorted(ids))}" for driver, ids in missing)
    has = "; ".join(f"driver {driver!r}: {', '.join(sorted(ids))}" for driver, ids in kept)
    return f"asked for {wanted}; it kept {has or 'none'}"


class Finding(Enum):
    """A look held against the promise."""

    EXACT = "exactly the promised"
    MORE = "more than promised"
    FEWER = "fewer than promised"
    UNCLEAR = "can't tell"


@dataclass(frozen=True)
class Sight:
    """The verdict on one look, with its reason in words for the admin."""

    finding: Finding
    reason: str = ""


def compare(promised: Collection[str], inventory: Inventory, seen: Seen, asked: Asked) -> Sight:
    """Hold a look right after the start against the promise.

    Args:
        promised: UUIDs of cards or slices; none for a server without a GPU.
    """
    if asked.privileged:
        return Sight(Finding.UNCLEAR, "it runs privileged and sees every device")
    cards = _cards(promised, inventory)
    numbers = {uuid: _number(uuid, inventory, seen) for uuid in cards}
    known = {uuid: number for uuid, number in numbers.items() if number is not None}
    strange = seen.opened - set(known.values())
    if len(strange) > len(cards) - len(known):
        which = ", ".join(f"/dev/nvidia{n}" for n in sorted(strange))
        return Sight(Finding.MORE, f"it can reach {which}, which it was not given")
    if len(known) < len(cards):
        unknown = ", ".join(sorted(cards - known.keys()))
        return Sight(Finding.UNCLEAR, f"nothing tells which device node is {unknown}")
    for uuid, number in sorted(known.items()):
        node = seen.nodes.get(number)
        if node is None:
            words = f"{uuid} should be /dev/nvidia{number}, which is not there"
            certain = _must_have_nodes(inventory, seen, asked)
            return Sight(Finding.FEWER if certain else Finding.UNCLEAR, words)
        if node.access is not Access.OPEN:
            clear = node.access is not Access.UNCLEAR
            words = f"{uuid} is /dev/nvidia{number}, which can't be opened: {node.error}"
            return Sight(Finding.FEWER if clear else Finding.UNCLEAR, words)
    return Sight(Finding.EXACT)


def _must_have_nodes(inventory: Inventory, seen: Seen, asked: Asked) -> bool:
    """True where a card that was given always shows as a device node."""
    if asked.driver == "cdi":
        return True
    # The hook of simulated cards makes none, and of a fixed list nobody knows what it stands for.
    real = inventory.source == "nvml" or bool(seen.minors) or bool(seen.nodes)
    return asked.driver == "nvidia" and real


def lost(
    promised: Collection[str], inventory: Inventory, seen: Seen, opened: Collection[int]
) -> dict[int, str]:
    """The promised cards that can't be used any more: minor, and the cause for the admin.

    Args:
        opened: minors that could be opened in an earlier look.
    """
    numbers = {_number(uuid, inventory, seen) for uuid in _cards(promised, inventory)}
    gone: dict[int, str] = {}
    for number in sorted({n for n in numbers if n is not None} | set(opened)):
        node = seen.nodes.get(number)
        if node is None:
            if number in opened:
                gone[number] = f"/dev/nvidia{number} is not there any more"
        elif node.access is Access.DENIED:
            gone[number] = f"the container may not open /dev/nvidia{number} ({node.error})"
        elif node.access is Access.DEAD:
            gone[number] = f"no card answers behind /dev/nvidia{number} ({node.error})"
    return gone


def _cards(promised: Collection[str], inventory: Inventory) -> frozenset[str]:
    """UUIDs of the whole cards behind a promise."""
    slices = inventory.slice_by_uuid
    return frozenset(slices[uuid].parent if uuid in slices else uuid for uuid in promised)


def _number(uuid: str, inventory: Inventory, seen: Seen) -> int | None:
    """The minor of a card: as the driver says inside, else as the inventory has it."""
    if uuid in seen.minors:
        return seen.minors[uuid]
    device = inventory.by_uuid.get(uuid)
    return device.minor if device else None
