"""What a user is told on the hub's own pages about the GPUs of servers that run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .spawner_base import SpawnerBase


@dataclass(frozen=True)
class Notice:
    """One text about one server; ``server`` is empty for the default one."""

    server: str
    text: str


def notices_for(user: Any) -> list[Notice]:
    """What is to be told to a user of the hub.

    Called for every page, also without a user and for a service, which has no servers.
    """
    return [
        Notice(spawner.name, text)
        for spawner in list(getattr(user, "spawners", {}).values())
        if isinstance(spawner, SpawnerBase)
        for text in spawner.notices
    ]
