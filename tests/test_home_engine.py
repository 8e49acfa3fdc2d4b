"""The first write into home succeeds, and another user's home is refused, on real engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_hub import containers, gpu_hub
from ground.engine import Engine
from ground.hub import Hub

# The engine's archive calls are tried on both kinds in test_home.py.
pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

CPU = {"profile": "cpu"}


def write(hub: Hub, user: str) -> int:
    """Status of a first write into HOME as the server's user."""
    return hub.user_answer(user, "write?name=first", data=b"x").status_code


@pytest.fixture
def start(engine: Engine, tiny_image: str, tmp_path: Path) -> Iterator[Callable[[str], Hub]]:
    hubs: list[Hub] = []

    def begin(config: str) -> Hub:
        hub = gpu_hub(tmp_path / "hub", engine, tiny_image, config).start()
        hub.add_users("ada")
        hubs.append(hub)
        return hub

    yield begin
    for hub in hubs:
        if hub.server("ada"):
            hub.stop_server("ada")
        hub.stop()


VOLUME = 'c.DockerSpawner.volumes = {"home-{username}": "/home/jovyan"}\n'


OTHER_UID = VOLUME + "c.GPUSpawner.uid = 4321\n"
NEW_HOME = "c.GPUSpawner.home = '/data/home'\n"


@pytest.mark.parametrize("config", ["", VOLUME, OTHER_UID, NEW_HOME])
def test_first_write_succeeds(start: Callable[[str], Hub], engine: Engine, config: str) -> None:
    hub = start(config)
    hub.start_server("ada", CPU)
    hub.wait_ready("ada")
    assert write(hub, "ada") == 200
    hub.stop_server("ada")
    hub.wait_stopped("ada")
    for volume in engine.client.volumes()["Volumes"] or ():
        engine.client.remove_volume(volume["Name"])


@pytest.mark.parametrize("made", [False, True])
def test_a_bind_mount_of_roots_is_made_right(
    start: Callable[[str], Hub], tmp_path: Path, made: bool
) -> None:
    home = tmp_path / "home"
    if made:
        (home / "inner").mkdir(parents=True)
    hub = start(f"c.DockerSpawner.volumes = {{{str(home)!r}: '/home/jovyan'}}\n")
    hub.start_server("ada", CPU)
    hub.wait_ready("ada")
    assert write(hub, "ada") == 200
    assert (home.stat().st_uid, home.stat().st_gid) == (1000, 100)
    if made:
        assert (home / "inner").stat().st_uid == 0  # only the top folder


def test_another_users_home_is_refused_with_path_and_owner(
    start: Callable[[str], Hub], engine: Engine, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 2000, 2001)
    hub = start(f"c.DockerSpawner.volumes = {{{str(home)!r}: '/home/jovyan'}}\n")
    answer = hub.start_server("ada", CPU, check=False)
    assert answer.status_code == 503
    assert str(home) not in answer.text
    assert f"{str(home)!r}" in hub.log
    assert "belongs to 2000:2001" in hub.log
    assert "Traceback" not in hub.log
    hub.wait(lambda: not containers(engine), "no container left")
    assert (home.stat().st_uid, home.stat().st_gid) == (2000, 2001)


def test_roots_home_under_a_read_only_root_is_refused_with_the_fix(
    start: Callable[[str], Hub], tmp_path: Path
) -> None:
    config = f"c.DockerSpawner.volumes = {{{str(tmp_path / 'new')!r}: '/home/jovyan'}}\n"
    hub = start(config + "c.DockerSpawner.extra_host_config = {'read_only': True}\n")
    assert hub.start_server("ada", CPU, check=False).status_code == 503
    assert "chown 1000:100" in hub.log
