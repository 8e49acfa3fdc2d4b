"""A hub killed while its servers are at every point of a start and a stop, by one SIGKILL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from gpu_hub import cards_in_use, containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub
from ground.injector import Injector
from ground.injector_faults import Call, Fault, Kind

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}
CONFIG = """
import asyncio
from pathlib import Path
import gpuspawner

async def hold(spawner):
    spawner.environment = {"TINY_START_SECONDS": "2" if spawner.user.name == "slow" else "0"}
    while spawner.user.name == "hooked" and Path("hold").exists():
        await asyncio.sleep(0.05)

c.Spawner.pre_spawn_hook = hold
c.Spawner.http_timeout = 120
c.JupyterHub.init_spawners_timeout = 1
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0, "slow_stop_timeout": 0}
c.GPUPool.clean_interval_seconds = 0.5
c.GPUPool.created_grace_seconds = 3
c.GPUPool.orphan_grace_seconds = 3
gpuspawner.configure(c)
"""


@pytest.fixture
def injector(clean_engine: Engine, tmp_path: Path) -> Iterator[Injector]:
    with Injector(tmp_path / "i.sock", clean_engine.socket) as made:
        yield made


def of(engine: Engine, user: str) -> list[dict[str, Any]]:
    """The containers of a user's servers."""
    rows = containers(engine)
    return [row for row in rows if row["Labels"].get("gpuspawner.user") == user]


def state(engine: Engine, user: str) -> str:
    return ",".join(row["State"] for row in of(engine, user))


def names_user(user: str) -> Callable[[Call], bool]:
    """Told by the labels in the call that creates."""
    label = f'"gpuspawner.user": "{user}"'.encode()
    return lambda call: label in call.body


def is_about(container_id: str) -> Callable[[Call], bool]:
    return lambda call: container_id in call.path


class Scene:
    """A hub behind an injector, and users each held at a point of their own."""

    def __init__(self, hub: Hub, engine: Engine, injector: Injector, stack: ExitStack) -> None:
        self.hub, self.engine, self.injector, self._stack = hub, engine, injector, stack

    def fault(self, operation: str, kind: Kind, when: Callable[[Call], bool]) -> Fault:
        return self._stack.enter_context(self.injector.fault(operation, kind, when=when))

    def ready(self, *users: str, options: dict[str, str]) -> None:
        for user in users:
            self.hub.start_server(user, options)
        for user in users:
            self.hub.wait_ready(user)

    def held(self, user: str, operation: str, kind: Kind, options: dict[str, str]) -> Fault:
        """Start a server that comes as far as this call."""
        if operation == "create":
            fault = self.fault(operation, kind, names_user(user))
        else:
            others = {row["Id"] for row in containers(self.engine)}
            fault = self.fault(operation, kind, lambda call: call.path.split("/")[2] not in others)
        self.hub.start_server(user, options)
        self.hub.wait(lambda: fault.met, f"{user} is held at {operation}")
        return fault

    def leaving(self, user: str, operation: str, kind: Kind) -> Fault:
        """Stop a server, as far as this call."""
        [row] = of(self.engine, user)
        fault = self.fault(operation, kind, is_about(row["Id"]))
        self.hub.stop_server(user)
        self.hub.wait(lambda: fault.met, f"{user} is held at {operation}")
        return fault


def drop_from_database(hub: Hub, user: str) -> None:
    """As in a database restored from before."""
    with closing(sqlite3.connect(hub.folder / "hub.sqlite")) as database, database:
        database.execute(
            "delete from spawners where user_id = (select id from users where name = ?)", [user]
        )


def settled(hub: Hub, engine: Engine, users: list[str]) -> bool:
    """Every container runs, for the one server that the hub has for it, and no server lacks one."""
    rows = containers(engine)
    models = [hub.server(user) for user in users]
    served = {user for user, model in zip(users, models, strict=True) if model and model["ready"]}
    pending = [
        user for user, model in zip(users, models, strict=True) if model and model["pending"]
    ]
    owners = [row["Labels"]["gpuspawner.user"] for row in rows if row["State"] == "running"]
    return not pending and len(rows) == len(owners) == len(served) and set(owners) == served


