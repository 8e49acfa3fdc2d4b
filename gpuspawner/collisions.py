"""What in ``jupyterhub_config.py`` collides with ours, found at the hub's start.

Only plain values can be judged then; callables are closed at each spawn
(:mod:`gpuspawner.containment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .checks import shown
from .containment import Policy, refusals, reserved_env
from .hostconfig import GPU_ENTRIES, items, split_requests
from .names import ENV_MEMORY_FRACTION, ENV_MEMORY_LIMIT_MIB

_PROFILE: Final = (
    'GPUs are given by profiles: c.GPUSpawner.profile_list = [{"display_name": "One GPU", '
    '"slug": "one-gpu", "gpu": {"count": 1}}]'
)
_IDENTITY: Final = (
    "set c.GPUSpawner.uid and c.GPUSpawner.gid, or, if the image's start script needs root, "
    "c.GPUSpawner.drop_from_root = True"
)
#: docker-py's arguments of a host config that are judged here, and the API's names.
_API_KEYS: Final = {
    "binds": "Binds",
    "cap_add": "CapAdd",
    "device_cgroup_rules": "DeviceCgroupRules",
    "devices": "Devices",
    "group_add": "GroupAdd",
    "ipc_mode": "IpcMode",
    "mounts": "Mounts",
    "pid_mode": "PidMode",
    "privileged": "Privileged",
    "security_opt": "SecurityOpt",
    "userns_mode": "UsernsMode",
}


def collisions(key: str, value: object, policy: Policy) -> list[tuple[str, str]]:
    """Judge one setting of the spawner.

    Args:
        key: ``environment``, ``extra_host_config``, ``extra_create_kwargs``; any other has none.
        value: as written in the config. A callable is passed over: it is closed at spawn.
        policy: the admin's settings; its identity matters only for the capabilities it needs.

    Returns:
        For each collision the place within the setting, such as ``["runtime"]``, and the words
        that follow it: what is wrong and what replaces it.

    Raises:
        ContainmentError: a value is of the wrong kind.
    """
    if not isinstance(value, Mapping):
        return []
    if key == "environment":
        return _environment("", value)
    if key == "extra_host_config":
        return _host_config("", value, policy)
    if key == "extra_create_kwargs":
        return _create_kwargs(value, policy)
    return []


def _create_kwargs(create: Mapping[str, Any], policy: Policy) -> list[tuple[str, str]]:
    found = _runtime("", create.get("runtime"))
    if create.get("user"):
        found.append(
            (
                '["user"]',
                f"remove {create['user']!r}; {_IDENTITY}",
            )
        )
    env = create.get("environment")
    if isinstance(env, (list, tuple)):
        env = dict(str(entry).partition("=")[::2] for entry in env)
    if isinstance(env, Mapping):
        found += _environment('["environment"]', env)
    if isinstance(create.get("host_config"), Mapping):
        found += _host_config('["host_config"]', create["host_config"], policy)
    return found


def _runtime(place: str, value: object) -> list[tuple[str, str]]:
    if value in (None, "", "runc"):
        return []
    instead = f"remove {value!r}; the runtime is chosen with the GPU (c.GPUPool.device_driver)"
    return [(f'{place}["runtime"]', instead)]


def _host_config(place: str, host: Mapping[str, Any], policy: Policy) -> list[tuple[str, str]]:
    api = {**host, **{key: host[name] for name, key in _API_KEYS.items() if name in host}}
    if isinstance(api.get("Binds"), Mapping):
        api["Binds"] = list(api["Binds"])
    requests = split_requests(api.get("device_requests", api.get("DeviceRequests")))[1]
    found = [(f'{place}["device_requests"]', f"{text}: remove it. {_PROFILE}") for text in requests]
    found += _runtime(place, api.get("runtime", api.get("Runtime")))
    for key, is_gpu in GPU_ENTRIES.items():
        entries = items(api.get(key))
        name = next((n for n, k in _API_KEYS.items() if k == key and n in host), key)
        found += [
            (f'{place}["{name}"]', f"{entry!r} is for GPUs: remove it. {_PROFILE}")
            for entry in entries
            if is_gpu(entry)
        ]
        api[key] = [entry for entry in entries if not is_gpu(entry)]
    return found + [(place, reason) for reason in refusals(api, policy)]


def _environment(place: str, env: Mapping[Any, Any]) -> list[tuple[str, str]]:
    found = []
    for name in env:
        if not isinstance(name, str):
            found.append((f"[{shown(name)}]", "use a text as the variable's name"))
        elif reserved_env(name):
            found.append((f'{place}["{name}"]', f"remove it. {_PROFILE}"))
        elif name in (ENV_MEMORY_FRACTION, ENV_MEMORY_LIMIT_MIB):
            found.append((f'{place}["{name}"]', "remove it; set c.GPUSpawner.memory_fraction"))
    return found
