"""Servers of a profile with max_hours: their users are told in time, and they end in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from fakes.hub import in_thread, until
from fakes.parts import FakeContainer
from fakes.rows import HUB, OTHER_HUB, ours
from gpuspawner import standing, timing
from gpuspawner.claims import Listing
from gpuspawner.notices import notices_for
from gpuspawner.time_limits import label, max_seconds_of, overdue, seconds_left
from real_spawner import ONE, RealHub

HOUR = 3600.0
LABEL = "gpuspawner.max_seconds"
QUICK = {"profile": "quick"}
NOTES = {"profile": "notes"}
PROFILES: list[dict[str, Any]] = [
    {"display_name": "Quick", "slug": "quick", "gpu": {"count": 1}, "max_hours": 4},
    {"display_name": "Notes", "slug": "notes", "max_hours": 1},
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
]


# -- as values --------------------------------------------------------------------------------


def listing(*rows: Any, at: float = 10_000.0) -> Listing:
    return Listing(rows, at)


def test_a_label_says_how_long() -> None:
    assert label(None) == {}
    assert max_seconds_of(label(0.002 * HOUR)) == pytest.approx(7.2)
    assert max_seconds_of({}) is None


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "nan", "inf"])
def test_a_label_that_says_nothing_stops_nobody(text: str) -> None:
    assert max_seconds_of({LABEL: text}) is None


@given(st.floats(0.001, 1e6))
def test_a_label_is_read_as_it_was_written(seconds: float) -> None:
    assert max_seconds_of(label(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize("state", ["running", "paused", "restarting"])
def test_what_runs_past_its_time_is_overdue(state: str) -> None:
    late = ours(id="late", state=state, created=10_000 - 61, max_seconds="60")
    row = ours(id="row", state=state, created=10_000 - 59, max_seconds="60")
    free = ours(id="free", state=state, created=0)
    assert seconds_left(row, listing(row)) == 1
    assert seconds_left(free, listing(free)) is None
    assert overdue(listing(late, row, free), HUB) == (late,)
    assert overdue(listing(late, row, free), OTHER_HUB) == ()


@pytest.mark.parametrize("state", ["created", "exited", "removing", "dead"])
def test_what_does_not_run_is_not_overdue(state: str) -> None:
    late = ours(id="late", state=state, created=0, max_seconds="60")
    assert overdue(listing(late), HUB) == ()


# -- on a fake engine -------------------------------------------------------------------------


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
async def hub(machine: FakeMachine, tmp_path: Path) -> AsyncIterator[RealHub]:
    made = RealHub(
        tmp_path,
        client=lambda: FakeClient(machine),
        engine={"clock": lambda: machine.steady},
        database=f"sqlite:///{tmp_path}/hub.sqlite",
    )
    made.config.GPUSpawner.profile_list = PROFILES
    yield made
    made.close()


@pytest.fixture(autouse=True)
def pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "EXIT_CONFIRM_SECONDS", 0.0)


def container(machine: FakeMachine, spawner: Any) -> FakeContainer:
    return machine.containers[spawner.object_id]


def told(hub: RealHub, name: str = "ada") -> list[str]:
    return [n.text for n in notices_for(hub.user(name))]


async def test_a_server_ends_with_its_time(
    hub: RealHub, machine: FakeMachine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    spawner = await hub.start("ada", QUICK)
    assert container(machine, spawner).labels[LABEL] == "14400"
    machine.advance(4 * HOUR - 700)
    assert await hub.poll("ada") is None
    assert told(hub) == []
    machine.advance(150)
    assert await hub.poll("ada") is None
    [words] = told(hub)
    assert words.startswith("Your 4 hours of GPU time end in 10 minutes.")
    machine.advance(560)
    assert await hub.poll("ada") is None, "it is being stopped"
    await until(lambda: not machine.live())
    assert "stop" in machine.calls, "gently"
    await until(lambda: spawner._ended is not None)  # noticed at once, without another poll
    assert str(await hub.poll("ada")).startswith("time limit of 4 hours, ExitCode=")
    assert "The time of server '' of user ada is over (4 hours)" in caplog.text
    await until(lambda: hub.idle and not machine.containers)
    hub.spawner("ada")  # the hub made it anew, as its pages do
    [words] = told(hub)
    assert words.startswith("Your 4 hours of GPU time are over, so your server was stopped.")
    await hub.start("ada", ONE)
    assert told(hub) == [], "told until the next start"
    machine.advance(100 * HOUR)
    assert await hub.poll("ada") is None
    assert told(hub) == []
    assert len(machine.live()) == 1


async def test_the_form_tells_it_too(hub: RealHub, machine: FakeMachine) -> None:
    await hub.start("ada", QUICK, "training")
    machine.advance(4 * HOUR - 30)
    await hub.poll("ada", "training")
    form = await hub.spawner("ada")._form()
    assert "&#34;training&#34;: Your 4 hours of GPU time end in 1 minute." in form


async def test_without_a_gpu_no_gpu_is_spoken_of(hub: RealHub, machine: FakeMachine) -> None:
    await hub.start("ada", NOTES)
    machine.advance(HOUR - 30)
    await hub.poll("ada")
    [words] = told(hub)
    assert words.startswith("Your 1 hour of server time ends in 1 minute.")


async def test_a_restart_of_the_hub_and_another_profile_list_change_nothing(
    hub: RealHub, machine: FakeMachine
) -> None:
    await hub.start("ada", QUICK)
    machine.advance(3 * HOUR)
    hub.config.GPUSpawner.profile_list = [{**PROFILES[0], "max_hours": 100}, PROFILES[2]]
    hub.kill()
    hub._begin()
    assert hub.spawner("ada").max_seconds == 4 * HOUR, "before anything was asked"
    await hub.restart()
    assert hub.spawner("ada").max_seconds == 4 * HOUR
    machine.advance(HOUR - 60)
    assert await hub.poll("ada") is None
    assert len(machine.live()) == 1
    assert told(hub)
    machine.set_clock(-5 * HOUR)  # somebody sets the host's clock: nothing has aged for that
    machine.advance(61)
    assert await hub.poll("ada") is None
    await until(lambda: not machine.live())
    assert "time limit of 4 hours" in str(await hub.poll("ada"))


async def test_it_is_stopped_though_nobody_polls(hub: RealHub, machine: FakeMachine) -> None:
    await hub.start("ada", QUICK)
    machine.advance(4 * HOUR + 1)
    await hub.pool.cleaner.clean()
    await until(lambda: not machine.live())
    assert "time limit of 4 hours" in str(await hub.poll("ada"))


async def test_a_server_that_nobody_knows_ends_too(hub: RealHub, machine: FakeMachine) -> None:
    spawner = await hub.start("ada", QUICK)
    one = container(machine, spawner)
    hub.kill()
    hub.session.delete(spawner.orm_spawner)
    hub.session.commit()
    hub._begin()
    machine.advance(4 * HOUR + 1)
    await hub.pool.cleaner.clean()
    await until(lambda: not one.live)


@pytest.mark.parametrize("fault", ["500", "unreachable", "lost"])
async def test_while_the_engine_does_not_answer_it_is_tried_again(
    hub: RealHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    monkeypatch.setattr("gpuspawner.removal.RETRY_SECONDS", 0.001)
    spawner = await hub.start("ada", QUICK)
    machine.advance(4 * HOUR + 1)
    machine.fault("stop", fault, times=-1)
    assert await hub.poll("ada") is None
    await until(lambda: machine.calls.count("stop") > 3)
    assert await hub.poll("ada") is None
    assert spawner.devices
    machine.heal()
    await until(lambda: spawner._ended is not None)
    assert "time limit of 4 hours" in str(await hub.poll("ada"))


async def test_nobody_stops_it_twice_at_once(hub: RealHub, machine: FakeMachine) -> None:
    await hub.start("ada", QUICK)
    machine.advance(4 * HOUR + 1)
    with machine.gate("stop", "before") as gate:
        for _ in range(3):
            await hub.pool.cleaner.clean()
            assert await hub.spawner("ada").poll() is None
        await in_thread(gate.wait_arrived)
    await until(lambda: not machine.live())
    assert machine.calls.count("stop") == 1


async def test_who_stops_it_before_is_told_nothing(hub: RealHub, machine: FakeMachine) -> None:
    await hub.start("ada", QUICK)
    machine.advance(4 * HOUR - 60)
    await hub.poll("ada")
    await hub.stop("ada")
    assert told(hub) == []
    assert hub.spawner("ada").max_seconds is None


async def test_it_fails_of_its_own_before_its_time(hub: RealHub, machine: FakeMachine) -> None:
    spawner = await hub.start("ada", QUICK)
    machine.exit(spawner.object_id)
    assert "time limit" not in str(await hub.poll("ada"))
    assert told(hub) == []


async def test_its_container_is_not_kept(hub: RealHub, machine: FakeMachine) -> None:
    hub.config.GPUSpawner.remove = False
    hub.config.GPUSpawner.profile_list = [*PROFILES, {"display_name": "CPU", "slug": "cpu"}]
    spawner = await hub.start("ada", NOTES)
    first = spawner.object_id
    await hub.stop("ada")
    resumes = [spawner.will_resume]
    await until(lambda: not machine.containers)
    machine.advance(2 * HOUR)
    again = await hub.start("ada", NOTES)
    assert again.object_id != first
    assert await hub.poll("ada") is None
    assert len(machine.live()) == 1
    await hub.stop("ada")
    # Without a limit it would be.
    spawner = await hub.start("ada", {"profile": "cpu"})
    await hub.stop("ada")
    assert [*resumes, spawner.will_resume] == [False, True]
    [kept] = machine.containers
    # Nor is it the one for a server that has a limit by now.
    hub.config.GPUSpawner.profile_list = [{"display_name": "CPU", "slug": "cpu", "max_hours": 1}]
    machine.advance(2 * HOUR)
    spawner = await hub.start("ada", {"profile": "cpu"})
    assert spawner.object_id != kept
    assert container(machine, spawner).labels[LABEL] == "3600"


async def test_the_warning_is_due_by_a_steady_clock(
    hub: RealHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    steady = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr(timing, "time", steady)
    await hub.start("ada", QUICK)
    await hub.poll("ada")
    clock.now += 4 * HOUR - 601
    assert told(hub) == []
    clock.now += 2
    [words] = told(hub)
    assert "in 10 minutes" in words
    machine.advance(5 * HOUR)
    await hub.poll("ada")
    await until(lambda: not machine.live())
    await hub.poll("ada")
    hub.spawner("ada")
    clock.now += 23 * HOUR
    assert len(told(hub)) == 1
    clock.now += 2 * HOUR
    assert told(hub) == [], "a day later it is no news"


async def test_the_end_of_a_server_that_is_gone_is_nobodys(
    hub: RealHub, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the hub would clean up after the next one, which may be starting."""
    spawner = await hub.start("ada", QUICK)
    container_id = spawner.object_id
    noticed: list[None] = []

    async def notify() -> None:
        noticed.append(None)

    monkeypatch.setattr(spawner, "poll_and_notify", notify)
    machine.advance(4 * HOUR + 1)
    for gone in (False, True):
        machine.run(container_id)
        with machine.gate("stop", "before") as gate:
            assert await hub.poll("ada") is None
            await in_thread(gate.wait_arrived)
            stopping = hub.pool.timekeeper.stopping(container_id)
            assert stopping is not None
            if gone:
                spawner.clear_state()
        await stopping
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(noticed) == 1
