"""An engine that fails, is silent or refuses: nothing is given out twice, nothing is left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from docker.errors import APIError
from requests.exceptions import RequestException

from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, idle, in_thread, until
from gpuspawner import pool as pool_module
from gpuspawner import removal
from gpuspawner.errors import EngineUnknown
from gpuspawner.pool import NoRoom

Make = Callable[..., FakeHub]


@pytest.mark.parametrize("fault", ["unreachable", "lost", "500"])
async def test_an_engine_that_cannot_be_asked_gives_nothing_out(
    hub: FakeHub, machine: FakeMachine, fault: Any
) -> None:
    machine.fault("list", fault)
    with pytest.raises(EngineUnknown):
        await hub.spawn()
    assert not machine.containers
    assert "create" not in machine.calls
    await hub.spawn()


async def test_a_refused_create_frees_the_card_at_once(hub: FakeHub, machine: FakeMachine) -> None:
    machine.fault("create", "500")
    with pytest.raises(APIError):
        await hub.spawn()
    await until(lambda: idle(hub))
    assert machine.calls.count("remove") == 0


async def test_an_unanswered_create_keeps_its_card_until_its_container_was_removed(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=1)
    machine.fault("create", "late")
    with pytest.raises(RequestException):
        await hub.spawn()
    machine.advance(60)
    with pytest.raises(NoRoom):
        await hub.spawn("bea")
    machine.finish_late()
    await until(lambda: idle(hub))
    assert not machine.containers
    await hub.spawn("bea")


async def test_an_unanswered_create_that_never_comes_ends_after_the_grace(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=1)
    machine.fault("create", "lost")
    with pytest.raises(RequestException):
        await hub.spawn()
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    machine.advance(119)
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    assert len(hub.pool.attempts) == 1
    machine.advance(3)
    await until(lambda: idle(hub))


async def test_silence_of_the_engine_is_no_part_of_the_grace(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub = make_hub(cards=1)
    machine.fault("create", "late")
    with pytest.raises(RequestException):
        await hub.spawn()
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    machine.fault("list", "unreachable", times=-1)
    # A listing that was answered before may still be on its way.
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    machine.advance(1000)
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    assert len(hub.pool.attempts) == 1
    machine.heal()
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    assert len(hub.pool.attempts) == 1
    machine.finish_late()
    await until(lambda: idle(hub))
    assert not machine.containers


async def test_a_container_still_being_created_answers_404_and_is_followed_on(
    make_hub: Make, machine: FakeMachine
) -> None:
    """20.10 with a big new volume: listed at once, but inspect and removal say 404."""
    hub = make_hub(cards=1)
    machine.fault("create", "cut")
    with machine.gate("remove", "before") as gate:
        with pytest.raises(RequestException):
            await hub.spawn()
        (made,) = machine.containers.values()
        made.answers = False
        await in_thread(gate.wait_arrived)
    removed = machine.calls.count("remove")
    await until(lambda: machine.calls.count("remove") > removed + 2)
    assert len(hub.pool.attempts) == 1, "a 404 while listed is no end"
    made.answers = True
    await until(lambda: idle(hub))
    assert not machine.containers


async def test_a_create_whose_answer_was_lost_is_found_by_its_lease(
    hub: FakeHub, machine: FakeMachine
) -> None:
    machine.fault("create", "cut")
    with pytest.raises(RequestException):
        await hub.spawn()
    await until(lambda: idle(hub))
    assert not machine.containers


@pytest.mark.parametrize("fault", ["unreachable", "lost", "cut", "500"])
async def test_a_failed_start_leaves_nothing(
    hub: FakeHub, machine: FakeMachine, fault: Any
) -> None:
    machine.fault("start", fault)
    with pytest.raises((RequestException, APIError)):
        await hub.spawn()
    await until(lambda: idle(hub))
    assert not machine.containers


async def test_removal_is_tried_until_it_is_answered(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, container = await hub.spawn()
    for kind in ("500", "unreachable", "lost", "500"):
        machine.fault("remove", kind)
    hub.pool.release(attempt.lease, container)
    hub.pool.release(attempt.lease, container)
    assert attempt.lease in hub.pool.known()
    assert await hub.pool.released(attempt.lease, 120)
    assert not machine.containers
    assert attempt.lease not in hub.pool.known()
    assert machine.calls.count("remove") == 5


async def test_a_yielding_container_that_somebody_started_is_still_removed(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.run(container)
    hub.pool.give_up(attempt, ticket, force=False)
    assert await hub.pool.ended(attempt, 120)
    assert not machine.containers


async def test_a_process_that_cannot_be_killed_keeps_its_card(
    make_hub: Make, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(removal, "STUCK_SECONDS", 0.0)
    hub = make_hub(cards=1)
    attempt, container = await hub.spawn()
    machine.containers[container].unkillable = True
    hub.pool.release(attempt.lease, container)
    assert not await hub.pool.released(attempt.lease, 0.05)
    with pytest.raises(NoRoom):
        await hub.spawn("bea")
    told = [r for r in caplog.records if "can't be removed" in r.message]
    assert [r.levelno for r in told] == [logging.ERROR], "told, and told once"
    machine.containers[container].unkillable = False
    assert await hub.pool.released(attempt.lease, 120)
    await hub.spawn("bea")


async def test_a_removal_under_way_by_somebody_else_counts_as_gone(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, container = await hub.spawn()
    machine.containers[container].state = "removing"
    await hub.stop(attempt, container)


async def test_a_failed_listing_is_no_verdict(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.fault("list", "500", times=3)
    assert await hub.pool.look(attempt, container)


async def test_without_any_listing_nothing_starts(
    hub: FakeHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "WAIT_SECONDS", 0.0)
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.fault("list", "500", times=-1)
    with pytest.raises(EngineUnknown):
        await hub.pool.look(attempt, container)


async def test_removed_by_hand_before_it_started(hub: FakeHub, machine: FakeMachine) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.rm_f(container)
    with pytest.raises(EngineUnknown, match="removed by somebody else"):
        await hub.pool.look(attempt, container)
    hub.pool.give_up(attempt, ticket)
    assert await hub.pool.ended(attempt, 120)


async def test_slow_creates_hold_up_no_refusal(make_hub: Make, machine: FakeMachine) -> None:
    hub = make_hub(cards=2, threads=2)
    with machine.gate("create", "before") as gate:
        slow = [asyncio.ensure_future(hub.spawn(f"user{i}")) for i in range(2)]
        for _ in slow:
            await in_thread(gate.wait_arrived)
        with pytest.raises(NoRoom):
            await asyncio.wait_for(hub.spawn("late"), 120)
    assert len(await asyncio.gather(*slow)) == 2
