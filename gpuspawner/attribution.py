"""Whose processes are on the cards, where the probe itself could not tell. Pure.

The probe reads a process's container from ``/proc``. A hub that lives in a container without the
host's ``/proc`` can't; there the engine is asked which processes its containers have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from . import names
from .claims import LIVE_STATES, Row, Survey
from .devices import Device, Inventory, Process, Slice

#: (UUID of card or slice, process) -> the process as it is better known.
_Change = Callable[[str, Process], Process]


def unowned(inventory: Inventory) -> frozenset[int]:
    """PIDs of compute processes whose container is not known."""
    return frozenset(p.pid for _, p in _compute(inventory) if p.container_id is None)


def may_be_at_work(survey: Survey) -> frozenset[str]:
    """Ids of the containers that may have a process on a card: those worth asking about."""
    return frozenset(
        row.id
        for row in survey.listing.rows
        if row.state in LIVE_STATES and _may_be_at_work(row, survey)
    )


def _may_be_at_work(row: Row, survey: Survey) -> bool:
    if row.ours:
        return bool(row.labels.get(names.LABEL_DEVICES) or row.labels.get(names.LABEL_ROLE))
    detail = survey.details.get(row.id)
    return detail is not None and detail.asks.manner != "nothing"


def remembered(inventory: Inventory, earlier: Inventory) -> Inventory:
    """What was known of a process at the last look is known of it still."""
    known = {(unit, p.pid): p.container_id for unit, p in _compute(earlier)}
    return _changed(inventory, lambda unit, p: _owned(p, known.get((unit, p.pid))))


def attributed(inventory: Inventory, tops: Mapping[str, Collection[int]]) -> Inventory:
    """The inventory with owners from the engine.

    Args:
        tops: PIDs on the host, by container id.
    """
    owners = {pid: container for container, pids in tops.items() for pid in pids}
    return _changed(inventory, lambda _, p: _owned(p, owners.get(p.pid)))


def _owned(process: Process, container_id: str | None) -> Process:
    if process.container_id is not None or container_id is None:
        return process
    return replace(process, container_id=container_id)


def _compute(inventory: Inventory) -> list[tuple[str, Process]]:
    units: list[Device | Slice] = [*inventory.devices, *inventory.slice_by_uuid.values()]
    return [(u.uuid, p) for u in units for p in u.processes if p.kind == "compute"]


def _changed(inventory: Inventory, change: _Change) -> Inventory:
    return replace(
        inventory,
        devices=tuple(
            replace(
                device,
                processes=tuple(change(device.uuid, p) for p in device.processes),
                slices=tuple(
                    replace(s, processes=tuple(change(s.uuid, p) for p in s.processes))
                    for s in device.slices
                ),
            )
            for device in inventory.devices
        ),
    )
