"""Cards written down in the configuration, checked entry by entry.

For a hub that can't ask the driver, or one that is to hand out some of the machine's cards only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuspawner.devices import Device, Slice
from gpuspawner.errors import ConfigError

_EXAMPLE = (
    '{"uuid": "GPU-5d0e2b3c-8f41-4a6b-9c1d-2e7f60a1b2c3", '
    '"model": "NVIDIA A100-SXM4-40GB", "memory_gib": 40}'
)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PCI = re.compile(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{4}):[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\.[0-7]")


#: A MIG profile by name; the group is the GiB that it tells.
MIG_PROFILE = re.compile(r"(?:[1-9]c\.)?[1-9]g\.([1-9][0-9]*)gb(?:[+-][a-z0-9.]+)*")
_MIG_UUID = re.compile(
    r"MIG-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[0-9]+/[0-9]+)"
)


def mig_mib(profile: str) -> int:
    """MiB that a profile's name tells; 0 if it is none."""
    found = MIG_PROFILE.fullmatch(profile)
    return int(found[1]) * 1024 if found else 0


def _named(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _size(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0


#: Field -> (is it right, what is allowed).
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "uuid": (
        lambda v: isinstance(v, str) and _UUID.fullmatch(v) is not None,
        (
            "the card's UUID in lower case as 'nvidia-smi -L' prints it, "
            "such as 'GPU-5d0e2b3c-8f41-4a6b-9c1d-2e7f60a1b2c3'"
        ),
    ),
    "model": (
        lambda v: isinstance(v, str) and bool(v.strip()),
        "a name such as 'NVIDIA A100-SXM4-40GB'",
    ),
    "memory_gib": (_size, "the card's memory in GiB, a number above 0 such as 40"),
    "memory_mib": (
        lambda v: type(v) is int and v > 0,
        "the card's memory in MiB, a whole number above 0 such as 40960",
    ),
    "index": (_whole, "the driver's number of the card, 0 or more"),
    "minor": (_whole, "the number N of /dev/nvidiaN, 0 or more"),
    "pci_bus_id": (
        lambda v: isinstance(v, str) and _PCI.fullmatch(v) is not None,
        "a bus id such as '00000000:0A:00.0'",
    ),
    "numa_node": (_whole, "the number of a NUMA node, 0 or more"),
    "display": (lambda v: isinstance(v, bool), "True if the card drives a screen, else False"),
    "slices": (
        lambda v: (
            isinstance(v, Mapping)
            and bool(v)
            and all(_named(_MIG_UUID, uuid) and _named(MIG_PROFILE, p) for uuid, p in v.items())
        ),
        (
            "the card's MIG slices: the profile of each by its UUID, as 'nvidia-smi -L' prints "
            "them, such as {'MIG-3f0c7b1e-2a55-5d0c-8a30-5b7c1f0e9d11': '1g.10gb'}"
        ),
    ),
}


def devices_from_config(entries: Sequence[Any]) -> tuple[Device, ...]:
    """The cards of ``c.GPUPool.inventory = [...]``.

    Args:
        entries: one dict per card. ``uuid`` is needed. ``model``, ``memory_gib`` or
            ``memory_mib``, ``minor``, ``pci_bus_id``, ``numa_node``, ``display`` and ``slices``
            may be told.
            ``index`` is the entry's place in the list unless told. A ``minor`` is never guessed.

    Raises:
        ConfigError: naming the entry, the field and what is allowed.
    """
    if not entries:
        raise ConfigError(
            "GPUPool.inventory is an empty list; write one entry per card, such as "
            f"[{_EXAMPLE}], or 'nvml' to ask the driver"
        )
    devices = tuple(_device(place, entry) for place, entry in enumerate(entries))
    for field in ("uuid", "index", "minor", "pci_bus_id"):
        _no_twins(devices, field)
    slices = [s.uuid for d in devices for s in d.slices]
    for uuid in slices:
        if slices.count(uuid) > 1:
            raise ConfigError(
                f"GPUPool.inventory has the slice {uuid!r} in two cards; each slice is of one card"
            )
    return devices


def _device(place: int, entry: Any) -> Device:
    where = f"GPUPool.inventory[{place}]"
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} is {entry!r}; write a dict such as {_EXAMPLE}")
    for field, value in entry.items():
        if field not in _FIELDS:
            raise ConfigError(
                f"{where} has the unknown field {field!r}; allowed are {', '.join(_FIELDS)}. "
                f"Example: {_EXAMPLE}"
            )
        right, allowed = _FIELDS[field]
        if not right(value):
            raise ConfigError(f"{where}[{field!r}] is {value!r}; use {allowed}")
    if "uuid" not in entry:
        raise ConfigError(f"{where} has no 'uuid'; use {_FIELDS['uuid'][1]}. Example: {_EXAMPLE}")
    if "memory_gib" in entry and "memory_mib" in entry:
        raise ConfigError(f"{where} has both 'memory_gib' and 'memory_mib'; keep one of them")
    fields = dict(entry)
    if "memory_gib" in fields:
        fields["memory_mib"] = round(fields.pop("memory_gib") * 1024)
    if "pci_bus_id" in fields:
        # As the driver writes it: eight digits of domain, capitals.
        fields["pci_bus_id"] = fields["pci_bus_id"].upper().rjust(16, "0")
    fields.setdefault("index", place)
    slices = fields.pop("slices", {})
    return Device(
        **fields,
        mig=True if slices else None,
        slices=tuple(
            Slice(uuid, profile, mig_mib(profile), entry["uuid"], number)
            for number, (uuid, profile) in enumerate(slices.items())
        ),
    )


def _no_twins(devices: tuple[Device, ...], field: str) -> None:
    first: dict[Any, int] = {}
    for place, device in enumerate(devices):
        value = getattr(device, field)
        if value is None:
            continue
        if value in first:
            raise ConfigError(
                f"GPUPool.inventory[{place}] has the {field} {value!r} that "
                f"GPUPool.inventory[{first[value]}] has already; each card needs one of its own"
                + (". An entry without 'index' has its place" if field == "index" else "")
            )
        first[value] = place
