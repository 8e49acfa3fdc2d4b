"""The last word on a container before it is created: what it may do and which cards it sees.

:func:`contain` takes what DockerSpawner, the admin and hooks merged, and closes it: no
capabilities, no new privileges, never root, no GPU but ours. What opens a container on purpose is
refused unless the setting that allows it is on. :func:`grant` then adds the cards. Both are pure:
keyword arguments of docker-py's ``create_container`` in, a copy out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import names
from .hostconfig import (
    GPU_ENTRIES,
    ContainmentError,
    capability,
    device_allowed,
    device_path,
    exposed_devices,
    items,
    mount_ends,
    security_option,
    spell_host,
    split_requests,
    tidy,
)
from .identity import Identity

__all__ = ["ContainmentError", "Policy", "contain", "grant", "refusals", "reserved_env"]

#: /dev/shm of a server without a memory limit, in bytes.
DEFAULT_SHM_BYTES: Final = 8 * 2**30

_RESERVED_ENV = frozenset(
    {
        names.ENV_NVIDIA_VISIBLE,
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_GPU_MEMORY_LIMIT",
        "NVIDIA_GPU_MEMORY_REQUEST",
        "CUDA_VISIBLE_DEVICES",
        names.ENV_DEVICES,
    }
)
_SWARM_PREFIX = "DOCKER_RESOURCE_"
#: Folders that have every device: too much for ``allow_devices``.
_WHOLE = ("/", "/dev")
_SOCKETS = ("/var/run/docker.sock", "/run/docker.sock")


@dataclass(frozen=True)
class Policy:
    """What a server may have.

    Attributes:
        identity: whom it runs as.
        allow_root, allow_privileged, allow_devices, allow_capabilities: the admin's settings of
            the same names on GPUSpawner.
        shm_size_bytes: size of ``/dev/shm``; 0 means half of the memory limit, else 8 GiB.
    """

    identity: Identity
    allow_root: bool = False
    allow_privileged: bool = False
    allow_devices: tuple[str, ...] = ()
    allow_capabilities: tuple[str, ...] = ()
    shm_size_bytes: int = 0


def reserved_env(name: str) -> bool:
    """True for a variable that says which cards a container sees: ours alone to set."""
    return name in _RESERVED_ENV or name.startswith(_SWARM_PREFIX)


def contain(kwargs: Mapping[str, Any], policy: Policy) -> tuple[dict[str, Any], list[str]]:
    """Close a container's configuration.

    Args:
        kwargs: of docker-py's ``create_container``, with ``host_config`` in the API's form. Not
            changed.
        policy: what the server may have.

    Returns:
        The closed copy, and a line for each thing that was dropped, to be logged.

    Raises:
        ContainmentError: it asks for what the policy does not allow. All reasons are in the text.
    """
    final = dict(kwargs)
    host = spell_host(final.get("host_config") or {})
    notes = _drop_gpus(final, host)
    reasons = refusals(host, policy)
    if reasons:
        raise ContainmentError("; ".join(reasons))
    final["environment"], dropped = _environment(final.get("environment"), policy.identity)
    notes += dropped
    notes += _close_rights(host, policy)
    notes += _set_user(final, host, policy.identity)
    notes += _set_life(host)
    if not host.get("ShmSize"):
        half = int(host.get("Memory") or 0) // 2
        host["ShmSize"] = policy.shm_size_bytes or half or DEFAULT_SHM_BYTES
    final["host_config"] = host
    return final, notes


def refusals(host: Mapping[str, Any], policy: Policy) -> list[str]:
    """Why a host config is not allowed, each reason with the setting that would allow it.

    GPUs are not looked at: they are dropped or refused elsewhere.
    """
    reasons = []
    if not policy.allow_privileged:
        opened = _opened(host)
        if opened:
            reasons.append(
                f"the container's configuration has {', '.join(opened)}, which opens it to the "
                "whole host; remove that, or set GPUSpawner.allow_privileged = True"
            )
        allowed = {capability(name) for name in policy.allow_capabilities}
        added = {capability(name) for name in items(host.get("CapAdd"))}
        extra = sorted(added - allowed - set(policy.identity.capabilities))
        if extra:
            reasons.append(
                f"cap_add has {', '.join(extra)}; remove that, or set "
                f"GPUSpawner.allow_capabilities = {extra}"
            )
        devices = _devices(host, policy.allow_devices)
        if devices:
            reasons.append(
                f"the host's devices {', '.join(devices)} are given to the container; remove "
                f"that, or set GPUSpawner.allow_devices = {devices}"
            )
    if not policy.allow_root:
        groups = [str(group).strip() for group in items(host.get("GroupAdd"))]
        roots = [group for group in groups if group == "root" or group.strip("+-0") == ""]
        if roots:
            reasons.append(
                f"group_add has root's group ({roots[0]}); remove it, or set "
                "GPUSpawner.allow_root = True"
            )
    return reasons


def _opened(host: Mapping[str, Any]) -> list[str]:
    opened = ["privileged=True"] if host.get("Privileged") else []
    for key, name in (
        ("PidMode", "pid_mode"),
        ("IpcMode", "ipc_mode"),
        ("UsernsMode", "userns_mode"),
    ):
        value = str(host.get(key) or "")
        if value == "host" or value.startswith("container:"):
            opened.append(f"{name}={value!r}")
    if items(host.get("VolumesFrom")):
        opened.append(f"volumes_from={items(host.get('VolumesFrom'))}")
    opened += [key for key in ("MaskedPaths", "ReadonlyPaths") if host.get(key) is not None]
    for option in items(host.get("SecurityOpt")):
        name, value = security_option(option)
        # The engine reads that value as Go does: "False", "0" and "f" are false too.
        on = value.lower() in ("", "true", "1", "t")
        if value == "unconfined" or (name == "no-new-privileges" and not on):
            opened.append(f"security_opt {str(option)!r}")
    opened += [f"the host's whole {path!r}" for path in _host_paths(host) if path in _WHOLE]
    return opened


def _host_paths(host: Mapping[str, Any]) -> list[str]:
    """The host's device nodes and folders of them that come in as a device or a mount."""
    devices = [tidy(device_path(device)) for device in items(host.get("Devices"))]
    return devices + [path for path in map(exposed_devices, _mounts(host)) if path]


