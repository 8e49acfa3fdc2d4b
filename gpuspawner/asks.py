"""What a container of somebody else asks of the machine's GPUs, read from its inspection.

Three answers (see :mod:`gpuspawner.claims` for what follows from them): it *holds* devices, it
*observes* (monitoring: blocks nothing), or it *may use* them without having asked (privileged):
then only its processes block.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from . import names
from .devices import Inventory
from .hostconfig import is_nvidia_driver

Manner = Literal["nothing", "holds", "observes", "may-use"]

#: Image repositories of well-known exporters. They ask for all cards and compute on none.
KNOWN_OBSERVERS = (
    "nvidia/k8s/dcgm-exporter",
    "nvidia/dcgm-exporter",
    "nvidia/k8s/dcgm",
    "nvidia/cloud-native/dcgm",
    "utkuozdemir/nvidia_gpu_exporter",
    "mindprince/nvidia_gpu_prometheus_exporter",
    "cadvisor/cadvisor",
    "google/cadvisor",
    "google/cadvisor-canary",
)

ALL = "all"
_NOTHING = frozenset({"", "void", "none"})
_MOUNT_ROOT = "/var/run/nvidia-container-devices"
_NODE = re.compile(r"/dev/nvidia(\d+)$")


@dataclass(frozen=True)
class EngineFacts:
    """What of the engine's ``GET /info`` matters for reading a container.

    Attributes:
        nvidia_runtimes: names of runtimes that are NVIDIA's.
        default_runtime: the runtime of a container that names none.
    """

    nvidia_runtimes: frozenset[str] = frozenset({"nvidia"})
    default_runtime: str = "runc"


@dataclass(frozen=True)
class Asks:
    """What a container asked for.

    Attributes:
        ids: device ids as written: UUID, MIG UUID, index, ``gpu:mig`` pair, PCI bus id, ``all``.
        minors: numbers of ``/dev/nvidia<minor>``.
        counts: ``--gpus N`` requests: the first N cards each.
        cdi: fully qualified CDI names of NVIDIA's kinds.
        why: where the claim was found, for the admin.
    """

    manner: Manner = "nothing"
    ids: frozenset[str] = frozenset()
    minors: frozenset[int] = frozenset()
    counts: frozenset[int] = frozenset()
    cdi: frozenset[str] = frozenset()
    why: str = ""

    def resolve(self, inventory: Inventory) -> tuple[frozenset[str], tuple[str, ...]]:
        """Devices held, and ids that no device answers to.

        An id that resolves to nothing blocks nothing if the inventory is complete, else
        everything: it may be the device that could not be read. A CDI name that resolves to
        nothing always blocks everything, since a CDI file may map any name to any device.
        """
        if self.manner != "holds":
            return frozenset(), ()
        everything = frozenset(inventory.by_uuid)
        held: set[str] = set()
        unresolved: list[str] = []
        for text in sorted(self.ids):
            found = _by_id(text, inventory)
            held |= found
            if not found and text.lower() not in _NOTHING:
                unresolved.append(text)
        for minor in sorted(self.minors):
            found = {d.uuid for d in inventory.devices if d.uuid and d.minor == minor}
            # Else it may be any card whose number is not known.
            found = found or {d.uuid for d in inventory.devices if d.uuid and d.minor is None}
            held |= found
            if not found:
                unresolved.append(f"/dev/nvidia{minor}")
        in_order = sorted((d for d in inventory.devices if d.uuid), key=lambda d: d.index)
        for count in self.counts:
            held |= {d.uuid for d in in_order} if count < 0 else {d.uuid for d in in_order[:count]}
        if unresolved and not inventory.complete:
            held |= everything
        for name in sorted(self.cdi):
            found = _by_id(name.partition("=")[2], inventory)
            if not found:
                unresolved.append(name)
            held |= found or everything
        return frozenset(held), tuple(unresolved)


def _by_id(text: str, inventory: Inventory) -> set[str]:
    """Devices that an id names, by the rules of NVIDIA's container tools."""
    wanted = text.strip().lower()
    if wanted in _NOTHING or wanted == ALL:
        return set(inventory.by_uuid) if wanted == ALL else set()
    if wanted.isdecimal():
        return {d.uuid for d in inventory.devices if d.uuid and d.index == int(wanted)}
    pair = re.fullmatch(r"(\d+):(\d+)", wanted)
    if pair:
        return {
            s.uuid
            for d in inventory.devices
            if d.index == int(pair[1])
            for s in d.slices
            if s.index == int(pair[2])
        }
    known = [*inventory.by_uuid, *inventory.slice_by_uuid]
    exact = {u for u in known if u.lower() == wanted}
    if exact:
        return exact
    if wanted.startswith(("gpu-", "mig-")) and len(wanted) > len("gpu-"):
        # NVIDIA's command line tool takes an abbreviated UUID.
        return {u for u in known if u.lower().startswith(wanted)}
    return {d.uuid for d in inventory.devices if d.uuid and _same_bus(d.pci_bus_id, wanted)}


