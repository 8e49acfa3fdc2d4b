"""Which cards are fit to be given out, from looks at driver and engine together. Pure.

A *look* is one probe of the driver with a listing of the engine before it and one after it. The
two listings tell whose processes the probe saw: a holder's are right where they are, those of a
container that has just ended are on their way out, and all others are nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from . import names
from .claims import LIVE_STATES, Claim, Claims, Survey, loads
from .devices import Device, Inventory, Process, Slice
from .states import CardState


@dataclass(frozen=True)
class Seen:
    """What the engine said on one side of a probe."""

    survey: Survey
    claims: Claims

    @property
    def harmless(self) -> frozenset[str]:
        """Ids of the containers that only look at the cards."""
        found = {
            row.id
            for row in self.survey.listing.rows
            if row.ours
            and row.labels.get(names.LABEL_ROLE) in (names.ROLE_PROBE, names.ROLE_OBSERVER)
        }
        details = self.survey.details.items()
        return frozenset(found | {i for i, d in details if d.asks.manner == "observes"})


@dataclass(frozen=True)
class Look:
    """One probe between two listings.

    Attributes:
        begun: when the listing before it was asked for, by a clock that never goes back.
    """

    begun: float
    inventory: Inventory
    before: Seen
    after: Seen


@dataclass(frozen=True)
class Limits:
    """What counts as clean.

    Attributes:
        foreign_memory_mib: memory in use by nobody, over the driver's own, that is no dirt yet.
        clean_probes: clean looks in a row before a card that was ill or dirty is offered again.
    """

    foreign_memory_mib: int = 500
    clean_probes: int = 3


@dataclass(frozen=True)
class Condition:
    """How a card stands, whoever holds it.

    Attributes:
        state: gone, ill, dirty, settling, or free for "nothing is wrong with it".
        why: in words for the admin; empty if nothing is wrong.
        needed: clean looks still needed.
        after: what it is coming back from, while ``needed`` is above 0.
        strangers: processes on it that belong to nobody who holds it, in words for the admin.
    """

    state: CardState = CardState.FREE
    why: str = ""
    needed: int = 0
    after: CardState | None = None
    strangers: tuple[str, ...] = ()

    @property
    def fault(self) -> CardState | None:
        """Gone, ill or dirty, also while it is coming back from that; None otherwise."""
        if self.state in (CardState.GONE, CardState.ILL, CardState.DIRTY):
            return self.state
        return self.after


WELL = Condition()


def by_word(device: Device) -> Condition:
    """How a card stands by the driver's word alone."""
    return Condition(CardState.ILL, device.ill) if device.ill else WELL


GONE = "the driver does not name it any more"


@dataclass(frozen=True)
class Health:
    """What all looks so far have told.

    Attributes:
        begun: of the last look.
        inventory: of the last look, with what was known before: see :func:`recalled`.
        gone: cards that were seen before and are not named any more.
        conditions: by UUID of card or slice.
        holders: by UUID, ids of the containers that were seen to hold the card, for as long as
            they do or have a process on it.
    """

    begun: float = float("-inf")
    inventory: Inventory = field(default_factory=Inventory)
    gone: tuple[Device, ...] = ()
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    holders: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of(self, uuid: str) -> Condition:
        return self.conditions.get(uuid, WELL)

    @property
    def unwell(self) -> bool:
        """True if a further look could change what is offered."""
        return any(c.state is not CardState.FREE for c in self.conditions.values())

    @property
    def settling(self) -> bool:
        """True if a card is on its way back: the next look is due soon."""
        return any(c.state is CardState.SETTLING for c in self.conditions.values())


# -- what is known of cards that the driver does not name any more ---------------------------------


def recalled(inventory: Inventory, health: Health) -> Inventory:
    """The inventory with names that the driver no longer tells.

    A card so lost that it has no UUID is the one that had its index. A MIG slice that is gone
    still ties its container to the card it was cut from.
    """
    before = [*health.inventory.devices, *health.gone]
    named = {d.uuid for d in inventory.devices}
    missing = {d.index: d for d in before if d.uuid and d.uuid not in named}
    devices = tuple(
        replace(missing[d.index], error=d.error or "it can't be named", processes=(), slices=())
        if not d.uuid and d.index in missing
        else d
        for d in inventory.devices
    )
    slices = {s.uuid: s for s in (*health.inventory.former, *_slices(health.inventory.devices))}
    former = tuple(s for s in slices.values() if s.uuid not in inventory.slice_by_uuid)
    return replace(inventory, devices=devices, former=former)


def _slices(devices: Iterable[Device]) -> Iterable[Slice]:
    return (s for d in devices for s in d.slices)


def _gone(inventory: Inventory, health: Health) -> tuple[Device, ...]:
    places = {d.pci_bus_id for d in inventory.devices if d.uuid and d.pci_bus_id}
    return tuple(
        d
        for d in (*health.inventory.devices, *health.gone)
        # Another card in its place has replaced it.
        if d.uuid and d.uuid not in inventory.by_uuid and d.pci_bus_id not in places
    )


# -- one look --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Finding:
    """What one look alone tells of a card."""

    state: CardState
    why: str
    strangers: tuple[str, ...] = ()