def _mounts(host: Mapping[str, Any]) -> list[Any]:
    return [*items(host.get("Binds")), *items(host.get("Mounts"))]


def _devices(host: Mapping[str, Any], allowed: Sequence[str]) -> list[str]:
    paths = [path for path in _host_paths(host) if path not in _WHOLE]
    bad = [path for path in paths if not device_allowed(path, allowed)]
    rules = [str(rule) for rule in items(host.get("DeviceCgroupRules"))]
    return bad + [rule for rule in rules if rule not in allowed]


def _drop_gpus(final: dict[str, Any], host: dict[str, Any]) -> list[str]:
    """Take out every way to a GPU but ours. A server's cards come from its profile."""
    kept, dropped = split_requests(host.get("DeviceRequests"))
    dropped = [f"a device request ({text})" for text in dropped]
    host["DeviceRequests"] = kept
    for key, is_gpu in GPU_ENTRIES.items():
        entries = items(host.get(key))
        gone = [entry for entry in entries if is_gpu(entry)]
        if gone:
            host[key] = [entry for entry in entries if entry not in gone]
            dropped += [f"{key} entry {entry!r}" for entry in gone]
            targets = {mount_ends(entry)[1] for entry in gone}
            if final.get("volumes"):
                final["volumes"] = [path for path in final["volumes"] if path not in targets]
    for holder, key in ((final, "runtime"), (host, "Runtime")):
        runtime = holder.pop(key, None)
        if runtime not in (None, "", "runc"):
            dropped.append(f"runtime {runtime!r}")
    return [f"dropped {text}: GPUs are given by the profile alone" for text in dropped]