def _same_bus(bus_id: str | None, wanted: str) -> bool:
    if not bus_id or ":" not in wanted:
        return False
    # The domain is written with four or eight digits, or left out.
    return bus_id.lower().lstrip("0:") == wanted.lstrip("0:")


def parse_asks(
    inspection: Mapping[str, Any],
    facts: EngineFacts,
    observers: Collection[str] = (),
    own_ids: Collection[str] = (),
) -> Asks:
    """Read ``GET /containers/<id>/json``.

    Args:
        observers: image repositories that only monitor, beside :data:`KNOWN_OBSERVERS`.
        own_ids: ids of containers that are the hub's own.
    """
    config = inspection.get("Config") or {}
    host = inspection.get("HostConfig") or {}
    found = _Found()
    for request in _objects(host, "DeviceRequests"):
        found.add_request(request)
    for device in _objects(host, "Devices"):
        found.add_device(str(device.get("PathOnHost") or ""))
    env = _env(config.get("Env"))
    words = _words(env.get("NVIDIA_DRIVER_CAPABILITIES", ""))
    runtime = host.get("Runtime") or facts.default_runtime
    if runtime in facts.nvidia_runtimes:
        found.add_variable(_visible(env), words, f"under runtime {runtime!r}")
    elif found.by_variable:
        found.add_variable(_visible(env), words, "with a device request")
    for target in _mount_targets(host, inspection):
        found.add_mount(target, words)
    manner = found.manner
    if manner == "nothing" and _may_use(host):
        manner = "may-use"
        found.why.append("privileged or /dev")
    if _is_observer(inspection, config, observers, own_ids):
        manner = "observes"
    # The variable, and a request by id from Docker 29.2 on, may name a card by its CDI name.
    by_cdi = {i for i in found.ids if _nvidia_cdi(i)}
    return Asks(
        manner=manner,
        ids=frozenset(found.ids - by_cdi),
        minors=frozenset(found.minors),
        counts=frozenset(found.counts),
        cdi=frozenset(found.cdi | by_cdi),
        why=", ".join(dict.fromkeys(found.why)),
    )


@dataclass
class _Found:
    """What was found so far; ``capabilities`` has an entry for each claim that can tell them."""

    ids: set[str] = field(default_factory=set)
    minors: set[int] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)
    cdi: set[str] = field(default_factory=set)
    capabilities: list[frozenset[str]] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    by_variable: bool = False  # a request without ids or count: the variable says which

    @property
    def manner(self) -> Manner:
        if not (self.ids or self.minors or self.counts or self.cdi):
            return "nothing"
        told = self.capabilities and not self.minors
        return "observes" if told and all(c == {"utility"} for c in self.capabilities) else "holds"

    def add_request(self, request: Mapping[str, Any]) -> None:
        """One of ``HostConfig.DeviceRequests``."""
        driver = str(request.get("Driver") or "").lower()
        groups = [{w.lower() for w in group or ()} for group in request.get("Capabilities") or ()]
        words = frozenset[str]().union(*groups)
        wanted = [str(i) for i in request.get("DeviceIDs") or ()]
        count = int(request.get("Count") or 0)
        if driver == "cdi":
            wanted, count = [name for name in wanted if _nvidia_cdi(name)], 0
            self.cdi |= {*wanted}
            words = frozenset()
        elif driver.startswith("nvidia") or (not driver and is_nvidia_driver(driver, groups)):
            # The engine joins the ids by commas, so one that has commas is several.
            wanted = [part for one in wanted for part in one.split(",")]
            self.ids |= {*wanted}
            if count and not wanted:
                self.counts.add(count)
            self.by_variable |= not (count or wanted)
        else:
            return
        if wanted or count:
            self.capabilities.append(words - {"gpu", "nvidia"})
            self.why.append("device request")

    def add_device(self, path: str) -> None:
        """A host path of ``HostConfig.Devices``."""
        node = _NODE.match(path)
        if node:
            self.minors.add(int(node[1]))
        elif _nvidia_cdi(path):
            self.cdi.add(path)
            self.capabilities.append(frozenset())
        else:
            return
        self.why.append(path)

    def add_variable(self, asked: set[str], words: frozenset[str], where: str) -> None:
        """``NVIDIA_VISIBLE_DEVICES`` of a container for which NVIDIA's tools read it."""
        if asked - _NOTHING:
            self.ids |= asked - _NOTHING
            self.capabilities.append(words)
            self.why.append(f"{names.ENV_NVIDIA_VISIBLE} {where}")

    def add_mount(self, target: str, words: frozenset[str]) -> None:
        """A mount's target; those below NVIDIA's place are device requests."""
        if not target.startswith(_MOUNT_ROOT + "/"):
            return
        parts = [p for p in target[len(_MOUNT_ROOT) :].split("/") if p]
        if len(parts) == 4 and parts[0] == "cdi":
            self.cdi.add(f"{parts[1]}/{parts[2]}={parts[3]}")
        elif len(parts) == 1:
            self.ids.add(parts[0])
        else:
            return
        self.capabilities.append(words)
        self.why.append(f"mount {target}")


