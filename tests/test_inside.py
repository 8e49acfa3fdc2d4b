"""Proof of what servers see, on a fake engine: refused only where it is certain, noticed later."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import until
from fakes.parts import FakeContainer
from gpuspawner import inside, inside_watch
from gpuspawner.inside import Unseen
from gpuspawner.inside_watch import Watched
from gpuspawner.refusal import GPURefusal
from ground.cards import simulated_uuids
from real_spawner import CPU, ONE, RealHub

UUIDS = simulated_uuids(4)
DENIED = "/bin/sh: 3: cannot open /dev/nvidia0: Operation not permitted"


class Machine(FakeMachine):
    """An engine that puts cards into containers.

    Attributes:
        nodes: tells what opening each node says, by minor; nothing where it opens.
        keeps: what it keeps of a host config.
    """

    def __init__(self) -> None:
        super().__init__()
        self.info["DiscoveredDevices"] = [
            {"Source": "cdi", "ID": f"nvidia.com/gpu={uuid}"} for uuid in UUIDS
        ]
        self.nodes: Callable[[FakeContainer], dict[int, str]] = given
        self.keeps: Callable[[dict[str, Any]], dict[str, Any]] = dict
        self.shell = True

    def make(
        self, image: str, name: str, labels: dict[str, str], env: list[str], host: dict[str, Any]
    ) -> FakeContainer:
        made = super().make(image, name, labels, env, self.keeps(host))
        made.inside = lambda _: self.look(made)
        return made

    def look(self, one: FakeContainer) -> tuple[int, bytes]:
        if not self.shell:
            return 127, b'exec: "/bin/sh": stat /bin/sh: no such file or directory'
        lines = [f"node /dev/nvidia{n} 1:3 {said}" for n, said in self.nodes(one).items()]
        return 0, "\n".join([*lines, "end", ""]).encode()


def given(one: FakeContainer) -> dict[int, str]:
    """What a good engine gives."""
    return {UUIDS.index(uuid): "" for uuid in one.cards}


@pytest.fixture
def machine() -> Machine:
    return Machine()


Make = Callable[..., RealHub]


@pytest.fixture
async def make_hub(machine: Machine, tmp_path: Path) -> AsyncIterator[Make]:
    hubs: list[RealHub] = []

    def make(**settings: Any) -> RealHub:
        hubs.append(RealHub(tmp_path, client=lambda: FakeClient(machine), **settings))
        return hubs[-1]

    yield make
    for hub in hubs:
        hub.close()


@pytest.fixture
def hub(make_hub: Make) -> RealHub:
    return make_hub()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside_watch, "CONFIRM_SECONDS", 0.0)


def looks(machine: FakeMachine) -> int:
    return machine.calls.count("exec-start")


async def refused(
    hub: RealHub, machine: FakeMachine, options: dict[str, str] = ONE
) -> tuple[str, str]:
    """A start that is refused and leaves nothing; the words for user and admin."""
    with pytest.raises(GPURefusal) as told:
        await hub.start("ada", options)
    assert told.value.refusal_reason == "gpu-engine"
    await until(lambda: hub.idle)
    assert not machine.containers
    words = str(told.value)
    assert len(words.split()) < 40
    assert not {"docker", "engine", "container", "podman", "/dev"} & set(words.lower().split())
    return words, told.value.admin_message


# -- at the start -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [ONE, CPU], ids=["gpu", "cpu"])
async def test_a_server_that_sees_its_own_starts(
    hub: RealHub, machine: Machine, options: dict[str, str]
) -> None:
    await hub.start("ada", options)
    assert looks(machine) == 1
    [one] = machine.live()
    assert len(one.cards) == (options is ONE)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (ONE, lambda one: {**given(one), 7: ""}),
        (ONE, lambda one: dict.fromkeys(range(4), "")),
        (CPU, lambda _: {0: ""}),
    ],
    ids=["one more", "all", "cpu"],
)
async def test_a_server_that_sees_more_is_refused(
    hub: RealHub,
    machine: Machine,
    options: dict[str, str],
    nodes: Callable[[FakeContainer], dict[int, str]],
) -> None:
    machine.nodes = nodes
    words, cause = await refused(hub, machine, options)
    assert "could not be started" in words
    assert "/dev/nvidia" in cause
    assert "fix:" in cause
    machine.nodes = given
    await hub.start("ada", options)


@pytest.mark.parametrize(
    "said", [None, DENIED, "sh: 3: cannot open /dev/nvidia0: Input/output error"]
)
async def test_a_server_without_its_card_is_refused(
    hub: RealHub, machine: Machine, said: str | None
) -> None:
    machine.nodes = lambda one: {} if said is None else dict.fromkeys(given(one), said)
    words, cause = await refused(hub, machine)
    assert "without its GPU" in words
    assert any(uuid in cause for uuid in UUIDS)
    machine.nodes = given
    assert (await hub.start("ada")).devices


async def test_a_privileged_server_sees_everything_as_the_admin_wants(
    hub: RealHub, machine: Machine
) -> None:
    hub.config.GPUSpawner.allow_privileged = True
    hub.config.GPUSpawner.extra_host_config = {"privileged": True}
    machine.nodes = lambda _: dict.fromkeys(range(4), "")
    await hub.start("ada")
    await hub.start("bob", CPU)
    assert len(machine.live()) == 2


@pytest.mark.parametrize("kind", ["unreachable", "lost", "cut", "500"])
@pytest.mark.parametrize("operation", ["exec-create", "exec-start"])
async def test_a_look_that_fails_refuses_nobody(
    hub: RealHub, machine: Machine, operation: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine.fault(operation, kind, times=-1)
    with caplog.at_level(logging.INFO):
        await hub.start("ada")
        await hub.start("bob", CPU)
    assert len(machine.live()) == 2
    assert caplog.text.count("Can't prove") == 1


async def test_an_image_without_a_shell_refuses_nobody(hub: RealHub, machine: Machine) -> None:
    machine.shell = False
    await hub.start("ada")
    assert len(machine.live()) == 1


@pytest.mark.parametrize("body", [b"[]", b"{}", b"null", b"<html>", b""])
def test_an_answer_that_is_none_tells_nothing(body: bytes) -> None:
    answer = requests.Response()
    answer.status_code, answer.raw = 200, io.BytesIO(body)
    engine: Any = SimpleNamespace(post=lambda *_, **__: answer)
    with pytest.raises(Unseen):
        inside._look(engine, "one")


@pytest.mark.parametrize("rest", [b"", b"\x01\0\0", b"\x01\0\0\0\0\0\xff\xffend"])
def test_output_that_was_cut_tells_no_more_than_came(rest: bytes) -> None:
    frame = b"\x01\0\0\0\0\0\0\x05node " + b"\x02\0\0\0\0\0\0\x01x"
    assert inside._text(frame + rest).startswith("node x")


async def test_a_look_that_hangs_refuses_nobody(
    hub: RealHub, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "DEADLINE_SECONDS", 0.02)
    with machine.gate("exec-start", "before"):
        await hub.start("ada")
    assert len(machine.live()) == 1


async def test_nobody_is_told_ready_before_the_look_is_over(hub: RealHub, machine: Machine) -> None:
    machine.nodes = lambda one: {**given(one), 7: ""}
    with machine.gate("exec-start", "before") as gate:
        starting = hub.begin_start("ada")
        await asyncio.get_running_loop().run_in_executor(None, gate.wait_arrived)
        assert not starting.done()
        gate.open()
        with pytest.raises(GPURefusal):
            await starting
    await until(lambda: hub.idle)
    assert not machine.containers


async def test_a_cancel_during_the_look_leaves_nothing(hub: RealHub, machine: Machine) -> None:
    with machine.gate("exec-start", "before") as gate:
        starting = hub.begin_start("ada")
        await asyncio.get_running_loop().run_in_executor(None, gate.wait_arrived)
        await hub.stop("ada")
        assert starting.cancelled()
    await until(lambda: hub.idle)
    assert not machine.containers


async def test_nothing_is_run_inside_where_the_admin_does_not_want_it(
    make_hub: Make, machine: Machine
) -> None:
    hub = make_hub(look_inside=False)
    machine.nodes = lambda _: dict.fromkeys(range(4), "")
    await hub.start("ada")
    await hub.poll("ada")
    assert not [call for call in machine.calls if call.startswith("exec")]


# -- after create -------------------------------------------------------------------------------


def dropped(host: dict[str, Any]) -> dict[str, Any]:
    return {**host, "DeviceRequests": None}


async def test_an_engine_that_drops_requests_is_noticed_before_the_start(
    hub: RealHub, machine: Machine
) -> None:
    machine.keeps = dropped
    words, cause = await refused(hub, machine)
    assert "without its GPU" in words
    assert "nvidia.com/gpu=" in cause
    assert "DOCKER_HOST" in cause
    assert "start" not in machine.calls
    await hub.start("ada", CPU)
    machine.keeps = dict
    await hub.start("bob")


async def test_an_inspection_that_fails_once_is_asked_again(hub: RealHub, machine: Machine) -> None:
    machine.fault("inspect", "500", times=1)
    await hub.start("ada")
    assert len(machine.live()) == 1


async def test_one_inspection_for_a_gpu_and_none_without(hub: RealHub, machine: Machine) -> None:
    await hub.start("ada", CPU)
    before = machine.calls.count("inspect")
    await hub.start("bob")
    assert machine.calls.count("inspect") == 2 * before + 1


class Podman(Machine):
    """It neither lists CDI devices nor shows requests, and takes them by CDI only."""

    def __init__(self) -> None:
        super().__init__()
        self.info.update(BuildahVersion="1.39.4", ServerVersion="5.5.2")
        del self.info["DiscoveredDevices"]

    def inspect(self, container_id: str, timeout: float | None = None) -> dict[str, Any]:
        told = super().inspect(container_id, timeout)
        told["HostConfig"].pop("DeviceRequests", None)
        return told


@pytest.fixture
def podman() -> Machine:
    return Podman()


@pytest.fixture
def podman_hub(podman: Machine, tmp_path: Path) -> Iterator[RealHub]:
    hub = RealHub(tmp_path, client=lambda: FakeClient(podman))
    yield hub
    hub.close()


async def test_podman_is_asked_by_cdi_and_not_refused_for_what_it_does_not_show(
    podman: Machine, podman_hub: RealHub, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await podman_hub.start("ada")
        await podman_hub.start("bob")
    drivers = {
        request["Driver"] for one in podman.live() for request in one.host_config["DeviceRequests"]
    }
    assert drivers == {"cdi"}
    assert caplog.text.count("Podman") == 1


async def test_podman_would_ignore_another_driver(podman: Machine, podman_hub: RealHub) -> None:
    podman_hub.pool.device_driver = "nvidia"
    _, cause = await refused(podman_hub, podman)
    assert "GPUPool.device_driver = 'cdi'" in cause
    assert "start" not in podman.calls


# -- later --------------------------------------------------------------------------------------


def watched(hub: RealHub, name: str = "ada") -> Watched:
    found = hub.spawner(name).watched
    assert found is not None
    return found


async def looked(hub: RealHub, name: str = "ada") -> Watched:
    """A poll, and the look that it began, to its end."""
    assert await hub.poll(name) is None
    task = watched(hub, name).task
    assert task is not None
    await task
    return watched(hub, name)


async def test_a_card_that_is_lost_is_noticed_told_once_and_taken_back(
    hub: RealHub, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    await hub.start("ada")
    assert not (await looked(hub)).notice
    machine.nodes = lambda one: dict.fromkeys(given(one), DENIED)
    assert "can no longer see its GPU" in (await looked(hub)).notice
    await looked(hub)
    [line] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "ada" in line.getMessage()
    assert "cdi" in line.getMessage()
    machine.nodes = given
    with caplog.at_level(logging.INFO):
        assert not (await looked(hub)).notice
    assert "can use its GPU again" in caplog.text
    machine.nodes = lambda _: {}
    assert "not there any more" in (await looked(hub)).lost


async def test_it_is_noticed_after_a_restart_of_the_hub_too(hub: RealHub, machine: Machine) -> None:
    await hub.start("ada")
    machine.nodes = lambda one: dict.fromkeys(given(one), DENIED)
    await hub.restart()
    # The restart polled each server, which began a look.
    task = watched(hub).task
    assert task
    await task
    assert watched(hub).notice


async def test_once_is_no_loss(hub: RealHub, machine: Machine) -> None:
    await hub.start("ada")
    answers = iter([DENIED, ""])
    machine.nodes = lambda one: {n: next(answers) for n in given(one)}
    assert not (await looked(hub)).notice
    assert next(answers, None) is None


async def test_a_poll_never_waits_for_a_look_and_there_is_one_at_a_time(
    hub: RealHub, machine: Machine
) -> None:
    await hub.start("ada")
    before = machine.calls.count("exec-create")
    with machine.gate("exec-create", "before") as gate:
        for _ in range(5):
            assert await hub.poll("ada") is None
        await asyncio.get_running_loop().run_in_executor(None, gate.wait_arrived)
        assert machine.calls.count("exec-create") == before + 1
    task = watched(hub).task
    assert task
    await task


async def test_at_most_once_in_each_interval(hub: RealHub, machine: Machine) -> None:
    hub.config.GPUSpawner.poll_interval = 3600
    await hub.start("ada")
    before = looks(machine)
    for _ in range(3):
        await looked(hub)
    assert looks(machine) == before + 1


async def test_a_server_without_a_card_is_left_in_peace(hub: RealHub, machine: Machine) -> None:
    await hub.start("ada", CPU)
    await hub.poll("ada")
    assert watched(hub).task is None


async def test_what_can_not_be_seen_is_asked_ever_less(hub: RealHub, machine: Machine) -> None:
    await hub.start("ada")
    machine.shell = False
    pauses = []
    for _ in range(9):
        pauses.append((await looked(hub)).pause_seconds)
        assert not watched(hub).notice
        watched(hub).next_at = 0.0
    assert pauses[:3] == [60.0, 120.0, 240.0]
    assert pauses[-1] == inside_watch.LONGEST_PAUSE_SECONDS
    machine.shell = True
    assert (await looked(hub)).pause_seconds == 0.0


async def test_where_no_node_is_shown_it_is_asked_ever_less(hub: RealHub, machine: Machine) -> None:
    """As with simulated cards on the hook path: no loss could be told there."""
    machine.nodes = lambda _: {}
    hub.pool.device_driver = "nvidia"
    await hub.start("ada")
    first = (await looked(hub)).pause_seconds
    watched(hub).next_at = 0.0
    assert [first, (await looked(hub)).pause_seconds] == [60.0, 120.0]
    assert not watched(hub).notice


async def test_a_stop_during_a_look_is_no_loss(
    hub: RealHub, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    await hub.start("ada")
    await looked(hub)
    with machine.gate("exec-start", "before") as gate:
        await hub.poll("ada")
        task = watched(hub).task
        assert task
        await asyncio.get_running_loop().run_in_executor(None, gate.wait_arrived)
        await hub.stop("ada")
        await until(lambda: hub.idle)
    await task
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert hub.spawner("ada").watched is None
