"""One reading of all cards through NVML, as an :class:`~gpuspawner.devices.Inventory`.

Meant for a short-lived process (:mod:`gpuspawner.probe`): the library is never unloaded, may hang
in the driver and may crash. What a card or driver does not support becomes None. A card that
can't be read carries its ``error`` and hides no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuspawner.devices import Device, Inventory, Link, Process, ProcessKind, Slice
from gpuspawner.nvml_calls import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NO_PERMISSION,
    NOT_TOLD,
    UnreadableError,
    ask,
    driver_fault,
    must,
)

#: Container id of a host PID; None if it is in none or that can't be read. Raises
#: ProcessLookupError if there is no such process.
Attribute = Callable[[int], "str | None"]

_MIB = 2**20

_FIELD_RECOVERY_ACTION = 230
_P2P_READ, _P2P_NVLINK = 0, 2  # nvidia-ml-py's own name for the first is a tuple by mistake

_RECOVERY = {
    0: "none",
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}

_ANCESTORS = {
    0: "internal",
    10: "single",
    20: "multiple",
    30: "hostbridge",
    40: "node",
    50: "system",
}


def read_inventory(attribute: Attribute, sysfs: Path = Path("/sys")) -> Inventory:
    """Ask NVML for everything once.

    Args:
        attribute: container id of a host PID (see :data:`Attribute`).
        sysfs: where the kernel's sysfs is mounted; the source of NUMA nodes.

    Raises:
        ProbeError: the driver as a whole gave no answer; ``kind`` says which way.
    """
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise driver_fault(error) from error
    cards = [_read_card(index, attribute, sysfs) for index in range(count)]
    if cards and all(card.code == NO_PERMISSION for card in cards):
        raise driver_fault(pynvml.NVMLError(NO_PERMISSION))
    well = [card for card in cards if not card.device.error]
    links = [_link(a, b) for i, a in enumerate(well) for b in well[i + 1 :]]
    return Inventory(
        devices=tuple(card.device for card in cards),
        links=tuple(links),
        driver_version=_system(pynvml.nvmlSystemGetDriverVersion),
        cuda_version=_cuda_version(),
        complete=all(card.complete for card in cards),
    )


def _system(call: Callable[..., Any]) -> Any:
    try:
        return ask(call)
    except UnreadableError:
        # A version that can't be read is no reason to lose the cards.
        return None


def _cuda_version() -> str | None:
    number = _system(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    if number is None:
        number = _system(pynvml.nvmlSystemGetCudaDriverVersion)
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


@dataclass
class _Card:
    """A device with what is needed to ask about its links.

    ``complete`` is False if it, or one of its slices, could not be named. ``remotes`` counts the
    active NVLinks by the PCI bus id at their other end ("" where not told); None: no NVLink told.
    """

    device: Device
    handle: Any = None
    code: int = 0
    complete: bool = True
    remotes: Counter[str] | None = field(default=None)


def _read_card(index: int, attribute: Attribute, sysfs: Path) -> _Card:
    # Filled step by step, identity first: of a card lost half-way we keep what was told before.
    known: dict[str, Any] = {"uuid": "", "index": index}
    try:
        handle = must(pynvml.nvmlDeviceGetHandleByIndex, index)
        known["uuid"] = must(pynvml.nvmlDeviceGetUUID, handle)
        known["model"] = ask(pynvml.nvmlDeviceGetName, handle) or ""
        known["minor"] = ask(pynvml.nvmlDeviceGetMinorNumber, handle)
        pci = ask(pynvml.nvmlDeviceGetPciInfo_v3, handle)
        known["pci_bus_id"] = _bus_id(pci)
        known["numa_node"] = _numa_node(known["pci_bus_id"], sysfs)
        known.update(_memory(handle))
        mode = ask(pynvml.nvmlDeviceGetMigMode, handle)
        known["mig"] = None if mode is None else mode[0] == 1
        unnamed = False
        if known["mig"]:
            known["slices"], unnamed = _slices(handle, known["uuid"], attribute)
        processes = _processes(handle, attribute, sliced=bool(known["mig"]))
        in_slices = {p.pid for s in known.get("slices", ()) for p in s.processes}
        known["processes"] = tuple(p for p in processes if p.pid not in in_slices)
        known["recovery_action"] = _recovery_action(handle)
        known["display"] = bool(ask(pynvml.nvmlDeviceGetDisplayActive, handle))
        remotes = _remotes(handle)
    except UnreadableError as fault:
        device = Device(**known, error=str(fault))
        return _Card(device, code=fault.code, complete=bool(device.uuid))
    return _Card(Device(**known), handle, complete=not unnamed, remotes=remotes)


def _bus_id(pci: Any) -> str | None:
    return None if pci is None else str(pci.busId).upper() or None


def _numa_node(pci_bus_id: str | None, sysfs: Path) -> int | None:
    # nvmlDeviceGetNumaNodeId is about memory on the card, not about where the card sits.
    if pci_bus_id is None:
        return None
    domain, _, rest = pci_bus_id.partition(":")
    try:
        path = sysfs / f"bus/pci/devices/{int(domain, 16):04x}:{rest.lower()}/numa_node"
        node = int(path.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _memory(handle: Any) -> dict[str, int]:
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if memory is not None:
        return {
            "memory_mib": memory.total // _MIB,
            "used_mib": memory.used // _MIB,
            "reserved_mib": memory.reserved // _MIB,
        }
    # The old call counts the driver's own reserve as used, and does not tell it.
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is None:
        return {}
    return {"memory_mib": memory.total // _MIB, "used_mib": memory.used // _MIB}


def _slices(handle: Any, parent: str, attribute: Attribute) -> tuple[tuple[Slice, ...], bool]:
    """The MIG slices of a card, and whether one of them could not be named."""
    found, unnamed = [], False
    for index in range(ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        # Slices keep their index when others are removed: a gap is not the end.
        mig = ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if mig is None:
            continue
        uuid = ask(pynvml.nvmlDeviceGetUUID, mig)
        if not uuid:
            unnamed = True
            continue
        attributes = ask(pynvml.nvmlDeviceGetAttributes_v2, mig)
        found.append(
            Slice(
                uuid=uuid,
                profile=_profile(ask(pynvml.nvmlDeviceGetName, mig) or "", attributes),
                memory_mib=_memory(mig).get("memory_mib")
                if attributes is None
                else int(attributes.memorySizeMB),
                parent=parent,
                index=index,
                processes=_processes(mig, attribute, sliced=False),
            )
        )
    return tuple(found), unnamed


def _profile(name: str, attributes: Any) -> str:
    """``1g.10gb`` of ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``; older drivers leave it out there."""
    _, marker, profile = name.partition(" MIG ")
    if marker:
        return profile.strip()
    if attributes is None:
        return ""
    gpu, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    prefix = f"{compute}c." if compute != gpu else ""
    return f"{prefix}{gpu}g.{ceil(attributes.memorySizeMB / 1024)}gb"


#: The lists NVML keeps, with the older call for drivers before 510. Clients of MPS are in a list of
#: their own, and compute.
_PROCESS_LISTS: tuple[tuple[str, ProcessKind], ...] = (
    ("nvmlDeviceGetComputeRunningProcesses", "compute"),
    ("nvmlDeviceGetMPSComputeRunningProcesses", "compute"),
    ("nvmlDeviceGetGraphicsRunningProcesses", "graphics"),
)


def _processes(handle: Any, attribute: Attribute, *, sliced: bool) -> tuple[Process, ...]:
    """Processes on a card or slice, each once per kind, in the order of their PIDs.

    A list that the driver does not keep is empty. One that it refuses to show is not: the card is
    unreadable then, save for a sliced one, where only root sees the whole and the slices tell.
    """
    found: dict[tuple[ProcessKind, int], Process] = {}
    for name, kind in _PROCESS_LISTS:
        for raw, container_id in _attributed(name, handle, attribute, sliced):
            found.setdefault(
                (kind, raw.pid),
                Process(
                    pid=raw.pid,
                    kind=kind,
                    used_mib=None if raw.usedGpuMemory is None else raw.usedGpuMemory // _MIB,
                    container_id=container_id,
                ),
            )
    return tuple(found[key] for key in sorted(found))


def _attributed(
    name: str, handle: Any, attribute: Attribute, sliced: bool
) -> list[tuple[Any, str | None]]:
    # A process that ended between the driver's list and /proc would look like a stranger's: look
    # again, without it. One that /proc still does not show (another PID namespace) stays unowned.
    seen = [(raw, *_owner(raw.pid, attribute)) for raw in _listed(name, handle, sliced)]
    if any(gone for _, _, gone in seen):
        seen = [(raw, *_owner(raw.pid, attribute)) for raw in _listed(name, handle, sliced)]
    return [(raw, container_id) for raw, container_id, _ in seen]


def _owner(pid: int, attribute: Attribute) -> tuple[str | None, bool]:
    try:
        return attribute(pid), False
    except ProcessLookupError:
        return None, True


def _listed(name: str, handle: Any, sliced: bool, tries: int = 3) -> list[Any]:
    try:
        return list(must(getattr(pynvml, f"{name}_v3"), handle))
    except UnreadableError as fault:
        if fault.code == INSUFFICIENT_SIZE and tries > 1:  # more came while we looked
            return _listed(name, handle, sliced, tries - 1)
        if fault.code == FUNCTION_NOT_FOUND:
            return list(ask(getattr(pynvml, f"{name}_v2"), handle) or ())
        if fault.code in NOT_TOLD and (sliced or fault.code != NO_PERMISSION):
            return []
        raise


def _recovery_action(handle: Any) -> str | None:
    values = ask(pynvml.nvmlDeviceGetFieldValues, handle, [_FIELD_RECOVERY_ACTION])
    if values is None:
        return None
    value = values[0]
    if value.nvmlReturn in NOT_TOLD:
        return None
    if value.nvmlReturn:
        error = pynvml.NVMLError(value.nvmlReturn)
        raise UnreadableError(f"{error} (recovery action)", value.nvmlReturn)
    number = int(value.value.uiVal)
    return _RECOVERY.get(number, f"unknown-{number}")


def _remotes(handle: Any) -> Counter[str] | None:
    told, remotes = False, Counter[str]()
    for link in range(getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18)):
        state = ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            continue
        told = True
        if state:
            pci = ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            remotes[_bus_id(pci) or ""] += 1
    return remotes if told else None


def _link(a: _Card, b: _Card) -> Link:
    try:
        p2p = ask(pynvml.nvmlDeviceGetP2PStatus, a.handle, b.handle, _P2P_READ)
        level = ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, a.handle, b.handle)
        return Link(
            a.device.uuid,
            b.device.uuid,
            nvlinks=_nvlinks(a, b),
            p2p=None if p2p is None else p2p == 0,
            ancestor=None if level is None else _ANCESTORS.get(level),
        )
    except UnreadableError:
        # How two cards are joined is not worth losing either of them.
        return Link(a.device.uuid, b.device.uuid)


def _nvlinks(a: _Card, b: _Card) -> int | None:
    if a.remotes is None or b.remotes is None:
        return None
    direct = a.remotes[b.device.pci_bus_id or "?"]
    if direct:
        return direct
    # Links that end at a switch join every two cards on it; the driver's word on NVLink between
    # these two decides, since a remote end may be hidden (in a virtual machine, for one).
    through_switch = min(a.remotes.total(), b.remotes.total())
    if through_switch:
        status = ask(pynvml.nvmlDeviceGetP2PStatus, a.handle, b.handle, _P2P_NVLINK)
        if status == 0:
            return through_switch
    return 0
