"""Short ways to write listings, claims and cards in tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from gpuspawner.claims import Claim, Listing, Row
from gpuspawner.devices import Device, Inventory, Slice

IMAGE = "sha256:" + "1" * 64
HUB = "a" * 32
OTHER_HUB = "b" * 32


def cards(count: int, **fields: Any) -> Inventory:
    """``count`` whole cards GPU-0, GPU-1, … with minors the other way round."""
    return Inventory(
        tuple(
            Device(
                f"GPU-{i}",
                i,
                minor=count - 1 - i,
                pci_bus_id=f"00000000:{i + 10:02X}:00.0",
                memory_mib=40960,
            )
            for i in range(count)
        ),
        **fields,
    )


def sliced() -> Inventory:
    """GPU-0 cut into MIG-a and MIG-b; GPU-1 whole."""
    slices = tuple(
        Slice(f"MIG-{letter}", "1g.10gb", 9856, "GPU-0", index)
        for letter, index in (("a", 0), ("b", 3))
    )
    return Inventory(
        (
            Device("GPU-0", 0, minor=0, mig=True, slices=slices),
            Device("GPU-1", 1, minor=1, mig=False),
        )
    )


def ours(
    *devices: str,
    id: str = "c1",  # noqa: A002 - the row's own word
    state: str = "created",
    hub: str = HUB,
    lease: str = "L1",
    created: int = 1000,
    image_id: str = IMAGE,
    **labels: str,
) -> Row:
    """A row of a gpuspawner hub; further labels without their prefix."""
    own = {"hub": hub, "lease": lease, "image": IMAGE, "devices": ",".join(devices), **labels}
    return Row(
        id=id,
        created=created,
        image_id=image_id,
        state=state,
        labels={f"gpuspawner.{key}": value for key, value in own.items()},
        names=(f"/{id}",),
    )


def foreign(
    id: str = "x1",  # noqa: A002
    *,
    state: str = "running",
    created: int = 1000,
    labels: Mapping[str, str] | None = None,
) -> Row:
    """A row of somebody else."""
    return Row(id=id, created=created, image_id=IMAGE, state=state, labels=labels or {})


def claim(
    id: str,  # noqa: A002
    devices: Iterable[str],
    *,
    size: Fraction | int = 1,
    state: str = "created",
    created: int = 1000,
    whose: Any = "mine",
    bars_exclusive: bool = False,
) -> Claim:
    row = Row(id=id, created=created, image_id=IMAGE, state=state)
    return Claim(row, frozenset(devices), Fraction(size), whose, bars_exclusive)


def listing(*rows: Row, at: float = 1000.0) -> Listing:
    return Listing(rows, at)
