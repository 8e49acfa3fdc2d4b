"""Law 7 on one hub: what is dirty, ill or unknown is not given out, and comes back by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from fakes.demands import demand
from fakes.docker_machine import FakeMachine
from fakes.driver import FakeDriver, drive
from fakes.hub import FakeHub, until
from gpuspawner import messages, shortage_words, watch
from gpuspawner.devices import Process
from gpuspawner.errors import EngineUnknown, ProbeError
from gpuspawner.pool import NoRoom

Make = Callable[..., FakeHub]
STRANGER = Process(4711, "compute", 900)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "HEAL_SECONDS", 0.001)


@pytest.fixture
def driver(hub: FakeHub) -> FakeDriver:
    return drive(hub)


async def look(hub: FakeHub, times: int = 1) -> None:
    for _ in range(times):
        await hub.pool.prober.renewed()


def well(hub: FakeHub) -> bool:
    return not hub.pool.prober.health.unwell


# -- not offered ----------------------------------------------------------------------------------

WRONG: dict[str, Callable[[FakeDriver, str], Any]] = {
    "foreign process": lambda driver, uuid: driver.processes.update({uuid: [STRANGER]}),
    "memory of nobody": lambda driver, uuid: driver.faults.update({uuid: {"used_mib": 501}}),
    "recovery action": lambda driver, uuid: driver.faults.update(
        {uuid: {"recovery_action": "gpu-reset"}}
    ),
    "lost": lambda driver, uuid: driver.faults.update({uuid: {"error": "GPU is lost"}}),
    "lost its name": lambda driver, uuid: driver.faults.update(
        {uuid: {"uuid": "", "error": "GPU is lost"}}
    ),
    "gone": lambda driver, uuid: driver.missing.add(uuid),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_card_is_not_offered_while_something_is_wrong_and_heals_by_itself(
    hub: FakeHub, driver: FakeDriver, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await look(hub)
    bad, *good = driver.uuids
    WRONG[wrong](driver, bad)
    await look(hub)
    given = [await hub.spawn(f"user{number}") for number in range(3)]
    assert {a.devices[0] for a, _ in given} == set(good)
    for ask in (hub.pool.check(demand("late")), hub.spawn("late")):
        with pytest.raises(NoRoom) as refused:
            await ask
        shortage = refused.value.shortage
        assert (shortage.total, shortage.held, shortage.unavailable) == (4, 3, 1)
        text = shortage_words.none_free(shortage, cpu_available=False)
        assert text.startswith("3 GPUs are in use just now, 1 is out of service.")
    assert caplog.text.count("and not offered: ") == 1, "told once while it lasts"
    assert bad in caplog.text

    driver.processes.clear()
    driver.faults.clear()
    driver.missing.clear()
    await until(lambda: well(hub))  # nobody asks for anything meanwhile
    healed, _ = await hub.spawn("late")
    assert healed.devices == (bad,)
    assert caplog.text.count("offered again\n") == 1


async def test_it_takes_as_many_clean_looks_as_the_admin_says(
    make_hub: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "HEAL_SECONDS", 1e9)
    hub = make_hub(clean_probes=2)
    driver = drive(hub, cards=1)
    driver.processes[driver.uuids[0]] = [STRANGER]
    await look(hub)
    driver.processes.clear()
    await look(hub)
    (card,) = hub.pool.cards(await hub.pool.view())
    assert card.settling
    await look(hub)
    (card,) = hub.pool.cards(await hub.pool.view())
    assert not card.unavailable


async def test_the_limit_of_memory_is_the_admins(make_hub: Make) -> None:
    hub = make_hub(foreign_memory_mib=2000)
    driver = drive(hub, cards=1)
    driver.faults[driver.uuids[0]] = {"used_mib": 2000}
    await hub.spawn()


async def test_a_driver_that_is_silent_gives_no_verdict(
    make_hub: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "HEAL_SECONDS", 1e9)
    hub = make_hub()
    driver = drive(hub, cards=2)
    bad, good = driver.uuids
    driver.processes[bad] = [STRANGER]
    await look(hub)
    driver.silent = True
    for _ in range(5):
        with pytest.raises(ProbeError):
            await look(hub)
    # What was dirty stays so, and what was well is given out for a while.
    assert (await hub.spawn("ada"))[0].devices == (good,)
    with pytest.raises(NoRoom):
        await hub.spawn("ben")
    driver.silent = False
    await look(hub)
    assert not well(hub)


async def test_an_answer_too_old_is_none(make_hub: Make) -> None:
    hub = make_hub(probe_max_age_seconds=0)
    driver = drive(hub)
    await look(hub)
    driver.silent = True
    with pytest.raises(ProbeError):
        await hub.spawn()
    assert not hub.machine.containers


async def test_without_the_engine_there_is_no_look(hub: FakeHub, driver: FakeDriver) -> None:
    await look(hub)
    hub.machine.fault("list", "unreachable", times=-1)
    with pytest.raises(EngineUnknown):
        await look(hub)
    assert well(hub)
    hub.machine.heal()
    await look(hub)


# -- settling -------------------------------------------------------------------------------------


async def test_a_card_is_looked_at_again_after_each_holder(make_hub: Make) -> None:
    hub = make_hub()
    driver = drive(hub, cards=1)
    held = await hub.spawn("ada")
    before = driver.asked
    await hub.stop(*held)
    await hub.spawn("ben")  # at once: the look is made on the way
    assert driver.asked > before


async def test_what_a_server_left_behind_keeps_its_card_until_it_is_gone(make_hub: Make) -> None:
    hub = make_hub()
    driver = drive(hub, cards=1)
    attempt, container = await hub.spawn("ada")
    driver.processes[attempt.devices[0]] = [Process(7, "compute", 900, container)]
    await look(hub)
    await hub.stop(attempt, container)
    with pytest.raises(NoRoom) as refused:
        await hub.spawn("ben")
    assert (refused.value.shortage.settling, refused.value.shortage.unavailable) == (1, 0)
    driver.processes.clear()
    await hub.spawn("ben")  # one clean look is enough


async def test_in_the_clean_case_admission_waits_for_no_look(
    hub: FakeHub, driver: FakeDriver
) -> None:
    await look(hub)
    driver.open.clear()
    await hub.pool.check(demand("ada"))
    await hub.spawn("ada")
    driver.open.set()


async def test_a_refusal_of_held_cards_waits_for_no_look(make_hub: Make) -> None:
    hub = make_hub()
    driver = drive(hub, cards=1)
    await hub.spawn("ada")
    driver.open.clear()
    with pytest.raises(NoRoom):
        await hub.pool.check(demand("ben"))
    driver.open.set()


# -- whose process --------------------------------------------------------------------------------


async def test_where_the_probe_cannot_tell_the_engine_is_asked(
    hub: FakeHub, driver: FakeDriver
) -> None:
    attempt, container = await hub.spawn("ada")
    (pid,) = hub.machine.containers[container].pids
    driver.processes[attempt.devices[0]] = [Process(pid, "compute", 900)]
    await look(hub)
    assert well(hub)
    assert hub.machine.calls.count("top") == 1
    await look(hub)
    assert hub.machine.calls.count("top") == 1, "what is known is not asked again"
    other = next(u for u in driver.uuids if u not in attempt.devices)
    driver.processes[other] = [Process(pid, "compute", 900)]
    await look(hub)
    assert hub.pool.prober.health.of(other).strangers


async def test_an_engine_that_does_not_tell_leaves_it_a_strangers(
    hub: FakeHub, driver: FakeDriver
) -> None:
    attempt, container = await hub.spawn("ada")
    (pid,) = hub.machine.containers[container].pids
    driver.processes[attempt.devices[0]] = [Process(pid, "compute", 900)]
    hub.machine.fault("top", "500", times=-1)
    await look(hub)
    assert hub.pool.prober.health.of(attempt.devices[0]).strangers


async def test_a_container_that_may_use_all_cards_holds_the_one_it_works_on(
    hub: FakeHub, driver: FakeDriver
) -> None:
    container = hub.machine.add(state="running", host_config={"Privileged": True})
    driver.processes[driver.uuids[0]] = [Process(container.pids[0], "compute", 900)]
    await look(hub)
    assert well(hub)
    with pytest.raises(NoRoom) as refused:
        await hub.spawn(count=4)
    assert refused.value.shortage.foreign == 1


# -- while servers run ----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["recovery action", "lost", "gone"])
async def test_a_fault_under_a_running_server_is_told_once_and_taken_back(
    hub: FakeHub, driver: FakeDriver, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    attempt, container = await hub.spawn("ada", "training")
    (uuid,) = attempt.devices
    alarms = hub.pool.watch.alarms
    hub.pool.watch.polled(0.001)
    WRONG[wrong](driver, uuid)
    await until(lambda: alarms.notices(attempt.lease))
    assert alarms.notices(attempt.lease) == (messages.card_ill(),)
    asked = driver.asked
    await until(lambda: driver.asked > asked + 5)
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert all(part in errors[0] for part in (uuid, "'training'", "user ada", "dmesg"))
    assert hub.machine.containers[container].live, "it keeps its card"

    driver.faults.clear()
    driver.missing.clear()
    await until(lambda: not alarms.notices(attempt.lease))
    assert "is well again" in caplog.text


@pytest.mark.parametrize("how", ["process", "container"])
async def test_somebody_who_comes_to_a_card_of_ours_is_told_and_ours_stays(
    hub: FakeHub,
    driver: FakeDriver,
    machine: FakeMachine,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    attempt, container = await hub.spawn("ada")
    hub.pool.watch.polled(0.001)
    if how == "process":
        driver.processes[attempt.devices[0]] = [STRANGER]
    else:
        came = machine.add(cards=attempt.devices, state="running", name="intruder")
    await until(lambda: "Somebody else" in caplog.text)
    asked = driver.asked
    await until(lambda: driver.asked > asked + 5)
    assert caplog.text.count("Somebody else") == 1
    assert ("process 4711" if how == "process" else "intruder") in caplog.text
    assert machine.containers[container].live
    assert not hub.pool.watch.alarms.notices(attempt.lease), "nothing the user could do"
    if how == "process":
        driver.processes.clear()
    else:
        machine.rm_f(came.id)
    await until(lambda: "Nobody else" in caplog.text)


async def test_nobody_looks_where_there_is_nothing_to_see(hub: FakeHub, driver: FakeDriver) -> None:
    held = await hub.spawn("ada")
    hub.pool.watch.polled(0.001)
    await until(lambda: driver.asked > 5)
    await hub.stop(*held)
    await until(lambda: hub.pool.watch._timer is None and not hub.pool._tasks)


async def test_the_watch_goes_on_when_driver_and_engine_were_away(
    hub: FakeHub, driver: FakeDriver, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, _ = await hub.spawn("ada")
    hub.pool.watch.polled(0.001)
    driver.silent = True
    asked = driver.asked
    await until(lambda: driver.asked > asked + 3)
    machine.fault("list", "unreachable", times=-1)
    listed = machine.calls.count("list")
    await until(lambda: machine.calls.count("list") > listed + 3)
    machine.heal()
    driver.silent = False
    driver.faults[attempt.devices[0]] = {"error": "GPU is lost"}
    await until(lambda: hub.pool.watch.alarms.notices(attempt.lease))


async def test_a_fault_that_nobody_thought_of_does_not_end_the_watch(
    hub: FakeHub, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a card that heals would not come back until somebody asks."""
    driver.faults[(await hub.uuids())[0]] = {"error": "GPU is lost"}
    await look(hub)
    read, faults = hub.pool.prober._source.read, [RuntimeError("odd"), RuntimeError("odd")]

    async def odd() -> Any:
        if faults:
            raise faults.pop()
        return await read()

    monkeypatch.setattr(hub.pool.prober._source, "read", odd)
    driver.faults.clear()
    await until(lambda: well(hub))
    assert not faults


async def test_a_storm_of_dirt_never_meets_a_grant(make_hub: Make) -> None:
    """The law, attacked: strangers come and go while many ask; no grant of a card that was
    dirty in any of the last looks."""
    hub = make_hub()
    driver = drive(hub, cards=3)
    granted = 0
    for turn in range(150):
        uuid = driver.uuids[turn % 3]
        if turn % 7 in (0, 3):
            driver.processes[uuid] = [STRANGER]
        elif turn % 5:
            driver.processes.pop(uuid, None)
        await look(hub)
        try:
            attempt, ticket = await hub.reserve(f"user{turn}")
        except NoRoom:
            continue
        hub.pool.give_up(attempt, ticket)
        granted += 1
        dirty = [
            any(c.kind == "compute" for c in reading.by_uuid[attempt.devices[0]].processes)
            for reading in driver.readings
        ]
        recent = dirty[-hub.pool.clean_probes :] if any(dirty) else []
        assert not any(recent), (turn, dirty)
    assert granted
    assert any(any(d.processes for d in r.devices) for r in driver.readings)
    await asyncio.sleep(0)
