"""Reading a container's host config: what in it is a GPU, a host device, a widened right.

Values are in the form of Docker's API (``Devices``, ``Binds``…), as docker-py posts them. Pure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from .errors import GPUSpawnerError

_HOST_KEYS = (
    "AutoRemove", "Binds", "CapAdd", "CapDrop", "DeviceCgroupRules", "DeviceRequests", "Devices",
    "GroupAdd", "IpcMode", "MaskedPaths", "Memory", "Mounts", "PidMode", "Privileged",
    "ReadonlyPaths", "ReadonlyRootfs", "RestartPolicy", "Runtime", "SecurityOpt", "ShmSize",
    "UsernsMode",
)  # fmt: skip
_REQUEST_KEYS = ("Driver", "Count", "DeviceIDs", "Capabilities", "Options")
_DEVICE_KEYS = ("PathOnHost", "PathInContainer", "CgroupPermissions")
_MOUNT_KEYS = ("Type", "Source", "Target", "ReadOnly", "VolumeOptions")
_DRIVER_KEYS = ("DriverConfig", "Options")
#: The engine gives a request that names no driver to NVIDIA's if it knows all words of a group.
_NVIDIA_WORDS = frozenset(
    {"gpu", "nvidia", "compute", "compat32", "graphics", "utility", "video", "display"}
)
#: NVIDIA's runtime takes mounts to these places as device requests.
_REQUEST_MOUNTS = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")
#: Every container has these of its own; to bind them is a common way to hide a file.
_HARMLESS_NODES = frozenset({"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})
#: Kinds of CDI devices that are other makers' cards.
_OTHER_MAKERS = frozenset({"amd.com", "intel.com"})


class ContainmentError(GPUSpawnerError):
    """The merged configuration opens the container; the text names the setting that allows it."""


def items(value: object) -> list[Any]:
    """A list, tuple or None of the API as a list."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ContainmentError(f"{value!r} is in the host config where a list is needed")


def _spelled(value: object, keys: Iterable[str]) -> Any:
    """A dict with these keys as Docker's API spells them: the engine takes them in any case."""
    if not isinstance(value, Mapping):
        return value
    known = {key.casefold(): key for key in keys}
    return {known.get(str(key).casefold(), key): item for key, item in value.items()}


