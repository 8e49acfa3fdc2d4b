"""Hubs that restart, containers that end by themselves, two hubs on one engine."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from gpu_hub import cards_in_use, containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}


@pytest.fixture(scope="module")
def shared_hub(
    engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    with gpu_hub(tmp_path_factory.mktemp("restart"), engine, tiny_image) as hub:
        hub.add_users("ada", "ben", "cleo")
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, engine: Engine) -> Iterator[Hub]:
    yield shared_hub
    if not shared_hub.running:  # the test failed before it started it again
        shared_hub.start()
    clear(shared_hub)
    shared_hub.wait(lambda: not containers(engine), "no container left")


def clear(hub: Hub, *users: str) -> None:
    for user in users or ("ada", "ben", "cleo"):
        if hub.server(user):
            hub.stop_server(user)
            hub.wait_stopped(user)


def start(hub: Hub, user: str, options: dict[str, str] = ONE) -> dict[str, Any]:
    hub.start_server(user, options)
    hub.wait_ready(user)
    return inside(hub, user)


def card(hub: Hub, user: str) -> str:
    uuid: str = inside(hub, user)["env"]["GPUSPAWNER_DEVICES"]
    return uuid


def killed_and_forgetful(hub: Hub) -> None:
    """Killed, and its database knows of ada nothing, of ben what DockerSpawner stores."""
    hub.kill()
    with closing(sqlite3.connect(hub.folder / "hub.sqlite")) as database, database:
        database.execute("update spawners set user_options = null")
        owned = "where user_id = (select id from users where name = ?)"
        database.execute(f"update spawners set state = null {owned}", ["ada"])
        [[text]] = database.execute(f"select state from spawners {owned}", ["ben"])
        state = json.loads(text)
        assert state.pop("gpuspawner")
        database.execute(f"update spawners set state = ? {owned}", [json.dumps(state), "ben"])


@pytest.mark.parametrize("end", [Hub.stop, killed_and_forgetful], ids=["stopped", "killed"])
def test_a_restart_changes_nothing(hub: Hub, engine: Engine, end: Callable[[Hub], None]) -> None:
    for user, options in (("ada", ONE), ("ben", CPU)):
        start(hub, user, options)
    before = {row["Id"]: row["Labels"] for row in containers(engine)}
    uuid = card(hub, "ada")
    end(hub)
    hub.start()
    for user, options in (("ada", ONE), ("ben", CPU)):
        assert hub.wait_ready(user)["user_options"] == options
    assert card(hub, "ada") == uuid
    assert inside(hub, "ben")["env"]["GPUSPAWNER_DEVICES"] == ""
    assert {row["Id"]: row["Labels"] for row in containers(engine)} == before
    start(hub, "cleo")
    assert card(hub, "cleo") != uuid
    assert max(cards_in_use(engine).values()) == 1
    clear(hub)
    hub.wait(lambda: not containers(engine), "stops after a restart remove the containers")


def test_shut_down_from_inside_frees_the_card(hub: Hub, engine: Engine) -> None:
    start(hub, "ada")
    hub.exit_server("ada")
    hub.wait_stopped("ada")
    hub.wait(lambda: not containers(engine), "its container is removed")


def test_removed_behind_the_hubs_back_frees_the_card(hub: Hub, engine: Engine) -> None:
    start(hub, "ada")
    [row] = containers(engine)
    engine.client.remove_container(row["Id"], force=True)
    hub.wait_stopped("ada")
    assert start(hub, "ada")["env"]["GPUSPAWNER_DEVICES"]


def test_docker_restart_keeps_the_server_and_its_card(hub: Hub, engine: Engine) -> None:
    uuid = start(hub, "ada")["env"]["GPUSPAWNER_DEVICES"]
    [row] = containers(engine)
    engine.client.restart(row["Id"], timeout=0)
    hub.start_server("ben", ONE)
    hub.wait_ready("ben")
    hub.wait(lambda: inside(hub, "ada"), "the server answers again")
    assert card(hub, "ada") == uuid != card(hub, "ben")
