"""A driver whose cards, processes and silences a test switches."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gpuspawner.devices import Device, Inventory, Process
from gpuspawner.errors import ProbeError
from gpuspawner.simulated_inventory import simulated_inventory

from .hub import FakeHub


class FakeDriver:
    """The source of a hub's probes.

    Attributes:
        processes: by UUID, what is at work on a card.
        faults: by UUID, fields of the card that differ from a well one's.
        missing: UUIDs of cards that the driver does not name.
        silent: True while it gives no answer.
        open: cleared, probes begin and do not end.
        readings: what it told, one after another.
    """

    description = "a driver of a test"

    def __init__(self, inventory: Inventory) -> None:
        self._devices = inventory.devices
        self.processes: dict[str, list[Process]] = {}
        self.faults: dict[str, dict[str, object]] = {}
        self.missing: set[str] = set()
        self.silent = False
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()
        self.readings: list[Inventory] = []

    @property
    def uuids(self) -> list[str]:
        return [device.uuid for device in self._devices]

    async def read(self) -> Inventory:
        self.asked += 1
        inventory = Inventory(tuple(self._card(d) for d in self._devices if self._named(d)))
        await self.open.wait()
        if self.silent:
            raise ProbeError("the driver is silent", kind="timeout")
        self.readings.append(inventory)
        return inventory

    def _named(self, device: Device) -> bool:
        return device.uuid not in self.missing

    def _card(self, device: Device) -> Device:
        changes = dict(self.faults.get(device.uuid, {}))
        processes = tuple(self.processes.get(device.uuid, ()))
        return replace(device, processes=processes, **changes)  # type: ignore[arg-type]


def drive(hub: FakeHub, cards: int = 4) -> FakeDriver:
    """Give a hub a driver with these cards, all well."""
    driver = FakeDriver(simulated_inventory(cards))
    hub.pool.prober._source = driver
    return driver
