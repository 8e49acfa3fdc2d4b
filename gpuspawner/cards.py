"""From devices, claims and reservations to the cards that placement chooses from. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction

from . import names
from .attempts import Attempts
from .claims import ENDED_STATES, Claim, Row, loads, share_of
from .devices import Device, Inventory, Slice
from .health import Condition, by_word
from .limits import Held
from .request import Card
from .states import CardState, State

#: Why a card in MIG mode is not offered whole.
SLICED = "MIG mode is on, so the card is given out in slices, never whole"
#: Why slices of a card that is not well are not offered.
_OF_CARD = (CardState.UNKNOWN, CardState.GONE, CardState.ILL)


def see_cards(
    inventory: Inventory,
    claims: Iterable[Claim],
    attempts: Attempts,
    hub_id: str,
    *,
    conditions: Mapping[str, Condition] | None = None,
    gone: Iterable[Device] = (),
) -> tuple[Card, ...]:
    """Count claims and reservations on every device, each attempt once with its own container.

    Args:
        conditions: how each card stands, by UUID; one that is not there is judged by the driver's
            word alone.
        gone: cards that were seen before and are not named any more: counted, never offered.
    """
    listed = [c for c in claims if not (c.whose == "mine" and c.lease in attempts)]
    found = conditions or {}
    cards: list[Card] = []
    for device in (*inventory.devices, *gone):
        condition = found.get(device.uuid, by_word(device))
        cards.append(_card(device, inventory, listed, attempts, hub_id, condition))
        cards += [
            _slice(
                one, device, inventory, listed, attempts, hub_id, of_slice(one, condition, found)
            )
            for one in device.slices
        ]
    return tuple(cards)


def of_slice(one: Slice, parent: Condition, conditions: Mapping[str, Condition]) -> Condition:
    """How a slice stands: as its card does, where that is ill or gone; else by itself."""
    if parent.state in _OF_CARD or parent.fault in _OF_CARD:
        return parent
    return conditions.get(one.uuid, parent)


def _card(
    device: Device,
    inventory: Inventory,
    claims: list[Claim],
    attempts: Attempts,
    hub_id: str,
    condition: Condition,
) -> Card:
    near = loads(claims, inventory, device.uuid) if device.uuid else []
    unavailable, settling = condition.why, condition.state is CardState.SETTLING
    if device.mig and (settling or not unavailable):
        unavailable, settling = SLICED, False
    return Card(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        memory_mib=device.memory_mib,
        load=_load(device.uuid, near, inventory, attempts),
        unavailable=unavailable,
        settling=settling,
        foreign=_foreign(condition, near),
        order=_order(hub_id, device.uuid),
        display=device.display,
        screen_mib=_screen_mib(device, taken=bool(near)),
        numa_node=device.numa_node,
        sliced=bool(device.mig),
    )


def _slice(
    one: Slice,
    device: Device,
    inventory: Inventory,
    claims: list[Claim],
    attempts: Attempts,
    hub_id: str,
    condition: Condition,
) -> Card:
    # Also of a card that is gone: its slices are not in the inventory any more.
    near = [c for c in claims if c.devices & {one.uuid, device.uuid}]
    return Card(
        uuid=one.uuid,
        index=device.index,
        model=device.model,
        memory_mib=one.memory_mib,
        load=_load(one.uuid, near, inventory, attempts),
        unavailable=condition.why,
        settling=condition.state is CardState.SETTLING,
        foreign=_foreign(condition, near),
        order=_order(hub_id, one.uuid),
        mig_profile=one.profile,
        parent=device.uuid,
        numa_node=device.numa_node,
    )


def _load(uuid: str, near: list[Claim], inventory: Inventory, attempts: Attempts) -> Fraction:
    load = sum((c.size for c in near), Fraction(0))
    if any(c.bars_exclusive for c in near):
        load = max(load, Fraction(1))
    return load + attempts.taking(inventory.neighbours(uuid) | {uuid}) if uuid else load


def _foreign(condition: Condition, near: list[Claim]) -> bool:
    return bool(condition.strangers) or any(c.whose == "outsider" for c in near)


def _screen_mib(device: Device, *, taken: bool) -> int:
    """Memory that the desktop has on a display card: what nobody else can get."""
    if not device.display:
        return 0
    sizes = [p.used_mib for p in device.processes if p.kind == "graphics"]
    if sizes and None not in sizes:
        return sum(size or 0 for size in sizes)
    # Not told for each process: all that is in use, where nobody else can be using it.
    return 0 if taken else device.used_mib or 0


def _order(hub_id: str, uuid: str) -> int:
    """Hubs on one engine try cards in different orders, so that they seldom meet."""
    return int.from_bytes(hashlib.sha256(f"{hub_id} {uuid}".encode()).digest()[:8], "big")


def holdings(
    rows: Iterable[Row],
    hub_id: str,
    attempts: Attempts,
    leaving: Collection[str] = (),
    owners: Mapping[str, tuple[str, str]] | None = None,
) -> tuple[Held, ...]:
    """What the servers of this hub hold or are about to hold, those without a GPU included.

    Args:
        rows: the engine's list.
        leaving: leases whose containers are being removed. They still take cards, but the user
            has given them up: so have attempts that are being released.
        owners: (user, server) by lease, as the hub names them now. A user who was renamed while
            the server runs has another name than the container's label.
    """
    found: list[Held] = []
    for row in rows:
        if not row.mine(hub_id) or row.lease in attempts or row.lease in leaving:
            continue
        devices = [d for d in row.labels.get(names.LABEL_DEVICES, "").split(",") if d]
        if row.labels.get(names.LABEL_ROLE) or row.state in (*ENDED_STATES, "exited"):
            continue
        labelled = (row.labels.get(names.LABEL_USER, ""), row.labels.get(names.LABEL_SERVER, ""))
        user, server = (owners or {}).get(row.lease, labelled)
        profile = row.labels.get(names.LABEL_PROFILE, "")
        found.append(Held(user, server, profile, len(devices) * share_of(row.labels)))
    for attempt in attempts:
        if attempt.state is not State.RELEASING:
            user, server = attempt.owner
            cards = len(attempt.devices) * attempt.share
            found.append(Held(user, server, attempt.profile, cards))
    return tuple(sorted(found, key=lambda h: (h.user, h.server, h.profile, h.cards)))