def _environment(value: object, identity: Identity) -> tuple[dict[str, Any], list[str]]:
    if isinstance(value, Mapping):
        env = dict(value)
    else:
        # An entry without "=" takes a variable of the image away; docker-py has None for that.
        pairs = [str(entry).partition("=") for entry in items(value)]
        env = {name: text if equals else None for name, equals, text in pairs}
    notes = [
        f"dropped the variable {name}={env.pop(name)!r}: GPUs are given by the profile alone"
        for name in list(env)
        if reserved_env(name)
    ]
    notes += [
        f"replaced the variable {name}={env[name]!r} by the identity's {text!r}"
        for name, text in identity.env.items()
        if env.get(name, text) != text
    ]
    return {**env, **identity.env}, notes


def _close_rights(host: dict[str, Any], policy: Policy) -> list[str]:
    notes = []
    if host.get("Privileged"):
        notes.append("runs privileged, as allow_privileged permits: it sees every device and GPU")
    else:
        host["CapDrop"] = ["ALL"]
    added = {capability(name) for name in items(host.get("CapAdd"))}
    host["CapAdd"] = sorted(added | set(policy.identity.capabilities))
    options = items(host.get("SecurityOpt"))
    if not any(security_option(option)[0] == "no-new-privileges" for option in options):
        options.append("no-new-privileges")
    host["SecurityOpt"] = options
    sockets = [m for m in _mounts(host) if mount_ends(m)[0] in _SOCKETS]
    if sockets:
        notes.append("has the engine's socket: whoever may write to it is root on the host")
    return notes


def _set_user(final: dict[str, Any], host: dict[str, Any], identity: Identity) -> list[str]:
    notes = []
    asked = final.get("user")
    if asked not in (None, "", identity.container_user):
        notes.append(f"dropped user={asked!r}: GPUSpawner's uid and gid decide")
    final["user"] = identity.container_user
    groups = [str(group) for group in items(host.get("GroupAdd"))]
    host["GroupAdd"] = list(dict.fromkeys([*groups, *identity.group_add]))
    return notes


def _set_life(host: dict[str, Any]) -> list[str]:
    """Removed by us and started once: the container is the lease."""
    host["AutoRemove"] = False
    policy = (host.get("RestartPolicy") or {}).get("Name") or "no"
    host["RestartPolicy"] = {"Name": "no"}
    if policy == "no":
        return []
    return [f"dropped restart_policy {policy!r}: a server's container is started once"]


def grant(
    kwargs: Mapping[str, Any],
    devices: Sequence[str],
    driver: str,
    *,
    image_env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Add the cards to a contained configuration, and hide all others.

    Args:
        kwargs: from :func:`contain`. Not changed.
        devices: UUIDs of cards or slices; empty for a server without a GPU.
        driver: ``cdi``, ``nvidia`` (the hook path) or ``none`` (nothing is injected).
        image_env: what the image sets.

    Raises:
        ValueError: the driver is another word.
    """
    if driver not in ("cdi", "nvidia", "none"):
        raise ValueError(f"driver is {driver!r}; use 'cdi', 'nvidia' or 'none'")
    image_env = image_env or {}
    final = dict(kwargs)
    host = dict(final.get("host_config") or {})
    env: dict[str, Any] = dict(final.get("environment") or {})
    # NVIDIA's tools may read these before NVIDIA_VISIBLE_DEVICES, and CUDA would hide the card that
    # was given; None takes the image's away.
    env.update((name, None) for name in image_env if reserved_env(name))
    env[names.ENV_DEVICES] = ",".join(devices)
    requests = items(host.get("DeviceRequests"))
    if devices and driver == "nvidia":
        requests.append({"Driver": "nvidia", "DeviceIDs": list(devices), "Capabilities": [["gpu"]]})
        # The engine gives the ids to the process only; inspect and exec would show the image's.
        env[names.ENV_NVIDIA_VISIBLE] = ",".join(devices)
        if "NVIDIA_DRIVER_CAPABILITIES" not in {*env, *image_env}:
            env["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    else:
        if devices and driver == "cdi":
            ids = [f"nvidia.com/gpu={uuid}" for uuid in devices]
            requests.append({"Driver": "cdi", "DeviceIDs": ids})
        # NVIDIA's runtime, where it is the engine's default, would go by the image's "all".
        env[names.ENV_NVIDIA_VISIBLE] = "void"
        host["Runtime"] = "runc"
    host["DeviceRequests"] = requests
    final["environment"], final["host_config"] = env, host
    return final
