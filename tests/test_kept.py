"""Containers kept by ``remove = False`` for the next start of their server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_hub import containers, gpu_hub
from ground.engine import Engine
from ground.hub import Hub
from orders import CONFIG, order

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}


def start(hub: Hub, user: str, options: dict[str, str] = ONE) -> None:
    hub.start_server(user, options)
    hub.wait_ready(user)


def clear(hub: Hub, user: str) -> None:
    hub.stop_server(user)
    hub.wait_stopped(user)


@pytest.fixture(scope="module")
def keeping_hub(
    engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    config = "c.DockerSpawner.remove = False\n"
    with gpu_hub(tmp_path_factory.mktemp("keeping"), engine, tiny_image, config) as hub:
        yield hub


def write(hub: Hub, user: str) -> None:
    assert hub.user_answer(user, "write?name=kept", data=b"x").ok


def kept(hub: Hub, user: str) -> bool:
    return hub.user_answer(user, "read?path=/home/jovyan/kept").ok


def test_a_kept_cpu_container_is_started_again(keeping_hub: Hub, engine: Engine) -> None:
    hub = keeping_hub
    hub.add_users("dan")
    start(hub, "dan", CPU)
    write(hub, "dan")
    [first] = containers(engine)
    clear(hub, "dan")
    assert [row["State"] for row in containers(engine)] == ["exited"]
    start(hub, "dan", CPU)
    [again] = containers(engine)
    assert again["Id"] == first["Id"]
    assert kept(hub, "dan")
    # With a GPU it is another container, and that one is never started twice.
    clear(hub, "dan")
    start(hub, "dan")
    [gpu] = containers(engine)
    assert gpu["Id"] != first["Id"]
    assert not kept(hub, "dan")
    write(hub, "dan")
    clear(hub, "dan")
    start(hub, "dan")
    [other] = containers(engine)
    assert other["Id"] != gpu["Id"]
    assert not kept(hub, "dan")
    clear(hub, "dan")
    hub.wait(lambda: not containers(engine), "a GPU's container is not kept")


def test_a_kept_container_outlives_the_hub(keeping_hub: Hub, engine: Engine) -> None:
    hub = keeping_hub
    hub.add_users("eve")
    start(hub, "eve", CPU)
    write(hub, "eve")
    clear(hub, "eve")
    hub.restart()
    start(hub, "eve", CPU)
    assert kept(hub, "eve")
    clear(hub, "eve")
    hub.api("DELETE", "users/eve")
    engine.remove_containers()


def test_a_kept_container_that_can_not_be_reached_does_not_run_on(
    engine: Engine, tiny_image: str, tmp_path: Path
) -> None:
    config = "c.DockerSpawner.remove = False\n" + CONFIG
    network = engine.client.create_network("elsewhere")
    try:
        with gpu_hub(tmp_path / "hub", engine, tiny_image, config) as hub:
            order(hub, "fay")
            start(hub, "fay", CPU)
            write(hub, "fay")
            clear(hub, "fay")
            order(hub, "fay", network_name="elsewhere")
            answer = hub.start_server("fay", CPU, check=False)
            assert answer.status_code == 503
            assert "could not be started" in answer.json()["message"]
            assert "network_name is 'elsewhere', but the container is on bridge" in hub.log
            assert "Traceback" not in hub.log
            hub.wait(lambda: containers(engine)[0]["State"] == "exited", "it does not run on")
            order(hub, "fay", post_start_cmd="touch /home/jovyan/told")
            start(hub, "fay", CPU)
            assert kept(hub, "fay")
            assert hub.user_answer("fay", "read?path=/home/jovyan/told").ok
            clear(hub, "fay")
    finally:
        engine.remove_containers()
        engine.client.remove_network(network["Id"])
