"""From devices, claims and reservations to the cards that placement chooses from. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction

from . import names
from .attempts import Attempts
from .claims import ENDED_STATES, Claim, Row, loads, share_of
from .devices import Device, Inventory
from .health import Condition, by_word
from .limits import Held
from .request import Card
from .states import CardState, State

#: Why a card in MIG mode is not offered whole.
SLICED = "MIG mode is on, so the card can't be given out whole; slices are not in this version"


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
    return tuple(
        _card(d, inventory, listed, attempts, hub_id, found.get(d.uuid, by_word(d)))
        for d in (*inventory.devices, *gone)
    )


def _card(
    device: Device,
    inventory: Inventory,
    claims: list[Claim],
    attempts: Attempts,
    hub_id: str,
    condition: Condition,
) -> Card:
    near = loads(claims, inventory, device.uuid) if device.uuid else []
    load = sum((c.size for c in near), Fraction(0))
    if any(c.bars_exclusive for c in near):
        load = max(load, Fraction(1))
    if device.uuid:
        load += attempts.taking(inventory.neighbours(device.uuid) | {device.uuid})
    unavailable, settling = condition.why, condition.state is CardState.SETTLING
    if device.mig and (settling or not unavailable):
        unavailable, settling = SLICED, False
    return Card(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        memory_mib=device.memory_mib,
        load=load,
        unavailable=unavailable,
        settling=settling,
        foreign=bool(condition.strangers) or any(c.whose == "outsider" for c in near),
        order=_order(hub_id, device.uuid),
        display=device.display,
        screen_mib=_screen_mib(device, taken=bool(near)),
    )


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
