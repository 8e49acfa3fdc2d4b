"""Named servers, renames of servers and users, deletions: cards and quota follow the people."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_hub import cards_in_use, containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}
CONFIG = """
import gpuspawner
c.DockerSpawner.remove = False
c.GPUSpawner.max_gpus_per_user = 2
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 120, "slow_stop_timeout": 120}
gpuspawner.configure(c)
"""


@pytest.fixture(scope="module")
def shared_hub(
    engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    with gpu_hub(tmp_path_factory.mktemp("people"), engine, tiny_image, CONFIG) as hub:
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, clean_engine: Engine) -> Hub:
    return shared_hub


def start(hub: Hub, user: str, name: str = "", options: dict[str, str] = ONE) -> str:
    """The card that the user's server got."""
    hub.start_server(user, options, name)
    hub.wait_ready(user, name)
    uuid: str = inside(hub, user, name)["env"]["GPUSPAWNER_DEVICES"]
    return uuid


def stop(hub: Hub, user: str, name: str = "") -> None:
    hub.stop_server(user, name)
    hub.wait_stopped(user, name)


def rename(hub: Hub, user: str, name: str, new: str) -> int:
    path = f"users/{user}/servers/{name}"
    return hub.api("PATCH", path, json={"name": new}, check=False).status_code


def labels(engine: Engine) -> set[tuple[str, str]]:
    """(user, server) of all containers, as they were at their start."""
    rows = [row["Labels"] for row in containers(engine)]
    return {(row["gpuspawner.user"], row["gpuspawner.server"]) for row in rows}


def servers(hub: Hub, user: str) -> set[str]:
    """Names of a user's servers, also of those that do not run."""
    params = {"include_stopped_servers": "1"}
    return set(hub.api("GET", f"users/{user}", params=params).json()["servers"])


def both_count(hub: Hub, user: str) -> None:
    answer = hub.start_server(user, ONE, "more", check=False)
    assert answer.status_code == 403, answer.text
    assert "2 of your servers have 2" in answer.json()["message"]


def test_named_servers_count_and_follow_a_renamed_user(hub: Hub, clean_engine: Engine) -> None:
    hub.add_users("ada")
    cards = {name: start(hub, "ada", name) for name in ("", "training")}
    assert len(set(cards.values())) == 2
    both_count(hub, "ada")

    hub.api("PATCH", "users/ada", json={"name": "adele"})
    both_count(hub, "adele")
    hub.restart()
    for name, card in cards.items():
        assert hub.wait_ready("adele", name)["user_options"] == ONE
        [row] = [r for r in containers(clean_engine) if r["Labels"]["gpuspawner.server"] == name]
        assert row["Labels"]["gpuspawner.devices"] == card
    both_count(hub, "adele")
    assert cards_in_use(clean_engine) == dict.fromkeys(cards.values(), 1)

    # Deleted as it runs: no container, no name, and its card counts no more.
    hub.api("DELETE", "users/adele/servers/training", json={"remove": True})
    hub.wait(lambda: len(containers(clean_engine)) == 1, "its container is gone")
    hub.wait(lambda: "training" not in servers(hub, "adele"), "its name is gone")
    start(hub, "adele", "more")
    for name in ("", "more"):
        stop(hub, "adele", name)
    hub.wait(lambda: not containers(clean_engine), "a GPU's container is never kept")


def test_a_server_is_renamed_when_it_does_not_run(hub: Hub, clean_engine: Engine) -> None:
    hub.add_users("ben")
    start(hub, "ben", "old", CPU)
    assert rename(hub, "ben", "old", "new") == 400
    stop(hub, "ben", "old")
    assert labels(clean_engine) == {("ben", "old")}, "kept for its next start"
    assert rename(hub, "ben", "old", "new") == 200
    assert not containers(clean_engine), "what was kept has the old name inside"
    start(hub, "ben", "new", CPU)
    assert labels(clean_engine) == {("ben", "new")}
    assert inside(hub, "ben", "new")["env"]["JUPYTERHUB_SERVICE_PREFIX"] == "/user/ben/new/"
    stop(hub, "ben", "new")


def test_whom_or_what_is_deleted_leaves_nothing(hub: Hub, clean_engine: Engine) -> None:
    hub.add_users("cleo", "dan")
    for name in ("", "named"):
        start(hub, "cleo", name, CPU)
        stop(hub, "cleo", name)
    assert labels(clean_engine) == {("cleo", ""), ("cleo", "named")}
    hub.api("DELETE", "users/cleo/servers/named", json={"remove": True})
    hub.wait(lambda: labels(clean_engine) == {("cleo", "")}, "a deleted server keeps nothing")
    hub.api("DELETE", "users/cleo")
    hub.wait(lambda: not containers(clean_engine), "a deleted user keeps nothing")
    start(hub, "dan")
    hub.api("DELETE", "users/dan")
    hub.wait(lambda: not containers(clean_engine), "nor does one whose server ran")
    assert "Traceback" not in hub.log
