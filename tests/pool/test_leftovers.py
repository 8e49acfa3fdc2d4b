"""After a crash: the cleaner, and what a new spawn removes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from fakes.demands import demand
from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, Outrun, in_thread, left_by, until
from fakes.rows import OTHER_HUB
from gpuspawner import pool_leftovers
from gpuspawner.errors import EngineUnknown
from gpuspawner.pool import NoRoom

Make = Callable[..., FakeHub]


async def test_the_cleaner_after_a_crash(make_hub: Make, machine: FakeMachine) -> None:
    database: set[str] = set()
    hub = make_hub(in_database=lambda: database)
    created, running, named, ended = (
        left_by(hub, f"L{i}", state)
        for i, state in enumerate(["created", "running", "running", "exited"])
    )
    known = left_by(hub, "L9", "running")
    stranger = machine.add(state="created").id
    sibling = left_by(hub, "L8", "created", hub=OTHER_HUB)
    running_sibling = left_by(hub, "L7", "running", hub=OTHER_HUB)
    database.add(named)
    hub.pool.know("L9")
    machine.advance(30)

    await hub.clean()
    left = {created, running, named, ended, known, stranger, sibling, running_sibling}
    assert set(machine.containers) == left - {created}
    machine.advance(590)
    await hub.clean()
    assert set(machine.containers) == left - {created, sibling}
    machine.advance(15)
    await hub.clean()
    assert set(machine.containers) == {named, known, stranger, running_sibling}


async def test_the_cleaner_never_stops_another_hubs_container_that_started_meanwhile(
    hub: FakeHub, machine: FakeMachine
) -> None:
    slow = left_by(hub, "L", "created", hub=OTHER_HUB)
    machine.advance(121)
    with machine.gate("list", "after") as gate:
        cleaning = asyncio.ensure_future(hub.clean())
        await in_thread(gate.wait_arrived)
        machine.run(slow)
    await cleaning
    assert machine.containers[slow].live
    assert "remove" in machine.calls


async def test_the_cleaner_leaves_attempts_alone_however_slow(
    hub: FakeHub, machine: FakeMachine
) -> None:
    attempt, ticket = await hub.reserve()
    container = await hub.create(attempt, ticket)
    machine.advance(100_000)
    await hub.clean()
    assert container in machine.containers


async def test_a_twin_with_our_id_is_told_of_once_and_not_touched(
    hub: FakeHub, machine: FakeMachine, caplog: Any
) -> None:
    await hub.clean()
    machine.advance(5)
    twin = left_by(hub, "T", "running")
    machine.advance(10_000)
    await hub.clean()
    await hub.clean()
    await hub.pool.check(demand("ada", count=0))
    assert twin in machine.containers
    alarms = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    assert len(alarms) == 1


async def test_a_server_that_ends_while_it_is_listed_raises_no_alarm(
    hub: FakeHub, machine: FakeMachine, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hub.clean()
    machine.advance(5)
    left_by(hub, "T", "running")
    hub.pool.know("T")
    listed = hub.pool.engine.listing

    async def forgotten_meanwhile() -> Any:
        listing = await listed()
        hub.pool.forget("T")
        return listing

    monkeypatch.setattr(hub.pool.engine, "listing", forgotten_meanwhile)
    await hub.clean()
    assert not [r for r in caplog.records if r.levelno == logging.CRITICAL]


async def test_a_new_spawn_removes_what_its_server_left_behind(
    hub: FakeHub, machine: FakeMachine
) -> None:
    old = left_by(hub, "old", "running")
    others = {
        left_by(hub, "bea", "running", user="bea"),
        left_by(hub, "named", "running", server="named"),
        left_by(hub, "theirs", "running", hub=OTHER_HUB),
        machine.add(state="running").id,
    }
    machine.advance(30)
    await hub.pool.check(demand("ada", count=0))
    assert set(machine.containers) == others
    assert old not in machine.containers


async def test_the_cleaner_goes_on_after_faults(
    make_hub: Make, machine: FakeMachine, caplog: Any
) -> None:
    answers: Iterator[Exception | frozenset[str]] = iter([RuntimeError("database is locked")])

    def in_database() -> frozenset[str]:
        answer = next(answers, frozenset[str]())
        if isinstance(answer, Exception):
            raise answer
        return answer

    hub = make_hub(in_database=in_database, clean_interval_seconds=0.1)
    stuck = left_by(hub, "L", "created")
    machine.advance(30)
    machine.fault("list", "500")
    machine.fault("remove", "500")
    hub.pool.start_cleaner()
    hub.pool.start_cleaner()
    await until(lambda: stuck not in machine.containers)
    assert any("failed" in r.message for r in caplog.records)


# -- removals that take long ----------------------------------------------------------------------


async def test_a_hanging_removal_holds_up_neither_rounds_nor_others(
    hub: FakeHub, machine: FakeMachine
) -> None:
    hung = left_by(hub, "L1", "created")
    machine.fault("remove", "hang", -1, when=lambda subject: subject == hung)
    await hub.pool.cleaner.clean()
    await until(lambda: "remove" in machine.calls)
    other = left_by(hub, "L2", "created", hub=OTHER_HUB)
    machine.advance(121)
    await hub.pool.cleaner.clean()
    await until(lambda: other not in machine.containers)
    await hub.pool.cleaner.clean()
    assert hung in machine.containers
    assert machine.calls.count("remove") == 2, "nothing is removed twice at once"
    machine.heal()
    await until(lambda: not hub.pool.cleaner._removals)
    await hub.clean()
    assert not machine.containers


async def test_cleaner_and_new_spawn_share_one_removal(hub: FakeHub, machine: FakeMachine) -> None:
    left = left_by(hub, "L", "running")
    await hub.clean()
    machine.advance(601)
    with machine.gate("remove", "before") as gate:
        await hub.pool.cleaner.clean()
        await in_thread(gate.wait_arrived)
        checking = asyncio.ensure_future(hub.pool.check(demand("ada", count=0)))
        await until(lambda: machine.calls.count("list") >= 3)
        assert not checking.done()
    await checking
    assert left not in machine.containers
    assert machine.calls.count("remove") == 1


async def test_a_removal_that_was_to_spare_it_does_not_stand_for_one_by_force(
    hub: FakeHub, machine: FakeMachine
) -> None:
    """Created when the cleaner saw it, running since: the new spawn's own removal ends it."""
    left = left_by(hub, "L", "created")
    with machine.gate("remove", "before") as gate:
        await hub.pool.cleaner.clean()
        await in_thread(gate.wait_arrived)
        machine.run(left)
        checking = asyncio.ensure_future(hub.pool.check(demand("ada", count=0)))
        await until(lambda: machine.calls.count("list") >= 2)
    await checking
    assert left not in machine.containers
    assert machine.calls.count("remove") == 2


