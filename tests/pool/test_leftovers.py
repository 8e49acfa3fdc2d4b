"""After a crash: the cleaner, and what a new spawn removes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, in_thread, left_by, until
from fakes.rows import OTHER_HUB
from gpuspawner.placement import Request

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

    await hub.pool.clean()
    left = {created, running, named, ended, known, stranger, sibling, running_sibling}
    assert set(machine.containers) == left - {created}
    machine.advance(590)
    await hub.pool.clean()
    assert set(machine.containers) == left - {created, sibling}
    machine.advance(15)
    await hub.pool.clean()
    assert set(machine.containers) == {named, known, stranger, running_sibling}


async def test_the_cleaner_never_stops_another_hubs_container_that_started_meanwhile(
    hub: FakeHub, machine: FakeMachine
) -> None:
    slow = left_by(hub, "L", "created", hub=OTHER_HUB)
    machine.advance(121)
    with machine.gate("list", "after") as gate:
        cleaning = asyncio.ensure_future(hub.pool.clean())
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
    await hub.pool.clean()
    assert container in machine.containers


async def test_a_twin_with_our_id_is_told_of_once_and_not_touched(
    hub: FakeHub, machine: FakeMachine, caplog: Any
) -> None:
    await hub.pool.clean()
    machine.advance(5)
    twin = left_by(hub, "T", "running")
    machine.advance(10_000)
    await hub.pool.clean()
    await hub.pool.clean()
    await hub.pool.check(Request(0), "ada", 0)
    assert twin in machine.containers
    alarms = [r for r in caplog.records if r.levelno == logging.CRITICAL]
    assert len(alarms) == 1


async def test_a_server_that_ends_while_it_is_listed_raises_no_alarm(
    hub: FakeHub, machine: FakeMachine, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hub.pool.clean()
    machine.advance(5)
    left_by(hub, "T", "running")
    hub.pool.know("T")
    listed = hub.pool.engine.listing

    async def forgotten_meanwhile() -> Any:
        listing = await listed()
        hub.pool.forget("T")
        return listing

    monkeypatch.setattr(hub.pool.engine, "listing", forgotten_meanwhile)
    await hub.pool.clean()
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
    await hub.pool.check(Request(0), "ada", 0)
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
