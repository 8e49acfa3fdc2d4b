"""Limits of GPUs and time on a real engine, seen from outside: a hub with groups, by REST."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_hub import cards_in_use, containers, gpu_hub
from ground.engine import Engine
from ground.hub import Hub

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
CONFIG = """
import gpuspawner
c.GPUSpawner.profile_list = [
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
    {"display_name": "Quick", "slug": "quick", "gpu": {"count": 1}, "max_hours": 0.01},
    {"display_name": "CPU", "slug": "cpu", "max_servers_per_user": 1},
]
c.GPUSpawner.max_gpus_per_user = {"*": 2}
c.GPUSpawner.max_gpus_per_group = {"students": 2}
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 120, "slow_stop_timeout": 120}
gpuspawner.configure(c)
"""


@pytest.fixture(scope="module")
def shared_hub(
    engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    with gpu_hub(tmp_path_factory.mktemp("limits"), engine, tiny_image, CONFIG) as hub:
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, clean_engine: Engine) -> Hub:
    return shared_hub


def test_a_group_keeps_its_limit(hub: Hub, clean_engine: Engine) -> None:
    hub.add_users("ada", "ben", "dan")
    hub.api("POST", "groups/students")
    hub.api("POST", "groups/students/users", json={"users": ["ada", "ben"]})
    for user, name in (("ada", ""), ("ada", "b")):
        hub.start_server(user, ONE, name)
        hub.wait_ready(user, name)
    answer = hub.start_server("ben", ONE, check=False)
    assert answer.status_code == 403
    assert answer.json()["message"].startswith(
        'Your group "students" may use 2 GPUs at a time, and 2 are in use.'
    )
    assert "ada/b (1)" in hub.log
    assert "and 2 are in use." in hub.login("ben").get_form().text
    hub.start_server("dan", ONE)
    hub.wait_ready("dan")
    hub.stop_server("ada", "b")
    hub.wait_stopped("ada", "b")
    hub.start_server("ben", ONE)
    hub.wait_ready("ben")
    assert sorted(cards_in_use(clean_engine).values()) == [1, 1, 1]
    for user in ("ada", "ben", "dan"):
        hub.stop_server(user)
        hub.wait_stopped(user)


def test_a_server_ends_with_its_time(hub: Hub, clean_engine: Engine) -> None:
    user = "eve"
    hub.add_users(user)
    hub.start_server(user, {"profile": "quick"})
    hub.wait_ready(user)
    [row] = containers(clean_engine)
    assert row["Labels"]["gpuspawner.max_seconds"] == "36"
    home = hub.login(user)
    hub.wait(
        lambda: "Your 36 seconds of GPU time end in 1 minute." in home.get("/hub/home").text,
        "the home page tells it before",
    )
    # The hub's own view, the container and the card: all of it ends, with nobody's help.
    hub.restart()
    hub.wait_stopped(user)
    hub.wait(lambda: not containers(clean_engine), "its container is gone")
    assert "time limit of 36 seconds" in hub.log
    page = hub.login(user).get("/hub/home").text
    assert "Your 36 seconds of GPU time are over, so your server was stopped." in page
    hub.start_server(user, {"profile": "cpu"})
    hub.wait_ready(user)
    assert "time are over" not in hub.login(user).get("/hub/home").text
    hub.stop_server(user)
    hub.wait_stopped(user)