def _nvidia_cdi(name: str) -> bool:
    """True for a CDI name that may be an NVIDIA card: NVIDIA's kinds, or anyone's class gpu.

    AMD's and Intel's own names are theirs.
    """
    kind, _, device = name.partition("=")
    vendor, _, cls = kind.partition("/")
    if not device or not cls or "." not in vendor:
        return False
    if vendor in ("amd.com", "intel.com"):
        return False
    return vendor == "nvidia.com" or cls == "gpu"


def _visible(env: Mapping[str, str]) -> set[str]:
    value = env.get(names.ENV_NVIDIA_VISIBLE)
    if value is None:
        # Images from before 2017 say CUDA_VERSION only; NVIDIA's runtime gives them all cards.
        legacy = "CUDA_VERSION" in env and "NVIDIA_REQUIRE_CUDA" not in env
        return {ALL} if legacy else set()
    return {part.strip() for part in value.split(",")}


def _mount_targets(host: Mapping[str, Any], inspection: Mapping[str, Any]) -> Iterable[str]:
    for bind in host.get("Binds") or ():
        parts = str(bind).split(":")
        if len(parts) > 1:
            yield parts[1]
    for mount in _objects(host, "Mounts"):
        yield str(mount.get("Target") or "")
    for mount in _objects(inspection, "Mounts"):
        yield str(mount.get("Destination") or "")


def _may_use(host: Mapping[str, Any]) -> bool:
    if host.get("Privileged") or host.get("DeviceCgroupRules"):
        return True
    sources = [str(b).split(":")[0] for b in host.get("Binds") or ()]
    sources += [str(m.get("Source") or "") for m in _objects(host, "Mounts")]
    sources += [str(d.get("PathOnHost") or "") for d in _objects(host, "Devices")]
    return any(s.rstrip("/") in ("/dev", "") and s for s in sources)


def _is_observer(
    inspection: Mapping[str, Any],
    config: Mapping[str, Any],
    observers: Collection[str],
    own_ids: Collection[str],
) -> bool:
    if inspection.get("Id") in own_ids:
        return True
    if (config.get("Labels") or {}).get(names.LABEL_ROLE) == names.ROLE_OBSERVER:
        return True
    repository = image_repository(str(config.get("Image") or ""))
    return any(
        repository == known or repository.endswith("/" + known)
        for known in (*observers, *KNOWN_OBSERVERS)
    )


def image_repository(image: str) -> str:
    """``registry:5000/a/b:tag@sha256:…`` → ``registry:5000/a/b``."""
    image = image.partition("@")[0]
    head, slash, last = image.rpartition("/")
    return head + slash + last.partition(":")[0]


def _objects(parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """A list of objects that may be absent, null, or have nulls in it."""
    return [one for one in parent.get(key) or () if one]


def _env(entries: Iterable[str] | None) -> dict[str, str]:
    return dict(e.partition("=")[::2] for e in entries or ())


def _words(text: str) -> frozenset[str]:
    return frozenset(w.strip().lower() for w in text.split(",") if w.strip())
