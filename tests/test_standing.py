"""A server that stands, on a fake engine: what a poll says, and where the route leads.

The hands of others move the container; the hub's own objects (user, spawner, database) are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import in_thread, until
from fakes.parts import FakeContainer
from gpuspawner import resuming, standing
from gpuspawner.reaching import NOWHERE
from gpuspawner.refusal import GPURefusal
from gpuspawner.spawner import GPUSpawner
from real_spawner import CPU, RealHub


class Proxy:
    """Keeps the routes that it is told of."""

    def __init__(self) -> None:
        self.routes: dict[str, str] = {}
        self.broken = False

    async def add_user(self, user: Any, server_name: str = "") -> None:
        if self.broken:
            raise RuntimeError("no answer")
        spawner = user.spawners[server_name]
        self.routes[spawner.proxy_spec] = spawner.server.host


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture
async def hub(machine: FakeMachine, proxy: Proxy, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(tmp_path, client=lambda: FakeClient(machine))
    made.settings |= {"proxy": proxy, "users": made._users}
    yield made
    made.close()


@pytest.fixture(autouse=True)
def pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause before the second look is for real engines; its order is tested by gates."""
    monkeypatch.setattr(standing, "EXIT_CONFIRM_SECONDS", 0.0)


def container(machine: FakeMachine, spawner: GPUSpawner) -> FakeContainer:
    return machine.containers[spawner.object_id]


def address(spawner: GPUSpawner) -> str:
    return str(spawner.server.ip)


# -- alive or not -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["paused", "restarting", "running", "unheard-of"])
async def test_it_is_alive(hub: RealHub, machine: FakeMachine, state: str) -> None:
    spawner = await hub.start("ada")
    container(machine, spawner).state = state
    if state == "unheard-of":
        # As an engine that has more states than Docker: the inspection tells.
        container(machine, spawner).__class__ = type(
            "Stopping", (FakeContainer,), {"live": property(lambda _: True)}
        )
    assert await hub.poll("ada") is None


@pytest.mark.parametrize(
    "end",
    [
        lambda machine, one: machine.exit(one.id),
        lambda machine, one: machine.exit(one.id, oom_killed=True),
        lambda machine, one: machine.kill(one.id),
        lambda machine, one: machine.rm_f(one.id),
        lambda machine, one: setattr(one, "state", "removing"),
        lambda machine, one: setattr(one, "state", "dead"),
    ],
    ids=["exit", "oom", "kill", "rm", "removing", "dead"],
)
async def test_it_has_ended_and_its_card_is_free(
    hub: RealHub, machine: FakeMachine, end: Callable[[FakeMachine, FakeContainer], None]
) -> None:
    spawner = await hub.start("ada")
    one = container(machine, spawner)
    end(machine, one)
    assert await hub.poll("ada") is not None
    if one.state in ("removing", "dead"):
        machine.containers.clear()
    await until(lambda: hub.idle and not machine.containers)
    assert (await hub.start("ada")).devices


async def test_how_it_ended_is_told(hub: RealHub, machine: FakeMachine) -> None:
    spawner = await hub.start("ada")
    machine.exit(spawner.object_id, oom_killed=True)
    assert "ExitCode=137" in str(await spawner.poll())


async def test_between_end_and_start_of_a_restart_it_is_alive(
    hub: RealHub, machine: FakeMachine
) -> None:
    spawner = await hub.start("ada")
    with machine.gate("restart", "inside") as gate:
        restarting = asyncio.ensure_future(in_thread(lambda: machine.restart(spawner.object_id)))
        await in_thread(gate.wait_arrived)
        polling = asyncio.ensure_future(spawner.poll())
        # Listed as exited twice; the inspection waits for the start.
        await until(lambda: machine.calls[-3:] == ["list", "list", "inspect"])
    assert await polling is None
    await restarting


@pytest.mark.parametrize("fault", ["unreachable", "lost", "500"])
@pytest.mark.parametrize("operation", ["list", "inspect"])
async def test_unknown_ends_no_server(
    hub: RealHub, machine: FakeMachine, operation: str, fault: Any
) -> None:
    spawner = await hub.start("ada")
    machine.exit(spawner.object_id)
    machine.fault(operation, fault, -1)
    assert await hub.poll("ada") is None
    machine.heal()
    assert await hub.poll("ada") is not None


async def test_an_end_once_seen_stays_seen(hub: RealHub, machine: FakeMachine) -> None:
    """The hub polls again while it cleans up: it must not be told another story then."""
    spawner = await hub.start("ada")
    machine.exit(spawner.object_id)
    told = await spawner.poll()
    machine.run(spawner.object_id)
    assert await spawner.poll() == told
    machine.fault("*", "unreachable", -1)
    assert await spawner.poll() == told


# -- answers about the past ---------------------------------------------------------------------


