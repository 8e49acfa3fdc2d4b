"""Orders for single users, read by the admin's hook at each spawn: one hub serves many tests."""

from __future__ import annotations

import json
from typing import Any

from ground.hub import Hub

CONFIG = """
import json
from pathlib import Path

def obey(spawner):
    path = Path("orders.json")
    orders = json.loads(path.read_text()).get(spawner.user.name, {}) if path.exists() else {}
    if "fail" in orders:
        raise RuntimeError(orders["fail"])
    for name, expression in orders.pop("python", {}).items():
        setattr(spawner, name, eval(expression))
    for name, value in orders.items():
        setattr(spawner, name, value)

c.Spawner.pre_spawn_hook = obey
# Every POST is answered with its end, however busy the machine is.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 120}
"""


def order(hub: Hub, *users: str, **settings: Any) -> str:
    """Users whose spawners get these settings; ``fail`` raises, ``python`` has expressions."""
    (hub.folder / "orders.json").write_text(json.dumps(dict.fromkeys(users, settings)))
    # Made by a former order, maybe.
    hub.api("POST", "users", json={"usernames": list(users)}, check=False)
    return users[0]