def spell_host(host: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a host config in which what is judged here is spelled as the API has it."""
    result: dict[str, Any] = _spelled(host, _HOST_KEYS)
    if "Devices" in result:
        result["Devices"] = [_spelled(one, _DEVICE_KEYS) for one in items(result["Devices"])]
    if "Mounts" in result:
        result["Mounts"] = [_spelled_mount(one) for one in items(result["Mounts"])]
    return result


def _spelled_mount(mount: object) -> Any:
    mount = _spelled(mount, _MOUNT_KEYS)
    if isinstance(mount, dict) and isinstance(mount.get("VolumeOptions"), Mapping):
        options = _spelled(mount["VolumeOptions"], _DRIVER_KEYS)
        if "DriverConfig" in options:
            options["DriverConfig"] = _spelled(options["DriverConfig"], _DRIVER_KEYS)
        mount["VolumeOptions"] = options
    return mount


def tidy(path: str) -> str:
    """The path without ``..``, doubled slashes and the like."""
    return posixpath.normpath("/" + path.lstrip("/")) if path.startswith("/") else path


def split_requests(requests: object) -> tuple[list[dict[str, Any]], list[str]]:
    """Part device requests into those that are kept and those for NVIDIA's GPUs.

    Args:
        requests: list or tuple of dicts, with the API's keys or docker-py's.

    Returns:
        The kept ones with the API's keys, and a short text for each that is for GPUs.

    Raises:
        ContainmentError: an entry is not a dict.
    """
    kept, gpus = [], []
    for item in items(requests):
        if not isinstance(item, Mapping):
            raise ContainmentError(
                f"device_requests has {item!r}; use docker.types.DeviceRequest(…) or a dict"
            )
        # docker-py's keys have underscores.
        plain = {str(key).replace("_", ""): value for key, value in item.items()}
        request: dict[str, Any] = _spelled(plain, _REQUEST_KEYS)
        driver = str(request.get("Driver") or "").lower()
        groups = [
            {str(word).lower() for word in ([group] if isinstance(group, str) else items(group))}
            for group in items(request.get("Capabilities"))
        ]
        ids = [str(device) for device in items(request.get("DeviceIDs"))]
        ours = [device for device in ids if is_gpu_id(device)]
        if is_nvidia_driver(driver, groups) or (ours and driver != "cdi"):
            gpus.append(f"driver {driver or 'any'}, devices {ids or request.get('Count')}")
        elif ours:
            gpus.append(f"driver cdi, devices {ours}")
            others = [device for device in ids if device not in ours]
            if others:
                kept.append({**request, "DeviceIDs": others})
        else:
            kept.append(request)
    return kept, gpus


def is_nvidia_driver(driver: str, groups: Iterable[Collection[str]]) -> bool:
    """True if the engine gives a device request to NVIDIA's driver.

    Args:
        driver: as the request names it, in lower case; may be empty.
        groups: its capabilities, in lower case. Any group with ``gpu`` counts, whatever the driver.
    """
    if driver.startswith("nvidia"):
        return True
    return any(
        "gpu" in group or (not driver and _NVIDIA_WORDS.issuperset(group)) for group in groups
    )


def is_gpu_id(device: str) -> bool:
    """True for a GPU's or slice's UUID, and a CDI name that may be an NVIDIA card."""
    if device.startswith(("GPU-", "MIG-")):
        return True
    kind, equals, _ = device.partition("=")
    vendor, slash, cls = kind.partition("/")
    if not (equals and slash) or vendor in _OTHER_MAKERS:
        return False
    return vendor == "nvidia.com" or vendor.endswith(".nvidia.com") or cls == "gpu"


def is_gpu_path(path: str) -> bool:
    """True for a device node of NVIDIA's driver, or a CDI name in place of a path."""
    return tidy(path).startswith("/dev/nvidia") or is_gpu_id(path)


def is_gpu_rule(rule: str) -> bool:
    """True for a device-cgroup rule for the major number of NVIDIA's cards."""
    parts = rule.split()
    return len(parts) > 1 and parts[1].split(":")[0] == "195"


def device_path(device: object) -> str:
    """The host's path of an entry of ``Devices``."""
    if isinstance(device, Mapping):
        return str(device.get("PathOnHost") or "")
    return str(device).split(":")[0] if str(device).startswith("/") else str(device)


def mount_ends(mount: object) -> tuple[str, str]:
    """Source and target of an entry of ``Binds`` or ``Mounts``; a volume's source is its name.

    A volume whose driver binds a host folder has that folder as its source.
    """
    if not isinstance(mount, Mapping):
        parts = str(mount).split(":")
        return parts[0], parts[1] if len(parts) > 1 else parts[0]
    options = mount.get("VolumeOptions") or {}
    driver = (options.get("DriverConfig") or {}).get("Options") or {}
    source = driver.get("device") or mount.get("Source") or ""
    return str(source), str(mount.get("Target") or "")


def is_gpu_mount(mount: object) -> bool:
    """True for a mount of NVIDIA's nodes, or one that its runtime reads as a request."""
    source, target = mount_ends(mount)
    return tidy(source).startswith("/dev/nvidia") or tidy(target).startswith(_REQUEST_MOUNTS)


def exposed_devices(mount: object) -> str:
    """The host path of a mount that brings host devices along, else empty."""
    source = tidy(mount_ends(mount)[0])
    if source in _HARMLESS_NODES:
        return ""
    return source if source in ("/", "/dev") or source.startswith("/dev/") else ""


def device_allowed(path: str, allowed: Iterable[str]) -> bool:
    """True if the path, or a folder above it below ``/dev``, is named.

    ``/dev`` itself can't be named: it has everybody's cards.
    """
    names = {tidy(name) for name in allowed} - {"/", "/dev"}
    return any(tidy(path) == name or tidy(path).startswith(name + "/") for name in names)


def capability(name: object) -> str:
    """``CAP_SYS_PTRACE`` and ``sys_ptrace`` as ``SYS_PTRACE``."""
    return str(name).upper().removeprefix("CAP_")


def security_option(option: object) -> tuple[str, str]:
    """Name and value of an entry of ``SecurityOpt``: ``seccomp=x`` or ``seccomp:x``."""
    text = str(option)
    at = min((i for i in (text.find("="), text.find(":")) if i >= 0), default=len(text))
    return text[:at].strip().lower(), text[at + 1 :].strip()


#: Lists of a host config through which a GPU may come in, and what tells such an entry.
GPU_ENTRIES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "Devices": lambda entry: is_gpu_path(device_path(entry)),
    "Binds": is_gpu_mount,
    "Mounts": is_gpu_mount,
    "DeviceCgroupRules": lambda entry: is_gpu_rule(str(entry)),
}
