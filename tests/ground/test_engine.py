"""Private engines: what they hand out, what faults can be made, and that they leave nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

from ground.engine import Engine
from ground.image import TINY, TINY_ALL, load_tiny
from ground.leftovers import engine_processes, mounts_below, start_ticks
from ground.machine import GroundError
from ground.registry import REGISTRY, clear_dead_engines


def nvidia(*uuids: str) -> dict[str, Any]:
    return {"Driver": "nvidia", "DeviceIDs": list(uuids), "Capabilities": [["gpu"]]}


def cdi(*uuids: str) -> dict[str, Any]:
    return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in uuids]}


def start(engine: Engine, image: str, *requests: dict[str, Any], **kwargs: Any) -> str:
    client = engine.client
    host = client.create_host_config(device_requests=list(requests), **kwargs)
    made: str = client.create_container(image, host_config=host, user="5000:6000")["Id"]
    client.start(made)
    return made


def facts(engine: Engine, container: str) -> dict[str, Any]:
    """What the tiny server says it was given; asked inside, so that no port has to be open yet."""
    code = (
        "import json, sys; sys.path.insert(0, '/srv');"
        "import tiny_server; print(json.dumps(tiny_server.facts()))"
    )
    made = engine.client.exec_create(container, ["python3", "-c", code])
    answer: dict[str, Any] = json.loads(engine.client.exec_start(made["Id"]))
    return answer


def running(engine: Engine, container: str) -> bool:
    return bool(engine.client.inspect_container(container)["State"]["Running"])


@pytest.fixture
def own_engine(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Engines of one test's own, of the same kind as ``engine``; none outlives the test."""
    made: list[Engine] = []

    def make(**kwargs: Any) -> Engine:
        made.append(Engine(tmp_path / f"engine{len(made)}", engine.kind, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_the_hook_path_hands_over_the_card_and_calls_the_hook(
    clean_engine: Engine, tiny_image: str
) -> None:
    container = start(clean_engine, tiny_image, nvidia(clean_engine.uuids[2]))
    calls = [call for call in clean_engine.hook_calls() if call.state["id"] == container]
    assert [call.arguments for call in calls] == [("prestart",)]


def test_a_failing_hook_fails_the_start_with_its_words(
    clean_engine: Engine, tiny_image: str
) -> None:
    words = "nvidia-container-cli: device error: GPU-1: unknown device"
    clean_engine.fail_hook(words)
    try:
        with pytest.raises(docker.errors.APIError, match=words):
            start(clean_engine, tiny_image, nvidia("GPU-1"))
    finally:
        clean_engine.fail_hook("")
    assert running(clean_engine, start(clean_engine, tiny_image, nvidia(clean_engine.uuids[0])))


def test_cdi_gives_the_device_node_asked_for_and_only_that(
    clean_engine: Engine, tiny_image: str
) -> None:
    if not clean_engine.has_cdi:
        with pytest.raises(docker.errors.APIError, match='could not select device driver "cdi"'):
            start(clean_engine, tiny_image, cdi(clean_engine.uuids[1]))
        return
    given = facts(clean_engine, start(clean_engine, tiny_image, cdi(clean_engine.uuids[1])))
    assert [name for name in given["dev"] if name.startswith("nvidia")] == ["nvidia1"]
    assert (given["uid"], given["gid"]) == (5000, 6000)
    listed = {device["ID"] for device in clean_engine.client.info()["DiscoveredDevices"]}
    assert listed == {f"nvidia.com/gpu={uuid}" for uuid in clean_engine.uuids}


def test_the_tiny_image_comes_with_and_without_all_cards_asked_for(
    clean_engine: Engine, tiny_image_all: str
) -> None:
    env = {
        name: clean_engine.client.inspect_image(name)["Config"]["Env"] for name in (TINY, TINY_ALL)
    }
    assert "NVIDIA_VISIBLE_DEVICES=all" in env[TINY_ALL]
    assert not any(line.startswith("NVIDIA_") for line in env[TINY])


def test_a_default_nvidia_runtime_sees_what_the_image_asks_for(
    own_engine: Callable[..., Engine],
) -> None:
    engine = own_engine(default_runtime="nvidia").start()
    load_tiny(engine.client)
    start(engine, TINY_ALL)
    start(engine, TINY_ALL, runtime="runc")
    (call,) = engine.runtime_calls()
    assert "NVIDIA_VISIBLE_DEVICES=all" in call["process"]["env"]


def test_containers_outlive_the_daemon_only_with_live_restore(
    own_engine: Callable[..., Engine],
) -> None:
    engine = own_engine(live_restore=True).start()
    load_tiny(engine.client)
    container = start(engine, TINY)
    pid = engine.client.inspect_container(container)["State"]["Pid"]
    engine.restart()
    assert running(engine, container)
    engine.kill()
    with pytest.raises(requests.ConnectionError):
        engine.client.ping()
    assert start_ticks(pid)
    engine.start_daemon()
    assert engine.client.inspect_container(container)["State"]["Pid"] == pid


def test_a_frozen_daemon_takes_connections_and_answers_nothing(
    own_engine: Callable[..., Engine],
) -> None:
    engine = own_engine().start()
    with closing(docker.APIClient(base_url=engine.url, version="1.40", timeout=0.3)) as impatient:
        engine.freeze()
        with pytest.raises(requests.ReadTimeout):
            impatient.ping()
        engine.thaw()
    assert engine.client.ping()


def test_stop_leaves_nothing(own_engine: Callable[..., Engine]) -> None:
    engine = own_engine().start()
    load_tiny(engine.client)
    start(engine, TINY)
    bridge = engine.bridge.name
    assert engine_processes(engine.folder)
    engine.stop()
    assert_nothing_left(engine, bridge)


def test_a_start_that_fails_half_way_leaves_nothing(
    own_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = own_engine()
    bridges: list[str] = []

    def fail() -> None:
        bridges.append(engine.bridge.name)
        raise GroundError("no daemon today")

    monkeypatch.setattr(engine, "start_daemon", fail)
    with pytest.raises(GroundError, match="no daemon today"):
        engine.start()
    assert_nothing_left(engine, *bridges)


def test_an_engine_whose_owner_was_killed_is_taken_down_by_the_next(
    own_engine: Callable[..., Engine],
) -> None:
    engine = own_engine()
    script = (
        "import os, signal, sys; from pathlib import Path; from ground.engine import Engine;"
        f"e = Engine(Path({str(engine.folder)!r}), {engine.kind!r}).start();"
        "print(e.bridge.name, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            "PYTHONPATH": ":".join(sys.path),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(Path.home()),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    bridge = done.stdout.strip()
    assert engine_processes(engine.folder)
    clear_dead_engines()
    assert_nothing_left(engine, bridge)


def assert_nothing_left(engine: Engine, *bridges: str) -> None:
    assert engine_processes(engine.folder) == set()
    assert mounts_below(engine.folder) == []
    for bridge in bridges:
        entry = REGISTRY / f"{bridge}.json"
        # Another run may have taken the name by now.
        assert not entry.exists() or str(engine.folder) not in entry.read_text()
    rules = subprocess.run(["iptables", "-w", "-S"], capture_output=True, text=True, check=True)
    taken = {path.stem for path in REGISTRY.glob("*.json")}
    for bridge in set(bridges) - taken:
        assert not Path("/sys/class/net", bridge).exists()
        assert f"gpuspawner-{bridge} " not in rules.stdout
