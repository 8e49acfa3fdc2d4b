"""What the machine has: devices, MIG slices, processes and links, as frozen values.

Everything here is plain data read from a probe (see :mod:`gpuspawner.nvml` for the producer).
A value the driver or card does not support is ``None``, never an exception. Memory is in MiB
(2**20 bytes), as NVML's byte counts divided down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

#: How a process uses a device. Graphics processes (a desktop) are not compute work.
ProcessKind = Literal["compute", "graphics"]

#: NVML's common ancestor of two cards, nearest first.
TOPOLOGY_LEVELS = ("internal", "single", "multiple", "hostbridge", "node", "system")


@dataclass(frozen=True)
class Process:
    """One process on a device.

    Attributes:
        pid: PID in the host's PID namespace, as NVML reports it.
        kind: ``compute`` or ``graphics``.
        used_mib: device memory in MiB, None where the driver does not tell.
        container_id: 64 hex digits, read from ``/proc/<pid>/cgroup`` at probe time; None if the
            process is in no container or that could not be read.
    """

    pid: int
    kind: ProcessKind
    used_mib: int | None = None
    container_id: str | None = None


@dataclass(frozen=True)
class Slice:
    """One MIG slice of a card.

    Attributes:
        uuid: ``MIG-…``.
        profile: such as ``1g.10gb``.
        memory_mib: size of the slice in MiB.
        parent: UUID of the card it is cut from.
        index: NVML's sparse MIG handle index on the parent.
    """

    uuid: str
    profile: str
    memory_mib: int | None
    parent: str
    index: int
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Device:
    """One physical card.

    Attributes:
        uuid: ``GPU-…``; empty only for a card so lost that the driver names none.
        index: NVML index, which moves between reboots. Never used to hand out a card.
        minor: number N of ``/dev/nvidiaN``; may differ from index.
        pci_bus_id: such as ``00000000:0A:00.0``.
        memory_mib: total memory in MiB.
        used_mib: used memory in MiB, without the driver's reserve where the driver tells it apart.
        reserved_mib: the driver's own reserve in MiB.
        mig: True if MIG mode is on, False if off, None if the card has no MIG.
        processes: those on the card; those in its slices are listed there only.
        recovery_action: ``none`` when healthy, else NVML's word (``gpu-reset``, ``node-reboot``,
            ``drain-p2p``, ``drain-and-reset``, ``recover-imex-domain``, ``bus-reset``,
            ``system-reboot``, or ``unknown-N``); None where not supported.
        display: True if a display is active on the card.
        error: why this card could not be read (``GPU is lost``), else empty. Such a card is never
            offered; it does not hide the others.
        numa_node: NUMA node the card sits at, from sysfs; None where not told.
    """

    uuid: str
    index: int
    model: str = ""
    minor: int | None = None
    pci_bus_id: str | None = None
    memory_mib: int | None = None
    used_mib: int | None = None
    reserved_mib: int | None = None
    mig: bool | None = None
    slices: tuple[Slice, ...] = ()
    processes: tuple[Process, ...] = ()
    recovery_action: str | None = None
    display: bool = False
    error: str = ""
    numa_node: int | None = None

    @property
    def ill(self) -> str:
        """Why the card must not be offered, in words for the admin; empty if it is well."""
        if self.error:
            return self.error
        if self.recovery_action not in (None, "none"):
            return f"the driver asks for recovery action {self.recovery_action!r}"
        return ""


@dataclass(frozen=True)
class Link:
    """How two cards are joined.

    Attributes:
        a, b: UUIDs, in index order.
        nvlinks: number of active NVLink links between the two; None where not told.
        p2p: True if peer-to-peer reads work; None where not told.
        ancestor: one of :data:`TOPOLOGY_LEVELS`, None where not told.
    """

    a: str
    b: str
    nvlinks: int | None = None
    p2p: bool | None = None
    ancestor: str | None = None


@dataclass(frozen=True)
class Inventory:
    """All that one probe saw.

    Attributes:
        complete: False if a device could not even be named; then an unknown id may be that one.
        source: ``nvml``, ``fixed`` or ``simulated``.
        former: slices that earlier probes saw and this one did not. Who was given one may still be
            at work on its parent.
    """

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    source: str = "nvml"
    complete: bool = True
    former: tuple[Slice, ...] = ()
    by_uuid: Mapping[str, Device] = field(init=False, repr=False, compare=False)
    slice_by_uuid: Mapping[str, Slice] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Lookup tables, derived; a frozen dataclass needs object.__setattr__ for them.
        object.__setattr__(self, "by_uuid", {d.uuid: d for d in self.devices if d.uuid})
        object.__setattr__(
            self, "slice_by_uuid", {s.uuid: s for d in self.devices for s in d.slices}
        )

    def neighbours(self, uuid: str) -> frozenset[str]:
        """Devices that share silicon with ``uuid``: a slice's parent, or a parent's slices.

        Not transitive: sibling slices do not share.
        """
        if uuid in self.slice_by_uuid:
            return frozenset({self.slice_by_uuid[uuid].parent})
        slices = (*self.slice_by_uuid.values(), *self.former)
        return frozenset(
            [s.uuid for s in slices if s.parent == uuid]
            + [s.parent for s in self.former if s.uuid == uuid]
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict; :meth:`from_dict` reads it back."""
        return {
            "devices": [asdict(d) for d in self.devices],
            "links": [asdict(link) for link in self.links],
            "driver_version": self.driver_version,
            "cuda_version": self.cuda_version,
            "source": self.source,
            "complete": self.complete,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Inventory:
        """Read what :meth:`to_dict` wrote.

        Raises:
            KeyError, TypeError, ValueError: the data is not such a dict.
        """
        return cls(
            devices=tuple(_device(d) for d in data["devices"]),
            links=tuple(Link(**link) for link in data.get("links", ())),
            driver_version=data.get("driver_version"),
            cuda_version=data.get("cuda_version"),
            source=data.get("source", "nvml"),
            complete=data.get("complete", True),
        )


def _processes(items: Iterable[Mapping[str, Any]]) -> tuple[Process, ...]:
    return tuple(Process(**p) for p in items)


def _device(data: Mapping[str, Any]) -> Device:
    fields = dict(data)
    fields["processes"] = _processes(fields.get("processes", ()))
    fields["slices"] = tuple(
        Slice(**{**s, "processes": _processes(s.get("processes", ()))})
        for s in fields.get("slices", ())
    )
    return Device(**fields)
