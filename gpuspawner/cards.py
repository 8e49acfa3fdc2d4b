"""From devices, claims and reservations to the cards that placement chooses from. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from . import names
from .attempts import Attempts
from .claims import Claim, loads
from .devices import Device, Inventory
from .placement import Card
from .states import State

#: Why a card in MIG mode is not offered whole.
SLICED = "MIG mode is on, so the card can't be given out whole; slices are not in this version"


def see_cards(
    inventory: Inventory, claims: Iterable[Claim], attempts: Attempts, hub_id: str
) -> tuple[Card, ...]:
    """Count claims and reservations on every device, each attempt once with its own container."""
    listed = [c for c in claims if not (c.whose == "mine" and c.lease in attempts)]
    return tuple(_card(d, inventory, listed, attempts, hub_id) for d in inventory.devices)


def _card(
    device: Device, inventory: Inventory, claims: list[Claim], attempts: Attempts, hub_id: str
) -> Card:
    near = loads(claims, inventory, device.uuid) if device.uuid else []
    load = sum((c.size for c in near), Fraction(0))
    if any(c.bars_exclusive for c in near):
        load = max(load, Fraction(1))
    if device.uuid:
        load += attempts.taking(inventory.neighbours(device.uuid) | {device.uuid})
    return Card(
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        memory_mib=device.memory_mib,
        load=load,
        unavailable=device.ill or (SLICED if device.mig else ""),
        foreign=any(c.whose == "outsider" for c in near),
        order=_order(hub_id, device.uuid),
        display=device.display,
    )


def _order(hub_id: str, uuid: str) -> int:
    """Hubs on one engine try cards in different orders, so that they seldom meet."""
    return int.from_bytes(hashlib.sha256(f"{hub_id} {uuid}".encode()).digest()[:8], "big")


@dataclass(frozen=True)
class Holding:
    """Cards that one user's servers have, this hub's and pending ones included.

    Attributes:
        servers: (server name, number of cards), sorted by name.
    """

    servers: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        return sum(count for _, count in self.servers)


def holding(
    user: str,
    claims: Iterable[Claim],
    attempts: Attempts,
    leaving: Collection[str] = (),
    owners: Mapping[str, tuple[str, str]] | None = None,
) -> Holding:
    """What a user's servers on this hub hold or are about to hold, in cards.

    Args:
        leaving: leases whose containers are being removed. They still take cards, but the user
            has given them up: so have attempts that are being released.
        owners: (user, server) by lease, as the hub names them now. A user who was renamed while
            the server runs has another name than the container's label.
    """
    count: dict[str, int] = {}
    for claim in claims:
        if claim.whose != "mine" or claim.lease in attempts or claim.lease in leaving:
            continue
        labels = claim.row.labels
        labelled = (labels.get(names.LABEL_USER, ""), labels.get(names.LABEL_SERVER, ""))
        owner, server = (owners or {}).get(claim.lease, labelled)
        if owner == user:
            count[server] = count.get(server, 0) + len(claim.devices)
    for attempt in attempts:
        if attempt.state is State.RELEASING:
            continue
        if attempt.owner[0] == user and attempt.devices:
            server = attempt.owner[1]
            count[server] = count.get(server, 0) + len(attempt.devices)
    return Holding(tuple(sorted(count.items())))