def test_killed_at_every_point_of_starts_and_stops_at_once(
    clean_engine: Engine, tiny_image: str, tmp_path: Path, injector: Injector
) -> None:
    engine = clean_engine
    env = {"DOCKER_HOST": injector.url}
    with (
        gpu_hub(tmp_path / "hub", engine, tiny_image, CONFIG, env=env) as hub,
        ExitStack() as stack,
    ):
        scene = Scene(hub, engine, injector, stack)
        kept = ["ready", "started", "slow"]
        over = ["hooked", "unsent", "created", "starting", "stopping", "removed", "dropped"]
        users = kept + over
        hub.add_users(*users, "late0", "late1")
        (hub.folder / "hold").touch()
        scene.ready("stopping", "removed", "dropped", options=CPU)
        scene.ready("ready", options=ONE)

        unsent = scene.held("unsent", "create", "hang", CPU)
        scene.held("created", "create", "mute", ONE)
        scene.held("starting", "start", "hang", ONE)
        scene.held("started", "start", "mute", ONE)
        stopping = scene.leaving("stopping", "stop", "hang")
        scene.leaving("removed", "remove", "mute")
        hub.start_server("hooked", ONE)
        hub.start_server("slow", CPU)
        hub.wait(lambda: state(engine, "slow") == "running", "slow has begun")
        hub.wait(lambda: not of(engine, "removed"), "removed, but nobody has been told")
        assert state(engine, "unsent") == state(engine, "hooked") == ""
        assert state(engine, "created") == state(engine, "starting") == "created"
        assert state(engine, "started") == state(engine, "stopping") == "running"
        before = {user: of(engine, user)[0] for user in ("ready", "started")}
        hub.kill()

        drop_from_database(hub, "dropped")
        (hub.folder / "hold").unlink()
        hub.start()
        # What was on its way to the engine arrives only now.
        unsent.release()
        hub.wait(lambda: of(engine, "unsent"), "created after the hub's death")
        stopping.release()
        stack.close()
        hub.wait(lambda: settled(hub, engine, users), "settled", 120)
        assert {user for user in users if hub.server(user)} >= {"ready"}
        assert {user for user in users if hub.server(user)} <= set(kept)
        assert of(engine, "ready")[0]["Id"] == before["ready"]["Id"]
        for user in kept:
            if hub.server(user):
                inside(hub, user)
        # All that nobody holds can be had, and nothing twice.
        free = 4 - sum(bool(hub.server(user)) for user in ("ready", "started"))
        assert free >= 2
        scene.ready("late0", "late1", options=ONE)
        assert max(cards_in_use(engine).values()) == 1
        for user in (*kept, "late0", "late1"):
            hub.stop_server(user, check=False)
        hub.wait(lambda: not containers(engine), "nothing is left")


def test_a_server_that_runs_as_its_hub_dies_is_served_by_the_next(
    clean_engine: Engine, tiny_image: str, tmp_path: Path, injector: Injector
) -> None:
    """Who started it had no answer, and so stored neither its container nor its address."""
    engine = clean_engine
    # However slow the next hub is to start: nothing is cleaned before it has looked.
    config = CONFIG + "c.GPUPool.orphan_grace_seconds = 3600\n"
    with (
        gpu_hub(
            tmp_path / "hub", engine, tiny_image, config, env={"DOCKER_HOST": injector.url}
        ) as hub,
        ExitStack() as stack,
    ):
        scene = Scene(hub, engine, injector, stack)
        hub.add_users("ada", "ben")
        scene.held("ada", "start", "mute", ONE)
        hub.wait(lambda: state(engine, "ada") == "running", "ada has begun")
        [before] = of(engine, "ada")
        hub.kill()
        stack.close()
        hub.start()
        assert hub.wait_ready("ada")["user_options"] == ONE
        told = inside(hub, "ada")["env"]
        assert before["Id"].startswith(told["HOSTNAME"])
        assert told["GPUSPAWNER_DEVICES"] == before["Labels"]["gpuspawner.devices"] != ""
        assert [row["Id"] for row in of(engine, "ada")] == [before["Id"]]
        own = {"Authorization": f"token {told['JUPYTERHUB_API_TOKEN']}"}
        assert hub.api("GET", "user", headers=own).json()["name"] == "ada"
        scene.ready("ben", options=ONE)
        assert set(cards_in_use(engine).values()) == {1}
        hub.stop_server("ada")
        hub.wait(lambda: not of(engine, "ada"), "its container is removed")
        hub.stop_server("ben")
        hub.wait(lambda: not containers(engine), "nothing is left")
