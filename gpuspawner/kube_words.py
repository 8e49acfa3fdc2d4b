"""Settings that only KubeSpawner has, and what says the same here: for lists that moved. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_GPU = re.compile(r"gpu|/mig-", re.IGNORECASE)

_PLACES = "there is one machine; which of its cards is said by 'gpu': {'models': ['*A100*']}"
_VOLUMES = "write 'volumes': {'<name or folder>': '<folder in the container>'}"
_OPENING = (
    "containers are closed; what may open them is set for all servers, with "
    "c.GPUSpawner.allow_privileged and allow_capabilities"
)
_LABELS = "write 'extra_create_kwargs': {'labels': {…}}"
_DOCKERS = "write 'extra_create_kwargs' or 'extra_host_config', in Docker's words"
_PULL = "write 'pull_policy': 'ifnotpresent', 'always' or 'never'"

#: By setting; a name that ends with ``*`` stands for all that begin so.
_INSTEAD: Mapping[str, str] = {
    "image_spec": "write 'image'",
    "singleuser_image_spec": "write 'image'",
    "image_pull_policy": _PULL,
    "image_pull_secrets": "log Docker in on the machine of the hub (docker login)",
    "fs_gid": "write 'gid' or 'supplemental_gids'",
    "working_dir": "write 'extra_create_kwargs': {'working_dir': '<folder>'}",
    "volume_mounts": _VOLUMES,
    "storage_*": _VOLUMES,
    "pvc_*": _VOLUMES,
    "delete_pvc": _VOLUMES,
    "remember_pvc_name": _VOLUMES,
    "node_*": _PLACES,
    "pod_affinity_*": _PLACES,
    "pod_anti_affinity_*": _PLACES,
    "tolerations": _PLACES,
    "scheduler_name": _PLACES,
    "privileged": _OPENING,
    "allow_privilege_escalation": _OPENING,
    "container_security_context": _OPENING,
    "pod_security_context": _OPENING,
    "extra_labels": _LABELS,
    "extra_annotations": _LABELS,
    "common_labels": _LABELS,
    "extra_container_config": _DOCKERS,
    "extra_pod_config": _DOCKERS,
    "modify_pod_hook": "set c.Spawner.pre_spawn_hook",
    "after_pod_created_hook": "set c.Spawner.pre_spawn_hook",
    "lifecycle_hooks": "set c.Spawner.pre_spawn_hook or post_stop_hook",
    "pod_name_template": "set c.DockerSpawner.name_template",
    "priority_class_name": "remove it",
    "delete_grace_period": "remove it",
    "init_containers": "remove it; a server is one container",
    "extra_containers": "remove it; a server is one container",
    "service_account": "remove it",
    "automount_service_account_token": "remove it",
    "namespace": "remove it",
    "delete_stopped_pods": "remove it",
}


def instead_of(name: str, value: Any) -> str:
    """What to write instead of a setting of KubeSpawner's; empty if it is none of those."""
    if name in ("extra_resource_limits", "extra_resource_guarantees"):
        return _resources(value)
    for known, instead in _INSTEAD.items():
        if name == known or (known.endswith("*") and name.startswith(known[:-1])):
            return instead
    return ""


def _resources(value: Any) -> str:
    asked = value if isinstance(value, Mapping) else {}
    gpus = [str(number) for name, number in asked.items() if _GPU.search(str(name))]
    count = gpus[0] if gpus and re.fullmatch("[0-9]{1,3}", gpus[0]) else "1"
    return (
        f"GPUs are asked for beside it, by the profile: 'gpu': {{'count': {count}}}; memory and "
        "processors are 'mem_limit' and 'cpu_limit'"
    )