@pytest.mark.parametrize("state", ["created", "running"])
async def test_a_new_spawn_waits_for_a_hanging_removal_no_longer_than_its_time(
    hub: FakeHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(pool_leftovers, "REMOVAL_SECONDS", 0.01)
    left = left_by(hub, "L", state)
    with machine.gate("remove", "before"):
        # One that runs would run beside the new one.
        with pytest.raises(EngineUnknown) if state == "running" else nullcontext():
            await hub.pool.check(demand("ada", count=0))
        assert left in machine.containers
    await until(lambda: left not in machine.containers)


# -- clocks that are set --------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
async def test_a_clock_that_is_set_makes_no_orphans_and_frees_nothing_early(
    make_hub: Make, machine: FakeMachine, jump: float, caplog: Any
) -> None:
    hub, rival = make_hub(), make_hub(OTHER_HUB)
    old = left_by(hub, "old", "running")
    await hub.clean()
    attempt, ticket = await rival.reserve(count=4)
    created = await rival.create(attempt, ticket)
    machine.advance(5)
    await hub.clean()
    machine.set_clock(jump)
    listing = await hub.engine.listing()
    assert [listing.age(row) for row in listing.rows] == [5, 5]
    await hub.clean()
    # What was there before this process is still known as that, and not yet an orphan.
    assert {old, created} == set(machine.containers)
    machine.advance(130)
    await hub.clean()
    assert {old} == set(machine.containers), "stuck for longer than its grace"
    machine.advance(470)
    await hub.clean()
    assert not machine.containers
    assert not [r for r in caplog.records if r.levelno == logging.CRITICAL]


@pytest.mark.parametrize("jump", [-7200.0, 7200.0])
async def test_a_clock_that_is_set_frees_no_outsiders_card_early_nor_never(
    make_hub: Make, machine: FakeMachine, jump: float
) -> None:
    hub = make_hub(cards=2)
    first, second = await hub.uuids()
    await hub.pool.survey()
    machine.advance(1)
    made = machine.add(cards=(first,), state="created")
    ended = machine.add(cards=(second,), state="running")
    await hub.pool.survey()
    machine.exit(ended.id)
    machine.set_clock(jump)
    machine.advance(2)

    async def held() -> set[str]:
        return {c.row.id for c in (await hub.pool.view()).claims.claims}

    assert await held() == {made.id, ended.id}
    machine.advance(11)
    assert await held() == {made.id}
    machine.advance(121)
    assert not await held()


# -- a second hub with a copy of our id -----------------------------------------------------------


async def test_twins_never_share_a_card_and_each_tells_of_the_other(
    make_hub: Make, machine: FakeMachine, caplog: Any
) -> None:
    one, twin = make_hub(cards=4), make_hub(cards=4)
    await one.clean()
    await twin.clean()
    wanted = [hub.spawn(f"{n}") for n in range(4) for hub in (one, twin)]
    ends = await asyncio.gather(*wanted, return_exceptions=True)
    served = [end for end in ends if isinstance(end, tuple)]
    assert all(isinstance(end, (tuple, NoRoom, Outrun)) for end in ends)
    assert not machine.violations
    await until(lambda: not len(one.pool.attempts) + len(twin.pool.attempts))
    assert {container for _, container in served} == set(machine.containers)
    machine.advance(10_000)
    for _ in range(2):
        await one.clean()
        await twin.clean()
    assert len(machine.live()) == len(served), "neither stops what the other runs"
    told = {r.args[0] for r in caplog.records if r.levelno == logging.CRITICAL and r.args}
    assert told == {container[:12] for _, container in served}


async def test_of_a_twin_that_died_in_mid_start_nothing_stays(
    make_hub: Make, machine: FakeMachine
) -> None:
    hub, twin = make_hub(), make_hub()
    await hub.clean()
    attempt, ticket = await twin.reserve()
    created = await twin.create(attempt, ticket)
    machine.advance(119)
    await hub.clean()
    assert created in machine.containers
    machine.advance(2)
    await hub.clean()
    assert not machine.containers


# -- releases -------------------------------------------------------------------------------------


async def test_a_release_is_known_until_it_is_answered(
    hub: FakeHub, machine: FakeMachine, caplog: Any
) -> None:
    attempt, container = await hub.spawn()
    machine.fault("remove", "500", -1)
    hub.pool.release(attempt.lease, container)
    await until(lambda: machine.calls.count("remove") >= 3)
    assert hub.pool.known() == {attempt.lease}
    machine.advance(10_000)
    await hub.clean()
    assert "Cleaning" not in caplog.text
    assert machine.containers[container].live
    machine.heal()
    assert await hub.pool.released(attempt.lease, 60)
    assert not hub.pool.known()
    assert not machine.containers