def observe(
    health: Health, look: Look, limits: Limits, lately: Mapping[str, Iterable[str]] | None = None
) -> Health:
    """Health after one more look, whose inventory is :func:`recalled`.

    Args:
        lately: containers that other listings showed at work since the last look, by UUID.
    """
    gone = _gone(look.inventory, health)
    conditions: dict[str, Condition] = {
        d.uuid: replace(health.of(d.uuid), state=CardState.GONE, why=GONE) for d in gone
    }
    holders: dict[str, frozenset[str]] = {}
    units: list[tuple[Device | Slice, Device]] = [(d, d) for d in look.inventory.devices if d.uuid]
    units += [(s, d) for _, d in units for s in d.slices]
    for unit, device in units:
        near = {unit.uuid} | look.inventory.neighbours(unit.uuid)
        earlier = health.holders.get(unit.uuid, frozenset()).union(
            *((lately or {}).get(uuid, ()) for uuid in near)
        )
        finding = _examine(unit, device, look, earlier, limits)
        conditions[unit.uuid] = _step(health.of(unit.uuid), finding, limits.clean_probes)
        at_work = {p.container_id for p in _processes(unit)}
        holders[unit.uuid] = frozenset(
            {
                c.row.id
                for seen in (look.before, look.after)
                for c in _near(unit.uuid, look, seen)
                if alive(c)
            }
            | {i for i in earlier if i in at_work}
        )
    return Health(look.begun, look.inventory, gone, conditions, holders)


def _step(before: Condition, finding: _Finding, clean_probes: int) -> Condition:
    if finding.state in (CardState.ILL, CardState.DIRTY):
        return Condition(
            finding.state, finding.why, clean_probes, finding.state, strangers=finding.strangers
        )
    if finding.state is CardState.SETTLING:
        needed = clean_probes if before.needed else 0
        return Condition(finding.state, finding.why, needed, before.after)
    if before.needed > 1:
        left = before.needed - 1
        more = "one more clean look" if left == 1 else f"{left} more clean looks"
        was = before.after.value if before.after else "not well"
        return Condition(
            CardState.SETTLING, f"it was {was}; offered after {more}", left, before.after
        )
    return WELL


def _examine(
    unit: Device | Slice, device: Device, look: Look, earlier: frozenset[str], limits: Limits
) -> _Finding:
    """What is found on a card, with all its slices; or on one slice of it.

    A sibling's strangers are none of a slice's business. What the driver tells of the card alone,
    not of which slice, is everybody's.
    """
    if device.ill:
        return _Finding(CardState.ILL, device.ill)
    strangers: list[str] = []
    leaving: list[str] = []
    for part in _units(device) if unit is device else (unit, device):
        for process in part.processes:
            if process.kind == "compute":
                kind, words = _whose(process, part.uuid, look, earlier)
                {"stranger": strangers, "leaving": leaving, "right": []}[kind].append(words)
    if strangers:
        return _Finding(CardState.DIRTY, "; ".join(strangers), tuple(strangers))
    if leaving:
        return _Finding(CardState.SETTLING, "; ".join(leaving))
    return _memory(device, look, limits)


def _whose(
    process: Process, unit: str, look: Look, earlier: frozenset[str]
) -> tuple[Literal["right", "leaving", "stranger"], str]:
    """Whether a process belongs where it is, and the words for it."""
    container = process.container_id
    size = "" if process.used_mib is None else f" ({process.used_mib} MiB)"
    if container is None:
        return "stranger", (
            f"process {process.pid}{size} is at work on it, in no container that is known"
        )
    if container in look.before.harmless | look.after.harmless:
        return "right", ""
    what = f"process {process.pid}{size} of container {container[:12]}"
    row = look.after.survey.listing.by_id(container)
    # A container whose start is not answered yet is listed as created.
    if row is not None and (row.state == "created" or row.state in LIVE_STATES):
        if container in {c.row.id for c in _near(unit, look, look.after)}:
            return "right", ""
        return "stranger", f"{what} is at work on it, which does not hold this GPU"
    if row or container in earlier or look.before.survey.listing.by_id(container):
        return "leaving", f"{what} is still there, which has ended"
    return "stranger", f"{what} is at work on it, which the engine does not list"


def _memory(device: Device, look: Look, limits: Limits) -> _Finding:
    """Memory in use that nobody accounts for."""
    well = _Finding(CardState.FREE, "")
    claims = [*_near(device.uuid, look, look.before), *_near(device.uuid, look, look.after)]
    now = {c.row.id for c in _near(device.uuid, look, look.after) if alive(c)}
    if now:
        return well  # its holder's
    unexplained = unexplained_mib(device)
    if unexplained is None or unexplained <= limits.foreign_memory_mib:
        return well
    words = f"{unexplained} MiB of its memory are in use"
    if any(c.row.state != "created" for c in claims):
        return _Finding(CardState.SETTLING, f"{words}, and its last holder has just ended")
    return _Finding(CardState.DIRTY, f"{words} and no process or container accounts for them")


def unexplained_mib(device: Device) -> int | None:
    """Memory beyond the driver's reserve and that of the processes; None where not all is told."""
    if device.used_mib is None or device.reserved_mib is None:
        return None  # drivers before 510 count their own reserve as used and don't tell it
    sizes = [p.used_mib for p in _processes(device)]
    told = [size for size in sizes if size is not None]
    if len(told) < len(sizes):
        return None
    return max(0, device.used_mib - sum(told))


def _processes(unit: Device | Slice) -> Iterable[Process]:
    """Every process on a card or in its slices, once; or in one slice."""
    return {p.pid: p for part in _units(unit) for p in part.processes}.values()


def _units(unit: Device | Slice) -> list[Device | Slice]:
    return [unit, *unit.slices] if isinstance(unit, Device) else [unit]


def _near(unit: str, look: Look, seen: Seen) -> list[Claim]:
    return loads(seen.claims.claims, look.inventory, unit)


def alive(claim: Claim) -> bool:
    """True for a holder at work."""
    return claim.row.state in LIVE_STATES
