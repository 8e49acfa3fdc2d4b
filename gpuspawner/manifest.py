"""From what DockerSpawner, the admin and hooks merged to the container that is created.

Arguments in, keyword arguments of docker-py's ``create_container`` out: contained, with its cards,
its labels, its identity and its memory budget. Nothing is asked of anybody here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from . import memory, names, time_limits
from .attempts import Attempt
from .containment import Policy, contain, grant


@dataclass(frozen=True)
class Image:
    """What the manifest needs of an image: its id, its environment and its labels."""

    id: str
    env: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)


def read_image(inspection: Mapping[str, Any]) -> Image:
    """The parts of ``GET /images/<name>/json``."""
    config = inspection.get("Config") or {}
    env = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
    return Image(str(inspection["Id"]), env, dict(config.get("Labels") or {}))


@dataclass(frozen=True)
class Owner:
    """Whose container it is.

    Attributes:
        options: validated ``user_options``.
        max_seconds: how long it may run; None without a limit.
    """

    hub_id: str
    user: str
    server: str
    profile: str
    options: Mapping[str, str]
    max_seconds: float | None = None


@dataclass(frozen=True)
class Manifest:
    """A container to create.

    Attributes:
        kwargs: for ``create_container``.
        with_hook: the startup hook is to be copied into it.
        notes: what was dropped of the admin's config, for the log.
    """

    kwargs: dict[str, Any]
    with_hook: bool
    notes: tuple[str, ...]


def build(
    merged: Mapping[str, Any],
    *,
    attempt: Attempt,
    owner: Owner,
    image: Image,
    policy: Policy,
    driver: str,
    fraction: Fraction,
) -> Manifest:
    """The last word on a container.

    Args:
        merged: keyword arguments as everybody else left them.
        driver: ``cdi``, ``nvidia`` or ``none``.
        fraction: part of each card's memory that frameworks may take. Framework variables in
            ``merged`` win over it.

    Raises:
        ContainmentError: they ask for what the policy does not allow.
    """
    final, notes = contain(merged, policy)
    # The hub sets no framework's variable, so what is there is the admin's.
    admin_env = {name: text for name, text in final["environment"].items() if text is not None}
    with_hook = bool(attempt.devices) and memory.needs_hook(fraction, admin_env)
    if with_hook and final["host_config"].get("ReadonlyRootfs"):
        with_hook = False
        notes.append(
            "PyTorch will not be told its memory fraction, since the container's root is "
            "read-only (read_only in extra_host_config)"
        )
    final = grant(final, attempt.devices, driver, image_env=image.env)
    env = final["environment"]
    if attempt.devices:
        env.update(
            memory.framework_env(
                fraction,
                memory_mib=attempt.memory_mib,
                image_env=image.env,
                admin_env=admin_env,
            )
        )
    if with_hook:
        env.update(memory.hook_env(image.env, admin_env))
    final["labels"] = {
        **_own_labels(final.get("labels")),
        **_blanked(image.labels),
        **_labels(attempt, owner, image),
    }
    return Manifest(final, with_hook, tuple(notes))


def _own_labels(labels: object) -> dict[str, str]:
    """The admin's labels, without any of ours: those say who holds what."""
    pairs = labels.items() if isinstance(labels, Mapping) else ((name, "") for name in labels or ())  # type: ignore[attr-defined]
    return {str(k): str(v) for k, v in pairs if not str(k).startswith("gpuspawner.")}


def _blanked(labels: Mapping[str, str]) -> dict[str, str]:
    """The image's labels that are ours, without a word in them.

    A container has its image's labels too, and a role in them would hide what it holds.
    """
    return {name: "" for name in labels if name.startswith("gpuspawner.")}


def _labels(attempt: Attempt, owner: Owner, image: Image) -> dict[str, str]:
    return {
        names.LABEL_HUB: owner.hub_id,
        names.LABEL_LEASE: attempt.lease,
        names.LABEL_IMAGE: image.id,
        names.LABEL_USER: owner.user,
        names.LABEL_SERVER: owner.server,
        names.LABEL_PROFILE: owner.profile,
        names.LABEL_DEVICES: ",".join(attempt.devices),
        names.LABEL_OPTIONS: options_text(owner.options),
        names.LABEL_SHARE: str(attempt.share),
        **time_limits.label(owner.max_seconds),
    }


def options_text(options: Mapping[str, str]) -> str:
    """Options as the label has them: JSON, the same text for the same options."""
    return json.dumps(dict(options), sort_keys=True)
