"""Given up at any point, an attempt leaves no container and holds no card."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from requests.exceptions import RequestException

from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, idle, in_thread, until
from fakes.rows import HUB, OTHER_HUB
from gpuspawner import pool_ends
from gpuspawner.attempts import Attempt
from gpuspawner.calls import Abandoned
from gpuspawner.pool import NoRoom
from gpuspawner.states import State

Make = Callable[..., FakeHub]


@pytest.mark.parametrize("stop_after", range(5))
async def test_give_up_in_each_state_leaves_nothing(
    hub: FakeHub, machine: FakeMachine, stop_after: int
) -> None:
    attempt, ticket = await hub.reserve()
    if stop_after >= 1:
        container = await hub.create(attempt, ticket)
    if stop_after >= 2:
        assert await hub.pool.look(attempt, container)
    if stop_after >= 3:
        hub.pool.attempts.move(attempt, State.STARTING)
    if stop_after >= 4:
        await ticket.call(lambda: hub.client.start(container))
    hub.pool.give_up(attempt, ticket)
    hub.pool.give_up(attempt, ticket)
    assert await hub.pool.ended(attempt, 120)
    assert attempt.state is State.FREE
    assert not machine.containers
    assert idle(hub)


async def test_an_engine_that_keeps_silent_is_told_to_the_admin(
    hub: FakeHub,
    machine: FakeMachine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_ends, "STUCK_SECONDS", 0.01)
    attempt, ticket = await hub.reserve()
    await hub.create(attempt, ticket)
    with machine.gate("remove", "before"):
        hub.pool.give_up(attempt, ticket)
        await until(lambda: "its GPU stays reserved" in caplog.text)
        assert "server '' of user ada" in caplog.text
        assert attempt.state is State.RELEASING
    assert await hub.pool.ended(attempt, 60)
    assert caplog.text.count("its GPU stays reserved") == 1
    assert not hub.pool._stuck


async def test_give_up_while_waiting_for_a_rival(make_hub: Make, machine: FakeMachine) -> None:
    ours, rival = make_hub(HUB, cards=1), make_hub(OTHER_HUB, cards=1)
    attempt, ticket = await ours.reserve()
    later, later_ticket = await rival.reserve()
    container = await ours.create(attempt, ticket)
    machine.advance(5)
    await rival.create(later, later_ticket)
    looking = asyncio.ensure_future(ours.pool.look(attempt, container))
    await until(lambda: attempt.state is State.WAITING)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    ours.pool.give_up(attempt, ticket)
    assert await ours.pool.ended(attempt, 120)
    assert [c.labels["gpuspawner.hub"] for c in machine.containers.values()] == [OTHER_HUB]


async def test_a_held_server_is_not_given_up(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.go(attempt, ticket)
    hub.pool.hold(attempt, ticket)
    hub.pool.give_up(attempt, ticket)
    assert attempt.state is State.HELD
    assert [c.id for c in machine.live()] == [container]


async def test_the_reservation_stays_until_the_removal_is_answered(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    with machine.gate("remove", "before") as gate:
        hub.pool.give_up(attempt, ticket)
        await in_thread(gate.wait_arrived)
        assert attempt.lease in hub.pool.attempts
        assert not await hub.pool.ended(attempt, 0.01)
        assert container in machine.containers
    assert await hub.pool.ended(attempt, 120)
    assert not machine.containers


@pytest.mark.parametrize("at", ["before", "after"])
async def test_a_create_that_is_cancelled_still_creates_and_is_removed(
    hub: FakeHub, machine: FakeMachine, at: Any
) -> None:
    attempt, ticket = await hub.reserve()
    with machine.gate("create", at) as gate:
        creating = asyncio.ensure_future(hub.create(attempt, ticket))
        await in_thread(gate.wait_arrived)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        hub.pool.give_up(attempt, ticket)
        assert attempt.state is State.RELEASING
    assert await hub.pool.ended(attempt, 120)
    assert not machine.containers


async def test_a_start_inside_the_engine_is_followed_to_its_end(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, ticket = await hub.reserve()
    with machine.gate("start", "inside") as gate:
        going = asyncio.ensure_future(hub.go(attempt, ticket))
        await in_thread(gate.wait_arrived)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        hub.pool.give_up(attempt, ticket)
        assert not await hub.pool.ended(attempt, 0.01)
    assert await hub.pool.ended(attempt, 120)
    assert not machine.containers


async def test_no_call_is_sent_for_an_attempt_given_up(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, ticket = await hub.reserve()
    hub.pool.give_up(attempt, ticket)
    with pytest.raises(Abandoned):
        await ticket.create(hub.kwargs(attempt))
    assert "create" not in machine.calls


async def test_calls_outlive_the_event_loop(machine: FakeMachine) -> None:
    """A hub told to end while a create is inside the engine: the thread cleans up behind it."""

    def one_life() -> FakeHub:
        async def life() -> FakeHub:
            hub = FakeHub(machine)
            attempt, ticket = await hub.reserve()
            creating = asyncio.ensure_future(hub.create(attempt, ticket))
            await in_thread(gate.wait_arrived)
            creating.cancel()
            hub.pool.give_up(attempt, ticket)
            return hub

        return asyncio.run(life())

    with machine.gate("create", "before") as gate:
        hub = await asyncio.get_running_loop().run_in_executor(None, one_life)
    await in_thread(hub.close)
    assert "create" in machine.calls
    assert not machine.containers


@pytest.mark.parametrize("seed", range(3))
async def test_random_cancels_leave_nothing(make_hub: Make, seed: int) -> None:
    machine = FakeMachine(seed=seed)
    machine.jitter = random.Random(seed)
    dice = random.Random(seed)
    hub = make_hub(on=machine)

    async def one(number: int) -> tuple[Attempt, str] | None:
        task = asyncio.ensure_future(hub.spawn(f"user{number}"))
        await asyncio.sleep(dice.random() * 0.02)
        task.cancel()
        try:
            return await task
        except (asyncio.CancelledError, NoRoom):
            return None

    held = [r for r in await asyncio.gather(*(one(i) for i in range(50))) if r]
    await until(lambda: not len(hub.pool.attempts))
    assert {c for _, c in held} == set(machine.containers)
    for attempt, container in held:
        await hub.stop(attempt, container)
    assert not machine.containers
    assert not machine.violations
    assert len([await hub.spawn(f"again{i}") for i in range(4)]) == 4


async def test_a_fault_that_nobody_thought_of_costs_one_try(
    hub: FakeHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the lease would be known for ever, and its card kept: neither is ever tried again."""

    def once(method: str) -> None:
        real = getattr(hub.engine, method)
        faults = [RecursionError("an answer nested too deep")]

        async def call(*args: Any, **kwargs: Any) -> Any:
            if faults:
                raise faults.pop()
            return await real(*args, **kwargs)

        monkeypatch.setattr(hub.engine, method, call)

    held, container_id = await hub.spawn()
    once("remove")
    hub.pool.release(held.lease, container_id)
    lost, ticket = await hub.reserve("ben")
    machine.fault("create", "cut")
    with pytest.raises(RequestException):
        await hub.create(lost, ticket)
    once("listing")
    hub.pool.give_up(lost, ticket)
    await until(lambda: idle(hub))
    assert not hub.pool.known()
    assert not machine.containers
