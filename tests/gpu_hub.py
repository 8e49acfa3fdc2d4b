"""What the hub tests share: our spawner's configuration on a private engine, and an oracle.

The oracle reads the engine, not our code: who really has which card.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ground.engine import Engine
from ground.hub import Hub

CONFIG = """
from gpuspawner.spawner import GPUSpawner
c.JupyterHub.spawner_class = GPUSpawner
c.JupyterHub.allow_named_servers = True
c.JupyterHub.cleanup_servers = False
c.GPUSpawner.image = c.DockerSpawner.image
c.GPUPool.inventory = {"simulated": 4}
c.GPUSpawner.poll_interval = 2
# A busy machine is no fault of a server.
c.GPUSpawner.start_timeout = 300
c.GPUSpawner.http_timeout = 120
c.JupyterHub.concurrent_spawn_limit = 0
"""


def gpu_hub(folder: Any, engine: Engine, image: str, config: str = "", **kwargs: Any) -> Hub:
    """A hub with our spawner on that engine, not started."""
    return Hub(folder, CONFIG + config, engine=engine, image=image, **kwargs)


def containers(engine: Engine) -> list[dict[str, Any]]:
    """Every container the engine lists, whatever its state."""
    return list(engine.client.containers(all=True))


def cards_in_use(engine: Engine) -> Counter[str]:
    """How many running containers were given each card, from their inspections."""
    count: Counter[str] = Counter()
    for row in engine.client.containers():
        told = engine.client.inspect_container(row["Id"])["HostConfig"]
        for request in told["DeviceRequests"] or ():
            for name in request["DeviceIDs"]:
                count[name.rpartition("=")[2]] += 1
    return count


def inside(hub: Hub, user: str, name: str = "") -> dict[str, Any]:
    """What the user's server says it was given.

    Asked again until it does: its route may be new, or see :meth:`ground.hub.Hub.user_answer`.
    """
    answers: list[dict[str, Any]] = []

    def told() -> bool:
        answer = hub.user_get(user, "env", name)
        if answer.ok:
            answers.append(answer.json())
        return answer.ok

    hub.wait(told, f"server of {user} tells its environment")
    return answers[-1]
