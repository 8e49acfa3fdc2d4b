"""What a container tells of its server, where the hub's database does not. Pure.

A hub that was killed in mid-start stored nothing of the server; and a database may have been
restored, or filled by another spawner before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import names
from .claims import Row


@dataclass(frozen=True)
class Recalled:
    """A server as its container's labels have it.

    Attributes:
        devices: UUIDs of its GPUs.
        options: its validated ``user_options``; None if they can't be read.
    """

    lease: str
    devices: tuple[str, ...]
    profile: str
    options: dict[str, str] | None


def recall(row: Row) -> Recalled:
    """Read the labels of a container of ours."""
    return Recalled(
        lease=row.lease,
        devices=tuple(d for d in row.labels.get(names.LABEL_DEVICES, "").split(",") if d),
        profile=row.labels.get(names.LABEL_PROFILE, ""),
        options=_options(row.labels.get(names.LABEL_OPTIONS, "")),
    )


def _options(text: str) -> dict[str, str] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        return None
    return found


def api_token(inspection: Mapping[str, Any] | None) -> str:
    """The token with which the server talks to the hub; empty if there is none."""
    entries = ((inspection or {}).get("Config") or {}).get("Env") or ()
    env = dict(str(entry).partition("=")[::2] for entry in entries)
    return env.get("JUPYTERHUB_API_TOKEN", "")
