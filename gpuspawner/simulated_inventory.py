"""Cards that do not exist: whole or cut into slices, linked in groups, to try things out."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from gpuspawner.devices import Device, Inventory, Link, Slice
from gpuspawner.errors import ConfigError
from gpuspawner.fixed_inventory import MIG_PROFILE, mig_mib

SIMULATED_CARDS = 4
SIMULATED_MODEL = "NVIDIA A100-SXM4-40GB"
SIMULATED_MEMORY_MIB = 40960
_MOST_SIMULATED = 256
_SIMULATED_KEYS = ("simulated", "model", "memory_mib", "mig", "nvlink_groups")


def simulated_inventory(
    count: int = SIMULATED_CARDS,
    model: str = SIMULATED_MODEL,
    memory_mib: int = SIMULATED_MEMORY_MIB,
    *,
    mig: Sequence[str] = (),
    nvlink_groups: Sequence[int] = (),
) -> Inventory:
    """``count`` idle cards, each pair joined by NVLink.

    UUIDs depend on the card's number alone, so two hubs that simulate on one engine mean the same
    cards, today and tomorrow.

    Args:
        mig: profiles of the slices that each card is cut into, such as ``1g.5gb``; empty for whole
            cards.
        nvlink_groups: sizes of the groups that NVLinks join, in order; empty for one group of all.
            Each is at a NUMA node of its own. Cards that are left over have no NVLinks.
    """
    groups = [n for n, size in enumerate(nvlink_groups or [count]) for _ in range(size)]
    groups += range(len(groups), count)
    devices = tuple(
        Device(
            uuid=f"GPU-{_simulated_id(str(index))}",
            index=index,
            model=model,
            minor=index,
            pci_bus_id=f"{index // 255:08X}:{index % 255 + 1:02X}:00.0",
            memory_mib=memory_mib,
            used_mib=0,
            reserved_mib=0,
            mig=bool(mig),
            slices=tuple(
                Slice(
                    uuid=f"MIG-{_simulated_id(f'{index}-{place}')}",
                    profile=profile,
                    memory_mib=mig_mib(profile),
                    parent=f"GPU-{_simulated_id(str(index))}",
                    index=place,
                )
                for place, profile in enumerate(mig)
            ),
            recovery_action="none",
            numa_node=groups[index] if nvlink_groups else 0,
        )
        for index in range(count)
    )
    links = tuple(
        Link(a.uuid, b.uuid, nvlinks=12, p2p=True, ancestor="node")
        if groups[a.index] == groups[b.index]
        else Link(a.uuid, b.uuid, nvlinks=0, p2p=True, ancestor="system")
        for i, a in enumerate(devices)
        for b in devices[i + 1 :]
    )
    return Inventory(devices=devices, links=links, source="simulated")


def _simulated_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"gpuspawner-simulated-{name}")


def simulated_from_config(value: Mapping[Any, Any], allowed: str) -> Inventory:
    """The cards of ``c.GPUPool.inventory = {"simulated": N, ...}``.

    Args:
        allowed: what may be written, in words.

    Raises:
        ConfigError: naming the key, the value and what is allowed.
    """
    unknown = [key for key in value if key not in _SIMULATED_KEYS]
    if unknown or "simulated" not in value:
        wrong = f"the unknown key {unknown[0]!r}" if unknown else "no key 'simulated'"
        raise ConfigError(f"GPUPool.inventory is a dict with {wrong}; {allowed}")
    count = value["simulated"]
    model = value.get("model", SIMULATED_MODEL)
    memory_mib = value.get("memory_mib", SIMULATED_MEMORY_MIB)
    if type(count) is not int or not 1 <= count <= _MOST_SIMULATED:
        raise ConfigError(
            f"GPUPool.inventory['simulated'] is {count!r}; use a number of cards from 1 to "
            f"{_MOST_SIMULATED}, such as 4"
        )
    if not isinstance(model, str) or not model:
        raise ConfigError(
            f"GPUPool.inventory['model'] is {model!r}; use a name such as {SIMULATED_MODEL!r}"
        )
    if type(memory_mib) is not int or memory_mib < 1:
        raise ConfigError(
            f"GPUPool.inventory['memory_mib'] is {memory_mib!r}; use a whole number of MiB "
            f"above 0, such as {SIMULATED_MEMORY_MIB}"
        )
    mig = _mig_from_config(value.get("mig", []), memory_mib)
    groups = _groups_from_config(value.get("nvlink_groups", []), count)
    return simulated_inventory(count, model, memory_mib, mig=mig, nvlink_groups=groups)


def _mig_from_config(profiles: Any, memory_mib: int) -> Sequence[str]:
    allowed = (
        "use a list of MIG profiles that each card is cut into, such as ['3g.20gb', '2g.10gb']"
    )
    right = isinstance(profiles, (list, tuple)) and all(
        isinstance(p, str) and MIG_PROFILE.fullmatch(p) for p in profiles
    )
    if not right:
        raise ConfigError(f"GPUPool.inventory['mig'] is {profiles!r}; {allowed}")
    total = sum(mig_mib(p) for p in profiles)
    if total > memory_mib:
        raise ConfigError(
            f"GPUPool.inventory['mig'] is {profiles!r}, together {total} MiB of a card with "
            f"{memory_mib} MiB; use fewer or smaller ones, or a larger 'memory_mib'"
        )
    return list(profiles)


def _groups_from_config(sizes: Any, count: int) -> Sequence[int]:
    right = isinstance(sizes, (list, tuple)) and all(type(s) is int and s > 0 for s in sizes)
    if not right or sum(sizes) > count:
        raise ConfigError(
            f"GPUPool.inventory['nvlink_groups'] is {sizes!r}; use the sizes of the groups that "
            f"NVLinks join, together at most {count}, such as [2, 2]"
        )
    return list(sizes)
