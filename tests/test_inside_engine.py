"""Proof of what servers see, on real engines: real device nodes, and access that is really lost."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from fakes.hub import until
from gpuspawner import inside_watch
from gpuspawner.engine import Engine as OurEngine
from gpuspawner.inside import Unseen, look
from gpuspawner.refusal import GPURefusal
from ground.engine import Engine
from real_spawner import CPU, RealHub

by_cdi = pytest.mark.parametrize("engine", ["cdi"], indirect=True)

#: Each card's device nodes: the card's own is the host's /dev/full, which nobody else here opens.
CARDS = {
    "good": {"/dev/nvidia7": "/dev/full"},
    "double": {"/dev/nvidia8": "/dev/full", "/dev/nvidia9": "/dev/full"},
    "other": {"/dev/nvidia11": "/dev/full"},
    "none": {},
}
MINORS = {"good": 7, "double": 8, "other": 10, "none": 12}
UUIDS = {name: f"GPU-00000000-0000-0000-0000-0000000000{n:02}" for name, n in MINORS.items()}


@pytest.fixture(scope="module")
def special_cards(engine: Engine) -> Iterator[None]:
    """Cards of which the engine's CDI file says more or less than there is."""
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {
                "name": UUIDS[name],
                "containerEdits": {
                    "env": ["HARMLESS=1"],
                    "deviceNodes": [{"path": p, "hostPath": host} for p, host in nodes.items()],
                },
            }
            for name, nodes in CARDS.items()
        ],
    }
    path = engine.cdi_folder / "special.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(spec))
    new.replace(path)
    try:
        wait_listed(engine, True)
        yield
    finally:
        path.unlink()
        wait_listed(engine, False)


def wait_listed(engine: Engine, listed: bool) -> None:
    wanted = {f"nvidia.com/gpu={uuid}" for uuid in UUIDS.values()}
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        known = {d["ID"] for d in engine.client.info().get("DiscoveredDevices") or ()}
        if wanted <= known if listed else not wanted & known:
            return
        time.sleep(0.05)
    raise AssertionError(f"the engine lists {known}")


@pytest.fixture
async def make_hub(
    engine: Engine, clean_engine: Engine, tiny_image: str, tmp_path: Path
) -> AsyncIterator[Callable[..., RealHub]]:
    hubs: list[RealHub] = []

    def make(*cards: str, **settings: Any) -> RealHub:
        if cards:
            settings["inventory"] = [
                {"uuid": UUIDS[card], "minor": MINORS[card], "model": "A", "memory_gib": 1}
                for card in cards
            ]
        settings = {"url": engine.url, "image": tiny_image, **settings}
        hubs.append(RealHub(tmp_path, **settings))
        return hubs[-1]

    yield make
    for hub in hubs:
        await idle(hub)
        hub.close()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside_watch, "CONFIRM_SECONDS", 0.0)


async def idle(hub: RealHub) -> None:
    await until(lambda: hub.idle)


async def notice(hub: RealHub) -> str:
    """What a poll, and the look it began, came to."""
    assert await hub.poll("ada") is None
    watched = hub.spawner("ada").watched
    assert watched is not None
    assert watched.task is not None
    await watched.task
    assert not watched.pause_seconds, "the look failed"
    return watched.lost


@by_cdi
async def test_a_node_that_is_taken_away_and_comes_back(
    make_hub: Callable[..., RealHub], engine: Engine, special_cards: None
) -> None:
    hub = make_hub("good")
    await hub.start("ada")
    assert await notice(hub) == ""
    [row] = engine.client.containers()
    pid = engine.client.inspect_container(row["Id"])["State"]["Pid"]
    node = Path(f"/proc/{pid}/root/dev/nvidia7")
    number, mode = node.stat().st_rdev, stat.S_IFCHR | 0o666
    node.unlink()
    assert "/dev/nvidia7 is not there any more" in await notice(hub)
    assert "save" in hub.spawner("ada").watched.notice  # type: ignore[union-attr]
    os.mknod(node, mode, number)
    assert await notice(hub) == ""
    await hub.stop("ada")


@by_cdi
async def test_access_that_the_device_cgroup_takes_back(
    make_hub: Callable[..., RealHub], engine: Engine, special_cards: None
) -> None:
    """What ``systemctl daemon-reload`` does to what NVIDIA's hook allowed."""
    hub = make_hub("good")
    await hub.start("ada")
    [row] = engine.client.containers()
    pid = engine.client.inspect_container(row["Id"])["State"]["Pid"]
    folder = devices_cgroup(pid)
    if folder is None:
        await hub.stop("ada")
        pytest.skip("the device cgroup of version 2 is a program that only its owner can change")
    assert await notice(hub) == ""
    (folder / "devices.deny").write_text("c 1:7 rwm")
    assert "may not open /dev/nvidia7 (Operation not permitted)" in await notice(hub)
    (folder / "devices.allow").write_text("c 1:7 rwm")
    assert await notice(hub) == ""
    await hub.stop("ada")


def devices_cgroup(pid: int) -> Path | None:
    """The folder of a process's device cgroup (version 1)."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "devices" in controllers.split(","):
            folder = Path("/sys/fs/cgroup/devices") / path.lstrip("/")
            return folder if (folder / "devices.deny").exists() else None
    return None


@by_cdi
@pytest.mark.parametrize(
    ("card", "cause"),
    [
        ("double", "it can reach /dev/nvidia9"),
        ("other", "it can reach /dev/nvidia11"),
        ("none", "should be /dev/nvidia12, which is not there"),
    ],
)
async def test_a_cdi_file_that_gives_other_than_it_says(
    make_hub: Callable[..., RealHub], engine: Engine, special_cards: None, card: str, cause: str
) -> None:
    hub = make_hub(card)
    with pytest.raises(GPURefusal) as told:
        await hub.start("ada")
    assert cause in told.value.admin_message
    await idle(hub)
    assert not engine.client.containers(all=True)
    await hub.start("ada", CPU)
    await hub.stop("ada")


class Dropping(docker.APIClient):  # type: ignore[misc]
    """As through a proxy that knows nothing of device requests."""

    def create_container(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["host_config"].pop("DeviceRequests", None)
        return super().create_container(*args, **kwargs)


@by_cdi
async def test_requests_that_get_lost_on_the_way_are_noticed_before_the_start(
    make_hub: Callable[..., RealHub], engine: Engine
) -> None:
    hub = make_hub(url="", client=lambda: Dropping(base_url=engine.url))
    with pytest.raises(GPURefusal, match="without its GPU") as told:
        await hub.start("ada")
    assert "kept none" in told.value.admin_message
    await idle(hub)
    assert not engine.client.containers(all=True)


async def test_an_image_without_a_shell_tells_nothing(
    engine: Engine, clean_engine: Engine, tiny_image: str
) -> None:
    client = engine.client
    made = client.create_container(tiny_image, ["rm", "/bin/sh"], user="0:0")
    client.start(made)
    client.wait(made)
    image = client.commit(made, "gpuspawner-no-shell")
    ours = OurEngine(lambda: docker.APIClient(base_url=engine.url))
    try:
        running = client.create_container(image["Id"], ["python3", "-I", "/srv/tiny_server.py"])
        client.start(running)
        with pytest.raises(Unseen):
            await look(ours, running["Id"])
    finally:
        engine.remove_containers()
        client.remove_image(image["Id"], force=True)
        ours.close()