@pytest.mark.parametrize("at", ["running", "exited"])
async def test_an_answer_about_an_old_container_ends_no_new_server(
    hub: RealHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    spawner = await hub.start("ada")
    listing, go_on = hub.pool.engine.listing, asyncio.Event()

    async def late() -> Any:
        answer = await listing()
        await go_on.wait()
        return answer

    if at == "exited":
        machine.exit(spawner.object_id)
    monkeypatch.setattr(hub.pool.engine, "listing", late)
    polling = asyncio.ensure_future(spawner.poll())
    await asyncio.sleep(0)
    monkeypatch.setattr(hub.pool.engine, "listing", listing)
    await hub.user("ada").stop()
    new = await hub.start("ada")
    go_on.set()
    assert new is not spawner
    assert await polling is None
    assert await new.poll() is None
    assert await spawner.poll() == 0  # over, and it adopts nothing
    assert not spawner.object_id


async def test_a_stop_is_not_taken_for_an_end(hub: RealHub, machine: FakeMachine) -> None:
    spawner = await hub.start("ada")
    ends: list[str] = []
    spawner.add_poll_callback(ends.append, "ended")
    with machine.gate("stop", "after") as gate:
        stopping = asyncio.ensure_future(hub.stop("ada"))
        await in_thread(gate.wait_arrived)
        assert not container(machine, spawner).live
        assert await spawner.poll() is None
        assert await spawner.poll_and_notify() is None
    await stopping
    assert not ends


async def test_an_end_during_the_hubs_start_is_told_when_the_hub_listens(
    hub: RealHub, machine: FakeMachine
) -> None:
    """The server is up, its route is not yet: the hub adds its callback after that."""
    spawner = await hub.start("ada")
    spawner.poll_interval = 600
    spawner._spawn_pending = True  # as the hub's handler has it
    spawner.start_polling()
    machine.exit(spawner.object_id)
    assert await spawner.poll_and_notify() is not None
    assert spawner._poll_callback, "the hub goes on asking"
    ends: list[str] = []
    spawner.add_poll_callback(ends.append, "ended")
    spawner._spawn_pending = False
    assert await spawner.poll_and_notify() is not None
    assert ends == ["ended"]


async def test_an_end_is_told_once_and_cleared_before_the_next_start(
    hub: RealHub, machine: FakeMachine
) -> None:
    spawner = await hub.start("ada")
    order: list[str] = []

    async def clear_up() -> None:
        order.append("begins")
        await asyncio.sleep(0)
        await hub.user("ada").stop()
        order.append("ends")

    spawner.add_poll_callback(clear_up)
    machine.exit(spawner.object_id)

    async def ask() -> None:
        assert await spawner.poll_and_notify() is not None
        order.append("told")

    await asyncio.gather(ask(), ask(), ask())
    assert order == ["begins", "ends", "told", "told", "told"]


# -- a start that follows at once ---------------------------------------------------------------


async def test_a_start_waits_for_the_end_of_the_server_before(
    hub: RealHub, machine: FakeMachine
) -> None:
    """Also where that has the only card; and two containers of one server never run."""
    for user in ("ben", "cleo", "dan"):
        await hub.start(user)
    spawner = await hub.start("ada")
    old = container(machine, spawner)
    machine.exit(old.id)
    with machine.gate("remove", "before") as gate:
        assert await hub.poll("ada") is not None
        await in_thread(gate.wait_arrived)
        starting = hub.begin_start("ada")
        lists = machine.calls.count("list")
        await until(lambda: machine.calls.count("list") > lists + 2)
        assert not starting.done()
    await starting
    assert old.id not in machine.containers
    assert len(machine.live()) == 4
    assert not machine.violations


async def test_a_start_is_refused_while_the_server_before_may_run(
    hub: RealHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuspawner.admission.SETTLE_SECONDS", 0.0)
    spawner = await hub.start("ada")
    old = container(machine, spawner)
    machine.fault("stop", "500", -1)
    machine.fault("remove", "500", -1)
    monkeypatch.setattr(hub.pool, "released", _at_once)
    await hub.stop("ada")
    assert old.live
    with pytest.raises(GPURefusal, match="still being stopped") as refused:
        await hub.start("ada", CPU)
    assert refused.value.refusal_reason == "gpu-engine"
    assert old.id[:12] in refused.value.admin_message
    await hub.start("ada", CPU, "another")
    machine.heal()
    await until(lambda: old.id not in machine.containers)
    await hub.start("ada", CPU)


async def _at_once(*_: Any, **__: Any) -> bool:
    return False


async def test_a_rename_waits_for_the_end_too(
    hub: RealHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "SETTLE_SECONDS", 0.0)
    spawner = await hub.start("ada", CPU, "work")
    machine.fault("stop", "500", -1)
    machine.fault("remove", "500", -1)
    monkeypatch.setattr(hub.pool, "released", _at_once)
    await hub.stop("ada", "work")
    with pytest.raises(Exception, match="not gone yet"):
        await hub.spawner("ada", "work").rename("work", "play")
    machine.heal()
    await until(lambda: not machine.containers)
    await hub.spawner("ada", "work").rename("work", "play")
    assert not spawner.object_id


# -- where the route leads ----------------------------------------------------------------------


async def test_the_route_follows_a_restart(
    hub: RealHub, machine: FakeMachine, proxy: Proxy
) -> None:
    ada, ben = await hub.start("ada"), await hub.start("ben")
    before = address(ada), address(ben)
    for spawner in (ada, ben):
        machine.stop(spawner.object_id, None)
    machine.run(ben.object_id)
    machine.run(ada.object_id)
    assert await hub.poll("ada") is None
    assert address(ada) == container(machine, ada).address == before[1]
    # Who was there before has no route to it any more, even without a poll of its own.
    await until(lambda: address(ben) == before[0])
    assert proxy.routes == {
        "/user/ada/": f"http://{before[1]}:8888",
        "/user/ben/": f"http://{before[0]}:8888",
    }
    asked = machine.calls.count("inspect")
    for _ in range(3):
        assert await hub.poll("ada") is None
    assert machine.calls.count("inspect") == asked


async def test_who_starts_at_an_address_ousts_who_was_there(
    hub: RealHub, machine: FakeMachine, proxy: Proxy
) -> None:
    ada = await hub.start("ada")
    there = address(ada)
    machine.exit(ada.object_id)
    ended: list[str] = []
    ada.add_poll_callback(ended.append, "ada")
    assert address(await hub.start("ben")) == there
    await until(lambda: ended)
    assert address(ada) == NOWHERE
    assert proxy.routes["/user/ada/"] == f"http://{NOWHERE}:8888"


async def test_without_an_address_no_route_leads_to_the_old_one(
    hub: RealHub, machine: FakeMachine, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    ada = await hub.start("ada")
    assert await hub.poll("ada") is None
    one = container(machine, ada)
    one.host_config["NetworkMode"] = "elsewhere"
    assert await hub.poll("ada") is None
    assert proxy.routes == {"/user/ada/": f"http://{NOWHERE}:8888"}
    assert "has no address" in caplog.text
    one.host_config["NetworkMode"] = "default"
    assert await hub.poll("ada") is None
    assert proxy.routes == {"/user/ada/": f"http://{one.address}:8888"}


async def test_a_hub_starts_where_a_container_has_no_address(
    hub: RealHub, machine: FakeMachine, proxy: Proxy
) -> None:
    ada = await hub.start("ada")
    # As between the end and the start of a restart, when the poll has just said that it lives.
    machine.exit(ada.object_id)
    assert await hub.spawner("ada").get_url() == f"http://{NOWHERE}:8888/user/ada/"


async def test_a_server_that_ends_at_once_is_refused_and_leads_nowhere(
    hub: RealHub, machine: FakeMachine
) -> None:
    with machine.gate("start", "after") as gate:
        starting = hub.begin_start("ada")
        await in_thread(gate.wait_arrived)
        [one] = machine.containers.values()
        machine.exit(one.id)
    with pytest.raises(GPURefusal, match="could not be started"):
        await starting
    await until(lambda: hub.idle and not machine.containers)


async def test_an_address_that_can_not_be_asked_for_stays(
    hub: RealHub, machine: FakeMachine, proxy: Proxy
) -> None:
    ada = await hub.start("ada")
    there = address(ada)
    machine.add(state="running")
    machine.restart(ada.object_id)
    machine.fault("inspect", "500", -1)
    assert await hub.poll("ada") is None
    assert address(ada) == there
    machine.heal()
    container(machine, ada).address = "172.17.0.99"
    proxy.broken = True
    assert await hub.poll("ada") is None
    # The hub's own check of its routes goes by this.
    assert address(ada) == "172.17.0.99"


async def test_published_ports_are_followed(hub: RealHub, machine: FakeMachine) -> None:
    hub.config.GPUSpawner.use_internal_ip = False
    ada = await hub.start("ada")
    before = ada.server.port
    machine.restart(ada.object_id)
    assert await hub.poll("ada") is None
    assert ada.server.port != before
    assert {ada.server.port} == set(container(machine, ada).host_ports.values())


# -- names --------------------------------------------------------------------------------------


async def test_a_name_says_nothing(hub: RealHub, machine: FakeMachine) -> None:
    ada = await hub.start("ada")
    name = container(machine, ada).name
    machine.rename(ada.object_id, "mine-now")
    stranger = machine.add(name=name, state="running")
    assert await hub.poll("ada") is None
    assert ada.container_name == "mine-now"  # by which other containers reach it
    await hub.stop("ada")
    await until(lambda: hub.idle)
    assert set(machine.containers) == {stranger.id}
    again = await hub.start("ada")
    assert container(machine, again).name == f"{name}-{again.lease[:8]}"
