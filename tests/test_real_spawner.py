"""The real spawner under JupyterHub's own user, on a fake engine: the plain ways through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import until
from gpuspawner.refusal import GPURefusal
from real_spawner import CPU, RealHub


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def hub(machine: FakeMachine, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(tmp_path, client=lambda: FakeClient(machine))
    yield made
    made.close()


async def test_start_poll_stop(hub: RealHub, machine: FakeMachine) -> None:
    spawner = await hub.start("ada")
    [one] = machine.containers.values()
    assert one.live
    assert one.cards == set(spawner.devices) != set()
    assert spawner.ready
    assert await hub.poll("ada") is None
    await hub.stop("ada")
    await until(lambda: hub.idle)
    assert not machine.containers


async def test_all_cards_then_a_refusal_and_a_server_without(
    hub: RealHub, machine: FakeMachine
) -> None:
    for n in range(4):
        await hub.start(f"user{n}")
    with pytest.raises(GPURefusal, match="in use"):
        await hub.start("late")
    await hub.start("late", CPU)
    assert len(machine.live()) == 5
    assert not machine.violations


async def test_a_restart_keeps_every_server(hub: RealHub, machine: FakeMachine) -> None:
    before = (await hub.start("ada")).devices
    await hub.start("ben", CPU)
    ids = set(machine.containers)
    await hub.restart()
    assert hub.spawner("ada").devices == before
    assert hub.spawner("ada").user_options == {"profile": "one-gpu"}
    assert await hub.poll("ada") is None
    assert await hub.poll("ben") is None
    assert set(machine.containers) == ids
    await hub.stop("ada")
    await until(lambda: hub.idle)
    assert len(machine.containers) == 1


async def test_what_ended_is_noticed_and_cleared(hub: RealHub, machine: FakeMachine) -> None:
    spawner = await hub.start("ada")
    machine.rm_f(spawner.object_id)
    assert await hub.poll("ada") == 0
    assert hub.spawner("ada").server is None


async def test_a_pending_start_can_be_stopped(hub: RealHub, machine: FakeMachine) -> None:
    with machine.gate("create", "before"):
        starting = hub.begin_start("ada")
        await until(lambda: "create" in machine.calls)
        await hub.stop("ada")
    assert starting.cancelled()
    await until(lambda: hub.idle)
    assert not machine.containers
    await hub.start("ada")


@pytest.mark.parametrize("visited", [False, True])
async def test_a_hub_killed_in_the_post_stop_hook_leaves_no_card_behind(
    machine: FakeMachine, tmp_path: Path, visited: bool
) -> None:
    """The hub has forgotten the server by then, but not yet its state with the container's id."""
    hub = RealHub(
        tmp_path,
        client=lambda: FakeClient(machine),
        engine={"clock": lambda: machine.steady},
        orphan_grace_seconds=0,
    )
    spawner = await hub.start("ada")
    in_hook = asyncio.Event()

    async def hook(_: object) -> None:
        in_hook.set()
        await asyncio.Event().wait()

    spawner.post_stop_hook = hook
    machine.fault("stop", "unreachable", -1)
    machine.fault("remove", "unreachable", -1)
    stopping = asyncio.ensure_future(hub.stop("ada"))
    await in_hook.wait()
    stopping.cancel()
    await asyncio.wait([stopping])
    await hub.restart()
    machine.heal()
    if visited:
        hub.spawner("ada")  # whose page is looked at: the hub loads its state, and never polls it
    await hub.pool.cleaner.clean()
    machine.advance(1)
    await hub.pool.cleaner.clean()
    await until(lambda: not machine.containers or not hub.pool.cleaner._removals)
    assert not machine.containers
    hub.close()
